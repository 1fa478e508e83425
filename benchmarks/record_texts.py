"""Record what a drafter would guess at every position of its target's answers, for replay: having
read all, and behind a long prompt, its end alone.

    python benchmarks/record_texts.py TARGET.gguf DRAFT.gguf PROMPTS.jsonl... --out TEXTS.jsonl.gz

Prompts are JSON lines with `turns`, of which the first is used, and `category`. Takes about ten
seconds a prompt of 128 tokens on two cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import Runtime
from edgespec.chat import Message
from edgespec.confidence import top2_gap
from edgespec.drafters import Drafter
from edgespec.planner import FixedPlanner
from edgespec.sampling import GREEDY, Sampler
from edgespec.session import TokenIds

DEPTH = 10
"""Guesses recorded at each position."""


def record(runtime: Runtime, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """A prompt's answer, the drafter's guesses, and the target's top-2 gaps."""
    plain = FixedPlanner([], 0)
    answer = runtime.generate(prompt, GREEDY, max_tokens=max_tokens, planner=plain).result.tokens
    text = np.array([*prompt, *answer], np.int32)
    session = runtime.target.session
    session.rollback(0)
    session.forward(text[: len(prompt)])
    rows = session.forward(text[len(prompt) :], len(answer))  # row i decides answer[i + 1]
    gaps = [round(top2_gap(row), 3) for row in rows]
    drafter = runtime.drafters["model"]
    sampler = Sampler(GREEDY, runtime.target.tokenizer.num_tokens)
    drafter.begin(len(prompt))
    recorded = {"prompt": prompt, "tokens": list(answer), "gaps": gaps}
    shown = text[: len(prompt)]
    if 2 * drafter.owes(shown, near=True) < drafter.owes(shown):
        recorded["near"] = guess(drafter, text, len(prompt), sampler, near=True)
    return {**recorded, "guesses": guess(drafter, text, len(prompt), sampler)}


def guess(
    drafter: Drafter, text: TokenIds, prompt: int, sampler: Sampler, near: bool = False
) -> list[tuple[list[int], list[float]]]:
    """Its guesses and their confidences behind each token of the answer but the last."""
    guesses: list[tuple[list[int], list[float]]] = []
    for at in range(prompt + 1, len(text)):
        if guesses and len(guesses[-1][0]) > 1 and guesses[-1][0][0] == text[at - 1]:
            ids, sure = guesses[-1]  # it was right, so it would go on as it did
            guesses.append((ids[1:], sure[1:]))
        else:
            draft = drafter.propose(text[:at], DEPTH, sampler, near=near)
            guesses.append((list(draft.tokens), [round(c, 3) for c in draft.confidence]))
    return guesses


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("drafter")
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    seen: Counter[str] = Counter()
    with (
        Runtime.open(target=args.target, drafters=[args.drafter], lookahead=1) as runtime,
        gzip.open(args.out, "wt", encoding="utf-8") as out,
    ):
        for entry in (json.loads(x) for p in args.prompts for x in p.open(encoding="utf-8")):
            seen[entry["category"]] += 1
            if seen[entry["category"]] > args.per_category:
                continue
            ids = runtime.encode_messages([Message("user", entry["turns"][0])])
            text = record(runtime, list(ids), args.tokens)
            out.write(json.dumps({"id": entry["id"], "category": entry["category"], **text}) + "\n")
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
