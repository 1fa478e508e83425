"""Sides beside each other: the best of several, and each over the same prompts.

Results that are taken together may have asked one side more than another, and prompts differ by
more than sides do. Invariant: what stands beside each other was answered by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from edgespec.bench.record import Results
from edgespec.bench.summary import Asked, Row, row, speed_logs, trials_of


def split_sides(sides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Our own sides, and each peer's."""
    peers: dict[str, list[str]] = {}
    for side in sides:
        if "/" in side:
            peers.setdefault(side.split("/")[0], []).append(side)
    return [side for side in sides if "/" not in side], peers


def answered_by_all(
    results: Results, pair: str, sides: Sequence[str], category: str, context: int | None = None
) -> set[Asked]:
    """What each of the sides answered beside plain; one that answered nothing doesn't count."""
    trials = trials_of(results, pair, category, context)
    answered = [set(logs) for side in sides if (logs := speed_logs(trials, side))]
    return set.intersection(*answered) if answered else set()


def best_side(
    results: Results, pair: str, sides: Sequence[str], category: str, context: int | None = None
) -> str | None:
    """The fastest of several, by its geometric mean against plain over what all of them answered.

    None where no prompt was answered by all.
    """
    trials = trials_of(results, pair, category, context)
    within = answered_by_all(results, pair, sides, category, context)
    found = {
        side: fmean(logs[asked] for asked in within)
        for side in sides
        if within and (logs := speed_logs(trials, side))
    }
    return max(found, key=lambda side: found[side]) if found else None


def beside(
    results: Results, pair: str, sides: Sequence[str], category: str, context: int | None = None
) -> dict[str, Row]:
    """The rows of sides that stand beside each other, over what all of them answered."""
    within = answered_by_all(results, pair, sides, category, context)
    found = {side: row(results, pair, side, category, context, within) for side in sides}
    return {side: one for side, one in found.items() if one is not None}


def at_best(
    results: Results,
    pair: str,
    own: Sequence[str],
    peers: dict[str, list[str]],
    category: str,
    context: int | None = None,
) -> dict[str, tuple[str, Row]]:
    """Our sides and each peer at the fastest of its settings: the side and its row by its name."""
    names = {side: side for side in own}
    for peer, theirs in peers.items():
        best = best_side(results, pair, theirs, category, context)
        names |= {best: f"{peer}, best"} if best else {}
    found = beside(results, pair, list(names), category, context)
    return {names[side]: (side, one) for side, one in found.items()}
