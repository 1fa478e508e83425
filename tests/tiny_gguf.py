"""Writes GGUF models of a few kilobytes with random weights, so that the native side is tested
without a download: any vocabulary, any metadata, sizes to order."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
WIDTH, HEADS, FORWARD = 32, 2, 64


def spm_vocabulary(words: Sequence[str] = ()) -> tuple[list[bytes], list[int]]:
    """<unk> <s> </s>, 256 byte tokens, then ASCII pieces and `words`, as SentencePiece orders."""
    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [UNKNOWN, CONTROL, CONTROL]
    tokens += [b"<0x%02X>" % i for i in range(256)]
    types += [BYTE] * 256
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>|/_,.!?'"
    pieces = [*letters, *words]
    tokens += [piece.encode() for piece in pieces]
    types += [NORMAL] * len(pieces)
    return tokens, types


def write_tiny(
    path: Path,
    *,
    tokens: Sequence[bytes] | None = None,
    types: Sequence[int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    layers: int = 2,
    context: int = 512,
    seed: int = 0,
    scale: float = 0.3,
) -> Path:
    """A llama model; `metadata` adds to or (with None) takes away from what it says of itself."""
    if tokens is None or types is None:
        tokens, types = spm_vocabulary()
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": path.stem,
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **(metadata or {}),
    }
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, scale, shape).astype(np.float32)

    tensors = {"token_embd.weight": weights(len(tokens), WIDTH)}
    for i in range(layers):
        block = f"blk.{i}."
        tensors[block + "attn_norm.weight"] = np.ones(WIDTH, np.float32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[block + f"{name}.weight"] = weights(WIDTH, WIDTH)
        tensors[block + "ffn_norm.weight"] = np.ones(WIDTH, np.float32)
        tensors[block + "ffn_gate.weight"] = weights(FORWARD, WIDTH)
        tensors[block + "ffn_up.weight"] = weights(FORWARD, WIDTH)
        tensors[block + "ffn_down.weight"] = weights(WIDTH, FORWARD)
    tensors["output_norm.weight"] = np.ones(WIDTH, np.float32)
    tensors["output.weight"] = weights(len(tokens), WIDTH)

    items = {key: value for key, value in values.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(items))
    head += b"".join(_text(key.encode()) + _value(value) for key, value in items.items())
    data = b""
    for name, tensor in tensors.items():
        head += _text(name.encode()) + struct.pack("<I", tensor.ndim)
        head += struct.pack(f"<{tensor.ndim}Q", *tensor.shape[::-1])
        head += struct.pack("<IQ", 0, len(data))
        data += tensor.tobytes() + b"\0" * (-tensor.nbytes % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(value: Any) -> bytes:
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, (str, bytes)):
        return 8, _text(value.encode() if isinstance(value, str) else value)
    kinds = [_typed(item) for item in value]
    kind = 5 if kinds[0][0] == 4 else kinds[0][0]
    return 9, struct.pack("<IQ", kind, len(kinds)) + b"".join(data for _, data in kinds)
