"""What a pass over n tokens costs here, measured apart from any answer.

Invariant: the sizes take turns, so that a machine whose pace changes changes all of them alike; the
caches are empty afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from edgespec.bench.record import Costs
from edgespec.drafters.model import ModelDrafter
from edgespec.runtime import Runtime
from edgespec.session import Session

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17)
BEHIND = 256
TURNS = 5


def cost_curves(
    runtime: Runtime,
    pair: str,
    *,
    sizes: Sequence[int] = SIZES,
    behind: int = BEHIND,
    turns: int = TURNS,
    clock: Callable[[], float] = perf_counter,
) -> list[Costs]:
    """The target's checks, and a step and short reads of each drafter that is a model."""
    found = [
        _curve(runtime.target.session, pair, runtime.target.name, "target", sizes, behind, turns,
               clock)
    ]  # fmt: skip
    found += [
        _curve(d.model.session, pair, d.model.name, "drafter", sizes[:2], behind, turns, clock)
        for d in runtime.drafters.values()
        if isinstance(d, ModelDrafter)
    ]
    return found


def medians(costs: Costs) -> dict[int, float]:
    """Seconds by tokens in a pass."""
    return {int(size): median(seconds) for size, seconds in costs.seconds.items() if seconds}


def _curve(
    session: Session,
    pair: str,
    model: str,
    role: str,
    sizes: Sequence[int],
    behind: int,
    turns: int,
    clock: Callable[[], float],
) -> Costs:
    fit = [size for size in sizes if behind + size <= session.context_size]
    text = [i % min(session.vocab_size, 1000) for i in range(behind + max(fit, default=1))]
    seconds: dict[str, list[float]] = {str(size): [] for size in fit}
    session.rollback(0)
    try:
        if fit:
            session.forward(text[:behind], 1)
        for turn in range(turns + 1):  # the first warms up
            for size in fit:
                began = clock()
                session.forward(text[:size], size if role == "target" else 1)
                spent = clock() - began
                session.rollback(behind)
                if turn:
                    seconds[str(size)].append(round(spent, 7))
    finally:
        session.rollback(0)
    return Costs(pair, model, role, behind, seconds)
