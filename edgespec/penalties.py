"""How often each token occurred, for the penalties, kept up to date one token at a time.

Invariant: the counts are those of the newest `window` tokens that were pushed (of all, where it is
0); asking with draft tokens ahead counts them as if pushed and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgespec.session import TokenBuffer, TokenIds


class TokenCounts:
    """The tokens so far, and how often each id occurs in the window."""

    def __init__(self, width: int, window: int = 0, *, counting: bool = True) -> None:
        self._tokens = TokenBuffer()
        self._window = window
        self._counts: npt.NDArray[np.int32] = np.zeros(width if counting else 0, dtype=np.int32)
        self._seen = TokenBuffer()  # each id that ever had a count, once
        self._is_seen = np.zeros(len(self._counts), dtype=np.bool_)

    def push(self, tokens: Sequence[int] | TokenIds) -> None:
        """Append tokens."""
        start = len(self._tokens)
        self._tokens.extend(tokens)
        if len(self._counts):
            self._count(start, len(self._tokens), 1)

    def counts(self, ahead: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Ids (n,) that occur in the window with `ahead` appended, and how often (n,)."""
        start = len(self._tokens)
        self._tokens.extend(ahead)
        self._count(start, len(self._tokens), 1)
        ids = self._seen.view.astype(np.int64)
        counts = self._counts[ids]
        self._count(start, len(self._tokens), -1)
        self._tokens.truncate(start)
        occurs = counts > 0
        return ids[occurs], counts[occurs]

    def tokens(self, ahead: Sequence[int]) -> TokenIds:
        """All tokens with `ahead` appended."""
        return np.concatenate([self._tokens.view, np.asarray(ahead, dtype=np.int32)])

    def _count(self, start: int, end: int, sign: int) -> None:
        """Move the end of the window between `start` and `end`: forth with 1, back with -1."""
        ids, window = self._tokens.view, self._window or end
        self._add(ids[max(start, end - window) : end], sign)
        self._add(ids[max(0, start - window) : min(start, max(0, end - window))], -sign)

    def _add(self, ids: TokenIds, number: int) -> None:
        if not len(ids):
            return
        ids = ids[ids < len(self._counts)]
        np.add.at(self._counts, ids, number)
        fresh = np.unique(ids[~self._is_seen[ids]])
        self._is_seen[fresh] = True
        self._seen.extend(fresh)
