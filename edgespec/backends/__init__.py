"""Backends: where a model file becomes a session and a tokenizer.

Invariant: what a file is, is read from its contents, never from its name.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec import platform
from edgespec.errors import ConfigError, EdgespecError, ModelError, ModelFormatError
from edgespec.options import DEVICES
from edgespec.platform import amx
from edgespec.session import CancelFlag, Model

platform.limit_spinning()  # before any backend loads its native library

OnLoad = Callable[[str, float], None]
"""Told of a GGUF file that is being read, every 0.1 s: its name, and how much of it, from 0 to 1.
It may raise to stop."""

_PART = 1 << 20  # bytes of a file's start and of its end that tell it from others


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model.

    Attributes:
        context_size: tokens the cache holds; None takes what the model was trained on, capped.
        context_cap: that cap; the cache's memory grows with its size.
        threads: CPU threads; None takes the CPUs this process may use.
        gpu_layers: layers of GGUF models on the GPU; None puts all there where the build can.
        device: "auto" (for GGUF the GPU that llama.cpp was built for, for ONNX CUDA or DirectML,
            else the CPU), "cpu", "cuda", or for ONNX models alone "tensorrt", "directml" or
            "coreml".
        allow_cpu: whether the CPU may stand in for a device that was named and can't be had.
    """

    context_size: int | None = None
    context_cap: int = 8192
    threads: int | None = None
    gpu_layers: int | None = None
    device: str = "auto"
    allow_cpu: bool = False

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"there is no device {self.device}: choose {', '.join(DEVICES)}")
        for name, value in (("--threads", self.threads), ("--ctx-size", self.context_size)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        most = max(16, 4 * (os.cpu_count() or 1))
        if self.threads is not None and self.threads > most:
            raise ConfigError(
                f"{self.threads} threads would only wait for each other on "
                f"{platform.usable_cpus()} CPUs: choose --threads 1 to {most}, or leave it out"
            )

    @property
    def cpu_threads(self) -> int:
        """The threads to use."""
        return self.threads or platform.usable_cpus()


def fingerprint(files: Iterable[Path]) -> str:
    """Tells models apart by the sizes of their files and the start and end of each.

    The start of a GGUF file can be the vocabulary alone, which a model shares with its siblings.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(_PART))
            file.seek(max(0, size - _PART))
            digest.update(file.read())
    return digest.hexdigest()[:32]


def load_model(
    path: Path | str,
    options: LoadOptions,
    cancel: CancelFlag,
    on_load: OnLoad = lambda *_: None,
) -> Model:
    """Open a GGUF file, an ONNX file or a folder with one.

    Raises `ModelFormatError` for anything that isn't one, and `ModelError` for one that can't be
    read or doesn't fit into memory.
    """
    path = platform.expanded(path)
    try:
        return _load(path, options, cancel, on_load)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise ModelError(
            f"{path.name} doesn't fit into memory with its cache: choose a smaller --ctx-size"
        ) from error


def is_onnx(path: Path | str) -> bool:
    """Whether an ONNX model is at a path; False too where nothing is that can be read."""
    from edgespec.backends import onnx_folder

    try:
        return onnx_folder.find(platform.expanded(path)) is not None
    except (OSError, EdgespecError):
        return False


def _load(path: Path, options: LoadOptions, cancel: CancelFlag, on_load: OnLoad) -> Model:
    from edgespec.backends import onnx_folder, ort_packages

    if onnx_folder.find(path) is not None:
        ort_packages.require(path.name)
        if amx.present():  # ONNX Runtime asks for it: llama.cpp has to be refused before
            with suppress(ModelError, OSError, RuntimeError):  # a llama.cpp that can't be loaded
                from edgespec.backends import llama_params

                llama_params.settle()
        # Of libraries that it finds a moment later, or that `ort_providers` has a sentence about.
        warnings.filterwarnings("ignore", "Failed to register bundled CUDA plugin EP")
        ort_packages.load()
        from edgespec.backends import ort_load

        return ort_load.load(path, options, cancel)
    if path.is_dir():
        raise ModelFormatError(f"{path} is a folder that holds no ONNX model" + _instead(path))
    from edgespec.backends import llama_load

    return llama_load.load(path, options, cancel, on_load)


def _instead(folder: Path) -> str:
    """What to do with a folder that holds something else."""
    if found := next(iter(sorted(folder.glob("*.gguf"))), None):
        return f": name the GGUF file in it, {found.name}"
    # As of a pair, and as of one model for several devices.
    graphs = [*folder.glob("*/*.onnx"), *folder.glob("*/*/*.onnx")]
    if within := sorted({graph.parent for graph in graphs}):
        return f", but folders in it do: name {' or '.join(map(str, within[:5]))}"
    if next(folder.glob("*.safetensors"), None) is not None:
        return ", but a checkpoint: turn it into a model file with `edgespec export`"
    return ": it should have a model.onnx, or a genai_config.json that names the graph"
