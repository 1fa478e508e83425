"""The planner that measures: drafter and lookahead by expected tokens per second, or none.

At each round every choice is worth its expected tokens less what its time could have earned
otherwise: 1 + sum of reach probabilities - price * seconds (Dinkelbach's form of maximising tokens
per second, 1967). Reach probabilities come from what each drafter's confidence proved to be worth.
Invariant: plain decoding is always one of the choices, and what the planner spends on finding out,
at an expected loss, stays within its shares of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgespec.confidence import (
    GAP_EDGES,
    GAP_PRIOR,
    MATCH_EDGES,
    MATCH_PRIOR,
    SIGNAL_PRIOR,
    Calibration,
    Outlook,
    top2_gap,
)
from edgespec.costs import MAX_TOKENS, Costs
from edgespec.drafters import Drafter, GoOn
from edgespec.planner import Outcome, PlannerStatus
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft

MAX_LOOKAHEAD = MAX_TOKENS - 1
PROBE_SHARE = 0.0045
"""The share of the time that may go into drafts thought not to pay, in case they do."""
PROBE_PART = 0.03
"""The part of an answer's time so far that one such draft may take: short answers get none."""
LOOK_SHARE = 0.005
"""The share of the time that a parked planner may spend on looking for a draft."""
REFERENCE_SHARE = 0.003
"""The share of the time that may go into plain rounds, to know what they cost just now."""

_MARGIN = 0.03  # a draft must promise this many tokens more than plain decoding,
_RISK = 0.15  # and this many more for each plain round of its time, since estimates err
_SWITCH = 0.1  # tokens that copying must be worth more than drawing on
_FADE = 0.97  # of a round's weight in the speed, for each round after it
_PARKED = 8  # rounds without a draft after which the planner says that it has parked


@dataclass
class _Model:
    """What is known of a drafter that costs time."""

    confidence: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, GAP_PRIOR))
    # Acceptance of its first guess by the target's own certainty.
    signal: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, SIGNAL_PRIOR))
    outlook: Outlook = field(default_factory=Outlook)


@dataclass(frozen=True)
class _Option:
    """A draft that could be made: tokens it would add, and its time in plain rounds.

    `worth` is the tokens less the price of the time and a margin; `arrears` the price of what the
    drafter must read before it can begin, which serves the rounds that follow too.
    """

    drafter: Drafter
    size: int
    tokens: float
    time: float
    worth: float
    arrears: float = 0.0
    owed: int = 0


