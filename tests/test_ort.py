"""ONNX models: what is refused and why, what a graph declares, caches, devices, text, pairs."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from interrupting import Interrupted, at_each_bytecode, ctrl_c
from tiny_gguf import spm_vocabulary, write_tiny
from tiny_onnx import write_tiny_onnx

from edgespec import platform
from edgespec.backends import (
    LoadOptions,
    load_model,
    onnx_folder,
    onnx_rotation,
    ort_cache,
    ort_errors,
    ort_load,
    ort_memory,
    ort_notes,
    ort_packages,
    ort_providers,
)
from edgespec.backends import ort as backend
from edgespec.backends.onnx_tokenizer import OnnxTokenizer, _byte_letters
from edgespec.backends.ort_cache import InPlaceCache
from edgespec.backends.ort_graph import as_float32, read_graph
from edgespec.backends.ort_memory import HostBlock
from edgespec.errors import (
    Cancelled,
    ConfigError,
    EdgespecError,
    ExportError,
    IncompatiblePair,
    ModelError,
    ModelFormatError,
    NumericalError,
)
from edgespec.fetch import fetch, local_path
from edgespec.registry import HubSource, load_registry, size_on_disk
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY
from edgespec.session import CancelFlag, Model
from edgespec.tokenizer import StreamingDetokenizer, check_same_tokens, decode

TEXT = [3, 4, 5, 6, 7, 8, 9, 10]
GQA: dict[str, Any] = {"attention": "gqa", "positions": False}


def opened(folder: Path, **options: Any) -> Model:
    return load_model(folder, LoadOptions(**{"threads": 1, **options}), CancelFlag())


def from_scratch(folder: Path, tokens: list[int], cache: type = np.float32) -> np.ndarray:
    """Every row, by ONNX Runtime alone, without a cache."""
    native = onnxruntime.InferenceSession(folder / "model.onnx")
    given: dict[str, Any] = {
        "input_ids": [tokens],
        "attention_mask": [[1] * len(tokens)],
        "position_ids": [range(len(tokens))],
        "logits_rows": range(len(tokens)),
        "num_logits_to_keep": len(tokens),
    }
    feeds = {}
    for entry in native.get_inputs():
        if entry.name.startswith("past"):
            shape = [1, *(n if isinstance(n, int) else 0 for n in entry.shape[1:])]
            feeds[entry.name] = np.zeros(shape, cache)
        elif entry.name == "use_cache_branch":
            feeds[entry.name] = np.array([False])
        else:
            feeds[entry.name] = np.array(given[entry.name], np.int64)
    return native.run(["logits"], feeds)[0][0]


KINDS: dict[str, dict[str, Any]] = {
    "in place": GQA,
    "grown": {},
    "positions from the mask": {"positions": False},
    "no mask": {"mask": False},
    "neither": {"mask": False, "positions": False},
    "merged": {"merged": True},
    "rows": {"rows": "logits_rows"},
    "keep": {"rows": "num_logits_to_keep"},
    "external data": {"external": True},
    "mask ignored": {"ignores_mask": True},
    "padding": {"padding": 7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_with_rejected_drafts_give_what_a_fresh_run_gives(kind: str, tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, **KINDS[kind])
    session = opened(folder, context_size=256).session
    rng = np.random.default_rng(3)
    text = rng.integers(3, 200, 150).tolist()
    rows: list[np.ndarray] = []
    while session.length < len(text):
        at = session.length
        good = text[at : at + int(rng.integers(1, 5))]
        wrong = rng.integers(3, 200, int(rng.integers(0, 5))).tolist()
        logits = session.forward([*good, *wrong], len(good) + len(wrong))
        rows.append(logits[: len(good)].copy())
        session.rollback(at + len(good))
    expected = from_scratch(folder, text)
    assert np.ptp(expected) > 10  # against which the tolerance is rounding
    assert np.allclose(np.concatenate(rows), expected, atol=1e-3)


def test_where_the_cache_lies(tmp_path: Path) -> None:
    shared = opened(write_tiny_onnx(tmp_path / "a", **GQA))
    grown = opened(write_tiny_onnx(tmp_path / "b"))
    assert (shared.details["cache"], grown.details["cache"]) == ("in place", "grown")
    assert grown.session.cache.holes
    for wrong in ({"ignores_mask": True}, {"mask": False}, {"mask": False, "last_row": True}):
        assert not opened(write_tiny_onnx(tmp_path / str(wrong), **wrong)).session.cache.holes


@pytest.mark.parametrize("rounded", [False, True])
def test_holes_that_show_a_little_are_closed(rounded: bool, tmp_path: Path) -> None:
    """Also where a pass over several tokens is rounded otherwise than one over a single token."""
    hides = opened(write_tiny_onnx(tmp_path / "hides", rounded=rounded))
    leaks = opened(write_tiny_onnx(tmp_path / "leaks", rounded=rounded, leaks=0.005))
    assert (hides.rounding > 0.1) == (leaks.rounding > 0.1) == rounded
    assert hides.session.cache.holes and not leaks.session.cache.holes
    assert not hides.only_drafts and not leaks.only_drafts
    assert hides.session.can_rollback and leaks.session.can_rollback


def test_an_in_place_cache_is_allocated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(write_tiny_onnx(tmp_path, **GQA)).session
    monkeypatch.setattr(ort_cache, "allocate", lambda *_: pytest.fail("allocated again"))
    for _ in range(3):
        session.forward(TEXT * 20)
        session.rollback(5)


def test_a_grown_cache_takes_turns_between_two_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(write_tiny_onnx(tmp_path), context_size=2048).session
    made = []
    block = ort_cache.allocate
    monkeypatch.setattr(ort_cache, "allocate", lambda *a: made.append(a[1]) or block(*a))
    for _ in range(1500):
        session.forward([3])
    assert len(made) / 4 <= 4  # four tensors: each buffer grew by doubling
    assert session.cache.slots == 1500


def test_holes_are_closed_before_they_cost_much(tmp_path: Path) -> None:
    session = opened(write_tiny_onnx(tmp_path), context_size=400).session
    most = 0
    while session.length < 395:
        session.forward([3, 4, 5, 6, 7], 5)
        session.rollback(session.length - 3)
        most = max(most, session.cache.slots - session.length)
    assert 10 < most <= 25


def test_holes_take_no_place_beyond_the_context(tmp_path: Path) -> None:
    """A graph's tables of positions may end there."""
    folder = write_tiny_onnx(tmp_path)
    session = opened(folder, context_size=100).session
    text = np.random.default_rng(6).integers(3, 200, 100).tolist()
    most = 0
    while session.length < 100:
        end = min(session.length + 2, 100)
        piece = text[session.length : end]
        row = session.forward([*piece, *([9] * min(3, 100 - end))], 1 + min(3, 100 - end))[0]
        most = max(most, session.cache.slots)
        session.rollback(end)
    assert most == 100
    assert np.allclose(row, from_scratch(folder, text)[-1], atol=1e-3)


def test_a_window_of_places_is_not_filled_with_holes(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, window=30)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = np.random.default_rng(5).integers(3, 200, 60).tolist()
    expected = from_scratch(folder, text)

    def rounds() -> tuple[Any, bool]:
        session = opened(folder).session
        rows = []
        for at in range(0, len(text), 2):
            rows.append(session.forward([*text[at : at + 2], 9, 9, 9], 5)[:2].copy())
            session.rollback(at + 2)
        return session.cache, bool(np.allclose(np.concatenate(rows), expected, atol=1e-3))

    # What a few tokens can'"'"'t show: a window that nobody tells of would count the holes.
    assert rounds()[1] is False
    assert not opened(write_tiny_onnx(tmp_path / "short", window=12)).session.cache.holes
    for key in ("sliding_window", "attention_chunk_size", "window_size"):
        (folder / "config.json").write_text(json.dumps({**config, key: 30}))
        assert rounds()[1], key
    # One that is switched off, or as long as the whole context, costs nothing.
    for told in ({"sliding_window": 30, "use_sliding_window": False}, {"sliding_window": 4096}):
        (folder / "config.json").write_text(json.dumps({**config, **told}))
        assert rounds()[0].holes
    (folder / "config.json").write_text(json.dumps(config))
    genai = {
        "model": {"decoder": {"filename": "model.onnx", "sliding_window": {"window_size": 30}}}
    }
    (folder / "genai_config.json").write_text(json.dumps(genai))
    assert rounds()[1]


