"""The report's pictures.

Invariant: what a picture shows is written beside it in words and figures, so that nothing hangs on
a colour or on guessing a length; a ratio's interval is drawn wherever the ratio is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.bench import svg
from edgespec.bench.record import Costs
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import Interval, Spread, spread
from edgespec.bench.summary import Split

_LEFT = 150.0
_INDENT = 14.0
_ROW = 17.0
_GAP = 15.0

_PLOT = 200.0  # of a scale, whatever names and notes are beside it
_NAME = 30  # cells of a side's name that are shown
_LONGEST = 60  # cells of a category's

_BEYOND = 3.0  # how far beyond all ratios a scale goes for the sake of intervals

PARTS = ("draft", "check", "sample", "rest")


def intervals(
    title: str,
    rows: Mapping[str, Mapping[str, tuple[Interval, str]]],
    names: Sequence[str],
    one: str,
) -> str:
    """Ratios by category, a line for each of `names`; `one` says what a ratio of 1 is.

    Each ratio comes with a note to stand behind it. A category without ratios is left out, and
    nothing is no picture. An interval that goes far beyond all ratios is cut where the scale ends,
    and has an arrow there.
    """
    rows = {category: row for category, row in rows.items() if row}
    if not rows:
        return ""
    left = _beside_names(names)
    low, high = _scale([i for row in rows.values() for i, _ in row.values()])
    notes = {note for row in rows.values() for _, note in row.values()}
    room = svg.WIDTH - left - _PLOT - 160.0
    widest = min(room, max(map(svg.text_width, notes)))
    right = svg.WIDTH - 160.0 - widest
    x = svg.logarithmic(low, high, left, right)
    top, y = 10.0, 0.0
    parts: list[str] = []
    marks: list[str] = []
    for category, row in rows.items():
        last = category == list(rows)[-1] and len(rows) > 1
        if last:
            marks.append(svg.line(0, y, svg.WIDTH, y, "axis"))
            y += 6
        y += _ROW
        count = max(interval.pairs for interval, _ in row.values())
        heading = f"{svg.shortened(category, _LONGEST)}, {count} prompt{'s' * (count > 1)}"
        marks.append(svg.text(0, y - 2, heading, "strong" if last else ""))
        for name in (name for name in names if name in row):
            interval, note = row[name]
            y += _ROW
            marks.append(svg.text(_INDENT, y - 2, _short(name), "muted"))
            shown = f"{name}, {category}"
            marks += _interval(x, y - 6, interval, names.index(name), shown, (low, high))
            marks.append(svg.text(right + 16, y - 2, str(interval), "strong" if last else ""))
            behind = svg.shortened(note, int(room / svg.CELL))
            marks.append(svg.text(svg.WIDTH, y - 2, behind, "muted small", "end"))
        y += _GAP
    bottom = y - _GAP + 6
    for tick in svg.ratio_ticks(low, high):
        kind = "one" if tick == 1 else "grid"
        parts.append(svg.line(x(tick), top - 8, x(tick), bottom, kind))
        parts.append(svg.text(x(tick), bottom + 14, svg.number(tick), "muted small", "middle"))
    parts.append(svg.text(x(1), bottom + 30, one, "muted small", "middle"))
    return svg.figure(bottom + 38, title, [*parts, *marks])


def _scale(found: Sequence[Interval]) -> tuple[float, float]:
    """The ends of a scale: all ratios, and what their intervals take that isn't far beyond them.

    Two prompts that differ give an interval of a hundredth to a hundredfold, in which nothing else
    could be told apart.
    """
    low = min([0.9, *(i.center for i in found)])
    high = max([1.1, *(i.center for i in found)])
    lowest = min([low, *(i.low for i in found if i.low is not None)])
    highest = max([high, *(i.high for i in found if i.high is not None)])
    return max(lowest, low / _BEYOND) * 0.96, min(highest, high * _BEYOND) * 1.04


def _interval(
    x: svg.Scale,
    y: float,
    found: Interval,
    series: int,
    what: str,
    ends: tuple[float, float],
) -> list[str]:
    parts = []
    if found.low is not None and found.high is not None:
        low, high = max(found.low, ends[0]), min(found.high, ends[1])
        parts.append(svg.line(x(low), y, x(high), y, f"whisker {svg.colour(series)}"))
        for at, cut, arrow in ((low, found.low < low, "‹"), (high, found.high > high, "›")):
            if cut:
                parts.append(svg.text(x(at), y + 5, arrow, "muted", "middle"))
    parts.append(svg.dot(x(found.center), y, series, f"{what}: {found}"))
    return parts


def note(ratio: Interval, words: str) -> str:
    """What stands behind a ratio; that one prompt gives no interval belongs there."""
    return f"one prompt, {words}" if ratio.low is None else words


def accepted_lengths(rows: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    """Tokens a round by category; plain decoding's is 1. A category without any is left out."""
    rows = {category: row for category, row in rows.items() if row}
    if not rows:
        return ""
    left = _beside_names(names)
    highest = max([1.0, *(v for row in rows.values() for v in row.values())])
    ticks = svg.ticks(highest)
    right = svg.WIDTH - 60.0
    x = svg.linear(0, ticks[-1], left, right)
    top, y = 10.0, 0.0
    parts: list[str] = []
    marks: list[str] = []
    for category, row in rows.items():
        y += _ROW
        marks.append(svg.text(0, y - 2, svg.shortened(category, _LONGEST)))
        for name in (name for name in names if name in row):
            y += _ROW
            marks.append(svg.text(_INDENT, y - 2, _short(name), "muted"))
            kind = f"fill {svg.colour(names.index(name))}"
            width = x(row[name]) - left
            tip = f"{name}, {category}: {row[name]:.2f} tokens a round"
            marks.append(svg.bar(left, y - 12, width, 11, kind, tip))
            marks.append(svg.text(x(row[name]) + 6, y - 2, f"{row[name]:.2f}"))
        y += _GAP
    bottom = y - _GAP + 6
    for tick in ticks:
        kind = "one" if tick == 1 else "grid"
        parts.append(svg.line(x(tick), top, x(tick), bottom, kind))
        parts.append(svg.text(x(tick), bottom + 14, svg.number(tick), "muted small", "middle"))
    if 1 not in ticks:
        marks.append(svg.line(x(1), top, x(1), bottom, "one"))
    return svg.figure(bottom + 22, "tokens a round by category", [*parts, *marks])


