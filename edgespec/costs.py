"""What a pass over n tokens costs on this machine: measured once, refined as it runs.

A pass's cost is neither flat nor even monotone in n, and it depends on quantisation, threads,
device and text length, so nothing is assumed about its form. Invariant: each estimate is the
product of how fast the machine is just now and what this pass costs relative to the others, so
that a throttled machine changes the first and no decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MAX_TOKENS = 32
"""The longest pass whose cost is kept. A check of 32 costs some 1.4 to 1.7 times one of 17 on the
CPUs measured, which pays where a text copies itself.
"""

# Standard deviations of logarithms, so shares of a cost.
_UNSURE = 0.2  # of a relative cost at first, and at most
_OVERNIGHT = 0.05  # of a relative cost that was well known in an earlier run
_PACE_DRIFT = 0.04  # of the machine's pace, from one pass to the next
_CELL_DRIFT = 0.008  # of a relative cost, likewise
_LIKENESS = 2.0  # over how much of a factor in n (its logarithm) costs change together
_NOISE = 0.08  # of one pass, at first
_HOPE = 0.7  # standard deviations that a batch is thought to be cheaper than expected
_ATTENTION = 0.75  # the power of its tokens with which a pass's attention grows: see `_lengthen`
_FIRST = 3  # plain rounds at a new length that tell what the length costs


@dataclass
class _State:
    """Logarithms of the pace and of every kind's relative costs, and how they vary together."""

    mean: Floats  # (1 + kinds * MAX_TOKENS,)
    cov: Floats  # square
    nearest: Floats | None = None  # the means it began with, while its length is new
    first: list[float] = field(default_factory=list)  # seconds of its first plain rounds


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
        self._bucket = self._length = 0
        self._noise = _NOISE
        self._curves: dict[str, list[float]] = {}
        # By drafter: what a token of a read beyond the curve costs, in what the curve says of it.
        self._long_reads: dict[str, float] = {}
        self.taken = 0.0  # when it was measured, in seconds since 1970, where anybody said so
        self._observed: set[int] = set()

    @property
    def observed(self) -> set[str]:
        """The lengths, as `to_json` names them, whose passes it learnt from since it was made."""
        return {str(bucket) for bucket in self._observed}

    def __contains__(self, kind: str) -> bool:
        """Whether passes of this kind were measured."""
        return kind in self._kinds

    @property
    def pace(self) -> float:
        """The logarithm of how much slower the machine is than when it was measured."""
        return float(self._states[self._bucket].mean[0])

    def curve(self, kind: str, length: int) -> list[float]:
        """Seconds of passes over 0..MAX_TOKENS tokens behind a text of `length`.

        Batches of the target count for somewhat less than expected, never for less than one token.
        """
        self._enter(length)
        if kind not in self._curves:
            state, first = self._states[self._bucket], self._kinds[kind]
            cells = slice(first, first + MAX_TOKENS)
            logs = state.mean[0] + state.mean[cells]
            if kind == "check":
                # What may be cheaper than it seems is worth finding out, and one draft does.
                cov = state.cov[cells, cells]
                spread = np.maximum(cov.diagonal() + cov[0, 0] - 2 * cov[0], 0.0)
                logs = np.maximum(logs - _HOPE * np.sqrt(spread), logs[0])
            self._curves[kind] = [0.0, *np.exp(logs).tolist()]
        return self._curves[kind]

    def seconds(self, kind: str, tokens: int, length: int) -> float:
        """A pass over `tokens` tokens behind a text of `length`."""
        curve = self.curve(kind, length)
        if tokens <= MAX_TOKENS:
            return curve[tokens]
        more = self._long_reads.get(kind, 1.0) * _more(curve)
        return curve[MAX_TOKENS] + more * (tokens - MAX_TOKENS)

    def expected(self, tokens: int, length: int) -> float:
        """Seconds of a check of `tokens` tokens, at most `MAX_TOKENS`, with no hope added."""
        self._enter(length)
        mean = self._states[self._bucket].mean
        return math.exp(mean[0] + mean[self._kinds["check"] + tokens - 1])

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
        if owed > MAX_TOKENS:
            curve = self.curve(drafter, length)
            rest = seconds - curve[MAX_TOKENS] - (tokens - 1) * curve[1]
            beyond = owed - MAX_TOKENS
            factor = min(3.0, max(0.2, rest / beyond / _more(curve)))
            weight = 0.3 * beyond / (beyond + 100)  # a short one is mostly noise
            before = self._long_reads.get(drafter, 1.0)
            self._long_reads[drafter] = before + weight * (factor - before)
            return
        passes = {(drafter, 1): tokens - 1}
        read = (drafter, max(1, owed))
        passes[read] = passes.get(read, 0) + 1
        self._learn(passes, length, seconds)

    def _learn(self, passes: Mapping[tuple[str, int], int], length: int, seconds: float) -> None:
        if seconds <= 0 or any(tokens > MAX_TOKENS for _, tokens in passes):
            return
        self._enter(length)
        state = self._states[self._bucket]
        self._observed.add(self._bucket)
        if state.nearest is not None:
            if passes.keys() == {("check", 1)}:
                self._lengthen(state, state.nearest, seconds)
            else:
                state.nearest = None
        cells = {self._kinds[kind] + n - 1: times for (kind, n), times in passes.items()}
        parts = {
            cell: times * math.exp(state.mean[0] + state.mean[cell])
            for cell, times in cells.items()
        }
        expected = sum(parts.values())
        shares = np.zeros(len(state.mean))
        shares[0] = 1.0
        for cell, part in parts.items():
            shares[cell] = part / expected
        state.cov += self._drift
        self._bound(state)
        reach = state.cov @ shares
        total = float(shares @ reach) + self._noise**2
        surprise = math.log(seconds / expected)
        limit = 3 * math.sqrt(total)  # a pass that another program held up says little
        surprise = max(-limit, min(limit, surprise))
        state.mean += reach * (surprise / total)
        state.cov -= np.outer(reach, reach / total)
        self._noise += 0.02 * (min(0.4, max(0.03, abs(surprise))) - self._noise)
        self._curves.clear()

    def _lengthen(self, state: _State, nearest: Floats, seconds: float) -> None:
        """Take in a plain round at a new length, by which all its costs are guessed anew.

        What plain decoding takes more than behind a shorter text is attention's time, and no change
        of pace. Batches pay it too: once where it is spent on reading the cache, once a token where
        on arithmetic. The power taken lies between; their own rounds soon say more.
        """
        state.first.append(seconds)
        first = self._kinds["check"]
        ratio = float(np.median(state.first)) / math.exp(nearest[0] + nearest[first])
        more = max(0.0, ratio - 1)
        tokens = np.arange(1, MAX_TOKENS + 1)
        for kind in self._kinds.values():
            cells = slice(kind, kind + MAX_TOKENS)
            attention = more * math.exp(nearest[kind]) * tokens**_ATTENTION
            state.mean[cells] = np.log(np.exp(nearest[cells]) + attention)
        state.mean[0] = nearest[0]
        if len(state.first) == _FIRST:
            state.nearest = None

    def _bound(self, state: _State) -> None:
        """No relative cost gets less certain than it was before anything was measured."""
        variance = state.cov.diagonal()
        if variance[1:].max() > 1.05 * _UNSURE**2:
            shrink = np.minimum(1.0, _UNSURE / np.sqrt(np.maximum(variance, 1e-12)))
            shrink[0] = 1.0
            state.cov *= shrink[:, None] * shrink

    def _enter(self, length: int) -> None:
        """Change to the costs at this length; one not seen yet starts from the nearest that was."""
        if length == self._length:
            return
        self._length = length
        bucket = max(0, round(math.log2(max(length, 1) / 256)))
        if bucket == self._bucket:
            return
        before = self._states[self._bucket]
        if bucket not in self._states:
            near = self._states[min(self._states, key=lambda b: abs(b - bucket))]
            unsure = near.cov + self._alike * _UNSURE**2
            self._states[bucket] = _State(near.mean.copy(), unsure, nearest=near.mean.copy())
        state = self._states[bucket]
        state.mean[0] = before.mean[0]
        if state.nearest is not None:
            state.nearest[0] = before.mean[0]
        state.cov[0] = state.cov[:, 0] = 0.0
        state.cov[0, 0] = before.cov[0, 0]
        self._bucket = bucket
        self._curves.clear()

    def to_json(self) -> dict[str, Any]:
        """What is worth keeping on disk, by length, kind and tokens: seconds, and how sure they
        are, as standard deviations of their logarithms beside a pass over one token's.

        A length that is still new is left out: one slow round would be kept as what it costs.
        """
        pace = self.pace
        kept: dict[str, Any] = {"long_reads": dict(self._long_reads)}
        for bucket, state in self._states.items():
            if state.nearest is not None:
                continue
            kept[str(bucket)] = curves = {}
            one = self._kinds["check"]  # a pass over one token
            spread = state.cov.diagonal() + state.cov[one, one] - 2 * state.cov[one]
            for kind, first in self._kinds.items():
                cells = slice(first, first + MAX_TOKENS)
                curves[kind] = {
                    "seconds": np.exp(pace + state.mean[cells]).tolist(),
                    "unsure": np.sqrt(np.maximum(spread[cells], 0.0)).tolist(),
                }
        return kept

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Costs:
        """What `to_json` gave; raises KeyError, TypeError or ValueError for anything else."""
        kinds = list(data["0"])
        by_bucket = {}
        long_reads = {str(kind): float(factor) for kind, factor in data["long_reads"].items()}
        if not all(0.2 <= factor <= 3 for factor in long_reads.values()):
            raise ValueError("these are no costs")
        for bucket, curves in data.items():
            if bucket == "long_reads":
                continue
            seconds = {kind: [float(s) for s in curves[kind]["seconds"]] for kind in kinds}
            unsure = [float(s) for kind in kinds for s in curves[kind]["unsure"]]
            sizes = [len(c) for c in seconds.values()]
            if sizes != [MAX_TOKENS] * len(kinds) or len(unsure) != MAX_TOKENS * len(kinds):
                raise ValueError("these are no costs")
            if not all(0 < s < 1e9 for c in seconds.values() for s in c):
                raise ValueError("these are no costs")
            costs = cls({kind: dict(enumerate(c, 1)) for kind, c in seconds.items()})
            # Another day, another program beside this one: somewhat less sure than it was.
            known = np.minimum(_UNSURE, np.hypot(np.array(unsure), _OVERNIGHT))
            if not np.isfinite(known).all():
                raise ValueError("these are no costs")
            state = costs._states[0]
            state.cov[1:, 1:] = costs._alike[1:, 1:] * known[:, None] * known
            state.cov[0, 0] = 0.2**2  # who knows how busy the machine is today
            by_bucket[int(bucket)] = costs
        costs = by_bucket[0]
        costs._long_reads = long_reads
        costs._states = {bucket: other._states[0] for bucket, other in by_bucket.items()}
        return costs


def _more(curve: Sequence[float]) -> float:
    """Seconds of one more token in a pass longer than the curve."""
    slope = (curve[MAX_TOKENS] - curve[2]) / (MAX_TOKENS - 2)
    return max(slope, max(curve) / MAX_TOKENS / 4)


def _between(points: Mapping[int, float], tokens: int) -> float:
    """Seconds at `tokens`, on the straight line between its neighbours, or behind the last through
    it and the first.
    """
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]] * tokens / known[0]
    above = min(max(int(np.searchsorted(known, tokens)), 1), len(known) - 1)
    # Beyond the last, two neighbours would say too much about all that follows.
    low, high = known[above - 1 if tokens < known[-1] else 0], known[above]
    slope = (points[high] - points[low]) / (high - low)
    return points[high] + (max(slope, 0.0) if tokens > high else slope) * (tokens - high)
