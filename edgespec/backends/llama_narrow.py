"""A GGUF drafter with a narrow head in llama.cpp: it is fed embeddings instead of ids.

Invariant: to the rest of edgespec it is a session like any other. Ids that come in and logits that
go out are those of the whole vocabulary; which rows the head has, and that llama.cpp knows the
model as one of N tokens, nobody else sees.

Text repeats its own rare words. So the tokens that it brought and the head lacks get their logits
here, by a product with what the head saw: a few hundred rows instead of a hundred thousand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edgespec.backends import LoadOptions
from edgespec.backends.llama import LlamaSession, NativeModel, telling_address
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_tokenizer import entries
from edgespec.errors import ModelError, ModelFormatError
from edgespec.gguf import GGUFHeader, read_header
from edgespec.narrow import NarrowHead, Occurred, TableRows, Widener, read
from edgespec.session import CancelFlag, Logits, TokenIds

_NEAR = 16  # tokens in a pass for which the head is computed whether they draft or not
_LIKE = 0.2  # of the logits' spread: more is no rounding
_UNUSED = 5  # the token type of a vocabulary's padding

_hidden_address = telling_address(lib.llama_get_embeddings)


class NarrowSession(LlamaSession):
    """See `Session`; `vocab_size` is the whole vocabulary's.

    Until `probe` has run, it knows no logits but those of the head's own tokens.
    """

    def __init__(
        self,
        model: NativeModel,
        header: GGUFHeader,
        head: NarrowHead,
        context_size: int,
        threads: int,
        cancel: CancelFlag,
    ) -> None:
        _refuse_other_rows(model, header.path.name, head)
        super().__init__(model, header.path.name, context_size, threads, cancel)
        if self.vocab_size != len(head.kept):
            raise ModelError(f"{self.name} is damaged: its head has {self.vocab_size} rows")
        self._head = head
        self._embeddings = TableRows(header.path, head.embeddings)
        self._head_rows = TableRows(header.path, head.head)
        self._occurred: Occurred | None = None  # what the text brought that the head lacks
        self._widener = Widener(head.kept, head.vocab_size)
        self._fed = np.empty((len(self._tokens), head.embeddings.width), np.float32)
        self._outputs = 0  # rows that the newest pass gave
        self._shows_hidden = False  # whether it also gave what the head saw
        self._factor = 1.0  # from a product with a row of the head to a logit
        # The same batch with rows in place of ids. What the first one owns is freed with it.
        own = self._batch
        self._batch = lib.llama_batch()
        for name in ("n_tokens", "pos", "n_seq_id", "seq_id", "logits"):
            setattr(self._batch, name, getattr(own, name))
        self._batch.embd = self._fed.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self.vocab_size = head.vocab_size

    def probe(self) -> None:
        """See `LlamaSession.probe`; and whether logits are products with rows of the head, up to a
        factor. Some architectures bend them or add to them: then only the head's own are known.
        """
        super().probe()
        if self._max_rows < _NEAR:
            return
        self._occurred = self._none_occurred()
        factor = self._find_factor()
        self._occurred = self._none_occurred() if factor else None
        self._factor = factor

    def _feed(self, tokens: Sequence[int] | TokenIds) -> None:
        self._embeddings.read(tokens, self._fed[: len(tokens)])
        if self._occurred is not None:
            self._occurred.add(tokens)

    def _decode(self, tokens: Sequence[int] | TokenIds, rows: int) -> None:
        # Asked for what the head sees, llama.cpp gives it, and logits, for every token it is fed:
        # that is for short passes. Behind a long one, the head's own tokens have to do: its last
        # token in a pass apart would cost what drafting one does, for one draft's first token.
        near = len(tokens) <= _NEAR <= self._max_rows and bool(rows)
        self._shows_hidden = near and self._occurred is not None
        self._outputs = len(tokens) if self._shows_hidden else rows
        lib.llama_set_embeddings(self._handle, self._shows_hidden)
        super()._decode(tokens, self._outputs)

    def _logits(self, rows: int) -> Logits:
        logits = super()._logits(self._outputs)[-rows:]  # (rows, N)
        if not self._shows_hidden or self._occurred is None:
            return self._widener.widen(logits)  # (rows, V)
        hidden = self._hidden()[-rows:] * self._factor  # (rows, width)
        return self._widener.widen(logits, self._occurred.ids, self._occurred.logits(hidden))

    def _hidden(self) -> npt.NDArray[np.float32]:
        """What the head saw in the newest pass (outputs, width)."""
        address = _hidden_address(self._handle)
        if not address:
            raise ModelError(f"{self.name} doesn't show what its head sees")
        return self._view(address, self._outputs, self._fed.shape[1])

    def _none_occurred(self) -> Occurred:
        return Occurred(self._head.kept, self._head_rows, self._head.head)

    def _find_factor(self) -> float:
        """From products of what the head sees with its rows to logits; 0 where there is none."""
        kept = self._head.kept
        some = kept[np.linspace(0, len(kept) - 1, 64).astype(np.intp)]
        weights = np.empty((len(some), self._head.head.width), np.float32)
        self._head_rows.read(some, weights)
        logits = self.forward(some[:4])[0, some].astype(np.float64)  # (64,)
        products = weights.astype(np.float64) @ self._hidden()[-1]  # (64,)
        self._truncate(0)
        squares = float(products @ products)
        factor = float(products @ logits) / squares if squares else 0.0
        straight = np.abs(logits - factor * products).max() < _LIKE * logits.std()
        return factor if straight else 0.0


def _refuse_other_rows(model: NativeModel, name: str, head: NarrowHead) -> None:
    """Raises ModelFormatError where rows are read otherwise than here they are given.

    With M-RoPE each has four positions where an id has one, and some models that see pictures take
    rows for several of their layers in one: llama.cpp would read behind what it is given.
    """
    positions = lib.llama_model_rope_type(model.handle)
    width = lib.llama_model_n_embd_inp(model.handle)
    several = positions in (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)
    if several or width != head.embeddings.width:
        raise ModelFormatError(
            f"{name} takes embeddings in another form than its own tokens', so its head can't be "
            "narrowed: leave --vocab out"
        )


class VocabularyOnly:
    """See `Tokenizer`: what tokens there are, for comparing with a target's; it reads no text."""

    add_bos = False
    bos_id: int | None = None
    bos_text = eos_text = ""
    stop_ids: frozenset[int] = frozenset()
    suppressed_ids: frozenset[int] = frozenset()
    control_tokens: Mapping[str, int] = {}
    lstrip_tokens: frozenset[int] = frozenset()
    rstrip_tokens: frozenset[int] = frozenset()

    def __init__(self, header: GGUFHeader) -> None:
        self.name = header.path.name
        self._entries = entries(header)
        types: Any = header.metadata.get("tokenizer.ggml.token_type")
        used = range(len(self._entries)) if types is None else np.flatnonzero(types != _UNUSED)
        self.num_tokens = int(used[-1]) + 1 if len(used) else len(self._entries)

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:  # noqa: ARG002
        """Always raises."""
        self._refuse()

    def token_bytes(self, token: int) -> bytes:  # noqa: ARG002
        """Always raises."""
        self._refuse()

    def vocabulary(self) -> list[bytes]:
        """See `Tokenizer.vocabulary`."""
        return list(self._entries[: self.num_tokens])

    def _refuse(self) -> NoReturn:
        raise ModelError(f"{self.name} can only draft: its head holds a part of its vocabulary")


def agreement(path: Path, options: LoadOptions) -> float:
    """How alike the logits are that a file gives when it is fed its own ids, and the table's rows.

    A mean correlation, near 1 where both mean the same tokens and the rows are fed as the
    architecture takes them.
    """
    header = read_header(path)
    head = read(header)
    if head is None:
        raise ModelError(f"{path.name} has a whole head")
    threads = options.cpu_threads
    rows = np.linspace(0, len(head.kept) - 1, 24).astype(np.int32)
    model = NativeModel(path, 0)
    try:
        by_id = LlamaSession(model, path.name, 32, threads, CancelFlag())
        wanted = by_id.forward(rows, len(rows)).copy()  # (24, N)
        by_row = NarrowSession(model, header, head, 32, threads, CancelFlag())
        got = by_row.forward(head.kept[rows], len(rows))[:, head.kept]  # (24, N)
        alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(got, wanted, strict=True)]
        return float(np.mean(alike))
    finally:
        model.close()
