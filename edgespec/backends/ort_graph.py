"""What an ONNX graph of a language model declares: its inputs, its cache and its logits.

Invariant: nothing is assumed that the graph doesn't say. An input that nobody here knows how to
feed, or a cache of a shape that can't be followed, is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edgespec.errors import ModelFormatError

# ONNX's own numbers for element types (onnx.proto, TensorProto.DataType).
_FLOATS = {"tensor(float)": (1, 4), "tensor(float16)": (10, 2), "tensor(bfloat16)": (16, 2)}
_INTEGERS: dict[str, np.dtype[Any]] = {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
}

FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16

# How to ask for some rows of logits only, by the input's name. `logits_rows` (int64, one
# dimension): the rows themselves. `num_logits_to_keep` (int64): how many from the end.
ROWS, KEEP = "logits_rows", "num_logits_to_keep"


class Declared(Protocol):
    """An input or output as ONNX Runtime describes it."""

    name: str
    type: str
    shape: Sequence[Any]


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of the cache: fed as `past`, returned as `present`; batch size 1.

    Attributes:
        element: ONNX's number of its type.
        itemsize: bytes of one number.
        before, after: its dimensions on both sides of the one that counts tokens.
    """

    past: str
    present: str
    element: int
    itemsize: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    def shape(self, tokens: int) -> tuple[int, ...]:
        return (*self.before, tokens, *self.after)

    @property
    def outer(self) -> int:
        return math.prod(self.before)

    @property
    def inner_bytes(self) -> int:
        """Bytes of one token in each of the `outer` places."""
        return math.prod(self.after) * self.itemsize

    @property
    def token_bytes(self) -> int:
        return self.outer * self.inner_bytes


@dataclass(frozen=True)
class Graph:
    """What is fed and what comes back.

    Attributes:
        integers: the whole-number inputs that are there, by name, with their types.
        keep_rank: dimensions of the input that says how many rows to keep.
        merged: whether a flag says if there is a past (`use_cache_branch`).
        logits: the output's name, and `element` ONNX's number of its type.
        cache: every tensor of the cache.
    """

    integers: dict[str, np.dtype[Any]]
    keep_rank: int
    merged: bool
    logits: str
    element: int
    cache: tuple[CacheTensor, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one logit."""
        return 4 if self.element == FLOAT else 2

    @property
    def picks_rows(self) -> bool:
        return ROWS in self.integers or KEEP in self.integers

    @property
    def token_bytes(self) -> int:
        """Bytes of the cache for each token."""
        return sum(tensor.token_bytes for tensor in self.cache)


_RANKS = {
    "input_ids": (2,),
    "attention_mask": (2,),
    "position_ids": (2,),
    "cache_position": (1,),
    ROWS: (1,),
    KEEP: (0, 1),
}


def read_graph(name: str, inputs: Sequence[Declared], outputs: Sequence[Declared]) -> Graph:
    """Read what a graph declares. Raises ModelFormatError where it can't be run."""
    returned = {output.name: output for output in outputs}
    integers: dict[str, np.dtype[Any]] = {}
    cache: list[CacheTensor] = []
    keep_rank, merged = 0, False
    if "input_ids" not in {entry.name for entry in inputs}:
        raise ModelFormatError(
            f"{name} is no language model's decoder: it takes no input_ids, but "
            f"{', '.join(entry.name for entry in inputs[:4])}"
        )
    for entry in inputs:
        ranks = _RANKS.get(entry.name)
        if ranks and entry.type in _INTEGERS and len(entry.shape) in ranks:
            integers[entry.name] = _INTEGERS[entry.type]
            keep_rank = len(entry.shape) if entry.name == KEEP else keep_rank
        elif entry.name == "use_cache_branch" and entry.type == "tensor(bool)":
            merged = True
        elif entry.name.startswith("past"):
            cache.append(_cache_tensor(name, entry, returned))
        else:
            raise ModelFormatError(
                f"{name} takes an input that edgespec can't feed: {entry.name} ({entry.type}, "
                f"{list(entry.shape)})"
            )
    if not cache:
        raise ModelFormatError(
            f"{name} keeps no cache, so each token would cost the whole text: export it with its "
            "past (`edgespec export onnx`, or optimum's task text-generation-with-past)"
        )
    logits = returned.get("logits")
    if logits is None or logits.type not in _FLOATS:
        raise ModelFormatError(f"{name} returns no logits, so it isn't a model that writes text")
    element = _FLOATS[logits.type][0]
    return Graph(integers, keep_rank, merged, logits.name, element, tuple(cache))


def present_names(past: str) -> list[str]:
    """What the output may be called that continues an input of the cache."""
    # past_key_values.0.key -> present.0.key; past_key_0 -> present_key_0.
    return [past.replace(word, "present", 1) for word in ("past_key_values", "past")]


def _cache_tensor(name: str, entry: Declared, returned: dict[str, Declared]) -> CacheTensor:
    names = present_names(entry.name)
    present = next((returned[n] for n in names if n in returned), None)
    if present is None:
        raise ModelFormatError(f"{name} takes {entry.name} and returns nothing that continues it")
    if entry.type not in _FLOATS or present.type != entry.type:
        raise ModelFormatError(
            f"{name} keeps its cache as {entry.type}; edgespec knows float, float16 and bfloat16"
        )
    open_axes = [i for i, size in enumerate(entry.shape) if i > 0 and not isinstance(size, int)]
    batch = entry.shape[0] if entry.shape else 0
    if len(open_axes) != 1 or (isinstance(batch, int) and batch != 1):
        raise ModelFormatError(
            f"{name} has a cache that edgespec can't follow: {entry.name} has the shape "
            f"{list(entry.shape)}, where one dimension besides the batch should be open"
        )
    axis = open_axes[0]
    sizes = [1, *map(int, (0 if i == axis else s for i, s in enumerate(entry.shape) if i))]
    element, itemsize = _FLOATS[entry.type]
    return CacheTensor(
        entry.name,
        present.name,
        element,
        itemsize,
        tuple(sizes[:axis]),
        tuple(sizes[axis + 1 :]),
    )


def as_float32(data: np.ndarray[Any, Any], element: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers of any of the three types, given as raw 16- or 32-bit words, as float32."""
    if element == FLOAT:
        return data.view(np.float32)
    if element == FLOAT16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
