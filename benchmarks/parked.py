"""What a parked planner with a lookup costs beside plain decoding.

    python benchmarks/parked.py MODEL [--behind 256 4000] [--rounds 400]

In one answer behind a text of each length, rounds without a planner and rounds in which it looks
for a draft that is then left out take turns, four and four: so both make the same passes, behind
the same text, on the same machine. Prints the median milliseconds of both, and the median ratio of
each four to the mean of the four before and the four behind them. What the planner's drafts gain or
lose isn't in it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from time import perf_counter

from edgespec import Runtime
from edgespec.adaptive import AdaptivePlanner
from edgespec.bench.prompts import long_prompt
from edgespec.chat import Message
from edgespec.drafters import Drafter
from edgespec.planner import Outcome, Planner, PlannerStatus
from edgespec.sampling import Sampler, SamplingParams
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft

BLOCK = 4


class Turns:
    """Lets a planner look for drafts in every other four rounds; drafts nothing in any."""

    def __init__(self, planner: Planner) -> None:
        self.seconds: list[float] = []  # of each round, from one call to the next
        self._planner = planner
        self._began = 0.0

    @property
    def _looks(self) -> bool:
        return len(self.seconds) // BLOCK % 2 == 1

    def begin(self, length: int) -> None:
        self._planner.begin(length)

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        now = perf_counter()
        if self._began:
            self.seconds.append(now - self._began)
        self._began = now
        if self._looks:
            self._planner.draft(drafters, tokens, room, sampler)
        return NO_DRAFT

    def observe(self, outcome: Outcome) -> None:
        if self._looks:
            self._planner.observe(outcome)

    def status(self) -> PlannerStatus:
        return self._planner.status()


def blocks(seconds: list[float]) -> list[float]:
    """The mean of each four rounds, the first eight left out: they index the text."""
    whole = range(2 * BLOCK, len(seconds) - BLOCK + 1, BLOCK)
    return [statistics.mean(seconds[at : at + BLOCK]) for at in whole]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--behind", type=int, nargs="+", default=[256, 4000])
    parser.add_argument("--rounds", type=int, default=400)
    args = parser.parse_args()
    with Runtime.open(target=args.model, drafters=["lookup"]) as runtime:
        costs = runtime.costs
        assert costs is not None, "this model can't be drafted for"
        ends = frozenset(runtime.target.tokenizer.stop_ids)
        sampling = SamplingParams(temperature=1.0, seed=1, banned_tokens=ends)
        for length in args.behind:
            ids = long_prompt(
                lambda text: list(runtime.encode_messages([Message("user", text)])), length
            )
            turns = Turns(AdaptivePlanner(costs))
            for _ in runtime.generate(ids, sampling, max_tokens=args.rounds + 2, planner=turns):
                pass
            means = blocks(turns.seconds)
            plain, parked = means[::2], means[1::2]
            ratios = [
                middle / ((before + behind) / 2)
                for before, middle, behind in zip(plain, parked, plain[1:], strict=False)
            ]
            print(
                f"behind {len(ids)} tokens, {len(turns.seconds)} rounds: plain "
                f"{1e3 * statistics.median(plain):.2f} ms, parked "
                f"{1e3 * statistics.median(parked):.2f} ms, {statistics.median(ratios):.3f} of it"
            )


if __name__ == "__main__":
    main()
