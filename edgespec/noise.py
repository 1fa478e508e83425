"""Noise that depends on a seed and a position alone, for the rule `reproducible`.

Invariant: the token chosen at a position is a function of (seed, position, distribution). Two
distributions that are close choose the same token most of the time, which is what makes a drafter
that uses the same noise agree with its target (the Gumbel-max trick, Maddison et al. 2014,
arXiv 1411.0030).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgespec.categorical import Categorical, Floats

_HEAVY = 1e-3  # ids at least this likely are always looked at
_KEPT = 16  # positions whose hashes are kept: more than those of one round

Hashes = npt.NDArray[np.uint32]


class PositionNoise:
    """argmin over ids of E(seed, position, id) / probs[id], where E is exponential noise.

    With E ~ Exp(1), independent over ids and positions, id i wins with exactly its probability.
    """

    def __init__(self, seed: int, width: int) -> None:
        self._seed = seed
        self._width = width
        self._keys_of: dict[int, Hashes] = {}
        self._hashes_of: dict[int, Hashes] = {}

    def choose(self, dist: Categorical, position: int) -> int:
        """The token of `dist` at an absolute position."""
        if dist.ids is not None:
            return self._winner(position, dist.ids, np.maximum(dist.probs, 1e-300))[0]
        # A whole vocabulary. Likely ids are all looked at; any other wins only with tiny noise,
        # that is a tiny hash, so one integer comparison finds the few that could.
        probs = dist.probs
        heavy = np.flatnonzero(probs >= _HEAVY)
        token, time = -1, np.inf
        if len(heavy):
            token, time = self._winner(position, heavy, probs[heavy])
        light = min(_HEAVY, float(probs.max()))  # an id below it needs noise below time * light
        hashes = self._hashes(position)[: len(probs)]
        horizon = 8.0  # one in e^8 races of a whole vocabulary lasts longer
        while True:
            bound = -np.expm1(-min(time, horizon) * light) * 2**32 + 1
            ids = np.flatnonzero(hashes <= np.uint32(min(bound, 2**32 - 1)))
            ids = ids[probs[ids] > 0]
            if len(ids):
                token, time = min(
                    (token, time), self._winner(position, ids, probs[ids]), key=lambda won: won[1]
                )
            if time <= horizon or bound >= 2**32:
                return token
            horizon *= 4

    def _winner(
        self, position: int, ids: npt.NDArray[np.int64], probs: Floats
    ) -> tuple[int, float]:
        """The first of `ids` to arrive, and when."""
        race = self._exponential(position, ids) / probs.astype(np.float64)
        first = int(np.argmin(race))
        return int(ids[first]), float(race[first])

    def _exponential(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Exp(1) noise (n,) from 64 bits of hash: small hash, small noise, without rounding."""
        keys = self._keys(position)
        spread = self._spread[ids]
        high = _mix(spread ^ keys[0]).astype(np.float64)
        low = _mix(_mix(spread ^ keys[1]) ^ keys[2]).astype(np.float64)
        return np.asarray(-np.log1p(-(high + (low + 0.5) * 2.0**-32) * 2.0**-32))

    def _hashes(self, position: int) -> Hashes:
        """The high half of the hash for every id (V,)."""
        if position not in self._hashes_of:
            _forget_oldest(self._hashes_of)
            self._hashes_of[position] = _mix(self._spread ^ self._keys(position)[0])
        return self._hashes_of[position]

    def _keys(self, position: int) -> Hashes:
        if position not in self._keys_of:
            _forget_oldest(self._keys_of)
            state = np.random.SeedSequence((self._seed, position)).generate_state(3)
            self._keys_of[position] = state.astype(np.uint32)
        return self._keys_of[position]

    @cached_property
    def _spread(self) -> Hashes:
        """The ids (V,) spread over all of 32 bits, differently for each seed."""
        keys = np.random.SeedSequence(self._seed).generate_state(2)
        return _mix(_mix(np.arange(self._width, dtype=np.uint32) ^ keys[0]) ^ keys[1])


def _forget_oldest(rows: dict[int, Hashes]) -> None:
    if len(rows) >= _KEPT:
        rows.pop(next(iter(rows)))


def _mix(x: Hashes) -> Hashes:
    """MurmurHash3's 32-bit finaliser, a permutation, in place."""
    shifted = np.empty_like(x)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x ^= np.right_shift(x, np.uint32(shift), out=shifted)
        if factor > 1:
            x *= np.uint32(factor)
    return x
