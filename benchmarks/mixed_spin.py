"""Should llama.cpp's threads stop spinning between passes, for the sake of a mixed pair?

    python benchmarks/mixed_spin.py GGUF_TARGET ONNX_DRAFTER ONNX_TARGET GGUF_DRAFTER
        [--threads 2] [--tokens 96] [--lookahead 4] [--rounds 7]

llama.cpp built with OpenMP computes on libgomp's team of threads (libomp's on macOS). After a pass
the team spins for a while before it sleeps: 300,000 turns by default, which is milliseconds, and in
a mixed pair ONNX Runtime computes meanwhile on the same CPUs. How long it spins is read from the
environment once, when the library is loaded, so each setting gets a process of its own.

What to look for: a setting under which the mixed pairs get faster while GGUF alone doesn't get
slower. Too little spinning puts the team to sleep at the barriers inside a pass, hundreds of them,
and costs GGUF alone dearly; enough for a barrier (10 to 100 µs) and no more should cost it one
wake-up for a pass. If there is such a setting, `limit_spinning` of `edgespec.platform` can make it,
where the user didn't, before llama_cpp is imported; a program that loaded the library earlier keeps
its own.

The settings take turns, in a new order each round. Prints tokens/s of every pair under every
setting (median of the rounds), and the median ratio to the default of the same round with the
lowest and the highest. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from typing import Any

SETTINGS: dict[str, dict[str, str]] = {
    "default": {"GOMP_SPINCOUNT": "300000"},  # said, or a busy machine would get fewer turns
    "100,000 turns": {"GOMP_SPINCOUNT": "100000"},
    "30,000 turns": {"GOMP_SPINCOUNT": "30000"},
    "10,000 turns": {"GOMP_SPINCOUNT": "10000"},
    "3,000 turns": {"GOMP_SPINCOUNT": "3000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "libomp, 0 ms": {"KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "300000"},
}
_VARIABLES = {name for setting in SETTINGS.values() for name in setting}
PROMPT = "Write a Python class for a bank account with deposit, withdraw and transfer, with tests."


def measure(target: str, drafters: list[str], threads: int, tokens: int, lookahead: int) -> float:
    """Tokens per second behind the first one, which waits for the prompt."""
    from edgespec import Runtime, SamplingParams

    with Runtime.open(
        target=target, drafters=drafters, lookahead=lookahead if drafters else 0, threads=threads
    ) as runtime:
        best = 0.0
        for _ in range(2):  # the first also brings the weights into memory
            answer = runtime.conversation().send(
                PROMPT, SamplingParams(temperature=0), max_tokens=tokens
            )
            for _chunk in answer:
                pass
            best = max(best, answer.result.counters.tokens_per_second or 0.0)
    return best


def in_a_process(setting: dict[str, str], job: dict[str, Any]) -> float:
    clean = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    done = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps(job)],
        env=clean | setting,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        print(measure(**json.loads(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("gguf_target", "onnx_drafter", "onnx_target", "gguf_drafter"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    pairs: dict[str, tuple[str, list[str]]] = {
        "GGUF alone, plain": (given.gguf_target, []),
        "GGUF with GGUF": (given.gguf_target, [given.gguf_drafter]),
        "GGUF with ONNX": (given.gguf_target, [given.onnx_drafter]),
        "ONNX with GGUF": (given.onnx_target, [given.gguf_drafter]),
        "ONNX alone, plain": (given.onnx_target, []),  # nobody spins here: the noise
    }
    speeds: dict[tuple[str, str], list[float]] = {}
    runs = [(pair, setting) for pair in pairs for setting in SETTINGS]
    for number in range(given.rounds):
        random.Random(number).shuffle(runs)
        for pair, setting in runs:
            target, drafters = pairs[pair]
            job = {"target": target, "drafters": drafters, "threads": given.threads}
            job |= {"tokens": given.tokens, "lookahead": given.lookahead}
            speed = in_a_process(SETTINGS[setting], job)
            speeds.setdefault((pair, setting), []).append(speed)
        print(f"round {number + 1} of {given.rounds} is done", file=sys.stderr, flush=True)
    for pair in pairs:
        for setting in SETTINGS:
            mine, usual = speeds[pair, setting], speeds[pair, "default"]
            ratios = sorted(a / b for a, b in zip(mine, usual, strict=True))
            print(
                f"{pair:18}  {setting:14}  {statistics.median(mine):7.1f} tok/s  "
                f"{statistics.median(ratios):5.2f}x  ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
