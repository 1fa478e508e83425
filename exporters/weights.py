"""Tensors of safetensors files, read one at a time.

Format: https://huggingface.co/docs/safetensors/index#format: 8 bytes with the header's length,
a JSON header, then the data. Read here without the safetensors package, because its numpy side
knows no bfloat16.

Invariant: a StoredTensor lies wholly inside its file, and reading one takes no more memory than
the tensor itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError

_MAX_HEADER = 100_000_000  # bytes; the format's own limit

# Types of the format -> how numpy holds them; those numpy has no type for as their bits.
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The types whose values `StoredTensor.floats` gives."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies; nothing of it is read before `floats` or `raw` is called."""

    name: str
    file: Path
    dtype: str  # as the format writes it: "BF16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int

    def raw(self) -> npt.NDArray[Any]:
        """The tensor as it is stored, `shape`; bfloat16 as uint16 bits. A copy in memory.

        A plain read, and no mapping: mapped pages would count as this process's memory until the
        system takes them back.
        """
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                dtype = np.dtype(_DTYPES[self.dtype])
                data = np.fromfile(file, dtype, self.nbytes // dtype.itemsize)
        except OSError as error:
            raise ExportError(f"Can't read {self.file}: {error.strerror or error}.") from error
        if data.nbytes != self.nbytes:
            raise ExportError(
                f"{self.file} became shorter while it was read; run the export again."
            )
        return data.reshape(self.shape)

    def floats(self) -> npt.NDArray[np.float32]:
        """The tensor as float32, `shape`; exact, as every 16-bit float is one of 32 bits too.

        Raises ExportError for integers and for 8-bit floats, which need scales to mean anything.
        """
        if self.dtype not in FLOATS:
            raise ExportError(
                f"{self.name} in {self.file.name} is stored as {self.dtype}, so this checkpoint is "
                "quantised; export from the original one in 16 or 32 bits."
            )
        raw = self.raw()
        if self.dtype == "BF16":
            wide = raw.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return raw.astype(np.float32, copy=False)


def read_index(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file, by name, in the order of their data.

    Reads the header only. Raises ExportError for a file that isn't one, or is cut short.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise ExportError(f"{file} {_what_else(file, size)}")
            header = json.loads(stream.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        tensors = [
            _tensor(name, entry, file, 8 + length, size)
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise ExportError(f"Can't read {file}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{file} is damaged: its header can't be read ({error})"
        raise ExportError(f"{message}; download it again.") from error
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.name))
    return {tensor.name: tensor for tensor in tensors}


def _tensor(
    name: str, entry: Mapping[str, Any], file: Path, data_offset: int, size: int
) -> StoredTensor:
    dtype, shape = entry["dtype"], entry["shape"]
    begin, end = entry["data_offsets"]
    if not all(isinstance(n, int) and n >= 0 for n in (begin, end, *shape)):
        raise ValueError(f"{name!r} has an impossible shape or place")
    if dtype not in _DTYPES:
        raise ExportError(
            f"{name} in {file.name} is stored as {dtype}, which can't be exported; use a "
            "checkpoint in 16 or 32 bits."
        )
    if math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - begin:
        raise ValueError(f"{name!r} has another size than its shape says")
    if data_offset + end > size:
        missing = data_offset + end - size
        raise ExportError(f"{file} is cut short by {missing:,} bytes or more; download it again.")
    return StoredTensor(name, file, dtype, tuple(shape), data_offset + begin, end - begin)


def _what_else(file: Path, size: int) -> str:
    """What a file is that doesn't begin like safetensors, and what to do about it."""
    with file.open("rb") as stream:
        head = stream.read(100)
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the weights themselves; run `git lfs pull` there."
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "is a PyTorch file under another name; save the model as safetensors first."
    if size < 8:
        return f"is not a safetensors file, only {size} bytes; download it again."
    return "is not a safetensors file, or is cut short; download it again."
