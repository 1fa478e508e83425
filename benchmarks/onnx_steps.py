"""What a pass over 1, 4 and 8 tokens costs in ONNX models, and how much of it is Python.

    python benchmarks/onnx_steps.py FOLDER... [--at 256 4096] [--threads 2] [--numpy]

Medians in milliseconds behind so many tokens, all rows asked for; the folders take turns, so that
a slow minute of the machine hits them alike. `--numpy` also times the same graph fed with numpy
arrays and its cache taken back as numpy arrays: once going on from what came back, and once after
a rollback of three tokens, which is a slice.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edgespec.backends import LoadOptions, load_model
from edgespec.session import CancelFlag

WIDTHS = (1, 4, 8)
REPEATS = 7
BACK = 3


class Timed:
    """Stands in for the native session and adds up the time spent in it."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.seconds = 0.0

    def run_with_iobinding(self, *args: Any) -> None:
        began = perf_counter()
        self._native.run_with_iobinding(*args)
        self.seconds += perf_counter() - began


class Ours:
    """A folder as edgespec runs it."""

    def __init__(self, folder: str, threads: int) -> None:
        self.model = load_model(folder, LoadOptions(threads=threads), CancelFlag())
        self.session: Any = self.model.session
        self.native = self.session._native
        self.timed = self.session._native = Timed(self.native)

    def read(self, length: int) -> None:
        self.session.rollback(0)
        self.session.forward((np.arange(length) * 7 % 5000 + 300).tolist())

    def measure(self, width: int) -> tuple[float, float]:
        """Milliseconds of a pass, and of Python within it."""
        begin, before = self.session.length, self.timed.seconds
        began = perf_counter()
        self.session.forward([500] * width, width)
        whole = perf_counter() - began
        self.session.rollback(begin)
        return whole * 1e3, (whole - (self.timed.seconds - before)) * 1e3


def numpy_passes(ours: Ours, length: int) -> dict[str, Callable[[int], float]]:
    """The same graph with its cache as numpy arrays: after nothing, and after a rollback."""
    native = ours.native
    names = [entry.name for entry in native.get_inputs()]
    past = [entry for entry in native.get_inputs() if entry.name.startswith("past")]
    rng = np.random.default_rng(0)

    def cache(tokens: int) -> dict[str, Any]:
        return {
            entry.name: rng.normal(0, 1, (1, entry.shape[1], tokens, entry.shape[3])).astype("f4")
            for entry in past
        }

    kept = cache(length)
    sliced = {name: array[:, :, :length] for name, array in cache(length + BACK).items()}

    def run(feeds: dict[str, Any], width: int) -> float:
        feeds = dict(feeds, input_ids=np.full((1, width), 500, np.int64))
        feeds["attention_mask"] = np.ones((1, length + width), np.int64)
        if "position_ids" in names:
            feeds["position_ids"] = np.arange(length, length + width)[None]
        began = perf_counter()
        native.run(None, feeds)
        return (perf_counter() - began) * 1e3

    return {
        "numpy, going on": lambda width: run(kept, width),
        f"numpy, {BACK} back": lambda width: run(sliced, width),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--at", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numpy", action="store_true")
    options = parser.parse_args()
    models = {Path(f).name: Ours(f, options.threads) for f in options.folders}
    for length in options.at:
        others: dict[str, Callable[[int], float]] = {}
        for name, ours in models.items():
            ours.read(length)
            if options.numpy:
                others |= {f"{name}: {k}": run for k, run in numpy_passes(ours, length).items()}
        for width in WIDTHS:
            times: dict[str, list[tuple[float, float]]] = {}
            for repeat in range(REPEATS + 1):  # the first warms up
                for name, ours in models.items():
                    times.setdefault(name, []).append(ours.measure(width))
                for name, run in others.items():
                    times.setdefault(name, []).append((run(width), 0.0))
                if repeat == 0:
                    times.clear()
            for name, pairs in times.items():
                whole, python = (statistics.median(column) for column in zip(*pairs, strict=True))
                share = f"  python {python:.2f}" if python else ""
                print(f"at {length:5}  {width} tokens  {whole:7.1f} ms{share}  {name}", flush=True)
        del others
        gc.collect()


if __name__ == "__main__":
    main()
