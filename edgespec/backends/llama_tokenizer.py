"""The vocabulary inside a GGUF file, through llama.cpp's own tokenizer.

Invariant: `encode` never yields a control or stop token, whatever the text says, and the vocabulary
isn't freed while it is read.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any, Protocol

import llama_cpp.llama_cpp as lib
import numpy as np

from edgespec.errors import ModelError, ModelFormatError
from edgespec.gguf import GGUFHeader, StringArray
from edgespec.native_use import NativeUse


class Native(Protocol):
    """The loaded weights, or at least their vocabulary."""

    handle: Any
    use: NativeUse
    """A block of it for each time that the vocabulary is read."""


def entries(header: GGUFHeader) -> StringArray:
    """The vocabulary's entries, fit for llama.cpp, which aborts the process on what is refused."""
    name = header.path.name
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray) or not len(tokens):
        raise ModelFormatError(f"{name} holds no vocabulary, so it can't read or write text")
    if len(set(tokens)) < len(tokens):
        raise ModelFormatError(f"{name} is damaged: its vocabulary holds the same token twice")
    for key, value in header.metadata.items():
        named = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if named and not (isinstance(value, int) and 0 <= value < len(tokens)):
            raise ModelFormatError(
                f"{name} is damaged: {key} is {value}, and there are {len(tokens)} tokens"
            )
    for key in ("scores", "token_type"):
        column = header.metadata.get(f"tokenizer.ggml.{key}")
        if column is not None and (
            not isinstance(column, np.ndarray) or len(column) != len(tokens)
        ):
            raise ModelFormatError(
                f"{name} is damaged: tokenizer.ggml.{key} doesn't fit its {len(tokens)} tokens"
            )
    return tokens


class LlamaTokenizer:
    """See `Tokenizer`."""

    def __init__(self, native: Native, header: GGUFHeader, name: str) -> None:
        self.name = name
        self._native = native
        self._vocab = vocab = lib.llama_model_get_vocab(native.handle)
        self._entries = entries(header)
        size = int(lib.llama_vocab_n_tokens(vocab))
        attributes = np.array([lib.llama_vocab_get_attr(vocab, i) for i in range(size)])
        used = np.flatnonzero((attributes & lib.LLAMA_TOKEN_ATTR_UNUSED) == 0)
        self.num_tokens = int(used[-1]) + 1 if len(used) else size
        self.add_bos = bool(lib.llama_vocab_get_add_bos(vocab))
        self.bos_id = _optional(lib.llama_vocab_bos(vocab))
        self.bos_text = self._entry(self.bos_id)
        self.eos_text = self._entry(_optional(lib.llama_vocab_eos(vocab)))

        def having(attribute: int) -> frozenset[int]:
            return frozenset(np.flatnonzero(attributes & attribute).tolist())

        control = having(lib.LLAMA_TOKEN_ATTR_CONTROL) | having(lib.LLAMA_TOKEN_ATTR_UNKNOWN)
        user_defined = having(lib.LLAMA_TOKEN_ATTR_USER_DEFINED)
        named = {
            header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")
        }
        self.stop_ids = frozenset(
            token
            for token in control | user_defined | {i for i in named if isinstance(i, int)}
            if token in named or lib.llama_vocab_is_eog(vocab, token)
        )
        special = control | (user_defined & self.stop_ids)
        texts = {self._entry(i): i for i in sorted(special)}
        self.control_tokens: Mapping[str, int] = {text: i for text, i in texts.items() if text}
        self.lstrip_tokens = having(lib.LLAMA_TOKEN_ATTR_LSTRIP) & special
        self.rstrip_tokens = having(lib.LLAMA_TOKEN_ATTR_RSTRIP) & special
        # llama.cpp finds user-defined tokens in plain text too; one that ends the text must not be.
        unwanted = sorted((self._entry(i) for i in user_defined & self.stop_ids), key=len)
        self._unwanted = re.compile("|".join(map(re.escape, unwanted[::-1]))) if unwanted else None
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        if self._unwanted is None:
            return self._encode(text)
        ids: list[int] = []
        begin = 0
        for match in self._unwanted.finditer(text):  # cut inside, so that it isn't recognised
            ids += self._encode_part(text[begin : match.start() + 1], begin)
            begin = match.start() + 1
        return ids + self._encode_part(text[begin:], begin)

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def vocabulary(self) -> list[bytes]:
        """See `Tokenizer.vocabulary`."""
        return list(self._entries[: self.num_tokens])

    def _encode_part(self, text: str, begin: int) -> list[int]:
        """As `_encode`, without the space that some vocabularies put before a text."""
        if begin:
            line = self._encode("\n")
            ids = self._encode("\n" + text)
            if ids[: len(line)] == line:
                return ids[len(line) :]
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        ids = (lib.llama_token * room)()
        with self._native.use():
            count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, False)
        if count < 0:
            raise ModelError(f"{self.name} can't tokenize this text ({count})")
        return list(ids[:count])

    def _piece(self, token: int) -> bytes:
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            with self._native.use():
                size = lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if size >= 0:
                return buffer.raw[:size]
            room = -size

    def _entry(self, token: int | None) -> str:
        return "" if token is None else self._entries[token].decode("utf-8", "replace")


def _optional(token: int) -> int | None:
    return int(token) if token >= 0 else None