def _short(name: str) -> str:
    return svg.shortened(name, _NAME)


def _beside_names(names: Sequence[str]) -> float:
    """Where the scale begins, so that each line has its side's name before it."""
    return max([_LEFT, *(_INDENT + svg.text_width(_short(name)) + 14 for name in names)])


def cost_curve(costs: Sequence[Costs]) -> str:
    """Passes over n tokens, in passes of the target over one; the spread is that of the turns."""
    target = next(c for c in costs if c.role == "target")
    unit = spread(target.seconds["1"])
    assert unit is not None
    curves = [(c, _relative(c, unit.median)) for c in costs]
    highest = max(point.high for _, curve in curves for point in curve.values())
    longest = max(max(curve) for _, curve in curves if curve)
    yticks = svg.ticks(highest)
    x = svg.linear(1, max(2, longest), 46, svg.WIDTH - 230)
    y = svg.linear(0, yticks[-1], 300, 34)
    parts = [svg.text(0, 14, "passes of the target over one token", "muted small")]
    for tick in yticks:
        parts.append(svg.line(46, y(tick), svg.WIDTH - 230, y(tick)))
        parts.append(svg.text(38, y(tick) + 4, svg.number(tick), "muted small", "end"))
    sizes = range(1, longest + 1)
    parts += [svg.text(x(n), 318, str(n), "muted small", "middle") for n in sizes]
    parts.append(svg.text(x(longest), 336, "tokens in the pass", "muted small", "end"))
    end = min(float(longest), yticks[-1])
    parts.append(svg.line(x(1), y(1), x(end), y(end), "one"))
    parts.append(svg.text(x(end) - 16, y(end) + 9, "as many passes", "muted small", "end"))
    for series, (c, curve) in enumerate(curves):
        parts.append(svg.path([(x(n), y(p.median)) for n, p in curve.items()], series))
        for n, p in curve.items():
            parts.append(svg.line(x(n), y(p.low), x(n), y(p.high), f"whisker {svg.colour(series)}"))
            tip = f"{c.model}, {n} tokens: {p.median * unit.median * 1e3:.1f} ms"
            parts.append(svg.dot(x(n), y(p.median), series, tip, 3.5))
    words, bottom = _cost_words(curves, unit)
    return svg.figure(max(342, bottom), "what a pass over n tokens costs", [*parts, *words])


def _relative(costs: Costs, unit: float) -> dict[int, Spread]:
    found = {int(n): spread([s / unit for s in seconds]) for n, seconds in costs.seconds.items()}
    return {n: point for n, point in found.items() if point is not None}


