"""Is a side's text plain's own? Where it isn't, whether rounding explains the first difference.

A pass over four tokens adds up in another order than four passes over one, so two tokens that are
nearly as likely can change places. How much that changes is measured where the texts part, on the
rows before it. Invariant: what is compared are the very answers that were timed; only where two
differ is anything computed again, and that is not timed. The caches are empty afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from edgespec.bench.sides import forget
from edgespec.divergence import first_redrawn
from edgespec.exactness import common, near_tie
from edgespec.generation import Result
from edgespec.metrics import Counters
from edgespec.runtime import Runtime
from edgespec.sampling import SamplingParams
from edgespec.session import Logits

_ROWS = 32  # rows before the difference from which the rounding is learnt
_CHECKS = (2, 4, 9)  # tokens in passes that stand for checks: each may run another kernel


def parting(plain: Sequence[int], other: Sequence[int]) -> dict[str, Any] | None:
    """The first token where `other` isn't `plain`, from 0, and what each has there.

    None where there is no such token; None for a text that has ended.
    """
    at = common(plain, other)
    if at == len(plain) == len(other):
        return None
    return {
        "token": at,
        "plain": plain[at] if at < len(plain) else None,
        "other": other[at] if at < len(other) else None,
    }


def difference(
    runtime: Runtime,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    sampling: SamplingParams,
) -> dict[str, Any] | None:
    """The first token where `other` isn't `plain`; None where there is none.

    Beside what `parting` tells, `gap` is how far one of the two tokens is from being taken, in
    logits (None: it never would be), `noise` the largest change in a likeliest token's
    log-probability between single and batched passes. `explained` says whether rounding accounts
    for the gap.
    """
    found = parting(plain, other)
    if found is None:
        return None
    at = found["token"]
    if not runtime.target.session.can_rollback:
        return {**found, "gap": None, "noise": None, "explained": False}
    text = [*prompt, *plain[:at]]
    count = min(at + 1, len(text), _ROWS)
    single, *batched = _rows(runtime, text, count, (1, *_CHECKS))
    ends = sorted(runtime.target.tokenizer.stop_ids)
    ours, theirs = plain[at : at + 1] or ends, other[at : at + 1] or ends
    if sampling.greedy:
        gap = min(_gap(rows[-1], ours, theirs) for rows in (single, *batched))
    else:
        gap = _drawn_gap(runtime, text, ours, theirs, sampling)
    noise = max(_noise(single, rows) for rows in batched)
    known = gap if math.isfinite(gap) else None
    return {**found, "gap": known, "noise": noise, "explained": gap <= near_tie(noise)}


def _drawn_gap(
    runtime: Runtime,
    text: Sequence[int],
    ours: Sequence[int],
    theirs: Sequence[int],
    sampling: SamplingParams,
) -> float:
    """The gap between the draws behind a text, with the same seed; the nearest of end tokens."""
    gaps = [math.inf]
    for one, two in product(ours, theirs):
        results = [Result("", (token,), (), "length", Counters()) for token in (one, two)]
        found = first_redrawn(runtime, 0, tuple(text), results[0], results[1], sampling)
        if found is not None:
            gaps.append(found.gap)
    forget(runtime)
    return min(gaps)


def _rows(runtime: Runtime, text: Sequence[int], count: int, sizes: Sequence[int]) -> list[Logits]:
    """The logits (count, V) behind the last tokens of a text, fed in turn by each of `sizes`.

    What comes before them is read once.
    """
    session, known = runtime.target.session, runtime.target.tokenizer.num_tokens
    begin = len(text) - count
    found = []
    forget(runtime)
    try:
        if begin:
            session.forward(text[:begin], 1)
        for size in sizes:
            rows = []
            for at in range(begin, len(text), size):
                part = text[at : at + size]
                rows.append(session.forward(part, len(part))[:, :known].copy())
            session.rollback(begin)
            found.append(np.concatenate(rows))
    finally:
        forget(runtime)
    return found


def _gap(row: Logits, ours: Sequence[int], theirs: Sequence[int]) -> float:
    """How far the likeliest token is above the two that were taken; the nearest of end tokens."""
    taken = [max((float(row[token]) for token in side), default=-math.inf)
             for side in (ours, theirs)]  # fmt: skip
    return float(row.max()) - min(taken)


def _noise(single: Logits, batched: Logits) -> float:
    likeliest = single.argmax(axis=1)
    rows = np.arange(len(single))
    one, other = (
        logits[rows, likeliest] - np.logaddexp.reduce(logits, axis=1)
        for logits in (single, batched)
    )
    return float(np.abs(one - other).max())
