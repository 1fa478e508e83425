"""What a model's graph looks like at its two ends, and the changes an export makes there.

Invariant: a change here leaves every logit that is asked for as it was. A graph whose ends don't
look as expected is left alone, and the caller is told by the return value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from edgespec.backends.ort_graph import ROWS

CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators
BLOCKS = "MatMulNBits"
"""A product with a matrix in blocks of a few bits."""
_AFTER_THE_HEAD = frozenset(  # each works on every number alone
    {"Add", "Cast", "Clip", "Div", "Identity", "Mul", "Sub", "Tanh", "Where"}
)


@dataclass(frozen=True)
class Ends:
    """Where token ids become vectors, and where vectors become logits."""

    embedding: ir.Node | None
    head: ir.Node | None


PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul"})


def weight_of(node: ir.Node) -> ir.Value | None:
    """The stored matrix that a node multiplies by; None where it does nothing of the kind."""
    if node.op_type not in PRODUCTS or len(node.inputs) < 2:
        return None
    return _matrix(node.inputs[1])


def stack_of(node: ir.Node) -> ir.Value | None:
    """The stored tensor of several matrices that a node multiplies by; None where there is none."""
    for value in node.inputs if node.op_type in PRODUCTS else ():
        if value is not None and value.is_initializer() and value.const_value is not None:
            shape = shape_of(value)
            if len(shape) > 2 and min(shape[-2:]) > 1:  # else it is one vector, as of frequencies
                return value
    return None


def shape_of(stored: ir.Value) -> tuple[int, ...]:
    """The dimensions of a stored tensor."""
    assert stored.const_value is not None
    return tuple(map(int, stored.const_value.shape))


def attribute(node: ir.Node, name: str, default: Any = 0) -> Any:
    """The value of a node's attribute."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def _matrix(value: ir.Value | None) -> ir.Value | None:
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    return value if len(value.const_value.shape) == 2 else None


def find_ends(model: ir.Model, vocab_size: int) -> Ends:
    """Look for the embedding of `vocab_size` rows and for the product behind `logits`."""
    graph = model.graph
    embedding = None
    for node in graph:
        table = _matrix(node.inputs[0]) if node.op_type == "Gather" else None
        if table is not None and shape_of(table)[0] == vocab_size:
            embedding = node
            break
    head, _ = find_head(model)
    weight = weight_of(head) if head is not None else None
    whole = weight is not None and vocab_size in shape_of(weight)
    return Ends(embedding, head if whole else None)


def find_head(model: ir.Model) -> tuple[ir.Node | None, list[ir.Node]]:
    """Back from the logits to the product with a stored matrix that made them, and the nodes behind
    it, the last first: scaling and the like. None where it isn't found.
    """
    value = next((v for v in model.graph.outputs if v.name == "logits"), None)
    after: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == BLOCKS or weight_of(node) is not None:
            return node, after
        computed = [v for v in node.inputs if v is not None and v.producer() is not None]
        computed = [v for v in computed if v.producer().op_type != "Constant"]
        if node.op_type not in _AFTER_THE_HEAD or len(computed) != 1:
            break
        after.append(node)
        value = computed[0]
    return None, []


def select_rows(model: ir.Model, head: ir.Node) -> None:
    """Give the graph the input `logits_rows` (int64, 1-D): the head sees those positions only.

    A prompt of a thousand tokens then costs one row of the head, not a thousand. The input has
    a default, an empty list, which stands for every position, so that programs that have never
    heard of it run the model as any other.
    """
    graph = model.graph
    hidden = head.inputs[0]
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    rows = ir.Value(name=ROWS, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["rows"]))
    rows.const_value = ir.tensor(np.empty(0, np.int64), name=ROWS)
    graph.inputs.append(rows)
    graph.register_initializer(rows)
    add = _Adder(graph, head)
    zero, one = add.constant("zero", np.int64(0)), add.constant("one", np.int64(1))
    # No rows named: 0, 1, ... up to the length of the pass. Otherwise this range is empty.
    length = add("Gather", [add("Shape", [ids]), one], axis=0)
    unnamed = add("Cast", [add("Equal", [add("Size", [rows]), zero])], to=ir.DataType.INT64)
    every = add("Range", [zero, add("Mul", [length, unnamed]), one])
    wanted = add("Concat", [rows, every], axis=0)
    head.replace_input_with(0, add("Gather", [hidden, wanted], axis=1))
    for output in graph.outputs:
        if output.name == "logits" and output.shape is not None:
            output.shape = ir.Shape([*list(output.shape)[:-2], "rows", output.shape[-1]])


class _Adder:
    """Puts nodes in front of one node."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self._graph, self._before, self._count = graph, before, 0

    def __call__(self, operator: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> Any:
        self._count += 1
        name = f"/{ROWS}/{operator}_{self._count}"
        node = ir.node(operator, inputs, attributes, name=name)
        node.outputs[0].name = f"{name}/output_0"
        self._graph.insert_before(self._before, node)
        return node.outputs[0]

    def constant(self, name: str, value: Any) -> ir.Value:
        return constant(self._graph, f"{ROWS}.{name}", np.asarray(value))


def constant(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    """A new stored tensor of the graph."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value


def join_transposes(model: ir.Model) -> None:
    """Let products read a stored matrix the other way round, instead of turning it round first.

    ONNX Runtime would do the latter at each start, and keep both.
    """
    graph = model.graph
    for node in list(graph):
        turned = node.inputs[1] if node.op_type == "MatMul" else None
        turning = turned.producer() if turned is not None else None
        if turning is None or turning.op_type != "Transpose":
            continue
        if _matrix(turning.inputs[0]) is not None:
            replace(graph, node, _fused(node, turning.inputs[0]))
            if not turning.outputs[0].uses():
                graph.remove(turning, safe=True)


def share_embedding(model: ir.Model, ends: Ends) -> Ends:
    """Let the head multiply by the embedding's own matrix; both must hold the same numbers.

    Returns the ends of the graph as they are then; the head is the same where it can't be done.
    """
    embedding, head = ends.embedding, ends.head
    if embedding is None or head is None or head.op_type != "MatMul":
        return ends
    table, weight = embedding.inputs[0], weight_of(head)
    assert table is not None
    if weight is None or weight is table or shape_of(weight)[::-1] != shape_of(table):
        return ends
    node = _fused(head, table)
    replace(model.graph, head, node)
    drop_unused(model.graph, [weight])
    return Ends(embedding, node)


def _fused(node: ir.Node, matrix: ir.Value | None) -> ir.Node:
    return ir.node(
        "FusedMatMul", [node.inputs[0], matrix], {"transB": 1}, domain=CONTRIB, name=node.name
    )


def replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put a node with one output where another was."""
    before, after = old.outputs[0], new.outputs[0]
    after.type, after.shape = before.type, before.shape
    name = before.name
    graph.insert_before(old, new)
    before.replace_all_uses_with(after, replace_graph_outputs=True)
    graph.remove(old, safe=True)
    after.name = name
    graph.opset_imports.setdefault(CONTRIB, 1)


def drop_unused(graph: ir.Graph, values: Sequence[ir.Value | None]) -> None:
    """Take stored tensors out of the graph that nothing reads any more."""
    for value in values:
        if value is not None and not value.uses() and value.name in graph.initializers:
            del graph.initializers[value.name]
            value.const_value = None  # frees it, whoever still holds the value
