"""A GGUF model's weights and its context, through llama.cpp's low-level API.

Invariant: no native call is made on a model that was closed; every return code is looked at, and
after a failed pass the cache is back at its old length (empty where the model can't forget).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import platform
from edgespec.backends import llama_params
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_log import lacks_memory, log
from edgespec.backends.native_thread import compute, load
from edgespec.errors import (
    Cancelled,
    ContextFull,
    ModelError,
    ModelFormatError,
    RollbackError,
)
from edgespec.native_use import NativeUse
from edgespec.session import CancelFlag, Logits, TokenIds

_BATCH = 512  # tokens in one llama_decode
_MAX_ROWS = 65  # logits rows of one llama_decode, which reserve memory: of the longest lookahead


def telling_address(function: Any) -> Callable[[Any], int | None]:
    """A function of a context, to give the address alone.

    As llama_cpp declares them, a pointer comes, of which ctypes takes long to tell the address.
    """
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


_logits_address = telling_address(lib.llama_get_logits)


class NativeModel:
    """The weights. Frees the contexts made on it first, whoever is closed first."""

    def __init__(
        self,
        path: Path,
        gpu_layers: int,
        *,
        mapped: bool = True,
        watch: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`watch`: told every 0.1 s how much is read, from 0 to 1; what it raises ends the loading,
        as Ctrl+C does.
        """
        params = llama_params.model_params(gpu_layers)
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if mapped else lib.LLAMA_LOAD_MODE_NONE
        handle = read_weights(path, params, watch)
        self.handle = handle
        self.sessions: weakref.WeakSet[LlamaSession] = weakref.WeakSet()
        self.contexts: set[Any] = set()  # those that aren't freed yet
        free = partial(lib.llama_model_free, handle)
        # Several threads may read the vocabulary at a time.
        self.use = NativeUse(path.name, free, shared=True, needed=self.contexts)
        weakref.finalize(self, self.use.close)

    def close(self) -> None:
        for session in list(self.sessions):
            session.close()
        self.use.close()


def read_weights(path: Path, params: Any, watch: Callable[[float], None] = lambda _: None) -> Any:
    """The handle of a file's weights; `watch` as for `NativeModel`.

    llama.cpp looks before each tensor whether to go on. Raises ModelError for what it refuses.
    """
    part, stopped = 0.0, False

    def goes_on(read: float, _: Any) -> bool:  # on the thread that loads, where no Ctrl+C comes
        nonlocal part
        part = read
        return not stopped

    def stop() -> None:
        nonlocal stopped
        stopped = True

    handles: list[Any] = []

    def read() -> None:
        log.errors.clear()
        handles.append(lib.llama_model_load_from_file(os.fsencode(path), params))

    params.progress_callback = callback = lib.llama_progress_callback(goes_on)
    try:
        watch(0.0)
        load(read, watch=lambda: watch(part), stop=stop)
        if not handles[0]:
            raise ModelError(f"llama.cpp can't load {path.name}: {log.last_error()}")
        watch(1.0)
    except BaseException:
        for handle in filter(None, handles):  # it was read to its end all the same
            lib.llama_model_free(handle)
        raise
    del callback  # it had to stay until here
    return handles[0]


