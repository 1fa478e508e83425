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

from edgespec.errors import ExportError
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
    stack_of,
    weight_of,
)
from edgespec.exporters.progress import Report

BLOCK = 32  # as onnxruntime-genai builds its models
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: activations in 8 bits, sums in 32


@dataclass
class Quantised:
    """What became of a graph's weights.

    aliases: stored tensor -> the one whose bytes it is. kept: what was left as floats although it
    is multiplied by, or embeds. numbers: of the matrices that were quantised, each counted once;
    padding: those that fill up their rows' last blocks; zeros: bytes of zeros that are written out.
    """

    aliases: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    numbers: int = 0
    padding: int = 0
    zeros: int = 0

    @property
    def notes(self) -> list[str]:
        """What the person is told."""
        if not self.kept:
            return []
        others = f" and {len(self.kept) - 3} others" if len(self.kept) > 3 else ""
        return [f"blocks can't hold {', '.join(self.kept[:3])}{others}, which stay floats"]


def quantise(
    model: ir.Model,
    ends: Ends,
    bits: int,
    *,
    report: Report,
    block: int = BLOCK,
    accuracy_level: int = INT8_ACTIVATIONS,
) -> Quantised:
    """Replace every product with a stored matrix, and the embedding, by their quantised forms.

    Raises ExportError where more than a quarter of the weights would stay floats.
    """
    graph, outcome = model.graph, Quantised()
    table = ends.embedding.inputs[0] if ends.embedding is not None else None
    nodes = [node for node in graph if weight_of(node) is not None and _plain(node, outcome)]
    in_blocks = table is not None and shape_of(table)[1] % block == 0
    if not in_blocks:
        # Its operator takes whole blocks alone, and a head that shares it would be a second copy.
        tied = [node for node in nodes if weight_of(node) is table]
        outcome.kept += [str(node.name) for node in tied]
        nodes = [node for node in nodes if node not in tied]
    sizes = {w.name: math.prod(shape_of(w)) for node in nodes if (w := weight_of(node)) is not None}
    _refuse_stacks(graph, outcome, sum(sizes.values()))
    own = in_blocks and table is not None and table.name not in sizes
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
            outcome.padding += rows * (-columns % block)
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
        if not in_blocks:
            outcome.kept.append(str(ends.embedding.name))
        elif own:
            made = onnx_blocks.pack(tensor(table), bits, block, count)
            made = replace_fields(made, data=made.data.reshape(len(made.data), -1))
            outcome.numbers += math.prod(shape_of(table))  # which the next line forgets
            stored = _stored(graph, table.name, made)
            outcome.zeros = _gather(graph, ends.embedding, stored, bits, block)
        else:
            # The same bytes as the head's, seen as rows.
            blocks, scales = packed[table.name]
            data = blocks.const_value.numpy()
            rows_of = constant(graph, f"{blocks.name}.rows", data.reshape(len(data), -1))
            outcome.aliases[str(rows_of.name)] = str(blocks.name)
            outcome.zeros = _gather(graph, ends.embedding, (rows_of, scales), bits, block)
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
) -> int:
    """Look rows up in blocks; returns the bytes of the zeros that stand beside them.

    Without them the operator took 0 for the zero on CUDA until 2026, and the middle on the CPU:
    https://github.com/microsoft/onnxruntime/issues/31692
    """
    data, scales = stored
    table = embedding.inputs[0]
    assert table is not None
    rows, blocks = shape_of(scales)
    shape, middle = ((rows, blocks), 0x80) if bits == 8 else ((rows, -(-blocks // 2)), 0x88)
    zeros = constant(graph, f"{table.name}.zeros", np.full(shape, middle, np.uint8))
    new = ir.node(
        "GatherBlockQuantized", [data, embedding.inputs[1], scales, zeros],
        {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1},
        domain=CONTRIB, name=embedding.name,
    )  # fmt: skip
    replace(graph, embedding, new)
    drop_unused(graph, [table])
    return math.prod(shape)


def _refuse_stacks(graph: ir.Graph, outcome: Quantised, others: int) -> None:
    """Note the products with several matrices at once, as mixtures of experts have them.

    others: numbers of what will be quantised. Raises ExportError, see `quantise`.
    """
    stacks = {node: stack for node in graph if (stack := stack_of(node)) is not None}
    kept = sum(math.prod(shape_of(stack)) for stack in set(stacks.values()))
    names = [str(node.name) for node in stacks]
    if kept > (kept + others) / 4:
        raise ExportError(
            f"Blocks of a few bits can't hold {kept / (kept + others):.0%} of its weights, which "
            f"are several matrices in one tensor ({names[0]}); choose fp16 or fp32."
        )
    outcome.kept += names


def _plain(node: ir.Node, outcome: Quantised) -> bool:
    """Whether a product is x W or x W + b, which MatMulNBits can do; otherwise it is kept."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    flat = bias is None or (bias.shape is not None and len(bias.shape) == 1)
    unscaled = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
    plain = flat and unscaled and not attribute(node, "transA")
    if not plain:
        outcome.kept.append(str(node.name))
    return plain
