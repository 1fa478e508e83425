"""Two measurements side by side: what got worse, and how sure that is.

What both have in common cancels out: a prompt's text (prompts are paired) and, for everything
against plain, the machine's mood (each file has plain decoding measured in turn). On a slow day
plain decoding itself is slower on all prompts alike, so it is judged over another program's plain
decoding, and without that told alone. Invariant: the intervals hold all at once with a chance of
95% (Bonferroni), so that looking at a hundred rows finds nothing where nothing changed; a
regression is an interval that lies beyond the tolerance. edgespec's code and the versions below it
are judged, and nothing else: no other program, and no figure where the machine, a model or a
setting is another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from edgespec.bench.conditions import drafters_of, fallen, other_conditions, same_machine
from edgespec.bench.prompts import ALL
from edgespec.bench.record import Results, Trial
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import LEVEL, Interval, ratio_interval
from edgespec.bench.summary import (
    Asked,
    Logs,
    behind_texts,
    categories,
    contexts,
    pairing,
    pairs,
    promptness_logs,
    speed_logs,
    trials_of,
)
from edgespec.errors import ConfigError

TOLERANCE = 0.01
"""A loss below this share is no regression, however sure it is."""

PLAIN_TOLERANCE = 0.05
"""The same where two kinds of work are compared, which a machine's mood changes differently."""

SLOW_DAY = "a slow day of the machine does that too"
OTHER_CONDITIONS = "the conditions are others"

LENGTHS = "text lengths"
"""What stands in a category's place for the trials of `--lengths`."""


@dataclass(frozen=True)
class Change:
    """B over A, larger being better; `worse` where it is surely beyond the tolerance.

    Without a `tolerance` it is told and not judged, which `unjudged` gives the reason for.
    """

    pair: str
    side: str
    category: str
    what: str
    interval: Interval
    tolerance: float | None
    unjudged: str = ""

    @property
    def judged(self) -> bool:
        """One prompt alone has no interval, so nothing can be sure of it."""
        return self.tolerance is not None and self.interval.high is not None

    @property
    def worse(self) -> bool:
        high = self.interval.high
        return self.tolerance is not None and high is not None and high < 1 - self.tolerance

    @property
    def better(self) -> bool:
        low = self.interval.low
        return self.tolerance is not None and low is not None and low > 1 + self.tolerance


@dataclass(frozen=True)
class Comparison:
    """Every change, exactness and GPUs lost, and what can't be compared."""

    changes: list[Change]
    inexact: list[str]
    fallen: list[str]
    notes: list[str]

    @property
    def judged(self) -> list[Change]:
        return [change for change in self.changes if change.judged]

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.worse]

    @property
    def failed(self) -> bool:
        return bool(self.regressions or self.inexact or self.fallen)

    @property
    def status(self) -> int:
        """What the command ends with: 1 for a regression, 2 where no figure could show one."""
        return 1 if self.failed else 0 if self.judged else 2


class NothingInCommon(ConfigError):
    """No side of edgespec answered the same prompt in both."""


def compare(a: Results, b: Results, level: float = LEVEL) -> Comparison:
    """What B is against A; raises NothingInCommon."""
    found = list(_differences(a, b))
    if not found:
        raise NothingInCommon(
            "these results have no pair, side of edgespec and prompts in common, so there is "
            "nothing to compare"
        )
    # One prompt gives no interval, so it is no question that could be answered wrongly.
    asked = sum(tolerance is not None and len(logs) > 1 for *_, tolerance, logs in found)
    changes = []
    for pair, side, category, what, tolerance, logs in found:
        interval = ratio_interval(logs, 1 - (1 - level) / max(1, asked))
        if interval is not None:
            why = "" if tolerance else _unjudged(a, b, pair)
            changes.append(Change(pair, side, category, what, interval, tolerance, why))
    return Comparison(changes, list(_inexact(a, b)), list(fallen(a, b)), list(_notes(a, b)))


