"""Drafters cut out of a model: blocks, rows of the head, bits, and what they are worth."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from chance import fit
from fakes import FakeSession, fake_model
from rich.cells import cell_len
from test_exactness import DEPTH, OFF, PROMPT, SAMPLERS, V, answer, joint, target_model
from tiny_gguf import CONTROL, UNUSED, spm_vocabulary, write_tiny

from edgespec import narrow
from edgespec.backends import LoadOptions, load_model
from edgespec.backends.llama_blocks import WINDOW, Ablation
from edgespec.backends.llama_narrow import agreement
from edgespec.cli import main
from edgespec.commands.draft_sample import Sample
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import (
    ConfigError,
    EdgespecError,
    ExportError,
    IncompatiblePair,
    ModelError,
    ModelFormatError,
)
from edgespec.exporters import draft, head, layers
from edgespec.exporters.cut import Rewrite, _kinds, tensor_bytes, write
from edgespec.exporters.draft import GGUFSource, Variant, describe, make
from edgespec.gguf import GGUFHeader, StringArray, read_header
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, SamplingParams
from edgespec.session import CancelFlag, Logits, TokenIds
from edgespec.terminal import printable
from edgespec.trial import Text, Trial, acceptance, ranked, table, tried, verdict
from edgespec.tune import Choice

OPTIONS = LoadOptions(threads=1)
SIZE = len(spm_vocabulary()[0])
TEXT = [1, *(3 + (7 * i) % (SIZE - 3) for i in range(2 * WINDOW))]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "whole.gguf", layers=4)


def logits_of(path: Path, tokens: Sequence[int], rows: int) -> Logits:
    model = load_model(path, OPTIONS, CancelFlag())
    try:
        return model.session.forward(list(tokens), rows).copy()
    finally:
        model.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kept_of(path: Path, number: int = 200, *tokens: int) -> head.Ids:
    return head.frequent(read_header(path), Counter(tokens), number, [2])


# ------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first:3", (0, 1, 2)),
        ("last:2", (8, 9)),
        ("first:2,last:1", (0, 1, 9)),
        ("0-2, 5 ,8-9", (0, 1, 2, 5, 8, 9)),
        ("9,0,0", (0, 9)),
        ("auto:4", layers.Automatic(4)),
    ],
)
def test_which_blocks_to_keep(text: str, expected: object) -> None:
    assert layers.parse(text, 10) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("first:11", "11 of 10"),
        ("first:0", "0 of 10"),
        ("10", "no block 10"),
        ("5-3", "no block 5-3"),
        ("auto:3,last:1", "name no others"),
        ("middle:3", "middle:3"),
        ("", "''"),
    ],
)
def test_blocks_that_make_no_sense(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        layers.parse(text, 10)


def test_cut_blocks_are_the_originals_and_all_else_is_as_it_was(
    whole: Path, tmp_path: Path
) -> None:
    made = make(whole, tmp_path / "cut.gguf", Variant(blocks=(0, 2, 3)))
    old, new = read_header(whole), read_header(made)
    assert new.metadata["llama.block_count"] == 3
    assert new.metadata[narrow.BLOCKS].tolist() == [0, 2, 3]  # type: ignore[union-attr]
    for tensor in new.tensors:
        name = tensor.name
        for number, original in enumerate((0, 2, 3)):
            if name.startswith(f"blk.{number}."):
                name = name.replace(f"blk.{number}.", f"blk.{original}.")
                break
        assert (tensor_bytes(new, tensor.name) == tensor_bytes(old, name)).all()
    assert len(new.tensors) == len(old.tensors) - 9
    kinds = _kinds(new)
    for key, kind in _kinds(old).items():
        assert kinds[key] == kind
        if key != "llama.block_count":
            before: Any = old.metadata[key]
            after: Any = new.metadata[key]
            if isinstance(before, StringArray):
                before, after = list(before), list(after)
            assert np.array_equal(before, after)


def test_two_ways_to_leave_blocks_out_agree(whole: Path, tmp_path: Path) -> None:
    """What the ablation finds in passes of the whole model, and the same blocks cut out of it."""
    ablation = Ablation(whole, TEXT, OPTIONS, CancelFlag())
    try:
        assert ablation.change(()) == 0.0
        for kept in ((0, 2, 3), (0, 1, 2), (0, 3), (0,)):
            made = make(whole, tmp_path / f"{kept}.gguf", Variant(blocks=kept))
            total = 0.0
            for begin in (0, WINDOW):
                before, after = (
                    logits_of(path, TEXT[begin : begin + WINDOW], WINDOW // 2).astype(np.float64)
                    for path in (whole, made)
                )
                before -= np.log(np.exp(before).sum(axis=1, keepdims=True))
                after -= np.log(np.exp(after).sum(axis=1, keepdims=True))
                total += float((np.exp(before) * (before - after)).sum())
            without = set(range(4)) - set(kept)
            assert ablation.change(without) == pytest.approx(total / WINDOW, rel=1e-3)
        with pytest.raises(ValueError, match="first block"):
            ablation.change({0, 1})
    finally:
        ablation.close()


def test_an_ablation_needs_some_text(whole: Path) -> None:
    with pytest.raises(ModelError, match="128 tokens"):
        Ablation(whole, TEXT[:50], OPTIONS, CancelFlag())


def test_a_vocabulary_that_would_end_the_process_is_refused_first(tmp_path: Path) -> None:
    tokens, types = spm_vocabulary()
    twins = write_tiny(tmp_path / "twins.gguf", tokens=[*tokens[:-1], tokens[-2]], types=types)
    with pytest.raises(ModelFormatError, match="the same token twice"):
        Ablation(twins, TEXT, OPTIONS, CancelFlag())


def test_the_least_missed_blocks_go_one_by_one() -> None:
    asked: list[frozenset[int]] = []

    def change(without: Collection[int]) -> float:
        """1 and 2 stand in for each other: either may go, but not both."""
        asked.append(frozenset(without))
        return sum({1: 0.1, 2: 0.2, 3: 0.5, 4: 0.9}[b] for b in without) + 9 * (
            {1, 2} <= {*without}
        )

    assert layers.least_missed(change, 5, 5) == (0, 1, 2, 3, 4)
    assert layers.least_missed(change, 5, 4) == (0, 2, 3, 4)
    assert layers.least_missed(change, 5, 3) == (0, 2, 4)
    assert layers.least_missed(change, 5, 1) == (0,)
    assert not any(0 in without for without in asked)
    for blocks, number in ((5, 5), (5, 4), (5, 2), (12, 1), (12, 5)):
        asked.clear()
        layers.least_missed(lambda w: asked.append(w) or float(sum(w)), blocks, number)
        assert len(asked) == layers.tries(blocks, number)


def test_what_a_file_says_of_each_block_is_cut_too(tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "a.gguf",
        layers=4,
        metadata={
            "general.architecture": "gemma3",
            "gemma3.block_count": 4,
            "gemma3.attention.head_count_kv": [4, 3, 2, 1],
            "gemma3.rope.dimension_sections": [1, 2, 3, 4],  # four of something else
        },
    )
    rewrite = Rewrite(read_header(path))
    layers.keep(rewrite, (1, 2, 3))
    assert rewrite.metadata["gemma3.attention.head_count_kv"] == (
        [3, 2, 1],
        gguf.GGUFValueType.ARRAY,
        gguf.GGUFValueType.INT32,
    )
    assert "gemma3.rope.dimension_sections" not in rewrite.metadata


def test_windows_stay_with_their_blocks(tmp_path: Path) -> None:
    """Of Gemma 3's blocks every sixth sees the whole text, whatever number it has then."""
    path = write_tiny(
        tmp_path / "a.gguf",
        layers=12,
        metadata={"general.architecture": "gemma3", "gemma3.block_count": 12},
    )
    rewrite = Rewrite(read_header(path))
    layers.keep(rewrite, (0, 4, 5, 6, 11))
    turns = rewrite.metadata["gemma3.attention.sliding_window_pattern"]
    assert turns is not None
    assert turns[0] == [True, True, False, True, False]


