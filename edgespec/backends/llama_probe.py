"""What llama.cpp makes of a GGUF file, for those who check a file that was just written.

Invariant: only files that `read_model` and `entries` have passed get to native code, and whatever
was opened is freed when the call ends or the block is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import platform
from edgespec.backends.llama import read_weights
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_log import log
from edgespec.backends.llama_params import model_params
from edgespec.backends.llama_tokenizer import Characters, entries
from edgespec.backends.native_thread import compute
from edgespec.errors import ModelError
from edgespec.gguf_parts import read_model
from edgespec.session import Logits


class NativeVocabulary:
    """The tokenizer of an open file; see `vocabulary`."""

    def __init__(self, handle: Any, path: Path, tokens: Sequence[bytes]) -> None:
        self._vocab = lib.llama_model_get_vocab(handle)
        self._path = path
        self._characters = Characters(self._vocab, tokens, path.name)

    def encode(self, text: str, *, ends: bool = False) -> list[int]:
        """The ids of a text whose control tokens are recognised; `ends`: BOS and EOS as it adds.

        Raises ModelError for a text that llama.cpp can't tokenize.
        """
        self._characters.require(text)
        data = text.encode("utf-8")
        room = len(data) + 16
        ids = (lib.llama_token * room)()
        count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, ends, True)
        if count < 0:
            raise ModelError(f"{self._path.name} can't tokenize a text of {len(text)} characters")
        return list(ids[:count])

    def ends_text(self, token: int) -> bool:
        """Whether llama.cpp takes this id for the end of an answer."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))


@contextmanager
def vocabulary(path: Path) -> Iterator[NativeVocabulary]:
    """Open a file's vocabulary alone. Raises ModelError where llama.cpp refuses it."""
    tokens = entries(read_model(path)[0])
    with _opened(path, vocab_only=True) as handle:
        yield NativeVocabulary(handle, path, tokens)


def logits(path: Path, tokens: Sequence[int]) -> Logits:
    """The rows after each of `tokens`, (n, V) float32, from one pass on the CPU.

    The cache is in 32 bits and attention is computed plainly, so that what differs from another
    implementation is the weights. Raises ModelError.
    """
    entries(read_model(path)[0])
    with _opened(path, vocab_only=False) as model:
        n = len(tokens)
        params = lib.llama_context_default_params()
        params.n_ctx = max(n, 64)
        params.n_batch = params.n_ubatch = n
        params.n_outputs_max = params.n_outputs_max_per_seq = n
        params.n_threads = params.n_threads_batch = platform.usable_cpus()
        params.type_k = params.type_v = lib.GGML_TYPE_F32
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = lib.llama_init_from_model(model, params)
        if not context:
            raise ModelError(f"llama.cpp can't run {path.name}: {log.last_error()}")
        batch = lib.llama_batch_init(n, 0, 1)
        try:
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.n_tokens = n
            if code := compute(lib.llama_decode, context, batch):
                raise ModelError(f"{path.name} failed in a pass ({code}): {log.last_error()}")
            size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
            rows = np.ctypeslib.as_array(lib.llama_get_logits(context), (n, size))
            return np.array(rows, np.float32)
        finally:
            lib.llama_batch_free(batch)
            lib.llama_free(context)


@contextmanager
def _opened(path: Path, *, vocab_only: bool) -> Iterator[Any]:
    params = model_params(0)
    params.vocab_only = vocab_only
    handle = read_weights(path, params)
    try:
        yield handle
    finally:
        lib.llama_model_free(handle)
