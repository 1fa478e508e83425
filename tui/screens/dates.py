"""Times as people say them.

Invariant: any number is answered, with nothing where it is no time.
"""

from __future__ import annotations

from datetime import datetime


def stamp(at: float, now: datetime) -> str:
    """A time in full, in the zone of `now`: "2026-11-23 17:58"; "" where it is no time."""
    try:
        return f"{datetime.fromtimestamp(at, now.tzinfo):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def when(at: float, now: datetime) -> str:
    """A time as people say it: "17:58", "yesterday", "Mon 23 Nov", "23 Nov 2025"."""
    try:
        then = datetime.fromtimestamp(at, now.tzinfo)
    except (ValueError, OverflowError, OSError):
        return ""
    days = (now.date() - then.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    if days == 1:
        return "yesterday"
    if 0 < days < 7:
        return f"{then:%a %H:%M}"
    return f"{then.day} {then:%b}" if then.year == now.year else f"{then.day} {then:%b %Y}"
