"""How the planner does on recorded texts: real prompts, a real drafter's guesses, measured costs.

    python benchmarks/replay_texts.py [--costs q8_0 ...] [--orders 4] [--details]

The texts are greedy answers of Qwen2.5-Coder 1.5B Q4_K_M to two prompts of each category (six of
code), with what the 0.5B Q4_0 would have guessed at every position (`record_texts.py` makes such a
file; the prompts are Spec-Bench's, Apache-2.0, and HumanEval's, MIT). `qwen-coder-others.jsonl.gz`,
beside them, has other prompts, which the planner wasn't tuned on. Passes cost what COSTS says,
noisy by 8%, and every drafter and lookahead plays the very same text: what a busy machine does to a
measurement doesn't show here, and neither does what the costs leave out.

Prints, for each machine, the planner's speed in plain decoding's against the best fixed drafter and
lookahead over all texts; then the slowest category. `--details` prints every category.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from simulator import LONGEST, affordable, curve

from edgespec.adaptive import AdaptivePlanner
from edgespec.costs import Costs
from edgespec.drafters import Drafter, GoOn
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.reading import FIRST, NEAR, left_out
from edgespec.planner import FixedPlanner, Outcome, Planner, Seconds
from edgespec.sampling import GREEDY, Sampler
from edgespec.session import TokenIds, common_prefix
from edgespec.timing import READS
from edgespec.verify import Draft, Verdict

TEXTS = Path(__file__).parent / "texts" / "qwen-coder.jsonl.gz"
NOISE = 0.08
END = -1  # the token that ends an answer, which isn't recorded
LIMIT = 128  # tokens of an answer at most, when the texts were recorded

# Milliseconds of a check of n tokens, two cores, medians: behind 256 tokens on the AMD EPYC of
# docs/performance.md (2026-11-29), and behind 130 on the Intel Xeon (2026-11-30).
COSTS: dict[str, Mapping[int, float]] = {
    "f16": {
        1: 149.5, 2: 146.8, 3: 152.2, 4: 188.7, 5: 192.2, 6: 226.8, 7: 244.4, 8: 270.7, 9: 295.9,
        10: 334.6, 12: 371.0, 14: 393.0, 16: 463.0, 17: 473.7,
        24: 605.0, 32: 796.0,
    },
    "q8_0": {
        1: 78.5, 2: 106.1, 3: 179.1, 4: 172.2, 5: 243.6, 6: 222.0, 7: 291.9, 8: 285.8, 9: 353.0,
        10: 328.0, 12: 415.9, 14: 448.0, 16: 508.0, 17: 565.2,
        24: 699.0, 32: 966.0,
    },
    "q4_k_m": {
        1: 55.1, 2: 92.5, 3: 133.2, 4: 145.5, 5: 173.4, 6: 199.7, 7: 226.5, 8: 330.5, 9: 349.7,
        10: 378.4, 12: 457.7, 14: 471.5, 16: 482.0, 17: 550.4,
        24: 737.0, 32: 775.0,
    },
    "f16-xeon": {
        1: 163.0, 2: 177.0, 3: 196.0, 4: 199.0, 5: 227.0, 8: 272.0, 16: 385.0, 17: 397.0, 32: 624.0
    },
    "q8_0-xeon": {
        1: 144.0, 2: 141.0, 3: 165.0, 4: 177.0, 5: 266.0, 8: 259.0, 16: 406.0, 17: 518.0, 32: 704.0
    },
    "q4_k_m-xeon": {
        1: 59.5, 2: 95.6, 3: 113.6, 4: 106.5, 5: 140.9, 8: 194.2, 16: 233.2, 17: 286.4, 32: 406.5
    },
}  # fmt: skip
# Of the drafter, likewise.
DRAFT = {1: 22.0, 2: 31.5, 3: 40.1, 4: 39.7, 8: 65.7, 16: 111.8}
DRAFT_XEON = {1: 30.2, 2: 36.0, 3: 45.6, 4: 42.7, 5: 57.7, 8: 70.3, 16: 111.6}


@dataclass(frozen=True)
class RecordedText:
    """A prompt and its answer; what the drafter would guess, and how sure the target is.

    Guesses (ids, confidences) and gaps are those behind the answer's first token, its second, ...;
    `near` are those of a drafter that knows the end of the prompt alone, empty for short ones.
    """

    category: str
    prompt: int
    tokens: TokenIds  # prompt and answer
    guesses: Sequence[tuple[Sequence[int], Sequence[float]]]
    gaps: Sequence[float]
    near: Sequence[tuple[Sequence[int], Sequence[float]]] = ()


def load(path: Path) -> list[RecordedText]:
    """The texts of a file that `record_texts.py` wrote."""
    texts = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for entry in map(json.loads, lines):
            tokens = np.array(entry["prompt"] + entry["tokens"], np.int32)
            texts.append(
                RecordedText(
                    entry["category"],
                    len(entry["prompt"]),
                    tokens,
                    entry["guesses"],
                    entry["gaps"],
                    entry.get("near", ()),
                )
            )
    return texts


class RecordedDrafter:
    """Guesses what the model guessed, and takes its time."""

    name, free, failed = "model", False, ""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._cached: TokenIds = np.zeros(0, np.int32)
        self._prompt = 0
        self._knows_all = False

    def begin(self, length: int) -> None:
        self._prompt, self._knows_all = length, False

    def propose(
        self,
        tokens: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        game = self._game
        del sampler  # its choices are recorded
        game.spend(game.read(self.owes(tokens, near=near)))
        self._knows_all = self._knows_all or not near
        guesses = game.text.guesses if self._knows_all else game.text.near
        ids, confidence = guesses[len(tokens) - game.text.prompt - 1]
        size, longest = 1, min(max_tokens, len(ids))
        while size < longest and (not go_on or go_on(ids[size - 1], confidence[size - 1])):
            game.spend(game.read(1))
            size += 1
        self._cached = np.concatenate([tokens, np.array(ids[: size - 1], np.int32)])
        return Draft(tuple(ids[:size]), None, self.name, tuple(confidence[:size]))

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        """As a `ModelDrafter` reads, its guesses as if it had read the whole answer."""
        read = min(common_prefix(self._cached, tokens), len(tokens) - 1)
        if near and read < self._prompt and self._game.text.near:
            read = self._prompt - FIRST - NEAR
        elif not near and not self._knows_all and read >= self._prompt:
            read = FIRST
        return len(tokens) - read - left_out(len(tokens) - max(read, self._prompt))

    def close(self) -> None:
        pass


class Game:
    """A machine on which planners play texts; time is simulated."""

    text: RecordedText

    def __init__(self, costs: str, seed: int, noise: float = NOISE) -> None:
        self._check = curve({0: 0.0, **COSTS[costs]})
        self._draft = curve({0: 0.0, **(DRAFT_XEON if costs.endswith("xeon") else DRAFT)})
        self._rng = np.random.default_rng(seed)
        self._noise = noise
        self.cost = self._clock = 0.0
        self.drafters: dict[str, Drafter] = {
            "lookup": LookupDrafter(),
            "model": RecordedDrafter(self),
        }

    def read(self, tokens: int) -> float:
        """The drafter's pass over some tokens."""
        if tokens < LONGEST:
            return float(self._draft[tokens])
        return float(self._draft[16] + (tokens - 16) * (self._draft[16] - self._draft[8]) / 8)

    def spend(self, cost: float) -> None:
        """Let time pass; planners see it with noise."""
        self.cost += cost
        self._clock += cost * float(np.exp(self._noise * self._rng.normal() - self._noise**2 / 2))

    def measured(self) -> Costs:
        """What would have been measured beforehand."""

        def seen(costs: npt.NDArray[np.float64], sizes: Sequence[int]) -> dict[int, float]:
            spread = self._noise / 2
            return {n: float(costs[n] * np.exp(spread * self._rng.normal())) for n in sizes}

        points = affordable(lambda n: float(self._check[n] / self._check[1]))
        return Costs({"check": seen(self._check, list(points)), "model": seen(self._draft, READS)})

    def play(self, text: RecordedText, planner: Planner) -> tuple[float, float]:
        """Milliseconds of this text, and of plain decoding."""
        self.text, self.cost = text, 0.0
        sampler = Sampler(GREEDY, 1 << 18)
        at, end = text.prompt + 1, len(text.tokens)
        planner.begin(text.prompt)
        for drafter in self.drafters.values():
            drafter.begin(text.prompt)
        while at < end:
            began = self._clock
            room = text.prompt + LIMIT - at - 1  # who asks doesn't know where the answer ends
            draft = planner.draft(self.drafters, text.tokens[:at], room, sampler)
            drafted = self._clock
            self.spend(float(self._check[len(draft) + 1]))
            guess = np.array(draft.tokens, np.int32)
            stood = common_prefix(guess, text.tokens[at : at + len(draft)])
            first = at - text.prompt - 1
            rows = np.zeros((len(draft) + 1, 2), np.float32)
            gaps = text.gaps[first : first + len(rows)]
            rows[: len(gaps), 0] = gaps
            follows = int(text.tokens[at + stood]) if at + stood < end else END
            spent = drafted - began, self._clock - drafted
            planner.observe(Outcome(draft, Verdict(stood, follows), Seconds(*spent), at, rows))
            at += stood + 1
        return self.cost, float(self._check[1]) * (end - text.prompt - 1)


