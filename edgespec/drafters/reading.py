"""What a model that drafts reads of a text: which places of it are to be in its cache.

Of an answer that went on without it (others drafted, or nobody) it reads the newest few tokens and
leaves the rest out. Where it is far behind, or its context is full, it goes on from the text's
first few tokens, which attention leans on, and the newest (StreamingLLM, Xiao et al. 2023, arXiv
2309.17453).

Invariant: arithmetic on positions, without a model; `Places` says where in the text each token of
the cache stands, in rising order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgespec.session import TokenBuffer, TokenIds

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


@dataclass(frozen=True)
class Reading:
    """A cache's first `kept` tokens stay, and the text's at `missing` (n,) are read behind them."""

    kept: int
    missing: TokenIds

    def reaches(self, length: int) -> bool:
        """Whether the text's newest token is read."""
        return len(self.missing) > 0 and int(self.missing[-1]) == length - 1


class Places:
    """Where the tokens of a cache stand in a text, and what is to be read of it next.

    A cache holds `context_size` tokens, of ids below `vocab_size`; at most `reads` of the newest,
    and the first few, are read at once.
    """

    def __init__(self, context_size: int, vocab_size: int, reads: int = READS) -> None:
        self._at = TokenBuffer()
        self._context_size, self._vocab_size = context_size, vocab_size
        self._reads = min(reads, context_size // 2)
        self._newest = min(NEWEST, max(1, self._reads // 4))
        self._prompt = sys.maxsize  # where the answer begins
        self._hole: int | None = None  # where what it left out begins, to be near alone

    def begin(self, prompt: int) -> None:
        """An answer begins behind so many tokens."""
        self._prompt = prompt

    def cut(self, kept: int) -> None:
        """Only the cache's first tokens are there still."""
        self._at.truncate(kept)

    def add(self, places: TokenIds) -> None:
        """The text's tokens from there were read."""
        self._at.extend(places)

    def leave(self, reading: Reading, whole: Reading) -> None:
        """Remember from where on `reading` leaves out what `whole` has, to be read some day."""
        self._hole = None
        if reading is not whole and len(spared := np.setdiff1d(whole.missing, reading.missing)):
            self._hole = int(spared[0])

    def plan(self, tokens: TokenIds, near: bool, shared: Callable[[TokenIds], int]) -> Reading:
        """What to read to go on behind `tokens` (n,); `shared` says how many of such ids the cache
        begins with.
        """
        reads = min(NEAR, self._reads) if near else self._reads  # so much of a prompt it is to know
        newest = len(tokens) - 1  # is always read, so that there is a row
        at = self._at.view[: np.searchsorted(self._at.view, newest)]
        kept = shared(tokens[np.append(at, newest)])
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
        return Reading(kept, missing[tokens[missing] < self._vocab_size])

    def _serves(self, at: TokenIds, length: int, reads: int) -> bool:
        """Whether a cache with the tokens from `at` leaves room, and has most of the prompt."""
        prompt = min(self._prompt, length)
        begin, end = np.searchsorted(at, (prompt - reads, prompt))
        has_prompt = 2 * (end - begin) >= min(prompt, reads)
        return bool(has_prompt) and len(at) <= self._context_size - self._reads // 2

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
