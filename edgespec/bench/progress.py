"""How far a measurement is, on stderr.

Invariant: a terminal shows one line that changes, however narrow it is, and is left at the start of
a line; anything else gets a line now and then, so that a log of hours stays short.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from edgespec.terminal import printable


class Progress:
    """How far it is and how long it takes yet, on stderr: one line that changes on a terminal."""

    def __init__(self, pair: str, every: float = 30.0) -> None:
        self._pair = pair
        self._every = every
        self._last = -every
        self._width = 0  # cells that the line on the terminal takes
        self._open = False

    def __call__(self, done: int, total: int, what: str, left: float | None) -> None:
        """See `protocol.measure`."""
        terminal = sys.stderr.isatty()
        if not terminal and time.monotonic() - self._last < self._every and done < total:
            return
        self._last = time.monotonic()
        parts = [f"{self._pair}: {done} of {total} prompts answered by all sides"]
        parts += [what] * bool(what)
        if left is not None and done < total:
            parts.append(f"{_duration(left)} left")
        line = printable(", ".join(parts))
        if terminal:
            from rich.cells import cell_len, set_cell_size

            room = max(1, _columns() - 1)  # a full line would wrap, and then scroll
            cells = cell_len(line)
            covering = set_cell_size(line, min(room, max(cells, self._width)))
            self._width = min(cells, room)
            self._open = done < total
            end = "" if self._open else "\n"
            print(f"\r{covering}", end=end, file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def apart(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """`say` for messages in between: each begins on a line of its own."""

        def told(message: str) -> None:
            self.close()
            say(message)

        return told

    def close(self) -> None:
        """End an unfinished line, so that the next message has one of its own."""
        if self._open:
            self._open = False
            print(file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
