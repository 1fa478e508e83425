"""How long one round's sampling takes: all rows of target and drafter, no model in it.

    python benchmarks/sampling.py [--vocab 151936] [--lookahead 4] [--rounds 60]

Prints the median and the least time of a round in milliseconds of this process's own CPU time, so
that a busy machine shows in it as little as can be. A round draws `lookahead` draft tokens from
the drafter's rows, checks them, and commits what stands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import numpy.typing as npt

from edgespec.decode import verify
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.verify import Draft

Logits = npt.NDArray[np.float32]

SETTINGS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "top-k 40, top-p 0.95": SamplingParams(temperature=0.7, top_k=40, top_p=0.95),
    "the same, penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.1),
    "temperature alone": SamplingParams(temperature=0.7, top_k=0, top_p=1.0),
    "top-p 0.95 alone": SamplingParams(temperature=0.7, top_k=0, top_p=0.95),
    "min-p 0.05 alone": SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.05),
    "typical 0.95 alone": SamplingParams(temperature=0.7, top_k=0, top_p=1.0, typical_p=0.95),
    "top-k 5000": SamplingParams(temperature=0.7, top_k=5000, top_p=1.0),
}


def realistic(rng: np.random.Generator, vocab: int) -> Logits:
    """A bell of logits with a few words that stand out."""
    row = rng.normal(scale=3, size=vocab)
    row[rng.integers(vocab, size=12)] += rng.uniform(8, 16, size=12)
    return row.astype(np.float32)


def flat(rng: np.random.Generator, vocab: int) -> Logits:
    """Nothing stands out; every value its own."""
    return rng.normal(scale=0.01, size=vocab).astype(np.float32)


def ties(rng: np.random.Generator, vocab: int) -> Logits:
    """Three values in all."""
    return rng.integers(3, size=vocab).astype(np.float32)


def ascending(rng: np.random.Generator, vocab: int) -> Logits:
    """Sorted, likeliest last."""
    return np.sort(realistic(rng, vocab))


SHAPES: dict[str, Callable[[np.random.Generator, int], Logits]] = {
    "realistic": realistic,
    "flat": flat,
    "ties": ties,
    "ascending": ascending,
}


def round_times(
    params: SamplingParams, shape: str, vocab: int, lookahead: int, rounds: int
) -> list[float]:
    """Seconds of sampling in each round."""
    rng = np.random.default_rng(7)
    sampler = Sampler(params, vocab, rng.integers(vocab, size=2000).astype(np.int32))
    target = [SHAPES[shape](rng, vocab) for _ in range(lookahead + 1)]  # (k+1, V)
    # A drafter that is mostly right, so that most rounds look at most rows.
    drafter = [row + rng.normal(scale=0.1, size=vocab).astype(np.float32) for row in target]
    rows = np.stack(target)
    position, times = 2000, []
    for _ in range(rounds + 3):
        began = process_time()
        drafted, probs = [], []
        for i in range(lookahead):
            token, dist = sampler.pick(drafter[i], drafted, position + i)
            drafted.append(token)
            if dist is not None:
                probs.append(dist)
        draft = Draft(tuple(drafted), tuple(probs) if probs else None)
        verdict = verify(rows, draft, sampler, position)
        new = verdict.tokens(draft)
        sampler.commit(new)
        times.append(process_time() - began)
        position += len(new)
    return times[3:]  # the first warm the caches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    row = realistic(np.random.default_rng(1), args.vocab)
    began = process_time()
    for _ in range(200):
        row.argmax()
    argmax = (process_time() - began) / 200 * 1e3
    print(f"{args.vocab} words, lookahead {args.lookahead}; ms a round, median (least)")
    print(f"np.argmax over the rows of a round alone: {argmax * (2 * args.lookahead + 1):.2f}\n")
    print(f"{'':38}" + "".join(f"{shape:>16}" for shape in SHAPES))
    for name, params in SETTINGS.items():
        for rule in ("rejection", "reproducible"):
            if params.greedy and rule == "reproducible":
                continue
            options = {**vars(params), "rule": rule}
            cells = []
            for shape in SHAPES:
                times = round_times(
                    SamplingParams(**options), shape, args.vocab, args.lookahead, args.rounds
                )
                cells.append(f"{median(times) * 1e3:8.2f} ({min(times) * 1e3:5.2f})")
            label = name if params.greedy else f"{name}, {rule}"
            print(f"{label:38}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
