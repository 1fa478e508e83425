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


def spm_vocabulary(words: Sequence[str] = (), bytes_from: int = 0) -> tuple[list[bytes], list[int]]:
    """<unk> <s> </s>, tokens for the bytes from `bytes_from` to 255, then ASCII pieces and `words`,
    as SentencePiece orders."""
    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [UNKNOWN, CONTROL, CONTROL]
    tokens += [b"<0x%02X>" % i for i in range(bytes_from, 256)]
    types += [BYTE] * (256 - bytes_from)
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
    parts: int = 1,
    architecture: str = "llama",
) -> Path:
    """A llama model, or one of an architecture with the same tensors; `metadata` adds to or (with
    None) takes away from what it says of itself.

    `parts`: how many files it is split into, of which `path` is the first."""
    if tokens is None or types is None:
        tokens, types = spm_vocabulary()
    values: dict[str, Any] = {
        "general.architecture": architecture,
        "general.name": path.stem,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.feed_forward_length": FORWARD,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.dimension_count": WIDTH // HEADS,
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

    if parts == 1:
        return write_gguf(path, values, tensors)
    for number in range(parts):
        split = {
            "split.no": np.uint16(number),
            "split.count": np.uint16(parts),
            "split.tensors.count": np.int32(len(tensors)),
        }
        own = {name: tensors[name] for name in list(tensors)[number::parts]}
        file = path.with_name(path.name.replace("-00001-of", f"-{number + 1:05}-of"))
        write_gguf(file, split if number else {**values, **split}, own)
    return path


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """A GGUF file of these metadata (those of None left out) and float32 tensors."""
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


def write_recurrent(path: Path, *, context: int = 512, seed: int = 0) -> Path:
    """A Mamba model: it can't forget a part of what it read."""
    weights = np.random.default_rng(seed)
    inner, kernel, state, rank = 2 * WIDTH, 4, 8, 4
    vocabulary = _spm_metadata()
    words = len(vocabulary["tokenizer.ggml.tokens"])

    def random(*shape: int) -> np.ndarray:
        return weights.normal(0, 0.3, shape).astype(np.float32)

    tensors = {
        "token_embd.weight": random(words, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": random(words, WIDTH),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ssm_in.weight": random(2 * inner, WIDTH),
        "blk.0.ssm_conv1d.weight": random(inner, kernel),
        "blk.0.ssm_conv1d.bias": random(inner),
        "blk.0.ssm_x.weight": random(rank + 2 * state, inner),
        "blk.0.ssm_dt.weight": random(inner, rank),
        "blk.0.ssm_dt.bias": random(inner),
        "blk.0.ssm_a": -np.abs(random(inner, state)),
        "blk.0.ssm_d": random(inner),
        "blk.0.ssm_out.weight": random(WIDTH, inner),
    }
    values = {
        "general.architecture": "mamba",
        "mamba.block_count": 1,
        "mamba.context_length": context,
        "mamba.embedding_length": WIDTH,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": kernel,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
        **vocabulary,
    }
    return write_gguf(path, values, tensors)


def write_encoder(path: Path) -> Path:
    """A BERT model: it reads text and continues none."""
    vocabulary = _spm_metadata()
    ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    square = np.eye(WIDTH, dtype=np.float32)
    tensors = {
        "token_embd.weight": np.ones((len(vocabulary["tokenizer.ggml.tokens"]), WIDTH), np.float32),
        "position_embd.weight": np.ones((512, WIDTH), np.float32),
        "token_types.weight": np.ones((2, WIDTH), np.float32),
        "token_embd_norm.weight": ones,
        "token_embd_norm.bias": zeros,
        "blk.0.ffn_up.weight": np.ones((FORWARD, WIDTH), np.float32),
        "blk.0.ffn_up.bias": np.zeros(FORWARD, np.float32),
        "blk.0.ffn_down.weight": np.ones((WIDTH, FORWARD), np.float32),
        "blk.0.ffn_down.bias": zeros,
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensors |= {f"blk.0.{name}.weight": square, f"blk.0.{name}.bias": zeros}
    for name in ("attn_output_norm", "layer_output_norm"):
        tensors |= {f"blk.0.{name}.weight": ones, f"blk.0.{name}.bias": zeros}
    values = {
        "general.architecture": "bert",
        "bert.block_count": 1,
        "bert.context_length": 512,
        "bert.embedding_length": WIDTH,
        "bert.feed_forward_length": FORWARD,
        "bert.attention.head_count": HEADS,
        "bert.attention.layer_norm_epsilon": 1e-5,
        "bert.attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
        **vocabulary,
    }
    return write_gguf(path, values, tensors)


def _spm_metadata() -> dict[str, Any]:
    tokens, types = spm_vocabulary()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(value: Any) -> bytes:
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, np.uint16 | np.int32):
        return (2 if isinstance(value, np.uint16) else 5), value.tobytes()
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, (str, bytes)):
        return 8, _text(value.encode() if isinstance(value, str) else value)
    kinds = [_typed(item) for item in value]
    kind = 5 if kinds[0][0] == 4 else kinds[0][0]
    return 9, struct.pack("<IQ", kind, len(kinds)) + b"".join(data for _, data in kinds)