class AdaptivePlanner:
    """Chooses anew at each round; see `Planner`."""

    def __init__(self, costs: Costs, max_lookahead: int = MAX_LOOKAHEAD) -> None:
        self.costs = costs
        self._max = min(max_lookahead, MAX_LOOKAHEAD)
        self._models: dict[str, _Model] = {}
        self._matches: dict[str, Calibration] = {}
        self._guesses: dict[str, Draft] = {}  # of free drafters, for this round
        self._best: _Option | None = None  # this round's, taken or not
        self._copy = NO_DRAFT  # what a free drafter adds behind this round's draft
        self._drafted = NO_DRAFT  # the latest draft
        self._idle = _PARKED  # rounds since
        self._looking = 0.0  # what looking for a draft costs, in plain rounds
        self._every = 1  # parked, it looks for one in one round of so many
        self._rests = False
        self._plain_rounds = 0
        self._begun = self._length = 0  # of the text, when this answer began and now
        self._answer = 200.0  # tokens of an answer, in the mean
        # Of late, in rounds that had a free guess and in others; time in plain rounds.
        self._tokens, self._time = [1.0, 1.0], [1.0, 1.0]
        self._all_tokens = self._real_time = 1.0
        self._answer_time = 0.0  # in plain rounds, of this answer
        self._probe_credit = self._reference_credit = 0.0  # in plain rounds

    def begin(self, length: int) -> None:
        """See `Planner.begin`."""
        if self._length > self._begun:
            self._answer += 0.3 * (self._length - self._begun - self._answer)
        self._begun = self._length = length
        self._answer_time = 0.0
        for calibration in self._matches.values():
            calibration.begin()
        for model in self._models.values():
            model.confidence.begin()
            model.signal.begin()

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """See `Planner.draft`."""
        longest = min(self._max, room)
        self._guesses.clear()
        self._copy = NO_DRAFT
        self._rests = self._idle >= _PARKED and self._idle % self._every != 0
        if self._rests:
            return NO_DRAFT
        self._best = None
        if longest <= 0:
            return NO_DRAFT
        for name, drafter in drafters.items():
            if drafter.free and (guess := drafter.propose(tokens, longest, sampler)):
                self._guesses[name] = guess
        price = self._speed / self.costs.seconds("check", 1, len(tokens))  # tokens for a second
        options = []
        for name, drafter in drafters.items():
            if not drafter.free:
                options.append(self._asking(drafter, longest, price, tokens))
            elif name in self._guesses:
                options.append(self._taking(drafter, self._guesses[name], price, len(tokens)))
        if not options:
            return NO_DRAFT
        # A long read is paid once and serves what follows: a quarter of an answer, since the rest
        # may be another kind of text, and no more than there is room for.
        served = min(3.0 * (room + 1), max(32.0, self._answer, self._length - self._begun))
        share = min(1.0, 5 * self._speed / served)
        self._best = best = max(options, key=lambda o: o.worth - share * o.arrears)
        if best.worth - share * best.arrears > 0:
            if self._affords_reference():
                return NO_DRAFT
        else:
            # A guess in hand is judged without a probe: only its checks' costs are to be learnt.
            asked = [option for option in options if not option.drafter.free] or options
            best = max(asked, key=lambda o: o.worth - o.arrears)
            loss = best.arrears - best.worth
            if loss > min(self._probe_credit, PROBE_PART * self._answer_time):
                return NO_DRAFT
            self._probe_credit -= max(0.0, loss)
            self._best = best
        if best.drafter.free:
            return _first(self._guesses[best.drafter.name], best.size)
        free = [drafter for drafter in drafters.values() if drafter.free]
        go_on = self._go_on(best.drafter.name, longest, price, tokens, free, sampler)
        draft = best.drafter.propose(tokens, longest, sampler, go_on)
        return draft.followed_by(self._copy) if self._copy else draft

    def observe(self, outcome: Outcome) -> None:
        """See `Planner.observe`."""
        draft, stood, length = outcome.draft, outcome.num_accepted, outcome.length
        came = (*draft.tokens[:stood], outcome.next_token)
        for name, guess in self._guesses.items():
            _judge(self._match(name), guess, came)
        plain = self.costs.seconds("check", 1, length)
        seconds = self.costs.seconds("check", len(draft) + 1, length)
        certainty = top2_gap(outcome.rows[0]) if self._models else 0.0
        drawn = len(draft) - draft.copied
        asked = self._best.drafter.name if self._best is not None and draft else ""
        if draft.copied and stood >= drawn:
            _judge(self._match(self._copy.drafter), self._copy, came[drawn:])
        for name, model in self._models.items():
            if asked != name:
                # Not asked: what its guess would have been worth, by the target's own certainty.
                likely = model.signal.rate(certainty)
                model.outlook.learn(likely, 1 - likely, tried=False)
                continue
            owed = self._best.owed if self._best else 1
            seconds += self.costs.draft(name, drawn, min(2, owed), length)
            self.costs.observe_draft(name, drawn, owed, length, outcome.draft_seconds)
            _judge(model.confidence, _first(draft, drawn), came)
            model.signal.learn(certainty, stood > 0)
            model.outlook.learn(min(stood, drawn), stood < drawn)
        self._count(stood + 1, seconds / plain)
        real = outcome.draft_seconds + outcome.check_seconds
        self._real_time = self._real_time * _FADE + real / plain
        # To be parked costs next to nothing, so not every plain round is learnt from then.
        if draft or self._idle < _PARKED or self._plain_rounds % 4 == 0:
            self.costs.observe("check", len(draft) + 1, length, outcome.check_seconds)
        self._length = length + stood + 1
        if draft:
            self._idle, self._drafted = 0, draft
            return
        if not self._rests:
            self._looking += 0.05 * (outcome.draft_seconds / plain - self._looking)
            self._every = min(4, max(1, math.ceil(self._looking / LOOK_SHARE)))
        self._reference_credit = 0.0  # it shows what a plain round costs
        self._plain_rounds += 1
        self._idle += 1

    def status(self) -> PlannerStatus:
        """See `Planner.status`; the gain is that of some thirty rounds."""
        parked = self._idle >= _PARKED
        # Without one plain round seen, what one costs is only what it once was.
        gain = self._all_tokens / self._real_time if self._plain_rounds else None
        best = self._best
        if best is None:
            reason = "no drafter has a guess"
        else:
            much = "more than" if best.worth > 0 else "no more than"
            reason = (
                f"a draft of {best.size} from {best.drafter.name} should add {best.tokens:.1f} "
                f"tokens, {much} its time of {best.time:.1f} plain rounds is worth"
            )
            if best.owed > MAX_TOKENS:
                reason += f", and it would have to read {best.owed} tokens first"
        if parked:
            return PlannerStatus("", 0, True, reason, gain)
        return PlannerStatus(self._drafted.drafter, len(self._drafted), False, reason, gain)

    def to_json(self) -> dict[str, Any]:
        """What answers showed of the drafters, for another day."""
        return {
            "answer": self._answer,
            "matches": {name: match.to_json() for name, match in self._matches.items()},
            "models": {
                name: {
                    "confidence": model.confidence.to_json(),
                    "signal": model.signal.to_json(),
                    "outlook": model.outlook.to_json(),
                }
                for name, model in self._models.items()
            },
        }

    def recall(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        answer = float(data["answer"])
        if not 1 <= answer < 1e6:
            raise ValueError("this is no length of an answer")
        self._answer = answer
        for name, rates in data["matches"].items():
            self._match(str(name)).recall(rates)
        for name, known in data["models"].items():
            model = self._model(str(name))
            model.confidence.recall(known["confidence"])
            model.signal.recall(known["signal"])
            model.outlook.recall(known["outlook"])

    @property
    def _speed(self) -> float:
        """Tokens in the time of a plain round, of late: what time is worth."""
        kind = bool(self._guesses)
        return max(1.0, self._tokens[kind] / self._time[kind])

    def _count(self, tokens: int, time: float) -> None:
        """Take in a round's tokens and its time in plain rounds, long reads left out."""
        kind = bool(self._guesses)
        self._tokens[kind] = self._tokens[kind] * _FADE + tokens
        self._time[kind] = self._time[kind] * _FADE + time
        self._all_tokens = self._all_tokens * _FADE + tokens
        self._answer_time += time
        self._probe_credit += PROBE_SHARE * time
        self._reference_credit = min(self._reference_credit + REFERENCE_SHARE * time, 1.0)

    def _affords_reference(self) -> bool:
        """Whether to go without a draft this once, to see what a plain round costs."""
        loss = 1.0 - 1.0 / max(1.05, self._speed)
        affords = self._reference_credit >= loss
        self._reference_credit -= loss if affords else 0.0
        return affords

    def _taking(self, drafter: Drafter, guess: Draft, price: float, length: int) -> _Option:
        """The first part of a guess in hand that is worth most."""
        rates = self._match(drafter.name)
        gains, reach = [0.0], 1.0
        for confidence in guess.confidence:
            reach *= rates.rate(confidence)
            gains.append(gains[-1] + reach)
        return self._most(drafter, gains, [0.0] * len(gains), price, length)

    def _asking(self, drafter: Drafter, longest: int, price: float, tokens: TokenIds) -> _Option:
        """The draft yet to be made that is worth most, were its length fixed beforehand."""
        name, length = drafter.name, len(tokens)
        outlook = self._model(name).outlook.rate
        owed = max(1, drafter.owes(tokens))
        usual = self.costs.seconds(name, min(2, owed), length)
        step = self.costs.seconds(name, 1, length)
        gains, reach = [0.0], 1.0
        for _ in range(longest):
            reach *= outlook
            gains.append(gains[-1] + reach)
        drafting = [usual + (k - 1) * step for k in range(longest + 1)]
        arrears = price * (self.costs.seconds(name, owed, length) - usual)
        return self._most(drafter, gains, drafting, price, length, arrears, owed)

    def _most(
        self,
        drafter: Drafter,
        gains: Sequence[float],
        drafting: Sequence[float],
        price: float,
        length: int,
        arrears: float = 0.0,
        owed: int = 0,
    ) -> _Option:
        """The size that is worth most, by the tokens that each adds and its drafting's seconds."""
        check = self.costs.curve("check", length)
        seconds = [d + check[k + 1] - check[1] for k, d in enumerate(drafting)]
        worths = [gain - price * s for gain, s in zip(gains, seconds, strict=True)]
        size = max(range(1, len(worths)), key=worths.__getitem__)
        time = seconds[size] / check[1]
        worth = worths[size] - _MARGIN - _RISK * time
        return _Option(drafter, size, gains[size], time, worth, arrears, owed)

    def _go_on(
        self,
        name: str,
        longest: int,
        price: float,
        tokens: TokenIds,
        free: Sequence[Drafter],
        sampler: Sampler,
    ) -> GoOn:
        """Whether to draft one more, by the confidence of each token drawn so far.

        Where what was drawn leads into words that came before, copying those can be worth more:
        then the draft ends, and they are its continuation.
        """
        confidences, outlook = self._model(name).confidence, self._model(name).outlook.rate
        length = len(tokens)
        step = self.costs.seconds(name, 1, length)
        check = self.costs.curve("check", length)
        drafted: list[int] = []
        reach = 1.0

        def go_on(token: int, confidence: float) -> bool:
            nonlocal reach
            drafted.append(token)
            reach *= confidences.rate(confidence)
            size, gain, hope, worth = len(drafted), 0.0, reach, 0.0
            # A check of three more can be cheaper than one of two more: look at them all.
            for more in range(1, longest - size + 1):
                hope *= outlook
                gain += hope
                time = more * step + check[size + more + 1] - check[size + 1]
                worth = max(worth, gain - price * time)
            for drafter in free:
                text = np.concatenate([tokens, np.array(drafted, tokens.dtype)])
                guess = drafter.propose(text, longest - size, sampler)
                rates = self._match(drafter.name)
                gain, hope = 0.0, reach
                for more, sure in enumerate(guess.confidence, start=1):
                    hope *= rates.rate(sure)
                    gain += hope
                    copying = gain - price * (check[size + more + 1] - check[size + 1])
                    if copying > worth + _SWITCH:
                        worth, self._copy = copying, _first(guess, more)
            return worth > 0 and not self._copy

        return go_on

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            self._models[name] = _Model()
        return self._models[name]

    def _match(self, name: str) -> Calibration:
        if name not in self._matches:
            self._matches[name] = Calibration(MATCH_EDGES, MATCH_PRIOR)
        return self._matches[name]


def _judge(calibration: Calibration, guess: Draft, came: Sequence[int]) -> None:
    """Learn how far a guess agreed with what came, used or not."""
    for token, confidence, real in zip(guess.tokens, guess.confidence, came, strict=False):
        calibration.learn(confidence, token == real)
        if token != real:
            break


def _first(draft: Draft, size: int) -> Draft:
    """The first `size` tokens of a draft, as a guess."""
    return Draft(draft.tokens[:size], None, draft.drafter, draft.confidence[:size])
