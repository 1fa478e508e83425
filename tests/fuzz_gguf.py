"""Damages GGUF files at random and checks that read_header refuses or reads each, fast and small.

Run by hand: python tests/fuzz_gguf.py --count 200000 --model some.gguf

The same seed gives the same files. A file that breaks a promise is kept, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
from test_gguf import (
    BOOL,
    EDGES,
    F64,
    LLAMA,
    STRING,
    U8,
    array,
    check_invariants,
    gguf,
    sample,
    string,
    tensor,
    text,
)

from edgespec.errors import ModelFormatError
from edgespec.gguf import read_header

MAX_SECONDS = 1.0
MAX_BYTES = 64_000_000
TRACED_SHARE = 0.01  # tracemalloc slows Python down, so times are not judged where it runs


class Tally:
    """Reads files, and counts what came of them."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep
        self.outcomes: Counter[str] = Counter()
        self.failures = 0
        self.slowest = 0.0  # seconds
        self.largest = 0  # bytes at the peak, beyond the mapping
        self.traced = 0

    def read(self, path: Path, trace: bool = False) -> None:
        problem = header = None
        if trace:
            tracemalloc.start()
        start = time.perf_counter()
        try:
            header = read_header(path)
        except ModelFormatError as error:
            elapsed = time.perf_counter() - start
            message = str(error)
            if not message.isprintable() or len(message) > 500:
                problem = f"an ugly message: {message!r}"
            words = re.sub(r"'.*'|\".*\"|[\d,]+", "_", message.removeprefix(path.name + " "))
            self.outcomes["refused: " + words[:60]] += 1
        except BaseException as error:  # any of them breaks the promise
            elapsed = 0.0
            problem = f"{type(error).__name__}: {error}"
        else:
            elapsed = time.perf_counter() - start
            self.outcomes["accepted"] += 1
        if trace:
            self.traced += 1
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            self.largest = max(self.largest, peak)
            if peak > MAX_BYTES:
                problem = f"{peak:,} bytes at the peak"
        else:
            self.slowest = max(self.slowest, elapsed)
            if elapsed > MAX_SECONDS:
                problem = f"{elapsed:.2f} s"
        if header:
            check_invariants(header, path.stat().st_size)
        if problem:
            self.failures += 1
            kept = self.keep / f"gguf-failure-{self.failures}.gguf"
            shutil.copyfile(path, kept)
            print(f"FAILURE {problem}: kept as {kept}", flush=True)

    def report(self) -> None:
        for outcome, count in self.outcomes.most_common(40):
            print(f"{count:8,}  {outcome}")
        print(f"files: {self.outcomes.total():,}, failures: {self.failures}")
        print(f"slowest: {self.slowest * 1e3:.1f} ms")
        print(f"largest peak: {self.largest:,} bytes over {self.traced:,} traced files")


def mutate(content: bytearray, rng: np.random.Generator, low: int, high: int) -> None:
    """Damage content in place once, somewhere in [low, high); its length may change."""
    at = int(rng.integers(low, high))
    length = int(2 ** rng.uniform(0, 8))
    other = int(rng.integers(low, high))
    match int(rng.integers(8)):
        case 0 | 1:
            content[at] = int(rng.integers(256))
        case 2:
            content[at] ^= 1 << int(rng.integers(8))
        case 3:
            content[at : at + 8] = struct.pack("<Q", EDGES[rng.integers(len(EDGES))])
        case 4:
            content[at : at + 4] = struct.pack("<I", int(rng.integers(50)))
        case 5:
            del content[at : at + length]
        case 6:
            content[at:at] = content[other : other + length]
        case 7:
            content[at : at + length] = content[other : other + length].ljust(length, b"\0")


def fuzz_small(tally: Tally, path: Path, count: int, rng: np.random.Generator) -> None:
    original = sample()
    for _ in range(count):
        content = bytearray(original)
        for _ in range(rng.geometric(0.6)):
            mutate(content, rng, 0, len(content))
        if rng.random() < 0.05:
            del content[int(rng.integers(len(content))) :]
        path.write_bytes(content)
        tally.read(path, rng.random() < TRACED_SHARE)


