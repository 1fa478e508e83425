"""While a model drafts: whether it draws one more token, or copying goes on behind what it drew.

Invariant: what was drawn stays; only what comes behind it is decided, by its confidence and the
text, never by dropping a token for what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from edgespec.drafters import Drafter
from edgespec.sampling import Sampler
from edgespec.verify import NO_DRAFT, Draft, vet
from edgespec.worth import MAX_DRAWN, Choices

_SWITCH = 0.1  # tokens that copying must be worth more than drawing on


class Drawing:
    """Asked behind each token that a model draws (see `GoOn`).

    Where what was drawn leads into words that came before, copying those can be worth more than
    another step: then the draft ends, and `copied` is what a free drafter adds to it.
    """

    def __init__(
        self,
        choices: Choices,
        drafter: Drafter,
        free: Sequence[Drafter],
        sampler: Sampler,
        *,
        near: bool = False,
    ) -> None:
        self.copied: Draft = NO_DRAFT
        self._choices, self._free, self._sampler = choices, free, sampler
        self._rates = choices.known.model(drafter.name, near)
        self._outlook = self._rates.outlook.rate
        self._step = choices.costs.seconds(drafter.name, 1, len(choices.tokens))
        self._drawn: list[int] = []
        self._reach = 1.0  # how likely the check reaches behind what was drawn

    def __call__(self, token: int, confidence: float) -> bool:
        """Whether to draw one more behind `token`."""
        self._drawn.append(token)
        self._reach *= self._rates.confidence.rate(confidence)
        most = min(self._choices.longest, MAX_DRAWN) - len(self._drawn)
        worth, _ = self._best(repeat(self._outlook, most), self._step)
        for drafter in self._free:
            copying, guess = self._best_copy(drafter)
            if copying > worth + _SWITCH:
                worth, self.copied = copying, guess
        return worth > 0 and not self.copied

    def _best_copy(self, drafter: Drafter) -> tuple[float, Draft]:
        """What a free drafter's guess behind what was drawn is worth, and its part that is worth
        most.
        """
        choices, size = self._choices, len(self._drawn)
        text = np.concatenate([choices.tokens, np.array(self._drawn, choices.tokens.dtype)])
        most = choices.longest - size
        guess = drafter.propose(text, most, self._sampler)
        vet(guess, most, self._sampler.width, drafter.name, free=True)
        rates = choices.known.match(drafter.name)
        worth, more = self._best(map(rates.rate, guess.confidence), 0.0)
        return worth, guess.as_guess(more)

    def _best(self, rates: Iterable[float], step: float) -> tuple[float, int]:
        """Of so many tokens more, each with the rate at which it stands and a step's seconds, the
        number that is worth most; (0, 0) where none is worth its time.
        """
        check, price, size = self._choices.check, self._choices.price, len(self._drawn)
        reach, gain, best, most = self._reach, 0.0, 0.0, 0
        # A check of three more can be cheaper than one of two more: look at them all.
        for more, rate in enumerate(rates, start=1):
            reach *= rate
            gain += reach
            worth = gain - price * (more * step + check[size + more + 1] - check[size + 1])
            if worth > best:
                best, most = worth, more
        return best, most