Times = list[tuple[str, float, float]]
"""By text: its category, and milliseconds with a planner and without drafts."""


def speed(times: Times, category: str = "") -> float:
    """Tokens per second in those of plain decoding."""
    mine = [(spent, plain) for name, spent, plain in times if category in ("", name)]
    return sum(plain for _, plain in mine) / sum(spent for spent, _ in mine)


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--costs", nargs="+", default=list(COSTS), choices=list(COSTS))
    parser.add_argument("--orders", type=int, default=4, help="orders the texts are played in")
    parser.add_argument("--details", action="store_true", help="every category")
    args = parser.parse_args()
    texts = load(args.texts)
    categories = list(dict.fromkeys(text.category for text in texts))
    for machine in args.costs:
        fixed: dict[str, Times] = {}
        for names in (["lookup"], ["model"], ["lookup", "model"]):
            for k in range(1, 9):
                game, planner = Game(machine, 0, 0.0), FixedPlanner(names, k)
                played = [(t.category, *game.play(t, planner)) for t in texts]
                fixed[f"{'+'.join(names)} at {k}"] = played
        runs: list[Times] = []
        for order in range(args.orders):
            game = Game(machine, order)
            adaptive = AdaptivePlanner(game.measured())
            shuffled = np.random.default_rng(order).permutation(len(texts))
            runs.append([(texts[i].category, *game.play(texts[i], adaptive)) for i in shuffled])
        best = max(fixed, key=lambda name: speed(fixed[name]))
        found = median(speed(run) for run in runs)
        against = max(1.0, speed(fixed[best]))
        by_category = {c: median(speed(run, c) for run in runs) for c in categories}
        slowest = min(by_category, key=lambda c: by_category[c])
        print(
            f"{machine}: {found:.3f}, best fixed {speed(fixed[best]):.3f} ({best}), ratio "
            f"{found / against:.3f}; slowest category {slowest} {by_category[slowest]:.3f}"
        )
        for c in categories if args.details else ():
            name = max(fixed, key=lambda n: speed(fixed[n], c))
            print(
                f"    {c:15} {by_category[c]:.3f}   its own best fixed {speed(fixed[name], c):.3f} "
                f"({name}), the overall one {speed(fixed[best], c):.3f}"
            )


if __name__ == "__main__":
    main()
