"""The blocks of an ONNX graph, found by what flows where, and how to leave some out.

All that a block does to a text passes through one value on its way to the next: nothing jumps over
the node that makes it. Such nodes are searched for, whatever the operators and names in between;
the caches say which block is which. Invariant: a graph that doesn't look like a chain of blocks
is refused, and nothing in it was changed then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgespec.backends.ort_graph import present_names
from edgespec.errors import ExportError
from edgespec.exporters import onnx_draft_norms

LEFT_OUT = "edgespec_left_out."
"""Inputs (bool) of the graph that `add_switches` makes: one for each block, by its number."""

_SHAPES = frozenset(("Shape", "Size"))  # what goes on from there is no part of the text

_Readers = dict[ir.Value, list[ir.Node]]


@dataclass(frozen=True)
class Chain:
    """The blocks, as nodes: `starts[i]` makes what goes into block i, the last what comes out."""

    starts: tuple[ir.Node, ...]

    @property
    def blocks(self) -> int:
        return len(self.starts) - 1


def cache_inputs(model: ir.Model) -> dict[int, list[ir.Value]]:
    """The inputs that hold each block's past, by the block's number."""
    found: dict[int, list[ir.Value]] = {}
    for value in model.graph.inputs:
        if value.name is not None and value.name.startswith("past"):
            found.setdefault(_number(value.name), []).append(value)
    return found


def count(model: ir.Model, name: str) -> int:
    """How many blocks there are. Raises ExportError where the graph doesn't say."""
    numbers = sorted(cache_inputs(model))
    if not numbers or numbers != list(range(len(numbers))):
        raise ExportError(f"{name} keeps no cache for each of its blocks, so they can't be told.")
    return len(numbers)


def find_chain(model: ir.Model, name: str) -> Chain:
    """Find the blocks. Raises ExportError where the graph is no chain of them."""
    blocks = count(model, name)
    model.graph.sort()
    nodes = _between(model)
    place = {node: i for i, node in enumerate(nodes)}
    readers = _find_readers(model.graph)
    ends = _bottlenecks(nodes, place, readers)
    starts: list[int] = []  # places in `ends`
    for block in range(blocks):
        first = min(_first_readers(cache_inputs(model)[block], place, readers), default=-1)
        before = [i for i, end in enumerate(ends) if end < first]
        if not before or (starts and before[-1] <= starts[-1]):
            raise _no_chain(name)
        starts.append(before[-1])
    # Each block has as many such nodes as every other, so the last ends where they would.
    steps = {after - before for before, after in pairwise(starts)}
    if len(steps) != 1:
        raise _no_chain(name)
    starts.append(starts[-1] + steps.pop())
    if starts[-1] >= len(ends):
        raise _no_chain(name)
    found = [nodes[ends[i]] for i in starts]
    if len({node.op_type for node in found[1:]}) != 1:
        raise _no_chain(name)
    return Chain(tuple(found))


def keep(model: ir.Model, name: str, kept: Sequence[int]) -> None:
    """Leave out every block but the `kept` (ascending) and number these from 0.

    Raises ExportError where the graph can't be understood; it may be half changed then.
    """
    chain = find_chain(model, name)
    graph, caches = model.graph, cache_inputs(model)
    gone = [block for block in caches if block not in kept]
    values, parted = _part(model, chain)
    for block in gone:
        # In ascending order: what went into this one may itself be what went into an earlier one.
        after, before = values[block + 1], values[block]
        after.replace_all_uses_with(before)
        values[block + 1] = before
    for block in gone:
        for value, stand_in in zip(caches[block], caches[kept[0]], strict=True):
            for node, index in list(value.uses()):
                if node.op_type in _SHAPES:  # only its length is asked for
                    node.replace_input_with(index, stand_in)
    values = [value for block in gone for value in caches[block]]
    lost = {name for value in values for name in present_names(value.name or "")}
    graph.outputs[:] = [value for value in graph.outputs if value.name not in lost]
    RemoveUnusedNodesPass()(model)
    readers = _find_readers(graph)  # a branch that is gone would still count as a use
    for block in gone:
        for value in caches[block]:
            if value in readers:
                raise ExportError(
                    f"{name} uses the cache of block {block} outside of it, so that block can't "
                    "be left out."
                )
            graph.inputs.remove(value)
    onnx_draft_norms.join(graph, parted)
    _renumber(graph, caches, kept)