class FarBlock(HostBlock):
    """Memory of a device that this machine hasn't got: only copies reach the host."""

    loads = 0

    def load(self) -> Any:
        FarBlock.loads += 1
        return self._data.copy()

    def blank(self) -> Any:
        return np.full(len(self._data), 255, np.uint8)  # NaN, where somebody reads it

    def store(self, data: Any) -> None:
        self._data[:] = data


def test_closing_holes_on_a_device_copies_each_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FarBlock, "loads", 0)
    monkeypatch.setattr(
        ort_cache, "allocate", lambda tensor, tokens, _: FarBlock(tensor.token_bytes * tokens)
    )
    folder = write_tiny_onnx(tmp_path)
    session = opened(folder).session
    text = TEXT * 5
    session.forward([*text, *([9] * 30)])
    session.rollback(len(text))
    FarBlock.loads = 0
    row = session.forward([11])  # more holes than are left open
    assert session.cache.slots == session.length == len(text) + 1
    assert FarBlock.loads == 4  # a copy of each of the four tensors
    assert np.allclose(row, from_scratch(folder, [*text, 11])[-1], atol=1e-3)
    assert np.allclose(session.forward([12]), from_scratch(folder, [*text, 11, 12])[-1], atol=1e-3)


@pytest.mark.parametrize("kind", [GQA, {}])
def test_ctrl_c_at_any_point_leaves_the_text_that_the_length_says(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_tiny_onnx(tmp_path, **kind)
    session = opened(folder).session
    text = TEXT * 5
    texts = [[*text, *([9] * 20)], text, [*text, 11, 9, 9], [*text, 11], [*text, 11, 12]]
    after = list(range(14, 44))  # some of which look at each part of what is cached
    expected = {len(held): from_scratch(folder, [*held, *after])[-30:] for held in texts}
    left = set()

    def run(interrupted: Interrupted) -> None:
        session.rollback(0)
        session.forward(texts[0])
        try:
            interrupted(ctrl_c)
            session.rollback(40)
            session.forward([11, 9, 9])  # more holes than are left open
            session.rollback(41)
            session.forward([12])
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        length = session.length
        left.add(length)
        assert np.allclose(session.forward(after, 30), expected[length], atol=1e-3)

    where = (backend.OrtSession.forward, backend.OrtSession._forward, backend.OrtSession._pass)
    assert at_each_bytecode(run, ort_cache, *where, raises=True) > 10
    assert left == expected.keys()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA failure 2: out of memory")])
def test_no_memory_for_a_cache(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown, shared = (
        write_tiny_onnx(tmp_path / "grown"),
        write_tiny_onnx(tmp_path / "in place", **GQA),
    )
    text = np.random.default_rng(2).integers(3, 200, 700).tolist()
    expected = from_scratch(grown, text)[-1]
    session = opened(grown).session
    session.forward(text[:400])
    block = ort_memory.HostBlock
    limit = 1000 * 2 * 16 * 4  # of one tensor, in bytes

    def scarce(nbytes: int) -> Any:
        if nbytes > limit:
            raise error
        return block(nbytes)

    monkeypatch.setattr(ort_memory, "HostBlock", scarce)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"no memory for a cache of .* smaller --ctx-size"):
            session.forward(text[400:])
        assert session.length == 400
    with pytest.raises(ModelError, match="no memory for a cache of 2048 tokens"):
        opened(shared, context_size=2048)
    monkeypatch.setattr(ort_memory, "HostBlock", block)
    assert np.allclose(session.forward(text[400:]), expected, atol=1e-3)


def test_no_memory_for_the_rows_of_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(write_tiny_onnx(tmp_path)).session
    session.forward(TEXT)

    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(session._outlet, "bind", none_left)
        with pytest.raises(ModelError, match="smaller --ctx-size"):
            session.forward([3])
    assert session.length == len(TEXT)
    session.forward([3])


# As ONNX Runtime says it, behind what fills a message that is cut to a few hundred characters.
ARENA = (
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::"
    "AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn)"
    " Failed to allocate memory for requested buffer of size 1610612736\n"
)
NO_ROOM = f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: {ARENA}"
NO_ROOM_IN_A_PASS = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
    "GroupQueryAttention node. Name:'/model/layers.0/attn/GroupQueryAttention' Status Message: "
    f"{ARENA}"
)


