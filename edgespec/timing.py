"""What passes take on this machine, timed when a pair is first used.

Invariant: the caches are empty afterwards, and the time of some 40 plain tokens isn't exceeded but
by single passes that another program may have held up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

from edgespec.costs import Costs
from edgespec.errors import ConfigError
from edgespec.session import Session

OnPass = Callable[[str, int, float], None]
"""Told of each pass that is measured: "check" or a drafter's name, tokens, seconds."""

POINTS = (1, 2, 3, 4, 6, 8, 16, 32, 5, 12)
"""Passes of the target that are measured, the first before the others where time is short; what
isn't measured lies between or beyond.
"""
READS = (1, 2, 16)
"""Passes of a drafter: a step, the usual catch-up, a long one."""

_ENOUGH = 9  # measurements of one pass
_HELD_UP = 1.6  # times what a pass should take: it had something else in it
_MOMENT = 0.2  # seconds that such a pass may take again where no time is left for it


def measure(
    target: Session,
    drafters: Mapping[str, Session],
    *,
    check: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = perf_counter,
    on_pass: OnPass = lambda *_: None,
) -> Costs:
    """Time passes of the target, and steps of each drafter, in the time of some 40 plain tokens.

    The caches are empty afterwards. `check` is called between passes and may raise to stop;
    `on_pass` is told of each pass: its kind, tokens and seconds. Raises ConfigError for a drafter
    called "check", as the target's passes are.
    """
    if "check" in drafters:
        raise ConfigError('a drafter called "check" would take the name of the target\'s passes')

    def time(kind: str, session: Session, points: Sequence[int], budget: float) -> dict[int, float]:
        def once(tokens: int, seconds: float) -> None:
            on_pass(kind, tokens, seconds)

        return _time_passes(session, points, budget, check, clock, once, one_row=kind != "check")

    measured = {"check": time("check", target, POINTS, 34.0)}
    for name, session in drafters.items():
        measured[name] = time(name, session, READS, 12.0)
    return Costs(measured)


def _time_passes(
    session: Session,
    points: Sequence[int],
    budget: float,
    check: Callable[[], None],
    clock: Callable[[], float],
    on_pass: Callable[[int, float], None],
    *,
    one_row: bool,
) -> dict[int, float]:
    """Median seconds by tokens in a pass.

    `budget` is in passes over one token; the pass that warms up isn't counted.
    """
    text = np.arange(max(points), dtype=np.int32) % session.vocab_size
    begin = min(4, session.context_size // 2)
    times: dict[int, list[float]] = {n: [] for n in points if begin + n <= session.context_size}

    def once(n: int) -> float:
        check()
        began = clock()
        session.forward(text[:n], 1 if one_row else n)
        spent = clock() - began
        session.rollback(begin)
        times[n].append(spent)
        on_pass(n, spent)
        return spent

    try:
        session.rollback(0)
        session.forward(text[:begin], 1)
        single = min(once(1) for _ in range(3))
        left = (budget - 3) * single
        for n in list(times)[1:]:
            shorter = {m: min(seen) for m, seen in times.items() if m < n and seen}
            # A longer pass is hardly cheaper than a shorter one.
            if max(shorter.values()) > left:
                continue
            left -= (first := once(n))
            # Nor is a token much dearer there. A GPU makes its kernels ready in the first pass of a
            # size, and on a CPU another program may have held it up: then it is done again.
            longest = max(shorter)
            usual = shorter[longest] * n / longest
            if first > _HELD_UP * usual and first <= max(left, _MOMENT):
                left -= once(n)
        seen = [n for n in times if times[n]]
        while fit := [n for n in seen if min(times[n]) <= left and len(times[n]) < _ENOUGH]:
            left -= once(min(fit, key=lambda n: len(times[n])))
    finally:
        session.rollback(0)
    # Where others followed, the first says less. A coarse clock may see no time pass.
    return {n: max(float(np.median(times[n][1:] or times[n])), 1e-7) for n in seen}
