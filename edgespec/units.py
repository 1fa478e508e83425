"""Amounts as people read them.

Invariant: importing this loads nothing else.
"""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """98_362_432 -> "98 MB"; decimal units, as disks and the hub use them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10 * size else f"{count // size} {unit}"
    return f"{count} bytes"
