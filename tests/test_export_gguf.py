"""Checkpoints to GGUF: the same model by its ids and its logits, and nothing half-written.

Checkpoints are random and tiny; llama.cpp is the real one. Logits are compared with transformers
where the `export` extra is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf as library
import numpy as np
import pytest
import tiny_checkpoint as tiny

from edgespec.cli import main
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters import (
    gguf,
    gguf_gate,
    gguf_quant,
    gguf_reference,
    gguf_tokenizer,
    quantise,
)
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.gguf_pair import export_pair, require_fit, require_same_tokens
from edgespec.exporters.gguf_quant import quant
from edgespec.exporters.gguf_sentencepiece import read_sentencepiece
from edgespec.exporters.gguf_vocabulary import Vocabulary
from edgespec.exporters.manifest import Manifest
from edgespec.gguf import StringArray, read_header
from edgespec.registry import load_registry

F32, F16 = quant("f32"), quant("f16")

needs_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="torch and transformers aren't installed, so there are no logits to compare with",
)


@pytest.fixture(autouse=True)
def _no_reference(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only the tests that are about it wait for torch."""
    if "with_torch" not in request.fixturenames:
        monkeypatch.setattr(gguf_gate, "why_not", lambda _: "this test doesn't ask it")


@pytest.fixture
def with_torch() -> None:
    """The gate asks transformers."""


def exported(
    folder: Path, wanted: gguf_quant.Quant = F32, out: Path | None = None, **options: Any
) -> gguf.Result:
    out = out or folder.parent / f"{folder.name}-{wanted.name}.gguf"
    return gguf.export(Checkpoint.open(folder), out, wanted, **options)


def tokens_of(path: Path) -> list[str]:
    tokens = read_header(path).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    return [token.decode() for token in tokens]


def values_of(path: Path) -> dict[str, np.ndarray]:
    """The tensors of an f32 file by name."""
    return {t.name: np.array(t.data) for t in library.GGUFReader(path).tensors}


# ------------------------------------------------------------------------------------- families


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_every_family_opens_in_llama_cpp(family: str, tmp_path: Path) -> None:
    result = exported(tiny.write_checkpoint(tmp_path / family, family))
    header = read_header(result.path)
    blocks = tiny.config(family, 0).get("num_hidden_layers", tiny.LAYERS)
    assert header.metadata[f"{header.architecture}.block_count"] == blocks
    assert header.metadata["general.file_type"] == 0
    assert result.parity["ids"]["equal"] is True
    assert result.parity["logits"]["f32"]["because"] == "this test doesn't ask it"


@needs_torch
@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path, with_torch: None) -> None:
    result = exported(tiny.write_checkpoint(tmp_path / family, family))
    found = result.parity["logits"]["f32"]
    assert found["compared_with"] == "transformers"
    assert found["positions"] > 20
    assert found["relative"] < 1e-3
    assert found["same_best"] == 1


def test_a_checkpoint_in_parts_and_halves(tmp_path: Path) -> None:
    """bf16 in three shards gives the same f32 file as in one; f16 of it is rounded once."""
    whole = tiny.write_checkpoint(tmp_path / "whole", "llama-3", dtype="BF16")
    parts = tiny.write_checkpoint(tmp_path / "parts", "llama-3", dtype="BF16", shards=3)
    ours, theirs = (values_of(exported(folder).path) for folder in (whole, parts))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    half = values_of(exported(whole, F16).path)
    assert half["token_embd.weight"].dtype == np.float16
    assert np.array_equal(half["token_embd.weight"], ours["token_embd.weight"].astype(np.float16))
    assert half["output_norm.weight"].dtype == np.float32


