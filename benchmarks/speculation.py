"""Speculative against plain decoding, setting by setting, in turns on each prompt.

    python benchmarks/speculation.py TARGET.gguf PROMPTS.jsonl --drafter DRAFT.gguf

A setting is `plain`, `auto`, or DRAFTER[+DRAFTER]:LOOKAHEAD. Prompts are JSON lines with `turns`,
of which the first is used, and `category`. Prints tokens per second (decoding alone) and the ratio
to plain by category: total plain time over total time on the same prompts; and the median ratio of
TTFT.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from edgespec import Runtime, SamplingParams
from edgespec.adaptive import AdaptivePlanner
from edgespec.generation import Result
from edgespec.planner import FixedPlanner, Planner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--drafter", action="append", default=[])
    parser.add_argument("--settings", nargs="+", default=["plain", "auto"])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--per-category", type=int, default=10**9)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    seed = None if args.temperature == 0 else 1
    sampling = SamplingParams(temperature=args.temperature, seed=seed)

    prompts = defaultdict(list)
    for path in args.prompts:
        with Path(path).open(encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                if len(prompts[entry["category"]]) < args.per_category:
                    prompts[entry["category"]].append(entry["turns"][0])
    drafters = ["lookup", *args.drafter]
    results: dict[str, dict[str, list[Result]]] = {s: defaultdict(list) for s in args.settings}
    with Runtime.open(target=args.target, drafters=drafters, report=print) as runtime:
        auto = runtime._engine.planner
        planners: dict[str, Planner] = {}
        for setting in args.settings:
            name, _, size = setting.partition(":")
            planners[setting] = auto if name == "auto" else FixedPlanner(
                [] if name == "plain" else name.split("+"), int(size or 0)
            )  # fmt: skip
        assert isinstance(auto, AdaptivePlanner)
        for category, texts in prompts.items():
            for text in texts:
                chat = runtime.conversation()
                ids = runtime.encode_messages([*chat.messages, _user(text)])
                for setting, planner in planners.items():
                    _start_over(runtime, planner)
                    answer = runtime.generate(ids, sampling, max_tokens=args.tokens)
                    results[setting][category].append(answer.result)
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    base = results[args.settings[0]]
    for category in [*prompts, "all"]:
        for setting in args.settings:
            mine = _pick(results[setting], category)
            plain = _pick(base, category)
            seconds, plain_seconds = _per_token(mine), _per_token(plain)
            ttft = statistics.median(
                (a.counters.ttft_seconds or 0) / (b.counters.ttft_seconds or 1)
                for a, b in zip(mine, plain, strict=True)
            )
            drafted = sum(r.counters.drafted for r in mine)
            accepted = sum(r.counters.accepted for r in mine)
            same = sum(a.tokens == b.tokens for a, b in zip(mine, plain, strict=True))
            print(
                f"{category:16} {setting:10} {1 / seconds:7.2f} tok/s"
                f" {plain_seconds / seconds:6.3f}x  ttft {ttft:5.3f}  accepted {accepted}/{drafted}"
                f"  same text {same}/{len(mine)}  round {_split(mine)}"
            )


def _start_over(runtime: Runtime, planner: Planner) -> None:
    """Caches empty, this planner in charge."""
    runtime._engine.target.rollback(0)
    for drafter in runtime.drafters.values():
        if hasattr(drafter, "model"):
            drafter._cache.rollback(0)  # type: ignore[attr-defined]
    object.__setattr__(runtime._engine, "planner", planner)


def _user(text: str):  # type: ignore[no-untyped-def]
    from edgespec.chat import Message

    return Message("user", text)


def _pick(results: dict[str, list[Result]], category: str) -> list[Result]:
    if category != "all":
        return results[category]
    return [result for group in results.values() for result in group]


def _split(results: list[Result]) -> str:
    """Milliseconds of a round: drafting, checking, and the rest."""
    rounds = max(1, sum(r.counters.rounds for r in results))
    draft = sum(r.counters.draft_seconds for r in results)
    check = sum(r.counters.check_seconds for r in results)
    rest = sum(r.counters.decode_seconds for r in results) - draft - check
    return f"{draft / rounds * 1e3:.1f}+{check / rounds * 1e3:.1f}+{rest / rounds * 1e3:.2f} ms"


def _per_token(results: list[Result]) -> float:
    """Seconds a token over all answers, decoding alone."""
    tokens = sum(len(r.tokens) - 1 for r in results)
    return sum(r.counters.decode_seconds for r in results) / max(tokens, 1)


if __name__ == "__main__":
    main()
