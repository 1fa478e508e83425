"""A graph on the disk: `model.onnx` with the graph, `model.onnx.data` with the weights.

Invariant: one stored tensor is read into memory at a time, and its bytes lie in the data file once,
however many names they have.

Format: https://onnx.ai/onnx/repo-docs/ExternalData.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec.exporters.progress import Report

MODEL = "model.onnx"
DATA = "model.onnx.data"

_INLINE = 1024  # bytes; smaller tensors stay in the graph, where shape inference looks for them
_LARGE = 1 << 20
# ONNX Runtime maps a large tensor instead of reading it where it starts at a multiple of the
# system's granularity: 4 KiB on Linux, 16 KiB on Apple's processors, 64 KiB on Windows.
_ALIGNMENT_LARGE, _ALIGNMENT = 1 << 16, 64


def move_to(model: ir.Model, folder: Path, aliases: Mapping[str, str], report: Report) -> None:
    """Write both files into `folder`, from which the model's tensors are read from then on.

    aliases: tensor -> another of as many bytes, at whose place it lies.
    """
    stored = model.graph.initializers
    total = sum(v.const_value.nbytes for n, v in stored.items() if n not in aliases)
    places: dict[str, int] = {}
    with (folder / DATA).open("wb") as file:
        for name, value in stored.items():
            tensor = value.const_value
            assert tensor is not None
            if name in aliases or (tensor.nbytes < _INLINE and name not in aliases.values()):
                continue
            alignment = _ALIGNMENT_LARGE if tensor.nbytes >= _LARGE else _ALIGNMENT
            file.seek(-file.tell() % alignment, 1)
            places[name] = file.tell()
            # The raw bytes of an array, little-endian as the format wants them. NumPy's `tofile`
            # would lose the system's reason where a disk takes no more.
            array = np.ascontiguousarray(tensor.numpy())
            file.write(array.reshape(-1).view(np.uint8).data)
            _move(value, places[name], folder)
            report("writing weights", file.tell(), total)
        file.truncate()
    for name, other in aliases.items():
        _move(stored[name], places[other], folder)
    for name, value in stored.items():
        if name not in places and name not in aliases:  # also frees what a lazy tensor holds
            tensor = value.const_value
            value.const_value = ir.tensor(np.array(tensor.numpy()), name=name)
    ir.save(model, folder / MODEL)


def _move(value: ir.Value, offset: int, folder: Path) -> None:
    tensor = value.const_value
    assert tensor is not None and value.name is not None
    value.const_value = ir.ExternalTensor(
        DATA, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name,
        base_dir=folder,
    )  # fmt: skip


def sizes(folder: Path) -> int:
    """Bytes of the graph and its weights together."""
    return sum((folder / name).stat().st_size for name in (MODEL, DATA))
