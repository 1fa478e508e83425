"""The header of a GGUF model file, read and checked before any native code sees the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.

Invariant: whatever bytes a path holds, `read_header` either returns a header whose every tensor
lies inside the file or raises `ModelFormatError`, within bounded time and memory.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, overload

import numpy as np
import numpy.typing as npt

from .errors import ModelFormatError
from .not_gguf import AGAIN, BIG_ENDIAN, what_else

# Far above any real model, and low enough that a hostile file costs under a second and 64 MB.
_MAX_HEADER: Final = 32 << 20  # bytes, everything before the tensor data
_MAX_TEXT: Final = 2 << 20  # bytes, keys, names and string values together (not string arrays)
_MAX_KEY: Final = 65535  # bytes, the format's own limit
_MAX_KEYS: Final = 1 << 12
_MAX_STRINGS: Final = 3 << 19  # entries of all string arrays together
_MAX_TENSORS: Final = 1 << 14
_MAX_ALIGNMENT: Final = 1 << 16
_MAX_NAME: Final = 63  # bytes: ggml keeps tensor names in 64, the last one NUL
_MAX_DIMS: Final = 4

_UINT16, _UINT32, _BOOL, _STRING, _ARRAY = 2, 4, 7, 8, 9
# Metadata value type -> how it lies in the file; a bool is a byte that must be 0 or 1.
_DTYPES: Final = {
    0: "u1", 1: "i1", _UINT16: "<u2", 3: "<i2", _UINT32: "<u4", 5: "<i4", 6: "<f4", _BOOL: "u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip

# ggml type -> (elements per block, bytes per block), from ggml's type table.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8),                   # F32 F16 BF16 F64
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),                 # I8 I16 I32 I64
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),             # Q4_0 Q4_1 Q5_0 Q5_1
    8: (32, 34), 9: (32, 40),                                       # Q8_0 Q8_1
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176),  # Q2_K Q3_K Q4_K Q5_K
    14: (256, 210), 15: (256, 292),                                 # Q6_K Q8_K
    16: (256, 66), 17: (256, 74), 22: (256, 82),                    # IQ2_XXS IQ2_XS IQ2_S
    18: (256, 98), 21: (256, 110), 19: (256, 50), 29: (256, 56),    # IQ3_XXS IQ3_S IQ1_S IQ1_M
    20: (32, 18), 23: (256, 136),                                   # IQ4_NL IQ4_XS
    34: (256, 54), 35: (256, 66),                                   # TQ1_0 TQ2_0
    39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),        # MXFP4 NVFP4 Q1_0 Q2_0
}  # fmt: skip
_DROPPED_TYPES: Final = frozenset({4, 5, 31, 32, 33, 36, 37, 38})  # ids ggml gave up

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FIXED = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys
_TENSOR = {n: struct.Struct(f"<{n}QIQ") for n in range(1, _MAX_DIMS + 1)}  # shape, type, offset

_REMAKE: Final = "download or convert it again"


class StringArray(Sequence[bytes]):
    """A string array of the metadata, cut into entries only when they are asked for.

    Entries are bytes: a token may be any part of a UTF-8 sequence.
    """

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes, ends: npt.NDArray[np.uint32]) -> None:
        self._data = data  # each entry as it lies in the file: a length in 8 bytes, then the text
        self._ends = ends  # (n,) where each entry ends in data

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]  # brings a negative index into range, refuses one outside
        start = int(self._ends[i - 1]) if i else 0
        return self._data[start + _U64.size : int(self._ends[i])]

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self._ends.data:  # a memoryview yields Python ints, one at a time
            yield self._data[start + _U64.size : end]
            start = end


MetadataValue = int | float | bool | str | npt.NDArray[Any] | StringArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies; `shape` is in ggml's order, the row length first."""

    name: str
    shape: tuple[int, ...]
    type: int  # ggml type id
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True, eq=False)
class GGUFHeader:
    """A checked header; it keeps no hold on the file.

    Numeric and bool arrays of `metadata` are read-only numpy arrays; in a string value (not in an
    array) bytes that aren't UTF-8 are replaced.
    """

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int  # bytes from the start of the file

    @property
    def architecture(self) -> str:
        """`general.architecture`; "" in the second and later parts of a split model."""
        return str(self.metadata.get("general.architecture", ""))


def read_header(path: Path | str) -> GGUFHeader:
    """Read and check the header of the GGUF file at `path`.

    Takes only files llama.cpp's reader takes, and closes the file before it returns.
    Raises ModelFormatError, in one sentence, for anything else, also for a path that can't be read.
    """
    path = Path(path)
    view, size = _map(path)
    with view:
        return _Reader(_printable(path.name), view, size).header(path)


