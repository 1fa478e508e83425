"""A small model that shares the target's tokens drafts for it.

Invariant: the cache survives between rounds; `propose` keeps the part that still agrees with the
committed sequence and feeds what is missing as one batch.
"""

from __future__ import annotations

from edgespec.categorical import Categorical
from edgespec.confidence import top2_gap
from edgespec.drafters import GoOn
from edgespec.sampling import Sampler
from edgespec.session import CachedSession, Model, TokenIds
from edgespec.verify import NO_DRAFT, Draft


class ModelDrafter:
    """Drafts with a model of its own, under the same sampling steps as the target."""

    name = "model"
    free = False

    def __init__(self, model: Model) -> None:
        self.model = model
        self._cache = CachedSession(model.session)

    def propose(
        self, tokens: TokenIds, max_tokens: int, sampler: Sampler, go_on: GoOn | None = None
    ) -> Draft:
        """See `Drafter.propose`; the draft ends early where the drafter's context is full."""
        # The last draft token is never fed, hence the one more that fits.
        max_tokens = min(max_tokens, self._cache.session.context_size - len(tokens) + 1)
        if max_tokens <= 0:
            return NO_DRAFT
        self._cache.align(tokens)
        pending: TokenIds | list[int] = tokens[self._cache.length :]
        drafted: list[int] = []
        probs: list[Categorical] = []
        confidence: list[float] = []
        while True:
            row = self._cache.forward(pending)[0]  # (V,)
            token, dist = sampler.pick(
                row, drafted, len(tokens) + len(drafted), model=self._cache.name
            )
            drafted.append(token)
            if dist is not None:
                probs.append(dist)
            confidence.append(top2_gap(row[: sampler.width]))
            if len(drafted) == max_tokens or (go_on and not go_on(confidence[-1])):
                break
            pending = [token]
        return Draft(tuple(drafted), tuple(probs) if probs else None, self.name, tuple(confidence))

    def owes(self, tokens: TokenIds) -> int:
        """See `Drafter.owes`; after another text that is nearly all of this one."""
        return len(tokens) - self._cache.shared(tokens)

    def close(self) -> None:
        self.model.close()
