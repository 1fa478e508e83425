"""What a pass over n tokens costs on this machine: measured once, refined as it runs.

A pass's cost is neither flat nor even monotone in n, and it depends on quantisation, threads,
device and text length, so nothing is assumed about its form. Invariant: each estimate is the
product of how fast the machine is just now and what this pass costs relative to the others, so
that a throttled machine changes the first and no decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.session import Session

Floats = npt.NDArray[np.float64]

MAX_TOKENS = 17
"""The longest pass whose cost is kept: a lookahead of 16 and the token before it."""

POINTS = (1, 2, 3, 4, 5, 6, 8, 12)
"""Passes of the target that are measured; the others lie between or beyond."""
READS = (1, 2, 16)
"""Passes of a drafter: a step, the usual catch-up, a long one."""

# Standard deviations of logarithms, so shares of a cost.
_UNSURE = 0.12  # of a relative cost at first
_PACE_DRIFT = 0.04  # of the machine's pace, from one pass to the next
_CELL_DRIFT = 0.008  # of a relative cost, likewise
_LIKENESS = 1.0  # over how much of a factor in n (its logarithm) costs change together
_NOISE = 0.08  # of one pass, at first


@dataclass
class _State:
    """Logarithms of the pace and of every kind's relative costs, and how they vary together."""

    mean: Floats  # (1 + kinds * MAX_TOKENS,)
    cov: Floats  # square


class Costs:
    """Seconds of passes by kind ("check", or a drafter's name), tokens and text length.

    A Kalman filter over log(seconds) = pace + relative cost, one for each doubling of the length.
    What a batch costs is thought to change together with its neighbours, and everything with the
    pace; passes of one token tell the two apart.
    """

    def __init__(self, measured: Mapping[str, Mapping[int, float]]) -> None:
        """`measured`: kind -> tokens in a pass -> seconds, each with at least one token."""
        self._kinds = {kind: 1 + i * MAX_TOKENS for i, kind in enumerate(measured)}
        sizes = range(1, MAX_TOKENS + 1)
        logs = [0.0] + [math.log(_between(p, n)) for p in measured.values() for n in sizes]
        alike = np.log(np.arange(1, MAX_TOKENS + 1))
        alike = np.exp(-np.abs(alike[:, None] - alike) / _LIKENESS)
        self._alike = np.zeros((len(logs), len(logs)))
        for first in self._kinds.values():
            self._alike[first : first + MAX_TOKENS, first : first + MAX_TOKENS] = alike
        self._drift = self._alike * _CELL_DRIFT**2
        self._drift[0, 0] = _PACE_DRIFT**2
        self._states = {0: _State(np.array(logs), self._alike * _UNSURE**2)}
        self._bucket = 0
        self._noise = _NOISE
        self._curves: dict[str, list[float]] = {}

    @property
    def pace(self) -> float:
        """The logarithm of how much slower the machine is than when it was measured."""
        return float(self._states[self._bucket].mean[0])

    def curve(self, kind: str, length: int) -> list[float]:
        """Seconds of passes over 0..MAX_TOKENS tokens behind a text of `length`."""
        self._enter(length)
        if kind not in self._curves:
            mean, first = self._states[self._bucket].mean, self._kinds[kind]
            curve = np.exp(mean[0] + mean[first : first + MAX_TOKENS])
            self._curves[kind] = [0.0, *curve.tolist()]
        return self._curves[kind]

    def seconds(self, kind: str, tokens: int, length: int) -> float:
        """A pass over `tokens` tokens behind a text of `length`."""
        curve = self.curve(kind, length)
        if tokens <= MAX_TOKENS:
            return curve[tokens]
        more = max(curve[MAX_TOKENS] - curve[2], 0.0) / (MAX_TOKENS - 2)
        return curve[MAX_TOKENS] + more * (tokens - MAX_TOKENS)

    def draft(self, drafter: str, tokens: int, owed: int, length: int) -> float:
        """Drafting `tokens` tokens, the first of them behind a read of `owed`."""
        steps = (tokens - 1) * self.seconds(drafter, 1, length)
        return self.seconds(drafter, max(1, owed), length) + steps

    def observe(self, kind: str, tokens: int, length: int, seconds: float) -> None:
        """Learn from one pass."""
        self._learn({(kind, tokens): 1}, length, seconds)

    def observe_draft(
        self, drafter: str, tokens: int, owed: int, length: int, seconds: float
    ) -> None:
        """Learn from a draft: a read and single steps, timed together."""
        passes = {(drafter, 1): tokens - 1}
        read = (drafter, max(1, owed))
        passes[read] = passes.get(read, 0) + 1
        self._learn(passes, length, seconds)

    def _learn(self, passes: Mapping[tuple[str, int], int], length: int, seconds: float) -> None:
        if seconds <= 0 or any(tokens > MAX_TOKENS for _, tokens in passes):
            return
        self._enter(length)
        state = self._states[self._bucket]
        parts = {
            self._kinds[kind] + n - 1: times * self.seconds(kind, n, length)
            for (kind, n), times in passes.items()
        }
        expected = sum(parts.values())
        shares = np.zeros(len(state.mean))
        shares[0] = 1.0
        for cell, part in parts.items():
            shares[cell] = part / expected
        state.cov += self._drift
        reach = state.cov @ shares
        total = float(shares @ reach) + self._noise**2
        surprise = math.log(seconds / expected)
        limit = 3 * math.sqrt(total)  # a pass that another program held up says little
        surprise = max(-limit, min(limit, surprise))
        state.mean += reach * (surprise / total)
        state.cov -= np.outer(reach, reach / total)
        self._noise += 0.02 * (min(0.4, max(0.03, abs(surprise))) - self._noise)
        self._curves.clear()

    def _enter(self, length: int) -> None:
        """Change to the costs at this length; one not seen yet starts from the nearest that was."""
        bucket = max(0, round(math.log2(max(length, 1) / 256)))
        if bucket == self._bucket:
            return
        before = self._states[self._bucket]
        if bucket not in self._states:
            near = self._states[min(self._states, key=lambda b: abs(b - bucket))]
            self._states[bucket] = _State(near.mean.copy(), near.cov + self._alike * _UNSURE**2)
        state = self._states[bucket]
        state.mean[0] = before.mean[0]
        state.cov[0] = state.cov[:, 0] = 0.0
        state.cov[0, 0] = before.cov[0, 0]
        self._bucket = bucket
        self._curves.clear()

    def to_json(self) -> dict[str, Any]:
        """What is worth keeping on disk: seconds by length, kind and tokens."""
        pace = self.pace
        return {
            str(bucket): {
                kind: np.exp(pace + state.mean[first : first + MAX_TOKENS]).tolist()
                for kind, first in self._kinds.items()
            }
            for bucket, state in self._states.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Costs:
        """What `to_json` gave; raises KeyError, TypeError or ValueError for anything else."""
        by_bucket = {
            int(bucket): cls({k: dict(enumerate(s, 1)) for k, s in kinds.items()})
            for bucket, kinds in data.items()
        }
        costs = by_bucket[0]
        costs._states = {bucket: other._states[0] for bucket, other in by_bucket.items()}
        for state in costs._states.values():
            state.cov[0, 0] = 0.2**2  # who knows how busy the machine is today
        return costs


def _between(points: Mapping[int, float], tokens: int) -> float:
    """Seconds at `tokens`, on the straight line between the neighbours or through the last two."""
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]] * tokens / known[0]
    above = min(max(int(np.searchsorted(known, tokens)), 1), len(known) - 1)
    # Beyond the last, two neighbours would say too much about all that follows.
    low, high = known[above - 1 if tokens < known[-1] else 0], known[above]
    slope = (points[high] - points[low]) / (high - low)
    return max(points[high] + slope * (tokens - high), points[known[0]] * 0.1)


