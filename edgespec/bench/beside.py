"""Sides beside each other: the best of several, and each over the same prompts.

Results that are taken together may have asked one side more than another, and prompts differ by
more than sides do. Invariant: what stands beside each other was answered by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from edgespec.bench.prompts import ALL
from edgespec.bench.record import Answer, Results, Trial
from edgespec.bench.summary import (
    Asked,
    Row,
    categories,
    pairing,
    pairs,
    row,
    speed_logs,
    trials_of,
)

EACH = "each category's best"
"""A peer's setting that `with_bests` adds."""

NO_COMMON_ENERGY = "no prompt was answered by all sides whose energy was told"


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
    """What each of the sides answered beside plain; one that answered nothing doesn't count.

    The repetitions of a text length are one text, so there it is whatever any of them answered.
    """
    trials = trials_of(results, pair, category, context)
    answered = [set(logs) for side in sides if (logs := speed_logs(trials, side))]
    if not answered:
        return set()
    return set.intersection(*answered) if context is None else set.union(*answered)


def best_side(
    results: Results, pair: str, sides: Sequence[str], category: str, context: int | None = None
) -> str | None:
    """The fastest of several, by its geometric mean against plain over what all of them answered.

    None where no prompt was answered by all. One that left a prompt unanswered is the best only
    where all did, or its few prompts would stand for all.
    """
    trials = trials_of(results, pair, category, context)
    sides = [s for s in sides if not any(s in t.unanswered for t in trials)] or sides
    within = answered_by_all(results, pair, sides, category, context)
    found = {
        side: fmean(pairs({asked: log for asked, log in logs.items() if asked in within}, context))
        for side in sides
        if within and (logs := speed_logs(trials, side))
    }
    return max(found, key=lambda side: found[side]) if found else None


def with_bests(results: Results, pair: str, peers: dict[str, list[str]]) -> Results:
    """The same with a side `PEER/each category's best`: the answers of each category's fastest.

    One setting for all categories would flatter whoever chooses anew at every prompt. A peer of one
    setting, and results of one category, have nothing to choose from.
    """
    named = [category for category in categories(results, pair) if category != ALL]
    best = {
        (peer, category): best_side(results, pair, theirs, category)
        for peer, theirs in peers.items()
        for category in named
        if len(named) > 1 and len(theirs) > 1
    }

    def chosen(trial: Trial) -> Iterator[Answer]:
        for peer in peers:
            side = best.get((peer, trial.category))
            if side and (answer := trial.answer(side)):
                yield replace(answer, side=f"{peer}/{EACH}")

    trials = [
        replace(trial, answers=[*trial.answers, *chosen(trial)])
        if trial.pair == pair and trial.context is None
        else trial
        for trial in results.trials
    ]
    return replace(results, trials=trials)


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
    """Our sides and each peer at the fastest of its settings: the side and its row by its name.

    Over all categories "best" is the best of each, if `with_bests` added that, and "fixed" the
    fastest of the settings.
    """
    names = {side: side for side in own}
    for peer, theirs in peers.items():
        best = best_side(results, pair, theirs, category, context)
        each = f"{peer}/{EACH}"
        chooses = category == ALL and each in results.sides(pair)
        at_its_best, fixed = best_names(peer)
        names |= {best: fixed if chooses else at_its_best} if best else {}
        names |= {each: at_its_best} if chooses else {}
    found = beside(results, pair, list(names), category, context)
    return {names[side]: (side, one) for side, one in found.items()}


def best_names(peer: str) -> tuple[str, str]:
    """What `at_best` calls a peer at its best, and at its fastest single setting beside that."""
    return f"{peer}, best", f"{peer}, fixed"


def left_out(
    results: Results, pair: str, own: Sequence[str], peers: dict[str, list[str]]
) -> Iterator[str]:
    """A sentence for each peer that answered in a category and can't stand beside us there."""
    missing: dict[str, list[str]] = {}
    for category in categories(results, pair):
        trials = trials_of(results, pair, category)
        shown = at_best(results, pair, own, peers, category)
        for peer, theirs in peers.items():
            if best_names(peer)[0] not in shown and any(
                speed_logs(trials, side) for side in theirs
            ):
                missing.setdefault(peer, []).append(category)
    for peer, found in missing.items():
        yield (
            f"{peer} isn't shown in {', '.join(found)}: no prompt there was answered by all of its "
            "settings and of edgespec's"
        )


def unanswered(results: Results, pair: str) -> Iterator[str]:
    """A sentence for each side that gave no answer to some prompts, with the first reason."""
    trials = [trial for trial in results.trials if trial.pair == pair]
    for side in results.sides(pair):
        reasons = [trial.unanswered[side] for trial in trials if side in trial.unanswered]
        if reasons:
            asked = len(reasons) + sum(trial.answer(side) is not None for trial in trials)
            yield f"{side} gave no answer {len(reasons)} of {asked} times: {reasons[0]}"


def energy(results: Results, pair: str) -> dict[str, float] | None:
    """Joules a token of the sides whose energy was told, over the trials where that of all of
    those was; None where no side's was.
    """
    told: dict[str, dict[tuple[Asked, int], tuple[float, int]]] = {}
    for trial in trials_of(results, pair, ALL):
        for answer in trial.answers:
            if answer.joules is not None and answer.tokens:
                one = answer.joules, len(answer.tokens)
                told.setdefault(answer.side, {})[pairing(trial), trial.repeat] = one
    if not told:
        return None
    within = set.intersection(*(set(found) for found in told.values()))
    return {
        side: sum(told[side][at][0] for at in within) / sum(told[side][at][1] for at in within)
        for side in results.sides(pair)
        if side in told and within
    }


def metered(results: Results, pair: str) -> str:
    """Whose energy was told: a graphics card has a meter of its own, which nobody reads here."""
    settings = results.pairs[pair].settings
    devices = [settings.get("device"), *(settings.get("drafter_devices") or ())]
    beyond = any(device and not device.startswith("CPU") for device in devices)
    return "the processor's packages" + ", without a graphics card's" * beyond
