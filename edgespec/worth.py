"""What a draft is worth: the tokens it should add, less the price of its time.

That is 1 + sum of reach probabilities - price * seconds, compared with plain decoding's
(Dinkelbach's form of maximising tokens per second, 1967). Invariant: arithmetic on costs and rates;
nothing here learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.costs import Costs
from edgespec.drafters import Drafter
from edgespec.experience import Experience
from edgespec.session import TokenIds
from edgespec.verify import Draft

MAX_DRAWN = 16
"""Tokens a model draws for one draft at most: behind so many hardly any would stand."""

_MARGIN = 0.03  # a draft must promise this many tokens more than plain decoding,
_RISK = 0.15  # and this many more for each plain round of its time, since estimates err
_LONG = 64  # tokens to be read, from which on a drafter is asked whether it can do with less


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

    `price` is what a second would earn otherwise, in tokens; `check` the seconds of a check by its
    tokens.
    """

    def __init__(
        self, costs: Costs, known: Experience, price: float, tokens: TokenIds, longest: int
    ) -> None:
        self.costs, self.known, self.price = costs, known, price
        self.tokens, self.longest = tokens, longest
        self.check = costs.curve("check", len(tokens))

    def taking(self, drafter: Drafter, guess: Draft) -> Option:
        """The first part of a guess in hand that is worth most."""
        rates = self.known.match(drafter.name)
        gains, reach = [0.0], 1.0
        for confidence in guess.confidence:
            reach *= rates.rate(confidence)
            gains.append(gains[-1] + reach)
        return self._most(drafter, gains, [0.0] * len(gains))

    def asking(self, drafter: Drafter) -> list[Option]:
        """The draft yet to be made that is worth most, and where the drafter can do with much less
        reading, the one that is behind that.
        """
        owed = drafter.owes(self.tokens)
        options = [self._asking(drafter, owed)]
        if owed > _LONG:
            least = drafter.owes(self.tokens, near=True)
            if 2 * least < owed:
                options.append(self._asking(drafter, least, near=True))
        return options

    def _asking(self, drafter: Drafter, owed: int, near: bool = False) -> Option:
        """The draft yet to be made that is worth most, were its length fixed beforehand."""
        name, length = drafter.name, len(self.tokens)
        outlook = self.known.model(name, near).outlook.rate
        owed = max(1, owed)
        usual = self.costs.seconds(name, min(2, owed), length)
        step = self.costs.seconds(name, 1, length)
        gains, reach = [0.0], 1.0
        longest = min(self.longest, MAX_DRAWN)
        for _ in range(longest):
            reach *= outlook
            gains.append(gains[-1] + reach)
        drafting = [usual + (k - 1) * step for k in range(longest + 1)]
        arrears = self.price * (self.costs.seconds(name, owed, length) - usual)
        return self._most(drafter, gains, drafting, arrears, owed, near)

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
        check = self.check
        seconds = [d + check[k + 1] - check[1] for k, d in enumerate(drafting)]
        worths = [gain - self.price * s for gain, s in zip(gains, seconds, strict=True)]
        size = max(range(1, len(worths)), key=worths.__getitem__)
        time = seconds[size] / check[1]
        worth = worths[size] - _MARGIN - _RISK * time
        return Option(drafter, size, gains[size], time, worth, arrears, owed, near)
