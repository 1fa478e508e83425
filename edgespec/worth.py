"""What a draft is worth: the tokens it should add, less the price of its time.

That is 1 + sum of reach probabilities - price * seconds, compared with plain decoding's
(Dinkelbach's form of maximising tokens per second, 1967). Invariant: arithmetic on costs and rates;
nothing here learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.costs import Costs
from edgespec.drafters import Drafter, GoOn
from edgespec.experience import Experience
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft, checked

MAX_DRAWN = 16
"""Tokens a model draws for one draft at most: behind so many hardly any would stand."""

_MARGIN = 0.03  # a draft must promise this many tokens more than plain decoding,
_RISK = 0.15  # and this many more for each plain round of its time, since estimates err
_LONG = 64  # tokens to be read, from which on a drafter is asked whether it can do with less
_SWITCH = 0.1  # tokens that copying must be worth more than drawing on


@dataclass(frozen=True)
class Option:
    """A draft that could be made: tokens it would add, and its time in plain rounds.

    `worth` is the tokens less the price of the time and a margin; `arrears` the price of what the
    drafter must read before it can begin, which serves the rounds that follow too. `near`: it does
    with the nearest part of the text.
    """

    drafter: Drafter
    size: int
    tokens: float
    time: float
    worth: float
    arrears: float = 0.0
    owed: int = 0
    near: bool = False


class Choices:
    """The choices of one round, behind `tokens`, at most `longest` to be drafted.

    `price` is what a second would earn otherwise, in tokens. `copied` is what a free drafter adds
    behind what a model drew, once `go_on` has found that worth more.
    """

    def __init__(
        self, costs: Costs, known: Experience, price: float, tokens: TokenIds, longest: int
    ) -> None:
        self._costs, self._known, self._price = costs, known, price
        self._tokens, self._longest = tokens, longest
        self._check = costs.curve("check", len(tokens))
        self.copied = NO_DRAFT

    def taking(self, drafter: Drafter, guess: Draft) -> Option:
        """The first part of a guess in hand that is worth most."""
        rates = self._known.match(drafter.name)
        gains, reach = [0.0], 1.0
        for confidence in guess.confidence:
            reach *= rates.rate(confidence)
            gains.append(gains[-1] + reach)
        return self._most(drafter, gains, [0.0] * len(gains))

    def asking(self, drafter: Drafter) -> list[Option]:
        """The draft yet to be made that is worth most, and where the drafter can do with much less
        reading, the one that is behind that.
        """
        owed = drafter.owes(self._tokens)
        options = [self._asking(drafter, owed)]
        if owed > _LONG:
            least = drafter.owes(self._tokens, near=True)
            if 2 * least < owed:
                options.append(self._asking(drafter, least, near=True))
        return options

    def _asking(self, drafter: Drafter, owed: int, near: bool = False) -> Option:
        """The draft yet to be made that is worth most, were its length fixed beforehand."""
        name, length = drafter.name, len(self._tokens)
        outlook = self._known.model(name, near).outlook.rate
        owed = max(1, owed)
        usual = self._costs.seconds(name, min(2, owed), length)
        step = self._costs.seconds(name, 1, length)
        gains, reach = [0.0], 1.0
        longest = min(self._longest, MAX_DRAWN)
        for _ in range(longest):
            reach *= outlook
            gains.append(gains[-1] + reach)
        drafting = [usual + (k - 1) * step for k in range(longest + 1)]
        arrears = self._price * (self._costs.seconds(name, owed, length) - usual)
        return self._most(drafter, gains, drafting, arrears, owed, near)

    def go_on(
        self, name: str, free: Sequence[Drafter], sampler: Sampler, near: bool = False
    ) -> GoOn:
        """Whether a model is to draw one more, by the confidence of each token drawn so far.

        Where what was drawn leads into words that came before, copying those can be worth more:
        then the draft ends, and they are its continuation.
        """
        rates = self._known.model(name, near)
        confidences, outlook = rates.confidence, rates.outlook.rate
        step = self._costs.seconds(name, 1, len(self._tokens))
        check, price, longest = self._check, self._price, self._longest
        drafted: list[int] = []
        reach = 1.0

        def go_on(token: int, confidence: float) -> bool:
            nonlocal reach
            drafted.append(token)
            reach *= confidences.rate(confidence)
            size, gain, hope, worth = len(drafted), 0.0, reach, 0.0
            # A check of three more can be cheaper than one of two more: look at them all.
            for more in range(1, min(longest, MAX_DRAWN) - size + 1):
                hope *= outlook
                gain += hope
                time = more * step + check[size + more + 1] - check[size + 1]
                worth = max(worth, gain - price * time)
            for drafter in free:
                text = np.concatenate([self._tokens, np.array(drafted, self._tokens.dtype)])
                guess = drafter.propose(text, longest - size, sampler)
                checked(guess, longest - size, sampler.width, drafter.name, free=True)
                matches = self._known.match(drafter.name)
                gain, hope, best, most = 0.0, reach, 0.0, 0
                for more, matched in enumerate(guess.confidence, start=1):
                    hope *= matches.rate(matched)
                    gain += hope
                    copying = gain - price * (check[size + more + 1] - check[size + 1])
                    if copying > best:
                        best, most = copying, more
                if best > worth + _SWITCH:
                    worth, self.copied = best, guess.as_guess(most)
            return worth > 0 and not self.copied

        return go_on

    def _most(
        self,
        drafter: Drafter,
        gains: Sequence[float],
        drafting: Sequence[float],
        arrears: float = 0.0,
        owed: int = 0,
        near: bool = False,
    ) -> Option:
        """The size that is worth most, by the tokens that each adds and its drafting's seconds."""
        check = self._check
        seconds = [d + check[k + 1] - check[1] for k, d in enumerate(drafting)]
        worths = [gain - self._price * s for gain, s in zip(gains, seconds, strict=True)]
        size = max(range(1, len(worths)), key=worths.__getitem__)
        time = seconds[size] / check[1]
        worth = worths[size] - _MARGIN - _RISK * time
        return Option(drafter, size, gains[size], time, worth, arrears, owed, near)