def _cost_words(
    curves: Sequence[tuple[Costs, dict[int, Spread]]], unit: Spread
) -> tuple[list[str], float]:
    """What the curves say, in figures, to their right, and where that ends."""
    left, y = svg.WIDTH - 205.0, 40.0
    parts = []
    for series, (costs, curve) in enumerate(curves):
        parts.append(svg.dot(left + 4, y - 4, series, costs.model))
        name = svg.shortened(costs.model, 23)
        parts.append(svg.text(left + 14, y, name, "strong small"))
        for n, point in curve.items():
            y += 15
            words = f"{n} token{'s' * (n > 1)}: {point.median * unit.median * 1e3:.1f} ms"
            parts.append(svg.text(left + 14, y, words, "small"))
            parts.append(svg.text(svg.WIDTH, y, f"{point.median:.2f}", "muted small", "end"))
        y += 26
    return parts, y


def time_split(rows: Mapping[str, Split]) -> str:
    """A round's time by what it went into, side by side."""
    left = max(_LEFT, *(svg.text_width(_short(name)) + 16 for name in rows))
    right = svg.WIDTH - 275.0
    ticks = svg.ticks(max(split.total for split in rows.values()) * 1e3)
    x = svg.linear(0, ticks[-1], left, right)
    parts = svg.legend(PARTS, [f"fill part{i}" for i in range(4)], 14)
    y, marks = 40.0, []
    for name, split in rows.items():
        marks.append(svg.text(0, y + 14, _short(name)))
        at = 0.0
        for i, part in enumerate(PARTS):
            ms = getattr(split, part) * 1e3
            marks.append(
                svg.bar(x(at), y, x(at + ms) - x(at), 20, f"fill part{i}", f"{part}: {ms:.2f} ms")
            )
            at += ms
        figures = " + ".join(f"{getattr(split, part) * 1e3:.1f}" for part in PARTS)
        marks.append(svg.text(right + 16, y + 9, f"{figures} ms", "small"))
        words = f"{split.tokens:.2f} tokens a round: {at / split.tokens:.1f} ms a token"
        marks.append(svg.text(right + 16, y + 23, words, "muted small"))
        y += 38
    for tick in ticks:
        parts.append(svg.line(x(tick), 30, x(tick), y - 6))
        parts.append(svg.text(x(tick), y + 8, svg.number(tick), "muted small", "middle"))
    parts.append(svg.text(right, y + 24, "milliseconds of a round", "muted small", "end"))
    return svg.figure(y + 32, "time of a round by what it went into", [*parts, *marks])


def lengths(rows: Mapping[str, Mapping[int, Spread]]) -> str:
    """Tokens per second behind texts of several lengths; the spread is that of the repetitions."""
    contexts = sorted({length for row in rows.values() for length in row})
    last = {name: row[max(row)].median for name, row in rows.items()}
    words = {name: f"{_short(name)}: {speed:.1f}" for name, speed in last.items()}
    right = svg.WIDTH - max([200.0, *(svg.text_width(said) + 40 for said in words.values())])
    yticks = svg.ticks(max(p.high for row in rows.values() for p in row.values()))
    x = svg.logarithmic(contexts[0], max(contexts[-1], 2 * contexts[0]), 60, right)
    y = svg.linear(0, yticks[-1], 300, 34)
    parts = [svg.text(0, 14, "tokens per second", "muted small")]
    for tick in yticks:
        parts.append(svg.line(46, y(tick), right + 10, y(tick)))
        parts.append(svg.text(38, y(tick) + 4, svg.number(tick), "muted small", "end"))
    parts += [svg.text(x(n), 318, str(n), "muted small", "middle") for n in contexts]
    parts.append(svg.text(right, 336, "tokens of text before the answer", "muted small", "end"))
    ends: list[tuple[float, int, str]] = []
    others = [name for name in rows if name != PLAIN]
    for name, row in rows.items():
        series = svg.PLAIN_SERIES if name == PLAIN else others.index(name)
        parts.append(svg.path([(x(n), y(row[n].median)) for n in sorted(row)], series))
        for n, p in row.items():
            parts.append(svg.line(x(n), y(p.low), x(n), y(p.high), f"whisker {svg.colour(series)}"))
            tip = f"{name}, {n} tokens: {p.median:.1f} tokens/s"
            parts.append(svg.dot(x(n), y(p.median), series, tip))
        ends.append((y(last[name]), series, words[name]))
    place = 0.0
    for at, series, said in sorted(ends):
        place = max(at + 4, place + 17)
        parts.append(svg.dot(right + 20, place - 4, series, said))
        parts.append(svg.text(right + 30, place, said))
    return svg.figure(max(344, place + 10), "tokens per second over the length of the text", parts)
