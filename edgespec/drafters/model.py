"""A small model that shares the target's tokens drafts for it.

It need not read all that the target reads. Where it is far behind, or its context is full, it goes
on from the first few tokens, which attention leans on, and the newest (StreamingLLM, Xiao et al.
2023, arXiv 2309.17453): a guess made from less is still only a guess. Invariant: the cache survives
between rounds; `propose` keeps the part that still agrees and feeds what is missing as one batch,
which is never longer than `reads` and those first few.
"""

from __future__ import annotations

import numpy as np

from edgespec.categorical import Categorical
from edgespec.confidence import top2_gap
from edgespec.drafters import GoOn
from edgespec.sampling import Sampler
from edgespec.session import CachedSession, Model, TokenIds
from edgespec.verify import NO_DRAFT, Draft

FIRST = 4
"""Tokens of the text's start that are always read."""

READS = 1024
"""The longest batch of newest tokens read to catch up: more costs more than it helps."""


class ModelDrafter:
    """Drafts with a model of its own, under the same sampling steps as the target."""

    name = "model"
    free = False

    def __init__(self, model: Model, reads: int = READS) -> None:
        self.model = model
        self._cache = CachedSession(model.session)
        self._reads = min(reads, model.session.context_size // 2)
        self._skipped = 0  # tokens behind the first few that it doesn't read

    def propose(
        self, tokens: TokenIds, max_tokens: int, sampler: Sampler, go_on: GoOn | None = None
    ) -> Draft:
        """See `Drafter.propose`."""
        self._skipped = self._skip(tokens)
        text = self._read(tokens, self._skipped)
        # The last draft token is never fed, hence the one more that fits.
        max_tokens = min(max_tokens, self._cache.session.context_size - len(text) + 1)
        if max_tokens <= 0:
            return NO_DRAFT
        self._cache.align(text)
        pending: TokenIds | list[int] = text[self._cache.length :]
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
            if len(drafted) == max_tokens or (go_on and not go_on(token, confidence[-1])):
                break
            pending = [token]
        return Draft(tuple(drafted), tuple(probs) if probs else None, self.name, tuple(confidence))

    def owes(self, tokens: TokenIds) -> int:
        """See `Drafter.owes`; after another text that is nearly all that it reads of this one."""
        text = self._read(tokens, self._skip(tokens))
        return len(text) - self._cache.shared(text)

    def _skip(self, tokens: TokenIds) -> int:
        """How many tokens to leave out: as before, unless too much or too little were to read."""
        text = self._read(tokens, self._skipped)
        owed = len(text) - self._cache.shared(text)
        fits = len(text) <= self._cache.session.context_size - self._reads // 2
        enough = len(text) >= min(len(tokens), self._reads)
        if owed <= self._reads + FIRST and fits and enough:
            return self._skipped
        return max(0, len(tokens) - FIRST - self._reads)

    def _read(self, tokens: TokenIds, skipped: int) -> TokenIds:
        """The text as it reads it."""
        if not skipped:
            return tokens
        return np.concatenate([tokens[:FIRST], tokens[FIRST + skipped :]])

    def close(self) -> None:
        self.model.close()