class LlamaSession:
    """A llama.cpp context with one sequence; see `Session`.

    Until `probe` has run, nobody knows whether it can roll back.
    """

    def __init__(
        self,
        model: NativeModel,
        name: str,
        context_size: int,
        threads: int,
        cancel: CancelFlag,
        on_tensor: Any = None,
    ) -> None:
        """`on_tensor`: a native callback that sees each tensor as it is computed."""
        params = lib.llama_context_default_params()
        params.n_ctx = context_size
        params.n_batch = params.n_ubatch = min(_BATCH, context_size)
        params.n_outputs_max = params.n_outputs_max_per_seq = min(_MAX_ROWS, context_size)
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        if on_tensor is not None:
            params.cb_eval = on_tensor
        params.swa_full = True  # a sliding window cut to size can't be rolled back
        # libc's strlen as the callback, the flag's bytes as its string: see CancelFlag.
        params.abort_callback = lib.ggml_abort_callback(platform.c_function("strlen"))
        params.abort_callback_data = cancel.address
        log.errors.clear()
        handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            said = log.last_error()
            raise ModelError(
                f"llama.cpp can't make a context of {context_size} tokens for {name}: {said}"
                + "; try a smaller --ctx-size" * lacks_memory(said)
            )
        self.name = name
        self.length = 0
        # llama.cpp rounds it up; what lies behind the size that was asked for stays unused.
        self.context_size = min(context_size, int(lib.llama_n_ctx(handle)))
        self._row_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model.handle)))
        self.vocab_size = self._row_size
        self._views: dict[tuple[int, int, int], Logits] = {}  # by address, rows and width
        self.can_rollback = True
        self._model = model  # keeps the weights while the context lives
        self._cancel = cancel
        self._abort_callback = params.abort_callback
        self._handle = handle
        self._rows_at: int | None = None  # the address of the last pass's logits
        self._memory = lib.llama_get_memory(handle)
        self._max_rows = int(params.n_outputs_max)
        self._batch = lib.llama_batch_init(int(params.n_batch), 0, 1)
        self._tokens, self._positions, self._wanted = _batch_arrays(
            self._batch, int(params.n_batch)
        )
        model.contexts.add(handle)
        free = partial(_free_context, handle, self._batch, model.contexts)
        self._use = NativeUse(name, free, stopping=cancel.stopping, then=model.use.free_closed)
        weakref.finalize(self, self._use.close)
        if not self._memory:
            self.close()
            raise ModelFormatError(f"{name} is an encoder, not a model that continues text")
        model.sessions.add(self)

    def probe(self) -> None:
        """Try what speculation needs: a recurrent or hybrid model can't forget its last token.

        The cache is empty before and behind it.
        """
        self.forward([0, 0], 1)
        try:
            self.rollback(1)
        except RollbackError:
            self.can_rollback = False
        self._truncate(0)

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
            try:
                logits = self._forward(tokens, num_logits)
                self._use.check_open()  # or the rows lie in memory that is about to be freed
                return logits
            except BaseException:
                self._truncate(start)
                raise

    def _forward(self, tokens: Sequence[int] | TokenIds, num_logits: int) -> Logits:
        parts: list[Logits] = []
        for begin, end, rows in chunks(
            len(tokens), num_logits, batch=len(self._tokens), max_rows=self._max_rows
        ):
            self._cancel.raise_if_set()
            self._decode(tokens[begin:end], rows)
            if rows:
                logits = self._logits(rows)
                parts.append(logits.copy() if end < len(tokens) else logits)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)  # (num_logits, V)

    def rollback(self, length: int) -> None:
        """See `Session.rollback`."""
        with self._use():
            if not 0 <= length <= self.length:
                raise RollbackError(
                    f"{self.name} can't go from {self.length} back to {length} tokens"
                )
            if length == self.length:
                return
            if not self._remove_from(length):
                self._truncate(0)
                raise RollbackError(f"{self.name} can't forget a part of its text")
            self.length = length

    def close(self) -> None:
        """See `Session.close`."""
        self._use.close()

    def _decode(self, tokens: Sequence[int] | TokenIds, rows: int) -> None:
        """One llama_decode; the last `rows` positions give logits."""
        n = len(tokens)
        self._feed(tokens)
        self._positions[:n] = np.arange(self.length, self.length + n)
        self._wanted[: n - rows] = 0
        self._wanted[n - rows : n] = 1
        self._batch.n_tokens = n
        try:
            code, self._rows_at, failed = compute(
                _pass, self._handle, self._batch, rows > 0,
                watch=self._cancel.raise_if_set, stop=self._cancel.interrupt,
            )  # fmt: skip
        except BaseException:
            self._cancel.resume()
            raise
        if code == 0:
            self.length += n
        elif code == 2:
            raise Cancelled("stopped in the middle of a pass")
        elif code == 1:
            raise ContextFull(f"{self.name} has no room for {n} more tokens: raise --ctx-size")
        elif not failed:
            raise ModelError(f"{self.name} failed in llama_decode ({code}): {log.last_error()}")
        if failed:
            raise ModelError(
                f"{self.name} failed on the GPU ({failed}): close other programs or choose a "
                "smaller --ctx-size, and open the model again"
            )

    def _feed(self, tokens: Sequence[int] | TokenIds) -> None:
        """Put the tokens into the batch. Raises ModelError for an id outside the vocabulary."""
        fed = self._tokens[: len(tokens)]
        try:
            fed[:] = tokens
            outside = fed.view(np.uint32).max() >= self.vocab_size  # a negative one too
        except OverflowError:
            outside = True
        if outside:
            raise ModelError(f"{self.name} was given an id outside its vocabulary")

    def _logits(self, rows: int) -> Logits:
        """The rows of the last pass, (rows, V), as they lie in llama.cpp's memory."""
        if not self._rows_at:
            raise ModelError(f"{self.name} returned no logits")
        return self._view(self._rows_at, rows, self._row_size)

    def _view(self, address: int, rows: int, width: int) -> Logits:
        """Native floats as (rows, width)."""
        place = (address, rows, width)
        view = self._views.get(place)
        if view is None:  # to make one takes longer than all else here, and it stays where it is
            floats = (ctypes.c_float * (rows * width)).from_address(address)
            view = np.frombuffer(memoryview(floats), np.float32).reshape(rows, width)
            self._views[place] = view
        return view

    def _truncate(self, length: int) -> None:
        """Back to `length`, or to nothing where the model can't; never raises."""
        if length and self._remove_from(length):
            self.length = length
        else:
            lib.llama_memory_clear(self._memory, False)
            self.length = 0

    def _remove_from(self, length: int) -> bool:
        """Forget positions from `length` on; whether that is what happened."""
        removed = lib.llama_memory_seq_rm(self._memory, 0, length, -1)
        return bool(removed) and lib.llama_memory_seq_pos_max(self._memory, 0) == length - 1


