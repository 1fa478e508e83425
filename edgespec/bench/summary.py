"""From trials to the figures of a table: by pair, side and category.

Invariant: a ratio is taken within a trial, the repetitions of a prompt are one pair of their
median, and the category of text lengths is no part of "all".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from edgespec.bench.protocol import CONTEXT
from edgespec.bench.record import Answer, Results, Trial
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import LEVEL, Interval, Spread, percentile, ratio_interval, spread

ALL = "all"
Logs = dict[tuple[str, int], float]
"""The logarithm of a ratio for each turn of a prompt."""


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

    `ratio` is tokens per second over plain's, `ttft_ratio` the time to the first token over
    plain's. Gaps are times between two arrivals of text, a round's tokens arriving together.
    `same`, `explained` and `different` count texts that are plain's, that part from it where
    rounding explains it, and that do elsewhere.
    """

    pair: str
    side: str
    category: str
    prompts: int
    answers: int
    tokens_per_second: Spread | None
    ratio: Interval | None
    ttft: Spread | None
    ttft_ratio: Interval | None
    gap_p50: float | None
    gap_p95: float | None
    mean_accepted_length: float | None
    acceptance_rate: float | None
    joules_per_token: float | None
    split: Split | None
    same: int
    explained: int
    different: int


def categories(results: Results, pair: str) -> list[str]:
    """Those of a pair's prompts, as they came; "all" last where there are several."""
    seen = list(dict.fromkeys(t.category for t in _trials(results, pair, ALL)))
    return [*seen, ALL] if len(seen) != 1 else seen


def contexts(results: Results, pair: str) -> list[int]:
    """The text lengths that were measured."""
    return sorted({t.context for t in results.trials if t.pair == pair and t.context is not None})


def row(
    results: Results, pair: str, side: str, category: str, context: int | None = None
) -> Row | None:
    """The figures of a side; None where it answered nothing there."""
    trials = _trials(results, pair, category, context)
    answers = [answer for t in trials if (answer := t.answer(side)) is not None]
    if not answers:
        return None
    gaps = [gap for answer in answers for gap in _gaps(answer)]
    tokens, joules = sum(len(a.tokens) for a in answers), [a.joules for a in answers]
    drafted = [a.drafted for a in answers if a.drafted is not None]
    differences = [a.difference for a in answers if a.difference is not None]
    explained = sum(bool(d.get("explained")) for d in differences)
    baseline = side != PLAIN
    return Row(
        pair=pair,
        side=side,
        category=category,
        prompts=len({t.prompt for t in trials}),
        answers=len(answers),
        tokens_per_second=spread([1 / s for a in answers if (s := a.seconds_per_token)]),
        ratio=ratio_interval(list(speed_logs(trials, side).values())) if baseline else None,
        ttft=spread([a.ttft_seconds for a in answers if a.ttft_seconds is not None]),
        ttft_ratio=ratio_interval(list(ttft_logs(trials, side).values())) if baseline else None,
        gap_p50=percentile(gaps, 0.5) if gaps else None,
        gap_p95=percentile(gaps, 0.95) if gaps else None,
        mean_accepted_length=_accepted_length(answers),
        acceptance_rate=sum(a.accepted or 0 for a in answers) / sum(drafted)
        if sum(drafted)
        else None,
        joules_per_token=sum(j for j in joules if j) / tokens if all(joules) and tokens else None,
        split=_split(answers),
        same=len(answers) - len(differences),
        explained=explained,
        different=len(differences) - explained,
    )


def speed_logs(trials: Iterable[Trial], side: str, base: str = PLAIN) -> Logs:
    """Logarithms of tokens per second over those of `base`."""
    return _logs(trials, side, base, lambda answer: answer.seconds_per_token)


def ttft_logs(trials: Iterable[Trial], side: str) -> Logs:
    """Logarithms of the time to the first token over plain's."""
    logs = _logs(trials, side, PLAIN, lambda answer: answer.ttft_seconds)
    return {key: -log for key, log in logs.items()}


def against(
    results: Results, pair: str, side: str, base: str, category: str, level: float = LEVEL
) -> Interval | None:
    """Tokens per second of one side over another's, paired by prompt."""
    trials = _trials(results, pair, category)
    return ratio_interval(list(speed_logs(trials, side, base).values()), level)


def best_side(results: Results, pair: str, sides: Sequence[str], category: str) -> str | None:
    """The fastest of several in a category, by its geometric mean against plain."""
    found = {
        side: interval.center
        for side in sides
        if (interval := against(results, pair, side, PLAIN, category)) is not None
    }
    return max(found, key=lambda side: found[side]) if found else None


def trials_of(results: Results, pair: str, category: str) -> list[Trial]:
    """The trials behind a row."""
    return _trials(results, pair, category)


def _trials(results: Results, pair: str, category: str, context: int | None = None) -> list[Trial]:
    return [
        t
        for t in results.trials
        if t.pair == pair
        and (t.category == category or (category == ALL and t.category != CONTEXT))
        and (context is None or t.context == context)
    ]


def _logs(
    trials: Iterable[Trial], side: str, base: str, seconds: Callable[[Answer], float | None]
) -> Logs:
    found: dict[tuple[str, int], list[float]] = {}
    for t in trials:
        mine, other = t.answer(side), t.answer(base)
        if mine is None or other is None:
            continue
        one, two = seconds(mine), seconds(other)
        if one and two:
            found.setdefault((t.prompt, t.turn), []).append(math.log(two / one))
    return {key: median(logs) for key, logs in found.items()}


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
