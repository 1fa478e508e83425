"""Random checkpoints of every family that can become GGUF, a few kilobytes each, without torch.

Invariant: what is written is what transformers would write for such a model: its config, its
tensors by transformers' names and shapes, and a tokenizer.json.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, FORWARD = 64, 4, 4, 2, 96
HEAD = WIDTH // HEADS
SPACE = "\u2581"

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_ONLY_BYTES = {**_BYTES, "use_regex": False}
GPT2_SPLIT = [{**_BYTES, "use_regex": True}]
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(regex: str) -> list[dict[str, Any]]:
    pattern = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}
    return [{**pattern, "invert": False}, _ONLY_BYTES]


QWEN2_SPLIT = _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}")
LLAMA3_SPLIT = _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_REST}")
DIGITS_SPLIT = [{"type": "Digits", "individual_digits": True}, *GPT2_SPLIT]
ODD_SPLIT = _split(r"[aeiou]+|[^aeiou]+")  # no model splits like this

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "the", " the", " quick", " quickly", "ing", "12", "1234", "123", " 12", "\n\n", "!\n", " \n",
    "'ll", "'LL", "  ", "   ", "    ", "été", " été", "好", "天天", "::", " ::", ".com", "()",
    "():", "x1", " X", "Xy", "don't", " don", "\r\n", "\t\t", "...", "?!", " -", "--", "a-b", "eo",
    "quo", "ool", " a", "the the", "1,", ",0", "1,000", "O'", "O'N", "\t\n", "=\n",
)  # fmt: skip


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {b: chr(b) for b in seen} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}


def byte_level_tokenizer(
    stages: Sequence[Mapping[str, Any]] = tuple(QWEN2_SPLIT), **model: Any
) -> dict[str, Any]:
    """A byte-level BPE tokenizer.json whose words tell the ways of splitting apart."""
    letters = byte_letters()
    vocab = {letter: i for i, letter in enumerate(sorted(letters.values()))}
    merges: list[list[str]] = []
    for word in _WORDS:
        parts = [letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pair, parts = parts[:2], ["".join(parts[:2]), *parts[2:]]
            if pair not in merges:
                merges.append(pair)
            vocab.setdefault(parts[0], len(vocab))
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [added(len(vocab) + i, text) for i, text in enumerate(CONTROL)],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(stages)},
        "post_processor": None,
        "decoder": {**_BYTES, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, **model},
    }  # fmt: skip


def added(number: int, text: str, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens`; special unless told otherwise."""
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **usual, "special": True, **flags}


def spm_pieces() -> list[tuple[str, float, int]]:
    """A SentencePiece vocabulary: (text, score, kind) by id."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = [SPACE * 2, "th", SPACE + "th", SPACE + "the", "he", "in", "ing", "qu", "ick", "quick"]
    words += [SPACE + "quick", "12", "...", "do", SPACE + "do", SPACE * 4]
    letters = [SPACE, *"abcdefghijklmnopqrstuvwxyzTHE0123456789.,!?'-"]
    pieces += [(word, -float(i), 1) for i, word in enumerate(words)]
    return pieces + [(letter, -1000.0 - i, 1) for i, letter in enumerate(letters)]


def spm_file(pieces: Sequence[tuple[str, float, int]], *, adds_space: bool = True) -> bytes:
    """tokenizer.model, as the protocol buffer it is."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2]) + _varint(len(data)) + data

    out = b""
    for text, score, kind in pieces:
        piece = (
            field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        )
        out += field(1, piece)
    out += field(2, b"\x18\x02" + b"\x98\x02\x01")  # trained as BPE, with bytes to fall back to
    return out + field(3, b"\x18" + bytes([adds_space]) + b"\x20\x00")  # spaces stay


def spm_tokenizer(
    pieces: Sequence[tuple[str, float, int]], *, adds_space: bool = True
) -> dict[str, Any]:
    """The same as a tokenizer.json, as transformers converts it."""
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, _ in pieces}
    merges = []
    for text, _, kind in pieces:
        if kind == 1:
            cuts = [(text[:i], text[i:]) for i in range(1, len(text))]
            merges += [pair for pair in cuts if pair[0] in vocab and pair[1] in vocab]
    merges.sort(key=lambda pair: -scores["".join(pair)])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = [{"type": "Prepend", "prepend": SPACE}] if adds_space else []
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, text) for i, text in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in merges],
            "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>",
        },
    }  # fmt: skip


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


# ----------------------------------------------------------------------------------- the models

