"""What a pass over n tokens costs on this machine: measured once, refined as it runs.

A pass's cost is neither flat nor even monotone in n, and it depends on quantisation, threads,
device and text length, so nothing is assumed about its form. Invariant: each estimate is the
product of two slowly learnt things, how fast the machine is just now and what this pass costs
relative to the others, so that a throttled machine changes the first and no decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from edgespec.session import Session

MAX_TOKENS = 17
"""The longest pass whose cost is kept: a lookahead of 16 and the token before it."""

_POINTS = (1, 2, 3, 4, 5, 6, 8, 12)  # passes measured; the others lie between or beyond
_READS = (1, 2, 16)  # passes of a drafter: a step, the usual catch-up, a long one
_NOISE = 0.10  # of one measurement, as a share of it (standard deviation, like all below)
_PACE_DRIFT = 0.03  # of the machine's pace from one pass to the next
_CELL_DRIFT = 0.004  # of one relative cost, likewise
_UNSURE = 0.3  # of a relative cost that was never measured


@dataclass
class _Cell:
    """The logarithm of one relative cost, and its variance."""

    log: float
    variance: float


class Costs:
    """Seconds of passes by kind ("check", or a drafter's name), tokens and text length.

    A scalar Kalman filter over log(seconds) = pace + cell; a surprise is shared between the two in
    proportion to how unsure each is.
    """

    def __init__(self, measured: Mapping[str, Mapping[int, float]]) -> None:
        """`measured`: kind -> tokens in a pass -> seconds, each with at least one token."""
        self._measured = {
            kind: dict(sorted((int(n), float(s)) for n, s in points.items()))
            for kind, points in measured.items()
        }
        self._cells: dict[tuple[str, int, int], _Cell] = {}
        self._pace = _Cell(0.0, 0.0)

    def seconds(self, kind: str, tokens: int, length: int) -> float:
        """A pass over `tokens` tokens behind a text of `length`."""
        if tokens > MAX_TOKENS:  # long reads: proportional to the longest kept
            return self.seconds(kind, MAX_TOKENS, length) * tokens / MAX_TOKENS
        return math.exp(self._pace.log + self._cell(kind, tokens, length).log)

    def draft(self, drafter: str, tokens: int, owed: int, length: int) -> float:
        """Drafting `tokens` tokens, the first of them behind a read of `owed`."""
        steps = (tokens - 1) * self.seconds(drafter, 1, length)
        return self.seconds(drafter, max(1, owed), length) + steps

    def observe(self, kind: str, tokens: int, length: int, seconds: float) -> None:
        """Learn from one pass."""
        self._update([(kind, tokens)], length, seconds)

    def observe_draft(
        self, drafter: str, tokens: int, owed: int, length: int, seconds: float
    ) -> None:
        """Learn from a draft: a read and single steps, timed together."""
        if owed <= MAX_TOKENS:
            passes = [(drafter, max(1, owed)), *[(drafter, 1)] * (tokens - 1)]
            self._update(passes, length, seconds)

    def _update(self, passes: Sequence[tuple[str, int]], length: int, seconds: float) -> None:
        if seconds <= 0 or any(tokens > MAX_TOKENS for _, tokens in passes):
            return
        cells = {id(c): c for c in (self._cell(kind, n, length) for kind, n in passes)}.values()
        expected = sum(self.seconds(kind, n, length) for kind, n in passes)
        unsure = max(cell.variance for cell in cells)
        pace = self._pace
        pace.variance += _PACE_DRIFT**2
        total = pace.variance + unsure + _NOISE**2
        surprise = math.log(seconds / expected)
        limit = 3 * math.sqrt(total)  # a pass that another program held up says little
        surprise = max(-limit, min(limit, surprise))
        pace.log += pace.variance / total * surprise
        pace.variance *= 1 - pace.variance / total
        for cell in cells:
            cell.log += cell.variance / total * surprise
            cell.variance *= 1 - cell.variance / total
            cell.variance += _CELL_DRIFT**2

    def _cell(self, kind: str, tokens: int, length: int) -> _Cell:
        bucket = max(0, round(math.log2(max(length, 1) / 256)))
        key = (kind, tokens, bucket)
        cell = self._cells.get(key)
        if cell is None:
            # A length not seen yet starts from the nearest that was, a pass from the measurement.
            known = [b for k, n, b in self._cells if (k, n) == (kind, tokens)]
            if known:
                near = self._cells[kind, tokens, min(known, key=lambda b: abs(b - bucket))]
                cell = _Cell(near.log, near.variance + _NOISE**2)
            else:
                exact = tokens in self._measured[kind]
                spread = _NOISE / 2 if exact else _UNSURE / 2
                cell = _Cell(math.log(_between(self._measured[kind], tokens)), spread**2)
            self._cells[key] = cell
        return cell

    def to_json(self) -> dict[str, Any]:
        """What is worth keeping on disk."""
        scale = math.exp(self._pace.log)
        return {
            "measured": {
                kind: {str(n): seconds * scale for n, seconds in points.items()}
                for kind, points in self._measured.items()
            },
            "cells": [
                [kind, tokens, bucket, cell.log + self._pace.log, cell.variance]
                for (kind, tokens, bucket), cell in self._cells.items()
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Costs:
        """What `to_json` gave; raises KeyError, TypeError or ValueError for anything else."""
        costs = cls({k: {int(n): s for n, s in p.items()} for k, p in data["measured"].items()})
        for kind, tokens, bucket, log, variance in data["cells"]:
            cell = _Cell(float(log), float(variance) + _NOISE**2 / 4)
            costs._cells[str(kind), int(tokens), int(bucket)] = cell
        costs._pace.variance = 0.2**2  # who knows how busy the machine is today
        return costs


def _between(points: Mapping[int, float], tokens: int) -> float:
    """Seconds at `tokens`, on the straight line between the neighbours or through the last two."""
    if tokens in points:
        return points[tokens]
    known = list(points)
    if len(known) == 1:
        return points[known[0]] * tokens / known[0]
    above = min(int(np.searchsorted(known, tokens)), len(known) - 1)
    low, high = known[max(above - 1, 0)], known[max(above, 1)]
    slope = (points[high] - points[low]) / (high - low)
    return max(points[low] + slope * (tokens - low), points[known[0]] * 0.1)


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
    measured = {"check": _time_passes(target, _POINTS, 36.0, check, clock)}
    for name, session in drafters.items():
        measured[name] = _time_passes(session, _READS, 12.0, check, clock)
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
