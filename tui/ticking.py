"""How often the screen looks at what came: less often the longer drawing takes.

Invariant: drawing takes about `SHARE` of a processor at most, as the models compute on the same
ones, and where nobody looks any more no look is begun.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any

from textual.app import App

TICK = 0.1
"""Seconds from one look at the events to the next, unless drawing takes too long for that."""
SHARE = 0.04
"""The share of a processor that drawing may take."""
_LONGEST_TICK = 1.0
SOON = (0.05, 0.1, 0.18)
"""Seconds after a stop at which to look, whatever drawing took: a stop must be seen at once."""


def until_next_look(used: float, tick: float = TICK) -> float:
    """Seconds until the app looks for events again, where drawing took `used` seconds of late."""
    return max(tick, min(_LONGEST_TICK, used / SHARE))


class Ticker:
    """Has an app look again and again, on its own thread."""

    def __init__(
        self,
        app: App[Any],
        look: Callable[[], None],
        *,
        tick: float = TICK,
        spent: Callable[[], float] = thread_time,
    ) -> None:
        """`tick`: see `TICK`; `spent`: seconds of a processor that drawing took until now."""
        self._app = app
        self._look = look
        self._pace, self._spent = tick, spent
        self._used = 0.0
        self._started = False

    @property
    def looking(self) -> bool:
        """Whether there is somebody to look: it was started, and the app runs."""
        return self._started and self._app.is_running

    def start(self) -> None:
        """Look from now on."""
        self._started = True
        self._used = self._spent()
        self._tick()

    def soon(self, look: Callable[[], None]) -> None:
        """Have `look` called a few times at once, beside the others."""
        for seconds in SOON:
            self._app.set_timer(seconds, look)

    def _tick(self) -> None:
        if not self.looking:
            return
        self._look()
        before, self._used = self._used, self._spent()
        self._app.set_timer(until_next_look(self._used - before, self._pace), self._tick)