def lines(comparison: Comparison) -> Iterator[str]:
    """What to tell: notes, regressions, gains, and a sentence on the rest."""
    yield from comparison.notes
    for change in comparison.changes:
        what = f"{change.pair}, {change.side}, {change.category}: {change.what} is"
        ratio = change.interval.center
        if change.worse or change.better:
            kind = "REGRESSION" if change.worse else "better"
            yield f"{kind}: {what} {change.interval} times what it was"
        elif change.tolerance is None and abs(ratio - 1) > PLAIN_TOLERANCE:
            yield (
                f"note: {what} {ratio:.2f} times what it was, which isn't judged, since "
                f"{change.unjudged}"
            )
    sentences = [*comparison.inexact, *comparison.fallen]
    yield from (f"REGRESSION: {sentence}" for sentence in sentences)
    judged, worse = comparison.judged, len(comparison.regressions) + len(sentences)
    if not judged:
        yield (
            f"{f'{worse} regressions; ' if worse else ''}no figure is judged: that takes two "
            "prompts or more that a side of edgespec answered under the same conditions in both"
        )
        return
    unsure = [change for change in judged if not (change.worse or change.better)]
    yield (
        f"{worse} regressions; {len(unsure)} of {len(judged)} figures show no change that is sure "
        f"(all intervals hold at once with a chance of {LEVEL:.0%})"
    )


_Difference = tuple[str, str, str, str, float | None, list[float]]


def _differences(a: Results, b: Results) -> Iterator[_Difference]:
    for pair in (pair for pair in a.pairs if pair in b.pairs):
        sides = [
            side
            for side in a.sides(pair)
            if side in b.sides(pair) and "/" not in side and (side != PLAIN or same_machine(a, b))
        ]
        named = categories(a, pair) if _same_prompts(a, b, pair) else []
        parts = [(name, trials_of(a, pair, name), trials_of(b, pair, name)) for name in named]
        parts.append((LENGTHS, behind_texts(a, pair), behind_texts(b, pair)))
        other, others = _other_plain(a, b, pair), other_conditions(a, b, pair)
        asked = [
            (part, side, *measure) for part in parts for side in sides
            for measure in _measures(side, other)
        ]  # fmt: skip
        if PLAIN in sides:
            asked += [(p, PLAIN, "tokens per second", None, _plain_speed) for p in parts[-2:]]
        for (category, before, after), side, what, tolerance, logs in asked:
            if others:
                tolerance = None
            change = _change(logs(before), logs(after))
            if change:
                counted = list(change.values()) if category == LENGTHS else pairs(change)
                yield pair, side, category, what, tolerance, counted


def _other_plain(a: Results, b: Results, pair: str) -> str | None:
    """Plain decoding of a program that is the same in both."""
    one, two = a.pairs[pair].peers, b.pairs[pair].peers
    for side in (side for side in a.sides(pair) if side in b.sides(pair)):
        peer, _, setting = side.partition("/")
        if setting == PLAIN and peer in one and one[peer] == two.get(peer):
            return side
    return None


def _unjudged(a: Results, b: Results, pair: str) -> str:
    return OTHER_CONDITIONS if other_conditions(a, b, pair) else SLOW_DAY


def _same_prompts(a: Results, b: Results, pair: str) -> bool:
    """Whether a prompt's name is the same text in both."""
    one, two = (results.pairs[pair].settings.get("prompts_sha256") for results in (a, b))
    return one == two


def _measures(
    side: str, other: str | None
) -> Iterator[tuple[str, float | None, Callable[[list[Trial]], Logs]]]:
    """Figures whose logarithms grow with what is good; `other` is another program's plain."""
    if side != PLAIN:
        yield "speed against plain", TOLERANCE, lambda trials: speed_logs(trials, side)
        yield (
            "promptness of the first token against plain",
            PLAIN_TOLERANCE,
            lambda trials: promptness_logs(trials, side),
        )
    elif other is not None:
        yield (
            f"speed against {other}",
            PLAIN_TOLERANCE,
            lambda trials: speed_logs(trials, side, other),
        )


def _plain_speed(trials: list[Trial]) -> Logs:
    found: dict[Asked, list[float]] = {}
    for trial in trials:
        answer = trial.answer(PLAIN)
        if answer is not None and (seconds := answer.seconds_per_token):
            found.setdefault(pairing(trial), []).append(-math.log(seconds))
    return {key: median(logs) for key, logs in found.items()}


def _change(before: Logs, after: Logs) -> Logs:
    return {key: after[key] - before[key] for key in before if key in after}


_Question = tuple[Asked, int | None]
"""What was asked, and the text length where that was."""


