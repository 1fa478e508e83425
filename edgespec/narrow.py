"""A drafter whose output head holds only some of its vocabulary: how the file says so.

Invariant: whatever is drafted is an id of the whole vocabulary. A token without a row in the head
has the logit -inf, so it has no chance under any sampling step, and both acceptance rules stay
exact.

In a GGUF, llama.cpp ties embedding rows and head rows to one list of tokens. So the file's tensors
are those of a model of N tokens, and the embeddings of all tokens lie as a table behind them, where
GGUF readers don't look; the session feeds rows of it (see `llama_narrow`). A model whose head isn't
its embeddings has the rows of its whole head as a second table behind that one: from it the tokens
that were read of late, and are likely to come again, get a row. The keys below say which tokens the
N are and what the tables look like.

An ONNX graph has its embeddings and its head apart, so there a narrow head is a head of N rows, and
KEPT (ids with commas between) and VOCAB_SIZE stand in the graph's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.errors import ModelError, ModelFormatError
from edgespec.gguf import GGUFHeader
from edgespec.session import Logits, TokenIds

KEPT = "edgespec.draft.kept"
"""int32 array (N,), ascending: the token of each row of the head."""
VOCAB_SIZE = "edgespec.draft.vocab_size"
"""Tokens in the whole vocabulary, which is the table's number of rows."""
TABLE_TYPE = "edgespec.draft.embedding_type"
"""ggml's id of the table's type, one of `ROW_BYTES`."""
HEAD_TYPE = "edgespec.draft.head_type"
"""ggml's id of the second table's type, where there is one."""
SCALE = "edgespec.draft.embedding_scale"
"""What the architecture multiplies embeddings by when it is given ids, and not when given rows."""
SOURCE = "edgespec.draft.source"
"""The fingerprint of the file it was cut from."""
BLOCKS = "edgespec.draft.blocks"
"""int32 array: which blocks of that file it keeps, where some are left out."""

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", 32)])  # of Q8_0
_MOST = 512  # tokens outside the head that have a row at a time: a moment's work for one thread
_AGAIN = "make it again with `edgespec draft`"


@dataclass(frozen=True)
class Table:
    """Where the rows (rows, width) of a table lie in its file, and as what."""

    type: int
    offset: int  # bytes from the start of the file
    rows: int
    width: int
    scale: float = 1.0

    @property
    def nbytes(self) -> int:
        return self.rows * (row_bytes(self.type, self.width) or 0)


@dataclass(frozen=True)
class NarrowHead:
    """What the file says.

    Attributes:
        kept: the token of each row of the head, (N,) ascending.
        embeddings: the table of what is fed for each token.
        head: that of what each token's logit is made with.
    """

    kept: npt.NDArray[np.int32]
    embeddings: Table
    head: Table

    @property
    def vocab_size(self) -> int:
        return self.embeddings.rows


def row_bytes(table_type: int, width: int) -> int | None:
    """Bytes of one embedding in the table; None for a type that it can't have."""
    if table_type == Q8_0:
        return width // 32 * _BLOCK.itemsize if width % 32 == 0 else None
    return {F32: 4 * width, F16: 2 * width, BF16: 2 * width}.get(table_type)


