"""From trials to the figures of a table: by pair, side and category.

Invariant: a ratio is taken within a trial; the repetitions of a turn count as their median and the
turns of a prompt as their mean, so that a prompt is one pair; text lengths are no part of "all". A
text length has no prompts to speak of: there each repetition is a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from edgespec.bench.prompts import ALL
from edgespec.bench.record import Answer, Results, Trial
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import Interval, Spread, percentile, ratio_interval, spread

Asked = tuple[str, int]
"""A prompt and its turn, or a text length and its repetition."""

Logs = dict[Asked, float]
"""The logarithm of a ratio for each."""


@dataclass(frozen=True)
class Split:
    """A round's time in seconds, and how many tokens it brought."""

    draft: float
    check: float
    sample: float
    rest: float
    tokens: float

    @property
    def total(self) -> float:
        return self.draft + self.check + self.sample + self.rest


@dataclass(frozen=True)
class Row:
    """One side in one category. Rates and times are medians over answers, with quartiles.

    `ratio` is tokens per second over plain's. Gaps are times between two arrivals of text, a
    round's tokens arriving together.
    """

    pair: str
    side: str
    category: str
    prompts: int
    answers: int
    tokens_per_second: Spread | None
    ratio: Interval | None
    ttft: Spread | None
    gap_p50: float | None
    gap_p95: float | None
    mean_accepted_length: float | None
    acceptance_rate: float | None
    split: Split | None
    texts: Texts


@dataclass(frozen=True)
class Texts:
    """How many texts are plain's, part from it where rounding explains it, and do elsewhere."""

    same: int
    explained: int
    different: int

    @property
    def all(self) -> int:
        return self.same + self.explained + self.different


@dataclass(frozen=True)
class Whole:
    """A side's `answers` from request to end, the reading of prompts included.

    `ratio` is tokens per second over plain's; `mean_ratio` that of the means of each prompt's
    tokens per second, all of its turns together, as Spec-Bench takes it. None for plain itself.
    """

    answers: int
    tokens_per_second: float
    ratio: float | None
    mean_ratio: float | None


def categories(results: Results, pair: str) -> list[str]:
    """Those of a pair's prompts, as they came; "all" last where there are several."""
    seen = list(dict.fromkeys(t.category for t in trials_of(results, pair, ALL)))
    return [*seen, ALL] if len(seen) != 1 else seen


def contexts(results: Results, pair: str) -> list[int]:
    """The text lengths that were measured."""
    return sorted({t.context for t in behind_texts(results, pair) if t.context is not None})


def row(
    results: Results,
    pair: str,
    side: str,
    category: str,
    context: int | None = None,
    within: Collection[Asked] | None = None,
) -> Row | None:
    """The figures of a side, of `within` alone where that is given; None where it answered nothing.

    `context` is a text length, whose trials have no category of prompts.
    """
    asked = trials_of(results, pair, category, context)
    trials = [t for t in asked if t.answer(side) and (within is None or pairing(t) in within)]
    answers = [answer for t in trials if (answer := t.answer(side)) is not None]
    if not answers:
        return None
    gaps = [gap for answer in answers for gap in _gaps(answer)]
    drafted = [a.drafted for a in answers if a.drafted is not None]
    return Row(
        pair=pair,
        side=side,
        category=category,
        prompts=len({t.prompt for t in trials}),
        answers=len(answers),
        tokens_per_second=spread([1 / s for a in answers if (s := a.seconds_per_token)]),
        ratio=ratio_interval(pairs(speed_logs(trials, side), context)) if side != PLAIN else None,
        ttft=spread([s for t in trials if (s := _ttft(t, side)) is not None]),
        gap_p50=percentile(gaps, 0.5) if gaps else None,
        gap_p95=percentile(gaps, 0.95) if gaps else None,
        mean_accepted_length=_accepted_length(answers),
        acceptance_rate=sum(a.accepted or 0 for a in answers) / sum(drafted)
        if sum(drafted)
        else None,
        split=_split(answers),
        texts=_texts(answers),
    )


def texts(results: Results, pair: str, side: str) -> Texts:
    """Of all answers, those behind long texts too."""
    trials = [t for t in results.trials if t.pair == pair]
    return _texts([answer for t in trials if (answer := t.answer(side)) is not None])


def compares_texts(results: Results, pair: str) -> bool:
    """Whether texts should be the same: under `rejection` each side draws its own."""
    return pair not in results.pairs or results.pairs[pair].settings.get("rule") != "rejection"


def whole(results: Results, pair: str, side: str) -> Whole | None:
    """A side's answers to all prompts, beside plain's to the same; None where it gave none."""
    trials = trials_of(results, pair, ALL)
    conversations: dict[tuple[str, int], list[tuple[_Rate, _Rate]]] = {}
    for t in trials:
        one, two = _rate(t.answer(side)), _rate(t.answer(PLAIN))
        if one and two:
            conversations.setdefault((t.prompt, t.repeat), []).append((one, two))
    answers = [both for turns in conversations.values() for both in turns]
    if not answers:
        return None
    mine, base = (_together(both[i] for both in answers) for i in (0, 1))
    if side == PLAIN:
        return Whole(len(answers), mine, None, None)
    mean, base_mean = (
        fmean(_together(turn[i] for turn in turns) for turns in conversations.values())
        for i in (0, 1)
    )
    return Whole(len(answers), mine, mine / base, mean / base_mean)


