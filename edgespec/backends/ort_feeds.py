"""What goes into a graph beside its cache: ids, mask, positions, rows; and where logits come out.

Invariant: a pass allocates nothing here. Each input is a view into one array made at the start,
bound by its address, and an input that the graph doesn't declare is never fed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgespec.backends.ort_cache import Cache
from edgespec.backends.ort_graph import KEEP, ROWS, Graph

_BOOL = 9  # ONNX's number for bool


class Feeds:
    """Binds the inputs of a pass to arrays that stay where they are; one for each binding."""

    def __init__(
        self, binding: Any, graph: Graph, mask: np.ndarray[Any, Any], chunk: int, memory: str
    ) -> None:
        self._binding = binding
        self._types = graph.integers
        self._merged = graph.merged
        self._keep_shape = graph.keep_rank * (1,)
        self._copied = memory != "cpu"  # then binding an input copies it to the device
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        longest = len(mask) + chunk
        arrays = {name: np.arange(longest, dtype=kind) for name, kind in graph.integers.items()}
        arrays["attention_mask"] = mask
        arrays["use_cache_branch"] = np.zeros(1, np.bool_)
        self._arrays = arrays
        self._addresses = {name: array.ctypes.data for name, array in arrays.items()}

    def bind(self, ids: np.ndarray[Any, Any], cache: Cache, rows: int) -> None:
        """Bind a pass over `ids` (n,) that returns `rows` rows of logits, the last."""
        n = len(ids)
        self._arrays["input_ids"][:n] = ids
        for name in self._types:
            if name == "input_ids":
                self._input(name, 0, (1, n))
            elif name == "attention_mask":
                self._input(name, 0, (1, cache.slots + n))
            elif name == "position_ids":
                self._input(name, cache.length, (1, n))
            elif name == "cache_position":
                self._input(name, cache.slots, (n,))
            elif name == ROWS:
                self._input(name, n - rows, (rows,))
            elif name == KEEP:
                self._input(name, rows, self._keep_shape)
        if self._merged:
            self._arrays["use_cache_branch"][0] = cache.slots > 0
            self._input("use_cache_branch", 0, (1,), _BOOL)

    def _input(self, name: str, first: int, shape: tuple[int, ...], kind: Any = None) -> None:
        """Bind a view that begins at entry `first`.

        What is bound already stays so: with the caches cold from a pass, a call costs 40 µs.
        """
        kind = kind or self._types[name]
        address = self._addresses[name] + first * self._arrays[name].itemsize
        if self._copied or self._bound.get(name) != (address, shape):
            self._binding.bind_input(name, "cpu", 0, kind, shape, address)
            self._bound[name] = (address, shape)


class Outlet:
    """The array that logits are written to: as many rows as any pass returned (rows, V)."""

    def __init__(self, binding: Any, graph: Graph, vocab_size: int, memory: str) -> None:
        self._binding = binding
        self._graph = graph
        self._memory = memory
        self._bound: tuple[int, int] | None = None
        word = np.uint32 if graph.itemsize == 4 else np.uint16
        # With its address, which takes longer to ask than to bind. Both are one: Ctrl+C between
        # them would have the next pass write to memory that isn't ours any more.
        self._place: tuple[np.ndarray[Any, Any], int] = (np.empty((0, vocab_size), word), 0)

    @property
    def words(self) -> np.ndarray[Any, Any]:  # (rows, V)
        return self._place[0]

    def bind(self, rows: int, *, wanted: bool) -> None:
        """Bind for `rows` rows; those that nobody wants to read stay on the device."""
        if rows > len(self.words):
            words = np.empty((rows, self.words.shape[1]), self.words.dtype)
            self._place = (words, words.ctypes.data)
        graph = self._graph
        if not wanted and self._memory != "cpu":
            self._binding.bind_output(graph.logits, self._memory)
            self._bound = None
            return
        address = self._place[1]
        if self._bound != (address, rows):
            shape = (1, rows, self.words.shape[1])
            self._binding.bind_output(graph.logits, "cpu", 0, graph.element, shape, address)
            self._bound = (address, rows)