def _inexact(a: Results, b: Results) -> Iterator[str]:
    """Sides whose text was plain's, or explained, and isn't now, to what both were asked."""
    for pair in (pair for pair in a.pairs if pair in b.pairs):
        yield from () if other_conditions(a, b, pair) else _lost(a, b, pair)


def _lost(a: Results, b: Results, pair: str) -> Iterator[str]:
    for side in (side for side in b.sides(pair) if "/" not in side):
        before, after = _exactness(a, pair, side), _exactness(b, pair, side)
        both = _common(before, after, _same_prompts(a, b, pair))
        if any(before[key] and not after[key] for key in both):
            was, is_ = (sum(not found[key] for key in both) for found in (before, after))
            yield (
                f"{pair}, {side}: {is_} of {len(both)} answers differ from plain's without an "
                f"explanation, {was} before"
            )


def _inexact_elsewhere(a: Results, b: Results, pair: str) -> Iterator[str]:
    """Texts that aren't plain's, to what only the second file's sides were asked."""
    for side in (side for side in b.sides(pair) if "/" not in side):
        before, after = _exactness(a, pair, side), _exactness(b, pair, side)
        both = _common(before, after, _same_prompts(a, b, pair))
        if wrong := sum(not exact for key, exact in after.items() if key not in both):
            yield (
                f"note: {pair}, {side}: {wrong} answer{'s' * (wrong > 1)} to what the first file "
                "wasn't asked differ from plain's without an explanation"
            )


def _common(
    before: dict[_Question, bool], after: dict[_Question, bool], same_prompts: bool
) -> set[_Question]:
    return {key for key in before.keys() & after.keys() if same_prompts or key[1] is not None}


def _exactness(results: Results, pair: str, side: str) -> dict[_Question, bool]:
    """Whether all of a side's answers to a question have plain's text, or an explanation."""
    found: dict[_Question, bool] = {}
    for trial in (trial for trial in results.trials if trial.pair == pair):
        if answer := trial.answer(side):
            exact = answer.difference is None or bool(answer.difference.get("explained"))
            key = (pairing(trial), trial.context)
            found[key] = found.get(key, True) and exact
    return found


def _notes(a: Results, b: Results) -> Iterator[str]:
    for pair in a.pairs:
        if pair not in b.pairs:
            yield f"note: {pair} was measured in the first file alone"
            continue
        one, two = a.pairs[pair], b.pairs[pair]
        if one.target.get("sha256") != two.target.get("sha256"):
            yield f"note: the target of {pair} is another file in the second"
        if drafters_of(one) != drafters_of(two):
            yield f"note: a drafter of {pair} is another file in the second"
        for key in dict.fromkeys([*one.settings, *two.settings]):
            was, is_ = one.settings.get(key), two.settings.get(key)
            if was != is_:
                yield f"note: {pair}: {key} was {was} and is {is_}"
        if others := other_conditions(a, b, pair):
            yield (
                f"note: {pair}: {', '.join(others)} changed, so nothing of it is judged: a change "
                "may come from there"
            )
            yield from (f"note: {sentence}" for sentence in _lost(a, b, pair))
        if not _same_prompts(a, b, pair):
            yield f"note: {pair}: the prompts aren't the same, so answers to them aren't compared"
        lost = [side for side in a.sides(pair) if side not in b.sides(pair)]
        if lost:
            yield f"note: {pair}: {', '.join(lost)} was measured in the first file alone"
        yield from _unasked(a, b, pair)
        yield from _inexact_elsewhere(a, b, pair)
    if not same_machine(a, b):
        yield "note: these are two machines, so plain decoding's own speed isn't compared"


def _unasked(a: Results, b: Results, pair: str) -> Iterator[str]:
    """What the first file's sides were asked, and the second's weren't."""
    if _same_prompts(a, b, pair):
        gone = [name for name in categories(a, pair) if name not in categories(b, pair)]
        if gone:
            yield f"note: {pair}: the second file has no answers in {', '.join(gone)}"
        # A prompt's turns are questions of their own.
        before, after = ({pairing(t) for t in trials_of(r, pair, ALL)} for r in (a, b))
        if before - after:
            yield (
                f"note: {pair}: the second file lacks {len(before - after)} of the {len(before)} "
                "questions of the first"
            )
    lengths = [str(length) for length in contexts(a, pair) if length not in contexts(b, pair)]
    if lengths:
        yield f"note: {pair}: the text lengths {', '.join(lengths)} are in the first file alone"
