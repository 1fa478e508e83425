"""How near the planner comes to the best choice in hindsight, on simulated machines and texts.

    python benchmarks/simulate_planner.py [--seeds 3] [--only TEXT] [--svg FILE]

Prints a table of scenarios and one of machines. Speeds are tokens in the time of one plain token at
the start: of the best fixed drafter and lookahead in hindsight, of the planner, and of an oracle
that knows which guesses stand. Regret is what the planner lost against the best fixed choice, in
the median of the seeds and in the worst; the last column is its worst gain over plain decoding, in
the table of machines its best scenario's median.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from simulator import (
    FAR,
    LOOKAHEADS,
    MACHINES,
    PROCESSES,
    Game,
    Played,
    fixed_cost,
    make_text,
    oracle_cost,
)

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
        if machine.startswith("far"):
            continue
        for process in PROCESSES:
            if machine == "q4_1":
                kinds = ("lookup",)
            elif process in ("copying", "code/prose", "useless"):
                kinds = ("model", "both")
            else:
                kinds = ("model",)
            for kind in kinds:
                yield Scenario(machine, process, kind)
    for machine in ("far q4_1", "far gpu"):
        for process in ("copying", "steady 0.6"):
            yield Scenario(machine, process, "lookup", FAR)
    yield Scenario("apple", "prose/code", "model", {"informed": 0.0, "certain": 0.0}, "blind")
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
        for k in LOOKAHEADS
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


def by_machine(rows: Sequence[tuple[str, float, float, float, float]]) -> Iterator[str]:
    """A table of (machine, median regret, worst regret, worst and median gain) by machine."""
    yield (
        "| machine | scenarios | regret, mean | worst median | worst run | worst against plain | "
        "best against plain |"
    )
    yield "|---|---|---|---|---|---|---|"
    for machine in MACHINES:
        if of_it := [row[1:] for row in rows if row[0] == machine]:
            usual, worst, least, gains = zip(*of_it, strict=True)
            yield (
                f"| {machine} | {len(of_it)} | {np.mean(usual):.1%} | {max(usual):.1%} | "
                f"{max(worst):.1%} | {min(least):.1%} | {1 + max(gains):.2f}x |"
            )


def picture(points: list[tuple[str, float, float]]) -> str:
    """An SVG of (scenario, best fixed, planner): on the line is as good, below it is regret."""
    least, most, size, edge = 0.45, 3.2, 560, 56
    scale = (size - 2 * edge) / (log(most) - log(least))
    place = lambda speed: edge + scale * (log(speed) - log(least))  # noqa: E731
    colours = dict(
        zip(
            MACHINES,
            "#e69f00 #d55e00 #0072b2 #009e73 #cc79a7 #56b4e9 #7f7f7f #882255 #117733 #332288 "
            "#aa4499".split(),
            strict=True,
        )
    )
    line = (
        f"M{place(least):.0f} {size - place(least):.0f}L{place(most):.0f} {size - place(most):.0f}"
    )
    drop = -scale * log(0.95)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{size}" height="{size}" fill="white"/>',
        f'<path d="{line}" stroke="#444"/>',
        f'<path d="{line}" stroke="#bbb" stroke-dasharray="4" '
        f'transform="translate(0 {drop:.1f})"/>',
        f'<text x="{size / 2}" y="{size - 8}" text-anchor="middle">'
        "best fixed drafter and lookahead, times a plain token's speed</text>",
        f'<text x="14" y="{size / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {size / 2})">the planner</text>',
        f'<text x="{size - 190}" y="{size - 130}" fill="#888">dashed: a regret of 5%</text>',
    ]
    for speed in (0.5, 0.7, 1.0, 1.4, 2.0, 2.8):
        at = place(speed)
        parts.append(f'<text x="{at:.0f}" y="{size - 34}" text-anchor="middle">{speed}</text>')
        parts.append(
            f'<text x="{edge - 8}" y="{size - at + 4:.0f}" text-anchor="end">{speed}</text>'
        )
    for i, (machine, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{edge + 16}" cy="{40 + 17 * i}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{edge + 26}" y="{44 + 17 * i}">{machine}</text>')
    parts += [
        f'<circle cx="{place(best):.1f}" cy="{size - place(got):.1f}" r="3.5" fill-opacity="0.7" '
        f'fill="{colours[name.split(",")[0]]}"><title>{name}</title></circle>'
        for name, best, got in points
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    parser.add_argument("--svg", type=Path, help="draw the scenarios into this file")
    args = parser.parse_args()
    rows, points = [], []
    print(
        "| scenario | best fixed | its speed | planner | oracle | regret | worst | against plain |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for scenario in [s for s in scenarios() if args.only in s.name]:
        got = [simulate(scenario, 100 + seed) for seed in range(args.seeds)]
        regrets = [1 - r.planner / r.best for r in got]
        gains = [r.planner / r.plain - 1 for r in got]
        name, size = got[0].best_choice
        best, planner = median(r.best for r in got), median(r.planner for r in got)
        print(
            f"| {scenario.name} | {f'{name} {size}' if size else 'plain'} | {best:.2f} | "
            f"{planner:.2f} | {median(r.oracle for r in got):.2f} | {median(regrets):.1%} | "
            f"{max(regrets):.1%} | {min(gains):+.1%} |",
            flush=True,
        )
        usual, worst = median(regrets), max(regrets)
        rows.append((scenario.machine, usual, worst, min(gains), median(gains)))
        points.append((scenario.name, best, planner))
    print("", *by_machine(rows), sep="\n")
    _, medians, worsts, slowest, _ = zip(*rows, strict=True)
    print(
        f"\n{len(rows)} scenarios, {args.seeds} seeds: regret {np.mean(medians):.1%} in the mean, "
        f"{max(medians):.1%} in the worst scenario's median, {max(worsts):.1%} in the worst run; "
        f"slowest against plain {min(slowest):+.1%}"
    )
    if args.svg:
        args.svg.write_text(picture(points), "utf-8")


if __name__ == "__main__":
    main()
