"""What a pass over n tokens costs, and what a model and its cache take of memory (Linux).

    python benchmarks/passes.py MODEL.gguf... [--behind 130]

Median milliseconds of six passes behind so many tokens, all rows asked for; then resident memory.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from time import perf_counter

from edgespec.backends import LoadOptions, load_model
from edgespec.session import CancelFlag, Session

SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32)


def milliseconds(session: Session, tokens: int) -> float:
    """The median of six passes; the cache is as before."""
    begin, times = session.length, []
    for _ in range(6):
        began = perf_counter()
        session.forward([5] * tokens, tokens)
        times.append((perf_counter() - began) * 1e3)
        session.rollback(begin)
    return statistics.median(times)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("models", nargs="+")
parser.add_argument("--behind", type=int, default=130)
options = parser.parse_args()
for path in options.models:
    model = load_model(path, LoadOptions(), CancelFlag())
    model.session.forward(list(range(options.behind)))
    costs = {n: milliseconds(model.session, n) for n in SIZES}
    print(Path(path).name, "  ".join(f"{n}: {cost:.1f}" for n, cost in costs.items()), "ms")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            print(f"  resident: {int(line.split()[1]) // 1024} MiB")
    model.close()
