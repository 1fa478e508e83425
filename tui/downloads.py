"""How far a download is, how fast, and how long it will take.

Invariant: figures come from what arrived in the last seconds; what can't be known is None.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edgespec.tui.messages import Downloading
from edgespec.units import human_bytes

_WINDOW_S = 5.0
"""Seconds over which the speed is a mean."""


@dataclass(frozen=True)
class Progress:
    """One model's download at a moment; `again`: it began once more, to be unpacked or checked."""

    model: str
    done_bytes: int
    total_bytes: int | None
    bytes_per_second: float | None
    again: bool

    @property
    def share(self) -> float | None:
        """How much of it is here, 0 to 1."""
        if not self.total_bytes:
            return None
        return min(1.0, self.done_bytes / self.total_bytes)

    @property
    def seconds_left(self) -> float | None:
        """At the present speed."""
        if not self.total_bytes or not self.bytes_per_second:
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.bytes_per_second

    @property
    def line(self) -> str:
        """The figures in words."""
        parts = [human_bytes(self.done_bytes)]
        if self.total_bytes:
            parts[0] += f" of {human_bytes(self.total_bytes)}"
        if self.bytes_per_second:
            parts.append(f"{human_bytes(int(self.bytes_per_second))}/s")
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return " · ".join(parts)


class Meter:
    """Takes what the bridge tells of one pair's downloads."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self._again = False
        self._seen: deque[tuple[float, int]] = deque()

    def take(self, event: Downloading, now: float) -> Progress:
        """Count an event; `now` is in seconds of a clock that never goes back."""
        if not self.models or event.model != self.models[-1]:
            self.models.append(event.model)
            self._seen.clear()
            self._again = False
        elif self._seen and event.done_bytes < self._seen[-1][1]:
            self._seen.clear()
            self._again = True
        self._seen.append((now, event.done_bytes))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        speed = (event.done_bytes - before) / (now - since) if now - since >= 0.5 else None
        return Progress(event.model, event.done_bytes, event.total_bytes, speed, self._again)


def duration(seconds: float) -> str:
    """As people say it: "8 s", "3 min", "1 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
