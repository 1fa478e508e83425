"""ONNX models through ONNX Runtime, bound to memory that stays where it is.

Invariant: `length` tokens are in the cache, and after a failed or cancelled pass as many as before
it (none where the model can't forget). What a graph can do (share its cache, hide holes, check
several tokens at once) is found by running it when it is loaded, never guessed from its name.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.backends.native_thread import compute
from edgespec.backends.ort_cache import Cache
from edgespec.backends.ort_errors import lacks_memory, short_reason
from edgespec.backends.ort_feeds import Feeds, Outlet
from edgespec.backends.ort_graph import Graph, as_float32
from edgespec.backends.ort_probe import RowShape
from edgespec.errors import Cancelled, ContextFull, EdgespecError, ModelError, RollbackError
from edgespec.narrow import NarrowVocabulary, Widener
from edgespec.native_use import NativeUse
from edgespec.session import CancelFlag, Logits, TokenIds

_CHUNK = 512  # tokens of a prompt in one pass
_LOGITS_BYTES = 64 << 20  # of one pass, where the graph computes the rows nobody asked for
_LONG = 16  # passes over more tokens run where Ctrl+C and the flag can reach them


class OrtSession:
    """A graph with one sequence in its cache; see `Session`."""

    def __init__(
        self,
        native: Any,
        graph: Graph,
        name: str,
        cache: Cache,
        *,
        context_size: int,
        rows: RowShape,
        head: NarrowVocabulary | None,
        cancel: CancelFlag,
        memory: str = "cpu",
    ) -> None:
        """`head`: of a part of the vocabulary; `memory`: the device's name for its own."""
        self.vocab_size = head.vocab_size if head else rows.width
        self.name = name
        self.context_size = context_size
        self.can_rollback = not graph.states
        self.cache: Cache = cache
        self.only_last_row = rows.rows == 1 and not graph.picks_rows
        self._graph = graph
        self._native = native
        self._cancel = cancel
        self._binding = native.io_binding()
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = 4
        row_bytes = rows.width * graph.itemsize
        self._most_rows = max(8, min(_CHUNK, _LOGITS_BYTES // row_bytes))
        self._chunk = _CHUNK if graph.picks_rows or self.only_last_row else self._most_rows
        self._feeds: Any = Feeds(self._binding, graph, cache.mask, self._chunk, memory)
        self._outlet: Any = Outlet(self._binding, graph, rows.width, memory)
        self._use = NativeUse(name, _weakly(self._drop), stopping=cancel.stopping)
        self._widener = Widener(head.kept, head.vocab_size) if head else None

    @property
    def length(self) -> int:
        """See `Session`."""
        return self.cache.length

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        """See `Session.forward`."""
        if not 1 <= num_logits <= len(tokens):
            raise ValueError(f"{num_logits} rows asked of a pass over {len(tokens)} tokens")
        with self._use():
            start = self.length
            if start + len(tokens) > self.context_size:
                raise ContextFull(
                    f"{self.name} holds {self.context_size} tokens and {start + len(tokens)} "
                    "are needed: raise --ctx-size or shorten the text"
                )
            ids = np.asarray(tokens, np.int64)
            if ids.min() < 0 or ids.max() >= self.vocab_size:
                raise ModelError(f"{self.name} was given an id outside its vocabulary")
            try:
                logits = self._forward(ids, num_logits)
                self._use.check_open()  # or the rows lie in memory that is about to be freed
                return logits
            except BaseException as error:
                self.cache.rollback(start)
                if isinstance(error, MemoryError):
                    raise ModelError(
                        f"there is no memory for a pass of {self.name} over {len(ids)} tokens: "
                        "close other programs or choose a smaller --ctx-size"
                    ) from error
                raise

    def _forward(self, ids: np.ndarray[Any, Any], num_logits: int) -> Logits:
        first_row = len(ids) - num_logits
        parts: list[Logits] = []
        begin = 0
        while begin < len(ids):
            self._cancel.raise_if_set()
            end = self._chunk_end(begin, len(ids), first_row)
            wanted = max(0, end - max(begin, first_row))
            logits = self._pass(ids[begin:end], wanted)  # (wanted, V)
            if wanted:
                parts.append(logits.copy() if end < len(ids) else logits)
            begin = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)  # (num_logits, V)

    def _chunk_end(self, begin: int, length: int, first_row: int) -> int:
        end = min(begin + self._chunk, length)
        most = 1 if self.only_last_row else self._most_rows
        return min(end, max(begin, first_row) + most)

    def _pass(self, ids: np.ndarray[Any, Any], wanted: int) -> Logits:
        """One run of the graph; gives its last `wanted` rows (wanted, V)."""
        n = len(ids)
        rows = max(1, wanted) if self._graph.picks_rows else 1 if self.only_last_row else n
        self.cache.bind(self._binding, n)
        self._feeds.bind(ids, self.cache, rows)
        self._outlet.bind(rows, wanted=wanted > 0)
        self._run(n)
        self.cache.keep(n)
        logits = as_float32(self._outlet.words[rows - wanted : rows], self._graph.element)
        return logits if self._widener is None else self._widener.widen(logits)  # (wanted, V)

    def _run(self, tokens: int) -> None:
        """Run what is bound; a long run ends early when the flag is set.

        Raises MemoryError where there was none on the device either, which `forward` tells.
        """
        run, options = self._native.run_with_iobinding, self._run_options
        options.terminate = False
        try:
            # A daemon thread must not be inside native code when the interpreter goes.
            if tokens <= _LONG and not threading.current_thread().daemon:
                run(self._binding, options)
            else:
                watch, stop = self._cancel.raise_if_set, self._terminate
                compute(run, self._binding, options, watch=watch, stop=stop)
        except EdgespecError:
            raise
        except Exception as error:  # ONNX Runtime's own share no class
            if options.terminate:
                raise Cancelled("stopped in the middle of a pass") from None
            if lacks_memory(error):
                raise MemoryError from error
            said = short_reason(error, 300)
            raise ModelError(f"{self.name} failed in ONNX Runtime: {said}") from error

    def _terminate(self) -> None:
        self._run_options.terminate = True

    def rollback(self, length: int) -> None:
        """See `Session.rollback`."""
        with self._use():
            if not 0 <= length <= self.length:
                raise RollbackError(
                    f"{self.name} can't go from {self.length} back to {length} tokens"
                )
            if 0 < length < self.length and not self.can_rollback:
                raise RollbackError(f"{self.name} can't forget a part of its text")
            self.cache.rollback(length)

    def close(self) -> None:
        """See `Session.close`."""
        self._use.close()

    def _drop(self) -> None:
        # All that refers to the native binding, which keeps device memory.
        self._native = self._binding = self._feeds = self._outlet = None
        self.cache.free()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Calls it where its object still is: so that a session nobody holds is gone at once."""
    held = weakref.WeakMethod(method)

    def call() -> None:
        if (found := held()) is not None:
            found()

    return call
