"""The planner that measures: drafter and lookahead by expected tokens per second, or none.

At each round every choice is worth its expected tokens less what its time could have earned
otherwise: 1 + sum of reach probabilities - price * seconds (Dinkelbach's form of maximising tokens
per second, 1967). Reach probabilities come from what each drafter's confidence proved to be worth.
Invariant: parked, a model drafter costs nothing but its share of `PROBE_SHARE`; plain decoding is
always one of the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgespec.confidence import GAP_EDGES, MATCH_EDGES, Calibration, Outlook, top2_gap
from edgespec.costs import MAX_TOKENS, Costs
from edgespec.drafters import Drafter, GoOn
from edgespec.planner import Outcome
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft

import os as _os
OPT = dict(kv.split("=") for kv in _os.environ.get("OPT", "").split(",") if kv)
def opt(name, default):
    return float(OPT.get(name, default))

MAX_LOOKAHEAD = MAX_TOKENS - 1
PROBE_SHARE = opt("probe", 0.01)
"""The share of the time that may go into trying out a parked drafter."""
REFERENCE_SHARE = opt("ref", 0.004)
"""The share of the time that may go into plain rounds, to know what they cost just now."""

_MARGIN = opt("margin", 0.02)  # a draft must promise this much over plain decoding, in tokens a round
_FADE = opt("fade", 0.97)  # of a round's weight in the speed, for each round after it


@dataclass
class _Model:
    """What is known of a drafter that costs time."""

    confidence: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, (0.4, 0.97), fade=opt("cfade", 0.98)))
    # Acceptance of its next guess, by the confidence of the one before.
    after: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, (0.6, 0.8), fade=opt("cfade", 0.98)))
    # Acceptance of its first guess, by the target's own certainty.
    signal: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, (0.4, 0.95), fade=opt("sfade", 0.98)))
    outlook: Outlook = field(default_factory=lambda: Outlook(opt("prior", 0.7), change=opt("change", 0.02)))


class AdaptivePlanner:
    """Chooses anew at each round; see `Planner`."""

    def __init__(self, costs: Costs, max_lookahead: int = MAX_LOOKAHEAD) -> None:
        self.costs = costs
        self._max = min(max_lookahead, MAX_LOOKAHEAD)
        self._models: dict[str, _Model] = {}
        self._matches: dict[str, Calibration] = {}
        self._guesses: dict[str, Draft] = {}  # of free drafters, for this round
        self._owed = 0
        self._begun = 0  # length of the text when this answer began
        self._answer = opt("answer", 200)  # tokens of an answer, in the mean
        self._length = 0
        self._tokens = self._time = 1.0  # recent ones, time in plain rounds
        self._probe_credit = 0.0  # in plain rounds, like the next
        self._reference_credit = 0.0
        self._pace = costs.pace  # at the last plain round

    def begin(self, length: int) -> None:
        """A new answer begins behind `length` tokens."""
        if self._length > self._begun > 0:
            self._answer += 0.3 * (self._length - self._begun - self._answer)
        self._begun = self._length = length

    @property
    def speed(self) -> float:
        """Tokens in the time of one plain round, of late."""
        return self._tokens / self._time

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """See `Planner.draft`."""
        longest = min(self._max, room)
        self._guesses.clear()
        if longest <= 0:
            return NO_DRAFT
        length = len(tokens)
        check = self.costs.curve("check", length)
        price = max(1.0, self.speed) / check[1]  # tokens that a second is worth
        options: list[tuple[float, float, Drafter, int]] = []  # worth, what it must read first
        for name, drafter in drafters.items():
            if drafter.free:
                guess = self._guesses[name] = drafter.propose(tokens, longest, sampler)
                if guess:
                    value, size = self._worth_of(name, guess, price, check)
                    options.append((value, 0.0, drafter, size))
            else:
                owed = drafter.owes(tokens)
                value, arrears = self._worth_of_asking(name, longest, price, check, owed, length)
                options.append((value, arrears, drafter, 0))
        if not options:
            return NO_DRAFT
        share = self._share()
        value, arrears, drafter, size = max(options, key=lambda o: o[0] - share * o[1])
        if value - share * arrears > _MARGIN:
            if self._wants_reference():
                return NO_DRAFT
        else:
            value, arrears, drafter, size = max(options, key=lambda o: o[0] - o[1])
            if opt("freeprobe", 1) == 0 and drafter.free: return NO_DRAFT
            if arrears - value > self._probe_credit:
                return NO_DRAFT
            self._probe_credit -= max(0.0, arrears - value)
        if drafter.free:
            return _first(self._guesses[drafter.name], size)
        self._owed = drafter.owes(tokens)
        go_on = self._go_on(drafter.name, longest, price, length)
        return drafter.propose(tokens, longest, sampler, go_on)

    def _share(self) -> float:
        """What part of a long read one round should pay for."""
        horizon = max(self._answer, self._length - self._begun) * opt("hor", 1.0)
        return max(1.0, self.speed) * 1.5 / max(16.0, horizon)

    def observe(self, outcome: Outcome) -> None:
        """See `Planner.observe`."""
        draft, stood, length = outcome.draft, outcome.num_accepted, outcome.length
        came = (*draft.tokens[:stood], outcome.next_token)
        for name, guess in self._guesses.items():
            self._judge(self._match(name), guess, came)
        signal = top2_gap(outcome.rows[0]) if self._models else 0.0
        cost = self.costs.seconds("check", len(draft) + 1, length)
        for name, model in self._models.items():
            if draft.drafter != name:
                # Not asked: what its outlook would be, by what the target's certainty says.
                model.outlook.learn(model.signal.rate(signal), opt("sigw", 1.0))
                continue
            cost += self.costs.draft(name, len(draft), min(2, self._owed), length)
            self.costs.observe_draft(name, len(draft), self._owed, length, outcome.draft_seconds)
            self._judge(model.confidence, draft, came)
            model.signal.learn(signal, stood > 0)
            for i in range(min(stood + 1, len(draft))):
                model.outlook.learn(float(i < stood), slow=opt("slow", 0.02))
            for i in range(1, min(stood + 1, len(draft))):
                model.after.learn(draft.confidence[i - 1], i < stood)
        self._count(stood + 1, cost / self.costs.seconds("check", 1, length))
        self.costs.observe("check", len(draft) + 1, length, outcome.check_seconds)
        if not draft:
            self._pace = self.costs.pace
        self._length = length + stood + 1

    def _count(self, tokens: int, time: float) -> None:
        """Take in a round's tokens and its time in plain rounds."""
        self._tokens = self._tokens * _FADE + tokens
        self._time = self._time * _FADE + time
        self._probe_credit = self._probe_credit + PROBE_SHARE * time
        self._reference_credit = min(self._reference_credit + REFERENCE_SHARE * time, 1.0)

    def _wants_reference(self) -> bool:
        """Whether to go without a draft once, to see what a plain round costs just now."""
        loss = 1.0 - 1.0 / max(1.05, self.speed)
        moved = opt("moved", 0.0) and abs(self.costs.pace - self._pace) > opt("moved", 0.0)
        if self._reference_credit < loss and not moved:
            return False
        self._reference_credit -= loss
        return True

    def _worth_of(self, name: str, guess: Draft, price: float, check: Sequence[float]) -> tuple[float, int]:
        """The most that a first part of a guess in hand is worth over plain, and its size."""
        best, size, gain, reach = -np.inf, 0, 0.0, 1.0
        rates = self._match(name)
        for i, confidence in enumerate(guess.confidence):
            reach *= rates.rate(confidence)
            gain += reach
            value = gain - price * (check[i + 2] - check[1])
            if value > best:
                best, size = value, i + 1
        return best, size

    def _worth_of_asking(
        self, name: str, longest: int, price: float, check: Sequence[float], owed: int, length: int
    ) -> tuple[float, float]:
        """The most that a draft yet to be made is worth over plain; and what it has to read."""
        outlook = self._model(name).outlook.rate
        step = self.costs.curve(name, length)
        usual = step[min(2, max(1, owed))]
        arrears = self.costs.seconds(name, max(1, owed), length) - usual
        best, gain, reach = -np.inf, 0.0, 1.0
        for k in range(1, longest + 1):
            reach *= outlook
            gain += reach
            best = max(best, gain - price * (usual + (k - 1) * step[1] + check[k + 1] - check[1]))
        return float(best), price * arrears

    def _go_on(self, name: str, longest: int, price: float, length: int) -> GoOn:
        """Whether to draft one more, by the confidence of each token drawn so far."""
        model = self._model(name)
        outlook = model.outlook.rate
        step = self.costs.seconds(name, 1, length)
        check = self.costs.curve("check", length)
        drafted, reach = 0, 1.0

        def go_on(confidence: float) -> bool:
            nonlocal drafted, reach
            drafted += 1
            reach *= model.confidence.rate(confidence)
            first = model.after.rate(confidence) if opt("after", 0) else outlook
            gain, hope = 0.0, reach
            for more in range(1, longest - drafted + 1):
                hope *= first if more == 1 else outlook
                gain += hope
                if gain > price * (more * step + check[drafted + more + 1] - check[drafted + 1]):
                    return True
            return False

        return go_on

    def _judge(self, calibration: Calibration, guess: Draft, came: Sequence[int]) -> None:
        """Learn how far a guess agreed with what came, used or not."""
        for token, confidence, real in zip(guess.tokens, guess.confidence, came, strict=False):
            calibration.learn(confidence, token == real)
            if token != real:
                break

    def _model(self, name: str) -> _Model:
        return self._models.get(name) or self._models.setdefault(name, _Model())

    def _match(self, name: str) -> Calibration:
        return self._matches.setdefault(name, Calibration(MATCH_EDGES, (0.3, 0.9), fade=opt("mfade", 0.98)))


def _first(draft: Draft, size: int) -> Draft:
    """The first `size` tokens of a guess that was made without a draw."""
    assert draft.probs is None
    return Draft(draft.tokens[:size], None, draft.drafter, draft.confidence[:size])
