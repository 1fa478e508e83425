"""The few shapes a chart is made of, as SVG text.

Invariant: every text is escaped, every colour is a class that the page's style defines for light
and dark, and nothing refers to anything outside the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from rich.cells import cell_len, set_cell_size

Scale = Callable[[float], float]

WIDTH = 860.0
CELL = 6.9
"""The width of a letter at the page's size."""
PLAIN_SERIES = -1
"""The colour of plain decoding, which is no other's."""


def colour(series: int) -> str:
    """The classes of a series: one of six colours, or plain decoding's.

    Where they come again, marks are hollow and lines dashed, and the third time faint as well.
    """
    if series < 0:
        return "s6"
    return f"s{series % 6}" + ("", " again", " again third")[min(series // 6, 2)]


def figure(height: float, label: str, parts: Iterable[str]) -> str:
    """A picture as wide as the page, which `label` describes to those who can't see it."""
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">\n'
        f"{body}\n</svg>"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words with their baseline at y; `kind` is muted, strong or small, or several."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def path(points: Sequence[tuple[float, float]], series: int) -> str:
    """A line through points."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" class="line {colour(series)}"/>'


def dot(x: float, y: float, series: int, tip: str, radius: float = 4.0) -> str:
    """A mark that says what it is when pointed at."""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="dot {colour(series)}">'
        f"<title>{escape(tip)}</title></circle>"
    )


def bar(x: float, y: float, width: float, height: float, kind: str, tip: str) -> str:
    """A part of a bar, with a hair's breadth left free beside it."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width - 1.5):.1f}" height="{height:.1f}"'
        f' rx="2" class="{kind}"><title>{escape(tip)}</title></rect>'
    )


def legend(names: Sequence[str], kinds: Sequence[str], y: float) -> list[str]:
    """A few short names beside their colours, in a row."""
    parts, x = [], 0.0
    for name, kind in zip(names, kinds, strict=True):
        parts.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" rx="2" '
                     f'class="{kind}"/>')  # fmt: skip
        parts.append(text(x + 15, y, name))
        x += 15 + text_width(name) + 22
    return parts


def text_width(words: str) -> float:
    """About how wide words are at the page's size; a letter takes one cell or two."""
    return CELL * cell_len(words)


def shortened(words: str, cells: int) -> str:
    """Words that take so many cells at most; what is left out in their middle is an ellipsis."""
    if cell_len(words) <= cells:
        return words
    end = cells // 3
    head = set_cell_size(words, cells - 1 - end).rstrip()
    return f"{head}…{set_cell_size(words[::-1], end).rstrip()[::-1]}"


def linear(low: float, high: float, begin: float, end: float) -> Scale:
    """From values between `low` and `high` to places between `begin` and `end`."""
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def logarithmic(low: float, high: float, begin: float, end: float) -> Scale:
    """The same, equal ratios being equally far apart."""
    inner = linear(math.log(low), math.log(high), begin, end)
    return lambda value: inner(math.log(value))


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios from `low` to `high`, few enough to be read."""
    fine = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7]
    coarse = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 10, 20]
    ticks = [tick for tick in fine if low <= tick <= high]
    return ticks if 2 <= len(ticks) <= 9 else [tick for tick in coarse if low <= tick <= high]


def ticks(high: float, most: int = 6) -> list[float]:
    """Round values from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    size = 10 ** math.floor(math.log10(high / most))
    step = next(size * m for m in (1, 2, 5, 10, 20) if high / (size * m) <= most)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's value without needless zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