@pytest.mark.parametrize("error", [RuntimeError(NO_ROOM), MemoryError("std::bad_alloc")])
def test_no_memory_for_the_weights(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_onnx(tmp_path)
    has = ["CUDAExecutionProvider", ort_providers.CPU]
    make = onnxruntime.InferenceSession
    full = {"CUDAExecutionProvider"}

    def scarce(*args: Any, providers: Any, **options: Any) -> Any:
        if providers[0][0] in full:
            raise error
        return make(*args, providers=providers, **options)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    monkeypatch.setattr(onnxruntime, "InferenceSession", scarce)
    says = (
        "no memory for the weights of model.onnx: close other programs or choose a model of fewer"
    )
    (note,) = opened(folder).notes
    assert f"runs on the CPU: CUDA has {says}" in note
    with pytest.raises(ModelError, match=f"CUDA has {says} bits; or choose --device cpu"):
        opened(folder, device="cuda")
    full.add(ort_providers.CPU)
    with pytest.raises(ModelError, match=f"there is {says} bits$"):
        opened(folder, device="cpu")


def test_a_folder_that_is_called_after_memory_is_not_what_lacks() -> None:
    path = Path("/models/out of memory/model.onnx")
    error = RuntimeError(f"Load model from {path} failed:Protobuf parsing failed.")
    cpu = ort_providers.DEVICES["cpu"]
    assert "is damaged" in str(ort_providers._load_error(path, cpu, error))


def test_no_memory_in_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(write_tiny_onnx(tmp_path / "a", **GQA)).session
    session.forward(TEXT)

    class Full:
        def __init__(self, native: Any) -> None:
            self._native = native

        def __getattr__(self, name: str) -> Any:
            return getattr(self._native, name)

        def run_with_iobinding(self, *_: object) -> None:
            raise RuntimeError(NO_ROOM_IN_A_PASS)

    with monkeypatch.context() as patch:
        patch.setattr(session, "_native", Full(session._native))
        for tokens in ([9], TEXT * 60):
            says = f"no memory for a pass of {session.name} over {len(tokens)} tokens: close other"
            with pytest.raises(ModelError, match=f"{says} programs or choose a smaller --ctx-size"):
                session.forward(tokens)
            assert session.length == len(TEXT)
    create = ort_providers._create
    monkeypatch.setattr(ort_providers, "_create", lambda *rest: Full(create(*rest)))
    with pytest.raises(ModelError, match="no memory for a pass of b beside its weights"):
        opened(write_tiny_onnx(tmp_path / "b", **GQA))


def test_an_export_that_there_is_no_memory_to_open_is_not_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx_ir")
    from edgespec.exporters.machine import no_memory
    from edgespec.exporters.onnx_gate import check_folder

    folder = write_tiny_onnx(tmp_path)

    def opening(error: Exception) -> pytest.ExceptionInfo[EdgespecError]:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(onnxruntime, "InferenceSession", fail)
            with pytest.raises(EdgespecError) as caught:
                check_folder(folder)
        return caught

    for error in (RuntimeError(NO_ROOM), MemoryError()):
        assert no_memory(opening(error).value)
    other = opening(RuntimeError("an unknown type"))
    assert other.type is ExportError and not no_memory(other.value)


@pytest.mark.parametrize(
    "place",
    [
        "/src/onnxruntime/core/session/x.cc:35 onnxruntime::common::Status onnxruntime::A::B("
        "const onnxruntime::Node&, bool) const ",
        "/src/x/cuda_call.cc:129 std::conditional_t<THRW, void, onnxruntime::common::Status> "
        "onnxruntime::CudaCall(ERRTYPE, const char*, int) [with ERRTYPE = cudaError; bool THRW = "
        "true] ",
        "D:\\a\\_work\\1\\s\\onnxruntime\\core\\x.cc:376 onnxruntime::BFCArena::Extend ",
        "",
    ],
)
def test_what_onnx_runtime_says_comes_before_where_it_says_it(place: str) -> None:
    error = RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {place}CUDA failure 100: (no\ndevice)")
    assert ort_errors.short_reason(error, 200) == "CUDA failure 100: (no device)"
    assert ort_errors.short_reason(error, 4) == "CUDA"


def test_a_target_that_cant_forget_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget = InPlaceCache.rollback

    def all_or_nothing(cache: Any, length: int) -> None:
        if length == 0:
            forget(cache, 0)

    monkeypatch.setattr(InPlaceCache, "rollback", all_or_nothing)
    folder = write_tiny_onnx(tmp_path, **GQA)
    with Runtime.open(target=folder, drafters=["lookup"], lookahead=3, threads=1) as runtime:
        assert not runtime.drafters
        assert any("runs without speculation" in note for note in runtime.notes)


@pytest.mark.parametrize("kind", [GQA, {}])
def test_a_closed_session_keeps_nothing_native(kind: dict[str, Any], tmp_path: Path) -> None:
    session = opened(write_tiny_onnx(tmp_path, **kind)).session
    session.forward(TEXT)
    binding = session._binding
    session.close()
    gc.collect()
    assert [type(kept) for kept in gc.get_referrers(binding) if kept is not locals()] == []
    if kind:
        assert not session.cache._blocks
    else:
        assert not any(side.blocks for side in session.cache._state[:2])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"ignores_past": True}, "ignores the text before"),
        ({"last_row": True}, "last position alone"),
    ],
)
def test_a_graph_that_cant_check_drafts_may_still_draft(
    wrong: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_tiny_onnx(tmp_path / "wrong", **wrong)
    assert reason in opened(folder).only_drafts
    with pytest.raises(ConfigError, match=reason):
        Runtime.open(target=folder, drafters=[], lookahead=0, threads=1)
    target = write_tiny_onnx(tmp_path / "right")
    plain = answer(target, [])
    assert answer(target, [str(folder)]) == plain


def answer(target: Path, drafters: list[str], lookahead: int = 3) -> list[int]:
    with Runtime.open(
        target=target, drafters=drafters, lookahead=lookahead if drafters else 0, threads=1
    ) as runtime:
        result = runtime.generate([3, 70, 80, 90], GREEDY, max_tokens=40).result
        assert not drafters or result.counters.drafted
        return list(result.tokens)


@pytest.mark.parametrize(
    ("wrong", "error", "reason"),
    [
        ({"nan": True}, NumericalError, "returns NaN"),
        ({"cached": False}, ModelFormatError, "keeps no cache"),
        ({"extra_input": "pixel_values"}, ModelFormatError, "can't feed: pixel_values"),
    ],
)
def test_what_is_refused(
    wrong: dict[str, Any], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reason):
        opened(write_tiny_onnx(tmp_path, **wrong))


ENCODER = "reads what an encoder makes in another graph.*: choose a model that is a decoder alone"


@pytest.mark.parametrize(
    ("given", "logits", "reason"),
    [
        # The texts of models for pictures and sound; their other parts.
        ({"inputs_embeds": 3, "past_key_values.0.key": 4}, 3, "embeddings, which another graph"),
        ({"pixel_values": 4}, 0, "returns no logits of its tokens"),
        # Encoders, embedding models and classifiers keep no cache either.
        ({"input_ids": 2}, 0, "returns no logits of its tokens"),
        ({"input_ids": 2}, 2, "returns no logits of its tokens"),
        ({"input_ids": 2}, 3, "keeps no cache"),
        # T5's and Whisper's decoders, as optimum and as onnxruntime-genai write them.
        ({"input_ids": 2, "encoder_hidden_states": 3, "past_key_values.0.key": 4}, 3, ENCODER),
        ({"input_ids": 2, "past_key_values.0.encoder.key": 4}, 3, ENCODER),
        ({"input_ids": 2, "past_key_cross_0": 4}, 3, ENCODER),
        # For NPUs: it begins like a cache and is a number.
        ({"input_ids": 2, "past_seq_len": 1}, 3, r"can't feed: past_seq_len .*choose another exp"),
        ({"input_ids": 2, "past_key_values.0.decoder.key": 4}, 3, None),
    ],
)
def test_graphs_of_another_kind_are_told_apart(
    given: dict[str, int], logits: int, reason: str | None
) -> None:
    """given: inputs with their dimensions; logits: those of the output, 0 where there is none."""

    def tensors(named: dict[str, int]) -> list[Any]:
        return [
            SimpleNamespace(
                name=name,
                type="tensor(int64)" if name in ("input_ids", "past_seq_len") else "tensor(float)",
                shape=["batch", 2, "past", 16][:rank],
            )
            for name, rank in named.items()
        ]

    present = {name.replace("past_key_values", "present"): rank for name, rank in given.items()}
    outputs = tensors({**present, **({"logits": logits} if logits else {})})
    if reason is None:
        assert len(read_graph("tiny", tensors(given), outputs).cache) == 1
        return
    with pytest.raises(ModelFormatError, match=f"^tiny .*{reason}"):
        read_graph("tiny", tensors(given), outputs)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", external=True)

    def broken(name: str) -> Path:
        return Path(shutil.copytree(whole, tmp_path / name))

    (broken("data") / "model.onnx.data").unlink()
    with pytest.raises(
        ModelFormatError, match=r"weights in model\.onnx\.data, which is missing: f"
    ):
        opened(tmp_path / "data")
    with (broken("short") / "model.onnx.data").open("r+b") as data:
        data.truncate(100)
    with pytest.raises(ModelFormatError, match=r"in model\.onnx\.data, which is cut short or"):
        opened(tmp_path / "short")
    graph = broken("cut") / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:300])
    with pytest.raises(ModelFormatError, match="damaged"):
        opened(tmp_path / "cut")
    (broken("words") / "tokenizer.json").unlink()
    with pytest.raises(ModelFormatError, match=r"no tokenizer\.json"):
        opened(tmp_path / "words")
    (broken("json") / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        opened(tmp_path / "json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFormatError, match="holds no ONNX model"):
        opened(tmp_path / "empty")
    (broken("genai") / "genai_config.json").write_text('{"model": {"decoder": null}}')
    assert opened(tmp_path / "genai").session.length == 0  # the graph is found all the same
    (broken("bytes") / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFormatError, match=r"chat_template\.jinja of bytes can't be read"):
        opened(tmp_path / "bytes")
    (tmp_path / "empty" / "model.safetensors").touch()
    with pytest.raises(ModelFormatError, match="edgespec export"):
        opened(tmp_path / "empty")


def test_a_folder_with_models_in_it_names_them(tmp_path: Path) -> None:
    """As `edgespec export onnx TARGET OUT --draft DRAFT` leaves it."""
    for name in ("target", "draft"):
        write_tiny_onnx(tmp_path / "out" / name)
    out = tmp_path / "out"
    with pytest.raises(ModelFormatError, match="folders in it do: name ") as caught:
        opened(out)
    assert f"{out / 'draft'} or {out / 'target'}" in str(caught.value)


def test_a_repository_with_models_two_folders_deep_names_them(tmp_path: Path) -> None:
    """As Microsoft's have them, for several devices."""
    deep = write_tiny_onnx(tmp_path / "repo" / "cpu_and_mobile" / "cpu-int4-rtn-block-32")
    with pytest.raises(ModelFormatError, match="folders in it do: name ") as caught:
        opened(tmp_path / "repo")
    assert str(caught.value).endswith(f": name {deep}")
    opened(deep)


def test_a_damaged_graph_in_a_folder_called_after_data(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path / "external_data" / "my.data")
    graph = folder / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:300])
    with pytest.raises(ModelFormatError, match="is damaged"):
        opened(folder)


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        ({"op_type": "NoSuchThing"}, "NoSuchThing"),
        ({"attribute": "no_such"}, "Unrecognized attribute: no_such"),
        ({"ir_version": 60}, "IR version"),
        ({"opset": 99}, "opset"),
    ],
)
def test_a_graph_of_a_later_onnx_runtime(newer: dict[str, Any], said: str, tmp_path: Path) -> None:
    import onnx

    graph = write_tiny_onnx(tmp_path, **GQA) / "model.onnx"
    model = onnx.load(graph)
    node = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    node.op_type = newer.get("op_type", node.op_type)
    if name := newer.get("attribute"):
        node.attribute.append(onnx.helper.make_attribute(name, 4))
    model.ir_version = newer.get("ir_version", model.ir_version)
    model.opset_import[0].version = newer.get("opset", model.opset_import[0].version)
    onnx.save(model, graph)
    wanted = rf"newer ONNX Runtime than {onnxruntime.__version__} \(.*{said}.*pip install --up"
    with pytest.raises(ModelFormatError, match=wanted):
        opened(graph)


