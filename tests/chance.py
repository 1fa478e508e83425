"""Is a sample what it should be? Thresholds with stated odds of a false alarm, in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

ODDS = 1e-6
"""The chance that a test which uses this default fails although nothing is wrong. Seeds are fixed,
so such a failure would show on the first run and never come and go."""


@dataclass(frozen=True)
class Fit:
    """How far a sample is from a distribution, as a multiple of what chance allows.

    Above 1 the odds of it being chance are below those it was made with.
    """

    chi_square: float
    total_variation: float

    @property
    def good(self) -> bool:
        return self.chi_square < 1 and self.total_variation < 1


def fit(sample: Sequence[Hashable], probs: Mapping[Hashable, float], odds: float = ODDS) -> Fit:
    """Compare a sample with the probabilities of its cells (sum 1), each test at half the odds."""
    n, counts = len(sample), Counter(sample)
    if any(probs.get(cell, 0.0) <= 0 for cell in counts):
        return Fit(math.inf, math.inf)  # what can't happen happened
    # Pearson's test needs about 5 expected in each cell; rarer ones are taken together.
    common = [cell for cell, prob in probs.items() if n * prob >= 5]
    cells = [(counts[cell], n * probs[cell]) for cell in common]
    rest = n - sum(expected for _, expected in cells)
    if rest >= 5:
        cells.append((n - sum(seen for seen, _ in cells), rest))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    limit = chi_square_limit(len(cells) - 1, odds / 2) if len(cells) > 1 else 1.0
    distance = sum(abs(counts[cell] / n - prob) for cell, prob in probs.items()) / 2
    # Its mean is at most this sum (Jensen); one draw moves it by 1/n at most (McDiarmid 1989).
    mean = sum(math.sqrt(prob * (1 - prob) / n) for prob in probs.values() if prob < 1) / 2
    return Fit(statistic / limit, distance / (mean + math.sqrt(math.log(2 / odds) / (2 * n))))


def chi_square_limit(degrees: int, odds: float) -> float:
    """What chi-square exceeds with these odds or less (Wilson and Hilferty 1931).

    Far out, the approximation is above the true quantile: by 15% at 1 degree and odds of 1e-6, by
    1% at 20 degrees.
    """
    spread = 2 / (9 * degrees)
    z = NormalDist().inv_cdf(1 - odds)
    return degrees * (1 - spread + z * math.sqrt(spread)) ** 3


def rate_limit(n: int, prob: float, odds: float = ODDS) -> float:
    """How far the rate of n trials strays from `prob` with these odds (Bernstein's bound)."""
    log = math.log(2 / odds)
    return log / (3 * n) + math.sqrt((log / (3 * n)) ** 2 + 2 * log * prob * (1 - prob) / n)
