"""A small model that shares the target's tokens drafts for it.

It need not read all that the target reads: a guess made from less is still only a guess
(`reading.py`).
Invariant: the cache survives between rounds, and `Places` says where in the text each token in it
stands; `propose` keeps what still agrees and feeds what is missing as one batch.
"""

from __future__ import annotations

import numpy as np

from edgespec.categorical import Categorical
from edgespec.confidence import top2_gap
from edgespec.drafters import GoOn
from edgespec.drafters.reading import READS, Places, Reading
from edgespec.errors import ContextFull, ModelError, NothingLeft
from edgespec.sampling import Sampler
from edgespec.session import CachedSession, Model, TokenIds
from edgespec.verify import NO_DRAFT, Draft


class ModelDrafter:
    """Drafts with a model of its own, under the same sampling steps as the target."""

    name = "model"
    free = False

    def __init__(self, model: Model, reads: int = READS) -> None:
        self.model = model
        self.failed = ""
        self._cache = CachedSession(model.session)
        self._places = Places(model.session.context_size, model.session.vocab_size, reads)
        self._asked: TokenIds | None = None  # the text of which `_found` is
        self._found: dict[bool, Reading] = {}  # by `near`

    def begin(self, length: int) -> None:
        """See `Drafter.begin`."""
        self.failed = ""
        self._places.begin(length)
        self._asked = None

    def propose(
        self,
        tokens: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        """See `Drafter.propose`."""
        if self.failed:
            return NO_DRAFT
        reading = self._reading(tokens, near)
        if not reading.reaches(len(tokens)):
            return NO_DRAFT  # it doesn't know the newest token
        # The last draft token is never fed, hence the one more that fits.
        room = self._cache.session.context_size - reading.kept - len(reading.missing) + 1
        max_tokens = min(max_tokens, room)
        if max_tokens <= 0:
            return NO_DRAFT
        self._places.leave(reading, self._reading(tokens, False) if near else reading)
        self._asked = None  # what follows changes the cache
        try:
            self._cache.rollback(reading.kept)
        except (ModelError, ContextFull) as error:
            self.failed = str(error)
            return NO_DRAFT
        self._places.cut(self._cache.length)
        return self._draw(tokens, reading.missing, max_tokens, sampler, go_on)

    def _draw(
        self,
        tokens: TokenIds,
        missing: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: GoOn | None,
    ) -> Draft:
        """Read the text's tokens at `missing`, then draw a token a pass."""
        sampler = sampler.named(self._cache.name)
        pending: TokenIds | list[int] = tokens[missing]
        drafted: list[int] = []
        probs: list[Categorical] = []
        confidence: list[float] = []
        while True:
            self._places.add(missing)
            try:
                row = self._cache.forward(pending)[0]  # (V,)
                token, dist = sampler.pick(row, drafted, len(tokens) + len(drafted))
            except NothingLeft:  # of its tokens; the target may have others
                break
            except (ModelError, ContextFull) as error:  # what was drawn before is as good as ever
                self.failed = str(error)
                break
            drafted.append(token)
            if dist is not None:
                probs.append(dist)
            confidence.append(top2_gap(row[: sampler.width]))
            if len(drafted) == max_tokens or token in sampler.ends:
                break
            if token >= self._cache.session.vocab_size:
                break  # it can't read it
            if go_on and not go_on(token, confidence[-1]):
                break
            pending = [token]
            missing = np.array([len(tokens) + len(drafted) - 1], np.int32)
        if not drafted:
            return NO_DRAFT
        return Draft(tuple(drafted), tuple(probs) if probs else None, self.name, tuple(confidence))

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        """See `Drafter.owes`; after another text that is nearly all that it reads of this one."""
        return len(self._reading(tokens, near).missing)

    def _reading(self, tokens: TokenIds, near: bool) -> Reading:
        """Found once for `owes` and the `propose` behind it, which are given the same array."""
        if self._asked is not tokens:
            self._asked = tokens
            self._found.clear()
        if near not in self._found:
            self._found[near] = self._places.plan(tokens, near, self._cache.shared)
        return self._found[near]

    def close(self) -> None:
        self.model.close()
