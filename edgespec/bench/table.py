"""The table in the terminal.

Invariant: it shows what the report shows, from the same rows; an interval stands beside each ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec.bench.record import Results
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import Interval, Spread
from edgespec.bench.summary import ALL, Row, against, best_side, categories, contexts, row

HEAD = (
    "CATEGORY", "SIDE", "PROMPTS", "TOK/S", "(QUARTILES)", "AGAINST PLAIN", "(95%)",
    "TOKENS/ROUND", "ACCEPTED", "TTFT", "GAP P50/P95", "SAME TEXT",
)  # fmt: skip


def lines(results: Results) -> Iterator[str]:
    """Everything measured, pair by pair."""
    for pair in results.pairs:
        sides = results.sides(pair)
        yield f"{pair}"
        yield from _columns([HEAD, *cells(results, pair, sides)])
        yield from _lengths(results, pair, sides)
        yield from _peers(results, pair, sides)
        energy = [r for side in sides if (r := row(results, pair, side, ALL)) is not None]
        if any(r.joules_per_token is not None for r in energy):
            for r in energy:
                yield f"energy, {r.side}: {_number(r.joules_per_token, 2)} J a token"
        else:
            yield "energy: not reported by this system, or not readable"
        yield from verdicts(results, pair)
        yield ""


def verdicts(results: Results, pair: str) -> Iterator[str]:
    """A sentence for each side whose text isn't plain's everywhere, or one for all."""
    different = False
    for side in results.sides(pair):
        found = row(results, pair, side, ALL)
        if side == PLAIN or found is None or "/" in side:
            continue
        if found.different:
            different = True
            yield (
                f"NOT EXACT: {found.different} of {found.answers} answers of {side} differ from "
                "plain's in a way that rounding doesn't explain"
            )
        elif found.explained:
            different = True
            yield (
                f"{side}: {found.same} of {found.answers} texts are plain's; {found.explained} "
                "part from it at a near-tie that rounding explains"
            )
    if not different:
        yield "every answer of edgespec has plain's text"


def split_sides(sides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Our own sides, and each peer's."""
    peers: dict[str, list[str]] = {}
    for side in sides:
        if "/" in side:
            peers.setdefault(side.split("/")[0], []).append(side)
    return [side for side in sides if "/" not in side], peers


def cells(results: Results, pair: str, sides: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A line below `HEAD` for each side in each category."""
    for category in categories(results, pair):
        for side in sides:
            found = row(results, pair, side, category)
            if found is not None:
                yield _row_cells(found)


def _row_cells(found: Row) -> tuple[str, ...]:
    speed = found.tokens_per_second
    exact = f"{found.same}/{found.answers}" + ("*" if found.explained else "")
    return (
        found.category,
        found.side,
        str(found.prompts),
        _number(speed.median if speed else None, 1),
        _quartiles(speed),
        f"{found.ratio.center:.3f}" if found.ratio else "",
        _bounds(found.ratio),
        _number(found.mean_accepted_length, 2),
        "" if found.acceptance_rate is None else f"{found.acceptance_rate:.0%}",
        "" if found.ttft is None else f"{found.ttft.median:.2f} s",
        ""
        if found.gap_p50 is None or found.gap_p95 is None
        else f"{found.gap_p50 * 1e3:.0f}/{found.gap_p95 * 1e3:.0f} ms",
        "" if found.side == PLAIN else exact,
    )


def _lengths(results: Results, pair: str, sides: Sequence[str]) -> Iterator[str]:
    measured = contexts(results, pair)
    if not measured:
        return
    yield ""
    yield "tokens per second behind a text of so many tokens (against plain, if not plain):"
    table = [("SIDE", *map(str, measured))]
    for side in sides:
        cells = [side]
        for context in measured:
            found = row(results, pair, side, "context", context)
            speed = found.tokens_per_second if found else None
            cells.append(_number(speed.median if speed else None, 1))
            if found and found.ratio:
                cells[-1] += f" ({found.ratio.center:.2f})"
        table.append(tuple(cells))
    yield from _columns(table)


def _peers(results: Results, pair: str, sides: Sequence[str]) -> Iterator[str]:
    own, peers = split_sides(sides)
    if not peers:
        return
    yield ""
    yield "each peer at its best setting in each category, and edgespec over it (95%):"
    table: list[tuple[str, ...]] = [("CATEGORY", "PEER", "BEST", "TOK/S", *own)]
    for category in categories(results, pair):
        for peer, theirs in peers.items():
            best = best_side(results, pair, theirs, category)
            found = row(results, pair, best, category) if best else None
            if best is None or found is None:
                continue
            ours = (against(results, pair, side, best, category) for side in own)
            speed = found.tokens_per_second
            table.append(
                (
                    category,
                    peer,
                    best.split("/", 1)[1],
                    _number(speed.median if speed else None, 1),
                    *("" if interval is None else str(interval) for interval in ours),
                )
            )
    yield from _columns(table)


def _columns(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _quartiles(value: Spread | None) -> str:
    return "" if value is None else f"{value.low:.1f} to {value.high:.1f}"


def _bounds(value: Interval | None) -> str:
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return "one prompt"
    return f"{value.low:.3f} to {value.high:.3f}"
