"""A GGUF file written again with some of its tensors and metadata changed.

Invariant: what isn't named as changed is in the new file as it was, byte for byte (tensors) and
with its own type (metadata). Only files that `read_header` has checked are walked here.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.gguf import GGUFHeader, TensorInfo

Raw = npt.NDArray[np.uint8]
"""A tensor's bytes (..., bytes of a row), outermost dimension first."""

Kind = gguf.GGUFValueType


@dataclass
class Rewrite:
    """A GGUF file in the making: the original, and what is to be different.

    Attributes:
        renamed: tensor -> its new name, or None to leave it out.
        replaced: tensor (by its old name) -> its bytes, of the same type.
        metadata: key -> (value, type, and that of its items if it is an array), or None to leave
            it out.
    """

    header: GGUFHeader
    renamed: dict[str, str | None] = field(default_factory=dict)
    replaced: dict[str, Raw] = field(default_factory=dict)
    metadata: dict[str, tuple[Any, Kind, Kind | None] | None] = field(default_factory=dict)

    def set_number(self, key: str, value: int) -> None:
        """A uint32, which is what llama.cpp reads sizes as."""
        self.metadata[key] = (value, Kind.UINT32, None)

    def set_ids(self, key: str, value: npt.NDArray[np.int32] | list[int]) -> None:
        """An array of int32."""
        self.metadata[key] = (np.asarray(value).tolist(), Kind.ARRAY, Kind.INT32)

    def set_text(self, key: str, value: str) -> None:
        """A string."""
        self.metadata[key] = (value, Kind.STRING, None)

    def name_of(self, tensor: TensorInfo) -> str | None:
        """The tensor's name in the new file; None where it is left out."""
        return self.renamed.get(tensor.name, tensor.name)

    @property
    def changes(self) -> bool:
        """Whether anything is to be different."""
        return bool(self.renamed or self.replaced or self.metadata)

    @property
    def nbytes(self) -> int:
        """About what the new file takes."""
        tensors = [t for t in self.header.tensors if self.name_of(t) is not None]
        sizes = (self.replaced[t.name].nbytes if t.name in self.replaced else t.nbytes
                 for t in tensors)  # fmt: skip
        return sum(sizes) + self.header.data_offset


def tensor_bytes(header: GGUFHeader, name: str) -> Raw:
    """A tensor as it lies in the file, mapped."""
    tensor = next(t for t in header.tensors if t.name == name)
    return _mapped(header, tensor)


def write(draft: Rewrite, path: Path) -> None:
    """Write the new file; its tensors stream from the old one."""
    header = draft.header
    writer = gguf.GGUFWriter(path, header.architecture)
    with contextlib.closing(writer):
        alignment = header.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if alignment != gguf.GGUF_DEFAULT_ALIGNMENT:
            writer.add_custom_alignment(int(str(alignment)))
        for key, (kind, items) in _kinds(header).items():
            if key in draft.metadata or key in ("general.architecture", "general.alignment"):
                continue
            value: Any = header.metadata[key]
            if kind is not Kind.ARRAY:
                writer.add_key_value(key, value, kind)
            elif len(value):  # the writer refuses an empty array, which says nothing anyway
                value = value.tolist() if isinstance(value, np.ndarray) else value
                writer.add_key_value(key, value, kind, items)
        for key, changed in draft.metadata.items():
            if changed is not None:
                writer.add_key_value(key, *changed)
        for tensor in header.tensors:
            name = draft.name_of(tensor)
            if name is None:
                continue
            data = draft.replaced.get(tensor.name)
            data = _mapped(header, tensor) if data is None else data
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(tensor.type))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _mapped(header: GGUFHeader, tensor: TensorInfo) -> Raw:
    outer = tensor.shape[:0:-1]
    shape = (*outer, tensor.nbytes // int(np.prod(outer, dtype=np.int64)))
    mapped: Raw = np.memmap(header.path, np.uint8, "r", tensor.offset, shape)
    return mapped


def _kinds(header: GGUFHeader) -> dict[str, tuple[Kind, Kind | None]]:
    """The type of each value, and of its items where it is an array: `GGUFHeader` keeps none."""
    found: dict[str, tuple[Kind, Kind | None]] = {}
    with (
        header.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        at = 24  # magic, version, counts
        for _ in header.metadata:
            key, at = _text(view, at)
            kind = Kind(struct.unpack_from("<I", view, at)[0])
            at += 4
            items, count = None, 1
            if kind is Kind.ARRAY:
                item, count = struct.unpack_from("<IQ", view, at)
                items, at = Kind(item), at + 12
            at = _skip(view, at, items or kind, count)
            found[key.decode()] = kind, items
    if found.keys() != header.metadata.keys():
        raise ExportError(f"{header.path.name} changed while it was read; try again.")
    return found


_SIZES: Mapping[Kind, int] = {
    Kind.UINT8: 1, Kind.INT8: 1, Kind.BOOL: 1, Kind.UINT16: 2, Kind.INT16: 2,
    Kind.UINT32: 4, Kind.INT32: 4, Kind.FLOAT32: 4,
    Kind.UINT64: 8, Kind.INT64: 8, Kind.FLOAT64: 8,
}  # fmt: skip


def _skip(view: mmap.mmap, at: int, kind: Kind, count: int) -> int:
    if kind is not Kind.STRING:
        return at + count * _SIZES[kind]
    for _ in range(count):
        at += 8 + struct.unpack_from("<Q", view, at)[0]
    return at


def _text(view: mmap.mmap, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<Q", view, at)
    return view[at + 8 : at + 8 + size], at + 8 + size
