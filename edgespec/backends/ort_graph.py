"""What an ONNX graph of a language model declares: its inputs, its cache and its logits.

Invariant: nothing is assumed that the graph doesn't say. An input that nobody here knows how to
feed, or a cache of a shape that can't be followed, is refused by name.
"""

from __future__ import annotations

import math
import re
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


# An input that an encoder's graph makes, by its name.
_FROM_ENCODER = re.compile(r"encoder|cross", re.IGNORECASE)


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
class StateTensor(CacheTensor):
    """One tensor that each pass replaces as a whole, as convolutions and recurrent layers have it.

    Attributes:
        size: its last dimension, which stands where that of a cache counts tokens.
    """

    size: int

    @property
    def nbytes(self) -> int:
        return self.token_bytes * self.size


@dataclass(frozen=True)
class Graph:
    """What is fed and what comes back.

    Attributes:
        integers: the whole-number inputs that are there, by name, with their types.
        keep_rank: dimensions of the input that says how many rows to keep.
        merged: whether a flag says if there is a past (`use_cache_branch`).
        logits: the output's name, and `element` ONNX's number of its type.
        cache: every tensor of the cache that grows by what is fed.
        states: every tensor of a fixed size beside it, which can't be cut back.
    """

    integers: dict[str, np.dtype[Any]]
    keep_rank: int
    merged: bool
    logits: str
    element: int
    cache: tuple[CacheTensor, ...]
    states: tuple[StateTensor, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one logit."""
        return 4 if self.element == FLOAT else 2

    @property
    def picks_rows(self) -> bool:
        return ROWS in self.integers or KEEP in self.integers


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
    logits = _logits(name, returned)
    _refuse_parts(name, [entry.name for entry in inputs])
    integers: dict[str, np.dtype[Any]] = {}
    cache: list[CacheTensor] = []
    states: list[StateTensor] = []
    keep_rank, merged = 0, False
    for entry in inputs:
        ranks = _RANKS.get(entry.name)
        if ranks and entry.type in _INTEGERS and len(entry.shape) in ranks:
            integers[entry.name] = _INTEGERS[entry.type]
            keep_rank = len(entry.shape) if entry.name == KEEP else keep_rank
        elif entry.name == "use_cache_branch" and entry.type == "tensor(bool)":
            merged = True
        # Some have the past's length as an input too, by a name like a cache's.
        elif entry.name.startswith("past") and (entry.type in _FLOATS or len(entry.shape) > 2):
            present = _continued(name, entry, returned)
            if _is_state(entry, present):
                states.append(_state_tensor(entry, present))
            else:
                cache.append(_cache_tensor(name, entry, present))
        else:
            raise ModelFormatError(
                f"{name} takes an input that edgespec can't feed: {entry.name} ({entry.type}, "
                f"{list(entry.shape)}); choose another export, as `edgespec export onnx` makes it"
            )
    if not cache and not states:
        raise ModelFormatError(
            f"{name} keeps no cache, so each token would cost the whole text: export it with its "
            "past (`edgespec export onnx`, or optimum's task text-generation-with-past)"
        )
    element = _FLOATS[logits.type][0]
    return Graph(integers, keep_rank, merged, logits.name, element, tuple(cache), tuple(states))


def _logits(name: str, returned: dict[str, Declared]) -> Declared:
    logits = returned.get("logits")
    # A classifier's are of the whole text: (batch, classes).
    if logits is None or logits.type not in _FLOATS or len(logits.shape) in (1, 2):
        raise ModelFormatError(
            f"{name} returns no logits of its tokens, so it isn't a model that writes text"
        )
    return logits


def _refuse_parts(name: str, inputs: Sequence[str]) -> None:
    """Refuse a graph that is fed by others of its folder."""
    if any(map(_FROM_ENCODER.search, inputs)):
        raise ModelFormatError(
            f"{name} reads what an encoder makes in another graph, which edgespec doesn't run: "
            "choose a model that is a decoder alone"
        )
    if "input_ids" in inputs:
        return
    if "inputs_embeds" in inputs:
        raise ModelFormatError(
            f"{name} takes embeddings, which another graph of its folder makes, as models for "
            "pictures and sound do: choose an export of the text model alone"
        )
    raise ModelFormatError(
        f"{name} is no language model's decoder: it takes no input_ids, but {', '.join(inputs[:4])}"
    )


def present_names(past: str) -> list[str]:
    """What the output may be called that continues an input of the cache."""
    # past_key_values.0.key -> present.0.key; past_key_0 -> present_key_0.
    return [past.replace(word, "present", 1) for word in ("past_key_values", "past")]


def _continued(name: str, entry: Declared, returned: dict[str, Declared]) -> Declared:
    """The output that continues an input of the cache, of a type that is known."""
    names = present_names(entry.name)
    present = next((returned[n] for n in names if n in returned), None)
    if present is None:
        raise ModelFormatError(f"{name} takes {entry.name} and returns nothing that continues it")
    if entry.type not in _FLOATS or present.type != entry.type:
        raise ModelFormatError(
            f"{name} keeps its cache as {entry.type}; edgespec knows float, float16 and bfloat16"
        )
    return present


def _is_state(entry: Declared, present: Declared) -> bool:
    """Whether each pass gives a tensor of the same fixed size. Keys and values aren't one: where
    those have a fixed size, there is room for so many tokens.
    """
    layer = entry.name.replace("past_key_values", "")
    sizes = entry.shape[1:]
    return (
        not ("key" in layer or "value" in layer)
        and bool(sizes)
        and all(isinstance(size, int) and size > 0 for size in sizes)
        and (entry.shape[0] == 1 or not isinstance(entry.shape[0], int))
        and len(present.shape) == len(entry.shape)
        and all(b == a for a, b in zip(sizes, present.shape[1:], strict=True) if isinstance(b, int))
    )


def _state_tensor(entry: Declared, present: Declared) -> StateTensor:
    *before, size = map(int, entry.shape[1:])
    element, itemsize = _FLOATS[entry.type]
    return StateTensor(entry.name, present.name, element, itemsize, (1, *before), (), size)


def _cache_tensor(name: str, entry: Declared, present: Declared) -> CacheTensor:
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
