"""Keeping some rows of an ONNX graph's output head.

Invariant: embeddings stay whole, so the drafter reads every token. A head that shares its matrix
with them gets one of its own. Which tokens its rows are stands in the graph's own metadata, in the
form that `edgespec.narrow` describes, so it can't be lost or swapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgespec import narrow
from edgespec.backends.onnx_folder import OnnxFolder
from edgespec.backends.onnx_tokenizer import OnnxTokenizer
from edgespec.errors import ExportError
from edgespec.exporters.head import Counts, Ids, select
from edgespec.exporters.onnx_graph import (
    BLOCKS,
    attribute,
    constant,
    find_head,
    shape_of,
    weight_of,
)

_BLOCK_ROWS = (1, 2, 3, 5)  # its inputs with a row for each row of the matrix; 4 is by column


def frequent(
    folder: OnnxFolder, vocab_size: int, counts: Counts, number: int, always: Iterable[int]
) -> Ids:
    """The `number` tokens to keep, (number,) ascending; see `head.frequent`."""
    tokenizer = OnnxTokenizer(folder, vocab_size)
    texts = tokenizer.vocabulary()
    real = [i for i, text in enumerate(texts) if text != f"[PAD{i}]".encode()]
    template = tokenizer.template or ""
    named = (i for text, i in tokenizer.control_tokens.items() if text and text in template)
    ends = {tokenizer.bos_id, *tokenizer.stop_ids}
    must = {i for i in (*always, *named, *ends) if i is not None and 0 <= i < len(texts)}
    return select(folder.name, must, real, counts, number)


def vocab_size(model: ir.Model, name: str) -> int:
    """Rows of the output head. Raises ExportError where it isn't found."""
    return _rows(_find_head(model, name)[0])


def narrow_head(model: ir.Model, name: str, kept: Ids) -> None:
    """Leave only the rows `kept` (ascending) in the head.

    Raises ExportError where the graph's head can't be understood; nothing was changed then.
    """
    if narrow.KEPT in model.metadata_props:
        raise ExportError(f"{name} has a narrow head already: start from the original.")
    node, after = _find_head(model, name)
    size = _rows(node)
    changes = [_sliced(node, index, kept, size, name) for index in _row_inputs(node, size)]
    for bend in after:
        for index, value in enumerate(bend.inputs):
            if value is not None and value.producer() is None and _by_token(value, size):
                changes.append((bend, index, _array(value, name)[..., kept]))
    for owner, index, array in changes:
        old = owner.inputs[index]
        assert old is not None
        owner.replace_input_with(index, constant(model.graph, f"{old.name}.kept", array))
        if not old.uses() and old.name in model.graph.initializers:
            del model.graph.initializers[old.name]
    if node.op_type == BLOCKS:
        node.attributes["N"] = ir.AttrInt64("N", len(kept))
    for made in (node, *after):
        value = made.outputs[0]
        if value.shape is not None and len(value.shape):
            value.shape = ir.Shape([*list(value.shape)[:-1], len(kept)])
    model.metadata_props[narrow.KEPT] = ",".join(map(str, kept.tolist()))
    model.metadata_props[narrow.VOCAB_SIZE] = str(size)


def _find_head(model: ir.Model, name: str) -> tuple[ir.Node, list[ir.Node]]:
    """The product that makes the logits, and the nodes behind it."""
    node, after = find_head(model)
    if node is None:
        raise ExportError(
            f"The output head of {name} is no product with a stored matrix that can be narrowed; "
            "export its checkpoint with `edgespec export onnx` and cut that."
        )
    return node, after


def _rows(node: ir.Node) -> int:
    if node.op_type == BLOCKS:
        return int(attribute(node, "N"))
    weight = weight_of(node)
    assert weight is not None
    return shape_of(weight)[0 if attribute(node, "transB") else 1]


def _row_inputs(node: ir.Node, size: int) -> list[int]:
    """The inputs that have something for each row."""
    if node.op_type == BLOCKS:
        return [i for i in _BLOCK_ROWS if i < len(node.inputs) and node.inputs[i] is not None]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return [1, 2] if bias is not None and _by_token(bias, size) else [1]


def _sliced(
    node: ir.Node, index: int, kept: Ids, size: int, name: str
) -> tuple[ir.Node, int, npt.NDArray[Any]]:
    """An input's kept rows, however it holds them."""
    value = node.inputs[index]
    assert value is not None
    array = _array(value, name)
    if node.op_type != BLOCKS:
        if index == 1 and attribute(node, "transB"):
            return node, index, np.ascontiguousarray(array[kept])
        return node, index, np.ascontiguousarray(array[..., kept])
    if array.size % size:
        raise ExportError(
            f"The output head of {name} has a part of an unknown shape: {value.name}."
        )
    # Scales and zeros may lie flat, each row's together.
    rows = array.reshape(size, -1)[kept]
    return node, index, rows.reshape(-1 if array.ndim == 1 else (len(kept), *array.shape[1:]))


def _by_token(value: ir.Value, size: int) -> bool:
    """Whether a stored tensor holds a number for each token."""
    shape = shape_of(value) if value.const_value is not None else ()
    return size > 1 and shape[-1:] == (size,)


def _array(value: ir.Value, name: str) -> npt.NDArray[Any]:
    if value.const_value is None or value.const_value.dtype.bitwidth < 8:
        raise ExportError(f"The output head of {name} is stored in a way that can't be cut.")
    return np.asarray(value.const_value.numpy())
