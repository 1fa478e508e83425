"""A small model that shares the target's tokens drafts for it.

It need not read all that the target reads: a guess made from less is still only a guess. Of an
answer that went on without it (others drafted, or nobody) it reads the newest few tokens and leaves
the rest out. Where it is far behind, or its context is full, it goes on from the text's first few
tokens, which attention leans on, and the newest (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453).
Invariant: the cache survives between rounds, and `_at` says where in the text each token in it
stands; `propose` keeps what still agrees and feeds what is missing as one batch, which is never
longer than `reads` and those first few.
"""

from __future__ import annotations

import sys

import numpy as np

from edgespec.categorical import Categorical
from edgespec.confidence import top2_gap
from edgespec.drafters import GoOn
from edgespec.errors import ModelError, NothingLeft
from edgespec.sampling import Sampler
from edgespec.session import CachedSession, Model, TokenBuffer, TokenIds
from edgespec.verify import NO_DRAFT, Draft

FIRST = 4
"""Tokens of the text's start that are always read."""

READS = 1024
"""The longest batch of newest tokens read to catch up: more costs more than it helps."""

NEAR = 128
"""Tokens of a long prompt's end that are read where its nearest part is to be enough."""

NEWEST = 32
"""Tokens of an answer that are read behind some that were left out. With these it guesses about as
well as with all of them, wherever it knows the prompt (docs/planner.md).
"""


def left_out(missed: int, newest: int = NEWEST) -> int:
    """Of an answer's tokens that a drafter missed, how many it leaves out: none of a few."""
    return missed - newest if missed > 1.5 * newest else 0


class ModelDrafter:
    """Drafts with a model of its own, under the same sampling steps as the target."""

    name = "model"
    free = False

    def __init__(self, model: Model, reads: int = READS) -> None:
        self.model = model
        self.failed = ""
        self._cache = CachedSession(model.session)
        self._at = TokenBuffer()
        self._reads = min(reads, model.session.context_size // 2)
        self._newest = min(NEWEST, max(1, self._reads // 4))
        self._prompt = sys.maxsize  # where the answer begins
        self._asked: TokenIds | None = None  # the text of which `_found` is
        self._found: dict[bool, tuple[int, TokenIds]] = {}  # by `near`: see `_to_read`
        self._hole: int | None = None  # where what it left out begins, to be near alone

    def begin(self, length: int) -> None:
        """See `Drafter.begin`."""
        self.failed = ""
        self._prompt = length
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
        kept, missing = self._to_read(tokens, near)
        if not len(missing) or missing[-1] != len(tokens) - 1:
            return NO_DRAFT  # it doesn't know the newest token
        spared = np.setdiff1d(self._to_read(tokens, False)[1], missing) if near else missing[:0]
        self._asked = None  # what follows changes the cache
        # The last draft token is never fed, hence the one more that fits.
        room = self._cache.session.context_size - kept - len(missing) + 1
        max_tokens = min(max_tokens, room)
        if max_tokens <= 0:
            return NO_DRAFT
        self._hole = int(spared[0]) if len(spared) else None
        try:
            self._cache.rollback(kept)
        except ModelError as error:
            self.failed = str(error)
            return NO_DRAFT
        self._at.truncate(self._cache.length)
        sampler = sampler.named(self._cache.name)
        pending: TokenIds | list[int] = tokens[missing]
        drafted: list[int] = []
        probs: list[Categorical] = []
        confidence: list[float] = []
        while True:
            self._at.extend(missing)
            try:
                row = self._cache.forward(pending)[0]  # (V,)
                token, dist = sampler.pick(row, drafted, len(tokens) + len(drafted))
            except NothingLeft:  # of its tokens; the target may have others
                break
            except ModelError as error:  # what was drawn before is as good as ever
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
        return len(self._to_read(tokens, near)[1])

    def _to_read(self, tokens: TokenIds, near: bool) -> tuple[int, TokenIds]:
        """How much of the cache stays, and where the tokens stand that are to be read behind it.

        Found once for `owes` and the `propose` behind it, which are given the same array.
        """
        if self._asked is not tokens:
            self._asked = tokens
            self._found.clear()
        if near not in self._found:
            self._found[near] = self._find(tokens, near)
        return self._found[near]

    def _find(self, tokens: TokenIds, near: bool) -> tuple[int, TokenIds]:
        reads = min(NEAR, self._reads) if near else self._reads  # so much of a prompt it is to know
        newest = len(tokens) - 1  # is always read, so that there is a row
        at = self._at.view[: np.searchsorted(self._at.view, newest)]
        kept = self._cache.shared(tokens[np.append(at, newest)])
        at = at[:kept]
        if self._hole is not None and not near:
            behind = int(np.searchsorted(at, self._hole))
            if behind < kept and at[behind] > min(self._prompt, len(tokens)) - reads:
                kept, at = behind, at[:behind]
        missing = self._unread(int(at[-1]) + 1 if kept else 0, len(tokens), reads)
        if not self._serves(np.concatenate([at, missing]), len(tokens), reads):
            kept = min(kept, FIRST)
            missing = self._unread(kept, len(tokens), reads)
        # Tokens that only the target has are left out like others that it didn't read.
        return kept, missing[tokens[missing] < self._cache.session.vocab_size]

    def _serves(self, at: TokenIds, length: int, reads: int) -> bool:
        """Whether a cache with the tokens from `at` leaves room, and has most of the prompt."""
        prompt = min(self._prompt, length)
        begin, end = np.searchsorted(at, (prompt - reads, prompt))
        has_prompt = 2 * (end - begin) >= min(prompt, reads)
        return has_prompt and len(at) <= self._cache.session.context_size - self._reads // 2

    def _unread(self, begin: int, length: int, reads: int) -> TokenIds:
        """Where those of a text's tokens stand that are to be read, when it is read up to `begin`.

        At most `FIRST + reads` of them, the newest included.
        """
        first = np.arange(begin, min(FIRST, length), dtype=np.int32)
        begin = max(begin, FIRST)
        prompt = min(self._prompt, length)
        answer = max(begin, prompt)
        answer += left_out(length - answer, self._newest)
        begin = max(begin, prompt - reads + max(0, length - answer))
        return np.concatenate(
            [
                first,
                np.arange(begin, prompt, dtype=np.int32),
                np.arange(answer, length, dtype=np.int32),
            ]
        )

    def close(self) -> None:
        self.model.close()
