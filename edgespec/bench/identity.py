"""What was measured, and with what: hashes of files and of the code, and versions.

Invariant: whatever could change a figure changes what stands here.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.errors import ConfigError

_PACKAGES = ("llama-cpp-python", "onnxruntime", "onnxruntime-gpu", "numpy")
_AFTERWARDS = (
    "commands", "exporters", "tui", "bench/beside.py", "bench/charts.py", "bench/compare.py",
    "bench/report.py", "bench/stats.py", "bench/summary.py", "bench/svg.py", "bench/table.py",
)  # fmt: skip
"""Parts of the package that run only after a measurement, or not at all."""


def identity(path: Path) -> dict[str, Any]:
    """A model's name, size and SHA-256; of a folder, that of its files and their names."""
    path = path.expanduser()
    if not path.exists():
        raise ConfigError(f"{path} doesn't exist")
    if path.suffix == ".onnx":  # its weights lie beside it
        path = path.resolve().parent
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if path.is_dir():
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as data:
            while chunk := data.read(1 << 20):
                digest.update(chunk)
    return {
        "name": path.name,
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": digest.hexdigest(),
    }


def versions() -> dict[str, str]:
    """Of edgespec, Python and the packages that compute."""
    found = {"edgespec": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def code_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Of the package's modules that take part in a measurement: a version says too little."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if not any(name == part or name.startswith(part + "/") for part in _AFTERWARDS):
            digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