def test_rows_of_q_and_k_change_places_for_the_llama_family_only(tmp_path: Path) -> None:
    for family, moved in (("llama-2", True), ("qwen2", False)):
        folder = tiny.write_checkpoint(tmp_path / family, family)
        found = values_of(exported(folder).path)
        wrote = tiny.tensors(json.loads((folder / "config.json").read_text()))
        own = wrote["model.layers.1.self_attn.k_proj.weight"]
        paired = own.reshape(tiny.KV_HEADS, 2, tiny.HEAD // 2, tiny.WIDTH).swapaxes(1, 2)
        wanted = paired.reshape(own.shape) if moved else own
        assert np.array_equal(found["blk.1.attn_k.weight"], wanted)
        assert np.array_equal(
            found["blk.1.attn_v.weight"], wrote["model.layers.1.self_attn.v_proj.weight"]
        )


def test_a_tied_head_is_left_out_though_it_is_stored(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", "llama-2", tie_word_embeddings=True)
    values = json.loads((folder / "config.json").read_text())
    found = tiny.tensors(values) | {"lm_head.weight": np.ones((values["vocab_size"], tiny.WIDTH))}
    tiny.write_safetensors(folder / "model.safetensors", found)
    assert "output.weight" not in values_of(exported(folder).path)


def test_the_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", "gemma-3")
    values = json.loads((folder / "config.json").read_text())
    text = {f"language_model.{name}": array for name, array in tiny.tensors(values).items()}
    seeing = {"vision_tower.vision_model.post_layernorm.weight": np.ones(4, np.float32)}
    tiny.write_safetensors(folder / "model.safetensors", text | seeing)
    values.pop("architectures")
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    tiny.write_json(folder / "config.json", {**outer, "text_config": values})
    result = exported(folder)
    assert any("pictures" in note for note in result.notes)
    header = read_header(result.path)
    assert header.metadata["gemma3.attention.sliding_window"] == 8
    assert header.metadata["gemma3.rope.freq_base_swa"] == 10000


def newer(folder: Path) -> Path:
    """The checkpoint as transformers 5 would have saved it."""
    file = folder / "config.json"
    tiny.write_json(file, tiny.in_new_words(json.loads(file.read_text())))
    return folder


def test_rotary_scaling_comes_in_both_spellings(tmp_path: Path) -> None:
    old = tiny.write_checkpoint(tmp_path / "old", "llama-3")
    new = newer(tiny.write_checkpoint(tmp_path / "new", "llama-3"))
    ours, theirs = values_of(exported(old).path), values_of(exported(new).path)
    assert np.array_equal(ours["rope_freqs.weight"], theirs["rope_freqs.weight"])
    factors = ours["rope_freqs.weight"]
    assert factors[0] == 1 and factors[-1] == 8 and np.all(np.diff(factors) >= 0)


@needs_torch
@pytest.mark.parametrize("family", ["llama-3", "qwen2", "gemma-3", "phi-3"])
def test_the_reference_reads_what_a_newer_transformers_wrote(
    family: str, tmp_path: Path, with_torch: None
) -> None:
    """With thetas that no class has by itself, which is what an older one would take."""
    thetas = {"rope_theta": 500_000.0}
    thetas |= {"rope_local_base_freq": 20_000.0} if family == "gemma-3" else {}
    folder = newer(tiny.write_checkpoint(tmp_path / family, family, **thetas))
    found = exported(folder).parity["logits"]["f32"]
    assert found["compared_with"] == "transformers" and found["relative"] < 1e-3


@needs_torch
def test_what_the_reference_cant_be_told_is_a_note(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    values = json.loads((folder / "config.json").read_text())
    assert gguf_reference.why_not(Checkpoint.open(folder)) is None
    values["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0}
    tiny.write_json(folder / "config.json", values)
    reason = gguf_reference.why_not(Checkpoint.open(folder))
    assert reason is not None and "rope_parameters hold spiral" in reason


def _windowed(kind: str, theta: float) -> dict[str, Any]:
    full = {"rope_type": "default", "rope_theta": 1e4}
    sliding = {"rope_type": kind, "rope_theta": theta, "factor": 2.0}
    return {"full_attention": full, "sliding_attention": sliding}


def _stretched(**sliding: Any) -> dict[str, Any]:
    full = {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}
    return {"full_attention": full, "sliding_attention": full | sliding}


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("qwen2", {"architectures": ["BloomForCausalLM"]}, "the known ones are Llama, Mistral"),
        ("qwen2", {"hidden_act": "gelu"}, "activation gelu"),
        ("qwen2", {"quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        ("qwen2", {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
        ("qwen2", {"num_hidden_layers": 5}, "of layer 4"),
        ("qwen2", {"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ("qwen2", {"num_attention_heads": "many"}, "makes no sense"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "without positions"),
        ("gemma-2", {"query_pre_attn_scalar": 999}, "scales its queries by 999"),
        ("llama-2", {"partial_rotary_factor": 0.5}, "50% of each head"),
        ("granite", {"embedding_multiplier": 0.0}, "embedding_scale is 0"),
        ("gpt-2", {"scale_attn_by_inverse_layer_idx": True}, "scales its attention"),
        ("gemma-3", {"rope_parameters": _windowed("linear", 1e4)}, r"with a window \(linear"),
        ("qwen2", {"rope_parameters": _windowed("default", 2e4)}, "with a window otherwise than"),
        ("qwen2", {"rope_parameters": _stretched(rope_type="default")}, "window otherwise than"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    family: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", family)
    values = json.loads((folder / "config.json").read_text()) | changes
    tiny.write_json(folder / "config.json", values)
    with pytest.raises(ExportError, match=said):
        exported(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_layers_with_a_window_that_turn_as_the_rest_do(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", "qwen2")
    values = json.loads((folder / "config.json").read_text())
    tiny.write_json(folder / "config.json", values | {"rope_parameters": _stretched()})
    assert read_header(exported(folder).path).metadata["qwen2.rope.scaling.factor"] == 8


def test_a_tensor_without_a_place_or_a_missing_head_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    found = tiny.tensors(json.loads((folder / "config.json").read_text()))
    more = found | {"model.layers.0.adapter.weight": np.ones((2, 2), np.float32)}
    tiny.write_safetensors(folder / "model.safetensors", more)
    with pytest.raises(ExportError, match=r"model\.layers\.0\.adapter\.weight"):
        exported(folder)
    del found["lm_head.weight"]
    tiny.write_safetensors(folder / "model.safetensors", found)
    with pytest.raises(ExportError, match=r"no lm_head\.weight"):
        exported(folder)


def test_values_that_f16_cannot_hold_are_refused(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    found = tiny.tensors(json.loads((folder / "config.json").read_text()))
    found["model.layers.0.mlp.up_proj.weight"][3, 3] = 70000
    tiny.write_safetensors(folder / "model.safetensors", found)
    with pytest.raises(ExportError, match=r"blk\.0\.ffn_up\.weight holds values that f16 can't"):
        exported(folder, F16)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    exported(folder, quant("bf16"))


# ----------------------------------------------------------------------------------- vocabularies


@pytest.mark.parametrize(
    ("family", "stages", "name"),
    [
        ("qwen2", tiny.QWEN2_SPLIT, "qwen2"),
        ("llama-2", tiny.LLAMA3_SPLIT, "smaug-bpe"),
        ("llama-2", tiny.DIGITS_SPLIT, "smollm"),
        ("granite", tiny.DIGITS_SPLIT, "refact"),
        ("gpt-2", tiny.GPT2_SPLIT, "gpt-2"),
        ("qwen2", tiny.LLAMA3_SPLIT, "dbrx"),
    ],
)
def test_the_pre_tokenizer_is_found_by_what_it_does(
    family: str, stages: list[dict[str, Any]], name: str, tmp_path: Path
) -> None:
    tokenizer = tiny.byte_level_tokenizer(stages)
    result = exported(tiny.write_checkpoint(tmp_path / "m", family, tokenizer=tokenizer))
    assert read_header(result.path).metadata["tokenizer.ggml.pre"] == name


def test_merges_that_are_ignored_for_whole_words_are_noticed(tmp_path: Path) -> None:
    """Llama 3 takes a word that is a token as it is, though no merges lead to it."""
    tokenizer = tiny.byte_level_tokenizer(tiny.LLAMA3_SPLIT, ignore_merges=True)
    vocab = tokenizer["model"]["vocab"]
    vocab["unmergeable"] = len(vocab)
    for entry in tokenizer["added_tokens"]:
        entry["id"] += 1
    result = exported(tiny.write_checkpoint(tmp_path / "m", "llama-2", tokenizer=tokenizer))
    assert read_header(result.path).metadata["tokenizer.ggml.pre"] == "llama-bpe"


def test_a_split_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level_tokenizer(tiny.ODD_SPLIT)
    folder = tiny.write_checkpoint(tmp_path / "m", tokenizer=tokenizer)
    with pytest.raises(ExportError, match=r"llama\.cpp knows no tokenizer that splits text as"):
        exported(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_vocab_and_merges_without_tokenizer_json(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", "gpt-2")
    tokenizer = tiny.byte_level_tokenizer(tiny.GPT2_SPLIT)
    (folder / "tokenizer.json").unlink()
    tiny.write_json(folder / "vocab.json", tokenizer["model"]["vocab"])
    lines = ["#version: 0.2", *(" ".join(pair) for pair in tokenizer["model"]["merges"]), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    marks = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    tiny.write_json(folder / "added_tokens.json", marks)
    assert read_header(exported(folder).path).metadata["tokenizer.ggml.pre"] == "gpt-2"
    tiny.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BartTokenizer"})
    with pytest.raises(ExportError, match="BartTokenizer"):
        exported(folder, overwrite=True)


def test_a_tokenizer_that_cuts_and_fills_up_texts(tmp_path: Path) -> None:
    """As training scripts leave it in tokenizer.json; llama.cpp has nothing of the kind."""
    tokenizer = tiny.byte_level_tokenizer() | {
        "truncation": {
            "direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
        },
    }  # fmt: skip
    result = exported(tiny.write_checkpoint(tmp_path / "m", tokenizer=tokenizer))
    assert result.parity["ids"]["equal"] is True


@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("files", ["model and json", "json only"])
def test_sentencepiece(adds_space: bool, files: str, tmp_path: Path) -> None:
    pieces = tiny.spm_pieces()
    tokenizer = tiny.spm_tokenizer(pieces, adds_space=adds_space)
    folder = tiny.write_checkpoint(tmp_path / "m", "llama-2", tokenizer=tokenizer)
    if files != "json only":
        (folder / "tokenizer.model").write_bytes(tiny.spm_file(pieces, adds_space=adds_space))
    result = exported(folder)
    metadata = read_header(result.path).metadata
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.add_space_prefix"] is adds_space
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert list(types[1:4]) == [3, 3, 6]
    assert result.parity["ids"]["texts"] > 40


def test_a_sentencepiece_model_alone(tmp_path: Path) -> None:
    pieces = tiny.spm_pieces()
    folder = tiny.write_checkpoint(tmp_path / "m", "llama-2", rows=len(pieces))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(tiny.spm_file(pieces))
    result = exported(folder)
    assert tokens_of(result.path) == [text for text, _, _ in pieces]
    compared = importlib.util.find_spec("sentencepiece") is not None
    assert any("sentencepiece package" in note for note in result.notes) is not compared


@pytest.mark.parametrize("data", [b"", b"\x0a\xff", b"\x0a\x05ab", bytes(range(64))])
def test_a_damaged_sentencepiece_model(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ExportError, match="no SentencePiece model"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_more_rows_than_tokens_and_fewer(tmp_path: Path) -> None:
    size = len(tokens_of(exported(tiny.write_checkpoint(tmp_path / "even")).path))
    more = exported(tiny.write_checkpoint(tmp_path / "more", rows=size + 5)).path
    assert tokens_of(more)[-5:] == [f"[PAD{i}]" for i in range(size, size + 5)]
    types = read_header(more).metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert list(types[-6:]) == [3, 5, 5, 5, 5, 5]
    fewer = exported(tiny.write_checkpoint(tmp_path / "fewer", rows=size - 1))
    assert len(tokens_of(fewer.path)) == size - 1
    assert any("1 more tokens" in note for note in fewer.notes)


def test_added_tokens_template_and_every_stop_id(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level_tokenizer()
    first = tokenizer["added_tokens"][-1]["id"] + 1
    tokenizer["added_tokens"] += [
        tiny.added(first, "<tool>", special=False),
        tiny.added(first + 1, "<|unmarked|>", special=False),
        tiny.added(first + 2, "<stop-here>"),
    ]
    folder = tiny.write_checkpoint(tmp_path / "m", tokenizer=tokenizer)
    tiny.write_json(
        folder / "tokenizer_config.json",
        {"eos_token": "<|im_end|>", "bos_token": None, "chat_template": "{{ messages }}"},
    )
    stops = [first - 1, first - 3, first + 2]
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": stops})
    result = exported(folder)
    metadata = read_header(result.path).metadata
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["tokenizer.ggml.eos_token_id"] == first - 1
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert list(types[-3:]) == [4, 3, 3]
    assert all(result.parity["stop_ids"][str(stop)] for stop in stops)


@pytest.mark.parametrize("settings", [True, False])
def test_a_template_in_its_own_file_goes_first(settings: bool, tmp_path: Path) -> None:
    """As in transformers, and in our exports to ONNX."""
    folder = tiny.write_checkpoint(tmp_path / "m")
    if settings:
        tiny.write_json(folder / "tokenizer_config.json", {"chat_template": "the old one"})
    (folder / "chat_template.jinja").write_text("the new one", encoding="utf-8")
    found = read_header(exported(folder).path).metadata
    assert found["tokenizer.chat_template"] == "the new one"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("with tools")
    found = read_header(exported(folder, overwrite=True).path).metadata
    assert found["tokenizer.chat_template"] == "the new one"
    assert found["tokenizer.chat_template.tools"] == "with tools"


@pytest.mark.parametrize("damage", ["vocabulary twice", "not BPE", "no object", "no merges"])
def test_a_damaged_tokenizer_is_a_sentence(damage: str, tmp_path: Path) -> None:
    tokenizer = tiny.byte_level_tokenizer()
    if damage == "vocabulary twice":
        tokenizer["added_tokens"][1]["content"] = tokenizer["added_tokens"][0]["content"]
    elif damage == "not BPE":
        tokenizer["model"]["type"] = "WordPiece"
    elif damage == "no merges":
        tokenizer["model"]["merges"] = 5
    folder = tiny.write_checkpoint(tmp_path / "m", rows=400)
    tiny.write_json(folder / "tokenizer.json", [] if damage == "no object" else tokenizer)
    with pytest.raises(ExportError):
        exported(folder)


# ------------------------------------------------------------------------- types and quantisation


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256, as llama.cpp's blocks want them."""
    return tiny.write_checkpoint(
        tmp_path_factory.mktemp("wide") / "wide", hidden_size=256, intermediate_size=256,
        num_hidden_layers=2, dtype="BF16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [("q8_0", 8), ("q6_k", 14), ("q5_k_m", 13), ("q4_k_m", 12), ("q4_0", 2), ("iq4_nl", 20)],
)
def test_quantised_by_llama_cpp(name: str, kind: int, wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    result = gguf.export(Checkpoint.open(wide), out, quant(name))
    types = {t.name: t.type for t in read_header(out).tensors}
    assert types["blk.1.attn_q.weight"] == kind
    logits = result.parity["logits"]
    assert logits["bf16"]["compared_with"] is None  # what was quantised: bf16, as it is stored
    assert logits[name]["compared_with"] == "the bf16 file"
    assert 0 < logits[name]["relative"] < logits[name]["allowed"]


@pytest.mark.parametrize("name", sorted(quantise._NEED_A_MATRIX | quantise._NOT_ALONE))
def test_a_type_that_needs_more_than_weights_is_refused_before_any_work(
    name: str, wide: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"needs an importance matrix|has no type nvfp4"):
        quant(name)
    # And rightly so: llama.cpp says it itself, when all else is done.
    asked = gguf_quant.Quant(name, None, 2.75)
    with pytest.raises(ExportError, match=f"can't quantise this model to {name}"):
        gguf.export(Checkpoint.open(wide), tmp_path / "m.gguf", asked)
    assert list(tmp_path.iterdir()) == []


def test_a_buffer_of_another_type_decides_nothing(wide: Path, tmp_path: Path) -> None:
    """Older checkpoints hold frequencies in 32 bits beside weights in 16."""
    folder = tmp_path / "m"
    shutil.copytree(wide, folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    tiny.write_safetensors(
        folder / "model-00002-of-00002.safetensors",
        {
            "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
            "vision_tower.patch.weight": np.ones(8, np.float32),
        },
    )
    result = exported(folder, quant("q8_0"))
    assert list(result.parity["logits"]) == ["bf16", "q8_0"]


def test_an_unknown_type_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="q4_k_m"):
        quant("q4_k_x")


# ------------------------------------------------------------------------------ the gate's refusal


def test_a_file_with_other_logits_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is that of the weights before they changed."""
    folder = tiny.write_checkpoint(tmp_path / "m", "llama-2")
    plain = tmp_path / "plain.gguf"

    def rows(checkpoint: Checkpoint, tokens: list[int]) -> np.ndarray:
        from edgespec.backends import llama_probe

        return llama_probe.logits(plain, tokens)

    gguf.export(Checkpoint.open(folder), plain, F32)
    monkeypatch.setattr(gguf_gate, "why_not", lambda _: None)
    monkeypatch.setattr(gguf_gate, "reference_logits", rows)
    gguf.export(Checkpoint.open(folder), tmp_path / "right.gguf", F32)
    tiny.write_checkpoint(folder, "llama-2", seed=1)
    with pytest.raises(ExportError, match="isn't faithful"):
        gguf.export(Checkpoint.open(folder), tmp_path / "wrong.gguf", F32)
    assert not [path for path in tmp_path.iterdir() if "wrong" in path.name]


def test_the_gate_computes_on_the_native_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team of threads for another one would halve the speed of what the program does next."""
    from edgespec.backends import llama_probe

    decode, threads = llama_probe.lib.llama_decode, set()

    def watched(*args: Any) -> int:
        threads.add(threading.current_thread().name)
        return int(decode(*args))

    path = tmp_path / "m.gguf"
    gguf.export(Checkpoint.open(tiny.write_checkpoint(tmp_path / "m", "llama-2")), path, F32)
    monkeypatch.setattr(llama_probe.lib, "llama_decode", watched)
    assert np.isfinite(llama_probe.logits(path, [5, 6, 7])).all()
    assert threads == {"edgespec-native"}


def test_a_file_with_other_ids_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    real = gguf_tokenizer.Words.add_to

    def swapped(self: gguf_tokenizer.Words, writer: library.GGUFWriter) -> None:
        if str(writer.path).endswith("f32.gguf"):  # not the one that is only tried with
            tokens = list(self.vocabulary.tokens)
            tokens[70], tokens[71] = tokens[71], tokens[70]
            vocabulary = dataclasses.replace(self.vocabulary, tokens=tokens)
            self = dataclasses.replace(self, vocabulary=vocabulary)
        real(self, writer)

    monkeypatch.setattr(gguf_tokenizer.Words, "add_to", swapped)
    with pytest.raises(ExportError, match="isn't the same model to its user"):
        exported(folder)
    assert not (tmp_path / "m-f32.gguf").exists()


# -------------------------------------------------------------------- stopping, going on, memory


def test_stopped_while_writing_leaves_nothing(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")

    def stop(stage: str, done: int = 0, total: int | None = 0, /) -> None:
        if stage == "writing tensors" and done > 50_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(folder, report=stop)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    exported(folder)


def test_stopped_while_quantising_goes_on_from_there(wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    stages: list[str] = []

    def stop(stage: str, done: int = 0, total: int | None = 0, /) -> None:
        stages.append(stage)
        if stage.startswith("checking the bf16"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gguf.export(Checkpoint.open(wide), out, quant("q8_0"), report=stop)
    assert "writing tensors" in stages and not out.exists()
    stages.clear()
    gguf.export(
        Checkpoint.open(wide), out, quant("q8_0"), report=lambda stage, *_: stages.append(stage)
    )
    assert "writing tensors" not in stages
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "m.gguf.manifest.json"]


def test_a_disk_that_is_full_while_quantising_keeps_what_was_converted(
    wide: Path, tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    out = tmp_path / "m.gguf"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(stage: str, done: int = 0, total: int | None = 0, /) -> None:
        if stage.startswith("checking the bf16"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    try:
        with pytest.raises(ExportError, match=r"^The disk took no more of the q8_0 file; make ro"):
            gguf.export(Checkpoint.open(wide), out, quant("q8_0"), report=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stages: list[str] = []
    gguf.export(
        Checkpoint.open(wide), out, quant("q8_0"), report=lambda stage, *_: stages.append(stage)
    )
    assert "writing tensors" not in stages
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "m.gguf.manifest.json"]


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every other process ends as the system ends one to free its memory."""
    if sys.platform == "win32":
        pytest.skip("there are no signals")
    script = tmp_path / "killed"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return monkeypatch


def test_a_quantiser_that_the_system_ended_may_go_on(
    wide: Path, tmp_path: Path, killed: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.gguf"
    with pytest.raises(ExportError, match=r"The system ended llama\.cpp .*want of memory"):
        gguf.export(Checkpoint.open(wide), out, quant("q8_0"))
    killed.undo()
    killed.setattr(gguf_gate, "why_not", lambda _: "this test doesn't ask it")
    stages: list[str] = []
    gguf.export(
        Checkpoint.open(wide), out, quant("q8_0"), report=lambda stage, *_: stages.append(stage)
    )
    assert "writing tensors" not in stages


def test_memory_stays_under_twice_the_largest_shard(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(
        tmp_path / "m", hidden_size=512, intermediate_size=1024, num_hidden_layers=8, shards=4,
    )  # fmt: skip
    largest = max(path.stat().st_size for path in folder.glob("*.safetensors"))
    exported(tiny.write_checkpoint(tmp_path / "warm"))  # imports, and what they keep
    checkpoint = Checkpoint.open(folder)
    tracemalloc.start()
    try:
        gguf.export(checkpoint, tmp_path / "m.gguf", F16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest > 7_000_000
    assert peak < 2 * largest


def test_the_manifest_tells_what_was_made_of_what(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    result = exported(folder, F16)
    found = Manifest.read(result.manifest)
    assert found.source == str(folder) and found.format == "gguf"
    assert set(found.source_files) == {"config.json", "tokenizer.json", "model.safetensors"}
    digest = hashlib.sha256(result.path.read_bytes()).hexdigest()
    assert found.output_files[result.path.name]["sha256"] == digest
    assert found.options["quant"] == "f16"
    assert {"edgespec", "gguf", "llama-cpp-python"} <= found.tools.keys()


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """What happens to a file beyond so many bytes is what a full disk does to it."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_told_as_that(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    with (
        largest_file(200_000),
        pytest.raises(
            ExportError, match=r"^Can't write .*: (the disk took no more|File too large)"
        ),
    ):
        exported(folder)


def test_the_notes_of_a_checkpoint_are_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Checkpoint.open(tiny.write_checkpoint(tmp_path / "m"))
    found = dataclasses.replace(found, notes=("it is of yesterday",))
    monkeypatch.setattr(Outline, "open", lambda *_: found)
    out = tmp_path / "m.gguf"
    assert main(["export", "gguf", str(tmp_path / "m"), str(out), "--quant", "f32"]) == 0
    assert capsys.readouterr().err.count("note: m: it is of yesterday\n") == 1
    assert Manifest.read(tmp_path / "m.gguf.manifest.json").notes[0] == "it is of yesterday"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")
@pytest.mark.parametrize("which", ["checkpoint", "out", "converter", "name"])
def test_paths_that_no_manifest_can_name_are_refused_before_the_work(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "home"))
    odd = os.fsdecode(b"caf\xe9")  # Latin-1
    folder = tiny.write_checkpoint(tmp_path / (odd if which == "checkpoint" else "m"))
    out = tmp_path / (odd if which == "out" else "m.gguf")
    asked = {"converter": ["--converter", str(tmp_path / odd)], "name": ["--register", odd]}
    command = ["export", "gguf", str(folder), str(out), *asked.get(which, [])]
    assert main([*command, "--quant", "f32"]) == 1
    said = capsys.readouterr().err
    assert r"caf\udce9" in said and "aren't UTF-8" in said and "writing tensors" not in said
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1


# --------------------------------------------------------------------------- another's converter


def test_another_converter(tmp_path: Path) -> None:
    """For a family we don't know; the file passes the same gate."""
    folder = tiny.write_checkpoint(tmp_path / "m")
    known = exported(folder).path
    values = json.loads((folder / "config.json").read_text())
    tiny.write_json(folder / "config.json", {**values, "architectures": ["NewForCausalLM"]})
    script = tmp_path / "convert.py"
    script.write_text(
        "import shutil, sys\n"
        "assert sys.argv[2] == '--outfile' and sys.argv[4:] == ['--outtype', 'f32']\n"
        f"shutil.copy({str(known)!r}, sys.argv[3])\n"
    )
    out = tmp_path / "by-script.gguf"
    result = gguf.export(Checkpoint.open(folder), out, F32, converter=script)
    assert out.read_bytes() == known.read_bytes()
    assert any("converted by" in note for note in result.notes)
    script.write_text("import sys; sys.exit('it knows no such model')")
    with pytest.raises(ExportError, match="it knows no such model"):
        gguf.export(Checkpoint.open(folder), tmp_path / "no.gguf", F32, converter=script)
    assert not (tmp_path / "no.gguf").exists()


@needs_torch
@pytest.mark.parametrize("kind", ["code of its own", "unknown"])
def test_a_family_that_transformers_lacks_is_a_note(
    kind: str, tmp_path: Path, with_torch: None
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    script = tmp_path / "convert.py"
    known = tmp_path / "known.gguf"
    script.write_text(f"import shutil, sys\nshutil.copy({str(known)!r}, sys.argv[3])\n")
    exported(folder, out=known)
    values = json.loads((folder / "config.json").read_text())
    values |= {"architectures": ["NewForCausalLM"], "model_type": "newest"}
    if kind != "unknown":
        values["auto_map"] = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    tiny.write_json(folder / "config.json", values)
    result = gguf.export(Checkpoint.open(folder), tmp_path / "m.gguf", F32, converter=script)
    found = result.parity["logits"]["f32"]
    assert found["compared_with"] is None
    assert found["because"].startswith("transformers can't run it: The ")
    assert ("code" if kind != "unknown" else "newest") in found["because"]
    assert "trust_remote_code" not in found["because"]
    assert any(found["because"] in note for note in result.notes)


@needs_torch
def test_a_reference_that_the_system_ended_is_a_note(
    wide: Path, tmp_path: Path, with_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def killed(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, -9, b"", b"Loading checkpoint shards: 50%|\n")

    monkeypatch.setattr(gguf_reference.subprocess, "run", killed)
    result = gguf.export(Checkpoint.open(wide), tmp_path / "m.gguf", quant("q8_0"))
    logits = result.parity["logits"]
    assert "the system stopped transformers" in logits["bf16"]["because"]
    assert logits["q8_0"]["compared_with"] == "the bf16 file"
    assert len(asked) == 1 and len([n for n in result.notes if "the system stopped" in n]) == 1


@needs_torch
@pytest.mark.parametrize(("changed", "said"), [(None, "no"), (np.ones((3, 3)), "no fitting")])
def test_a_reference_that_makes_weights_up_is_none(changed: Any, said: str, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    found = tiny.tensors(json.loads((folder / "config.json").read_text()))
    name = "model.layers.1.mlp.up_proj.weight"
    found |= {name: changed}
    if changed is None:
        del found[name]
    tiny.write_safetensors(folder / "model.safetensors", found)
    with pytest.raises(ExportError, match=rf"it finds {said} model\.layers\.1\.mlp") as caught:
        gguf_reference.reference_logits(Checkpoint.open(folder), [1, 2])
    assert not isinstance(caught.value, gguf_reference.NoReferenceError)


@needs_torch
def test_the_reference_runs_no_code_of_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    for name in ("numpy", "torch", "transformers", "yaml"):
        (folder / f"{name}.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(folder)
    assert len(gguf_reference.reference_logits(Checkpoint.open("."), [1, 2])) == 2
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram"])
def test_a_tokenizer_that_only_the_converter_understands(kind: str, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    known = exported(folder).path
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = kind
    tiny.write_json(folder / "tokenizer.json", tokenizer)
    script = tmp_path / "convert.py"
    script.write_text(f"import shutil, sys\nshutil.copy({str(known)!r}, sys.argv[3])\n")
    out = tmp_path / "by-script.gguf"
    result = gguf.export(Checkpoint.open(folder), out, F32, converter=script)
    assert result.parity["ids"] == {"compared_with": None}
    assert any("ids were not compared" in note and kind in note for note in result.notes)


# ------------------------------------------------------------------------------- the command line


def run(*args: object, home: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "EDGESPEC_CONFIG": str(home), "XDG_CONFIG_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "edgespec.cli", "export", *map(str, args)],
        capture_output=True, text=True, env=env, timeout=600,
    )  # fmt: skip


def test_the_command_says_where_the_file_is(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    out = tmp_path / "m.gguf"
    done = run("gguf", folder, out, "--quant", "f32", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    assert "writing tensors..." in done.stderr and "Traceback" not in done.stderr
    assert "m as f32: about " in done.stderr and " of disk while it is made" in done.stderr
    again = run("gguf", folder, out, home=tmp_path / "home")
    assert again.returncode == 1
    assert again.stderr.strip() == f"edgespec: {out} exists already; --force replaces it."


def test_a_folder_named_as_the_file_gets_the_file(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.txt").write_text("mine")
    done = run("gguf", folder, models, "--quant", "f32", "--force", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{models / 'm-f32.gguf'}\n"
    assert (models / "mine.txt").read_text() == "mine"
    with pytest.raises(ExportError, match="no part of an export"):
        exported(folder, overwrite=True, out=models)
    (models / "mine.txt").unlink()
    with pytest.raises(ExportError, match="is a folder; name the file"):
        exported(folder, overwrite=True, out=models)
    assert (models / "m-f32.gguf").is_file()


def test_what_is_exported_is_never_replaced(tmp_path: Path) -> None:
    target = tiny.write_checkpoint(tmp_path / "deep" / "big")
    draft = tiny.write_checkpoint(tmp_path / "small", seed=1)
    weights = target / "model.safetensors"
    before = weights.read_bytes()
    with pytest.raises(ExportError, match="is what is to be exported"):
        exported(target, overwrite=True, out=weights)
    for out in (target, target.parent, draft):
        with pytest.raises(ExportError, match="is what is to be exported, or holds it"):
            export_pair(
                Checkpoint.open(target), Checkpoint.open(draft), out, quants=(F32, F32),
                overwrite=True,
            )  # fmt: skip
    assert weights.read_bytes() == before and (draft / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["gguf", "org/no-such", "there"], "exists already; --force"),
        (["gguf", "org/no-such", "--quant", "q9"], "llama.cpp has no type q9"),
        (["gguf", "org/no-such", "--quant", "iq1_s"], "iq1_s needs an importance matrix"),
        (["gguf", "org/no-such", "--converter", "no.py"], "There is no converter at no.py"),
        (["pair", "org/no-such", "org/none", "there"], "exists already; --force"),
        (["pair", "org/no-such", "org/none", "new", "--quant", "q9"], "has no type q9"),
        (["pair", "org/no-such", "org/none", "new", "--draft-quant", "q9"], "has no type q9"),
        (["pair", "org/no-such", "org/none", "new", "--format", "onnx", "--quant", "q9"], "q9"),
        (["pair", "org/no-such", "org/none", "new", "--portable"], "add --format onnx"),
    ],
)
def test_what_can_be_refused_is_refused_before_the_hub_is_asked(
    asked: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    done = run(*asked, home=tmp_path / "home")
    assert done.returncode == 1 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_padding_that_stands_for_another_token_is_another_token() -> None:
    """As the runtime has it: only what follows the last token of either is padding."""

    def words(tokens: str, types: list[int]) -> Vocabulary:
        return Vocabulary("gpt2", list(tokens), types, None, [], None, None, [], [])

    models: Any = tuple(SimpleNamespace(name=name) for name in ("big", "small"))
    whole = words("abcd", [1, 1, 1, 1])
    for fits in (words("abcx", [1, 1, 1, 5]), words("ab", [1, 1]), words("abcdefx", [1] * 6 + [5])):
        require_same_tokens(models, [whole, fits])
        require_same_tokens(models, [fits, whole])
    gap = words("axcd", [1, 5, 1, 1])
    for pair in ([whole, gap], [gap, whole]):
        with pytest.raises(ExportError, match="small can't draft for big: token 1 is"):
            require_same_tokens(models, pair)


def test_a_pair_is_exported_checked_and_registered(tmp_path: Path) -> None:
    target = tiny.write_checkpoint(tmp_path / "big", dtype="BF16", num_hidden_layers=6)
    draft = tiny.write_checkpoint(tmp_path / "small", dtype="BF16", seed=1)
    out, home = tmp_path / "pair", tmp_path / "home"
    done = run(
        "pair", target, draft, out, "--quant", "f16", "--draft-quant", "q8_0", home=home
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "draft-small-q8_0.gguf", "draft-small-q8_0.gguf.manifest.json",
        "target-big-f16.gguf", "target-big-f16.gguf.manifest.json",
    ]  # fmt: skip
    assert "registered as pair" in done.stderr
    (file,) = home.rglob("models.toml")
    pair = load_registry(file).pair("pair")
    assert pair.target.size_bytes == (out / "target-big-f16.gguf").stat().st_size
    assert pair.drafters[0] == "lookup"
    assert [model.name for model in pair.models] == ["pair-target", "pair-draft"]
    again = run("pair", target, draft, tmp_path / "other", "--name", "pair", home=home)
    assert again.returncode == 1 and 'has an entry "pair-target" already' in again.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("stopped", ["target: checking the bf16 file", "target: writing tensors"])
def test_a_stopped_pair_goes_on_with_what_its_target_had_finished(
    stopped: str, wide: Path, tmp_path: Path
) -> None:
    stages: list[str] = []

    def stop(stage: str, done: int = 0, total: int | None = 0, /) -> None:
        stages.append(stage)
        if stage == stopped:
            raise KeyboardInterrupt

    def pair(report: Any) -> None:
        quants = (quant("q8_0"), quant("bf16"))
        target, draft = Checkpoint.open(wide), Checkpoint.open(wide)
        export_pair(target, draft, tmp_path / "pair", quants=quants, report=report)

    with pytest.raises(KeyboardInterrupt):
        pair(stop)
    written = "checking" in stopped
    assert [path.name for path in tmp_path.iterdir()] == [".pair.partial"] * written
    stages.clear()
    pair(lambda stage, *_: stages.append(stage))
    assert ("target: writing tensors" in stages) is not written
    assert "draft: writing tensors" in stages
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]
    assert len(list((tmp_path / "pair").iterdir())) == 4


def test_a_pair_with_other_tokens_is_refused_before_any_work(tmp_path: Path) -> None:
    target = tiny.write_checkpoint(tmp_path / "big")
    other = tiny.byte_level_tokenizer()
    other["added_tokens"][1]["content"] = "<|another|>"
    draft = tiny.write_checkpoint(tmp_path / "small", tokenizer=other)
    done = run("pair", target, draft, tmp_path / "pair", home=tmp_path / "home")
    assert done.returncode == 1
    assert "small can't draft for big: token" in done.stderr and "<|another|>" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "small"]


@pytest.mark.parametrize("removed", [0, 1], ids=["a word again", "behind a gap"])
def test_tokens_behind_the_embedding_rule_no_pair_out(removed: int, tmp_path: Path) -> None:
    """No file will hold them, so neither their texts nor gaps before them are looked at."""
    target = Outline.open(tiny.write_checkpoint(tmp_path / "big"))
    rows = target.config["vocab_size"]
    tokenizer = tiny.byte_level_tokenizer()
    words = tokenizer["added_tokens"]
    del words[len(words) - removed :]
    words.append(tiny.added(rows, "<|behind|>" if removed else "the"))
    folder = tiny.write_checkpoint(tmp_path / "small", tokenizer=tokenizer, rows=rows)
    require_fit((target, Outline.open(folder)))


def test_a_vocab_size_beyond_all_memory_is_only_a_limit(tmp_path: Path) -> None:
    """What config.json says is known before the weights are, which say it right."""
    folder = tiny.write_checkpoint(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tiny.write_json(folder / "config.json", config | {"vocab_size": 1 << 60})
    require_fit([Outline.open(folder)])
