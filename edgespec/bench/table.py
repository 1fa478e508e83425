"""The table in the terminal.

Invariant: it shows what the report shows, from the same rows, less what a narrow terminal has no
room for; an interval stands beside each ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec.bench.beside import (
    NO_COMMON_ENERGY,
    answered_by_all,
    at_best,
    beside,
    best_names,
    energy,
    left_out,
    metered,
    split_sides,
    unanswered,
    with_bests,
)
from edgespec.bench.prompts import ALL
from edgespec.bench.protocol import CONTEXT
from edgespec.bench.record import Results
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import Interval, Spread
from edgespec.bench.summary import (
    Row,
    against,
    categories,
    compares_texts,
    contexts,
    pairing,
    row,
    texts,
    trials_of,
    whole,
)
from edgespec.terminal import columns, narrowed, table_width

GAP = "a gap is the time between two arrivals of text; a round's tokens arrive together"
HEAD = (
    "CATEGORY", "SIDE", "PROMPTS", "TOK/S", "(QUARTILES)", "OVER PLAIN", "(95%)",
    "TOKENS/ROUND", "ACCEPTED", "TTFT", "GAP P50/P95", "SAME TEXT",
)  # fmt: skip


LESS = (
    "(QUARTILES)", "ACCEPTED", "GAP P50/P95", "TTFT", "TOKENS/ROUND", "SAME TEXT", "PROMPTS",
    "TOK/S",
)  # fmt: skip
"""What is left out first where a terminal is narrow."""


def lines(results: Results, room: int | None = None) -> Iterator[str]:
    """Everything measured, pair by pair, in tables of `room` columns where that can be done."""
    for pair in results.pairs:
        sides = results.sides(pair)
        yield f"{pair}"
        table = list(cells(results, pair, sides))
        if table:
            yield lead(results, pair)
            shown, less = narrowed([HEAD, *table], LESS, room)
            yield from columns(shown)
            yield from _no_room(less)
            if "GAP P50/P95" in shown[0]:
                yield GAP
            yield from unlike(results, pair)
        elif not contexts(results, pair):
            yield "nothing was measured yet"
        yield from wholes(results, pair, sides)
        yield from unanswered(results, pair)
        yield from _lengths(results, pair, sides, room)
        yield from _peers(results, pair, room)
        yield from _energy(results, pair)
        yield from verdicts(results, pair)
        yield ""


def _no_room(less: Sequence[str]) -> Iterator[str]:
    if less:
        yield f"no room for {', '.join(less)} here: the report has all columns"


def lead(results: Results, pair: str) -> str:
    """The outcome in a sentence or two."""
    sentences = []
    own, _ = split_sides(results.sides(pair))
    last = categories(results, pair)[-1]
    sides = [side for side in own if side != PLAIN]
    for side, found in beside(results, pair, sides, last).items():
        if found.ratio is None or found.tokens_per_second is None:
            continue
        sure = _sure(found.ratio)
        sentences.append(
            f"{side} decodes {found.ratio.center:.2f} times as fast as plain{sure}, "
            f"{found.tokens_per_second.median:.1f} tokens a second in the median."
        )
    if sentences:
        return " ".join(sentences)
    if rated(results, pair):
        return (
            "No prompt was answered by all with more than one token: there is no speed to compare."
        )
    return "Nothing was measured yet."


def _sure(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return " (one prompt, so nobody knows how surely)"
    return f" ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} prompts)"


def rated(results: Results, pair: str) -> bool:
    """Whether prompts were answered, not texts of `--lengths` alone."""
    return bool(trials_of(results, pair, ALL))


def verdicts(results: Results, pair: str) -> Iterator[str]:
    """A sentence for each side whose text isn't plain's everywhere, or one for all; then peers."""
    own = [side for side in results.sides(pair) if side != PLAIN and "/" not in side]
    counted = {side: found for side in own if (found := texts(results, pair, side)).all}
    if counted and not compares_texts(results, pair):
        yield (
            "texts aren't compared: under the rule `rejection` each side draws one of its own "
            "(--rule reproducible draws the same)"
        )
        return
    for side, found in counted.items():
        if found.different:
            yield (
                f"NOT EXACT: {found.different} of {found.all} answers of {side} differ from "
                "plain's in a way that rounding doesn't explain"
            )
        elif found.explained:
            yield (
                f"{side}: {found.same} of {found.all} texts are plain's; {found.explained} "
                "part from it at a near-tie that rounding explains"
            )
    if counted and all(found.same == found.all for found in counted.values()):
        yield "every answer of edgespec has plain's text"
    yield from _peers_texts(results, pair)


def _peers_texts(results: Results, pair: str) -> Iterator[str]:
    """A sentence for each peer whose speeds are of other texts than plain's, in any setting."""
    _, peers = split_sides(results.sides(pair))
    for peer, theirs in peers.items():
        found = [texts(results, pair, side) for side in theirs]
        same, total = sum(one.same for one in found), sum(one.all for one in found)
        if same < total:
            yield (
                f"{peer}: {same} of {total} texts are plain's (another program rounds otherwise); "
                "its speeds are of its own texts"
            )