def measure(
    target: Session,
    drafters: Mapping[str, Session],
    *,
    check: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = perf_counter,
) -> Costs:
    """Time passes of the target, and steps of each drafter, in the time of some 40 plain tokens.

    The caches are empty afterwards. `check` is called between passes and may raise to stop.
    """
    measured = {"check": _time_passes(target, POINTS, 36.0, check, clock)}
    for name, session in drafters.items():
        measured[name] = _time_passes(session, READS, 12.0, check, clock)
    return Costs(measured)


def _time_passes(
    session: Session,
    points: Sequence[int],
    budget: float,
    check: Callable[[], None],
    clock: Callable[[], float],
) -> dict[int, float]:
    """Median seconds by tokens in a pass; `budget` is in passes over one token."""
    text = (np.arange(64) % min(session.vocab_size, 64)).astype(np.int32)
    begin = min(32, session.context_size // 2)
    points = [n for n in points if begin + n <= session.context_size]
    times: dict[int, list[float]] = {n: [] for n in points}

    def once(n: int) -> float:
        check()
        began = clock()
        session.forward(text[:n], n)
        times[n].append(spent := clock() - began)
        session.rollback(begin)
        return spent

    session.rollback(0)
    session.forward(text[:begin], 1)
    once(points[0])
    times[points[0]].clear()  # the first pass warms up
    for _ in range(3):
        once(points[0])
    left = (budget - 4) * float(np.median(times[points[0]]))
    round_trips = 0
    while left > 0:
        for n in points[1:] if round_trips == 0 else points:
            if round_trips and left <= 0:
                break
            left -= once(n)
            if left <= 0 and len(times[n]) > 1:
                break
        round_trips += 1
    session.rollback(0)
    return {n: float(np.median(spent)) for n, spent in times.items() if spent}
