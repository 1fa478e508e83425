"""Keeping some rows of a model's output head: a drafter that can only say the likeliest tokens.

Invariant: it reads every token its original reads. The embeddings of the whole vocabulary, and its
whole head, lie behind the tensors, in the form that `edgespec.narrow` describes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from edgespec import narrow
from edgespec.backends import fingerprint
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters.cut import Kind, Rewrite, tensor_bytes
from edgespec.gguf import GGUFHeader, StringArray, TensorInfo, read_header

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # token types
_EMBEDDING, _HEAD, _HEAD_BIAS = "token_embd.weight", "output.weight", "output.bias"
_CHUNK = 4096  # rows converted at a time

Ids = npt.NDArray[np.int32]
Counts = Counter[int]


def frequent(header: GGUFHeader, counts: Counts, number: int, always: Iterable[int]) -> Ids:
    """The `number` tokens to keep, (number,) ascending.

    First those in `always`, those the metadata names (the end of a text, ...) and the control
    tokens in the chat template; then the most frequent in `counts`; then, since a sample never
    has so many, the lowest ids: vocabularies are listed by frequency where they were trained.
    Raises ConfigError where that is no selection.
    """
    tokens = _tokens(header)
    types = _types(header)
    named = (
        value
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
    )
    must = {t for t in (*always, *named) if isinstance(t, int) and 0 <= t < len(tokens)}
    template = str(header.metadata.get("tokenizer.chat_template", "")).encode()
    for token in np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED)).tolist():
        if tokens[token] and tokens[token] in template:
            must.add(token)
    real = np.flatnonzero(types != _UNUSED)
    return select(header.path.name, must, real.tolist(), counts, number)


def select(name: str, must: Set[int], real: Sequence[int], counts: Counts, number: int) -> Ids:
    """The `number` tokens to keep of the `real` ones (ascending): see `frequent`."""
    if not len(must) < number < len(real):
        raise ConfigError(
            f"a head of {number} tokens is no selection from {name}: choose from "
            f"{len(must) + 1} to {len(real) - 1} with --vocab"
        )
    kept = dict.fromkeys(must)
    known = set(real)
    # Of tokens seen as often, the lower id: it was the more frequent elsewhere.
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    for token in (*by_count, *real):
        if len(kept) == number:
            break
        if token in known:
            kept[token] = None
    return np.sort(np.fromiter(kept, np.int32))


def narrow_head(draft: Rewrite, kept: Ids, *, small_table: bool) -> None:
    """Leave only the rows `kept` (ascending) in the head; `append_tables` completes the file.

    small_table: whether the tables may be stored in 8 bits although the original has more.
    """
    header = draft.header
    name, size = header.path.name, len(_tokens(header))
    if narrow.KEPT in header.metadata:
        raise ExportError(f"{name} has a narrow head already: start from the original.")
    known = {_EMBEDDING, _HEAD, _HEAD_BIAS}
    for tensor in header.tensors:
        if size in tensor.shape and tensor.name not in known:
            raise ExportError(
                f"{name} uses its vocabulary in {tensor.name} too, so its head can't be narrowed."
            )
        if tensor.name in known:
            if tensor.shape[-1] != size:
                raise ExportError(f"{name} has more rows in {tensor.name} than it has tokens.")
            rows = tensor_bytes(header, tensor.name)
            if tensor.name == _HEAD_BIAS:  # (V * bytes,)
                rows = rows.reshape(size, -1)[kept].reshape(-1)
            else:
                rows = rows[kept]
            draft.replaced[tensor.name] = rows
    types = _table_types(header, small=small_table)
    width = _matrix(header, _EMBEDDING).shape[0]
    architecture = header.architecture
    # To llama.cpp it is a model without a vocabulary: the ids of its rows are no one's ids.
    draft.set_text("tokenizer.ggml.model", "none")
    draft.metadata["tokenizer.ggml.merges"] = None
    draft.set_number(f"{architecture}.vocab_size", len(kept))
    draft.set_ids(narrow.KEPT, kept)
    draft.set_number(narrow.VOCAB_SIZE, size)
    for key, name in ((narrow.TABLE_TYPE, _EMBEDDING), (narrow.HEAD_TYPE, _HEAD)):
        if name in types:
            draft.set_number(key, types[name])
    # llama.cpp takes rows of Gemma 3 and 4 for those of pictures, which it doesn't scale.
    scale = math.sqrt(width) if architecture in ("gemma3", "gemma4") else 1.0
    draft.metadata[narrow.SCALE] = (scale, Kind.FLOAT32, None)
    draft.set_text(narrow.SOURCE, fingerprint([header.path]))


def table_bytes(header: GGUFHeader, *, small_table: bool) -> int:
    """What the tables take on the disk."""
    width = _matrix(header, _EMBEDDING).shape[0]
    types = _table_types(header, small=small_table).values()
    return len(_tokens(header)) * sum(narrow.row_bytes(kind, width) or 0 for kind in types)


def append_tables(path: Path, original: GGUFHeader) -> None:
    """Write the tables of the whole vocabulary behind the tensors of a file with a narrow head."""
    header = read_header(path)
    with path.open("r+b") as file:
        file.truncate(narrow.table_offset(header))
        file.seek(0, 2)
        for key, name in ((narrow.TABLE_TYPE, _EMBEDDING), (narrow.HEAD_TYPE, _HEAD)):
            table_type = header.metadata.get(key)
            if isinstance(table_type, int):
                for rows in _rows(original, name, table_type):
                    file.write(np.ascontiguousarray(rows).data)


def _rows(header: GGUFHeader, name: str, table_type: int) -> Iterator[npt.NDArray[np.uint8]]:
    """A matrix's rows (n, bytes) in order, as its table stores them."""
    kind = _matrix(header, name).type
    table = tensor_bytes(header, name)
    for begin in range(0, len(table), _CHUNK):
        rows = table[begin : begin + _CHUNK]
        if kind == table_type:
            yield rows
            continue
        try:
            floats = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind))
        except NotImplementedError:
            raise ExportError(
                f"{header.path.name} stores {name} in a type that can't be read here; start from "
                "an f16 or q8_0 file."
            ) from None
        yield gguf.quants.quantize(floats, gguf.GGMLQuantizationType(table_type)).view(np.uint8)


def _table_types(header: GGUFHeader, *, small: bool) -> dict[str, int]:
    """How to store each matrix that is to be a table: as it is where the runtime can read that."""
    names = {t.name for t in header.tensors}
    found = {}
    for name in (_EMBEDDING, _HEAD):
        if name in names or name == _EMBEDDING:
            matrix = _matrix(header, name)
            floats = matrix.type in (narrow.F32, narrow.F16, narrow.BF16) and not small
            if floats or matrix.type == narrow.Q8_0:
                found[name] = matrix.type
            else:
                found[name] = narrow.F16 if matrix.shape[0] % 32 else narrow.Q8_0
    return found


def _matrix(header: GGUFHeader, name: str) -> TensorInfo:
    for tensor in header.tensors:
        if tensor.name == name:
            return tensor
    raise ExportError(f"{header.path.name} has no {name}.")


def _tokens(header: GGUFHeader) -> StringArray:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray) or not len(tokens):
        raise ExportError(f"{header.path.name} holds no vocabulary.")
    return tokens


def _types(header: GGUFHeader) -> npt.NDArray[np.int32]:
    types = header.metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, np.ndarray):
        return types
    return np.ones(len(_tokens(header)), np.int32)