def wholes(results: Results, pair: str, sides: Sequence[str]) -> Iterator[str]:
    """All of a side's tokens over all of its time, in a sentence each."""
    for side in sides:
        found = whole(results, pair, side)
        if found is None:
            continue
        ratios = (
            ""
            if found.ratio is None
            else f", {found.ratio:.2f} times plain's; {found.mean_ratio:.2f} by the means of the "
            "prompts' speeds, as Spec-Bench takes it"
        )
        yield (
            f"{side}, reading of the prompts included: {found.tokens_per_second:.1f} tokens a "
            f"second over {found.answers} answer{'s' * (found.answers > 1)}{ratios}"
        )


def cells(results: Results, pair: str, sides: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A line below `HEAD` for each side in each category."""
    for category in categories(results, pair):
        for side in sides:
            found = row(results, pair, side, category)
            if found is not None:
                yield _row_cells(found, compares_texts(results, pair))


def unlike(results: Results, pair: str) -> Iterator[str]:
    """A sentence where sides that stand in one category answered different prompts."""
    sides = results.sides(pair)
    for category in categories(results, pair):
        asked = {
            frozenset(pairing(t) for t in trials_of(results, pair, category) if t.answer(side))
            for side in sides
        } - {frozenset()}
        if len(asked) > 1:
            yield (
                "sides of one category answered different prompts, which differ by more than sides "
                "do: the report's pictures count those that all of them answered"
            )
            return


def _row_cells(found: Row, compared: bool) -> tuple[str, ...]:
    speed = found.tokens_per_second
    explained = found.texts.explained and "/" not in found.side  # a peer's rounding isn't known
    exact = f"{found.texts.same}/{found.texts.all}" + "*" * bool(explained)
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
        exact if compared and found.side != PLAIN else "",
    )


def _energy(results: Results, pair: str) -> Iterator[str]:
    found = energy(results, pair)
    if found is None:
        yield "energy: not reported by this system, or not readable"
    elif not found:
        yield f"energy: {NO_COMMON_ENERGY}"
    else:
        whose = metered(results, pair)
        for side, joules in found.items():
            yield f"energy of {whose}, {side}: {joules:.2f} J a token"


def _lengths(results: Results, pair: str, sides: Sequence[str], room: int | None) -> Iterator[str]:
    """A line for each side, or for each side and length where those don't fit beside each other."""
    measured = contexts(results, pair)
    if not measured:
        return
    yield ""
    yield "tokens per second behind a text of so many tokens, and times plain's:"
    found: dict[str, list[tuple[str, str]]] = {}
    for side in sides:
        for context in measured:
            one = row(results, pair, side, CONTEXT, context)
            speed = one.tokens_per_second if one else None
            ratio = str(one.ratio) if one and one.ratio else ""
            found.setdefault(side, []).append((_number(speed.median if speed else None, 1), ratio))
    table = [("SIDE", *map(str, measured))]
    for side, parts in found.items():
        table.append((side, *(f"{speed}  x {ratio}" if ratio else speed for speed, ratio in parts)))
    if room is None or table_width(table) <= room:
        yield from columns(table)
        return
    apart = [("SIDE", "BEHIND", "TOK/S", "OVER PLAIN (95%)")]
    for side, parts in found.items():
        apart += [(side, str(n), *part) for n, part in zip(measured, parts, strict=True)]
    yield from columns(apart)


def _peers(results: Results, pair: str, room: int | None) -> Iterator[str]:
    own, peers = split_sides(results.sides(pair))
    if not peers:
        return
    yield ""
    yield "each peer at its best setting in each category, and edgespec over it (95%):"
    head = ("CATEGORY", "PEER", "BEST", "TOK/S", *own)
    shown, less = narrowed([head, *over_peers(results, pair)], ("TOK/S", PLAIN), room)
    yield from columns(shown)
    yield from _no_room(less)
    for peer, theirs in peers.items():
        yield from left_out(with_bests(results, pair, peers), pair, own, {peer: theirs})


def over_peers(results: Results, pair: str) -> Iterator[tuple[str, ...]]:
    """Category, peer, setting, its tokens per second, and each side of ours over it."""
    own, peers = split_sides(results.sides(pair))
    results = with_bests(results, pair, peers)
    for category in categories(results, pair):
        for peer, theirs in peers.items():
            stands = at_best(results, pair, own, {peer: theirs}, category)
            for side, found in (stands[n] for n in best_names(peer) if n in stands):
                within = answered_by_all(results, pair, [*own, side], category)
                ours = (against(results, pair, one, side, category, within) for one in own)
                speed = found.tokens_per_second
                yield (
                    category,
                    peer,
                    side.split("/", 1)[1],
                    _number(speed.median if speed else None, 1),
                    *("" if interval is None else str(interval) for interval in ours),
                )


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