def fuzz_model(tally: Tally, path: Path, model: Path, count: int, rng: np.random.Generator) -> None:
    """Damage a real header, over a hole of its data's size, and mend it again each time."""
    size = model.stat().st_size
    with model.open("rb") as file:
        original = file.read(read_header(model).data_offset)
    # Keys lie at the front, tensors at the end; what is between is one long list of tokens.
    regions = [(0, 2000), (0, len(original)), (len(original) - 20_000, len(original))]
    path.write_bytes(original)
    os.truncate(path, size)
    with path.open("r+b", buffering=0) as file:
        for _ in range(count):
            low, high = regions[rng.integers(len(regions))]
            start = int(rng.integers(max(low, 0), high))
            stop = min(start + 4096, len(original))
            window = bytearray(original[start:stop])
            mutate(window, rng, 0, len(window))
            os.pwrite(file.fileno(), window, start)
            if rng.random() < 0.02:
                os.truncate(path, int(rng.integers(1, size)))
            tally.read(path, rng.random() < TRACED_SHARE)
            os.pwrite(file.fileno(), original[start : start + len(window)], start)
            if path.stat().st_size != size:
                os.pwrite(file.fileno(), original, 0)
                os.truncate(path, size)


def fuzz_limits(tally: Tally, path: Path) -> None:
    """Files that take as much as the limits allow, or claim just over it."""
    most_strings = array(STRING, [b""] * (3 << 19))
    names = [b"%063d" % i for i in range(1 << 14)]
    tensors = [tensor(name, [8], 0, 32 * i) for i, name in enumerate(names)]
    emoji = text("\N{GRINNING FACE}".encode() + b"a" * ((2 << 20) - 1000 - 64 * len(names)))
    filler = array(U8, bytes(15 << 20))
    keys = [(b"k%d" % i, array(BOOL, [1])) for i in range(4000)]
    heavy = [LLAMA, (b"emoji", emoji), (b"filler", filler), (b"strings", most_strings), *keys]
    files = {
        "everything": gguf(heavy, tensors, 32 * len(tensors)),
        "strings": gguf([LLAMA, (b"strings", most_strings)]),
        "tensors": gguf(tensors=tensors, data=32 * len(tensors)),
        "numbers": gguf([LLAMA, (b"numbers", array(BOOL, bytes(31 << 20)))]),
        "long string": gguf([LLAMA, (b"text", text(b"a" * ((2 << 20) - 100)))]),
        "too many strings": gguf(
            [LLAMA, (b"strings", array(STRING, [], 1 << 23) + bytes(64 << 20))]
        ),
        "array of 2 GiB": gguf([LLAMA, (b"numbers", array(F64, [], 1 << 28))]),
        "string of 2 GiB": gguf([LLAMA, (b"text", text(b"")[:4] + struct.pack("<Q", 1 << 31))]),
        "entry of 8 EiB": gguf(
            [LLAMA, (b"list", array(STRING, [], 2) + string(b"")[1:] + b"\x80")]
        ),
    }
    for name, content in files.items():
        path.write_bytes(content)
        if "2 GiB" in name:
            os.truncate(path, 3 << 30)  # sparse
        slowest, tally.slowest = tally.slowest, 0.0
        largest, tally.largest = tally.largest, 0
        tally.read(path)
        tally.read(path, trace=True)
        print(f"{name:18} {tally.slowest * 1e3:7.1f} ms {tally.largest:12,} bytes")
        tally.slowest = max(tally.slowest, slowest)
        tally.largest = max(tally.largest, largest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="damaged files to read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a real GGUF file; a tenth are damaged from it")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    tally = Tally(Path(tempfile.gettempdir()))
    real = options.count // 10 if options.model else 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        fuzz_limits(tally, path)
        if options.model:
            fuzz_model(tally, path, options.model, real, rng)
        fuzz_small(tally, path, options.count - real, rng)
    tally.report()
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
