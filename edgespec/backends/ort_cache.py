"""The KV cache of an ONNX graph, on the device it computes on, with no copy through numpy.

Two ways, and which one a graph allows is found by trying. *In place* (GroupQueryAttention): past
and present are one buffer of the context's size, allocated once; a rollback changes a number.
*Grown*: the graph returns a copy that is longer by what was fed. Two buffers take turns, one read
and one written, each bound at whatever length it has now. A rollback there would have to cut a
tensor in the middle, so tokens that were taken back stay as *holes*, which the attention mask
hides. A hole costs a little in every pass, and closing the gaps one copy of the cache: with some
two holes a round the cheapest is to close them at about the square root of the length (measured:
a hole 0.02 ms and the copy 22 ms of a pass of 84 ms, SmolLM2 fp32 at 4,096 tokens).

Invariant: `length` tokens are valid, in their order, and every pass is shown these alone. One that
fails changes nothing, for what it wrote lies beyond them or in the other buffer. Nor does Ctrl+C
leave anything half changed: what belongs together is one tuple, and the mask follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edgespec.backends.ort_graph import CacheTensor
from edgespec.backends.ort_memory import Block, Bytes, allocate

_FIRST_SLOTS = 512
MIN_HOLES = 16  # closing fewer isn't worth the walk over all tensors


class Cache(Protocol):
    """Where a session's cache lies.

    Attributes:
        in_place: whether past and present are one buffer.
        length: valid tokens.
        slots: places in use, holes included: what the graph takes for the past's length.
        mask: (slots and more,) 1 for each valid token and for all that is still to come; so once
            `bind` has made ready for a pass.
    """

    in_place: bool
    mask: npt.NDArray[Any]

    @property
    def length(self) -> int: ...

    @property
    def slots(self) -> int: ...

    def bind(self, binding: Any, tokens: int) -> None:
        """Make ready for a pass over `tokens` more."""
        ...

    def keep(self, tokens: int) -> None:
        """The pass is done."""
        ...

    def rollback(self, length: int) -> None: ...

    def free(self) -> None: ...


class InPlaceCache:
    """See `Cache`; allocated once, for `capacity` tokens."""

    in_place = True

    def __init__(
        self, tensors: Sequence[CacheTensor], capacity: int, device: str, mask_type: Any
    ) -> None:
        self.length = 0
        self.mask = np.ones(capacity, mask_type)
        self._capacity = capacity
        self._tensors = tensors
        self._blocks = [allocate(tensor, capacity, device) for tensor in tensors]
        self._bound: Any = None

    @property
    def slots(self) -> int:
        return self.length

    def bind(self, binding: Any, tokens: int) -> None:  # noqa: ARG002
        if self._bound is binding:
            return
        for tensor, block in zip(self._tensors, self._blocks, strict=True):
            block.bind_input(binding, tensor, self._capacity)
            block.bind_output(binding, tensor, self._capacity)
        self._bound = binding

    def keep(self, tokens: int) -> None:
        self.length += tokens

    def rollback(self, length: int) -> None:
        self.length = length

    def free(self) -> None:
        self._blocks.clear()
        self._bound = None


class _Side:
    """One of the two buffers: a block for each tensor, and the tokens that have room there."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.size = 0


class _State(NamedTuple):
    """What is in a cache. past: where it is; present: where the next pass writes."""

    past: _Side
    present: _Side
    slots: int = 0
    length: int = 0


class GrownCache:
    """See `Cache`; the graph's own copies in two buffers that take turns.

    `holes`: whether the graph hides by the mask what lies between valid tokens; found at load.
    """

    in_place = False

    def __init__(
        self, tensors: Sequence[CacheTensor], capacity: int, device: str, mask_type: Any
    ) -> None:
        self.holes = True
        self.mask = np.ones(capacity, mask_type)
        self._tensors = tensors
        self._device = device if device in ("cpu", "cuda") else "cpu"
        self._limit = capacity  # with holes too: a graph is made for so many places
        self._state = _State(_Side(), _Side())
        self._grow(self._state.past, 1)

    @property
    def length(self) -> int:
        return self._state.length

    @property
    def slots(self) -> int:
        return self._state.slots

    def bind(self, binding: Any, tokens: int) -> None:
        self._settle()
        stale = self.slots - self.length
        if stale and not (
            self.holes and stale <= _most_holes(self.length) and self.slots + tokens <= self._limit
        ):
            self._close_holes()
        past, present, slots, _ = self._state
        self._grow(past, 1)  # no memory was left for it once
        self._grow(present, slots + tokens)
        for tensor, read, written in zip(self._tensors, past.blocks, present.blocks, strict=True):
            read.bind_input(binding, tensor, slots)
            written.bind_output(binding, tensor, slots + tokens)

    def keep(self, tokens: int) -> None:
        past, present, slots, length = self._state
        self._state = _State(present, past, slots + tokens, length + tokens)

    def rollback(self, length: int) -> None:
        self._settle()  # of what is behind it the mask still shows everything
        past, present, slots, _ = self._state
        self._state = _State(past, present, slots if length else 0, length)

    def avoid_holes(self, window: int | None) -> None:
        """For a graph that looks back at most `window` places: it counts holes among them."""
        if window is not None and window < self._limit:
            self.holes = False

    def free(self) -> None:
        self._state = _State(_Side(), _Side())

    def _valid(self) -> npt.NDArray[np.intp]:
        """The slots of the valid tokens, in order (length,)."""
        return np.flatnonzero(self.mask[: self.slots])

    def _settle(self) -> None:
        """Bring the mask to what the state says; whatever stopped it, it can be done again."""
        if self.slots == self.length:
            self.mask[:] = 1
        else:
            self.mask[self._valid()[self.length :]] = 0

    def _close_holes(self) -> None:
        past, present, slots, length = self._state
        valid = self._valid()
        self._grow(present, length)
        for tensor, source, target in zip(self._tensors, past.blocks, present.blocks, strict=True):
            data = target.blank()
            after = _shaped(tensor, data, length)
            np.take(_view(tensor, source, slots), valid, axis=1, out=after, mode="clip")
            target.store(data)
        self._state = _State(present, past, length, length)
        self._settle()

    def _grow(self, side: _Side, slots: int) -> None:
        """See that a side takes `slots`; what it held is lost, for it is only ever written."""
        if slots <= side.size:
            return
        size = min(max(_FIRST_SLOTS, 2 * slots), self._limit)
        side.blocks, side.size = [], 0  # freed first
        side.blocks = [allocate(tensor, size, self._device) for tensor in self._tensors]
        side.size = size


def _most_holes(length: int) -> int:
    return max(MIN_HOLES, int(length**0.5))


def _view(tensor: CacheTensor, block: Block, tokens: int) -> Bytes:
    return _shaped(tensor, block.load(), tokens)


def _shaped(tensor: CacheTensor, data: Bytes, tokens: int) -> Bytes:  # (outer, tokens, inner bytes)
    used = data[: tensor.token_bytes * tokens]
    return used.reshape(tensor.outer, tokens, tensor.inner_bytes)
