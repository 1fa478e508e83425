"""Backends: where a model file becomes a session and a tokenizer.

Invariant: what a file is, is read from its contents, never from its name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edgespec.session import CancelFlag, Model


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model.

    Attributes:
        context_size: tokens the cache holds; None takes what the model was trained on, capped.
        context_cap: that cap; the cache's memory grows with its size.
        threads: CPU threads; None takes the CPUs this process may use.
        gpu_layers: layers on the GPU; None puts all there where the build can.
    """

    context_size: int | None = None
    context_cap: int = 8192
    threads: int | None = None
    gpu_layers: int | None = None


def fingerprint(path: Path) -> str:
    """Tells model files apart by size and first megabyte, without reading gigabytes."""
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return f"{path.stat().st_size}-{hashlib.sha256(head).hexdigest()[:16]}"


def load_model(path: Path | str, options: LoadOptions, cancel: CancelFlag) -> Model:
    """Open a model file; raises `ModelFormatError` for anything that isn't one."""
    from edgespec.backends import llama

    return llama.load(Path(path).expanduser(), options, cancel)
