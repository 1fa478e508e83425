"""Is the cache of an ONNX model on the GPU, and does it stay there? For a machine with CUDA.

    pip install -e ".[onnx-gpu]"
    python benchmarks/cuda_check.py FOLDER [--tokens 128] [--profile-folder .]

Prints what the session runs on, whether the cache lies in place, milliseconds of passes over 1, 4
and 8 tokens on the GPU and on the CPU, tokens a second of both, and what ONNX Runtime's own
profile says of copies between host and device, with their bytes in a pass. Exits with 1 where the
session isn't on the GPU, its attention or most of its operations aren't (some that compute shapes
never are), where its logits are not those of the CPU, or where a pass copies about as much as the
cache holds.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.backends import LoadOptions, load_model
from edgespec.errors import EdgespecError
from edgespec.session import CancelFlag, Model

TEXT = (np.arange(300) * 7 % 5000 + 300).tolist()
STEPS = 12


def opened(folder: str, device: str) -> Model:
    return load_model(folder, LoadOptions(device=device, context_size=2048), CancelFlag())


def milliseconds(model: Model, width: int) -> float:
    session, times = model.session, []
    begin = session.length
    for _ in range(9):
        began = perf_counter()
        session.forward(TEXT[:width], width)
        times.append((perf_counter() - began) * 1e3)
        session.rollback(begin)
    return statistics.median(times[2:])


def tokens_per_second(model: Model, count: int) -> float:
    row = model.session.forward(TEXT[-1:])[0]
    began = perf_counter()
    for _ in range(count):
        row = model.session.forward([int(row.argmax())])[0]
    return count / (perf_counter() - began)


def misplaced(details: Mapping[str, str], notes: Sequence[str]) -> list[str]:
    """What of a session for the GPU runs elsewhere, as sentences."""
    device = details["device"]
    if not device.startswith("CUDA"):
        return ["the session doesn't run on the GPU"]
    found = [note for note in notes if "the CPU does it" in note]  # its attention
    share = re.search(r"\((\d+) of (\d+) operations", device)
    if share is not None and 2 * int(share[1]) < int(share[2]):
        found.append(f"only {share[1]} of {share[2]} operations run on the GPU")
    return found


def copies(trace: Path, steps: int) -> Iterator[tuple[str, float, int]]:
    """Copies between host and device in the last `steps` passes of a profile: name, milliseconds
    and bytes of one pass.
    """
    events = json.loads(trace.read_text(encoding="utf-8"))
    # Before them are those in which the session was tried out, and the text's.
    begin = sorted(event["ts"] for event in events if event.get("name") == "model_run")[-steps]
    found: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("args", {}).get("op_name") or event.get("name", ""))
        if "memcpy" in name.lower() and event["ts"] >= begin:
            size = int(event.get("args", {}).get("output_size") or 0)
            total = found.setdefault(name, [0.0, 0.0])
            total[0] += event.get("dur", 0) / 1e3
            total[1] += size
    for name, (time, size) in found.items():
        yield name, time / steps, int(size / steps)


def profiled(folder: str, where: Path) -> Path:
    """The profile of a few steps behind a text."""
    create = ort.InferenceSession

    def with_profile(path: str, options: Any, **others: Any) -> Any:
        options.enable_profiling = True
        options.profile_file_prefix = str(where / "cuda_check")
        return create(path, options, **others)

    ort.InferenceSession = with_profile
    try:
        model = opened(folder, "cuda")
    finally:
        ort.InferenceSession = create
    session: Any = model.session
    session.forward(TEXT)
    for _ in range(STEPS):
        session.forward([5])
    trace = Path(session._native.end_profiling())
    model.close()
    return trace


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--profile-folder", type=Path, default=Path())
    options = parser.parse_args(arguments)
    try:
        return check(options)
    except EdgespecError as error:
        print(error, file=sys.stderr)
        return 1


def check(options: argparse.Namespace) -> int:
    problems: list[str] = []
    rows = {}
    for device in ("cuda", "cpu"):
        model = opened(options.folder, device)
        session: Any = model.session
        print(f"{model.name} on {model.details['device']}, cache {model.details['cache']}")
        if device == "cuda":
            problems += misplaced(model.details, model.notes)
        rows[device] = session.forward(TEXT, 20).copy()
        cache_bytes = session._graph.token_bytes * session.length
        widths = {width: milliseconds(model, width) for width in (1, 4, 8)}
        print("  " + "  ".join(f"{n} tokens: {ms:.2f} ms" for n, ms in widths.items()))
        print(f"  {tokens_per_second(model, options.tokens):.1f} tokens/s")
        model.close()
    spread = float(rows["cpu"].std())
    off = float(np.sqrt(np.mean((rows["cuda"] - rows["cpu"]) ** 2))) / spread
    agree = float((rows["cuda"].argmax(1) == rows["cpu"].argmax(1)).mean())
    print(
        f"GPU against CPU: {off:.4f} of a standard deviation, {agree:.0%} the same likeliest token"
    )
    if off > 0.2:
        problems.append("the GPU's logits are not the CPU's")
    trace = profiled(options.folder, options.profile_folder)
    for name, time, size in copies(trace, STEPS):
        print(f"  {name}: {time:.3f} ms and {size} bytes a pass")
        if size >= cache_bytes // 2:
            problems.append(f"{name} copies {size} bytes a pass: as much as the cache")
    print(f"profile: {trace}")
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