def add_switches(model: ir.Model, name: str) -> Chain:
    """Give the graph one input (bool, a single one) for each block, by which it is left out."""
    chain = find_chain(model, name)
    graph = model.graph
    values, _ = _part(model, chain)
    for block in range(chain.blocks):
        switch = ir.Value(
            name=f"{LEFT_OUT}{block}", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1])
        )
        graph.inputs.append(switch)
        before, after = values[block], values[block + 1]
        chosen = ir.node("Where", [switch, before, after], name=f"{LEFT_OUT}where.{block}")
        made = chosen.outputs[0]
        made.name, made.type, made.shape = f"{LEFT_OUT}value.{block}", after.type, after.shape
        after.replace_all_uses_with(made)
        chosen.replace_input_with(2, after)
        maker = after.producer()
        assert maker is not None
        graph.insert_after(maker, chosen)
        values[block + 1] = made
    return chain


def _between(model: ir.Model) -> list[ir.Node]:
    """The nodes on ways from the token ids to the logits, in an order in which they can run."""
    reached: set[ir.Value] = {v for v in model.graph.inputs if v.name == "input_ids"}
    forward: list[ir.Node] = []
    for node in model.graph:
        if node.op_type not in _SHAPES and any(v in reached for v in _inputs(node)):
            reached.update(node.outputs)
            forward.append(node)
    wanted: set[ir.Value] = {v for v in model.graph.outputs if v.name == "logits"}
    found: list[ir.Node] = []
    for node in reversed(forward):
        if any(value in wanted for value in node.outputs):
            wanted.update(_inputs(node))
            found.append(node)
    return found[::-1]


def _bottlenecks(
    nodes: Sequence[ir.Node], place: dict[ir.Node, int], readers: _Readers
) -> list[int]:
    """Places of the nodes that no way from the first to the last goes around."""
    farthest, found = 0, []
    for i, node in enumerate(nodes):
        if farthest <= i:
            found.append(i)
        users = (place.get(user, -1) for value in node.outputs for user in readers.get(value, ()))
        farthest = max(farthest, *users, i)
    return found


def _first_readers(
    values: Sequence[ir.Value], place: dict[ir.Node, int], readers: _Readers
) -> Iterator[int]:
    """Places of the nodes where a cache flows into the text."""
    waiting, seen = list(values), set(values)
    while waiting:
        for node in readers.get(waiting.pop(), ()):
            if node in place:
                yield place[node]
            elif node.op_type not in _SHAPES:
                fresh = [value for value in node.outputs if value not in seen]
                seen.update(fresh)
                waiting += fresh


def _inputs(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, also from within its branches."""
    yield from (value for value in node.inputs if value is not None)
    for attr in node.attributes.values():
        for graph in _graphs(attr):
            for inner in graph:
                yield from _inputs(inner)
            yield from graph.outputs  # a branch may pass on what it found outside


def _graphs(attr: ir.Attr) -> Sequence[ir.Graph]:
    if attr.type == ir.AttributeType.GRAPH:
        return [attr.as_graph()]
    return attr.as_graphs() if attr.type == ir.AttributeType.GRAPHS else ()


def _find_readers(graph: ir.Graph) -> _Readers:
    """The nodes that read each value; a node with branches reads what these do."""
    found: _Readers = {}
    for node in graph:
        for value in _inputs(node):
            found.setdefault(value, []).append(node)
    return found


def _part(model: ir.Model, chain: Chain) -> tuple[list[ir.Value], dict[ir.Node, ir.Node]]:
    """The values between the blocks, each the output of a plain node; and the norms that were taken
    out of a fused node for that, each with its sum.
    """
    values: list[ir.Value] = []
    parted: dict[ir.Node, ir.Node] = {}
    for node in chain.starts:
        if node.op_type in onnx_draft_norms.JOINED:
            norm, total = onnx_draft_norms.split(model.graph, node)
            parted[norm] = total
            values.append(total.outputs[0])
        else:
            values.append(node.outputs[0])
    return values, parted


def _renumber(graph: ir.Graph, caches: dict[int, list[ir.Value]], kept: Sequence[int]) -> None:
    outputs = {value.name: value for value in graph.outputs}
    for new, old in enumerate(kept):
        for value in caches[old]:
            name = value.name or ""
            for present in present_names(name):
                if present in outputs:
                    outputs[present].name = _numbered(present, new)
            value.name = _numbered(name, new)


def _number(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found[0]) if found else -1


def _numbered(name: str, number: int) -> str:
    return re.sub(r"\d+", str(number), name, count=1)


def _no_chain(name: str) -> ExportError:
    return ExportError(
        f"The graph of {name} can't be taken apart into blocks; export its checkpoint with "
        "`edgespec export onnx` and cut that."
    )
