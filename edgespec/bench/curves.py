"""What a pass over n tokens costs here, measured apart from any answer.

Invariant: the sizes take turns, so that a machine whose pace changes changes all of them alike; the
caches are empty afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
    known: Collection[tuple[str, str]] = (),
    say: Callable[[str], None] = lambda _: None,
    sizes: Sequence[int] = SIZES,
    behind: int = BEHIND,
    turns: int = TURNS,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Costs]:
    """The target's checks, and a step and short reads of each drafter that is a model.

    `known` are models, each with its role, that were measured before. Nothing comes of a target
    that can't take tokens back, as each pass after the first needs.
    """
    if not runtime.target.session.can_rollback:
        return
    drafters = [d.model for d in runtime.drafters.values() if isinstance(d, ModelDrafter)]
    for model in (runtime.target, *drafters):
        role, wanted = ("target", sizes) if model is runtime.target else ("drafter", sizes[:2])
        if (model.name, role) not in known:
            say(f"measuring what passes of {model.name} cost...")
            yield _curve(model.session, pair, model.name, role, wanted, behind, turns, clock)


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
