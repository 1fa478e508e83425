"""The weights of a graph in fewer bits: each product with a stored matrix becomes MatMulNBits.

Invariant: every matrix is stored once. A head that is its embedding keeps no copy of its own, also
where the two are read in different shapes: one lies at the other's place in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields

import numpy as np
import onnx_ir as ir
import torch

from edgespec.exporters import onnx_blocks
from edgespec.exporters.onnx_blocks import Packed
from edgespec.exporters.onnx_graph import (
    CONTRIB,
    Ends,
    attribute,
    constant,
    drop_unused,
    replace,
    shape_of,
    weight_of,
)
from edgespec.exporters.progress import Report

BLOCK = 32  # as onnxruntime-genai builds its models
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: activations in 8 bits, sums in 32


@dataclass
class Quantised:
    """What became of a graph's weights.

    aliases: stored tensor -> the one whose bytes it is. kept: what was left as floats although it
    is multiplied by, or embeds. numbers: of the matrices that were quantised, each counted once.
    """

    aliases: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    numbers: int = 0


def quantise(
    model: ir.Model,
    ends: Ends,
    bits: int,
    *,
    report: Report,
    block: int = BLOCK,
    accuracy_level: int = INT8_ACTIVATIONS,
) -> Quantised:
    """Replace every product with a stored matrix, and the embedding, by their quantised forms."""
    graph, outcome = model.graph, Quantised()
    table = ends.embedding.inputs[0] if ends.embedding is not None else None
    nodes = [node for node in graph if weight_of(node) is not None and _plain(node, outcome)]
    sizes = {w.name: math.prod(shape_of(w)) for node in nodes if (w := weight_of(node)) is not None}
    own = table is not None and table.name not in sizes
    total = sum(sizes.values())
    total += math.prod(shape_of(table)) if own and table is not None else 0
    done = 0

    def count(numbers: int) -> None:
        nonlocal done
        done += numbers
        report("quantising", done, total)

    packed: dict[str, tuple[ir.Value, ...]] = {}
    for node in nodes:
        weight = weight_of(node)
        assert weight is not None and weight.name is not None
        turned = bool(attribute(node, "transB"))
        columns, rows = reversed(shape_of(weight)) if turned else shape_of(weight)
        if weight.name not in packed:
            matrix = tensor(weight)
            made = onnx_blocks.pack(matrix if turned else matrix.T, bits, block, count)
            packed[weight.name] = _stored(graph, weight.name, made)
            outcome.numbers += rows * columns
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        rest = [None, None, bias] if bias is not None else []  # no zeros, no order of columns
        new = ir.node(
            "MatMulNBits",
            [node.inputs[0], *packed[weight.name], *rest],
            {
                "K": columns, "N": rows, "bits": bits, "block_size": block,
                "accuracy_level": accuracy_level,
            },
            domain=CONTRIB, name=node.name,
        )  # fmt: skip
        replace(graph, node, new)
        drop_unused(graph, [weight])
    if ends.embedding is not None and table is not None and table.name is not None:
        if shape_of(table)[1] % block:
            outcome.kept.append(str(ends.embedding.name))
        elif own:
            made = onnx_blocks.pack(tensor(table), bits, block, count)
            made = replace_fields(made, data=made.data.reshape(len(made.data), -1))
            outcome.numbers += math.prod(shape_of(table))  # which the next line forgets
            _gather(graph, ends.embedding, _stored(graph, table.name, made), bits, block)
        else:
            # The same bytes as the head's, seen as rows.
            blocks, scales = packed[table.name]
            data = blocks.const_value.numpy()
            rows_of = constant(graph, f"{blocks.name}.rows", data.reshape(len(data), -1))
            outcome.aliases[str(rows_of.name)] = str(blocks.name)
            _gather(graph, ends.embedding, (rows_of, scales), bits, block)
    return outcome


def tensor(value: ir.Value) -> torch.Tensor:
    """The stored matrix, float32."""
    array = np.asarray(value.const_value.numpy())
    array = array.astype(np.float32, copy=not array.flags.writeable)  # torch takes no other
    return torch.from_numpy(array)


def _stored(graph: ir.Graph, name: str, made: Packed) -> tuple[ir.Value, ...]:
    return (
        constant(graph, f"{name}.blocks", made.data),
        constant(graph, f"{name}.scales", made.scales),
    )


def _gather(
    graph: ir.Graph, embedding: ir.Node, stored: tuple[ir.Value, ...], bits: int, block: int
) -> None:
    data, scales = stored
    table = embedding.inputs[0]
    new = ir.node(
        "GatherBlockQuantized", [data, embedding.inputs[1], scales],
        {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1},
        domain=CONTRIB, name=embedding.name,
    )  # fmt: skip
    replace(graph, embedding, new)
    drop_unused(graph, [table])


def _plain(node: ir.Node, outcome: Quantised) -> bool:
    """Whether a product is x W or x W + b, which MatMulNBits can do; otherwise it is kept."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    flat = bias is None or (bias.shape is not None and len(bias.shape) == 1)
    unscaled = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
    plain = flat and unscaled and not attribute(node, "transA")
    if not plain:
        outcome.kept.append(str(node.name))
    return plain
