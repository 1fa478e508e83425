"""What a confidence is worth: how often guesses of about this confidence stand.

Invariant: rates come from outcomes alone, newer ones counting more; where there are few, from the
rates of the neighbouring confidences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.session import Logits

GAP_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
"""Bounds between levels of a gap between the two largest logits."""

MATCH_EDGES = (2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 18.5)
"""Bounds between levels of a matched length in tokens."""


def top2_gap(row: Logits) -> float:
    """The largest logit of a row (V,) less the second largest: certainty without a softmax."""
    top = int(np.argmax(row))
    rest = [part.max() for part in (row[:top], row[top + 1 :]) if len(part)]
    return float(row[top] - max(rest)) if rest else 0.0


class Calibration:
    """Acceptance by level of confidence, from weighted counts that fade.

    `prior` is the rate taken for granted at the lowest and at the highest level.
    """

    def __init__(
        self,
        edges: Sequence[float],
        prior: tuple[float, float],
        *,
        strength: float = 4.0,
        fade: float = 0.98,
    ) -> None:
        self._edges = np.asarray(edges)
        levels = len(edges) + 1
        self._fade = fade
        # Counts that stand for the prior; they fade as outcomes come, like older outcomes.
        self._total = np.full(levels, strength)
        self._stood = strength * np.linspace(*prior, levels)

    def level(self, confidence: float) -> int:
        """The level a confidence belongs to."""
        return int(np.searchsorted(self._edges, confidence))

    def rate(self, confidence: float) -> float:
        """How likely a guess of this confidence stands, if those before it do."""
        level = self.level(confidence)
        return float(self._stood[level] / self._total[level])

    def learn(self, confidence: float, stood: bool) -> None:
        """Take in one outcome."""
        level = self.level(confidence)
        self._total[level] = self._total[level] * self._fade + 1
        self._stood[level] = self._stood[level] * self._fade + stood