def test_blocks_that_a_new_number_would_change_are_refused(tmp_path: Path) -> None:
    """Of SmolLM3's every fourth isn't rotated; Gemma 2 27B is known by having 46."""

    def source(architecture: str, blocks: int) -> GGUFSource:
        metadata = {"general.architecture": architecture, f"{architecture}.block_count": blocks}
        path = tmp_path / f"{architecture}.gguf"
        return GGUFSource(read_header(write_tiny(path, layers=blocks, metadata=metadata)))

    smollm3 = source("smollm3", 12)
    for kept in ((0, 1, 2), (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 8)):
        layers.keep(Rewrite(smollm3.header), kept)
    for kept in ((0, 1, 2, 4), (8, 9, 11), (2, 3)):
        with pytest.raises(ExportError, match=r"every fourth block of smollm3 .*\(first:N\)"):
            layers.keep(Rewrite(smollm3.header), kept)
    with pytest.raises(ExportError, match="every fourth block of smollm3"):
        smollm3.ablation([1, 2], None)
    gemma = source("gemma2", 46)
    with pytest.raises(ExportError, match="scales the attention of gemma2 with 46 blocks"):
        layers.keep(Rewrite(gemma.header), range(45))
    layers.keep(Rewrite(gemma.header), range(46))
    layers.keep(Rewrite(source("gemma2", 26).header), range(20))


def test_models_whose_blocks_cant_be_cut(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "a.gguf", metadata={"llama.nextn_predict_layers": 1})
    with pytest.raises(ExportError, match="further tokens"):
        make(path, tmp_path / "b.gguf", Variant(blocks=(0,)))
    part = write_tiny(tmp_path / "c.gguf", metadata={"split.count": 2})
    with pytest.raises(ExportError, match="merge its parts"):
        make(part, tmp_path / "b.gguf", Variant(blocks=(0,)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "c.gguf"]


def test_blocks_as_people_write_them() -> None:
    assert describe((0, 1, 2, 5, 8, 9), 10) == "0-2,5,8-9 of 10"


# ------------------------------------------------------------------------------ tokens


def test_which_tokens_a_head_keeps(tmp_path: Path) -> None:
    tokens, types = spm_vocabulary(["often", "rare"])
    tokens += [b"<turn>", b"<other>", b"<pad>"]
    types += [CONTROL, CONTROL, UNUSED]
    turn, rare = len(tokens) - 3, len(tokens) - 4
    path = write_tiny(
        tmp_path / "a.gguf",
        tokens=tokens,
        types=types,
        metadata={
            "tokenizer.chat_template": "{{ '<turn>' }}",
            "tokenizer.ggml.padding_token_id": turn + 2,
        },
    )
    header = read_header(path)
    kept = head.frequent(header, Counter({rare: 1, rare - 1: 3, turn + 2: 9, 99999: 5}), 20, [270])
    assert {1, 2, turn, 270, rare, rare - 1} <= set(kept.tolist())  # BOS, EOS, asked for, seen
    assert turn + 1 not in kept  # a control token that the template doesn't use
    assert len(kept) == 20 and (np.diff(kept) > 0).all()
    few = head.frequent(header, Counter({rare: 1, rare - 1: 3}), 6, [])
    assert set(few.tolist()) == {1, 2, turn, turn + 2, rare - 1, rare}  # the padding id is named
    fewer = head.frequent(header, Counter({rare: 1, rare - 1: 3}), 5, [])
    assert rare - 1 in fewer and rare not in fewer
    for number in (0, 4, len(tokens), 10**6):
        with pytest.raises(ConfigError, match=f"a head of {number} tokens is no selection"):
            head.frequent(header, Counter(), number, [])


def test_a_narrow_head_says_what_the_whole_one_says_of_its_tokens(
    whole: Path, tmp_path: Path
) -> None:
    kept = kept_of(whole, 100, SIZE - 1, SIZE - 2)
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept))
    assert SIZE - 1 in kept and not set(TEXT) <= set(kept.tolist())  # it reads what it can't say
    with_all = logits_of(whole, TEXT, 70)
    rows = logits_of(made, TEXT, 70)  # more than llama.cpp gives at once
    assert rows.shape == with_all.shape
    np.testing.assert_allclose(rows[:, kept], with_all[:, kept], rtol=1e-4, atol=1e-4)
    rest = np.setdiff1d(np.arange(SIZE), kept)
    assert (rows[:60, rest] == -np.inf).all()


