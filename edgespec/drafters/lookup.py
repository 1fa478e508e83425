"""The text so far drafts for itself: what followed the last time these words came up.

Prompt lookup decoding (Saxena 2023), with an index instead of a scan. Invariant: the index holds,
for every n-gram of `min_ngram` to `max_ngram` tokens that ended before the newest token, where it
ended last. Keeping it costs the same for each token, however long the text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgespec.drafters import GoOn
from edgespec.errors import ConfigError
from edgespec.sampling import Sampler
from edgespec.session import TokenBuffer, TokenIds, common_prefix
from edgespec.verify import NO_DRAFT, Draft

LONGEST_MATCH = 40
"""How far back a match is followed, in tokens: what matched longer is no surer."""


class LookupDrafter:
    """Copies what followed the longest, and of those the most recent, match of the newest n-gram.

    Its guesses are certain, so they are checked as a point mass.
    """

    name = "lookup"
    free = True

    def __init__(self, min_ngram: int = 2, max_ngram: int = 8) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ConfigError(f"n-grams of {min_ngram} to {max_ngram} tokens make no sense")
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ids = TokenBuffer()
        # Hash of an n-gram -> where it ended last, exclusive; negative where another token followed
        # there than the time before.
        self._last: dict[int, int] = {}
        self._replaced: list[list[int | None]] = []  # by token: what its indexing overwrote

    def begin(self, length: int) -> None:
        """Nothing: prompts and answers are one text."""

    def propose(
        self,
        tokens: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        """See `Drafter.propose`; the confidence is the length of the match, counting guesses.

        A first token that didn't follow the time before is a guess of confidence 1 at most.
        """
        self._sync(tokens)
        start, matched, agreed = self._match()
        if not matched or max_tokens <= 0:
            return NO_DRAFT
        # A match that runs into the end of the text repeats: continue it with its own copy.
        followed = tokens[start : start + max_tokens].tolist()
        period = len(tokens) - start
        while len(followed) < max_tokens:
            followed.append(followed[len(followed) - period])
        confidence = [float(matched + i) for i in range(max_tokens)]
        if not agreed:
            confidence[0] = 1.0
        return Draft(tuple(followed), None, self.name, tuple(confidence))

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        """Nothing: what it missed costs some ten microseconds a token to index."""
        return 0

    def close(self) -> None:
        pass

    def _match(self) -> tuple[int, int, bool]:
        """Where the best earlier occurrence of the newest tokens ended, its length (0: there is
        none), and whether the one before it, if any, went on with the same token.
        """
        for gram, size in self._grams():
            end = self._last.get(gram)
            if end is not None:
                return abs(end), self._agreeing(abs(end), size), end > 0
        return 0, 0, False

    def _agreeing(self, end: int, size: int) -> int:
        """How many tokens before `end` are the newest ones, of which `size` are known to be."""
        if size < self._sizes.start:
            return size  # one more would have been found
        ids = self._ids.view
        longest = min(end, LONGEST_MATCH)
        differ = np.flatnonzero(ids[end - longest : end] != ids[len(ids) - longest :])
        return longest - 1 - int(differ[-1]) if len(differ) else longest

    def _sync(self, tokens: TokenIds) -> None:
        """Make the index that of `tokens`, which mostly means to add the newest few."""
        try:
            for _ in range(len(self._ids) - common_prefix(self._ids.view, tokens)):
                self._forget()
            for token in tokens[len(self._ids) :]:
                if len(self._ids):
                    self._index(int(token))
                self._ids.append(int(token))
        except BaseException:  # Ctrl+C in the middle of a token: begin anew
            self._ids.truncate(0)
            self._last.clear()
            self._replaced.clear()
            raise

    def _index(self, follower: int) -> None:
        """Index the n-grams that end in the newest token, now that `follower` comes behind it."""
        ids, end = self._ids.view, len(self._ids)
        replaced = []
        for gram, _ in self._grams():
            before = self._last.get(gram)
            replaced.append(before)
            agrees = before is None or ids[abs(before)] == follower
            self._last[gram] = end if agrees else -end
        self._replaced.append(replaced)

    def _forget(self) -> None:
        """Take the newest token back, and the n-grams that were indexed when it came."""
        self._ids.truncate(len(self._ids) - 1)
        if not len(self._ids):
            return
        for (gram, _), before in zip(self._grams(), self._replaced.pop(), strict=True):
            if before is None:
                del self._last[gram]
            else:
                self._last[gram] = before

    def _grams(self) -> Iterator[tuple[int, int]]:
        """The n-grams that end in the newest token, longest first: a 64-bit hash, and n.

        Two that share a hash would cost a bad guess, which the target rejects like any other.
        """
        ids = self._ids.view
        return ((hash(ids[-size:].tobytes()), size) for size in self._sizes if size <= len(ids))
