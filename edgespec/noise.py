"""Noise that depends on a seed and a position alone, for the rule `reproducible`.

Invariant: the token chosen at a position is a function of (seed, position, distribution). Two
distributions that are close choose the same token most of the time, which is what makes a drafter
that uses the same noise agree with its target (the Gumbel-max trick, Maddison et al. 2014,
arXiv 1411.0030).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgespec.categorical import Categorical, Floats, Ids, largest

_HEAVIEST = 128  # ids that are always looked at
_KEPT = 40  # positions whose hashes are kept: more than a planned round has

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
            return self._winner(position, dist.ids, dist.probs)[0]
        probs = dist.probs
        return self._race(position, probs, lambda ids: probs[ids])

    def choose_logits(self, logits: Floats, peak: float, temperature: float, position: int) -> int:
        """The token of softmax(logits / temperature), (V,), without computing it; peak: the max."""

        def weigh(ids: Ids) -> Floats:
            with np.errstate(over="ignore", under="ignore"):
                weights = np.exp((logits[ids].astype(np.float64) - peak) / temperature)
            return np.asarray(weights)

        return self._race(position, logits, weigh)

    def _race(self, position: int, scores: Floats, weigh: Callable[[Ids], Floats]) -> int:
        """The winner among all ids, whose weights are in the order of their scores (V,).

        The heaviest set a time to beat. Any other beats it only with tiny noise, that is a tiny
        hash, so one integer comparison leaves a handful to look at.
        """
        heavy = largest(scores, _HEAVIEST)
        weights = weigh(heavy)
        token, time = self._winner(position, heavy, weights)
        noise = time * float(weights.min())  # who has more, and weighs no more, comes later
        bound = min(-np.expm1(-noise) * 2**32 + 1, 2**32 - 1)
        light = np.flatnonzero(self._hashes(position)[: len(scores)] <= np.uint32(bound))
        if len(light):
            other, sooner = self._winner(position, light, weigh(light))
            if sooner < time:
                return other
        return token

    def _winner(self, position: int, ids: Ids, weights: Floats) -> tuple[int, float]:
        """The first of `ids` to arrive, and when."""
        race = self.exponential(position, ids) / np.maximum(weights, 1e-300, dtype=np.float64)
        first = int(np.argmin(race))
        return int(ids[first]), float(race[first])

    def exponential(self, position: int, ids: Ids) -> npt.NDArray[np.float64]:
        """The noise (n,) of `ids` at a position: the token whose noise / prob is least is chosen.

        From 64 bits of hash: small hash, small noise, without rounding.
        """
        keys = self._keys(position)
        spread = self._spread[ids]
        high = _mix(spread ^ keys[0]).astype(np.float64)
        low = _mix(spread ^ keys[1]).astype(np.float64)
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
            state = np.random.SeedSequence((self._seed, position)).generate_state(2)
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
