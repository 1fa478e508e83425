"""An ONNX model read from its files, weights and all, to be written again.

Invariant: nothing outside the model's folder is read, whatever the graph says, and a weight's bytes
stay in its file until they are asked for. (onnx_ir has a way of its own to map them, which refuses
a file with several names, as model caches have them.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgespec.errors import ModelFormatError
from edgespec.exporters import onnx_graph

Place = tuple[Path, int, int]
"""Where a tensor's bytes lie: file, offset, length."""


class Mapped(ir.LazyTensor):  # type: ignore[misc]
    """A stored tensor, mapped from its file each time it is read."""

    place: Place


def load(graph: Path, name: str) -> ir.Model:
    """Read a graph. Raises ModelFormatError where it, or a file it refers to, is damaged."""
    try:
        model = ir.load(graph)
    except Exception as error:  # protobuf's errors have no class in common
        raise ModelFormatError(f"{name} is damaged or no ONNX model: {error}") from error
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = _mapped(value.const_value, graph.parent, name)
    onnx_graph.join_transposes(model)
    return model


def same_bytes(model: ir.Model, known: Mapping[str, str]) -> dict[str, str]:
    """Stored tensors that are the same bytes of a file as another, by that one's name."""
    first: dict[Place, str] = {}
    found: dict[str, str] = {}
    for key, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, Mapped) and key not in known:
            if tensor.place in first:
                found[key] = first[tensor.place]
            first.setdefault(tensor.place, key)
    return found


def real_places(model: ir.Model, folder: Path, name: str) -> Path:
    """Let weights be read where they lie and not through links; the folder that holds them all.

    ONNX Runtime follows no links from a graph in memory, and the hub's cache is made of them.
    Raises ModelFormatError where weights lie outside of the model's folder.
    """
    stored = {
        value: (folder / _inside(value.const_value, name)).resolve()
        for value in model.graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    parents = {str(path.parent) for path in stored.values()} or {str(folder.resolve())}
    real = Path(os.path.commonpath(parents))
    for value, path in stored.items():
        tensor = value.const_value
        value.const_value = ir.ExternalTensor(
            path.relative_to(real).as_posix(), tensor.offset, tensor.length, tensor.dtype,
            shape=tensor.shape, name=tensor.name, base_dir=real,
        )  # fmt: skip
    return real


def _inside(tensor: ir.ExternalTensor, name: str) -> Path:
    """Where its file is, from the graph's folder."""
    location = Path(tensor.location)
    if location.is_absolute() or location.drive or ".." in location.parts:
        raise ModelFormatError(f"{name} keeps weights outside of its folder: {location}")
    return location


def _mapped(tensor: ir.ExternalTensor, folder: Path, name: str) -> Mapped:
    location = _inside(tensor, name)
    path = folder / location
    if tensor.dtype.bitwidth < 8:
        raise ModelFormatError(
            f"{name} stores {tensor.name} as {tensor.dtype.name}, which edgespec can't rewrite"
        )
    shape = tuple(map(int, tensor.shape))
    kind = tensor.dtype.numpy()
    offset, length = tensor.offset or 0, math.prod(shape) * kind.itemsize
    if not path.is_file() or path.stat().st_size < offset + length:
        raise ModelFormatError(
            f"{location} of {name} is missing or cut short: fetch the whole folder"
        )

    def read() -> Any:
        return ir.Tensor(np.memmap(path, kind, "r", offset, shape), tensor.dtype)

    mapped = Mapped(read, tensor.dtype, tensor.shape, name=tensor.name)
    mapped.place = (path, offset, length)
    return mapped
