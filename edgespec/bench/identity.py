"""What was measured, and with what: hashes of files, of the code and of libraries, and versions.

Invariant: whatever of that could change a figure changes what stands here.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.backends import onnx_folder
from edgespec.bench.record import one_line
from edgespec.errors import ConfigError
from edgespec.gguf_parts import part_files
from edgespec.platform import expanded
from edgespec.registry import graph_files

PACKAGES = (
    "llama-cpp-python", "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml",
    "onnxruntime-trt-rtx", "numpy",
)  # fmt: skip
LIBRARIES = {
    "llama_cpp_libraries": ("llama_cpp", "lib"),
    "onnxruntime_libraries": ("onnxruntime", "capi"),
}
"""What the hash of a package's libraries is called, the package, and its folder of them."""

_LIBRARY = re.compile(r"\.(so|dylib|dll|pyd|metal|metallib)\b")
_AFTERWARDS = (
    "commands", "exporters", "tui", "bench/beside.py", "bench/charts.py", "bench/compare.py",
    "bench/conditions.py", "bench/report.py", "bench/stats.py", "bench/summary.py", "bench/svg.py",
    "bench/table.py",
)  # fmt: skip
"""Parts of the package that run only after a measurement, or not at all."""


def identity(path: Path) -> dict[str, Any]:
    """A model's name, size and SHA-256; of several files, that of them all and their names.

    Those are the graph, the files with its weights, and the texts that say how to use it. Raises
    ConfigError for what can't be read.
    """
    path = expanded(path)
    if not path.exists():
        raise ConfigError(f"{path} doesn't exist")
    try:
        found = onnx_folder.find(path)
        if found is None and path.is_dir():
            raise ConfigError(f"{path} is a folder that holds no ONNX model")
        if found is None:
            parts = {file.name if i else "": file for i, file in enumerate(part_files(path))}
            return {"name": one_line(path.absolute().name), **_hashed(parts)}
        texts = found.folder.iterdir()
        files = graph_files(found.graph.absolute())
        files += [f for f in texts if f.suffix in (".json", ".jinja")]
        named = {f.name: f for f in sorted(files) if f.is_file()}
        return {"name": one_line(found.name), **_hashed(named)}
    except OSError as error:
        raise ConfigError(f"{error.filename or path} can't be read: {error.strerror}") from None


def label(path: Path) -> str:
    """What results call a model: its file without `.gguf`, or an ONNX model's name."""
    found = onnx_folder.find(expanded(path))
    return one_line(found.name if found else path.absolute().name.removesuffix(".gguf"))


def script_hash(script: Path) -> str:
    """Of a peer's script and of those beside it that it imports, or that they do."""
    found: dict[str, Path] = {}
    waiting = [script]
    while waiting:
        file = waiting.pop()
        if file.name not in found and file.is_file():
            found[file.name] = file
            names = re.findall(rb"^\s*(?:from|import)\s+(\w+)", file.read_bytes(), re.MULTILINE)
            waiting += [script.parent / f"{name.decode()}.py" for name in names]
    return str(_hashed(dict(sorted(found.items())))["sha256"])


def _hashed(files: Mapping[str, Path]) -> dict[str, Any]:
    """Size and SHA-256 of files under their names; of one without a name, of its bytes alone."""
    digest, size = hashlib.sha256(), 0
    for name, file in files.items():
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0" if name else b"")
        with file.open("rb") as data:
            while chunk := data.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def versions() -> dict[str, str]:
    """Of edgespec, Python and the packages that compute."""
    found = {"edgespec": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def libraries() -> dict[str, str]:
    """The SHA-256 of what each package computes with: one version has many builds."""
    found = {}
    for name, (package, below) in LIBRARIES.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = Path(spec.origin).parent / below
        if package == "llama_cpp":
            folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH", folder))
        try:
            files = sorted(f for f in folder.iterdir() if _LIBRARY.search(f.name) and f.is_file())
            found[name] = str(_hashed({file.name: file for file in files})["sha256"])
        except OSError as error:
            raise ConfigError(
                f"{error.filename or folder} can't be read: {error.strerror}"
            ) from None
    return found


def code_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Of the package's modules that take part in a measurement: a version says too little."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if not any(name == part or name.startswith(part + "/") for part in _AFTERWARDS):
            digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