def speed_logs(trials: Iterable[Trial], side: str, base: str = PLAIN) -> Logs:
    """Logarithms of tokens per second over those of `base`."""
    return _logs(trials, side, base, lambda answer: answer.seconds_per_token)


def promptness_logs(trials: Iterable[Trial], side: str) -> Logs:
    """Logarithms of the time to plain's first token over that to the side's."""
    read = [t for t in trials if t.context is None]
    return _logs(read, side, PLAIN, lambda answer: answer.ttft_seconds)


def pairs(logs: Logs, context: int | None = None) -> list[float]:
    """What is independent of each other: prompts, or the repetitions of a text length.

    The turns of a conversation build on each other, so a prompt gives the mean of its turns.
    """
    if context is not None:
        return list(logs.values())
    found: dict[str, list[float]] = {}
    for (prompt, _), log in logs.items():
        found.setdefault(prompt, []).append(log)
    return [fmean(turns) for turns in found.values()]


def against(
    results: Results,
    pair: str,
    side: str,
    base: str,
    category: str,
    within: Collection[Asked] | None = None,
) -> Interval | None:
    """Tokens per second of one side over another's, by prompt, of `within` alone if given."""
    logs = speed_logs(trials_of(results, pair, category), side, base)
    counted = {key: log for key, log in logs.items() if within is None or key in within}
    return ratio_interval(pairs(counted))


def trials_of(
    results: Results, pair: str, category: str, context: int | None = None
) -> list[Trial]:
    """The trials behind a row."""
    if context is not None:
        return [t for t in behind_texts(results, pair) if t.context == context]
    return [
        t
        for t in results.trials
        if t.pair == pair and t.context is None and category in (ALL, t.category)
    ]


def behind_texts(results: Results, pair: str) -> list[Trial]:
    """The trials of all text lengths."""
    return [t for t in results.trials if t.pair == pair and t.context is not None]


def _logs(
    trials: Iterable[Trial], side: str, base: str, seconds: Callable[[Answer], float | None]
) -> Logs:
    found: dict[Asked, list[float]] = {}
    for t in trials:
        mine, other = t.answer(side), t.answer(base)
        if mine is None or other is None:
            continue
        one, two = seconds(mine), seconds(other)
        if one and two:
            found.setdefault(pairing(t), []).append(math.log(two / one))
    return {key: median(logs) for key, logs in found.items()}


def pairing(trial: Trial) -> Asked:
    """What is one question: a prompt's turn, or each repetition of a text length."""
    return (trial.prompt, trial.turn if trial.context is None else trial.repeat)


def _ttft(trial: Trial, side: str) -> float | None:
    """None behind a long text, which one side reads for all."""
    answer = trial.answer(side)
    return answer.ttft_seconds if answer and trial.context is None else None


def _texts(answers: Sequence[Answer]) -> Texts:
    differences = [a.difference for a in answers if a.difference is not None]
    explained = sum(bool(d.get("explained")) for d in differences)
    return Texts(len(answers) - len(differences), explained, len(differences) - explained)


_Rate = tuple[int, float]
"""Tokens, and the seconds that they took."""


def _together(rates: Iterable[_Rate]) -> float:
    """All tokens over all seconds."""
    tokens, seconds = zip(*rates, strict=True)
    return float(sum(tokens) / sum(seconds))


def _rate(answer: Answer | None) -> _Rate | None:
    if answer is None or answer.ttft_seconds is None or answer.decode_seconds is None:
        return None
    seconds = answer.ttft_seconds + answer.decode_seconds
    tokens = len(answer.tokens) + (answer.finish_reason == "end")
    return (tokens, seconds) if tokens and seconds else None


def _gaps(answer: Answer) -> list[float]:
    times = [at for at, _ in answer.arrivals]
    return [later - earlier for earlier, later in pairwise(times)]


def _accepted_length(answers: Sequence[Answer]) -> float | None:
    known = [a for a in answers if a.rounds and a.tokens]
    rounds = sum(a.rounds or 0 for a in known)
    return sum(a.decoded for a in known) / rounds if rounds else None


def _split(answers: Sequence[Answer]) -> Split | None:
    known = [a for a in answers if a.rounds and a.check_seconds is not None]
    rounds = sum(a.rounds or 0 for a in known)
    if not rounds:
        return None
    draft = sum(a.draft_seconds or 0 for a in known) / rounds
    check = sum(a.check_seconds or 0 for a in known) / rounds
    sample = sum(a.sample_seconds or 0 for a in known) / rounds
    whole = sum(a.decode_seconds or 0 for a in known) / rounds
    tokens = sum(a.decoded for a in known) / rounds
    return Split(draft, check, sample, max(0.0, whole - draft - check - sample), tokens)