def test_tokens_of_the_text_have_a_row_while_it_lasts(whole: Path, tmp_path: Path) -> None:
    kept = kept_of(whole, 60)
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept))
    model, original = (load_model(path, OPTIONS, CancelFlag()) for path in (made, whole))
    text = TEXT[:40]
    outside = sorted(set(text) - set(kept.tolist()))
    assert len(outside) > 20
    for session in (model.session, original.session):
        session.forward(text[:36])  # too many at once for what the head saw
    for begin, end in ((36, 38), (38, 39), (39, 40)):
        rows = model.session.forward(text[begin:end], end - begin).copy()
        expected = original.session.forward(text[begin:end], end - begin)
        known = sorted({*kept.tolist(), *text[:end]})
        np.testing.assert_allclose(rows[:, known], expected[:, known], rtol=1e-3, atol=1e-3)
        others = np.setdiff1d(np.arange(SIZE), known)
        assert (rows[:, others] == -np.inf).all()
    model.session.rollback(30)
    again = model.session.forward(text[30:], 1)  # ten tokens: all of them shown
    assert np.isfinite(again[0, outside]).all()
    long = model.session.forward(TEXT[40:80], 1)
    assert (np.isfinite(long[0]).nonzero()[0] == kept).all()  # nothing stale
    model.close()
    original.close()


def test_of_too_many_tokens_the_newest_have_a_row(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(whole)
    offset = next(t.offset for t in header.tensors if t.name == "output.weight")
    head_table = narrow.Table(narrow.F32, offset, SIZE, 32)
    rows = narrow.TableRows(whole, head_table)
    occurred = narrow.Occurred(np.arange(10, dtype=np.int32), rows, head_table)
    occurred.add([3, 20, 20, 11])
    assert occurred.ids.tolist() == [11, 20]
    occurred.add([20, 15, 9])
    assert occurred.ids.tolist() == [11, 20, 15]
    weights = tensor_bytes(header, "output.weight").view("<f4")
    hidden = np.ones((2, 32), np.float32)
    expected = hidden @ weights[[11, 20, 15]].T
    np.testing.assert_allclose(occurred.logits(hidden), expected, rtol=1e-5)
    monkeypatch.setattr(narrow, "_MOST", 4)
    occurred.add([30, 31])
    assert occurred.ids.tolist() == [20, 15, 30, 31]
    occurred.add([20])
    occurred.add([40])
    assert occurred.ids.tolist() == [20, 30, 31, 40]  # what came again isn't the oldest any more
    expected = hidden @ weights[[20, 30, 31, 40]].T
    np.testing.assert_allclose(occurred.logits(hidden), expected, rtol=1e-5)


def test_a_head_that_is_no_product_drafts_its_own_tokens_alone(whole: Path, tmp_path: Path) -> None:
    """The rows in the second table aren't those of the head: it is seen, and they aren't used."""
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept_of(whole, 60)))
    found = narrow.read(read_header(made))
    assert found is not None and found.head != found.embeddings
    data = np.fromfile(made, np.uint8)
    rows = data[found.head.offset :].reshape(SIZE, -1)
    rows[:] = rows[::-1].copy()
    data.tofile(made)
    model = load_model(made, OPTIONS, CancelFlag())
    model.session.forward(TEXT[:40])
    row = model.session.forward(TEXT[40:41])[0]
    assert (np.isfinite(row).nonzero()[0] == found.kept).all()
    model.close()


def test_a_head_that_is_the_embeddings_needs_one_table(whole: Path, tmp_path: Path) -> None:
    old = read_header(whole)
    tied = Rewrite(old)
    tied.renamed["output.weight"] = None
    write(tied, tmp_path / "tied.gguf")
    kept = kept_of(whole, 60)
    made = make(tmp_path / "tied.gguf", tmp_path / "narrow.gguf", Variant(kept=kept))
    found = narrow.read(read_header(made))
    assert found is not None and found.head == found.embeddings
    assert made.stat().st_size == found.embeddings.offset + SIZE * 32 * 4
    rows = []
    for path in (tmp_path / "tied.gguf", made):
        model = load_model(path, OPTIONS, CancelFlag())
        model.session.forward(TEXT[:40])
        rows.append(model.session.forward(TEXT[40:42])[0].copy())
        model.close()
    known = sorted({*kept.tolist(), *TEXT[:42]})
    np.testing.assert_allclose(rows[1][known], rows[0][known], rtol=1e-3, atol=1e-3)


def test_a_narrow_session_is_a_session(whole: Path, tmp_path: Path) -> None:
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept_of(whole)))
    model = load_model(made, OPTIONS, CancelFlag())
    session = model.session
    session.forward(TEXT[:20])
    expected = session.forward(TEXT[20:30], 3).copy()
    session.rollback(20)
    np.testing.assert_allclose(session.forward(TEXT[20:30], 3), expected, atol=1e-5)
    for wrong in (-1, SIZE, 2**31):
        with pytest.raises(ModelError, match="outside its vocabulary"):
            session.forward([wrong])
    assert session.length == 30
    with pytest.raises(ModelError, match="can only draft"):
        model.tokenizer.encode("a")
    model.close()


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gemma4"])
def test_what_multiplies_ids_and_not_rows(architecture: str, tmp_path: Path) -> None:
    """In llama.cpp Gemma's embeddings are scaled where they are those of ids."""
    path = write_tiny(tmp_path / "a.gguf", architecture=architecture)
    rewrite = Rewrite(read_header(path))
    head.narrow_head(rewrite, kept_of(path), small_table=False)
    scale = 1 if architecture == "llama" else 32**0.5
    found = rewrite.metadata[narrow.SCALE]
    assert found is not None and found[0] == pytest.approx(scale)


