"""Who answers: a runtime under one setting, plain decoding being one of them.

Invariant: every answer begins from empty caches and a fresh lookup, so none profits from what
another side, or the same one before, has read; behind a text length alone the target keeps that
text. Plain is the loop without a planner or a drafter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import Literal, Protocol

from edgespec.adaptive import AdaptivePlanner
from edgespec.bench.record import Answer
from edgespec.costs import Costs
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError, ModelError
from edgespec.planner import FixedPlanner, Outcome, Planner, PlannerStatus
from edgespec.platform.energy import EnergyMeter
from edgespec.runtime import Runtime
from edgespec.sampling import Sampler, SamplingParams
from edgespec.session import TokenIds
from edgespec.verify import Draft

PLAIN = "plain"
AUTO: Literal["auto"] = "auto"


class Side(Protocol):
    """One of those that answer a prompt in turn."""

    name: str

    def answer(self, ids: Sequence[int], max_tokens: int, sampling: SamplingParams) -> Answer:
        """Continue a prompt; the answer holds no end token."""
        ...


@dataclass(frozen=True)
class Setting:
    """Which drafters may draft, and how many tokens a round; 0 is plain decoding once more."""

    drafters: tuple[str, ...]
    lookahead: int | Literal["auto"]

    @property
    def name(self) -> str:
        if not self.lookahead:
            return "plain again"
        return f"{'+'.join(self.drafters)}:{self.lookahead}"


def settings(
    groups: Sequence[tuple[str, ...]], lookaheads: Sequence[int | Literal["auto"]]
) -> list[Setting]:
    """Each choice of drafters with each lookahead, once."""
    made = [
        Setting(group if lookahead else (), lookahead)
        for lookahead, group in product(lookaheads, groups)
    ]
    return list(dict.fromkeys(made))


class RuntimeSide:
    """A runtime with a planner of its own."""

    def __init__(self, runtime: Runtime, setting: Setting | None) -> None:
        """`setting` None is plain decoding."""
        self.name = setting.name if setting else PLAIN
        self._runtime = runtime
        self._planner = _planner(runtime, setting)
        self._meter = EnergyMeter()

    def answer(
        self, ids: Sequence[int], max_tokens: int, sampling: SamplingParams, *, read: bool = False
    ) -> Answer:
        """See `Side.answer`; with `read` the target may keep the prompt from the answer before.

        Decoding is timed like that of other programs: from outside, streamed text included.
        """
        forget(self._runtime, target=not read)
        joules = self._meter.joules()
        asked = perf_counter()
        generation = self._runtime.generate(
            ids, sampling, max_tokens=max_tokens, planner=self._planner
        )
        began = perf_counter()
        arrivals = [(round(perf_counter() - asked, 6), len(chunk.tokens)) for chunk in generation]
        ended = perf_counter()
        result, counters = generation.result, generation.counters
        if result.notes:  # its drafter failed, which is no measurement
            raise ModelError(result.notes[0])
        first = None if counters.ttft_seconds is None else began + counters.ttft_seconds
        after = self._meter.joules()
        return Answer(
            side=self.name,
            tokens=list(result.tokens),
            text=result.text,
            finish_reason=str(result.finish_reason),
            ttft_seconds=None if first is None or read else first - asked,
            decode_seconds=None if first is None else ended - first,
            arrivals=arrivals,
            rounds=counters.rounds,
            drafted=counters.drafted,
            accepted=counters.accepted,
            draft_seconds=counters.draft_seconds,
            check_seconds=counters.check_seconds,
            sample_seconds=counters.sample_seconds,
            drafters={
                name: {"rounds": d.rounds, "drafted": d.drafted, "accepted": d.accepted}
                for name, d in counters.drafters.items()
            },
            joules=None if joules is None or after is None else after - joules,
        )


def forget(runtime: Runtime, *, target: bool = True) -> None:
    """Empty the caches of the drafters, and of the target."""
    if target:
        runtime.target.session.rollback(0)
    for drafter in runtime.drafters.values():
        if isinstance(drafter, ModelDrafter):
            drafter.model.session.rollback(0)


def _planner(runtime: Runtime, setting: Setting | None) -> Planner:
    if setting is None or not setting.lookahead:
        return FixedPlanner((), 0)
    missing = [name for name in setting.drafters if name not in runtime.drafters]
    if missing:
        there = ", ".join(runtime.drafters) or "none"
        raise ConfigError(
            f"{runtime.target.name} has no drafter {missing[0]!r} that can be used (there is: "
            f"{there}): change --drafters"
        )
    if setting.lookahead != AUTO:
        return _Among(setting.drafters, FixedPlanner(setting.drafters, setting.lookahead))
    if runtime.costs is None:
        raise ConfigError(f"{runtime.target.name} can't speculate, so there is nothing to measure")
    # Costs of its own: settings must not learn from each other.
    costs = Costs.from_json(runtime.costs.to_json())
    return _Among(setting.drafters, AdaptivePlanner(costs))


class _Among:
    """A planner that sees some of the drafters, lookup being new in each answer."""

    def __init__(self, names: Sequence[str], planner: Planner) -> None:
        self._names = names
        self._planner = planner
        self._lookup = LookupDrafter()

    def begin(self, length: int) -> None:
        self._lookup = LookupDrafter()
        self._planner.begin(length)

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        chosen = {
            name: self._lookup if isinstance(drafters[name], LookupDrafter) else drafters[name]
            for name in self._names
        }
        return self._planner.draft(chosen, tokens, room, sampler)

    def observe(self, outcome: Outcome) -> None:
        self._planner.observe(outcome)

    def status(self) -> PlannerStatus:
        return self._planner.status()
