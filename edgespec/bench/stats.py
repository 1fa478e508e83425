"""Medians with their spread, and intervals that say how sure a ratio is.

Speeds are compared as logarithms of paired ratios, one for each prompt: "twice" and "half" then lie
equally far from 1, and what both sides share (a slow minute, a long prompt) cancels out. Invariant:
an interval is Student's, over prompts; one prompt alone has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """A median between its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Interval:
    """An estimate of a ratio and the bounds that hold it with a chance of `level`.

    `low` and `high` are None where there were too few pairs to know.
    """

    center: float
    low: float | None
    high: float | None
    pairs: int
    level: float = LEVEL

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.center:.2f}"
        return f"{self.center:.2f} ({self.low:.2f} to {self.high:.2f})"


def spread(values: Sequence[float]) -> Spread | None:
    """The median with the quartiles; None of nothing."""
    if not values:
        return None
    return Spread(median(values), percentile(values, 0.25), percentile(values, 0.75))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, between neighbours where it falls there."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def ratio_interval(logs: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The geometric mean of paired ratios, given their logarithms, with Student's interval."""
    if not logs:
        return None
    mean = fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), None, None, len(logs), level)
    margin = t_quantile((1 + level) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), _exp(mean - margin), _exp(mean + margin), len(logs), level)


def _exp(log: float) -> float:
    try:
        return math.exp(log)
    except OverflowError:  # two prompts at a level of 99.99% know nothing
        return math.inf


def t_cdf(t: float, freedom: int) -> float:
    """Student's distribution with whole degrees of freedom, as a finite sum.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    central = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + central / 2


def t_quantile(share: float, freedom: int) -> float:
    """Where Student's distribution reaches `share`, which lies between 0.5 and 1."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return high