def test_a_head_whose_rows_have_other_positions_is_refused(tmp_path: Path) -> None:
    """M-RoPE: four to each row, where an id has one."""
    path = write_tiny(
        tmp_path / "sees.gguf",
        architecture="qwen2vl",
        metadata={"qwen2vl.rope.dimension_sections": [2, 3, 3, 0]},
    )
    assert np.isfinite(logits_of(path, TEXT[:20], 1)).all()
    with pytest.raises(ModelFormatError, match="can't be narrowed: leave --vocab out"):
        make(path, tmp_path / "narrow.gguf", Variant(kept=kept_of(path)))
    assert names(tmp_path) == ["sees.gguf"]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_the_table_of_embeddings(kind: str, tmp_path: Path, whole: Path) -> None:
    """However the original stores them: as they are, or in 8 bits where we can't read that."""
    old = read_header(whole)
    floats = tensor_bytes(old, "token_embd.weight").view("<f4")
    stored = gguf.GGMLQuantizationType[kind]
    source = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    for key, (value_kind, items) in _kinds(old).items():
        if key != "general.architecture":
            value: Any = old.metadata[key]
            if isinstance(value, np.ndarray):
                value = value.tolist()
            writer.add_key_value(key, value, value_kind, items)
    for tensor in old.tensors:
        data = tensor_bytes(old, tensor.name).view("<f4")
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, gguf.quants.quantize(data, stored), raw_dtype=stored)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = make(source, tmp_path / "narrow.gguf", Variant(kept=kept_of(source)))
    header = read_header(made)
    found = narrow.read(header)
    assert found is not None
    assert found.embeddings.type == (narrow.Q8_0 if kind == "Q4_0" else stored)
    got = np.empty((SIZE, 32), np.float32)
    narrow.TableRows(made, found.embeddings).read(np.arange(SIZE), got)
    exact = gguf.quants.dequantize(gguf.quants.quantize(floats, stored), stored)
    atol = 0.02 if kind == "Q4_0" else 0.0
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=atol)


def test_drafting_with_a_narrow_head_changes_no_text(whole: Path, tmp_path: Path) -> None:
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept_of(whole)))
    prompt = TEXT[:40]
    texts = []
    for drafters in ([], [str(made)]):
        with Runtime.open(target=whole, drafters=drafters, lookahead=3, threads=1) as runtime:
            results = [
                runtime.generate(prompt, sampling, max_tokens=40).result
                for sampling in (
                    GREEDY,
                    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3),
                    SamplingParams(
                        seed=4, repetition_penalty=1.3, logit_bias={5: 2.0, SIZE - 1: 3}
                    ),
                )
            ]
            texts.append([result.tokens for result in results])
            if drafters:
                assert all(result.counters.accepted for result in results)
    assert texts[0] == texts[1]


def test_a_narrow_head_is_no_target_and_drafts_only_for_its_own_tokens(
    whole: Path, tmp_path: Path
) -> None:
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept_of(whole)))
    with pytest.raises(ConfigError, match=r"can only draft.*--drafter"):
        Runtime.open(target=made, drafters=[], threads=1)
    tokens, types = spm_vocabulary()
    other = write_tiny(tmp_path / "other.gguf", tokens=[*tokens[:-1], b"other"], types=types)
    with pytest.raises(IncompatiblePair, match=r"narrow\.gguf can't draft for other\.gguf"):
        Runtime.open(target=other, drafters=[str(made)], threads=1)
    with pytest.raises(ExportError, match="narrow head already"):
        make(made, tmp_path / "again.gguf", Variant(kept=kept_of(whole, 100)))


def test_a_file_without_its_table_is_refused(whole: Path, tmp_path: Path) -> None:
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept_of(whole)))
    data = made.read_bytes()
    begin = narrow.table_offset(read_header(made))
    assert len(data) == begin + 2 * SIZE * 32 * 4
    for end in (len(data) - 1, begin + SIZE * 32 * 4, begin):
        made.write_bytes(data[:end])
        with pytest.raises(ModelFormatError, match=r"lost the embedding table.*edgespec draft"):
            load_model(made, OPTIONS, CancelFlag())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (narrow.KEPT, ([*range(199), 198], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)),
        (narrow.KEPT, (list(range(-1, 199)), gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)),
        (narrow.KEPT, (list(range(199)), gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)),
        (narrow.KEPT, ([0.5] * 200, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32)),
        (narrow.VOCAB_SIZE, (150, gguf.GGUFValueType.UINT32, None)),
        (narrow.VOCAB_SIZE, (2**31, gguf.GGUFValueType.UINT32, None)),
        (narrow.VOCAB_SIZE, None),
        (narrow.TABLE_TYPE, (3, gguf.GGUFValueType.UINT32, None)),
        (narrow.SCALE, (float("nan"), gguf.GGUFValueType.FLOAT32, None)),
        ("llama.vocab_size", (199, gguf.GGUFValueType.UINT32, None)),
    ],
)
def test_damaged_narrow_heads(key: str, value: Any, whole: Path, tmp_path: Path) -> None:
    made = damaged(whole, tmp_path, {key: value})
    with pytest.raises(EdgespecError, match=r"broken\.gguf"):
        load_model(made, OPTIONS, CancelFlag())


def damaged(whole: Path, folder: Path, metadata: dict[str, Any]) -> Path:
    """A narrow file with other metadata than it should have, past the gate."""
    header = read_header(whole)
    rewrite = Rewrite(header)
    head.narrow_head(rewrite, kept_of(whole), small_table=False)
    rewrite.metadata |= metadata
    made = folder / "broken.gguf"
    write(rewrite, made)
    with made.open("r+b") as file:
        file.seek(narrow.table_offset(read_header(made)))
        for name in ("token_embd.weight", "output.weight"):
            file.write(tensor_bytes(header, name).tobytes())
    return made


