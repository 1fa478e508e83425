"""The planner that measures: drafter and lookahead by expected tokens per second, or none.

At each round every choice is worth its expected tokens less what its time could have earned
otherwise: 1 + sum of reach probabilities - rate * seconds (Dinkelbach's form of maximising tokens
per second, 1967). Reach probabilities come from what each drafter's confidence proved to be worth.
Invariant: parked, a model drafter costs nothing but its share of `PROBE_SHARE`; plain decoding is
always one of the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.confidence import GAP_EDGES, MATCH_EDGES, Calibration, top2_gap
from edgespec.costs import MAX_TOKENS, Costs
from edgespec.drafters import Drafter, GoOn
from edgespec.planner import Outcome
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft

MAX_LOOKAHEAD = MAX_TOKENS - 1
PROBE_SHARE = 0.01
"""The share of the time that may go into trying out a parked drafter."""

_HORIZON = 64  # tokens an answer is thought to go on at least, when a long read has to pay
_OVERHEAD = 0.02  # a draft must promise this much over plain decoding, in tokens a round


@dataclass
class _Model:
    """What is known of a drafter that costs time."""

    confidence: Calibration
    signal: Calibration  # acceptance of its first guess by the target's own certainty
    outlook: float = 0.7  # acceptance to be expected of a guess not made yet


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
        self._probe_credit = 0.0  # seconds

    def begin(self, length: int) -> None:
        """A new answer begins behind `length` tokens."""
        self._begun = length

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """See `Planner.draft`."""
        longest = min(self._max, room)
        self._guesses.clear()
        if longest <= 0:
            return NO_DRAFT
        length = len(tokens)
        rate = self._rate(drafters, length)
        best, best_value = NO_DRAFT, _OVERHEAD
        chosen: tuple[Drafter, int] | None = None
        for name, drafter in drafters.items():
            if drafter.free:
                guess = drafter.propose(tokens, longest, sampler)
                self._guesses[name] = guess
                value, size = self._worth_of(name, guess, rate, length)
                if value > best_value:
                    best, best_value, chosen = _first(guess, size), value, None
            else:
                value, size = self._worth_of_asking(drafter, longest, rate, length)
                if value > best_value:
                    best, best_value, chosen = NO_DRAFT, value, (drafter, size)
        if not best and chosen is None:
            chosen = self._probe(drafters, rate, length)
        if chosen is None:
            return best
        drafter, _ = chosen
        self._owed = drafter.owes(length)
        return drafter.propose(
            tokens, longest, sampler, self._go_on(drafter.name, longest, rate, length)
        )

    def observe(self, outcome: Outcome) -> None:
        """See `Planner.observe`."""
        draft, stood, length = outcome.draft, outcome.num_accepted, outcome.length
        self.costs.observe("check", len(draft) + 1, length, outcome.check_seconds)
        came = (*draft.tokens[:stood], outcome.next_token)
        for name, guess in self._guesses.items():
            self._judge(self._match(name), guess, came)
        signal = top2_gap(outcome.rows[0]) if self._models else 0.0
        for name, model in self._models.items():
            if draft.drafter != name:
                # Not asked: what its outlook would be, by what the target's certainty says.
                model.outlook += 0.1 * (model.signal.rate(signal) - model.outlook)
                continue
            self.costs.observe_draft(name, len(draft), self._owed, length, outcome.draft_seconds)
            self._judge(model.confidence, draft, came)
            model.signal.learn(signal, stood > 0)
            for i in range(min(stood + 1, len(draft))):
                model.outlook += 0.1 * (float(i < stood) - model.outlook)
        spent = outcome.check_seconds + outcome.draft_seconds
        self._probe_credit = min(self._probe_credit + PROBE_SHARE * spent, 100 * spent)

    def _rate(self, drafters: Mapping[str, Drafter], length: int) -> float:
        """Tokens per second that time earns elsewhere: plain, or with a model if that is better."""
        rate = 1.0 / self.costs.seconds("check", 1, length)
        for name, drafter in drafters.items():
            if not drafter.free:
                reach = np.cumsum(self._model(name).outlook ** np.arange(1, self._max + 1))
                for k in range(1, self._max + 1):
                    seconds = self.costs.draft(name, k, 2, length)
                    seconds += self.costs.seconds("check", k + 1, length)
                    rate = max(rate, (1 + float(reach[k - 1])) / seconds)
        return rate

    def _worth_of(self, name: str, guess: Draft, rate: float, length: int) -> tuple[float, int]:
        """The most that a first part of a guess in hand is worth over plain, and its size."""
        best, size, gain, reach = 0.0, 0, 0.0, 1.0
        plain = self.costs.seconds("check", 1, length)
        calibration = self._match(name)
        for i, confidence in enumerate(guess.confidence):
            reach *= calibration.rate(confidence)
            gain += reach
            more = self.costs.seconds("check", i + 2, length) - plain
            if gain - rate * more > best:
                best, size = gain - rate * more, i + 1
        return best, size

    def _worth_of_asking(
        self, drafter: Drafter, longest: int, rate: float, length: int
    ) -> tuple[float, int]:
        """The most that a draft yet to be made is worth over plain, and its size."""
        owed = drafter.owes(length)
        outlook = self._model(drafter.name).outlook
        plain = self.costs.seconds("check", 1, length)
        # Catching up is paid once and serves the rest of the answer, which is thought to go on
        # for as long as it has so far.
        arrears = self.costs.seconds(drafter.name, max(2, owed), length)
        arrears -= self.costs.seconds(drafter.name, 2, length)
        horizon = max(_HORIZON, length - self._begun)
        best, size, gain = -np.inf, 0, 0.0
        for k in range(1, longest + 1):
            gain += outlook**k
            seconds = self.costs.draft(drafter.name, k, min(2, owed), length)
            seconds += self.costs.seconds("check", k + 1, length) - plain
            value = gain - rate * (seconds + arrears * (1 + gain) / horizon)
            if value > best:
                best, size = value, k
        return float(best), size

    def _go_on(self, name: str, longest: int, rate: float, length: int) -> GoOn:
        """Whether to draft one more, by the confidence of each token drawn so far."""
        model = self._model(name)
        step = self.costs.seconds(name, 1, length)
        checks = [self.costs.seconds("check", n, length) for n in range(1, longest + 2)]
        drafted, reach = 0, 1.0

        def go_on(confidence: float) -> bool:
            nonlocal drafted, reach
            drafted += 1
            reach *= model.confidence.rate(confidence)
            gain, hope = 0.0, reach
            for more in range(1, longest - drafted + 1):
                hope *= model.outlook
                gain += hope
                if gain > rate * (more * step + checks[drafted + more] - checks[drafted]):
                    return True
            return False

        return go_on

    def _probe(
        self, drafters: Mapping[str, Drafter], rate: float, length: int
    ) -> tuple[Drafter, int] | None:
        """A parked drafter to try, when the time set aside for it covers the likely loss."""
        for name, drafter in drafters.items():
            if not drafter.free:
                seconds = self.costs.draft(name, 1, drafter.owes(length), length)
                seconds += self.costs.seconds("check", 2, length)
                seconds -= self.costs.seconds("check", 1, length)
                loss = seconds - self._model(name).outlook / rate
                if loss <= self._probe_credit:
                    self._probe_credit -= max(loss, 0.0)
                    return drafter, 1
        return None

    def _judge(self, calibration: Calibration, guess: Draft, came: Sequence[int]) -> None:
        """Learn how far a guess agreed with what came, used or not."""
        for token, confidence, real in zip(guess.tokens, guess.confidence, came, strict=False):
            calibration.learn(confidence, token == real)
            if token != real:
                break

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            confidence = Calibration(GAP_EDGES, (0.4, 0.97))
            self._models[name] = _Model(confidence, Calibration(GAP_EDGES, (0.4, 0.95)))
        return self._models[name]

    def _match(self, name: str) -> Calibration:
        return self._matches.setdefault(name, Calibration(MATCH_EDGES, (0.3, 0.9)))


def _first(draft: Draft, size: int) -> Draft:
    """The first `size` tokens of a guess that was made without a draw."""
    assert draft.probs is None
    return Draft(draft.tokens[:size], None, draft.drafter, draft.confidence[:size])
