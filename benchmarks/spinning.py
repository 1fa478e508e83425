"""How long OpenMP's threads spin while they wait, and what that costs beside busy programs (Linux).

    python benchmarks/spinning.py MODEL.gguf [--beside 3] [--spins 300000 30000 1000] [--repeat 5]

Plain answers of 100 tokens, a process for each, the spin counts in turn; prints medians of tokens a
second. `--beside N` runs N programs that only compute meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

ANSWERS = 3
CODE = """
import sys
from edgespec import Runtime, SamplingParams
with Runtime.open(target=sys.argv[1], drafters=[]) as runtime:
    for i in range(int(sys.argv[2]) + 1):
        answer = runtime.generate("Once upon a time", SamplingParams(temperature=0), max_tokens=100)
        for _ in answer:
            pass
        if i:
            print(answer.counters.tokens_per_second)
"""
BUSY = "while True: pass"


def speed(model: str, spins: int) -> float:
    """The median of a process's answers, behind one that warms it up."""
    environment = {**os.environ, "GOMP_SPINCOUNT": str(spins)}
    command = [sys.executable, "-c", CODE, model, str(ANSWERS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return statistics.median(map(float, done.stdout.split()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--spins", type=int, nargs="+", default=[300_000, 30_000, 1_000])
    parser.add_argument("--beside", type=int, default=0, help="programs that compute beside it")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    found: dict[int, list[float]] = {spins: [] for spins in args.spins}
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(args.beside)]
    try:
        for turn in range(args.repeat):
            for spins in args.spins if turn % 2 == 0 else args.spins[::-1]:
                found[spins].append(speed(args.model, spins))
    finally:
        for other in others:
            other.kill()
            other.wait()
    for spins, speeds in found.items():
        spread = f"{min(speeds):.1f} to {max(speeds):.1f}"
        print(f"spin {spins:7}: {statistics.median(speeds):6.1f} tok/s  ({spread})")


if __name__ == "__main__":
    main()