def test_the_gate_finds_embeddings_fed_wrongly(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = damaged(whole, tmp_path, {})
    assert agreement(right, OPTIONS) > 0.9999
    scaled = (30.0, gguf.GGUFValueType.FLOAT32, None)
    wrong = damaged(whole, tmp_path, {narrow.SCALE: scaled})
    assert agreement(wrong, OPTIONS) < draft._ALIKE

    def backwards(header: GGUFHeader, name: str, kind: int) -> list[Any]:
        return [tensor_bytes(header, name)[::-1]]

    monkeypatch.setattr(head, "_rows", backwards)
    with pytest.raises(ExportError, match="would draft nonsense"):
        make(whole, tmp_path / "shifted.gguf", Variant(kept=kept_of(whole)))
    assert not (tmp_path / "shifted.gguf").exists()


def test_everything_at_once(whole: Path, tmp_path: Path) -> None:
    kept = kept_of(whole)
    variant = Variant(blocks=(0, 2), kept=kept, quant="q8_0")
    made = make(whole, tmp_path / "small.gguf", variant)
    header = read_header(made)
    assert {t.type for t in header.tensors if "ffn" in t.name and "norm" not in t.name} == {8}
    found = narrow.read(header)
    assert found is not None and found.embeddings.type == found.head.type == narrow.Q8_0
    assert (found.kept == kept).all()
    cut = make(whole, tmp_path / "cut.gguf", Variant(blocks=(0, 2)))
    before, after = logits_of(cut, TEXT, 8), logits_of(made, TEXT, 8)
    for wide, small in zip(before, after, strict=True):
        assert np.corrcoef(wide[kept], small[kept])[0, 1] > 0.99


def test_a_disk_that_takes_no_more_is_told_with_its_reason(whole: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    kept = kept_of(whole)
    made = make(whole, tmp_path / "narrow.gguf", Variant(kept=kept))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    end = narrow.table_offset(read_header(made)) + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (end, hard))  # the table doesn't go in
    try:
        with pytest.raises(ExportError, match=r"^Can't write .*again\.gguf: File too large"):
            make(whole, tmp_path / "again.gguf", Variant(kept=kept))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "again.gguf").exists()


def test_quantising_alone(whole: Path, tmp_path: Path) -> None:
    made = make(whole, tmp_path / "q.gguf", Variant(quant="q4_0"))
    again = make(made, tmp_path / "qq.gguf", Variant(quant="q8_0"))  # from quantised weights
    assert {t.type for t in read_header(again).tensors if "ffn_up" in t.name} == {8}
    with pytest.raises(ConfigError, match="q9_9"):
        make(whole, tmp_path / "r.gguf", Variant(quant="q9_9"))
    for nothing in (Variant(), Variant(blocks=(0, 1, 2, 3))):
        with pytest.raises(ConfigError, match="nothing is to be cut"):
            make(whole, tmp_path / "r.gguf", nothing)
    assert whole.exists()
    with pytest.raises(ExportError, match="exists already"):
        make(whole, made, Variant(quant="q8_0"))
    with pytest.raises(ConfigError, match="is the model itself"):
        make(made, made, Variant(quant="q8_0"), overwrite=True)


# ------------------------------------------------------------------------------ exactness


class NarrowFake(FakeSession):
    """A fake with a head of a few tokens, widened by the real code."""

    def __init__(self, kept: Sequence[int], size: int, **options: Any) -> None:
        super().__init__(size, **options)
        self._kept = np.array(kept, np.int32)
        self._widener = narrow.Widener(self._kept, self.vocab_size)

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        return self._widener.widen(super().forward(tokens, num_logits)[:, self._kept])


HEADS = {"most": (0, 1, 3, 4), "two": (1, 4), "one": (3,)}


@pytest.mark.parametrize("kept", HEADS)
@pytest.mark.parametrize("rule", ["rejection", "reproducible"])
@pytest.mark.parametrize("sampler", ["temperature", "top_k", "all"])
def test_narrow_drafts_keep_the_joint_distribution(sampler: str, rule: str, kept: str) -> None:
    """1e-6 odds of a false alarm each."""
    params = replace(SAMPLERS[sampler], rule=rule)
    target = target_model()
    drafter = ModelDrafter(fake_model(NarrowFake(HEADS[kept], V, scale=1.2, noise=0.2)))
    sample = [answer(target, [drafter], replace(params, seed=seed)) for seed in range(400)]
    assert all(len(text) == DEPTH for text in sample)
    assert fit(sample, joint(target, params)).good


def test_a_drafter_that_hides_its_narrow_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake these tests are for: probabilities of tokens that it could never have drafted."""
    params = replace(OFF, rule="rejection")
    target = target_model()

    class Hides(NarrowFake):
        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            rows = super().forward(tokens, num_logits).copy()
            rows[:, -len(self._kept) :] = rows[:, self._kept]  # ids not mapped back
            return rows

    drafter = ModelDrafter(fake_model(Hides((0, 1), V, scale=1.2, noise=0.0)))
    sample = [answer(target, [drafter], replace(params, seed=seed)) for seed in range(400)]
    assert fit(sample, joint(target, params)).good  # even a wrong map is only a bad drafter
    real = ModelDrafter(fake_model(NarrowFake((0, 1), V, scale=1.2)))
    propose = real.propose

    def lying(*args: Any, **named: Any) -> Any:
        proposed = propose(*args, **named)
        assert proposed.probs is not None
        flat = [type(p)(None, np.full(V, 1 / V)) for p in proposed.probs]
        return replace(proposed, probs=tuple(flat))

    monkeypatch.setattr(real, "propose", lying)
    sample = [answer(target, [real], replace(params, seed=seed)) for seed in range(400)]
    assert not fit(sample, joint(target, params)).good


def test_narrow_drafts_leave_reproducible_text_alone() -> None:
    """The same noise for the same id: a narrow drafter of the target's own rows is often right."""
    size = 3000
    kept = list(range(0, size, 2))
    for cut in (
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=5),
        SamplingParams(seed=6),
    ):
        target = FakeSession(size, order=1)
        plain = answer(target, [], cut, max_tokens=40)
        for lookahead in (1, 4, 8):
            drafter = ModelDrafter(fake_model(NarrowFake(kept, size, order=1)))
            assert answer(target, [drafter], cut, lookahead=lookahead, max_tokens=40) == plain
        row = drafter.model.session.forward([*PROMPT])[0]
        assert np.isfinite(row[: len(row)]).sum() == len(kept)


