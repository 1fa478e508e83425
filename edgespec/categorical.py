"""A distribution over token ids, kept as small as its support.

Invariant: `probs` sums to 1 (up to rounding) and belongs to `ids` entry by entry; entries come
likeliest first where `ids` is given, and in order of id where it is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

_BLOCK = 512  # entries summed at a time when drawing from a whole vocabulary


@dataclass(frozen=True)
class Categorical:
    """Probabilities (n,) of the token ids (n,); `ids` None means the ids 0 to n-1."""

    ids: Ids | None
    probs: Floats

    @staticmethod
    def point(token: int) -> Categorical:
        """All the mass on one token."""
        return Categorical(np.array([token]), np.ones(1))

    def prob(self, token: int) -> float:
        """The probability of one token; 0 outside the support."""
        if self.ids is None:
            return float(self.probs[token]) if token < len(self.probs) else 0.0
        at = np.flatnonzero(self.ids == token)
        return float(self.probs[at[0]]) if len(at) else 0.0

    def probs_at(self, ids: Ids | None, size: int) -> Floats:
        """The probabilities of `ids` (size,), or of 0 to size-1 where `ids` is None."""
        if ids is None:
            dense = np.zeros(size, dtype=self.probs.dtype)
            if self.ids is None:
                n = min(size, len(self.probs))
                dense[:n] = self.probs[:n]
            else:
                fits = self.ids < size
                dense[self.ids[fits]] = self.probs[fits]
            return dense
        if self.ids is None:
            found = ids < len(self.probs)
            return np.where(found, self.probs[np.where(found, ids, 0)], 0)
        order = np.argsort(self.ids)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(order) - 1)
        at = order[at]
        return np.where(self.ids[at] == ids, self.probs[at], 0)

    def draw(self, rng: np.random.Generator) -> int:
        """One token, by inverting the cumulative sum; a whole vocabulary in two levels."""
        probs, start = self.probs, 0
        u = rng.random()
        if len(probs) > 2 * _BLOCK:
            sums = np.add.reduceat(probs, np.arange(0, len(probs), _BLOCK), dtype=np.float64)
            block, u = _invert(np.cumsum(sums), u)
            start = block * _BLOCK
            probs = probs[start : start + _BLOCK]
        at = start + _invert(np.cumsum(probs, dtype=np.float64), u)[0]
        return at if self.ids is None else int(self.ids[at])

    def nucleus(self, top_p: float) -> Categorical:
        """The fewest tokens whose probabilities reach `top_p`; always at least one."""
        n = 64
        while True:
            ids, probs = self._likeliest(n)
            reached = np.cumsum(probs, dtype=np.float64)
            if reached[-1] >= top_p or n >= len(self.probs):
                break
            n *= 8
        keep = int(np.searchsorted(reached, top_p)) + 1
        return _normalised(ids[:keep], probs[:keep])

    def at_least(self, min_p: float) -> Categorical:
        """The tokens at least `min_p` times as likely as the likeliest."""
        keep = np.flatnonzero(self.probs >= min_p * self.probs.max())
        return self._only(keep)

    def typical(self, mass: float) -> Categorical:
        """The tokens whose surprise is closest to the entropy, up to a sum of `mass`."""
        support = np.flatnonzero(self.probs > 0)
        probs = self.probs[support].astype(np.float64)
        surprise = -np.log(probs)
        order = np.argsort(np.abs(surprise - probs @ surprise), kind="stable")
        keep = int(np.searchsorted(np.cumsum(probs[order]), mass)) + 1
        return self._only(support[order[:keep]])

    def _likeliest(self, n: int) -> tuple[Ids, Floats]:
        """The n likeliest, likeliest first."""
        if self.ids is not None:
            return self.ids[:n], self.probs[:n]
        ids = top_ids(self.probs, n)
        return ids, self.probs[ids]

    def _only(self, keep: Ids) -> Categorical:
        """Entries `keep` alone."""
        probs = self.probs[keep]
        order = np.argsort(-probs, kind="stable")
        keep, probs = keep[order], probs[order]
        return _normalised(keep if self.ids is None else self.ids[keep], probs)


def _normalised(ids: Ids, probs: Floats) -> Categorical:
    probs = probs.astype(np.float64)
    return Categorical(ids, probs / probs.sum())


def _invert(cumulative: Floats, u: float) -> tuple[int, float]:
    """The entry that u in [0, 1) falls in, and where inside it, again in [0, 1)."""
    target = u * float(cumulative[-1])
    at = int(np.searchsorted(cumulative, target, side="right"))
    below = float(cumulative[at - 1]) if at else 0.0
    return at, (target - below) / (float(cumulative[at]) - below)


def top_ids(values: Floats, k: int) -> Ids:
    """The positions of the k largest values, largest first, ties by position.

    In a long row, the k-th largest of the maxima of disjoint blocks bounds the k-th largest value
    from below, so all but a few values are dropped by one comparison instead of a sort.
    """
    n = len(values)
    blocks = n // 64
    if k < blocks:
        # Strided blocks (column j of 64 rows), since maxima down the columns are one SIMD sweep.
        maxima = values[: blocks * 64].reshape(64, blocks).max(axis=0)
        bound = np.partition(maxima, blocks - k)[blocks - k]
        candidates = np.flatnonzero(values >= bound)
    else:
        candidates = np.arange(n)
    order = np.argsort(-values[candidates], kind="stable")[:k]
    return candidates[order]
