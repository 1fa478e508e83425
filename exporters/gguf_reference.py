"""A checkpoint's logits by transformers, in a process of its own.

Invariant: torch and the whole model live in another process, which is gone when the rows are here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.exporters import transformers_4
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.platform.memory import total_memory
from edgespec.units import human_bytes


def why_not(checkpoint: Checkpoint) -> str | None:
    """Why transformers can't be asked here, as half a sentence; None where it can."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} isn't installed"
    need, memory = 4 * checkpoint.parameters, total_memory()
    if memory is not None and need > memory // 2:
        return f"the checkpoint takes {human_bytes(need)} in 32 bits, more than half the memory"
    if _speaks_old_words():
        try:
            transformers_4.config(checkpoint)
        except ExportError as error:
            return str(error).rstrip(".")
    return None


def reference_logits(checkpoint: Checkpoint, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """The rows after each of `tokens`, (n, V) float32. Raises ExportError where it can't run."""
    code = "from edgespec.exporters.gguf_reference import main; main()"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgespec-")))
        config = checkpoint.path
        if _speaks_old_words():
            config = stack.enter_context(transformers_4.staged(checkpoint))
        out = folder / "logits.npy"
        asked = json.dumps(
            {
                "path": str(checkpoint.path), "config": str(config), "tokens": list(tokens),
                "out": str(out),
            }
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=asked.encode(),
            capture_output=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        if done.returncode or not out.is_file():
            lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line]
            reason = lines[-1].strip().rstrip(".") if lines else f"it ended with {done.returncode}"
            raise ExportError(f"transformers can't run {checkpoint.source}: {reason}.")
        rows: npt.NDArray[np.float32] = np.load(out)
    return rows


def main() -> None:
    """The other process: reads what is asked on stdin, and leaves the rows in a file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    asked = json.load(sys.stdin)
    model, found = AutoModelForCausalLM.from_pretrained(
        asked["path"],
        config=AutoConfig.from_pretrained(asked["config"]),
        torch_dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    if found["missing_keys"]:  # it would make them up, and go on
        sys.exit(f"it finds no {sorted(found['missing_keys'])[0]} in it")
    model.eval()
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([asked["tokens"]]), use_cache=False).logits[0]
    np.save(asked["out"], rows.float().numpy())


def _speaks_old_words() -> bool:
    """Whether the installed transformers would pass over what transformers 5 writes."""
    return int(importlib.metadata.version("transformers").split(".")[0]) < 5
