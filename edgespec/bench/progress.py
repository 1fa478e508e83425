"""How far a measurement is, on stderr.

Invariant: a terminal shows one line that changes; anything else gets a line now and then, so that
a log of hours stays short.
"""

from __future__ import annotations

import sys
import time


class Progress:
    """How far it is and how long it takes yet, on stderr: one line that changes on a terminal."""

    def __init__(self, pair: str, every: float = 30.0) -> None:
        self._pair = pair
        self._every = every
        self._last = -every
        self._width = 0

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
        line = ", ".join(parts)
        if terminal:
            end = "\n" if done == total else ""
            print(f"\r{line.ljust(self._width)}", end=end, file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
        self._width = len(line)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