def _map(path: Path) -> tuple[mmap.mmap, int]:
    """Map as much of the file as a header may take; also its whole size in bytes."""
    shown = _printable(str(path))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFormatError(f"{shown} is a folder: name the .gguf file inside it")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for its writer
            raise ModelFormatError(f"{shown} is a pipe or a device: name a .gguf file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelFormatError(f"{shown} is empty: {AGAIN}")
            length = min(size, _MAX_HEADER)
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ), size
    except FileNotFoundError:
        raise ModelFormatError(f"{shown} doesn't exist: check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        message = f"{shown} can't be read ({why}): check the path and its permissions"
        raise ModelFormatError(message) from None


class _Reader:
    """A cursor over the mapped header; every step is checked against what is left."""

    def __init__(self, name: str, view: mmap.mmap, size: int) -> None:
        self.name = name
        self.view = view
        self.size = size  # bytes in the file, of which view maps the first _MAX_HEADER
        self.pos = 0
        self.where = "the header"  # what is being read, for messages
        self.text_left = _MAX_TEXT
        self.strings_left = _MAX_STRINGS

    def damaged(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.name} is damaged ({what}): {_REMAKE}")

    def too_much(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.name} is damaged or too big ({what}): {_REMAKE}")

    def overrun(self) -> NoReturn:
        if len(self.view) < self.size:
            self.too_much(f"{self.where} runs past a header's limit of {_MAX_HEADER:,} bytes")
        message = f"{self.where} runs past the end of the file at {self.size:,} bytes"
        raise ModelFormatError(f"{self.name} is cut short or damaged: {message}: {AGAIN}")

    def skip(self, nbytes: int) -> int:
        """Step over nbytes and return where they start."""
        start = self.pos
        if nbytes > len(self.view) - start:
            self.overrun()
        self.pos = start + nbytes
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.view, self.skip(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.view, self.skip(8))[0])

    def text(self) -> bytes:
        nbytes = self.u64()
        start = self.skip(nbytes)
        self.text_left -= nbytes
        if self.text_left < 0:
            self.too_much(f"its names and texts exceed the limit of {_MAX_TEXT:,} bytes")
        return self.view[start : self.pos]

    def label(self, kind: str, limit: int) -> str:
        """The name of a key or tensor. NUL is refused: native code would see a shorter name."""
        raw = self.text()
        if not 0 < len(raw) <= limit:
            self.damaged(f"a {kind} of {len(raw)} bytes, where 1 to {limit} are allowed")
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            self.damaged(f"a {kind} that isn't UTF-8: {_shorten(raw)}")
        if "\0" in name:
            self.damaged(f"a {kind} with a NUL in it: {_shorten(name)}")
        return name

    def value(self, value_type: int) -> MetadataValue:
        if value_type == _STRING:
            return self.text().decode(errors="replace")
        if value_type == _ARRAY:
            item_type, count = self.u32(), self.u64()
            return self.strings(count) if item_type == _STRING else self.numbers(item_type, count)
        scalar: int | float | bool = self.numbers(value_type, 1)[0].item()
        return scalar

    def numbers(self, value_type: int, count: int) -> npt.NDArray[Any]:
        if value_type == _ARRAY:
            self.damaged(f"{self.where} is an array of arrays")
        if value_type not in _DTYPES:
            self.damaged(f"{self.where} has the unknown value type {value_type}")
        dtype = np.dtype(_DTYPES[value_type])
        start = self.skip(count * dtype.itemsize)
        array = np.frombuffer(self.view[start : self.pos], dtype)  # (count,)
        if value_type != _BOOL:
            return array
        if count and array.max() > 1:
            self.damaged(f"{self.where} holds a bool that is neither 0 nor 1")
        return array.view(np.bool_)

    def strings(self, count: int) -> StringArray:
        if count * _U64.size > len(self.view) - self.pos:
            self.overrun()
        self.strings_left -= count
        if self.strings_left < 0:
            self.too_much(f"its string arrays exceed the limit of {_MAX_STRINGS:,} entries")
        start = self.pos
        try:
            ends = np.fromiter(_string_ends(self.view, start, count), np.int64, count)
        except (struct.error, OverflowError):  # a length led outside the view
            self.overrun()
        ends -= start
        self.skip(int(ends[-1]) if count else 0)
        return StringArray(self.view[start : self.pos], ends.astype(np.uint32))

    def metadata(self, count: int) -> dict[str, MetadataValue]:
        found: dict[str, MetadataValue] = {}
        for i in range(count):
            self.where = f"metadata key {i + 1} of {count}"
            key = self.label("metadata key", _MAX_KEY)
            if key in found:
                self.damaged(f"the metadata key {_shorten(key)} occurs twice")
            self.where = f"the metadata key {_shorten(key)}"
            value_type = self.u32()
            found[key] = self.value(value_type)
            if key == "general.alignment" and value_type != _UINT32:
                self.damaged("general.alignment is not a 32-bit unsigned integer")
            if key == "split.no" and value_type != _UINT16:  # llama.cpp aborts the process
                self.damaged("split.no is not a 16-bit unsigned integer")
        # The later parts of a split model hold tensors and their part's number, nothing else.
        part = found.get("split.no", 0)
        default = "" if isinstance(part, int) and part > 0 else None
        if not isinstance(found.get("general.architecture", default), str):
            self.damaged("general.architecture is missing or is not a string")
        return found

    def tensor(self) -> TensorInfo:
        """One tensor as the file states it: its offset counts from the start of the data."""
        name = self.label("tensor name", _MAX_NAME)
        self.where = f"tensor {_shorten(name)}"
        n_dims = self.u32()
        if n_dims not in _TENSOR:
            self.damaged(f"{self.where} has {n_dims} dimensions, where 1 to 4 are allowed")
        fields = _TENSOR[n_dims]
        *dims, ggml_type, offset = fields.unpack_from(self.view, self.skip(fields.size))
        elements = math.prod(dims)
        if not 0 < elements < 1 << 63:
            self.damaged(f"{self.where} has the impossible shape {tuple(dims)}")
        if ggml_type not in _BLOCKS:
            if ggml_type in _DROPPED_TYPES:
                what = "needs to be converted again, because llama.cpp has dropped"
            else:
                what = "is damaged or needs a newer edgespec and llama.cpp, because they don't know"
            raise ModelFormatError(f"{self.name} {what} type {ggml_type}, that of {self.where}")
        block, block_bytes = _BLOCKS[ggml_type]
        if dims[0] % block:
            self.damaged(f"{self.where} has rows of {dims[0]} elements in blocks of {block}")
        return TensorInfo(name, tuple(dims), ggml_type, offset, elements // block * block_bytes)

    def tensors(self, count: int, alignment: int) -> list[TensorInfo]:
        found: dict[str, TensorInfo] = {}
        end = 0  # of the tensors so far: each must start right there, as llama.cpp demands
        for i in range(count):
            self.where = f"tensor {i + 1} of {count}"
            tensor = self.tensor()
            if tensor.name in found:
                self.damaged(f"{self.where} occurs twice")
            if tensor.offset % alignment:
                self.damaged(f"{self.where} is not aligned to {alignment} bytes")
            if tensor.offset != end:
                wrong = "overlaps another tensor" if tensor.offset < end else "follows a gap"
                self.damaged(f"{self.where} {wrong}: it starts at {tensor.offset:,}, not {end:,}")
            found[tensor.name] = tensor
            end = _align(end + tensor.nbytes, alignment)
        return list(found.values())

    def header(self, path: Path) -> GGUFHeader:
        if self.view[:4] != b"GGUF":
            raise ModelFormatError(f"{self.name} {what_else(self.view[:512])}")
        fixed = _FIXED.unpack_from(self.view, self.skip(_FIXED.size))
        _, version, n_tensors, n_keys = fixed
        self.check_version(version)
        # Smallest key: 8 length, 1 name, 4 type, 1 value. Smallest tensor: 8, 1, 4, 8, 4, 8.
        self.check_count("metadata keys", n_keys, _MAX_KEYS, 14)
        self.check_count("tensors", n_tensors, _MAX_TENSORS, 33)
        metadata = self.metadata(n_keys)
        alignment = metadata.get("general.alignment", 32)
        assert isinstance(alignment, int)
        if alignment.bit_count() != 1 or not 8 <= alignment <= _MAX_ALIGNMENT:
            self.damaged(f"general.alignment is {alignment}, not a power of two from 8 to 65536")
        stated = self.tensors(n_tensors, alignment)
        data_offset = _align(self.pos, alignment)
        if stated:
            end = data_offset + stated[-1].offset + stated[-1].nbytes
            if end > self.size:
                missing = f"{end - self.size:,} of its {end:,} bytes are missing"
                raise ModelFormatError(f"{self.name} is cut short: {missing}: {AGAIN}")
        tensors = tuple(
            TensorInfo(t.name, t.shape, t.type, data_offset + t.offset, t.nbytes) for t in stated
        )
        return GGUFHeader(path, version, MappingProxyType(metadata), tensors, data_offset)

    def check_version(self, version: int) -> None:
        if version in (2, 3):
            return
        what = f"is GGUF version {version}, but edgespec reads 2 and 3: update edgespec"
        if version == 0:
            self.damaged("it says GGUF version 0")
        if version == 1:
            what = "is GGUF version 1, which llama.cpp no longer reads: get or convert a newer file"
        elif version & 0xFFFF == 0:
            what = BIG_ENDIAN
        raise ModelFormatError(f"{self.name} {what}")

    def check_count(self, what: str, count: int, limit: int, smallest: int) -> None:
        if count * smallest > self.size - self.pos:
            self.damaged(f"{count:,} {what} can't fit in {self.size:,} bytes")
        if count > limit:
            self.too_much(f"it has {count:,} {what}, where {limit:,} is the limit")


def _string_ends(view: mmap.mmap, pos: int, count: int) -> Iterator[int]:
    unpack = _U64.unpack_from
    for _ in range(count):
        pos += 8 + unpack(view, pos)[0]
        yield pos


def _align(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


def _shorten(name: str | bytes) -> str:
    """Quoted, for a message: no control characters from a file reach a terminal."""
    return repr(name[:80]) + ("..." if len(name) > 80 else "")


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)
