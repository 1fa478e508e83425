"""Drafters cut out of ONNX models: blocks, rows of the head, bits, and how they are read back."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from links import needs_links
from onnx import helper, numpy_helper
from tiny_gguf import spm_vocabulary, write_tiny
from tiny_onnx import WIDTH, write_tiny_onnx

from edgespec import narrow
from edgespec.backends import LoadOptions, load_model
from edgespec.cli import main
from edgespec.commands.draft import _destinations
from edgespec.commands.draft_sample import Choice
from edgespec.errors import ConfigError, ExportError, ModelFormatError
from edgespec.exporters import draft
from edgespec.exporters.draft import Variant, make, open_source
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY
from edgespec.session import CancelFlag, Logits

needs_ir = pytest.mark.skipif(
    importlib.util.find_spec("onnx_ir") is None, reason="needs onnx-ir, of the extra `export`"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch, of the extra `export`"
)
OPTIONS = LoadOptions(threads=1, context_size=64)
SIZE = len(spm_vocabulary()[0])
TEXT = [1, *(3 + (7 * i) % (SIZE - 3) for i in range(12))]
KEPT = np.array([1, 2, *range(5, SIZE, 2)], np.int32)
STYLES: list[dict[str, Any]] = [
    {"attention": "gqa", "external": True},
    {"attention": "gqa", "cache": "float16", "logits": "float16"},
    {"attention": "copy"},
    {"attention": "copy", "positions": False, "mask": False, "merged": True},
    {"attention": "copy", "rows": "logits_rows", "positions": False},
]


def says(path: Path, text: list[int] = TEXT) -> Logits:
    model = load_model(path, OPTIONS, CancelFlag())
    try:
        return np.concatenate([model.session.forward([token]).copy() for token in text])
    finally:
        model.close()


def rewrite(folder: Path, change: Any) -> Path:
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    return folder


def weights(path: Path) -> dict[str, Any]:
    model = onnx.load(path / "model.onnx")
    return {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}


# ------------------------------------------------------------------------------ blocks


@needs_ir
@pytest.mark.parametrize("style", STYLES)
def test_a_cut_graph_says_what_one_written_without_those_blocks_says(
    style: dict[str, Any], tmp_path: Path
) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=4, **style)
    made = make(whole, tmp_path / "cut", Variant(blocks=(0, 2)))
    # The same weights in a graph that never had more than two blocks.
    short = write_tiny_onnx(tmp_path / "short", layers=2, **style)
    old = {w.name: w for w in onnx.load(whole / "model.onnx").graph.initializer}

    def with_its_weights(model: Any) -> None:
        for weight in model.graph.initializer:
            name = weight.name.replace("1", "2") if weight.name in ("q1", "k1", "v1", "o1") else ""
            weight.CopyFrom(old[name or weight.name])
            if name:
                weight.name = name.replace("2", "1")

    expected = says(rewrite(short, with_its_weights))
    np.testing.assert_allclose(says(made), expected, rtol=0, atol=1e-5 * expected.std())
    graph = onnx.load(made / "model.onnx", load_external_data=False).graph
    assert {v.name for v in graph.input if v.name.startswith("past")} == {
        f"past_key_values.{i}.{part}" for i in range(2) for part in ("key", "value")
    }
    assert len(graph.output) == 5
    names = {w.name for w in graph.initializer}
    assert names >= {"q0", "q2"} and not names & {"q1", "q3"}  # and the file shrinks
    assert says(made).shape == (len(TEXT), SIZE)


@needs_ir
def test_configurations_say_how_many_blocks_are_left_and_what_each_is(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=4, attention="gqa")
    types = ["sliding", "full", "sliding", "full"]
    config = json.loads((whole / "config.json").read_text())
    config |= {"num_hidden_layers": 4, "layer_types": types, "num_attention_heads": 2}
    (whole / "config.json").write_text(json.dumps(config))
    decoder = {"filename": "model.onnx", "num_hidden_layers": 4}
    decoder |= {"sliding_window": {"window_size": 32, "layers": [0, 2]}}
    genai = {"model": {"type": "tiny", "decoder": decoder}, "search": {"top_k": 5}}
    (whole / "genai_config.json").write_text(json.dumps(genai))
    made = make(whole, tmp_path / "cut", Variant(blocks=(1, 2, 3)))
    config = json.loads((made / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (3, 2)
    assert config["layer_types"] == ["full", "sliding", "full"]
    cut = json.loads((made / "genai_config.json").read_text())
    assert cut["model"]["decoder"]["num_hidden_layers"] == 3
    assert cut["model"]["decoder"]["sliding_window"]["layers"] == [1]
    assert cut["search"] == {"top_k": 5}
    assert json.loads((whole / "config.json").read_text())["num_hidden_layers"] == 4


def fused(folder: Path) -> None:
    """Make each sum of the residual stream one with the norm behind it, as exporters do."""

    def change(model: Any) -> None:
        graph = model.graph
        sums = [n for n in graph.node if n.op_type == "Add" and n.input[1].startswith("MatMul")]
        ends = {n.output[0]: n for n in sums}
        for i, (name, node) in enumerate(ends.items()):
            gain = np.random.default_rng(i).normal(1, 0.3, WIDTH).astype(np.float32)
            graph.initializer.append(numpy_helper.from_array(gain, f"gain{i}"))
            normed, total = f"normed_{i}", f"total_{i}"
            for user in graph.node:
                new = total if user in sums else normed
                for j, value in enumerate(user.input):
                    if value == name:
                        user.input[j] = new
            joined = helper.make_node(
                "SkipSimplifiedLayerNormalization", [*node.input, f"gain{i}"],
                [normed, "", "", total] if i + 1 < len(ends) else [normed],
                domain="com.microsoft", epsilon=1e-5,
            )  # fmt: skip
            node.CopyFrom(joined)

    rewrite(folder, change)


@needs_ir
@pytest.mark.parametrize("kept", [(0, 2), (2, 3), (0,), (1, 3)])
def test_sums_fused_with_norms_are_taken_apart_and_joined_again(
    kept: tuple[int, ...], tmp_path: Path
) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=4, attention="gqa")
    fused(whole)
    made = make(whole, tmp_path / "cut", Variant(blocks=kept))
    nodes = onnx.load(made / "model.onnx").graph.node
    joined = [n for n in nodes if n.op_type == "SkipSimplifiedLayerNormalization"]
    assert len(joined) == len(kept) and not any(n.op_type == "Add" for n in nodes)
    # Each norm is that of what reads it: block i's own input, and the last one the head's.
    gains = [n.input[2] for n in joined]
    assert gains == [f"gain{block - 1}" for block in kept[1:]] + ["gain3"]


@needs_ir
def test_a_drafter_that_says_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.exporters import onnx_draft_blocks

    whole = write_tiny_onnx(tmp_path / "whole", layers=4, attention="gqa")
    keep = onnx_draft_blocks.keep
    monkeypatch.setattr(
        onnx_draft_blocks, "keep", lambda model, name, kept: keep(model, name, (0, 1))
    )
    with pytest.raises(ExportError, match=r"failed its check.*Nothing was kept"):
        make(whole, tmp_path / "cut", Variant(blocks=(0, 3)))
    assert [p.name for p in tmp_path.iterdir()] == ["whole"]


@needs_ir
def test_a_graph_that_is_no_chain_is_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=3)

    def skip_around(model: Any) -> None:
        gather = next(n for n in model.graph.node if n.op_type == "Gather")
        last = next(n for n in reversed(model.graph.node) if n.op_type == "MatMul")
        index = list(model.graph.node).index(last)
        around = helper.make_node("Add", [last.input[0], gather.output[0]], ["around"])
        last.input[0] = "around"
        model.graph.node.insert(index, around)

    rewrite(whole, skip_around)
    with pytest.raises(ExportError, match=r"whole can't be taken apart into blocks; export"):
        make(whole, tmp_path / "cut", Variant(blocks=(0, 1)))
    assert not (tmp_path / "cut").exists()


@needs_ir
def test_ablation_is_without_change_where_nothing_is_left_out(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=3, attention="gqa")
    sample = [3 + (7 * i) % (SIZE - 3) for i in range(256)]
    ablation = open_source(whole).ablation(sample, 1)
    try:
        assert ablation.change(frozenset()) == pytest.approx(0, abs=1e-6)
        assert ablation.change(frozenset({1})) > 1e-4
    finally:
        ablation.close()


@needs_ir
@needs_links
def test_a_model_in_the_hubs_cache_is_cut(tmp_path: Path) -> None:
    """Where each file is a link to one that is called after its hash."""
    repo = tmp_path / "models--some--model"
    snapshot = write_tiny_onnx(
        repo / "snapshots" / "0123" / "onnx", layers=3, attention="gqa", external=True
    )
    plain = says(snapshot)
    (repo / "blobs").mkdir()
    for i, file in enumerate(sorted(snapshot.iterdir())):
        blob = repo / "blobs" / f"b10b{i}"
        file.rename(blob)
        file.symlink_to(Path("../../../blobs") / blob.name)
    sample = [3 + (7 * i) % (SIZE - 3) for i in range(128)]
    ablation = open_source(snapshot).ablation(sample, 1)
    try:
        assert ablation.change(frozenset()) == pytest.approx(0, abs=1e-6)
        assert ablation.change(frozenset({1})) > 1e-4
    finally:
        ablation.close()
    made = make(snapshot, tmp_path / "cut", Variant(blocks=(0, 2)))
    assert says(snapshot) == pytest.approx(plain) and says(made).shape == plain.shape


@needs_ir
def test_drafters_of_a_model_of_the_hub_are_called_after_its_repository(tmp_path: Path) -> None:
    snapshot = write_tiny_onnx(tmp_path / "models--some--tiny" / "snapshots" / "0123", layers=3)
    choices = [Choice("2", None, None), Choice(None, 64, None)]

    def names() -> list[str]:
        source = open_source(snapshot)
        return [path.name for path in _destinations(tmp_path / "drafters", source, choices)]

    assert open_source(snapshot).path == snapshot
    assert names() == ["tiny-2", "tiny-v64"]
    # Beside another graph the file is meant.
    (snapshot / "other.onnx").write_bytes((snapshot / "model.onnx").read_bytes())
    assert open_source(snapshot).path == snapshot / "model.onnx"
    assert names() == ["model-2", "model-v64"]


@needs_ir
def test_blocks_of_a_cache_in_bfloat16_are_left_out(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", layers=3, cache="bfloat16")
    made = make(whole, tmp_path / "cut", Variant(blocks=(0, 2)))
    assert says(made).shape == (len(TEXT), SIZE)


# ------------------------------------------------------------------------------ the head


@needs_ir
@pytest.mark.parametrize("style", STYLES)
def test_a_narrow_head_says_what_the_whole_one_says_and_nothing_else(
    style: dict[str, Any], tmp_path: Path
) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", **style)
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    expected, got = says(whole), says(made)
    assert got.shape == expected.shape
    tolerance = (2e-3 if style.get("logits") == "float16" else 1e-5) * expected.std()
    np.testing.assert_allclose(got[:, KEPT], expected[:, KEPT], rtol=0, atol=tolerance)
    assert np.isneginf(np.delete(got, KEPT, axis=1)).all()
    found = weights(made)
    assert found["embedding"].shape == (SIZE, WIDTH)
    assert "head" not in found and found["head.kept"].shape == (WIDTH, len(KEPT))


@needs_ir
def test_rows_asked_for_together_are_those_asked_for_one_at_a_time(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    model = load_model(made, OPTIONS, CancelFlag())
    try:
        several = model.session.forward(TEXT, 5).copy()
    finally:
        model.close()
    np.testing.assert_allclose(several[:, KEPT], says(made)[-5:, KEPT], atol=1e-3)


@needs_ir
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_heads_in_blocks_lose_rows_with_their_scales_and_zeros(
    bits: int, flat: bool, zero: bool, tmp_path: Path
) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")
    rng = np.random.default_rng(0)
    scales = rng.uniform(1e-3, 2e-2, (SIZE, 1)).astype(np.float32)

    def in_blocks(model: Any) -> None:
        graph = model.graph
        head = next(n for n in graph.node if "head" in n.input)
        zeros = rng.integers(1, 15, (SIZE, 1)).astype(np.uint8)
        parts = {
            "b": rng.integers(0, 256, (SIZE, 1, WIDTH * bits // 8)).astype(np.uint8),
            "s": scales.reshape(-1) if flat else scales,
            "z": zeros.reshape(-1) if flat else zeros,
        }
        if not zero:
            del parts["z"]
        graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in parts.items())
        made = helper.make_node(
            "MatMulNBits", [head.input[0], *parts], list(head.output),
            domain="com.microsoft", K=WIDTH, N=SIZE, bits=bits, block_size=WIDTH,
        )  # fmt: skip
        head.CopyFrom(made)

    rewrite(whole, in_blocks)
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    expected = says(whole)
    np.testing.assert_allclose(
        says(made)[:, KEPT], expected[:, KEPT], atol=1e-4 * expected.std(), rtol=0
    )
    assert (weights(made)["s.kept"].reshape(-1) == scales.reshape(-1)[KEPT]).all()


@needs_ir
def test_a_tied_embedding_stays_whole_and_its_bytes_lie_in_the_file_once(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")

    def tie(model: Any) -> None:
        graph = model.graph
        head = next(n for n in graph.node if "head" in n.input)
        head.CopyFrom(
            helper.make_node(
                "FusedMatMul", [head.input[0], "embedding"], list(head.output),
                domain="com.microsoft", transB=1, alpha=0.01,
            )
        )  # fmt: skip

    rewrite(whole, tie)
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    found = weights(made)
    assert found["embedding"].shape == (SIZE, WIDTH)
    assert (found["embedding.kept"] == found["embedding"][KEPT]).all()
    np.testing.assert_allclose(says(made)[:, KEPT], says(whole)[:, KEPT], atol=1e-4)


@needs_ir
def test_a_bias_behind_the_head_loses_the_same_tokens(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")
    bias = np.random.default_rng(1).normal(0, 5, SIZE).astype(np.float32)

    def add(model: Any) -> None:
        graph = model.graph
        index = next(i for i, n in enumerate(graph.node) if "head" in n.input)
        head = graph.node[index]
        graph.initializer.append(numpy_helper.from_array(bias, "bias"))
        node = helper.make_node("Add", ["unbiased", "bias"], list(head.output))
        head.output[0] = "unbiased"
        graph.node.insert(index + 1, node)

    rewrite(whole, add)
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    np.testing.assert_allclose(says(made)[:, KEPT], says(whole)[:, KEPT], atol=1e-3)


@needs_ir
def test_the_tokens_kept_are_the_ends_and_the_most_frequent(tmp_path: Path) -> None:
    source = open_source(write_tiny_onnx(tmp_path / "whole"))
    kept = source.frequent(Counter({60: 3, 50: 9, 70: 1}), 6, [9])
    assert {2, 9, 50, 60} <= set(kept.tolist()) and len(kept) == 6
    assert (np.diff(kept) > 0).all()
    with pytest.raises(ConfigError, match="is no selection from whole"):
        source.frequent(Counter(), SIZE, [])


@needs_ir
def test_it_can_only_draft_and_the_target_says_the_same_with_it(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", layers=3)
    made = make(whole, tmp_path / "narrow", Variant(blocks=(0, 2), kept=KEPT))
    with pytest.raises(Exception, match="can only draft, since its head holds a part"):
        Runtime.open(target=made, drafters=[], context_size=64, threads=1)
    gguf = write_tiny(tmp_path / "target.gguf")  # and the two formats mix
    for target in (whole, gguf):
        answers = []
        for drafters in ([], [str(made)]):
            with Runtime.open(
                target=target, drafters=drafters, context_size=128, threads=1
            ) as runtime:
                answers.append(runtime.generate(TEXT, GREEDY, max_tokens=24).result.tokens)
        assert answers[0] == answers[1]


@needs_ir
@pytest.mark.parametrize(
    "kept", ["1,2,3", "", "a,b", ",".join(map(str, KEPT[::-1])), f"{','.join('9' * len(KEPT))}"]
)
def test_damaged_lists_of_tokens_are_refused(kept: str, tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole")
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))

    def damage(model: Any) -> None:
        for entry in model.metadata_props:
            if entry.key == narrow.KEPT:
                entry.value = kept

    model = onnx.load(made / "model.onnx", load_external_data=False)
    damage(model)
    onnx.save(model, made / "model.onnx")
    with pytest.raises(ModelFormatError, match=r"its head's tokens make no sense.*edgespec draft"):
        load_model(made, OPTIONS, CancelFlag())


def test_the_list_in_the_metadata_is_read_without_the_exporters() -> None:
    found = narrow.read_metadata("x", {narrow.KEPT: "1,4,7", narrow.VOCAB_SIZE: "9"}, 3)
    assert found is not None and (found[0].tolist(), found[1]) == ([1, 4, 7], 9)
    assert narrow.read_metadata("x", {}, 3) is None
    with pytest.raises(ModelFormatError):
        narrow.read_metadata("x", {narrow.KEPT: "1,4,9", narrow.VOCAB_SIZE: "9"}, 3)


@needs_ir
def test_onnxruntime_genai_is_not_led_to_read_the_rows_as_ids(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")
    genai = {"type": "tiny", "context_length": 99, "eos_token_id": 2}
    genai |= {"decoder": {"filename": "model.onnx"}}
    (whole / "genai_config.json").write_text(json.dumps({"model": genai}))
    (whole / "config.json").unlink()
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    assert not (made / "genai_config.json").exists()
    config = json.loads((made / "config.json").read_text())
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (99, 2)


# ------------------------------------------------------------------------------ what is refused


@needs_ir
def test_what_cannot_be_done_is_said_before_anything_is_written(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    with pytest.raises(ExportError, match="narrow head: start from its model"):
        open_source(made)
    with pytest.raises(ConfigError, match="is the model itself"):
        make(whole, whole, Variant(kept=KEPT), overwrite=True)
    with pytest.raises(ConfigError, match="nothing is to be cut"):
        make(whole, tmp_path / "none", Variant(blocks=(0, 1)))
    with pytest.raises(ExportError, match="exists already"):
        make(whole, made, Variant(kept=KEPT))
    with pytest.raises(ConfigError, match="int4 or int8, not q4_0: --quant"):
        open_source(whole).check_quant("q4_0")
    assert {p.name for p in tmp_path.iterdir()} == {"whole", "narrow"}


@needs_ir
def test_weights_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", external=True)
    (tmp_path / "secret").write_bytes((whole / "model.onnx.data").read_bytes())
    model = onnx.load(whole / "model.onnx", load_external_data=False)
    for weight in model.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    onnx.save(model, whole / "model.onnx")
    with pytest.raises(ModelFormatError, match="keeps weights outside of its folder"):
        open_source(whole)


@needs_ir
def test_weights_that_are_cut_short_are_said_to_be(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", external=True)
    data = whole / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelFormatError, match="missing or cut short"):
        open_source(whole)


@needs_ir
def test_a_file_with_several_names_is_read(tmp_path: Path) -> None:
    """Model caches link their files, and drafters should be cut from there too."""
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", external=True)
    (tmp_path / "again").hardlink_to(whole / "model.onnx.data")
    made = make(whole, tmp_path / "narrow", Variant(kept=KEPT))
    assert says(made).shape == (len(TEXT), SIZE)


def test_a_checkpoint_is_told_to_be_exported_first(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is a checkpoint.*edgespec export gguf"):
        open_source(tmp_path)


# ------------------------------------------------------------------------------ bits


@needs_ir
@needs_torch
def test_a_drafter_of_floats_is_stored_in_fewer_bits(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", layers=3)
    open_source(whole).check_quant("int8")
    made = make(whole, tmp_path / "small", Variant((0, 2), KEPT, "int8"))
    operators = Counter(n.op_type for n in onnx.load(made / "model.onnx").graph.node)
    assert operators["MatMulNBits"] == 9 and operators["MatMul"] == 0
    assert operators["GatherBlockQuantized"] == 1
    floats = make(whole, tmp_path / "floats", Variant((0, 2), KEPT))
    a, b = says(made)[:, KEPT], says(floats)[:, KEPT]
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.95  # activations in 8 bits, too
    with pytest.raises(ConfigError, match=r"fewer than 32 bits already.*export onnx --dtype int4"):
        open_source(make(whole, tmp_path / "again", Variant(quant="int4"))).check_quant("int4")


@needs_ir
@needs_torch
def test_what_a_drafter_keeps_as_floats_is_told(tmp_path: Path) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa")

    def scaled(model: Any) -> None:
        head = next(n for n in model.graph.node if "head" in n.input)
        made = helper.make_node(
            "FusedMatMul", list(head.input), list(head.output), "the_head",
            domain="com.microsoft", alpha=0.5,
        )  # fmt: skip
        head.CopyFrom(made)

    rewrite(whole, scaled)
    told: list[str] = []
    made = make(whole, tmp_path / "small", Variant(quant="int8"), tell=told.append)
    assert told == ["blocks can't hold the_head, which stay floats"]
    record = json.loads((made / "edgespec.manifest.json").read_text(encoding="utf-8"))
    assert record["notes"] == told


# ------------------------------------------------------------------------------ the command


@needs_ir
def test_the_command_writes_a_folder_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", layers=4)
    (whole / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    out = tmp_path / "drafters"
    command = ["draft", str(whole), str(out), "--layers", "first:2", "--layers", "auto:2"]
    command += ["--vocab", "200", "--max-tokens", "12", "--threads", "1"]
    assert main(command) == 0
    names = {"whole-first2-v200", "whole-auto2-v200"}
    assert {p.name for p in out.iterdir()} == names
    printed = capsys.readouterr().out
    assert "DRAFTER" in printed and all(name in printed for name in names)
    assert main(command) != 0
    assert "exists already" in capsys.readouterr().err


@needs_ir
def test_the_command_cuts_onnx_for_a_gguf_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write_tiny(tmp_path / "target.gguf")
    whole = write_tiny_onnx(tmp_path / "whole", attention="gqa", layers=4)
    out = tmp_path / "drafter"
    command = ["draft", str(target), str(out), "--from", str(whole), "--layers", "last:2"]
    assert main([*command, "--max-tokens", "8", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert (out / "model.onnx").is_file() and "(uncut)" in printed
    assert draft.describe((2, 3), 4) == "2-3 of 4"
