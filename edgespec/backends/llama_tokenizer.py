"""The vocabulary inside a GGUF file, through llama.cpp's own tokenizer.

Invariant: `encode` never yields a control or stop token, whatever the text says, no text aborts the
process, and the vocabulary isn't freed while it is read.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np

from edgespec.backends.llama_lib import lib
from edgespec.errors import ModelError, ModelFormatError
from edgespec.gguf import GGUFHeader, StringArray
from edgespec.native_use import NativeUse

_CONTROL = 3  # what a file calls such tokens
_SPACE = "▁"  # how SentencePiece writes it


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
    if len(set(_read_by_llama(tokens))) < len(tokens):
        raise ModelFormatError(f"{name} is damaged: its vocabulary holds the same token twice")
    for key in ("scores", "token_type"):
        column = header.metadata.get(f"tokenizer.ggml.{key}")
        if column is not None and (
            not isinstance(column, np.ndarray) or len(column) != len(tokens)
        ):
            raise ModelFormatError(
                f"{name} is damaged: tokenizer.ggml.{key} doesn't fit its {len(tokens)} tokens"
            )
    return tokens


def _read_by_llama(tokens: Sequence[bytes]) -> list[bytes]:
    """The entries as llama.cpp knows them: up to a NUL, and empty ones by their number."""
    return [
        token.partition(b"\0")[0] or b"[EMPTY_%d]" % number for number, token in enumerate(tokens)
    ]


def _missing_bytes(known: Set[bytes]) -> frozenset[int]:
    """The bytes for which llama.cpp's SentencePiece finds no token."""
    return frozenset(
        byte
        for byte in range(256)
        if b"<0x%02X>" % byte not in known and (byte == 0 or bytes([byte]) not in known)
    )


def no_such_tokens(header: GGUFHeader, size: int) -> list[str]:
    """A note for each token at which texts begin or end that isn't among the `size` there are.

    llama.cpp takes the one that models of its kind usually have.
    """
    notes = []
    for key in ("bos", "eos", "eot", "eom"):
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and token >= size:
            notes.append(
                f"{header.path.name} names token {token} as its {key.upper()}, which it doesn't "
                "have: if answers don't end where they should, download or convert it again"
            )
    return notes


class Characters:
    """The characters that a vocabulary can write.

    Where one is no token, llama.cpp's SentencePiece writes its bytes, and aborts the process where
    there is no token for one of those.
    """

    def __init__(self, vocab: Any, tokens: Sequence[bytes], name: str) -> None:
        self._name = name
        self._known: frozenset[bytes] = frozenset()
        self._missing: frozenset[int] = frozenset()
        if lib.llama_vocab_type(vocab) != lib.LLAMA_VOCAB_TYPE_SPM:
            return
        if not _missing_bytes(set(tokens[:1024])):  # most have them there, and are long
            return
        self._known = frozenset(_read_by_llama(tokens))
        self._missing = _missing_bytes(self._known)

    def lacks(self, text: str) -> str:
        """The first of the text's characters that can't be written; "" where all can."""
        if not self._missing or not text:
            return ""
        # llama.cpp may put a space before a text.
        needed = dict.fromkeys(_SPACE + text.replace(" ", _SPACE))
        for character in needed:
            data = character.encode("utf-8", "replace")
            if data not in self._known and not self._missing.isdisjoint(data):
                return character
        return ""

    def require(self, text: str) -> None:
        """Raises ModelError for a text that can't be written."""
        if character := self.lacks(text):
            raise ModelError(
                f"{self._name} can't read the character {character!r}: its vocabulary holds "
                "neither that nor its bytes, so leave it out"
            )


class LlamaTokenizer:
    """See `Tokenizer`."""

    def __init__(self, native: Native, header: GGUFHeader, name: str) -> None:
        self.name = name
        self._native = native
        self._vocab = vocab = lib.llama_model_get_vocab(native.handle)
        self._entries = entries(header)
        self._characters = Characters(vocab, self._entries, name)
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
        keys = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
        named = {i for key in keys if isinstance(i := header.metadata.get(key), int) and i < size}
        self.stop_ids = frozenset(
            token
            for token in control | user_defined | named
            if token in named or lib.llama_vocab_is_eog(vocab, token)
        )
        suppressed = header.metadata.get("tokenizer.ggml.suppress_tokens", ())
        ids = set(np.asarray(suppressed).tolist()) if isinstance(suppressed, np.ndarray) else set()
        self.suppressed_ids = frozenset(ids & set(range(self.num_tokens)) - self.stop_ids)
        # llama.cpp makes user-defined tokens of some that the file calls control tokens.
        types = header.metadata.get("tokenizer.ggml.token_type", ())
        said = frozenset(np.flatnonzero(np.asarray(types) == _CONTROL).tolist())
        special = control | said | (user_defined & self.stop_ids)
        texts = {self._entry(i): i for i in sorted(special)}
        self.control_tokens: Mapping[str, int] = {text: i for text, i in texts.items() if text}
        self.lstrip_tokens = having(lib.LLAMA_TOKEN_ATTR_LSTRIP) & special
        self.rstrip_tokens = having(lib.LLAMA_TOKEN_ATTR_RSTRIP) & special
        # llama.cpp finds user-defined tokens in plain text too; these must not be.
        unwanted = filter(None, map(self._entry, sorted(user_defined & special)))
        choices = "|".join(map(re.escape, unwanted))
        self._unwanted = re.compile(f"(?={choices})") if choices else None
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:  # noqa: ARG002
        """See `Tokenizer.encode`; llama.cpp itself puts a space where one belongs.

        Raises ModelError for a character that can't be written.
        """
        self._characters.require(text)
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
        if begin and not self._characters.lacks("\n"):
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
        text = b"" if token is None else self._entries[token].partition(b"\0")[0]
        return text.decode("utf-8", "replace")


def _optional(token: int) -> int | None:
    return int(token) if token >= 0 else None
