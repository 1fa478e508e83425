"""A cache beside states of a fixed size, as hybrid models have them for their layers that don't
attend: convolutions (LFM2) and recurrences (Granite 4, Qwen3.5).

A state holds the whole text in a few numbers, so no part of it can be forgotten. Two buffers take
turns, one read and one written; before the first token all is zero.

Invariant: the states are those of `length` tokens, or `length` is 0. A pass that fails leaves them
as they were, for it wrote into the other buffer; where more than one pass was made of the text that
is taken back, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from edgespec.backends.ort_cache import Cache
from edgespec.backends.ort_graph import StateTensor
from edgespec.backends.ort_memory import Block, allocate


class _Turn(NamedTuple):
    """past: the states behind `length` tokens; present: where the next pass writes."""

    past: list[Block]
    present: list[Block]
    length: int = 0


class StatefulCache:
    """See `Cache`; `inner` is that of the layers that attend."""

    def __init__(self, inner: Cache, states: Sequence[StateTensor], device: str) -> None:
        self.in_place = inner.in_place
        self.mask = inner.mask  # one array for good
        self._inner = inner
        self._states = states
        self._turn = _Turn(
            [allocate(state, state.size, device) for state in states],
            [allocate(state, state.size, device) for state in states],
        )

    @property
    def length(self) -> int:
        return self._turn.length

    @property
    def slots(self) -> int:
        return self._inner.slots

    def bind(self, binding: Any, tokens: int) -> None:
        past, present, length = self._turn
        if self._inner.length != length:  # Ctrl+C came between the two
            self._inner.rollback(length)
        self._inner.bind(binding, tokens)
        for state, read, written in zip(self._states, past, present, strict=True):
            if not length:
                zeros = read.blank()
                zeros[:] = 0
                read.store(zeros)
            read.bind_input(binding, state, state.size)
            written.bind_output(binding, state, state.size)

    def keep(self, tokens: int) -> None:
        past, present, length = self._turn
        self._inner.keep(tokens)
        self._turn = _Turn(present, past, length + tokens)

    def rollback(self, length: int) -> None:
        """Back to what the states are of; to nothing from anywhere else."""
        past, present, whole = self._turn
        if length != whole:
            self._turn = _Turn(past, present)
        self._inner.rollback(self._turn.length)

    def free(self) -> None:
        self._turn = _Turn([], [])
        self._inner.free()
