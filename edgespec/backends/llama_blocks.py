"""What a model says without some of its blocks, with no such model written anywhere.

llama.cpp shows each tensor as soon as it is computed. Where a block is to be left out, what it made
is replaced by what went into it, which is what the next block would then see. Invariant: a pass
with nothing left out gives what the model gives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.backends import LoadOptions
from edgespec.backends import llama_ggml as ggml
from edgespec.backends.llama import LlamaSession, NativeModel
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_tokenizer import entries
from edgespec.errors import ModelError
from edgespec.gguf_parts import read_model
from edgespec.session import CancelFlag, Logits

WINDOW = 128
"""Tokens read at a time; the output behind the later half of them is compared."""

_ROWS = WINDOW // 2
_OUT = re.compile(rb"l_out-(\d+)")  # what llama.cpp calls that which a block gives to the next


class Ablation:
    """A model and a sample text, to be read without any set of its blocks but the first."""

    def __init__(
        self, path: Path, tokens: Sequence[int], options: LoadOptions, cancel: CancelFlag
    ) -> None:
        """`tokens`: a text as ids; as many whole windows of it are read as there are."""
        entries(read_model(path)[0])
        if len(tokens) < WINDOW:
            raise ModelError(f"{WINDOW} tokens of text are needed to tell what a block does")
        self._windows = [
            list(tokens[begin : begin + WINDOW])
            for begin in range(0, len(tokens) - WINDOW + 1, WINDOW)
        ]
        self._without: Collection[int] = ()
        self._data: npt.NDArray[np.uint8] = np.empty(0, np.uint8)  # what the last block gave
        self._seen: set[int] = set()
        self._tensors = _Tensors()
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_tensor)
        self._model = NativeModel(path, 0)
        try:
            threads = options.cpu_threads
            self._session = LlamaSession(
                self._model, path.name, WINDOW, threads, cancel, self._callback
            )
            self._whole = [self._log_probs(window) for window in self._windows]  # (rows, V) each
            self._blocks = int(lib.llama_model_n_layer(self._model.handle))
            if self._seen != set(range(self._blocks)):
                raise ModelError(
                    f"{path.name} doesn't show what its blocks do: choose them by hand"
                )
        except BaseException:
            self._model.close()
            raise

    def change(self, without: Collection[int]) -> float:
        """How much leaving these blocks out changes the output: mean KL divergence, in nats."""
        if 0 in without:
            raise ValueError("the first block can't be left out: what goes into it isn't seen")
        self._without = frozenset(without)
        try:
            total = 0.0
            for window, whole in zip(self._windows, self._whole, strict=True):
                rest = self._log_probs(window)
                total += float((np.exp(whole) * (whole - rest)).sum(dtype=np.float64))
            return total / (_ROWS * len(self._windows))
        finally:
            self._without = ()

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._model.close()

    def _log_probs(self, window: Sequence[int]) -> Logits:
        self._session.rollback(0)
        logits = self._session.forward(window, _ROWS).copy()  # (rows, V)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits

    def _on_tensor(self, tensor: Any, ask: bool, _: Any) -> bool:
        """Native code asks whether we want to see a tensor, and then shows it."""
        named = _OUT.fullmatch(self._tensors.name(tensor))
        if named is None:
            return not ask  # False would stop the pass
        block = int(named[1])
        self._seen.add(block)
        if ask:
            return block in self._without or block + 1 in self._without
        if block in self._without:
            # The last block gives only the rows that are asked for, the newest, if any.
            begin = len(self._data) - self._tensors.nbytes(tensor)
            self._tensors.write(tensor, self._data[begin:])
        else:
            self._data = self._tensors.read(tensor)
        return True


class _Tensors:
    """Looks into a tensor of ggml's and changes what is in it."""

    def __init__(self) -> None:
        self.name, self.nbytes = ggml.function("ggml_get_name"), ggml.function("ggml_nbytes")
        self._get = ggml.function("ggml_backend_tensor_get")
        self._set = ggml.function("ggml_backend_tensor_set")

    def read(self, tensor: Any) -> npt.NDArray[np.uint8]:
        data = np.empty(self.nbytes(tensor), np.uint8)
        self._get(tensor, data.ctypes.data, 0, len(data))
        return data

    def write(self, tensor: Any, data: npt.NDArray[np.uint8]) -> None:
        self._set(tensor, data.ctypes.data, 0, len(data))
