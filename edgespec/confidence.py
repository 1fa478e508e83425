"""What a confidence is worth: how often guesses of about this confidence stand.

Invariant: rates come from outcomes alone, newer ones counting more; where there are few, from the
prior.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.session import Logits

GAP_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
"""Bounds between levels of a gap between the two largest logits."""

MATCH_EDGES = (1.5, 2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 18.5, 24.5, 32.5)
"""Bounds between levels of a matched length in tokens."""

# What is taken for granted until a drafter's own outcomes say more: the acceptance that recorded
# texts of all kinds show at each level (benchmarks/texts), and for short matches, which texts
# differ most in, half of it: to find out that a guess is good costs less than to have trusted it.
GAP_PRIOR = (0.35, 0.42, 0.5, 0.6, 0.7, 0.85, 0.92, 0.96, 0.98, 0.98)
SIGNAL_PRIOR = (0.33, 0.35, 0.48, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98)
MATCH_PRIOR = (0.12, 0.24, 0.32, 0.4, 0.5, 0.6, 0.7, 0.85, 0.9, 0.95, 0.97)
OUTLOOK, NEAR_OUTLOOK = 0.7, 0.58
"""The acceptance expected of a model's guesses, where it has read the prompt or its end alone."""

_FADE = 0.97  # of an outcome's weight, for each after it of the same level and answer
_FADE_ANSWERS = 0.95  # of an answer's weight, for each after it


def top2_gap(row: Logits) -> float:
    """The largest logit of a row (V,) less the second largest: certainty without a softmax."""
    top = int(np.argmax(row))
    rest = [part.max() for part in (row[:top], row[top + 1 :]) if len(part)]
    return float(row[top] - max(rest)) if rest else 0.0


class Calibration:
    """Acceptance by level of confidence: what it is in this answer, and what it is in most.

    Texts differ more than chance does, so the answers so far say what to expect of the next, and
    its own outcomes soon count for more (a beta prior for each level; both kinds of count fade).
    `prior` is the rate taken for granted at each level; what is usual counts for `strength`
    outcomes.
    """

    def __init__(
        self, edges: Sequence[float], prior: Sequence[float], strength: float = 3.0
    ) -> None:
        self._strength = strength
        self._edges = tuple(edges)
        levels = len(edges) + 1
        if len(prior) != levels:
            raise ValueError(f"{levels} levels need as many rates, not {len(prior)}")
        self._usual = [float(rate) for rate in prior]
        self._answers = [1.0] * levels  # what `_usual` rests on
        self._total = [0.0] * levels  # of this answer
        self._stood = [0.0] * levels

    def begin(self) -> None:
        """Another answer: what this one showed becomes part of what is usual."""
        for level, total in enumerate(self._total):
            if total:
                weight = min(1.0, total / self._strength)
                self._answers[level] = self._answers[level] * _FADE_ANSWERS**weight + weight
                rate = self._stood[level] / total
                self._usual[level] += weight / self._answers[level] * (rate - self._usual[level])
                self._total[level] = self._stood[level] = 0.0

    def rate(self, confidence: float) -> float:
        """How likely a guess of this confidence stands, if those before it do."""
        level = bisect_left(self._edges, confidence)
        stood = self._strength * self._usual[level] + self._stood[level]
        return stood / (self._strength + self._total[level])

    def learn(self, confidence: float, stood: bool) -> None:
        """Take in one outcome."""
        level = bisect_left(self._edges, confidence)
        self._total[level] = self._total[level] * _FADE + 1
        self._stood[level] = self._stood[level] * _FADE + stood

    def to_json(self) -> dict[str, list[float]]:
        """What is usual, for another day; this answer counts as over."""
        self.begin()
        return {"usual": list(self._usual), "answers": list(self._answers)}

    def recall(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        usual, answers = ([float(x) for x in data[name]] for name in ("usual", "answers"))
        levels = len(self._usual)
        fits = len(usual) == len(answers) == levels
        if not fits or not all(0 <= u <= 1 <= a < 1e3 for u, a in zip(usual, answers, strict=True)):
            raise ValueError("these are no rates")
        self._usual, self._answers = usual, answers


class Outlook:
    """How likely guesses not made yet will stand, in a text that changes its kind now and then.

    A belief over acceptance rates (a hidden Markov model): outcomes shift it, and at each there is
    a small chance that the text has just become another. What is then to be expected begins at
    a prior and is learnt slowly from what the belief has been whenever the drafter was tried.
    """

    _RATES = np.linspace(0.02, 0.98, 17)
    _LOG, _LOG_REST = np.log(_RATES), np.log1p(-_RATES)

    _CHANGE, _SETTLE = 0.02, 0.02

    def __init__(self, prior: float = OUTLOOK) -> None:
        # Of all beliefs with this mean the widest: exponential in the rate.
        tilts = np.linspace(-8.0, 8.0, 161)
        weights = np.exp(tilts[:, None] * self._RATES)
        weights /= weights.sum(axis=1, keepdims=True)
        self._prior = weights[np.argmin(np.abs(weights @ self._RATES - prior))]
        self._belief = self._prior.copy()
        self.rate = prior

    def learn(self, stood: float, missed: float, *, tried: bool = True) -> None:
        """Take in how many guesses stood and missed; untried, how many were likely to."""
        belief = self._belief
        belief *= np.exp(stood * self._LOG + missed * self._LOG_REST)
        changed = 1 - (1 - self._CHANGE) ** (stood + missed)
        belief *= (1 - changed) / belief.sum()
        belief += changed * self._prior
        if tried:
            self._prior += self._SETTLE * (stood + missed) * (belief - self._prior)
        self.rate = float(belief @ self._RATES)

    def to_json(self) -> list[float]:
        """What is to be expected of a text, for another day."""
        return [float(x) for x in self._prior]

    def recall(self, data: Sequence[Any]) -> None:
        """Go on from what `to_json` gave; TypeError or ValueError for anything else."""
        prior = np.array([float(x) for x in data])
        fits = prior.shape == self._prior.shape and np.isfinite(prior).all()
        if not fits or not (prior >= 0).all() or not prior.sum() > 0:
            raise ValueError("this is no belief")
        self._prior = prior / prior.sum()
        self._belief = self._prior.copy()
        self.rate = float(self._belief @ self._RATES)