def table_offset(header: GGUFHeader) -> int:
    """Where the table begins: behind the last tensor, aligned like one."""
    alignment = header.metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)
    end = max((t.offset + t.nbytes for t in header.tensors), default=header.data_offset)
    return -(-end // alignment) * alignment


def read(header: GGUFHeader) -> NarrowHead | None:
    """The narrow head a file has, checked; None where its head is whole."""
    if KEPT not in header.metadata:
        return None
    name = header.path.name

    def value(key: str, kind: type) -> Any:
        found = header.metadata.get(key)
        if not isinstance(found, kind):
            raise ModelFormatError(f"{name} is damaged: {key} is missing or wrong: {_AGAIN}")
        return found

    kept = value(KEPT, np.ndarray)
    vocab_size, table_type = value(VOCAB_SIZE, int), value(TABLE_TYPE, int)
    scale = value(SCALE, float)
    rows = next((t.shape for t in header.tensors if t.name == "token_embd.weight"), (0, 0))
    ascending = kept.ndim == 1 and kept.dtype.kind == "i" and bool((np.diff(kept) > 0).all())
    fits = len(rows) == 2 and rows[1] == len(kept) > 0
    if not (ascending and fits and kept[0] >= 0 and kept[-1] < vocab_size):
        raise ModelFormatError(f"{name} is damaged: its head's tokens make no sense: {_AGAIN}")
    types = [table_type, value(HEAD_TYPE, int)] if HEAD_TYPE in header.metadata else [table_type]
    if not np.isfinite(scale) or any(row_bytes(kind, rows[0]) is None for kind in types):
        raise ModelFormatError(f"{name} is damaged: its embedding table has no known type")
    embeddings = Table(table_type, table_offset(header), vocab_size, rows[0], scale)
    head = replace(embeddings, scale=1.0)
    if len(types) > 1:
        head = Table(types[1], embeddings.offset + embeddings.nbytes, vocab_size, rows[0])
    if header.path.stat().st_size < head.offset + head.nbytes:
        raise ModelFormatError(
            f"{name} has lost the embedding table behind its tensors (another program may have "
            f"rewritten it): {_AGAIN}"
        )
    return NarrowHead(kept, embeddings, head)


class NarrowVocabulary(NamedTuple):
    """What an ONNX graph says of its head: the tokens (N,) ascending that it has, of so many."""

    kept: npt.NDArray[np.int32]
    vocab_size: int


def read_metadata(name: str, metadata: Mapping[str, str], rows: int) -> NarrowVocabulary | None:
    """The tokens of an ONNX graph's head; None where it is whole.

    `rows`: numbers in a row of its logits. Raises ModelFormatError.
    """
    if KEPT not in metadata:
        return None
    try:
        kept = np.array(metadata[KEPT].split(","), np.int32)
        vocab_size = int(metadata[VOCAB_SIZE])
    except (KeyError, ValueError, OverflowError):
        kept, vocab_size = np.empty(0, np.int32), 0
    fits = 0 < len(kept) == rows and kept[0] >= 0 and kept[-1] < vocab_size
    if not (fits and (np.diff(kept) > 0).all()):
        raise ModelFormatError(f"{name} is damaged: its head's tokens make no sense: {_AGAIN}")
    return NarrowVocabulary(kept, vocab_size)


class TableRows:
    """A table's rows; only those that are asked for are read from the disk."""

    def __init__(self, path: Path, table: Table) -> None:
        each = row_bytes(table.type, table.width)
        assert each is not None
        self._raw = np.memmap(path, np.uint8, "r", table.offset, (table.rows, each))  # (V, bytes)
        self._table = table
        self._name = path.name

    def read(self, tokens: Sequence[int] | TokenIds, out: npt.NDArray[np.float32]) -> None:
        """The rows (n, width) of tokens (n,), into `out`."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not ((ids >= 0) & (ids < len(self._raw))).all():
            raise ModelError(f"{self._name} was given an id outside its vocabulary")
        raw = self._raw[ids]  # (n, bytes)
        if self._table.type == Q8_0:
            blocks = raw.view(_BLOCK)  # (n, width / 32)
            scales = blocks["scale"].astype(np.float32)[:, :, None]
            np.multiply(blocks["values"], scales, out=out.reshape(*blocks.shape, 32))
        elif self._table.type == BF16:
            out.view(np.uint32)[:] = raw.view("<u2").astype(np.uint32) << 16
        else:
            out[:] = raw.view("<f4" if self._table.type == F32 else "<f2")
        if self._table.scale != 1:
            out *= self._table.scale


class Occurred:
    """The tokens outside the head that were read, with their rows; of too many, those that were
    read longest ago give way.

    They are few, and likelier to come again than any other token that the head doesn't hold.
    """

    def __init__(self, kept: npt.NDArray[np.int32], rows: TableRows, table: Table) -> None:
        self._table_rows = rows
        self._inside = np.zeros(table.rows, np.bool_)
        self._inside[kept] = True
        self.ids = np.empty(0, np.intp)  # (n,)
        self._rows = np.empty((0, table.width), np.float32)  # (n, width)
        self._read = np.empty(0, np.int64)  # (n,): in which call of `add` each was read last
        self._calls = 0

    def add(self, tokens: Sequence[int] | TokenIds) -> None:
        """Take note of tokens that were read."""
        ids = np.asarray(tokens, dtype=np.int64)
        ids = np.unique(ids[~self._inside[ids]])
        if not len(ids):
            return
        self._calls += 1
        self._read[np.isin(self.ids, ids)] = self._calls
        fresh = ids[~np.isin(ids, self.ids)]
        if not len(fresh):
            return
        rows = np.empty((len(fresh), self._rows.shape[1]), np.float32)
        self._table_rows.read(fresh.tolist(), rows)
        self.ids = np.concatenate([self.ids, fresh])
        self._rows = np.concatenate([self._rows, rows])
        self._read = np.concatenate([self._read, np.full(len(fresh), self._calls)])
        if len(self.ids) > _MOST:
            newest = np.sort(np.argsort(self._read, kind="stable")[-_MOST:])
            self.ids, self._rows = self.ids[newest], self._rows[newest]
            self._read = self._read[newest]

    def logits(self, hidden: npt.NDArray[np.float32]) -> Logits:
        """Their logits (n, len(ids)), made of what the head sees (n, width)."""
        return np.asarray(hidden @ self._rows.T, dtype=np.float32)


class Widener:
    """Rows of a narrow head as rows of the whole vocabulary."""

    def __init__(self, kept: npt.NDArray[np.int32], vocab_size: int) -> None:
        self._kept = kept.astype(np.intp)
        self._vocab_size = vocab_size
        self._rows: Logits = np.empty((0, vocab_size), np.float32)
        self._written = np.empty(0, np.intp)  # ids that have a logit besides the kept

    def widen(
        self,
        rows: Logits,
        ids: npt.NDArray[np.intp] | None = None,
        logits: Logits | None = None,
    ) -> Logits:
        """Logits (n, N) -> (n, V), -inf where there is none; the next call overwrites them.

        `ids` (m,) outside the head may have `logits` (n, m) too.
        """
        n = len(rows)
        if len(self._rows) < n:
            self._rows = np.full((n, self._vocab_size), -np.inf, np.float32)
        elif len(self._written):
            self._rows[:, self._written] = -np.inf
        for wide, narrow in zip(self._rows, rows, strict=False):
            wide[self._kept] = narrow  # the others were -inf from the start
        self._written = np.empty(0, np.intp)
        if ids is not None and logits is not None:
            self._rows[:n, ids] = logits
            self._written = ids
        return self._rows[:n]
