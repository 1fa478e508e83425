"""ONNX Runtime as it is installed: which packages hold it, and whether it can be imported.

Several packages hold the same files (onnxruntime, onnxruntime-gpu, ...): one that is installed
over another, or taken away from beside it, leaves a part of them. Invariant: nothing here needs
ONNX Runtime to be whole, and where it isn't, `load` says in a sentence what to do.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import distributions

from edgespec.errors import ModelError

_MODULE = "onnxruntime/__init__.py,"  # as a package's list of files has it
# What edgespec needs, and a name that each has where it is whole.
_NEEDED = {"onnxruntime": "InferenceSession", "tokenizers": "Tokenizer"}


def installed() -> list[str]:
    """The packages that hold ONNX Runtime itself; what goes beside it has names like theirs."""
    found = set()
    for package in distributions():
        name = (package.metadata["Name"] or "").lower()
        if name.startswith("onnxruntime") and _MODULE in (package.read_text("RECORD") or ""):
            found.add(name)
    return sorted(found)


def several() -> str | None:
    """A sentence where two packages of ONNX Runtime are installed over each other."""
    found = installed()
    if len(found) < 2:
        return None
    return (
        f"{' and '.join(found)} are both installed and overwrite each other's files: "
        f"pip uninstall {' '.join(found)}, then install the one you want"
    )


def require(model: str) -> None:
    """Raise ModelError where a package that a model is run with isn't there at all."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{model} is an ONNX model, and {' and '.join(missing)} is missing: "
            'pip install "edgespec[onnx]", or "edgespec[onnx-gpu]" for CUDA'
        )


def load() -> None:
    """Import ONNX Runtime and tokenizers. Raises ModelError where one is there and can't be."""
    for name, whole in _NEEDED.items():
        try:
            getattr(importlib.import_module(name), whole)
        except Exception as error:  # of files of two versions any; a library that lacks another's
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"{name} can't be loaded ({reason}): {_mending(name)}") from error


def _mending(name: str) -> str:
    """What to do for a package of which a part is missing."""
    packages = installed() if name == "onnxruntime" else [name]
    if len(packages) > 1:
        return several() or ""
    again = packages[0] if packages else name
    said = f"pip install --force-reinstall --no-deps {again}"
    if sys.platform == "win32":
        said += ", and install Microsoft's Visual C++ Redistributable where it isn't there"
    return said