_COMMON = {
    "hidden_size": WIDTH, "intermediate_size": FORWARD, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "query_pre_attn_scalar": 32,
    "sliding_window": 8, "tie_word_embeddings": True,
}  # fmt: skip
_LONG = [1.0 + 0.25 * i for i in range(HEAD // 2)]

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "llama-3": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": _LLAMA3,
    },
    "llama-biased": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True,
        "mlp_bias": True, "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 32,
        "sliding_window": None,
    },
    "smollm3": {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "pad_token_id": 0,
        "no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": True,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
        "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "gemma-2": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **_GEMMA,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma-3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **_GEMMA,
        "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "num_hidden_layers": 7,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi-3": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0,
        "max_position_embeddings": 1024, "original_max_position_embeddings": 256,
        "rope_scaling": {"type": "longrope", "long_factor": _LONG, "short_factor": _LONG[::-1]},
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite",
        "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "logits_scaling": 4.0, "tie_word_embeddings": True,
    },
    "olmo-2": {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2",
        "num_key_value_heads": HEADS,
    },
    "gpt-2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": WIDTH,
        "n_head": HEADS, "n_layer": LAYERS, "n_positions": 256, "n_ctx": 256,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def config(family: str, vocab_size: int, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model of that family."""
    base: dict[str, Any] = {} if family == "gpt-2" else _COMMON
    return {**base, "vocab_size": vocab_size, **CONFIGS[family], **changes}


def in_new_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as transformers 5 writes it: all of the rotary positions in one place."""
    values = dict(values)
    rope = dict(values.pop("rope_scaling", None) or {})
    rope.setdefault("rope_type", rope.get("type", "default"))
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in values:
            rope[key] = values.pop(key)
    if rope["rope_type"] in ("llama3", "yarn", "longrope"):
        key = "original_max_position_embeddings"
        rope.setdefault(key, values.get(key, values["max_position_embeddings"]))
    local = values.pop("rope_local_base_freq", None)
    if local is not None:
        sliding = {"rope_type": "default", "rope_theta": local}
        rope = {"full_attention": rope, "sliding_attention": sliding}
    return {**values, "rope_parameters": rope}


def tensors(values: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors for such a config, by transformers' names."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int, scale: float | None = None) -> np.ndarray:
        scale = 1.2 / np.sqrt(max(shape[-1], WIDTH)) if scale is None else scale
        return rng.normal(0, scale, shape).astype(np.float32)

    if values["model_type"] == "gpt2":
        return _gpt2(values, weights)
    kind, width, forward = values["model_type"], values["hidden_size"], values["intermediate_size"]
    heads, kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
    head = values.get("head_dim") or width // heads
    gemma = kind.startswith("gemma")

    def norm(size: int) -> np.ndarray:
        return weights(size) + (0 if gemma else 1)

    found = {"model.embed_tokens.weight": weights(values["vocab_size"], width, scale=0.5)}
    biased = values.get("attention_bias") or kind == "qwen2"
    for i in range(values["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        if kind == "phi3":
            rows = (heads + 2 * kv_heads) * head
            found[layer + "self_attn.qkv_proj.weight"] = weights(rows, width)
            found[layer + "mlp.gate_up_proj.weight"] = weights(2 * forward, width)
        else:
            for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                found[layer + f"self_attn.{name}_proj.weight"] = weights(rows * head, width)
                if biased:
                    found[layer + f"self_attn.{name}_proj.bias"] = weights(rows * head)
            for name in ("gate", "up"):
                found[layer + f"mlp.{name}_proj.weight"] = weights(forward, width)
        found[layer + "self_attn.o_proj.weight"] = weights(width, heads * head)
        found[layer + "mlp.down_proj.weight"] = weights(width, forward)
        if values.get("attention_bias"):
            found[layer + "self_attn.o_proj.bias"] = weights(width)
        if values.get("mlp_bias"):
            for name, size in (("gate", forward), ("up", forward), ("down", width)):
                found[layer + f"mlp.{name}_proj.bias"] = weights(size)
        norms = ["input_layernorm"] if kind != "olmo2" else []
        norms += ["post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm"] if gemma else []
        norms += ["post_feedforward_layernorm"] if gemma or kind == "olmo2" else []
        for name in norms:
            found[f"{layer}{name}.weight"] = norm(width)
        if kind in ("qwen3", "gemma3_text", "olmo2"):
            for name, count in (("q", heads), ("k", kv_heads)):
                size = count * head if kind == "olmo2" else head
                found[layer + f"self_attn.{name}_norm.weight"] = norm(size)
    found["model.norm.weight"] = norm(width)
    if not values["tie_word_embeddings"]:
        found["lm_head.weight"] = weights(values["vocab_size"], width)
    return found


def _gpt2(values: Mapping[str, Any], weights: Any) -> dict[str, np.ndarray]:
    width = values["n_embd"]
    found = {
        "transformer.wte.weight": weights(values["vocab_size"], width, scale=0.5),
        "transformer.wpe.weight": weights(values["n_positions"], width),
    }
    shapes = {
        "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
        "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
    }  # fmt: skip
    for i in range(values["n_layer"]):
        layer = f"transformer.h.{i}."
        for name, shape in shapes.items():
            found[f"{layer}{name}.weight"] = weights(*shape)
            found[f"{layer}{name}.bias"] = weights(shape[1])
        for name in ("ln_1", "ln_2"):
            found[f"{layer}{name}.weight"] = weights(width) + 1
            found[f"{layer}{name}.bias"] = weights(width)
    found["transformer.ln_f.weight"] = weights(width) + 1
    found["transformer.ln_f.bias"] = weights(width)
    return found


# ------------------------------------------------------------------------------------ the files


def write_safetensors(path: Path, values: Mapping[str, np.ndarray], dtype: str = "F32") -> Path:
    """A safetensors file of float32 arrays, stored as F32, F16 or BF16."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in values.items():
        if dtype == "BF16":
            raw = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            raw = array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def write_checkpoint(
    folder: Path,
    family: str = "qwen2",
    *,
    tokenizer: Mapping[str, Any] | None = None,
    rows: int | None = None,
    dtype: str = "F32",
    shards: int = 1,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A whole checkpoint; rows: of the embedding (as many as tokens). changes: of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer() if tokenizer is None else tokenizer
    size = len(
        tokenizer["model"]["vocab"].keys() | {e["content"] for e in tokenizer["added_tokens"]}
    )
    values = config(family, rows or size, **changes)
    write_json(folder / "config.json", values)
    write_json(folder / "tokenizer.json", tokenizer)
    found = tensors(values, seed)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", found, dtype)
        return folder
    names = list(found)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i::shards]
        write_safetensors(folder / file, {name: found[name] for name in part}, dtype)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")
