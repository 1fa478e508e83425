"""The text so far drafts for itself: what followed the last time these words came up.

Prompt lookup decoding (Saxena 2023), with an index instead of a scan. Invariant: the index holds,
for every n-gram of `min_ngram` to `max_ngram` tokens that ended before the newest token, where it
ended last. A token that comes or goes costs the same however long the text; one that was there when
the text was indexed in one go can only go with all of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.drafters import GoOn
from edgespec.errors import ConfigError
from edgespec.sampling import Sampler
from edgespec.session import TokenBuffer, TokenIds, common_prefix
from edgespec.verify import NO_DRAFT, Draft

LONGEST_MATCH = 40
"""How far back a match is followed, in tokens: what matched longer is no surer."""

_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; its powers weigh the tokens of an n-gram
_MASK = 2**64 - 1


class LookupDrafter:
    """Copies what followed the longest, and of those the most recent, match of the newest n-gram.

    Its guesses are certain, so they are checked as a point mass.
    """

    name = "lookup"
    free = True
    failed = ""

    def __init__(self, min_ngram: int = 2, max_ngram: int = 8) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ConfigError(f"n-grams of {min_ngram} to {max_ngram} tokens make no sense")
        self._min, self._max = min_ngram, max_ngram
        self._weights = [pow(_ODD, i, 2**64) for i in range(1, max_ngram + 1)]
        self._ids = TokenBuffer()
        # Key of an n-gram -> where it ended last, exclusive; negative where another token followed
        # there than the time before.
        self._last: dict[int, int] = {}
        # By token that came since the text was indexed: what the index held in the place of what
        # it holds now.
        self._replaced: list[list[int | None]] = []

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
        end = next((i for i, token in enumerate(followed, 1) if token in sampler.ends), max_tokens)
        del followed[end:]
        confidence = [float(matched + i) for i in range(end)]
        if not agreed:
            confidence[0] = 1.0
        return Draft(tuple(followed), None, self.name, tuple(confidence))

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        """Nothing: what it missed costs some microseconds a token to index."""
        return 0

    def close(self) -> None:
        pass

    def _match(self) -> tuple[int, int, bool]:
        """Where the best earlier occurrence of the newest tokens ended, its length (0: there is
        none), and whether the one before it, if any, went on with the same token.
        """
        last, matched = 0, 0
        for size, key in enumerate(self._keys(), self._min):
            end = self._last.get(key)
            if end is None:  # then no longer one has come up either
                break
            last, matched = end, size
        return abs(last), self._agreeing(abs(last), matched), last > 0

    def _agreeing(self, end: int, size: int) -> int:
        """How many tokens before `end` are the newest ones, of which `size` are known to be."""
        if size < self._max:
            return size  # one more would have been found
        ids = self._ids.view
        longest = min(end, LONGEST_MATCH)
        differ = np.flatnonzero(ids[end - longest : end] != ids[len(ids) - longest :])
        return longest - 1 - int(differ[-1]) if len(differ) else longest

    def _sync(self, tokens: TokenIds) -> None:
        """Make the index that of `tokens`, which mostly means to add the newest few.

        Where more are new than old it is built anew, which takes a sixth of the time for each.
        """
        try:
            gone = len(self._ids) - common_prefix(self._ids.view, tokens)
            kept = len(self._ids) - gone
            if gone > len(self._replaced) or len(tokens) - kept > kept:
                self._build(tokens)
                return
            for _ in range(gone):
                self._forget()
            for token in tokens[len(self._ids) :].tolist():
                self._index(token)
                self._ids.append(token)
        except BaseException:  # Ctrl+C in the middle of a token: begin anew
            self._ids.truncate(0)
            raise

    def _index(self, follower: int) -> None:
        """Index the n-grams that end in the newest token, now that `follower` comes behind it."""
        ids, end = self._ids.view, len(self._ids)
        replaced = []
        for key in self._keys():
            before = self._last.get(key)
            replaced.append(before)
            agrees = before is None or ids[abs(before)] == follower
            self._last[key] = end if agrees else -end
        self._replaced.append(replaced)

    def _forget(self) -> None:
        """Take the newest token back, and the n-grams that were indexed when it came."""
        self._ids.truncate(len(self._ids) - 1)
        for key, before in zip(self._keys(), self._replaced.pop(), strict=True):
            if before is None:
                del self._last[key]
            else:
                self._last[key] = before

    def _keys(self) -> list[int]:
        """The keys of the n-grams that end in the newest token, shortest first.

        A key is the sum of the n-gram's tokens (plus one), each times the power of an odd number
        that its distance from the end tells, modulo 2^64. Two n-grams with one key would cost a bad
        guess, which the target rejects like any other.
        """
        key, keys = 0, []
        newest = self._ids.view[: -self._max - 1 : -1].tolist()
        for token, weight in zip(newest, self._weights, strict=False):
            key = (key + (token + 1) * weight) & _MASK
            keys.append(key)
        return keys[self._min - 1 :]

    def _build(self, tokens: TokenIds) -> None:
        """Index a whole text (n,), as `_index` would have done token by token."""
        self._ids.truncate(0)
        self._last.clear()
        self._replaced.clear()
        n = len(tokens)
        plus_one = tokens.astype(np.uint64) + 1
        keys: npt.NDArray[np.uint64] = np.zeros(n, np.uint64)  # of the n-grams that end before each
        for size, weight in enumerate(self._weights[: n - 1], 1):
            keys = keys[1:] + plus_one[: n - size] * np.uint64(weight)  # (n - size,)
            if size < self._min:
                continue
            ends = np.arange(size, n)
            order = np.argsort(keys, kind="stable")  # n-grams of one kind, oldest first
            earlier, later = order[:-1], order[1:]
            follows = keys[earlier] == keys[later]
            differs = tokens[ends[earlier]] != tokens[ends[later]]
            ends[later[follows & differs]] *= -1
            self._last.update(zip(keys.tolist(), ends.tolist(), strict=True))
        self._ids.extend(tokens)
