"""Sums that are fused with the norm behind them: taken apart, and joined again.

Invariant: a graph says the same after either.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.exporters.onnx_graph import CONTRIB, attribute

# A sum and the norm of it in one, as ONNX Runtime fuses them; the sum is the fourth output.
JOINED = {
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "LayerNormalization",
}
_SUM = 3


def split(graph: ir.Graph, node: ir.Node) -> tuple[ir.Node, ir.Node]:
    """Make of a fused sum and norm the two that they are: the norm, and the sum."""
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    left, right, *rest = node.inputs
    weights, bias = (rest[:1], rest[1:]) if simplified else (rest[:2], rest[2:])
    normed = node.outputs[0]
    adds = [ir.node("Add", [left, right])]
    if bias and bias[0] is not None:  # added to both
        adds.append(ir.node("Add", [adds[0].outputs[0], bias[0]]))
    for i, add in enumerate(adds):
        add.name = f"{normed.name}/sum_{i}"
        add.outputs[0].name = f"{add.name}/output_0"
        add.outputs[0].type, add.outputs[0].shape = normed.type, normed.shape
    summed = adds[-1].outputs[0]
    epsilon = float(attribute(node, "epsilon", 1e-12 if not simplified else 1e-5))
    norm = ir.node(
        JOINED[node.op_type], [summed, *weights],
        {"axis": -1, "epsilon": epsilon, "stash_type": 1}, name=f"{normed.name}/norm",
    )  # fmt: skip
    graph.insert_before(node, [*adds, norm])
    name = normed.name
    normed.replace_all_uses_with(norm.outputs[0], replace_graph_outputs=True)
    norm.outputs[0].type, norm.outputs[0].shape = normed.type, normed.shape
    if len(node.outputs) > _SUM:
        node.outputs[_SUM].replace_all_uses_with(summed, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    norm.outputs[0].name = name
    return norm, adds[-1]


def join(graph: ir.Graph, parted: dict[ir.Node, ir.Node]) -> None:
    """Fuse again what `split` took apart, where a norm still follows its sum."""
    sums = set(parted.values())
    for norm in parted:
        if norm.graph is None or norm.op_type != "SimplifiedLayerNormalization":
            continue  # it is gone, or ONNX Runtime joins the two when it loads the graph
        summed = norm.inputs[0]
        add = summed.producer() if summed is not None else None
        if summed is None or add is None or add not in sums:
            continue
        normed = norm.outputs[0]
        new = ir.node(
            "SkipSimplifiedLayerNormalization", [*add.inputs, norm.inputs[1]],
            {"epsilon": float(attribute(norm, "epsilon"))},
            domain=CONTRIB, num_outputs=_SUM + 1, name=str(norm.name),
        )  # fmt: skip
        names = normed.name, summed.name
        for old, made in ((normed, new.outputs[0]), (summed, new.outputs[_SUM])):
            made.type, made.shape = old.type, old.shape
            old.replace_all_uses_with(made, replace_graph_outputs=True)
        graph.insert_before(add, new)
        graph.remove([norm, add], safe=True)
        new.outputs[0].name, new.outputs[_SUM].name = names
        for value in new.outputs[1:_SUM]:
            value.name = ""  # an output that nobody asks for