def test_narrow_drafts_use_the_noise_of_their_ids() -> None:
    """Where the target's token is in the head, a drafter with the target's rows names it."""
    from edgespec.sampling import Sampler

    target, params = FakeSession(400, order=1), replace(OFF, seed=11)
    kept = list(range(100, 400, 3))
    drafter = NarrowFake(kept, 400, order=1)
    same = tried_positions = 0
    for position in range(300):
        sampler = Sampler(params, 400)
        row = target.row([position % 400])
        drafter.rollback(0)
        guess = sampler.choose(drafter.forward([position % 400])[0], (), position)
        assert guess in kept
        chosen = sampler.choose(row, (), position)
        if chosen in kept:
            tried_positions += 1
            same += guess == chosen
    assert tried_positions > 50
    assert same == tried_positions  # what wins among all wins among a part of them


# ------------------------------------------------------------------------------ worth


def texts_of(target: FakeSession, prompts: Sequence[Sequence[int]], length: int) -> list[Text]:
    texts = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(length):
            tokens.append(int(np.argmax(target.row(tokens)[:16])))
        texts.append(Text(tuple(prompt), tuple(tokens[len(prompt) :])))
    return texts


def test_acceptance_is_the_chance_of_a_draft_token() -> None:
    target = FakeSession(16, padding=4)
    texts = texts_of(target, [(1, 2, 3), (4, 5), (6,)], 90)
    assert acceptance(target, texts, 16) == 1.0
    other = FakeSession(16, padding=4, noise=0.3)
    right = sum(
        int(np.argmax(other.row([*text.prompt, *text.answer[:i]])[:16])) == text.answer[i]
        for text in texts
        for i in range(1, 90)
    )
    assert acceptance(other, texts, 16) == right / (3 * 89)
    assert 0.1 < right / (3 * 89) < 0.9
    assert other.length == 0
    # What a maker suppresses no drafter names.
    banned = {token for text in texts for token in text.answer[1::2]}
    never = sum(token in banned for text in texts for token in text.answer[1:])
    assert never and acceptance(target, texts, 16, banned) == 1 - never / (3 * 89)
    # A drafter with fewer tokens isn't given those that it lacks, and names nothing behind them.
    fewer = FakeSession(14)
    texts = [Text((1, 15, 2), (3, 4, 15, 5, 6))]
    acceptance(fewer, texts, 16)
    assert [fed for fed, _ in fewer.passes] == [2, 1, 1, 1]
    for ended in ([], [Text((1,), (2,)), Text((1,), ())]):  # nothing that is ever drafted
        with pytest.raises(ConfigError, match=r"end with their first token.*--prompts"):
            acceptance(other, ended, 16)


def test_a_trial_measures_both_and_the_table_ranks() -> None:
    target, drafter = FakeSession(16, seconds=0.0004), FakeSession(16, seconds=0.0001)
    trial = tried("twin", 5_000_000, target, drafter, texts_of(target, [(1, 2)], 40), 16)
    assert trial.acceptance == 1.0
    assert trial.step > 0
    assert target.length == drafter.length == 0
    poor = Trial("poor", 1, 0.9, 0.2, Choice(0, 1.0))
    poorer = Trial("poorer", 1, 0.9, 0.1, Choice(0, 1.0))
    best = Trial("best", 2_000_000, 0.2, 0.8, Choice(4, 1.71))
    assert [t.name for t in ranked([poorer, best, poor])] == ["best", "poor", "poorer"]
    lines = table([poorer, best, poor], lambda n: f"{n} B")
    assert [line.split()[0] for line in lines] == ["DRAFTER", "best", "poor", "poorer"]
    wide = table([replace(best, name="模型\x1b.gguf"), poor], lambda n: f"{n} B")
    assert {cell_len(line) for line in wide} == {cell_len(wide[0])}
    assert wide[1].startswith("模型\u241b.gguf ")
    assert lines[1].split()[-2:] == ["4", "1.71"] and lines[2].split()[-2:] == ["none", "-"]
    assert "best pays most for t.gguf" in verdict([poor, best], "t.gguf")
    assert "1.71 times" in verdict([poor, best], "t.gguf")
    assert "None of these drafters pays for t.gguf" in verdict([poorer, poor], "t.gguf")


