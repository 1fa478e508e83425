"""A distribution over token ids, kept as small as its support.

Invariant: `probs` sums to 1 (up to rounding) and belongs to `ids` entry by entry; entries come
likeliest first where `ids` is given, and in order of id, zeros included, where it is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

_BLOCK = 512  # entries summed at a time when drawing from a whole vocabulary
_FEW = 1024  # a support up to this is looked for by rank and kept sorted; above, sorting costs


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
            sums = np.add.reduceat(probs, np.arange(0, len(probs), _BLOCK))
            block, u = _invert(np.cumsum(sums, dtype=np.float64), u)
            start = block * _BLOCK
            probs = probs[start : start + _BLOCK]
        at = start + _invert(np.cumsum(probs, dtype=np.float64), u)[0]
        return at if self.ids is None else int(self.ids[at])

    def nucleus(self, top_p: float) -> Categorical:
        """The fewest tokens whose probabilities reach `top_p`; always at least one."""
        if self.ids is None:
            return self._only(_first_to_reach(top_p, self.probs, self.probs))
        keep = int(np.searchsorted(np.cumsum(self.probs), top_p)) + 1
        return _normalised(self.ids[:keep], self.probs[:keep])

    def at_least(self, min_p: float) -> Categorical:
        """The tokens at least `min_p` times as likely as the likeliest."""
        return self._only(np.flatnonzero(self.probs >= min_p * self.probs.max()))

    def typical(self, mass: float) -> Categorical:
        """The tokens whose surprise is closest to the entropy, up to a sum of `mass`."""
        support = np.flatnonzero(self.probs > 0)
        probs = self.probs[support]
        surprise = -np.log(probs)
        entropy = (probs * surprise).sum()
        return self._only(support[_first_to_reach(mass, probs, -abs(surprise - entropy))])

    def _only(self, keep: Ids) -> Categorical:
        """Entries `keep` (ascending) alone."""
        if len(keep) == len(self.probs):
            return self
        probs = self.probs[keep]
        if self.ids is None and len(keep) > _FEW:  # sorting so many would cost more than it saves
            dense = np.zeros_like(self.probs)
            dense[keep] = probs / probs.sum()
            return Categorical(None, dense)
        order = np.argsort(-probs, kind="stable")
        keep, probs = keep[order], probs[order]
        return _normalised(keep if self.ids is None else self.ids[keep], probs)


def from_logits(logits: Floats, ids: Ids | None, peak: float, temperature: float) -> Categorical:
    """softmax(logits / temperature) over `ids` (ascending; None: all) of the logits (V,).

    `peak` is the largest logit; `temperature` is above 0.
    """
    # Unlikely ids underflow to 0, rightly, as all but the peak do at a tiny temperature.
    with np.errstate(over="ignore", under="ignore"):
        probs = logits - peak if ids is None else logits[ids].astype(np.float64) - peak
        probs /= max(temperature, float(np.finfo(np.float32).tiny))
        np.exp(probs, out=probs)
        probs /= probs.sum()
    if ids is None:
        return Categorical(None, probs)
    if len(ids) > _FEW:
        dense = np.zeros_like(logits)
        dense[ids] = probs
        return Categorical(None, dense)
    order = np.argsort(-probs, kind="stable")
    return Categorical(ids[order], probs[order])


def _normalised(ids: Ids, probs: Floats) -> Categorical:
    probs = probs.astype(np.float64)
    return Categorical(ids, probs / probs.sum())


def _invert(cumulative: Floats, u: float) -> tuple[int, float]:
    """The entry that u in [0, 1] falls in, and where inside it, again in [0, 1]."""
    total = float(cumulative[-1])
    target = min(u * total, float(np.nextafter(total, 0)))  # the last entry may be impossible
    at = int(np.searchsorted(cumulative, target, side="right"))
    below = float(cumulative[at - 1]) if at else 0.0
    return at, (target - below) / (float(cumulative[at]) - below)


def _first_to_reach(mass: float, probs: Floats, scores: Floats) -> Ids:
    """The fewest entries, highest score first, whose probs reach `mass`; in order of position."""
    n = len(probs)
    few = top_ids(scores, min(n, _FEW))
    reached = np.cumsum(probs[few], dtype=np.float64)
    if reached[-1] >= mass or n <= _FEW:
        return np.sort(few[: int(np.searchsorted(reached, mass)) + 1])
    # Bisect for the score to stop at: sorting values alone is much cheaper than sorting positions.
    ranked = np.sort(scores)  # lowest first
    low, high = 0, n - _FEW  # entries from ranked[low] on reach the mass, those from high don't
    while high - low > 1:
        middle = (low + high) // 2
        if _sum_where(scores >= ranked[middle], probs) >= mass:
            low = middle
        else:
            high = middle
    keep = scores > ranked[low]
    ties = np.flatnonzero(scores == ranked[low])
    missing = mass - _sum_where(keep, probs)
    keep[ties[: int(np.searchsorted(np.cumsum(probs[ties]), missing)) + 1]] = True
    return np.flatnonzero(keep)


def _sum_where(keep: npt.NDArray[np.bool_], probs: Floats) -> float:
    return float((probs * keep).sum(dtype=np.float64))


def top_ids(values: Floats, k: int) -> Ids:
    """The positions of the k largest values, largest first, ties by position."""
    at = largest(values, k)
    return at[np.argsort(-values[at], kind="stable")]


def largest(values: Floats, k: int) -> Ids:
    """The positions of the k largest values in order of position; of equal values the first.

    In a long row, the k-th largest of the maxima of disjoint blocks bounds the k-th largest value
    from below, so all but a few values are dropped by one comparison instead of a selection.
    """
    n = len(values)
    if k >= n:
        return np.arange(n)
    at, candidates = None, values
    blocks = n // 64
    if k < blocks:
        # Strided blocks (column j of 64 rows), since maxima down the columns are one SIMD sweep.
        maxima = values[: blocks * 64].reshape(64, blocks).max(axis=0)
        at = np.flatnonzero(values >= np.partition(maxima, blocks - k)[blocks - k])
        candidates = values[at]
    least = np.partition(candidates, len(candidates) - k)[len(candidates) - k]  # the k-th largest
    keep = candidates > least
    ties = np.flatnonzero(candidates == least)
    keep[ties[: k - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep) if at is None else at[keep]
