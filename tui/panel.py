"""What the figures say, as lines of words and charts.

Invariant: a figure that isn't known is left out or shown as a dash, never as a made-up zero; every
chart stands beside its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.content import Content

from edgespec.tui import charts
from edgespec.tui.messages import DrafterFigures, Figures, Turn
from edgespec.tui.shown import one_line
from edgespec.units import human_bytes

_GAP = 3  # cells between columns
_BARS = 8  # lines of lengths, the last for all longer ones


def short(figures: Figures, width: int) -> Content:
    """The most telling figures in one line, as many as fit."""
    known = [_speed(figures)] if figures.tokens_per_second is not None else []
    if figures.acceptance_rate is not None:
        known.append(f"{figures.acceptance_rate:.0%} accepted")
        if figures.mean_accepted_length is not None:
            known.append(f"{figures.mean_accepted_length:.2f} a round")
    state = _state(figures)
    if state and figures.rounds:
        known.append(state)
    if figures.ttft_seconds is not None:
        known.append(f"TTFT {_seconds(figures.ttft_seconds)}")
    if figures.context_size:
        known.append(f"context {figures.context_used}/{figures.context_size}")
    if figures.memory_bytes:
        known.append(human_bytes(figures.memory_bytes))
    parts: list[str] = []
    for part in known:
        if len(" · ".join([*parts, part])) <= width:
            parts.append(part)
    if "parked" in parts and figures.reason:
        at, why = parts.index("parked"), f"parked: {one_line(figures.reason)}"
        with_reason = [*parts[:at], why, *parts[at + 1 :]]
        if cell_len(" · ".join(with_reason)) <= width:
            parts = with_reason
    first, *others = parts or [""]
    return Content.assemble((first, "value"), *((f" · {part}", "label") for part in others))


ENDINGS = {
    "stop": "ended at a stop string",
    "length": "ended at the token limit · /continue goes on, /set max_tokens raises it",
    "context": "ended because the context is full · /clear makes room",
    "cancelled": "stopped · /continue goes on",
}


def caption(turn: Turn) -> str:
    """What stands below an answer: its figures, and why it ended if not by itself."""
    figures = turn.figures
    parts = []
    if figures is not None:
        more = "more " if figures.continued else ""
        parts.append(f"{figures.tokens} {more}token{'s' * (figures.tokens != 1)}")
        if figures.tokens_per_second is not None:
            parts.append(f"{figures.tokens_per_second:.1f} tok/s")
            if figures.gain is not None and figures.drafters:
                parts[-1] += f" ({figures.gain:.1f}x plain)"
        if figures.ttft_seconds is not None:
            parts.append(f"first token after {_seconds(figures.ttft_seconds)}")
        if figures.acceptance_rate is not None:
            parts.append(f"{figures.acceptance_rate:.0%} accepted")
    if turn.reason in ENDINGS:
        parts.append(ENDINGS[turn.reason])
    return " · ".join(parts)


def long(figures: Figures, speeds: Sequence[float], width: int, height: int) -> list[list[Content]]:
    """Everything, in as many columns as there is width for and as many pages as it takes.

    speeds: tokens per second of this answer, one for each snapshot.
    """
    columns = max(1, min(3, (width + _GAP) // 29))
    room = (width - _GAP * (columns - 1)) // columns
    sections = list(_sections(figures, speeds, room, height))
    stacks, rest = _stacked(sections, columns, height)
    if not rest:
        return [_beside(stacks, room)]
    pages = []
    while sections:
        stacks, sections = _stacked(sections, columns, max(1, height - 1))
        page = _beside(stacks, room)
        pages.append(page + [Content()] * (height - 1 - len(page)))
    for number, page in enumerate(pages, 1):
        more = f"page {number} of {len(pages)} · Ctrl+G or a click: on"
        page.append(Content.styled(more, "label").truncate(width, ellipsis=True))
    return pages


def _stacked(
    sections: Sequence[list[Content]], columns: int, height: int
) -> tuple[list[list[Content]], list[list[Content]]]:
    """Columns of sections, and the sections for which there was no room."""
    stacks: list[list[Content]] = [[] for _ in range(columns)]
    rest: list[list[Content]] = []
    for section in sections:
        for stack in stacks:
            gap = [Content()] if stack else []
            if len(stack) + len(gap) + len(section) <= height:
                stack += gap + section
                break
        else:
            rest.append(section)
    if not any(stacks) and rest:  # longer than the panel is high: it goes on on the next page
        stacks[0], rest[0] = rest[0][:height], rest[0][height:]
    return stacks, rest


def _beside(stacks: Sequence[Sequence[Content]], room: int) -> list[Content]:
    """Columns side by side."""
    columns = len(stacks)
    rows = []
    for number in range(max(map(len, stacks))):
        row = Content()
        for place, stack in enumerate(stacks):
            cell = stack[number] if number < len(stack) else Content()
            cell = cell.truncate(room)
            last = place == columns - 1
            row += cell if last else cell.pad_right(room + _GAP - cell.cell_length)
        rows.append(row)
    return rows


def _sections(
    figures: Figures, speeds: Sequence[float], width: int, height: int
) -> Iterator[list[Content]]:
    rows = max(1, height - 2)  # below a heading, on a page with a last line that says so
    yield _speed_section(figures, speeds, width, 2 if height < 14 else 4)
    yield _planner_section(figures, width)
    yield _rounds_section(figures, width)
    yield _lengths_section(figures, width, min(_BARS, rows))
    yield _drafters_section(figures, width, rows)
    yield _machine_section(figures, width)


def _speed_section(
    figures: Figures, speeds: Sequence[float], width: int, rows: int
) -> list[Content]:
    now, mean = figures.recent_tokens_per_second, figures.tokens_per_second
    plain = " plain" if width >= 34 else ""
    gain = f"  {figures.gain:.1f}x{plain}" if figures.gain is not None else ""
    lines = [
        _heading("Speed", "tokens/s", width),
        Content.assemble(
            ("now ", "label"), (_number(now), "value"), ("  mean ", "label"),
            (_number(mean), "value"), (gain, "value"),
        ).truncate(width),
    ]  # fmt: skip
    top = charts.round_top(max(speeds, default=0.0))
    axis = f"{top:g}"
    for number, row in enumerate(charts.graph(speeds, width - len(axis) - 1, rows, top)):
        label = axis if number == 0 else "0".rjust(len(axis)) if number == rows - 1 else ""
        lines.append(Content.assemble((label.rjust(len(axis)) + " ", "label"), (row, "graph")))
    return lines


def _planner_section(figures: Figures, width: int) -> list[Content]:
    if not figures.rounds:
        return [_heading("Planner", "", width), Content.styled("nothing drafted yet", "label")]
    if not (figures.parked or figures.drafter):
        state = Content.styled("nothing drafted yet", "label")
    elif figures.parked:
        state = Content.styled("parked: drafts nothing", "value")
    else:
        ahead = f", lookahead {figures.lookahead}"
        state = Content.styled(f"drafts with {one_line(figures.drafter)}{ahead}", "value")
    reason = Content.styled(one_line(figures.reason), "label")
    return [
        _heading("Planner", "", width),
        *state.wrap(width),
        *(reason.wrap(width)[:3] if reason else []),
    ]


def _rounds_section(figures: Figures, width: int) -> list[Content]:
    accepted = figures.recent_accepted
    top = max(4, *accepted) if accepted else 4
    return [
        _heading("Accepted, by round", f"0 to {top}", width),
        Content.styled(charts.sparkline(accepted, width, top), "graph"),
    ]


def _lengths_section(figures: Figures, width: int, rows: int) -> list[Content]:
    mean = figures.mean_accepted_length
    lines = [_heading("Tokens in a round", f"mean {mean:.2f}" if mean is not None else "", width)]
    counts = list(figures.lengths[1:]) or [0]
    cut = len(counts) > rows
    if cut:
        counts = [*counts[: rows - 1], sum(counts[rows - 1 :])]
    most, total = max(counts) or 1, sum(counts) or 1
    for length, count in enumerate(counts, 1):
        more = "+" if cut and length == rows else " "
        end = f"{count:>6} {count / total:>4.0%}"
        lines.append(
            Content.assemble(
                (f"{length:>2}{more}", "label"),
                (charts.bar(count / most, max(1, width - 3 - len(end))), "graph"),
                (end, "label"),
            )
        )
    return lines


def _drafters_section(figures: Figures, width: int, rows: int) -> list[Content]:
    lines = [_heading("Drafters", "accepted/drafted", width)]
    drafters = list(figures.drafters)
    if not drafters:
        return [*lines, Content.styled("nothing drafted", "label")]
    if len(drafters) > rows:
        drafters[rows - 1 :] = [_together(drafters[rows - 1 :])]
    for drafter in drafters:
        rate = drafter.acceptance_rate or 0.0
        end = f" {drafter.accepted}/{drafter.drafted} {rate:>4.0%}"
        name = one_line(drafter.name)[: max(6, width - len(end) - 8)].ljust(8)
        room = max(1, width - len(name) - len(end))
        lines.append(
            Content.assemble((name, "value"), (charts.bar(rate, room), "graph"), (end, "label"))
        )
    return lines


def _together(drafters: Sequence[DrafterFigures]) -> DrafterFigures:
    """The sums of those that have no line of their own."""
    return DrafterFigures(
        f"{len(drafters)} more",
        sum(drafter.rounds for drafter in drafters),
        sum(drafter.drafted for drafter in drafters),
        sum(drafter.accepted for drafter in drafters),
    )


def _machine_section(figures: Figures, width: int) -> list[Content]:
    lines = [_heading("Machine", "", width)]
    if figures.ttft_seconds is not None:
        lines.append(_pair("first token", _seconds(figures.ttft_seconds), width))
    if figures.context_size:
        share = figures.context_used / figures.context_size
        lines.append(_pair("context", f"{figures.context_used} of {figures.context_size}", width))
        lines.append(Content.styled(charts.bar(share, width).rstrip() or " ", "graph"))
    if figures.memory_bytes:
        lines.append(_pair("memory", human_bytes(figures.memory_bytes), width))
    return lines


def _heading(title: str, more: str, width: int) -> Content:
    return Content.assemble((title, "heading"), (more.rjust(width - len(title)), "label"))


def _pair(name: str, value: str, width: int) -> Content:
    return Content.assemble((name, "label"), (value.rjust(width - len(name)), "value"))


def _speed(figures: Figures) -> str:
    speed = f"{figures.tokens_per_second:.1f} tok/s"
    return f"{speed} · {figures.gain:.1f}x" if figures.gain is not None else speed


def _state(figures: Figures) -> str:
    if figures.parked:
        return "parked"
    return f"{one_line(figures.drafter)}, {figures.lookahead} ahead" if figures.drafter else ""


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
