"""A checkpoint's logits by transformers, in a process of its own.

Invariant: torch and the whole model live in another process, which is gone when the rows are here.
What keeps it from computing them is told apart from a checkpoint that isn't whole.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.exporters import transformers_4
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.platform.memory import total_memory
from edgespec.units import human_bytes

_UNFIT = 3  # the other process's exit status for weights that aren't whole


class NoReferenceError(ExportError):
    """transformers couldn't be asked; says why, as half a sentence."""


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
    """The rows after each of `tokens`, (n, V) float32.

    Raises NoReferenceError where transformers can't compute them, and ExportError for a checkpoint
    that lacks what its model needs.
    """
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
            [sys.executable, "-P", "-c", code],
            input=asked.encode(),
            capture_output=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        if done.returncode or not out.is_file():
            lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line]
            reason = lines[-1].strip().rstrip(".") if lines else f"it ended with {done.returncode}"
            if done.returncode == _UNFIT:
                raise ExportError(f"transformers can't run {checkpoint.source}: {reason}.")
            if done.returncode < 0:
                raise NoReferenceError(
                    "the system stopped transformers, perhaps for want of memory"
                )
            raise NoReferenceError(f"transformers can't run it: {reason}")
        rows: npt.NDArray[np.float32] = np.load(out)
    return rows


def main() -> None:
    """The other process: reads what is asked on stdin, and leaves the rows in a file."""
    try:
        unfit = _compute(json.load(sys.stdin))
    except Exception as error:  # whatever its many parts raise
        said = str(error).strip() or type(error).__name__
        print(re.split(r"\n|\. ", said, maxsplit=1)[0], file=sys.stderr)
        sys.exit(1)
    if unfit:
        print(unfit, file=sys.stderr)
        sys.exit(_UNFIT)


def _compute(asked: dict[str, Any]) -> str | None:
    """Leave the rows in the file; what the checkpoint lacks, where it isn't whole."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        asked["path"],
        config=AutoConfig.from_pretrained(asked["config"], trust_remote_code=False),
        torch_dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        trust_remote_code=False,
    )
    if lack := transformers_4.lacking(found):  # it would make it up, and go on
        return f"it finds {lack} in it"
    model.eval()
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([asked["tokens"]]), use_cache=False).logits[0]
    np.save(asked["out"], rows.float().numpy())
    return None


def _speaks_old_words() -> bool:
    """Whether the installed transformers would pass over what transformers 5 writes."""
    return int(importlib.metadata.version("transformers").split(".")[0]) < 5
