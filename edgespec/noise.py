"""Noise that depends on a seed and a position alone, for the rule `reproducible`.

Invariant: the token chosen at a position is a function of (seed, position, distribution). Two
distributions that are close choose the same token most of the time, which is what makes a drafter
that uses the same noise agree with its target (the Gumbel-max trick, Maddison et al. 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.categorical import Categorical

_HEAVY = 1e-3  # ids at least this likely are always looked at
_KEPT = 16  # positions whose hashes are kept: those of one round

Hashes = npt.NDArray[np.uint32]


class PositionNoise:
    """argmin over ids of E(seed, position, id) / probs[id], where E is exponential noise.

    With E ~ Exp(1), independent over ids, id i wins with exactly its probability.
    """

    def __init__(self, seed: int, width: int) -> None:
        self._seed = seed
        self._width = width
        self._rows: dict[int, Hashes] = {}

    def choose(self, dist: Categorical, position: int) -> int:
        """The token of `dist` at an absolute position."""
        if dist.ids is not None:
            race = self._exponential(position, dist.ids) / np.maximum(dist.probs, 1e-300)
            return int(dist.ids[np.argmin(race)])
        # A whole vocabulary: the likely ids set a time to beat. An unlikely id beats it only with
        # tiny noise, that is a tiny hash, so one integer comparison leaves a handful to look at.
        heavy = np.flatnonzero(dist.probs >= _HEAVY)
        if not len(heavy):
            heavy = np.array([int(np.argmax(dist.probs))])
        best = float((self._exponential(position, heavy) / dist.probs[heavy]).min())
        bound = -np.expm1(-best * _HEAVY)  # noise above it, over less than _HEAVY, can't win
        if float(dist.probs[heavy].min()) < _HEAVY:
            bound = -np.expm1(-best * float(dist.probs.max()))
        hashes = self._hashes(position)[: len(dist.probs)]
        light = np.flatnonzero(hashes <= np.uint32(min(2**32 - 1, int(bound * 2**32) + 1)))
        ids = np.concatenate([heavy, light[dist.probs[light] > 0]])
        race = self._exponential(position, ids) / dist.probs[ids].astype(np.float64)
        return int(ids[np.argmin(race)])

    def _exponential(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Exp(1) noise (n,) from 64 bits of hash: small hash, small noise, without rounding."""
        keys = self._keys(position)
        unit = ids.astype(np.uint32)
        high = _mix(unit, keys[0], keys[1]).astype(np.float64)
        low = _mix(unit, keys[2], keys[3]).astype(np.float64)
        return np.asarray(-np.log1p(-(high + (low + 0.5) * 2.0**-32) * 2.0**-32))

    def _hashes(self, position: int) -> Hashes:
        """The high half of the hash for every id (V,)."""
        if position not in self._rows:
            if len(self._rows) >= _KEPT:
                self._rows.pop(next(iter(self._rows)))
            keys = self._keys(position)
            self._rows[position] = _mix(np.arange(self._width, dtype=np.uint32), keys[0], keys[1])
        return self._rows[position]

    def _keys(self, position: int) -> Hashes:
        return np.random.SeedSequence((self._seed, position)).generate_state(4)


def _mix(ids: Hashes, first: np.uint32, second: np.uint32) -> Hashes:
    """Two keyed rounds of a 32-bit finaliser (the constants are MurmurHash3's)."""
    x = ids * np.uint32(0x9E3779B1)
    for key in (first, second):
        x ^= key
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x85EBCA6B)
        x ^= x >> np.uint32(13)
        x *= np.uint32(0xC2B2AE35)
        x ^= x >> np.uint32(16)
    return x