JUNK = (None, 7, "x", [], {}, [None], {"id": None}, -1.5)


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        ({"add_bos_token": True, "bos_token": "<s>"}, True),
        ({"add_bos_token": True}, False),  # which there is none of
        ({"add_bos_token": False, "bos_token": "<s>"}, False),
        ({"bos_token": "<s>"}, False),
    ],
)
def test_a_token_in_front_of_each_text(
    settings: dict[str, Any], added: bool, tmp_path: Path
) -> None:
    folder = write_tiny_onnx(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = opened(folder).tokenizer
    assert tokenizer.add_bos == added
    assert tokenizer.bos_id not in tokenizer.encode("hello")  # whoever wants it adds it, once


@pytest.mark.parametrize(
    ("ends", "named", "stops"),
    [
        (["<|end|>"], [], ["<|end|>"]),
        (["<|end|>", "<|return|>"], [], ["<|end|>", "<|return|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], [], ["<|return|>", "<|call|>"]),
        (["<|end|>", "<|calls|>", "<|flush|>"], [], ["<|calls|>", "<|flush|>"]),
        (["<|return|>", "<|call|>", "<|end|>"], [2], ["<|return|>", "<|call|>", "<|end|>"]),
    ],
)
def test_an_answer_does_not_end_with_its_thoughts(
    ends: list[str], named: list[int], stops: list[str], tmp_path: Path
) -> None:
    """named: which of them the configuration names."""
    folder = write_tiny_onnx(tmp_path)
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    first = 20
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    written["added_tokens"] += [
        {"id": first + i, "content": text, "special": True, **flags} for i, text in enumerate(ends)
    ]
    vocab = written["model"]["vocab"]
    numbers = {number: text for text, number in vocab.items()}
    for i, text in enumerate(ends):
        del vocab[numbers[first + i]]
        vocab[text] = first + i
    (folder / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    about = {"eos_token_id": [first + i for i in named]}
    (folder / "generation_config.json").write_text(json.dumps(about))
    found = onnx_folder.find(folder)
    assert found is not None
    tokenizer = OnnxTokenizer(found, len(spm_vocabulary()[0]))
    names = {i: text for text, i in tokenizer.control_tokens.items()}
    assert {names[i] for i in tokenizer.stop_ids} - {"</s>"} == set(stops)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_junk_in_the_files_beside_a_graph(name: str, tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path)
    size = len(spm_vocabulary()[0])
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": "x"}'
    )
    whole = json.loads((folder / name).read_text(encoding="utf-8"))
    refused = 0
    for place in places_in(whole):
        for junk in JUNK:
            data = json.loads(json.dumps(whole))
            inner = data
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            (folder / name).write_text(json.dumps(data), encoding="utf-8")
            found = onnx_folder.find(folder)
            assert found is not None
            try:
                OnnxTokenizer(found, size).encode("hello")
            except ModelFormatError:
                refused += 1
            assert found.context_size is None or found.context_size > 0
            assert found.window is None or found.window > 0
    assert refused or name != "tokenizer.json"


def places_in(data: Any, depth: int = 4) -> Iterator[list[Any]]:
    """The way to each value, apart from the vocabulary's own entries."""
    items = enumerate(data) if isinstance(data, list) else data.items()
    for key, value in items:
        yield [key]
        if isinstance(value, dict | list) and key != "vocab" and depth:
            yield from ([key, *rest] for rest in places_in(value, depth - 1))


def test_a_chat_template_is_looked_for_in_three_files(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path)
    assert opened(folder).template is None
    (folder / "chat_template.json").write_text('{"chat_template": "third"}')
    assert opened(folder).template == "third"
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "second"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert opened(folder).template == "second"
    (folder / "chat_template.jinja").write_text("first")
    assert opened(folder).template == "first"


@pytest.mark.parametrize("name", ["model.gguf", "model.onnx"])
def test_a_file_that_cant_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_tiny(tmp_path / name)
    read = Path.open

    def refuse(path: Path, *args: Any, **options: Any) -> Any:
        if path == file:  # not by its mode, which the superuser's tests would pass over
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert onnx_folder.find(file) is None
    with pytest.raises(ModelError, match=rf"{name} can't be read .Permission denied"):
        opened(file)


def test_a_folder_that_cant_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ModelError, match="can't be read: Permission denied"):
        opened(tmp_path / "model")


def test_a_model_of_the_hub_is_called_by_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
    graph = write_tiny_onnx(snapshot / "onnx") / "model.onnx"
    (graph.parent / "tokenizer.json").rename(snapshot / "tokenizer.json")
    assert opened(graph).name == "some/model"


def test_which_graph_a_folder_means(tmp_path: Path) -> None:
    # As onnx-community lays them out: graphs a level below the tokenizer.
    made = write_tiny_onnx(tmp_path / "model" / "onnx", file="model_q4.onnx")
    for name in ("tokenizer.json", "config.json"):
        (made / name).rename(made.parent / name)
    found = onnx_folder.find(tmp_path / "model")
    assert found and (found.graph.name, found.folder.name, found.name) == (
        "model_q4.onnx",
        "model",
        "model",
    )
    shutil.copy(made / "model_q4.onnx", made / "model_int8.onnx")
    with pytest.raises(ModelFormatError, match=r"model_int8\.onnx, model_q4\.onnx"):
        opened(tmp_path / "model")
    assert opened(made / "model_q4.onnx").name == "model/model_q4.onnx"
    # As onnxruntime-genai's builder does: its configuration names the graph.
    genai = {"model": {"decoder": {"filename": "model_int8.onnx"}, "context_length": 99}}
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(made.parent / name, made / name)
    (made / "genai_config.json").write_text(json.dumps(genai))
    model = opened(made)
    assert model.session.context_size == 99


def test_the_context_is_no_longer_than_the_model(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, context=300)
    assert opened(folder).session.context_size == 300
    with pytest.raises(ConfigError, match="--ctx-size"):
        opened(folder, context_size=301)


def test_logits_of_every_type_come_as_float32() -> None:
    values = np.array([1.5, -2.0, 0.0, np.inf], np.float32)
    half = values.astype(np.float16).view(np.uint16)
    brain = (values.view(np.uint32) >> 16).astype(np.uint16)
    for words, element in ((values.view(np.uint32), 1), (half, 10), (brain, 16)):
        assert as_float32(words, element).dtype == np.float32
        assert as_float32(words, element).tolist() == values.tolist()


def test_a_prompt_goes_in_pieces_that_hold_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = write_tiny_onnx(tmp_path / "every")
    chosen = write_tiny_onnx(tmp_path / "chosen", rows="logits_rows")
    monkeypatch.setattr(backend, "_LOGITS_BYTES", 20 * 4 * len(spm_vocabulary()[0]))
    text = np.random.default_rng(1).integers(3, 200, 130).tolist()
    expected = from_scratch(every, text)
    for folder, rows in ((every, 20), (chosen, 1)):
        session = opened(folder).session
        assert np.allclose(session.forward(text)[0], expected[-1], atol=1e-4)
        assert len(session._outlet.words) <= rows + 7  # four tokens were tried at the start
        session.rollback(0)
        assert np.allclose(session.forward(text, 70), expected[-70:], atol=1e-4)


def test_a_long_pass_is_stopped_by_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = CancelFlag()
    folder = write_tiny_onnx(tmp_path, layers=8, **GQA)
    session = load_model(folder, LoadOptions(threads=1), cancel).session
    session.forward(TEXT)
    expected = session.forward([9], 1).copy()
    session.rollback(len(TEXT))
    run, terminate = session._run, session._terminate
    stopped: list[None] = []
    monkeypatch.setattr(session, "_run", lambda tokens: (cancel.set(), run(tokens)))
    monkeypatch.setattr(session, "_terminate", lambda: stopped.append(terminate()))
    monkeypatch.setattr("edgespec.backends.native_thread._LOOK_S", 0.001)
    while not stopped:  # it may be over before anybody looks, or be left before it begins
        with suppress(Cancelled):
            session.forward(TEXT * 60)
            session.rollback(len(TEXT))
        cancel.clear()
        assert session.length == len(TEXT)
    monkeypatch.setattr(session, "_run", run)
    assert np.allclose(session.forward([9]), expected, atol=1e-4)


def test_a_long_pass_that_fails_is_not_taken_for_one_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(write_tiny_onnx(tmp_path, **GQA)).session

    class Broken:
        def run_with_iobinding(self, *_: object) -> None:
            raise RuntimeError("the device was removed")

    monkeypatch.setattr(session, "_native", Broken())
    with pytest.raises(ModelError, match="failed in ONNX Runtime: the device was removed"):
        session.forward(TEXT * 60)


LEAVE = """
import threading
from edgespec.backends import LoadOptions, load_model
from edgespec.errors import Cancelled, ModelError
from edgespec.session import CancelFlag

bare = load_model({folder!r}, LoadOptions(threads=1), CancelFlag()).session
bare.forward([3, 4])
busy = load_model({folder!r}, LoadOptions(threads=1), CancelFlag()).session
begun = threading.Event()

def forever():
    try:
        while True:
            busy.rollback(0)
            begun.set()
            busy.forward([3] * {tokens})
    except (Cancelled, ModelError):
        pass

threading.Thread(target=forever, daemon=True).start()
begun.wait()
print("end of the program")
"""


@pytest.mark.parametrize("tokens", [4, 2000])
def test_leaving_in_the_middle_of_a_pass(tokens: int, tmp_path: Path) -> None:
    script = LEAVE.format(folder=str(write_tiny_onnx(tmp_path, **GQA)), tokens=tokens)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "end of the program\n", "")


# ------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize("device", ["cuda", "directml", "tensorrt"])
def test_a_device_that_cant_be_had(device: str, tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path)
    if ort_providers.DEVICES[device].provider in onnxruntime.get_available_providers():
        pytest.skip("this machine has it")
    with pytest.raises(ConfigError, match=r"can't use .* --device cpu"):
        opened(folder, device=device)
    model = opened(folder, device=device, allow_cpu=True)
    assert model.details["device"].startswith("CPU")
    assert any("runs on the CPU" in note for note in model.notes)
    assert opened(folder).notes == []  # nothing to tell of "auto" on a machine without a GPU


def test_what_is_printed_by_onnxruntime_stays_off_stdout(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def preload() -> None:
        print("Failed to load libcublas")
        raise RuntimeError

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    with caplog.at_level("INFO", "edgespec.onnx"):
        ort_providers._preload()
    assert capsys.readouterr() == ("", "")
    assert "libcublas" in caplog.text


@pytest.mark.skipif(
    not hasattr(onnxruntime, "register_execution_provider_library"), reason="an older one"
)
def test_what_onnx_runtime_logs_reaches_no_stream() -> None:
    """As why a provider doesn't start, which it logs beside all sessions."""
    code = (
        "import onnxruntime\n"
        "onnxruntime.set_default_logger_severity(0)\n"
        "from edgespec.backends import ort_providers\n"
        "try:\n"
        "    onnxruntime.register_execution_provider_library('None', '/nowhere.so')\n"
        "except Exception:\n"
        "    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_device_that_isnt_told_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = write_tiny_onnx(tmp_path) / "model.onnx"
    native = onnxruntime.InferenceSession(graph)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(ort_providers, "_create", lambda *_: native)

    def label(ask: Any) -> str:
        monkeypatch.setattr(ort_providers, "_share", ask)
        opened = ort_providers.open_session(graph, "tiny", "cuda", 1, allow_cpu=False, entries={})
        return opened.label

    assert label(lambda *_: None).startswith("CUDA (not verified")
    assert label(lambda *_: (3, 3)) == "CUDA"
    assert "3 of 5 operations" in label(lambda *_: (3, 5))


def test_a_provider_that_takes_no_operation_is_not_the_device() -> None:
    class Part:
        ep_name = ort_providers.CPU

        def get_nodes(self) -> list[int]:
            return [1, 2, 3]

    class Native:
        def get_provider_graph_assignment_info(self) -> list[Part]:
            return [Part()]

    cuda = ort_providers.DEVICES["cuda"]
    with pytest.raises(ModelError, match="none of this graph's operations"):
        ort_providers._share(Native(), cuda)
    Part.ep_name = cuda.provider
    assert ort_providers._share(Native(), cuda) == (3, 3)


def test_attention_that_the_gpu_leaves_to_the_cpu_is_found() -> None:
    class Node:
        op_type = "GroupQueryAttention"

    class Part:
        ep_name = ort_providers.CPU

        def get_nodes(self) -> list[Node]:
            return [Node()]

    class Native:
        def get_provider_graph_assignment_info(self) -> list[Part]:
            return [Part()]

    cuda = ort_providers.DEVICES["cuda"]
    assert ort_providers.attends_on_cpu(Native(), cuda)
    assert not ort_providers.attends_on_cpu(Native(), ort_providers.DEVICES["cpu"])
    assert ort_providers.attends_on_cpu(object(), cuda) is None  # an older ONNX Runtime
    Part.ep_name = cuda.provider
    assert ort_providers.attends_on_cpu(Native(), cuda) is False


@pytest.mark.parametrize("told", [True, False, None])
def test_a_cache_lies_where_attention_runs(
    told: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that isn't told, floats are taken for what CUDA leaves to the CPU."""
    SmallGpu(monkeypatch)
    made = []
    on_device = ort_memory.HostBlock
    monkeypatch.setattr(ort_memory, "CudaBlock", lambda size: made.append(size) or on_device(size))
    monkeypatch.setattr(ort_load, "attends_on_cpu", lambda *_: told)
    folder = write_tiny_onnx(tmp_path, **GQA)
    model = opened(folder, device="cuda")
    assert model.details["cache"] == "in place"
    apart = told is not False
    assert bool(made) != apart
    said = [note for note in model.notes if "CUDA can't run, so the CPU does it" in note]
    assert [note.endswith("--dtype fp16") for note in said] == [True] * apart
    assert np.allclose(model.session.forward(TEXT), from_scratch(folder, TEXT)[-1], atol=1e-3)


def test_a_cache_that_grows_lies_on_the_device_where_attention_isnt_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SmallGpu(monkeypatch)
    made = []
    on_device = ort_memory.HostBlock
    monkeypatch.setattr(ort_memory, "CudaBlock", lambda size: made.append(size) or on_device(size))
    monkeypatch.setattr(ort_load, "attends_on_cpu", lambda *_: None)
    model = opened(write_tiny_onnx(tmp_path), device="cuda")
    assert made and model.details["cache"] == "grown"
    assert not any("so the CPU does it" in note for note in model.notes)


def test_what_a_device_that_is_there_says_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_onnx(tmp_path)
    has = ["CUDAExecutionProvider", ort_providers.CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    create = ort_providers._create

    def full(path: Path, device: Any, *rest: Any) -> Any:
        if device.label == "CUDA":
            raise ModelError("CUDA can't load model.onnx (out of memory)")
        return create(path, device, *rest)

    monkeypatch.setattr(ort_providers, "_create", full)
    with pytest.raises(ModelError, match=r"out of memory\); or choose --device cpu") as caught:
        opened(folder, device="cuda")
    assert "install" not in str(caught.value)
    assert any("out of memory" in n for n in opened(folder, device="cuda", allow_cpu=True).notes)


class SmallGpu:
    """A device whose memory takes the weights and no cache; the CPU computes in its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        create = ort_providers._create
        cpu = ort_providers.DEVICES["cpu"]
        has = ["CUDAExecutionProvider", ort_providers.CPU]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)

        def open_there(path: Path, device: Any, *rest: Any) -> Any:
            self.opened.append(device.label)
            return create(path, cpu, *rest)

        monkeypatch.setattr(ort_providers, "_create", open_there)
        monkeypatch.setattr(ort_providers, "_share", lambda *_: None)
        monkeypatch.setattr(ort_load, "attends_on_cpu", lambda *_: False)
        monkeypatch.setattr(ort_memory, "CudaBlock", self.full)

    def full(self, nbytes: int) -> Any:
        assert nbytes > 0
        raise RuntimeError("CUDA failure 2: out of memory")


@pytest.mark.parametrize("kind", [GQA, {}])
def test_a_gpu_without_room_for_the_cache_gives_way_to_the_cpu(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SmallGpu(monkeypatch)
    folder = write_tiny_onnx(tmp_path, **kind)
    for options in ({"device": "auto"}, {"device": "cuda", "allow_cpu": True}):
        model = opened(folder, **options)
        assert model.details["device"].startswith("CPU")
        said = [note for note in model.notes if "runs on the CPU: there is no memory for" in note]
        assert len(said) == 1 and "smaller --ctx-size" in said[0]
        assert np.allclose(model.session.forward(TEXT), from_scratch(folder, TEXT)[-1], atol=1e-3)
    assert gpu.opened == ["CUDA", "CPU"] * 2
    with pytest.raises(ModelError, match=r"smaller --ctx-size; or choose --device cpu"):
        opened(folder, device="cuda")


def test_numbers_that_overflow_on_a_gpu_are_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As float16 there does; the CPU may have room for them."""
    gpu = SmallGpu(monkeypatch)
    monkeypatch.setattr(ort_memory, "CudaBlock", HostBlock)
    examine = ort_load.examine

    def overflows(session: Any, *rest: Any) -> Any:
        if gpu.opened[-1] == "CUDA":
            raise NumericalError("tiny returns NaN: its weights or its export are damaged")
        return examine(session, *rest)

    monkeypatch.setattr(ort_load, "examine", overflows)
    folder = write_tiny_onnx(tmp_path)
    says = f"{folder.name} overflows on CUDA"
    assert f"{folder.name} runs on the CPU: {says}" in opened(folder).notes
    with pytest.raises(NumericalError, match=f"{says}; or choose --device cpu"):
        opened(folder, device="cuda")


def test_a_gpu_that_computes_something_else_gives_way_to_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SmallGpu(monkeypatch)
    monkeypatch.setattr(ort_memory, "CudaBlock", HostBlock)
    run = backend.OrtSession.forward

    def differs(session: Any, tokens: Any, num_logits: int = 1) -> Any:
        rows = run(session, tokens, num_logits)
        return rows[:, ::-1] if gpu.opened[-1] == "CUDA" and num_logits > 1 else rows

    monkeypatch.setattr(backend.OrtSession, "forward", differs)
    folder = write_tiny_onnx(tmp_path)
    says = f"{folder.name} doesn't work on CUDA (a pass over three tokens gives something else"
    model = opened(folder)
    assert any(f"{folder.name} runs on the CPU: {says}" in note for note in model.notes)
    assert model.only_drafts == "" and gpu.opened == ["CUDA", "CPU"]
    with pytest.raises(ModelError, match=rf"{re.escape(says)}.*; or choose --device cpu"):
        opened(folder, device="cuda")


def test_what_a_graph_lacks_it_lacks_on_every_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SmallGpu(monkeypatch)
    monkeypatch.setattr(ort_memory, "CudaBlock", HostBlock)
    model = opened(write_tiny_onnx(tmp_path, last_row=True))
    assert "last position alone" in model.only_drafts and gpu.opened == ["CUDA"]


def test_what_is_wrong_on_every_device_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SmallGpu(monkeypatch)
    folder = write_tiny_onnx(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFormatError, match=r"no tokenizer\.json") as caught:
        opened(folder)
    assert "--device" not in str(caught.value) and gpu.opened == ["CUDA"]


def test_a_device_that_gives_no_memory_for_another_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SmallGpu(monkeypatch)
    folder = write_tiny_onnx(tmp_path)
    for reason in ("CUDA failure 100: no CUDA-capable device", "an illegal memory access"):

        def refuse(nbytes: int, reason: str = reason) -> Any:
            raise RuntimeError(reason)

        monkeypatch.setattr(ort_memory, "CudaBlock", refuse)
        with pytest.raises(ModelError, match=rf"on the device cuda \({reason}\)") as caught:
            opened(folder, device="cuda")
        assert "--ctx-size" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_damaged_folder_is_not_the_devices_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = ["CUDAExecutionProvider", ort_providers.CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    folder = write_tiny_onnx(tmp_path, external=True)
    (folder / "model.onnx.data").unlink()
    with pytest.raises(ModelFormatError, match=r"model\.onnx\.data, which is missing") as caught:
        opened(folder, device="cuda")
    assert "CUDA" not in str(caught.value) and "--device" not in str(caught.value)
    graph = folder / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:300])
    for device in ("cuda", "auto"):
        with pytest.raises(ModelFormatError, match="is damaged"):
            opened(folder, device=device)


def test_what_a_device_says_is_not_taken_for_a_damaged_folder() -> None:
    path, cuda = Path("model.onnx"), ort_providers.DEVICES["cuda"]
    for text in (
        "CUDA failure 719: launch failed ; file=/src/cuda/gpu_data_transfer.cc ; line=7",
        "Failed to parse the engine",
    ):
        error = ort_providers._load_error(path, cuda, RuntimeError(text))
        assert not isinstance(error, ModelFormatError)
        assert "CUDA can't load model.onnx" in str(error)
    missing = RuntimeError("open file model.onnx_data_1 fail: No such file or directory")
    assert isinstance(ort_providers._load_error(path, cuda, missing), ModelFormatError)


def test_cuda_that_is_found_once_its_libraries_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As newer ONNX Runtimes have it; what they warn of before and behind is no user's."""
    gpu = SmallGpu(monkeypatch)
    monkeypatch.setattr(ort_memory, "CudaBlock", HostBlock)
    has = [ort_providers.CPU]

    def preload() -> None:
        warnings.warn("Failed to register bundled CUDA plugin EP from x: y", stacklevel=1)
        has.append("CUDAExecutionProvider")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(has))
    folder = write_tiny_onnx(tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert opened(folder).details["device"].startswith("CUDA")
    assert gpu.opened == ["CUDA"] and not told


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("plugin", [False, True])  # a plugin that didn't load isn't there at all
def test_a_device_that_is_installed_and_does_not_start(
    plugin: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = write_tiny_onnx(tmp_path)
    if ort_providers.DEVICES["cuda"].provider in onnxruntime.get_available_providers():
        pytest.skip("this machine has it")
    has = [*([] if plugin else ["CUDAExecutionProvider"]), ort_providers.CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    build = "ORT Build Info: git-branch=HEAD, cuda-plugin-ep=0.1.0"
    monkeypatch.setattr(onnxruntime, "get_build_info", lambda: build if plugin else "")
    says = "CUDA is installed but doesn't start: see that nvidia-smi shows the GPU, and pip install"
    assert any(says in note for note in opened(folder).notes)
    with pytest.raises(ModelError, match=rf"{says} 'onnxruntime-gpu\[cuda,cudnn\]'; or choose"):
        opened(folder, device="cuda")
    assert capfd.readouterr() == ("", "")


def test_a_gpu_that_onnx_runtime_was_not_built_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_onnx(tmp_path)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort_providers.CPU])
    monkeypatch.setattr(platform, "gpu_maker", lambda: "NVIDIA")
    (note,) = opened(folder).notes
    assert note.startswith("ONNX models run on the CPU: this ONNX Runtime was built without CUDA")
    assert "edgespec[onnx-gpu]" in note and "--device cpu" in note
    assert opened(folder, device="cpu").notes == []
    monkeypatch.setattr(platform, "gpu_maker", lambda: "Apple")
    assert opened(folder).notes == []


def test_gpus_of_onnx_models_are_told_apart_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SmallGpu(monkeypatch)
    monkeypatch.setattr(ort_memory, "CudaBlock", HostBlock)
    folder = write_tiny_onnx(tmp_path)
    for names, shown in ((["NVIDIA A2", "NVIDIA A10"], "NVIDIA A2"), ([], None)):
        monkeypatch.setattr(ort_notes, "cuda_gpus", lambda names=names: names)
        model = opened(folder)
        assert model.details["device"].startswith("CUDA") and model.details.get("gpus") == shown
    assert "gpus" not in opened(folder, device="cpu").details


def test_the_gpu_of_another_provider_is_named_as_onnx_runtime_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, directml = ort_providers.DEVICES["cpu"], ort_providers.DEVICES["directml"]
    assert ort_notes.gpu_names(cpu) == ""
    hardware = SimpleNamespace(metadata={"Description": "Radeon"}, vendor="AMD", device_id=0x744C)
    plain = SimpleNamespace(metadata={}, vendor="Intel", device_id=0x46A6)
    devices = [
        SimpleNamespace(ep_name=name, device=device)
        for name in (directml.provider, cpu.provider)
        for device in (hardware, plain)
    ]
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices, raising=False)
    assert ort_notes.gpu_names(directml) == "Radeon 744c, Intel 46a6"
    assert ort_notes.gpu_names(cpu) == ""
    monkeypatch.delattr(onnxruntime, "get_ep_devices")
    assert ort_notes.gpu_names(directml) == ""


@pytest.mark.parametrize("kind", [GQA, {}])
def test_a_cache_that_is_copied_to_its_device_is_told(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DirectML writes a grown cache to no pointer of ours; the CPU computes in its place here."""
    SmallGpu(monkeypatch)
    has = ["DmlExecutionProvider", ort_providers.CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: has)
    session = ort_load.OrtSession
    monkeypatch.setattr(
        ort_load, "OrtSession", lambda *a, **k: session(*a, **k | {"memory": "cpu"})
    )

    def on_device(tensor: Any, tokens: int, device: str) -> HostBlock:
        return HostBlock(tensor.token_bytes * tokens)

    monkeypatch.setattr(ort_memory, "ValueBlock", on_device)
    model = opened(write_tiny_onnx(tmp_path, **kind))
    assert model.details["device"].startswith("DirectML")
    told = [note for note in model.notes if "copied to DirectML and back in each pass" in note]
    assert len(told) == (model.details["cache"] == "grown") == (kind == {})


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_files_that_git_did_not_fetch(name: str, tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path / "tiny", external=True)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (folder / name).write_text(pointer, encoding="utf-8")
    with pytest.raises(ModelFormatError, match=rf"{name} of tiny is a Git LFS pointer.*lfs pull"):
        opened(folder)


def test_an_onnx_runtime_whose_windows_are_a_token_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_onnx(tmp_path / "a", **GQA)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": 12}))
    whole = write_tiny_onnx(tmp_path / "b", **GQA)
    monkeypatch.setattr(onnxruntime, "__version__", "1.24.2")
    assert opened(folder).notes == []
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    assert any("lets it see one more" in note for note in opened(folder).notes)
    assert opened(whole).notes == opened(folder, context_size=12).notes == []


LONG = {"rope_type": "longrope", "long_factor": [1.5], "short_factor": [1.0]}
TO_40 = {"original_max_position_embeddings": 40}


@pytest.mark.parametrize(
    "said",
    [
        {"rope_scaling": LONG, **TO_40},
        {"rope_parameters": {**LONG, **TO_40}},  # as transformers 5 writes it
        {"rope_parameters": {"sliding_attention": {}, "full_attention": {**LONG, **TO_40}}},
    ],
)
@pytest.mark.parametrize("kind", [GQA, {}])
def test_a_cache_ends_where_positions_change(
    kind: dict[str, Any], said: dict[str, Any], tmp_path: Path
) -> None:
    """LongRoPE: what is cached keeps the positions of short texts."""
    folder = write_tiny_onnx(tmp_path, **kind)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= said
    (folder / "config.json").write_text(json.dumps(config))
    model = opened(folder)
    assert model.session.context_size == 40
    assert ["changes its positions behind 40 tokens" in note for note in model.notes] == [True]
    assert opened(folder, context_size=30).notes == opened(folder, context_cap=40).notes == []
    with pytest.raises(ConfigError, match=r"behind 40 tokens.*can't hold 41: --ctx-size"):
        opened(folder, context_size=41)


@pytest.mark.parametrize("named", [True, False])
def test_a_cache_ends_where_the_graph_says(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onnxruntime-genai's builder leaves it: no config.json, and two tables in the graph."""
    folder = write_tiny_onnx(tmp_path, **GQA, switch=40, switch_named=named)
    (folder / "config.json").unlink()
    decoder = {"filename": "model.onnx"}
    genai = {"model": {"decoder": decoder, "context_length": 2048, "eos_token_id": 2}}
    (folder / "genai_config.json").write_text(json.dumps(genai))
    model = opened(folder)
    assert model.session.context_size == 40
    assert ["changes its positions behind 40 tokens" in note for note in model.notes] == [True]
    with pytest.raises(ConfigError, match=r"behind 40 tokens.*can't hold 41: --ctx-size"):
        opened(folder, context_size=41)
    # What would happen there: a pass over the boundary isn't what single passes are.
    monkeypatch.setattr(onnx_folder.OnnxFolder, "short_context", None)
    session = opened(folder).session
    text = np.random.default_rng(4).integers(3, 200, 44).tolist()
    session.forward(text[:36])
    together = session.forward(text[36:], 8).copy()
    session.rollback(36)
    singly = np.concatenate([session.forward([token]).copy() for token in text[36:]])
    assert np.abs(together - singly).max() > 0.1


def test_a_graph_without_two_tables_is_not_limited(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, **GQA)
    (folder / "config.json").unlink()
    assert opened(folder).session.context_size == 8192
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert onnx_rotation.switch(empty) is None


def test_two_packages_at_once_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Package:
        def __init__(self, name: str, module: str) -> None:
            self.metadata = {"Name": name}
            self.record = f"{name}.dist-info/METADATA,,\n{module}/__init__.py,sha256=abc,22\n"

        def read_text(self, name: str) -> str | None:
            return self.record if name == "RECORD" else None

    both = [
        Package("onnxruntime-trt-rtx", "onnxruntime"),
        Package("onnxruntime", "onnxruntime"),
        Package("onnxruntime-genai", "onnxruntime_genai"),  # goes beside it, as the next
        Package("onnxruntime-ep-webgpu", "onnxruntime_ep_webgpu"),
        Package("numpy", "numpy"),
    ]
    monkeypatch.setattr(ort_packages, "distributions", lambda: both)
    folder = write_tiny_onnx(tmp_path)
    assert any("overwrite each other's files" in note for note in opened(folder).notes)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort_providers.CPU])
    # Nothing beside it of what the one that was installed last can't do.
    monkeypatch.setattr(platform, "gpu_maker", lambda: "NVIDIA")
    (note,) = opened(folder).notes
    assert "pip uninstall onnxruntime onnxruntime-trt-rtx, then install the one you" in note
    monkeypatch.setattr(platform, "gpu_maker", lambda: "")
    with pytest.raises(ConfigError, match="pip uninstall onnxruntime onnxruntime-trt-rtx, then"):
        opened(folder, device="cuda")
    del both[0]
    assert opened(folder).notes == []
    with pytest.raises(ConfigError, match="then pip install onnxruntime-trt-rtx; or choose"):
        opened(folder, device="tensorrt")


BROKEN = """
import sys
from pathlib import Path

from edgespec.backends import LoadOptions, load_model, ort_packages
from edgespec.errors import ModelError
from edgespec.session import CancelFlag

class Package:
    def __init__(self, name):
        self.metadata = {"Name": name}

    def read_text(self, name):
        return "onnxruntime/__init__.py,sha256=abc,22"

ort_packages.distributions = lambda: map(Package, sys.argv[2:])
try:
    load_model(sys.argv[1], LoadOptions(threads=1), CancelFlag())
except ModelError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "contents", "packages", "says"),
    [
        # As of two packages with the same files one leaves them behind.
        ("onnxruntime", "", ["onnxruntime-gpu"], "(module 'onnxruntime' has no attribute"),
        ("onnxruntime", "raise ImportError('no DLL')", ["onnxruntime-gpu"], "(no DLL)"),
        ("onnxruntime", "import nowhere", ["onnxruntime", "onnxruntime-gpu"], "'nowhere')"),
        ("onnxruntime", "raise OSError('no libc')", [], "(no libc)"),
        ("tokenizers", "raise ImportError('no libc')", ["onnxruntime"], "(no libc)"),
    ],
)
def test_a_package_that_is_there_and_cant_be_imported(
    name: str, contents: str, packages: list[str], says: str, tmp_path: Path
) -> None:
    folder = write_tiny_onnx(tmp_path / "model")
    (tmp_path / "packages" / name).mkdir(parents=True)
    (tmp_path / "packages" / name / "__init__.py").write_text(contents)
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r})\n{BROKEN}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), *packages], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name} can't be loaded (") and says in done.stdout
    once = f"--no-deps {'tokenizers' if name == 'tokenizers' else [*packages, name][0]}"
    assert ("pip uninstall onnxruntime onnxr" if len(packages) > 1 else once) in done.stdout


# ---------------------------------------------------------------------------------------- text


def test_text_rules_are_those_of_the_gguf_side(tmp_path: Path) -> None:
    ours = opened(write_tiny_onnx(tmp_path / "onnx")).tokenizer
    theirs = load_model(
        write_tiny(tmp_path / "tiny.gguf"), LoadOptions(threads=1), CancelFlag()
    ).tokenizer
    assert ours.vocabulary() == theirs.vocabulary()
    assert ours.num_tokens == theirs.num_tokens
    assert (ours.stop_ids, dict(ours.control_tokens)) == (
        theirs.stop_ids,
        dict(theirs.control_tokens),
    )
    for text in ("hello, world", "", " two  spaces", "naïve 🙂\n", "</s><s>a<unk>", "\ud800x"):
        assert ours.encode(text) == theirs.encode(text)
        assert not {0, 1, 2} & set(ours.encode(text.replace("\ud800", "")))
    for token in range(ours.num_tokens):
        assert ours.token_bytes(token) == theirs.token_bytes(token)


def test_pieces_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    letters = sorted(_byte_letters(), key=lambda c: _byte_letters()[c])
    words = ["<s>", "<|im_end|>", "<tool>", *letters]
    words += [f"w{i}" for i in range(len(spm_vocabulary()[0]) - len(words))]
    data["model"] = {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": []}
    data["normalizer"] = None
    data["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    data["decoder"] = {**data["pre_tokenizer"], "trim_offsets": True, "use_regex": True}
    for i, entry in enumerate(data["added_tokens"]):
        entry |= {"content": words[i], "special": i == 0}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": [0]}')
    tokenizer = opened(folder).tokenizer
    assert 1 in tokenizer.stop_ids  # by its name, though it isn't listed as special
    text = "a<|im_end|>ñ🙂 <tool>\n"
    ids = tokenizer.encode(text)
    assert 1 not in ids
    assert 2 in ids  # no control token, so plain text may hold it
    stream = StreamingDetokenizer(tokenizer)
    assert "".join(map(stream.add, ids)) + stream.finish() == decode(tokenizer, ids) == text
    assert tokenizer.token_bytes(1) == b""


def test_added_tokens_that_are_plain_text(tmp_path: Path) -> None:
    """As Gemma lists its indentations and the tags of HTML."""
    folder = write_tiny_onnx(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = data["model"]["vocab"]
    more = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    old = {i: word for word, i in words.items()}
    for i, text in ((300, "▁▁"), (301, "</b>")):
        del words[old[i]]
        words[text] = i
        data["added_tokens"].append({"id": i, "content": text, "special": False, **more})
    data["added_tokens"][2]["special"] = False  # </s>
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": 1}')
    tokenizer = opened(folder).tokenizer
    assert (tokenizer.token_bytes(300), tokenizer.vocabulary()[300]) == (b"  ", b"  ")
    assert (tokenizer.token_bytes(301), tokenizer.vocabulary()[301]) == (b"</b>", b"</b>")
    assert tokenizer.token_bytes(2) == b"</s>" and tokenizer.stop_ids == {1}
    assert tokenizer.vocabulary()[1] == b"<s>"
    (folder / "config.json").write_text("{}")
    assert opened(folder).tokenizer.stop_ids == {2}  # nothing else says what ends a text
    data["added_tokens"][2]["special"] = True
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": 1}')
    assert opened(folder).tokenizer.stop_ids == {1, 2}


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    small = write_tiny_onnx(tmp_path / "small", tokens=spm_vocabulary()[0][:270])
    large = write_tiny_onnx(tmp_path / "large")
    shutil.copy(large / "tokenizer.json", small / "tokenizer.json")
    with pytest.raises(ModelFormatError, match="of another model"):
        opened(small)


# --------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize("drafter", ["gguf", "gqa", "copy"])
@pytest.mark.parametrize("target", ["gguf", "gqa", "copy"])
def test_any_two_backends_draft_for_each_other(target: str, drafter: str, tmp_path: Path) -> None:
    def made(kind: str, seed: int, name: str) -> Path:
        if kind == "gguf":
            return write_tiny(tmp_path / f"{name}.gguf", seed=seed, context=2048)
        return write_tiny_onnx(
            tmp_path / name,
            attention=kind,  # type: ignore[arg-type]
            positions=kind == "copy",
            seed=seed,
            padding=13 * seed,  # rows of logits that no token stands for
        )

    one, other = made(target, 0, "target"), made(drafter, 1, "drafter")
    assert answer(one, [str(other)]) == answer(one, [])


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    words = spm_vocabulary()[0]
    target = opened(write_tiny_onnx(tmp_path / "a"))
    longer = opened(write_tiny_onnx(tmp_path / "b", tokens=[*words, b"more"]))
    check_same_tokens(target.tokenizer, longer.tokenizer)
    words[300] = b"else"
    other = opened(write_tiny_onnx(tmp_path / "c", tokens=words))
    with pytest.raises(IncompatiblePair, match="token 300"):
        check_same_tokens(target.tokenizer, other.tokenizer)


# ------------------------------------------------------------------------------------ registry


def test_a_folder_in_the_models_file(tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "tiny")
    file = tmp_path / "models.toml"
    file.write_text(
        '[models.tiny]\nsource = { kind = "file", path = "tiny" }\nformat = "onnx"\n'
        '[models.far]\nsource = { kind = "hub", repo = "a/b", file = "onnx/model.onnx", '
        'files = ["onnx/model.onnx_data", "tokenizer.json"] }\nformat = "onnx"\n'
        'licence = "mit"\nsize_bytes = 1\n',
        encoding="utf-8",
    )
    registry = load_registry(file)
    tiny = registry.model("tiny")
    size = sum(f.stat().st_size for f in (tmp_path / "tiny").iterdir())
    assert (fetch(tiny), local_path(tiny), tiny.size_bytes) == (
        tmp_path / "tiny",
        tmp_path / "tiny",
        size,
    )
    # Named by its graph, the weights beside it count, and those of another graph don't.
    write_tiny_onnx(tmp_path / "big", external=True)
    (tmp_path / "big" / "other.onnx").write_bytes(b"x")
    file.write_text(file.read_text("utf-8").replace('"tiny" }', '"big/model.onnx" }'), "utf-8")
    graph = tmp_path / "big" / "model.onnx"
    size = graph.stat().st_size + (tmp_path / "big" / "model.onnx.data").stat().st_size
    assert load_registry(file).model("tiny").size_bytes == size_on_disk(graph) == size
    (tmp_path / "big" / "other.onnx").unlink()  # and alone all that could be weights
    (tmp_path / "big" / "weights.bin").write_bytes(bytes(1000))
    assert size_on_disk(graph) == size + 1000
    before = onnx_folder.find(graph.parent)
    assert before is not None
    known = before.fingerprint()
    (tmp_path / "big" / "notes.md").write_text("hello")
    assert before.fingerprint() == known
    (tmp_path / "big" / "weights.bin").write_bytes(bytes(999) + b"1")
    assert before.fingerprint() != known
    source = registry.model("far").source
    assert isinstance(source, HubSource)
    assert source.files == ("onnx/model.onnx_data", "tokenizer.json")