def chunks(length: int, rows: int, *, batch: int, max_rows: int) -> Iterator[tuple[int, int, int]]:
    """The native passes over `length` tokens: where each begins and ends, and its rows of logits.

    The last `rows` tokens give a row each. A pass takes at most `batch` tokens and gives at most
    `max_rows` rows, which come from one pass where they fit.
    """
    first_row = length - rows
    begin = 0
    while begin < length:
        end = min(begin + batch, length)
        if end > first_row:
            end = min(end, max(begin, first_row) + max_rows)
            if begin < first_row and end < length and rows <= max_rows:
                end = first_row  # rows of two passes would have to be copied together
        yield begin, end, max(0, end - max(begin, first_row))
        begin = end


def _pass(handle: Any, batch: Any, wanted: bool) -> tuple[int, int | None, str]:
    """On the native thread: a pass's code, the address of its rows, and what a GPU said of failing.

    In one piece, since a GPU's rows are waited for behind its pass, and another model's comes next.
    """
    log.errors.clear()
    log.gpu_errors.clear()
    code = lib.llama_decode(handle, batch)
    address = _logits_address(handle) if wanted and code == 0 else None
    return code, address, log.gpu_error()


def _batch_arrays(batch: Any, size: int) -> tuple[TokenIds, TokenIds, Any]:
    """Numpy views of a batch's token, position and logits columns; one sequence for all."""
    for i in range(size):
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
    return (
        np.ctypeslib.as_array(batch.token, (size,)),
        np.ctypeslib.as_array(batch.pos, (size,)),
        np.ctypeslib.as_array(batch.logits, (size,)),
    )


def _free_context(handle: Any, batch: Any, contexts: set[Any]) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(handle)
    contexts.discard(handle)
