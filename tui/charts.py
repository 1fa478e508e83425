"""Charts in characters: bars, sparklines, a graph. Numbers in, strings out.

Invariant: a chart has the size it was asked for, and says by its shape alone what it says: nothing
depends on colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

EIGHTHS = " ▁▂▃▄▅▆▇█"
_SIDEWAYS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """A bar to the right, `share` of `width` cells long; anything above 0 is seen."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_SIDEWAYS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float], width: int, top: float) -> str:
    """The newest `width` values, each as a column of one cell; 0 is a low line, not nothing."""
    shown = values[-width:] if width > 0 else []
    columns = [EIGHTHS[max(1, min(8, round(8 * v / top)))] if top else EIGHTHS[1] for v in shown]
    return "".join(columns).rjust(width)


def graph(values: Sequence[float], width: int, height: int, top: float) -> list[str]:
    """All values from left to right in `height` rows, the upper first.

    More values than columns are averaged; fewer leave the right side free.
    """
    columns = resampled(values, width)
    levels = [max(1, round(8 * height * min(1.0, v / top))) if top else 0 for v in columns]
    return [
        "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels).ljust(width)
        for row in reversed(range(height))
    ]


def resampled(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: the means of equal stretches."""
    count = len(values)
    if count <= width:
        return list(values)
    edges = [count * i // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def round_top(value: float) -> float:
    """The next round number from a value upwards, for the end of an axis."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 0.1
    return next(step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * scale >= value)
