"""SentencePiece's model file, read without its library.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto, a
protocol buffer (https://protobuf.dev/programming-guides/encoding/). Only the fields that matter
here are looked at.

Invariant: whatever bytes the file holds, reading it ends in a model or in an ExportError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ExportError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces; GGUF numbers its token types alike."""

_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SentencePiece:
    """Attributes: pieces (text, score, kind) by id; adds_space: whether it puts a space in front.

    kind: "bpe" or "unigram", among others.
    """

    pieces: tuple[tuple[str, float, int], ...]
    kind: str
    adds_space: bool


def read_sentencepiece(path: Path) -> SentencePiece:
    """The model in `path`. Raises ExportError for anything else."""
    try:
        data = path.read_bytes()
        pieces = []
        kind, adds_space = "unigram", True  # the format's defaults
        for number, value in _fields(data):
            if number == 1:
                pieces.append(_piece(_bytes(value)))
            elif number == 2:  # how it was trained
                kind = next((_KINDS[int(v)] for n, v in _fields(_bytes(value)) if n == 3), kind)
            elif number == 3:  # how text is normalised
                adds = [v for n, v in _fields(_bytes(value)) if n == 3]
                adds_space = bool(adds[0]) if adds else adds_space
    except OSError as error:
        raise ExportError(f"Can't read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ExportError(f"{path} is no SentencePiece model; download it again.") from error
    if not pieces:
        raise ExportError(f"{path} is no SentencePiece model; download it again.")
    return SentencePiece(tuple(pieces), kind, adds_space)


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _bytes(value).decode("utf-8")
        elif number == 2:
            score = float(struct.unpack("<f", _bytes(value))[0])
        elif number == 3:
            kind = int(value)
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"a piece of kind {kind}")
    return text, score, kind


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number where a text or message was expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message's fields: a number, or the bytes of anything else."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if position + length > len(data):
            raise ValueError("a field past the end")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if position >= len(data):
            raise ValueError("a number past the end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number without an end")
