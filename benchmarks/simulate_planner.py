"""How near the planner comes to the best choice in hindsight, on simulated machines and texts.

    python benchmarks/simulate_planner.py [--seeds 3] [--only TEXT] [--svg FILE]

Prints, for each scenario, tokens in the time of one plain token: of the best fixed drafter and
lookahead, of the planner and of an oracle that knows which guesses stand; and the planner's regret
against both, in the median of the seeds and the worst.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from simulator import MACHINES, PROCESSES, Game, Played, fixed_cost, make_text, oracle_cost

from edgespec.adaptive import AdaptivePlanner

DRAFTERS = {"lookup": ("lookup",), "model": ("model",), "both": ("lookup", "model")}


@dataclass(frozen=True)
class Scenario:
    """A machine, a text and what may draft."""

    machine: str
    process: str
    drafters: str
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        return ", ".join(x for x in (self.machine, self.process, self.drafters, self.note) if x)


def scenarios() -> Iterator[Scenario]:
    """Every machine with every process, then what differs from the usual."""
    for machine in MACHINES:
        for process in PROCESSES:
            if machine == "q4_1":
                kinds = ("lookup",)
            elif process in ("copying", "code/prose", "useless"):
                kinds = ("model", "both")
            else:
                kinds = ("model",)
            for kind in kinds:
                yield Scenario(machine, process, kind)
    for machine in ("f16", "gpu", "q4_k_m"):
        for process in ("steady 0.6", "bursty", "code/prose", "prose/code"):
            blind = {"informed": 0.0, "certain": 0.0}
            yield Scenario(machine, process, "both", blind, "blind")
            long = {"answers": ((200, 1500),)}
            yield Scenario(machine, process, "both", long, "one long answer")


@dataclass(frozen=True)
class Result:
    """Tokens in the time of one plain token, by who played; and the planner's rounds."""

    plain: float
    best: float
    best_choice: tuple[str, int]
    oracle: float
    planner: float
    rounds: list[Played]


def simulate(scenario: Scenario, seed: int) -> Result:
    """Play one scenario."""
    rng = np.random.default_rng(seed)
    machine, names = MACHINES[scenario.machine], DRAFTERS[scenario.drafters]
    text = make_text(PROCESSES[scenario.process], rng, **scenario.options)
    planner = AdaptivePlanner(machine.measured(rng))
    rounds = Game(machine, text, seed + 1).play(planner, names)
    tokens = sum(tokens for _, tokens in text.answers)
    fixed = {
        (name, k): fixed_cost(machine, text, name, k)
        for name in names
        for k in range(13)
        if k or name == names[0]
    }
    best = min(fixed, key=lambda choice: fixed[choice])
    return Result(
        tokens / fixed[names[0], 0],
        tokens / fixed[best],
        best,
        tokens / oracle_cost(machine, text, names),
        tokens / sum(r.cost for r in rounds),
        rounds,
    )


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    parser.add_argument("--every", type=int, default=1, help="play only each such scenario")
    args = parser.parse_args()
    worst = []
    print(f"{'scenario':44} {'plain':>6} {'best fixed':>16} {'planner':>8} {'oracle':>7}   regret")
    for scenario in [s for s in scenarios() if args.only in s.name][:: args.every]:
        got = [simulate(scenario, 100 + seed) for seed in range(args.seeds)]
        regrets = [1 - r.planner / r.best for r in got]
        first = got[0]
        choice = f"{first.best_choice[0]} {first.best_choice[1]}" if first.best_choice[1] else ""
        print(
            f"{scenario.name:44} {first.plain:6.2f} {choice:>10} {median(r.best for r in got):5.2f} "
            f"{median(r.planner for r in got):8.2f} {median(r.oracle for r in got):7.2f} "
            f"{median(regrets):7.1%}, worst {max(regrets):6.1%}",
            flush=True,
        )
        worst.append((max(regrets), median(regrets), scenario.name))
    print(f"\n{len(worst)} scenarios; over 5%: {sum(w > 0.05 for w, _, _ in worst)} at worst, "
          f"{sum(m > 0.05 for _, m, _ in worst)} in the median; mean {np.mean([m for _, m, _ in worst]):.1%}")
    for w, m, name in sorted(worst, reverse=True)[:12]:
        print(f"  {w:6.1%} {m:6.1%}  {name}")


if __name__ == "__main__":
    main()