def test_the_command_makes_measures_and_says_what_pays(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ["--layers", "auto:2", "--layers", "first:3", "--vocab", "200", "--quant", "q8_0"]
    command = ["draft", str(whole), str(out), *asked, "--max-tokens", "8", "--threads", "1"]
    assert main(command) == 0
    shown = capsys.readouterr()
    made = sorted(path.name for path in out.iterdir())
    assert made == ["whole-auto2-v200-q8_0.gguf", "whole-first3-v200-q8_0.gguf"]
    assert "blocks 0-2 of 4" in shown.err
    lines = shown.out.splitlines()
    assert lines[2].split() == ["DRAFTER", "SIZE", "STEP", "ACCEPTANCE", "LOOKAHEAD", "GAIN"]
    assert {line.split()[0] for line in lines[3:5]} == set(made)
    assert " on this machine: " in lines[-1]
    header = read_header(out / made[1])
    found = narrow.read(header)
    assert found is not None and len(found.kept) == 200
    assert main(command) == 1
    assert "exists already" in capsys.readouterr().err


def test_home_folders_that_no_shell_has_written_out_are_found(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    own = f"~/{whole.relative_to(tmp_path)}"
    command = ["draft", own, "~/out.gguf", f"--from={own}", "--layers", "first:3"]
    assert main([*command, "--no-measure"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.gguf")


@pytest.mark.parametrize("number", ["2", "99999"])
def test_a_head_that_is_no_selection_is_refused_before_the_target_answers(
    number: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["draft", str(whole), str(tmp_path / "out.gguf"), "--vocab", number]
    assert main([*command, "--threads", "1"]) == 1
    err = capsys.readouterr().err
    assert f"a head of {number} tokens is no selection" in err and "answering" not in err


@pytest.mark.parametrize("number", ["0", "1"])
def test_answers_too_short_to_draft_in_are_refused(
    number: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["draft", str(whole), str(tmp_path / "out.gguf"), "--layers", "first:2"]
    command += ["--max-tokens", number]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "leaves nothing to draft: --max-tokens 2" in line
    assert main([*command, "--threads", "1", "--no-measure"]) == 0  # where nothing is judged


def test_the_numbers_that_a_refused_head_may_have_are_the_real_ones(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the target's texts end by tokens that the model to cut doesn't name."""
    other = tmp_path / "other.gguf"
    write_tiny(other, metadata={"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 6})
    command = ["draft", str(other), str(tmp_path / "out.gguf"), "--from", str(whole), "--threads"]
    command += ["1", "--no-measure", "--vocab"]
    assert main([*command, "2"]) == 1
    least = int(capsys.readouterr().err.split("choose from ")[1].split()[0])
    assert main([*command, str(least - 1)]) == 1
    assert main([*command, str(least)]) == 0


def test_answers_with_nothing_to_judge_by_are_refused_before_the_cutting(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sample, "_answers", lambda self, prompts: iter([Text((1, 2), (3,))]))
    command = ["draft", str(whole), str(tmp_path / "new" / "out.gguf"), "--layers", "first:2"]
    assert main([*command, "--threads", "1"]) == 1
    shown = capsys.readouterr()
    assert "nothing to judge a drafter by" in shown.err and not shown.out
    assert names(tmp_path) == ["whole.gguf"]


@pytest.mark.skipif(sys.platform == "win32", reason="names hold no control characters there")
@pytest.mark.parametrize("terminal", [True, False])
def test_names_reach_a_terminal_as_what_they_are(
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = write_tiny(tmp_path / "a.gguf", layers=2)
    out = tmp_path / "red\x1b[31m.gguf"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    command = ["draft", str(whole), str(out), "--layers", "first:1", "--max-tokens", "4"]
    assert main([*command, "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert "measuring red\u241b[31m.gguf" in shown.err and "\x1b" not in shown.err
    assert shown.out.splitlines()[0] == (printable(str(out)) if terminal else str(out))


def test_no_threads_at_all_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["draft", "a.gguf", "b.gguf", "--layers", "first:2", "--threads", "0"])
    assert "0 is below 1" in capsys.readouterr().err


def test_without_the_extra_the_command_that_installs_it_is_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else real(name, *a)
    )
    assert main(["draft", str(whole), str(tmp_path / "out.gguf"), "--layers", "first:2"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "drafters needs gguf" in line and "pip install 'edgespec[gguf]'" in line


def test_drafting_imports_nothing_of_the_extra_before_it_asks_for_it() -> None:
    code = "import sys; sys.modules['gguf'] = None\nfrom edgespec.cli import main\n"
    code += "sys.exit(main(['draft', 'a.gguf', 'b.gguf', '--layers', 'first:2']))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "edgespec: making GGUF files" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")
def test_a_path_that_models_toml_cant_hold_is_refused_before_any_work(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "config"))
    odd = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    command = ["draft", str(whole), str(odd), "--layers", "first:2", "--threads", "1"]
    assert main([*command, "--register", "tiny"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert r"caf\udce9.gguf' holds bytes that aren't UTF-8" in line
    assert main([*command, "--no-measure"]) == 0 and odd.is_file()  # which writes no name down
    command = ["draft", str(whole), str(tmp_path / "out.gguf"), "--from", str(odd), "--layers"]
    assert main([*command, "first:1", "--threads", "1", "--register", "tiny"]) == 1
    assert r"caf\udce9.gguf' holds bytes" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([], "nothing is to be cut"),
        (["--layers", "first:9"], "9 of 4 blocks"),
        (["--quant", "q9"], "no type q9"),
        (["--quant", "iq2_m"], "iq2_m needs an importance matrix"),
        (["--vocab", "2"], "a head of 2 tokens"),
        (["--vocab", "100", "--sample", "nowhere.txt"], "can't read nowhere.txt"),
        (["--layers", "auto:2", "--sample", "nowhere.txt"], "can't read nowhere.txt"),
        (["--layers", "first:2", "--sample", "nowhere.txt"], "nothing here depends on that"),
        (["--quant", "q4_0", "--sample", "nowhere.txt"], "nothing here depends on that"),
    ],
)
def test_what_cant_be_asked_for(
    asked: list[str], what: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["draft", str(whole), str(tmp_path / "out.gguf"), *asked, "--max-tokens", "2"]
    assert main([*command, "--threads", "1"]) == 1
    assert what in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["whole.gguf"]


def test_a_small_model_drafts_narrowly_for_a_larger_one(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--from`: the one that is cut is not the target; the uncut one is measured beside it."""
    small = write_tiny(tmp_path / "small.gguf", layers=1)
    out, text = tmp_path / "narrow.gguf", tmp_path / "texts"
    (text / ".git").mkdir(parents=True)
    (text / "a.md").write_text("some words " * 20, encoding="utf-8")
    (text / "picture.png").write_bytes(b"ZZZZZZ" * 99 + b"\0")
    (text / ".git" / "b.md").write_text("ZZZZZZ" * 99, encoding="utf-8")
    command = ["draft", str(whole), str(out), "--from", str(small), "--vocab", "45"]
    assert main([*command, "--sample", str(text), "--max-tokens", "4", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[2:4]} == {"narrow.gguf", "(uncut)"}
    kept = narrow.read(read_header(out))
    tokens = spm_vocabulary()[0]
    assert kept is not None
    letters = {letter: tokens.index(letter.encode()) in kept.kept for letter in "somewrd▁Z"}
    assert letters == {**dict.fromkeys("somewrd▁", True), "Z": False}


@pytest.mark.parametrize("measured", [True, False])
def test_a_model_with_other_tokens_is_refused_before_the_cutting(
    measured: bool, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, types = spm_vocabulary(["often"])
    tokens[5] = b"<other>"
    other = write_tiny(tmp_path / "other.gguf", tokens=tokens, types=types)
    command = ["draft", str(whole), str(tmp_path / "new" / "out.gguf"), "--from", str(other)]
    command += ["--layers", "first:1", "--threads", "1", *([] if measured else ["--no-measure"])]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "other.gguf can't draft for whole.gguf: token 5 is '<other>' there" in shown.err
    assert not shown.out and names(tmp_path) == ["other.gguf", "whole.gguf"]


def test_several_drafters_need_a_folder_and_it_is_asked_for_first(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out"
    file.write_text("mine")
    two = ["--vocab", "200", "--vocab", "100", "--max-tokens", "2", "--threads", "1"]
    for out, said in ((file, "is a file: 2 drafters need a folder"), (file / "deep", "can't make")):
        assert main(["draft", str(whole), str(out), *two]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and said in lines[0]  # no answers before it
    assert file.read_text() == "mine"
    # One that can't be made leaves no folder behind either.
    assert main(["draft", str(whole), str(tmp_path / "new" / "x.gguf"), "--vocab", "2"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole.gguf"]


def test_neither_the_target_nor_what_is_cut_is_written_over(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_tiny(tmp_path / "small.gguf", layers=2)
    before = whole.read_bytes()
    asked = ["--from", str(small), "--layers", "first:1", "--no-measure", "--force"]
    assert main(["draft", str(whole), str(whole), *asked]) == 1
    assert "is what is to be exported" in capsys.readouterr().err
    assert whole.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without pipes that have names")
def test_a_folder_of_samples_may_hold_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.commands.draft_sample import pieces

    opened = Path.open

    def closed(path: Path, *args: Any, **named: Any) -> Any:
        if path.name == "secret.md":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **named)

    monkeypatch.setattr(Path, "open", closed)
    (tmp_path / "secret.md").touch()
    (tmp_path / "a.md").write_text("some words", encoding="utf-8")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "linked.md").symlink_to(tmp_path / "a.md")
    assert list(pieces([tmp_path])) == ["some words", "some words"]
    with pytest.raises(ConfigError, match="can't read"):  # but one that is named is meant
        list(pieces([tmp_path / "gone"]))


def test_threads_and_names_that_reach_the_quantiser(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp.llama_cpp as lib

    from edgespec.exporters import gguf_quant, quantise

    native, used, names = lib.llama_model_quantize, [], []

    def counted(source: bytes, destination: bytes, params: Any) -> int:
        used.append(params.nthread)
        names.append(destination)
        return int(native(source, destination, params))

    monkeypatch.setattr(lib, "llama_model_quantize", counted)
    monkeypatch.setattr(quantise, "usable_cpus", lambda: 2)  # of 64, in a container
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    started: list[list[str]] = []
    popen = subprocess.Popen

    def here(command: list[str], **options: Any) -> Any:
        """The other process's work in this one, and a process that has nothing to do."""
        started.append(command)
        monkeypatch.setattr(sys, "argv", command[command.index("-c") + 1 :])
        with chdir(options.get("cwd") or "."):
            assert gguf_quant.main() == 0
        return popen([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(gguf_quant.subprocess, "Popen", here)
    folder = tmp_path / "J\u00f6rg"
    folder.mkdir()
    make(whole, folder / "one \u0142.gguf", Variant(quant="q8_0"), threads=1)
    monkeypatch.chdir(folder)
    make(whole, Path("usable.gguf"), Variant(quant="q8_0"))
    assert used == [1, 2] and len(started) == 2
    assert all(name.isascii() for name in names)  # all that Windows' llama.cpp can write to
    assert (folder / "usable.gguf").is_file()


def test_the_best_is_registered_if_it_pays(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgespec import trial
    from edgespec.registry import load_registry

    own = tmp_path / "config" / "models.toml"
    monkeypatch.setattr("edgespec.exporters.register.user_models_file", lambda: own)
    gain = 0.9

    def judged(name: str, nbytes: int, *rest: Any) -> Trial:
        found = tried(name, nbytes, *rest)
        return replace(found, choice=Choice(4, gain + 0.5 * ("first3" in name)))

    monkeypatch.setattr(trial, "tried", judged)
    command = ["draft", str(whole), str(tmp_path / "out"), "--layers", "first:2", "--layers"]
    command += ["first:3", "--max-tokens", "4", "--threads", "1", "--register", "tiny"]
    assert main([*command, "--no-measure"]) == 1
    assert "leave out --no-measure" in capsys.readouterr().err
    gain = 0.2
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "nothing was registered" in err and not own.exists()
    assert err.count("note: whole.gguf brings no chat template") == 1
    gain = 0.9
    assert main([*command, "--force"]) == 0
    assert "registered as tiny in" in capsys.readouterr().err
    pair = load_registry(own).pair("tiny")
    drafter = tmp_path / "out" / "whole-first3.gguf"
    assert pair.target.size_bytes == whole.stat().st_size
    assert [model.size_bytes for model in pair.models][1:] == [drafter.stat().st_size]
    assert pair.drafters[0] == "lookup" and pair.description.endswith("`edgespec draft`")
    assert main([*command, "--force"]) == 1  # before any work
    assert capsys.readouterr().err.count("\n") == 1


def test_an_uncut_model_is_not_described_as_cut(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.commands import draft_register
    from edgespec.registry import load_registry

    own = tmp_path / "models.toml"
    monkeypatch.setattr("edgespec.exporters.register.user_models_file", lambda: own)
    trial = Trial("(uncut)", 5, 0.2, 0.8, Choice(4, 1.5))
    draft_register.best("tiny", whole, [(trial, whole)], uncut=whole)
    assert load_registry(own).pair("tiny").description == f"{whole.name} with {whole.name}"


def test_making_drafters_needs_no_gguf_library_at_run_time() -> None:
    code = "import sys, edgespec.backends.llama_narrow; sys.exit('gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
