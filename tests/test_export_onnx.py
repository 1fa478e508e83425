"""Exports to ONNX: what is written is the checkpoint's model, once, or nothing is."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgespec.cli import main
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters import manifest
from edgespec.exporters import onnx as exporter
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.parity import Limits, compare, differing_ids
from edgespec.units import human_bytes

_NEEDED = ("torch", "transformers", "onnx_ir", "onnxruntime_genai", "optimum")
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
with_extra = pytest.mark.skipif(
    bool(_MISSING), reason=f"needs the extra `export` ({', '.join(_MISSING)})"
)
if _MISSING:
    _FAMILIES: list[str] = []
else:
    from edgespec.exporters.onnx_fused import FAMILIES

    _FAMILIES = list(FAMILIES)
# What torch, transformers and optimum say to each other while they work.
pytestmark = pytest.mark.filterwarnings("default")

# ------------------------------------------------------------------------------- the figures


def test_figures_are_those_of_the_definition() -> None:
    certain = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], np.float32))
    found = compare({"text": certain}, {"text": other})
    # Of the first position: 0.5 log 2 + 0.25 log 0.5; of the second nothing.
    assert found.mean_kl == pytest.approx(0.25 * np.log(2) / 2, rel=1e-5)
    assert (found.positions, found.top1, found.where) == (2, 0.5, "text, position 0")
    assert found.worst == pytest.approx(np.log(2), rel=1e-5)


def test_adding_the_same_to_every_logit_changes_nothing_but_the_worst() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    found = compare({"text": rows}, {"text": rows + 3})
    assert found.mean_kl < 1e-6 and found.top1 == 1 and found.worst == pytest.approx(3, rel=1e-4)


def test_what_is_no_number_is_refused_by_its_place() -> None:
    rows = np.zeros((3, 4), np.float32)
    bad = rows.copy()
    bad[2, 1] = np.nan
    refusal = Limits(9, 0, 9).refusal(compare({"text": rows}, {"text": bad}))
    assert refusal is not None and "text, position 2" in refusal


def test_a_limit_that_is_passed_is_named() -> None:
    rows = np.eye(3, dtype=np.float32) * 5
    found = compare({"text": rows}, {"text": rows[:, ::-1]})
    refusal = Limits(mean_kl=0.1, top1=0.9, worst=9).refusal(found)
    assert refusal is not None and "mean KL" in refusal and "33.3%" in refusal
    assert "off by" not in refusal
    assert Limits(mean_kl=9, top1=0.1, worst=9).refusal(found) is None


def test_ids_that_differ_are_named() -> None:
    assert differing_ids({"a": [1, 2], "b": [3]}, {"a": [1, 2], "b": [3]}) == ""
    assert differing_ids({"a": [1, 2], "b": [3]}, {"a": [1, 2], "b": [3, 4]}) == "b, token 1"


# -------------------------------------------------------------------------- before any work


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a)
    )
    with pytest.raises(ExportError, match=r"needs torch.*pip install 'edgespec\[export\]'"):
        exporter.require_extra("portable")
    assert main(["export", "onnx", str(tmp_path), str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "pip install 'edgespec[export]'" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("parent", [True, False])
def test_optimum_without_its_part_for_onnx_is_told(
    parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str, *_: Any) -> Any:
        if name.startswith("optimum.") and not parent:
            raise ModuleNotFoundError(name)
        return None if name.startswith("optimum.") else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ExportError, match=r"needs optimum-onnx; install it: pip"):
        exporter.require_extra("portable")
    exporter.require_extra("fused")


_BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
from edgespec.cli import main
from edgespec.exporters import onnx
onnx._found = lambda name: True
sys.exit(main(["export", "onnx", "no/model", sys.argv[2]]))
"""


def test_an_onnx_runtime_that_cant_be_imported_is_told_before_a_download(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").touch()  # the rest of one that was taken away
    done = subprocess.run(
        [sys.executable, "-c", _BROKEN, str(tmp_path), str(tmp_path / "out")],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "onnxruntime can't be loaded (" in done.stderr and "--force-reinstall" in done.stderr


@with_extra
def test_a_builder_that_cant_be_imported_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.exporters import onnx_fused

    monkeypatch.setitem(sys.modules, "onnxruntime_genai.models", None)
    with pytest.raises(ExportError, match="onnxruntime-genai can't build LlamaForCausalLM"):
        onnx_fused.build(SimpleNamespace(), "LlamaForCausalLM", Path(), half=False)


@with_extra
def test_a_configuration_without_model_type_is_read_by_its_folders_name(tmp_path: Path) -> None:
    """As transformers does, so that checkpoints from before there was that key are exported."""
    from edgespec.exporters.onnx_reference import configuration

    config = {"architectures": ["GPT2LMHeadModel"], "n_layer": 3}
    for name in ("my-gpt2", "none"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    old, other = (Outline(tmp_path / n, config, n, None) for n in ("my-gpt2", "none"))
    assert configuration(old).n_layer == 3
    with pytest.raises(ExportError, match=r"can't load none: .*`model_type` key"):
        configuration(other)


@pytest.mark.parametrize("option", ["--draft-dtype", "--draft-revision"])
def test_an_option_for_a_draft_that_isnt_named_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "onnx", str(tmp_path), str(tmp_path / "out"), option, "int4"]
    assert main(command) == 1
    assert f"{option} is of a draft: name one with --draft" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["onnx", "pair"])
def test_each_model_has_its_own_revision(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str | None]] = []

    def opened(name: str, revision: str | None, _report: Any) -> Any:
        asked.append((name, revision))
        if name == "a/draft":
            raise ExportError("that is enough")

    monkeypatch.setattr(Checkpoint, "open", opened)
    monkeypatch.setattr(Outline, "open", opened)
    monkeypatch.setattr(exporter, "chosen", lambda *_: None)
    monkeypatch.setattr(exporter, "require_extra", lambda *_: None)
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path))
    out, draft = str(tmp_path / "out"), "a/draft"
    command = ["onnx", "a/target", out, "--draft", draft]
    command = command if kind == "onnx" else ["pair", "a/target", draft, out, "--format", "onnx"]
    assert main(["export", *command, "--revision", "one", "--draft-revision", "two"]) == 1
    assert main(["export", *command, "--revision", "one"]) == 1
    target = ("a/target", "one")
    assert asked == [target, (draft, "two"), target, (draft, None)]


def test_the_entry_of_an_export_into_the_folder_one_is_in_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx_ir")
    from edgespec.commands.export_onnx import _tell_entry

    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    results = [
        exporter.Result(Path(name), Path(name) / "m.json", 1, {}, ())
        for name in ("target", "draft")
    ]
    models: list[Any] = [SimpleNamespace(name=name, licence="mit") for name in ("big", "small")]
    _tell_entry(None, Path(), models, results)
    said = capsys.readouterr().err
    assert "[pairs.mine]" in said and "[models.mine-target]" in said


# --------------------------------------------------------------------------- real exports


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoint]:
    """Makes a small random checkpoint of a family, once."""
    import torch
    import transformers
    from tiny_checkpoint import byte_level_tokenizer

    made: dict[str, Checkpoint] = {}

    def make(
        family: str = "Llama",
        *,
        tied: bool = True,
        dtype: str = "float32",
        uneven: bool = False,
        **changes: Any,
    ) -> Checkpoint:
        """uneven: its norms' weights and all biases are random, as training leaves them."""
        folder = tmp_path_factory.getbasetemp() / f"{family}-{tied}-{dtype}-{len(made)}"
        key = repr((family, tied, dtype, uneven, changes))
        if key in made:
            return made[key]
        tokenizer = byte_level_tokenizer()
        size = max(
            *tokenizer["model"]["vocab"].values(),
            *(token["id"] for token in tokenizer["added_tokens"]),
        )
        sizes = (
            {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024}
            if family == "GPT2"
            else {
                "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 1024,
            }
        )  # fmt: skip
        named = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
        config = getattr(transformers, named)(
            vocab_size=size + 1, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1,
            **{"initializer_range": 0.05} | sizes | changes,
        )  # fmt: skip
        torch.manual_seed(7)
        kind = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
        model = getattr(transformers, kind)(config)
        for name, weight in model.named_parameters() if uneven else ():
            if "norm" in name or name.endswith("bias"):
                weight.data += torch.randn_like(weight) * 0.3
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
        made[key] = Checkpoint.open(folder)
        return made[key]

    return make


def _graph(folder: Path, style: str = "fused") -> Any:
    from edgespec.exporters.onnx_run import Graph

    return Graph(folder / "model.onnx", in_place=style == "fused", room=64)


def _weights(folder: Path) -> dict[str, tuple[int, int]]:
    """Where each stored tensor lies in the data file: offset and bytes."""
    import onnx

    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    entries = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.external_data
    }
    return {name: (int(e["offset"]), int(e["length"])) for name, e in entries.items()}


@with_extra
@pytest.mark.parametrize("dtype", exporter.DTYPES)
def test_a_fused_export_is_the_model(
    dtype: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    result = exporter.export(checkpoint(), tmp_path / "out", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    files = {path.name for path in result.path.iterdir()}
    assert files >= {
        "model.onnx", "model.onnx.data", "config.json", "tokenizer.json", "genai_config.json",
        result.manifest.name,
    }  # fmt: skip
    record = json.loads(result.manifest.read_text(encoding="utf-8"))
    assert record["options"]["style"] == "fused"
    assert record["parity"]["logits"]["positions"] > 300
    assert record["output_files"].keys() == files - {result.manifest.name}
    graph = _graph(result.path)
    every = graph.forward([5, 6, 7, 8])
    graph.clear()
    np.testing.assert_allclose(graph.forward([5, 6, 7, 8], [3, 1]), every[[3, 1]], atol=0.05)
    graph.length = 2  # two tokens are taken back, and come again
    np.testing.assert_allclose(graph.forward([7, 8], [1])[0], every[3], atol=0.05)


@with_extra
@pytest.mark.parametrize("dtype", exporter.DTYPES)
def test_a_tied_embedding_lies_in_the_file_once(
    dtype: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    tied = exporter.export(checkpoint(), tmp_path / "tied", dtype=dtype).path
    single = exporter.export(checkpoint(tied=False), tmp_path / "untied", dtype=dtype).path
    parameters = 64 * json.loads((tied / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    bits = {"fp32": 32, "fp16": 16, "int8": 9, "int4": 5}[dtype]
    saved = [(p / "model.onnx.data").stat().st_size for p in (single, tied)]
    assert saved[0] - saved[1] == pytest.approx(parameters * bits / 8, abs=1000)
    places = _weights(tied).values()
    if dtype.startswith("int"):
        assert len(set(places)) == len(places) - 1  # two shapes of the same bytes
    assert sum(length for _, length in set(places)) <= saved[1]


@with_extra
@pytest.mark.parametrize(
    ("family", "dtype", "stored"),
    [("GPT2", "fp32", "float32"), ("Qwen2", "int8", "bfloat16"), ("Qwen2", "fp16", "float32")],
)
def test_a_portable_export_is_the_model(
    family: str, dtype: str, stored: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    source = checkpoint(family, dtype=stored)
    result = exporter.export(source, tmp_path / "out", dtype=dtype, style="portable")
    graph = _graph(result.path, "portable")
    every = graph.forward([5, 6, 7, 8])
    graph.clear()
    graph.forward([5, 6])
    np.testing.assert_allclose(graph.forward([7, 8], [1])[0], every[3], atol=0.05)


_OWN = {  # what of a family's own its defaults leave out
    "Gemma": {"head_dim": 32},
    "Gemma2": {"head_dim": 32},
    "Gemma3": {"head_dim": 32},
    "Granite": {
        "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "logits_scaling": 0.5,
    },
    # Half of each head is rotated, in steps of 16 numbers.
    "Nemotron": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "Phi": {"num_attention_heads": 3, "num_key_value_heads": 1},
    "Phi3": {"pad_token_id": 0},
    "Qwen3": {"head_dim": 32},
    "SmolLM3": {"num_hidden_layers": 4, "pad_token_id": 0},
}  # fmt: skip


def _own_family(
    checkpoint: Callable[..., Checkpoint], architecture: str, stored: str
) -> Checkpoint:
    family = architecture.removesuffix("ForCausalLM")
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "initializer_range": 0.02}
    return checkpoint(family, dtype=stored, uneven=True, **sizes | _OWN.get(family, {}))


@with_extra
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", _FAMILIES)
def test_every_family_that_can_be_fused_is_the_model(
    architecture: str, stored: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """In float32, where norms that were rounded, or have another epsilon, show."""
    from edgespec.exporters import onnx_file, onnx_fused, onnx_reference

    source = _own_family(checkpoint, architecture, stored)
    assert exporter.plan(source, "fp32").style == "fused"
    loaded = onnx_reference.load(source)
    text = [5 + i * i % 250 for i in range(60)]
    reference = onnx_reference.logits(loaded, {"text": text})
    model, _ = onnx_fused.build(loaded, architecture, tmp_path / "scratch", half=False)
    onnx_file.move_to(model, tmp_path, {}, lambda *_: None)
    assert compare(reference, {"text": _graph(tmp_path).forward(text)}).mean_kl < 1e-9


@with_extra
def test_layers_without_rotation_are_exported_in_four_bits(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    source = _own_family(checkpoint, "SmolLM3ForCausalLM", "bfloat16")
    result = exporter.export(source, tmp_path / "out")
    import onnx

    nodes = onnx.load(result.path / "model.onnx", load_external_data=False).graph.node
    attentions = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    turned = {n.input[3]: a.i for n in attentions for a in n.attribute if a.name == "do_rotary"}
    assert [turned[f"past_key_values.{i}.key"] for i in range(4)] == [1, 1, 1, 0]


@with_extra
@pytest.mark.parametrize("family", ["Gemma", "Gemma3", "Nemotron"])
def test_sixteen_bits_are_the_same_model_as_their_numbers_in_float32(
    family: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """What a model's code computes when it is loaded is rounded to the type it is loaded in."""
    import shutil

    from safetensors.torch import load_file, save_file

    from edgespec.exporters import onnx_fused, onnx_reference

    half = _own_family(checkpoint, f"{family}ForCausalLM", "bfloat16")
    shutil.copytree(half.path, tmp_path / "wide")
    stored = load_file(half.path / "model.safetensors")
    wide = {name: weight.float() for name, weight in stored.items()}
    save_file(wide, tmp_path / "wide" / "model.safetensors", {"format": "pt"})
    text = [5 + i * i % 250 for i in range(30)]
    found = []
    for source in (half, Checkpoint.open(tmp_path / "wide")):
        loaded = onnx_reference.load(source)
        found.append(onnx_reference.logits(loaded, {"text": text})["text"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    if family.startswith("Gemma"):
        model, _ = onnx_fused.build(
            loaded, f"{family}ForCausalLM", tmp_path / "scratch", half=False
        )
        scales = [
            float(tensor.value.numpy())
            for node in model.graph
            if node.op_type == "Constant"
            and (tensor := node.attributes["value"]).value.shape == ()
            and tensor.value.dtype.is_floating_point()
        ]
        assert pytest.approx(96**0.5, rel=1e-6) in scales


@with_extra
@pytest.mark.parametrize(
    ("family", "changes"), [("Olmo", {"clip_qkv": 8.0}), ("Phi", {"qk_layernorm": True})]
)
def test_what_the_builder_makes_another_model_of_is_portable(
    family: str, changes: dict[str, Any], checkpoint: Callable[..., Checkpoint]
) -> None:
    source = checkpoint(family, **changes)
    assert exporter.plan(source, "int4").style == "portable"
    with pytest.raises(ExportError, match="use --portable"):
        exporter.plan(source, "int4", "fused")


@with_extra
def test_norms_with_other_epsilons_are_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    from edgespec.exporters import onnx_fused, onnx_reference

    loaded = onnx_reference.load(checkpoint())
    loaded.model.norm.variance_epsilon = 1e-3
    with pytest.raises(ExportError, match=r"one epsilon for all norms.*--portable"):
        onnx_fused.build(loaded, "LlamaForCausalLM", tmp_path, half=False)


_SLIDING = {
    "Gemma2": {
        "head_dim": 32, "num_hidden_layers": 3, "sliding_window": 16,
        "attn_logit_softcapping": 0.02,
    },
    "Gemma3": {
        "head_dim": 32, "num_hidden_layers": 3, "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "Mistral": {"sliding_window": 16},
    "Qwen2": {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {
        "head_dim": 16, "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1,
    },
    "Llama": {"sliding_window": 16},  # which is in its configuration, and that family uses none
}  # fmt: skip
_WINDOWS = {
    "Gemma2": [16, -1, 16], "Gemma3": [-1, 16, -1], "Mistral": [16, 16], "Qwen2": [-1, 16],
    "Qwen3": [-1, 16], "Llama": [-1, -1],
}  # fmt: skip


@with_extra
@pytest.mark.parametrize("family", _SLIDING)
def test_each_layer_looks_back_as_far_as_in_the_model(
    family: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import onnx

    source = checkpoint(family, **_SLIDING[family])
    result = exporter.export(source, tmp_path / "out", dtype="fp32")
    nodes = onnx.load(result.path / "model.onnx", load_external_data=False).graph.node
    found = {
        int(node.input[3].split(".")[1]): attribute.i
        for node in nodes
        if node.op_type == "GroupQueryAttention"
        for attribute in node.attribute
        if attribute.name == "local_window_size"
    }
    assert [found.get(i, -1) for i in range(len(_WINDOWS[family]))] == _WINDOWS[family]
    assert result.parity["behind_its_window"]["positions"] == 64


_SCALED = {
    "Llama": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "Gemma3": {"rope_type": "linear", "factor": 8.0},
    "Qwen2": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
}  # fmt: skip


@with_extra
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("family", _SCALED)
def test_far_positions_are_rotated_as_in_the_model(
    family: str, dtype: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """The probe texts have a hundred tokens and can't show it."""
    import onnx
    import torch
    from onnx import numpy_helper

    from edgespec.exporters import onnx_reference

    changes = {"rope_scaling": _SCALED[family]}
    source = checkpoint(family, **_SLIDING["Gemma3"] if family == "Gemma3" else {}, **changes)
    out = exporter.export(source, tmp_path / "out", dtype=dtype).path
    stored = {w.name: w for w in onnx.load(out / "model.onnx").graph.initializer}
    loaded = onnx_reference.load(source)
    places = np.unique(np.geomspace(1, 1023, 64).astype(np.int64))
    endings = {"_global": "", "_local": "_local"} if family == "Gemma3" else {"": ""}
    for ending, which in endings.items():
        rotate = getattr(loaded.model, f"rotary_emb{which}")
        for kind, wanted in zip(
            ("cos", "sin"), rotate(torch.zeros(1), torch.tensor(places)[None]), strict=True
        ):
            table = numpy_helper.to_array(stored[f"{kind}_cache{ending}"])
            half = wanted[0, :, : table.shape[1]].numpy()
            np.testing.assert_allclose(table[places], half, atol=1e-5 if dtype == "fp32" else 2e-3)
    if dtype == "fp32":
        from edgespec.exporters.onnx_run import Graph

        graph = Graph(out / "model.onnx", in_place=True, room=1024)
        text = [5 + i * i % 250 for i in range(1000)]
        reference = onnx_reference.logits(loaded, {"far": text})["far"][-8:]
        graph.forward(text[:-8], [0])
        far = compare({"far": reference}, {"far": graph.forward(text[-8:])})
        assert far.mean_kl < 1e-6


# ------------------------------------------------------- what a newer transformers wrote


def _newer(source: Checkpoint, folder: Path, **changes: Any) -> Checkpoint:
    """A checkpoint as transformers 5 would have saved it; changes: of its rope_parameters."""
    import shutil

    from tiny_checkpoint import in_new_words, write_json

    shutil.copytree(source.path, folder)
    values = in_new_words(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    values["rope_parameters"] |= changes
    write_json(folder / "config.json", values)
    return Checkpoint.open(folder)


@with_extra
@pytest.mark.parametrize(
    ("family", "style"),
    [("Llama", "fused"), ("Gemma3", "fused"), ("Qwen2", "portable"), ("Phi", None)],
)
def test_what_a_newer_transformers_wrote_is_the_same_model(
    family: str, style: Any, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """With a theta that no class has by itself, which is what transformers 4 would take."""
    from edgespec.exporters import onnx_reference
    from edgespec.exporters.onnx_run import Graph

    changes: dict[str, Any] = {"rope_theta": 500_000.0, "rope_scaling": _SCALED.get(family)}
    if family == "Gemma3":
        changes |= _SLIDING["Gemma3"] | {"rope_local_base_freq": 20_000.0}
    source = checkpoint(family, **changes)
    newer = _newer(source, tmp_path / "newer")
    assert "rope_theta" not in newer.config and "rope_scaling" not in newer.config
    text = [5 + i * i % 250 for i in range(300)]
    ours, theirs = (
        onnx_reference.logits(onnx_reference.load(each), {"far": text})["far"]
        for each in (source, newer)
    )
    np.testing.assert_array_equal(ours, theirs)
    if style is not None:
        out = exporter.export(newer, tmp_path / "out", dtype="fp32", style=style).path
        graph = Graph(out / "model.onnx", in_place=style == "fused", room=512)
        assert compare({"far": ours}, {"far": graph.forward(text)}).mean_kl < 1e-6


@with_extra
def test_positions_that_the_code_here_passes_over_are_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """Both sides of the gate would pass over them alike."""
    from edgespec.exporters import onnx_reference

    plain = _newer(checkpoint("Nemotron"), tmp_path / "plain")
    onnx_reference.load(plain)
    scaled = _newer(checkpoint("Nemotron"), tmp_path / "scaled", rope_type="linear", factor=2.0)
    with pytest.raises(ExportError, match=r"doesn't turn the positions of scaled.*kind linear"):
        onnx_reference.load(scaled)
    halved = _newer(checkpoint("Nemotron"), tmp_path / "halved", partial_rotary_factor=0.5)
    loaded = onnx_reference.load(halved)
    loaded.config.partial_rotary_factor = 1.0  # as of a class that has a number of its own
    with pytest.raises(ExportError, match=r"positions of halved.*partial_rotary_factor 0\.5"):
        onnx_reference._check_positions(loaded, halved)


@with_extra
@pytest.mark.parametrize("named", ["TokenizersBackend", "Qwen2Tokenizer"])
def test_a_tokenizer_of_a_newer_transformers(
    named: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    from edgespec.exporters import onnx_text

    source = checkpoint("Qwen2")
    folder = tmp_path / "newer"
    shutil.copytree(source.path, folder)
    about = {
        "tokenizer_class": named, "backend": "tokenizers", "is_local": False,
        "extra_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    tokenizer = onnx_text.load(Checkpoint.open(folder))
    rows = source.config["vocab_size"]
    ids = onnx_text.probe_ids(tokenizer, rows)
    assert ids == onnx_text.probe_ids(onnx_text.load(source), rows)
    onnx_text.check(folder, tokenizer, rows, ids)


@with_extra
def test_a_tokenizer_that_cuts_and_fills_up_texts_is_the_same(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """As training scripts leave it in tokenizer.json; the runtime doesn't either."""
    import shutil

    from edgespec.exporters import onnx_text

    folder = tmp_path / "trained"
    shutil.copytree(checkpoint().path, folder)
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    written["truncation"] = {
        "direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    written["padding"] = {
        "strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    tokenizer = onnx_text.load(Checkpoint.open(folder))
    rows = checkpoint().config["vocab_size"]
    onnx_text.check(folder, tokenizer, rows, onnx_text.probe_ids(tokenizer, rows))


@with_extra
@pytest.mark.parametrize("fillers", [0, 15])  # of which no more than 12 are in a probe text
@pytest.mark.parametrize("named", ["tokenizer_config.json", "added_tokens.json"])
def test_a_token_that_tokenizer_json_lacks_is_written_into_it(
    named: str, fillers: int, tmp_path: Path
) -> None:
    """As fine-tunes have them: the base model's tokenizer.json, and other files that add to it."""
    import tiny_checkpoint as tiny
    from tokenizers import Tokenizer

    from edgespec.exporters import onnx_text

    tokenizer = tiny.byte_level_tokenizer()
    last = tokenizer["added_tokens"][-1]["id"]
    more = [tiny.added(last + 1 + i, f"<|filler {i}|>") for i in range(fillers)]
    tokenizer["added_tokens"] += more
    pad = last + fillers + 1
    folder = tiny.write_checkpoint(tmp_path / "tuned", tokenizer=tokenizer, rows=pad + 1)
    about = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"}
    if named == "added_tokens.json":
        tiny.write_json(folder / named, {"[PAD]": pad})
        tiny.write_json(folder / "tokenizer_config.json", about)
    else:
        tiny.write_json(folder / named, {**about, "pad_token": "[PAD]"})
    out = tmp_path / "out"
    out.mkdir()
    texts = onnx_text.write(Outline.open(folder), out, pad + 1)
    assert texts.notes == [] and texts.tokens[pad] == "[PAD]"
    written = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert written.encode("[PAD]", add_special_tokens=False).ids == [pad]
    onnx_text.write(Outline.open(folder), out, pad)  # where the model can't read it anyway
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@with_extra
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_disk_that_has_no_room_for_a_tokenizer_is_told(tmp_path: Path) -> None:
    import tiny_checkpoint as tiny

    from edgespec.exporters import onnx_text

    folder = tiny.write_checkpoint(tmp_path / "old")
    tokenizer = onnx_text.load(Outline.open(folder))
    (folder / "tokenizer.json").unlink()  # so that it is written
    out = tmp_path / "out"
    (out / "tokenizer").mkdir(parents=True)
    (out / "tokenizer" / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device:") as caught:
        onnx_text.save(Outline.open(folder), tokenizer, out, 300)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(out))


@with_extra
def test_another_control_token_is_told_with_what_to_do(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    import tiny_checkpoint as tiny

    from edgespec.exporters import onnx_text

    folder = tmp_path / "many"
    shutil.copytree(checkpoint().path, folder)
    tokenizer = tiny.byte_level_tokenizer()
    last = tokenizer["added_tokens"][-1]["id"]
    tokenizer["added_tokens"] += [tiny.added(last + 1 + i, f"<|{i}|>") for i in range(15)]
    tiny.write_json(folder / "tokenizer.json", tokenizer)
    own = onnx_text.load(Outline.open(folder))
    ids = onnx_text.probe_ids(own, last + 16)
    onnx_text.check(folder, own, last + 16, ids)
    tokenizer["added_tokens"][-1]["content"] = "<|another|>"
    tiny.write_json(folder / "tokenizer.json", tokenizer)
    with pytest.raises(ExportError, match=r"other ids .*\(all control tokens, .*save_pretrained"):
        onnx_text.check(folder, own, last + 16, ids)


@with_extra
def test_a_token_beyond_the_embedding_is_told(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """Added for padding, and nobody gave it an embedding."""
    import shutil

    from tiny_checkpoint import added

    from edgespec.exporters import onnx_text

    folder = tmp_path / "padded"
    shutil.copytree(checkpoint().path, folder)
    written = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    last = max(token["id"] for token in written["added_tokens"])
    written["added_tokens"].append(added(last + 1, "[PAD]"))
    (folder / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    result = exporter.export(Checkpoint.open(folder), tmp_path / "out", dtype="fp32")
    assert [note for note in result.notes if "has 1 more tokens than the model has" in note]
    tokenizer = onnx_text.load(Checkpoint.open(folder))
    rows = max(onnx_text.probe_ids(tokenizer, last)["English"])
    ids = onnx_text.probe_ids(tokenizer, rows)
    with pytest.raises(ExportError, match="padded writes usual texts with tokens that the model"):
        onnx_text.unread(Checkpoint.open(folder), tokenizer, ids, rows)


@with_extra
def test_a_token_beyond_the_embedding_of_a_model_whose_class_says_its_size(tmp_path: Path) -> None:
    """config.json has no vocab_size then, and the embedding has as many rows as the class means."""
    import tiny_checkpoint as tiny
    from transformers import LlamaConfig

    rows = LlamaConfig().vocab_size
    tokenizer = tiny.byte_level_tokenizer()
    vocab = tokenizer["model"]["vocab"]
    vocab |= {f"filler {number}": number for number in range(len(vocab), rows - len(tiny.CONTROL))}
    tokenizer["added_tokens"] = [
        tiny.added(len(vocab) + i, text) for i, text in enumerate((*tiny.CONTROL, "[PAD]"))
    ]
    folder = tiny.write_checkpoint(
        tmp_path / "unsaid", "llama-2", tokenizer=tokenizer, rows=rows,
        tie_word_embeddings=True, max_position_embeddings=1024,
    )  # fmt: skip
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["vocab_size"]
    tiny.write_json(folder / "config.json", config)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    tiny.write_json(folder / "tokenizer_config.json", about)
    result = exporter.export(Checkpoint.open(folder), tmp_path / "out", dtype="fp32")
    assert [note for note in result.notes if "has 1 more tokens than the model has" in note]


@with_extra
def test_a_window_on_the_wrong_layer_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.exporters import onnx_fused

    # Longer than the probe texts are.
    source = checkpoint("Qwen2", **_SLIDING["Qwen2"] | {"sliding_window": 400})
    with monkeypatch.context() as patch:
        seen = onnx_fused.windows
        patch.setattr(onnx_fused, "windows", lambda *of: seen(*of)[::-1])
        with pytest.raises(ExportError, match="Behind its window its logits aren't"):
            exporter.export(source, tmp_path / "out", dtype="fp32")
    from onnxruntime_genai.models import builders

    def everywhere(made: Any, layer: int, *args: Any, **kwargs: Any) -> None:
        made.window_size = 16
        attention(made, layer, *args, **kwargs)

    attention = builders.QwenModel.make_attention
    monkeypatch.setattr(builders.QwenModel, "make_attention", everywhere)
    with pytest.raises(ExportError, match="gave layer 0 a window of 16 tokens where the model"):
        exporter.export(source, tmp_path / "out", dtype="int4")
    assert list(tmp_path.iterdir()) == []


@with_extra
def test_two_tables_of_rotations_are_expected(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_ROOM", 120_000)  # the tables take 262 kB
    exporter.export(checkpoint("Gemma3", **_SLIDING["Gemma3"]), tmp_path / "out", dtype="int4")


@with_extra
def test_weights_are_read_in_the_type_they_are_stored_in(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    import torch
    from safetensors.numpy import load_file

    from edgespec.exporters import onnx_reference

    folder = tmp_path / "other"
    shutil.copytree(checkpoint().path, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = onnx_reference.load(Checkpoint.open(folder))
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]
    weights = dict(loaded.named_parameters())
    assert {p.dtype for p in weights.values()} == {torch.float32}
    np.testing.assert_array_equal(weights["model.norm.weight"].detach().numpy(), stored)
    for dtype in ("bfloat16", "float16"):
        source = checkpoint("Qwen2", dtype=dtype)
        # Older ones hold frequencies too, which the model computes itself.
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        buffer = replace(source.tensors["model.norm.weight"], name=name, dtype="F32")
        source = replace(source, tensors={**source.tensors, name: buffer})
        half = onnx_reference.load(source)
        assert {p.dtype for p in half.parameters()} == {getattr(torch, dtype)}


@with_extra
def test_style_follows_the_family(checkpoint: Callable[..., Checkpoint]) -> None:
    assert exporter.plan(checkpoint("Qwen2"), "int4").style == "fused"
    assert exporter.plan(checkpoint("GPT2"), "int4").style == "portable"
    with pytest.raises(ExportError, match=r"GPT2LMHeadModel.*--portable"):
        exporter.plan(checkpoint("GPT2"), "int4", "fused")
    with pytest.raises(ConfigError, match="choose from fp32"):
        exporter.plan(checkpoint(), "q4_0")


@with_extra
@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("family", "scaling", "style"),
    [
        ("llama-2", {"rope_type": "linear", "factor": 2.0}, "fused"),
        ("llama-2", {"rope_type": "dynamic", "factor": 2.0}, "portable"),
        ("llama-2", {"type": "dynamic", "factor": 2.0}, "portable"),
        ("phi-3", None, "fused"),
        ("phi-3", ..., "portable"),  # its own, with factors for short and for long texts
    ],
)
def test_positions_that_change_with_the_length_are_portable(
    family: str, scaling: Any, style: str, newer: bool, tmp_path: Path
) -> None:
    from tiny_checkpoint import write_checkpoint

    changes = {} if scaling is ... else {"rope_scaling": scaling}
    source = Checkpoint.open(write_checkpoint(tmp_path / "m", family, **changes))
    if newer:
        source = _newer(source, tmp_path / "newer")
    assert exporter.plan(source, "int4").style == style
    if style == "portable":
        with pytest.raises(ExportError, match=r"changes its positions with the length.*--portable"):
            exporter.plan(source, "int4", "fused")


@with_extra
@pytest.mark.parametrize(
    ("weight", "what"),
    [("layers.0.mlp.down_proj", "mean KL"), ("lm_head", "mean KL")],
)
def test_a_graph_that_is_another_model_is_refused(
    weight: str,
    what: str,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from edgespec.exporters import onnx_fused

    build = onnx_fused.build

    def wrong(loaded: Any, *args: Any, **options: Any) -> Any:
        with torch.no_grad():
            found = [p for n, p in loaded.named_parameters() if weight in n]
            found[0].mul_(1.5)
        return build(loaded, *args, **options)

    monkeypatch.setattr(onnx_fused, "build", wrong)
    with pytest.raises(ExportError, match=f"failed its check.*{what}.*position.*--portable may"):
        exporter.export(checkpoint(tied=False), tmp_path / "out", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


@with_extra
@pytest.mark.parametrize("style", ["fused", "portable"])
def test_what_few_bits_would_hide_is_seen_before(
    style: Any,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from edgespec.exporters import onnx_fused, onnx_portable

    module = onnx_fused if style == "fused" else onnx_portable
    build = module.build

    def wrong(loaded: Any, *args: Any, **options: Any) -> Any:
        with torch.no_grad():
            for name, weight in loaded.named_parameters():
                if "o_proj" in name:
                    weight.mul_(1.05)
        return build(loaded, *args, **options)

    monkeypatch.setattr(module, "build", wrong)
    source = checkpoint(tied=False)
    said = "Before its weights became fewer bits its logits weren't the checkpoint's: mean KL"
    with pytest.raises(ExportError, match=said) as caught:
        exporter.export(source, tmp_path / "out", dtype="int4", style=style)
    assert ("; --portable may do" in str(caught.value)) == (style == "fused")
    assert list(tmp_path.iterdir()) == []
    assert exporter.plan(source, "int4", style).floats_bytes == 4 * source.parameters
    monkeypatch.setattr(
        exporter, "_CHECK_FLOATS_UP_TO", source.parameters - 1
    )  # a model too large for that
    assert exporter.plan(source, "int4", style).floats_bytes == 0
    result = exporter.export(source, tmp_path / "out", dtype="int4", style=style)
    assert "before_quantising" not in result.parity and result.notes == ()


@with_extra
@pytest.mark.parametrize("dtype", ["int4", "fp32"])
def test_the_figures_before_quantising_are_kept(
    dtype: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    parity = exporter.export(checkpoint(), tmp_path / "out", dtype=dtype).parity
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    if dtype == "int4":
        assert parity["before_quantising"]["mean_kl"] < 1e-9 < parity["logits"]["mean_kl"]
    else:
        assert "before_quantising" not in parity


def _disk_with(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for so many bytes, and for those that are always left free."""
    usage = SimpleNamespace(free=free + 50_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)


@with_extra
@pytest.mark.parametrize("style", ["fused", "portable"])
def test_a_disk_without_room_for_the_check_of_floats_leaves_that_out_and_says_so(
    style: Any,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = exporter.plan(checkpoint(), "int4", style)
    whole = planned.disk_bytes + planned.floats_bytes
    assert f"up to {human_bytes(whole)} of disk meanwhile" in planned.sentence
    for lacking in (0, 1):
        _disk_with(whole - lacking, monkeypatch)
        out = tmp_path / str(lacking)
        result = exporter.export(checkpoint(), out, dtype="int4", style=style)
        assert ("before_quantising" in result.parity) == (not lacking)
        notes = [note for note in result.notes if "wasn't checked before its weights" in note]
        assert len(notes) == lacking
        assert json.loads(result.manifest.read_text(encoding="utf-8"))["notes"] == notes
    _disk_with(planned.disk_bytes - 1, monkeypatch)
    with pytest.raises(ExportError, match="make room"):
        exporter.export(checkpoint(), tmp_path / "out", dtype="int4", style=style)


@pytest.mark.parametrize(
    ("dtype", "bytes_each"), [("int4", 8), ("int8", 8), ("fp32", 8), ("fp16", 4)]
)
def test_weights_that_optimum_joins_lie_on_the_disk_twice(
    dtype: str, bytes_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "chosen", lambda *_: ("PhiForCausalLM", "portable"))
    numbers = 1_500_000_000
    model: Any = SimpleNamespace(parameters=numbers, size_bytes=2 * numbers)
    planned = exporter.plan(model, dtype)
    assert planned.disk_bytes == bytes_each * numbers
    if dtype in ("int4", "int8"):  # later floats, and what is made of them, beside one copy
        whole = planned.disk_bytes + planned.floats_bytes
        assert whole == planned.size_bytes + 8 * numbers
    monkeypatch.setattr(exporter, "chosen", lambda *_: ("PhiForCausalLM", "fused"))
    assert exporter.plan(model, dtype).disk_bytes == planned.size_bytes


@with_extra
def test_a_pair_needs_room_for_both_and_for_the_larger_work_beside_one(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.exporters.onnx_pair import export_pair

    def begun(*_: Any) -> None:
        raise KeyboardInterrupt

    models = checkpoint(), checkpoint("Qwen2")
    first, second = (exporter.plan(model, "int4", "portable") for model in models)
    beside = [planned.disk_bytes - planned.size_bytes for planned in (first, second)]
    assert beside[0] != beside[1] and first.floats_bytes > 0
    need = first.size_bytes + second.size_bytes + max(beside)
    for free, ended in ((need, KeyboardInterrupt), (need - 1, ExportError)):
        _disk_with(free, monkeypatch)
        with pytest.raises(ended):
            export_pair(
                *models, tmp_path / "out", dtypes=("int4", "int4"), style="portable", report=begun
            )


@with_extra
@pytest.mark.parametrize("damaged", [False, True])
def test_what_was_checked_and_only_lacks_its_name_is_not_made_again(
    damaged: bool,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless its bytes aren't what was checked, as after a power cut."""
    source, out = checkpoint(), tmp_path / "out"
    first = exporter.export(source, out, dtype="fp32", style="fused")
    made, make = [], exporter._make

    def late(*args: Any) -> Any:
        (out / "notes.txt").touch()
        return make(*args)

    def again() -> exporter.Result:
        return exporter.export(source, out, dtype="fp32", style="fused", overwrite=True)

    monkeypatch.setattr(exporter, "_make", late)
    with pytest.raises(ExportError, match=r"holds notes\.txt now; take it out and try again"):
        again()
    (out / "notes.txt").unlink()
    monkeypatch.setattr(exporter, "_make", lambda *args: made.append(1) or make(*args))
    if damaged:
        (tmp_path / ".out.partial" / "model" / "model.onnx.data").write_bytes(b"torn")
    assert (again(), made) == (first, [1] * damaged)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@with_extra
@pytest.mark.parametrize("end", [KeyboardInterrupt(), MemoryError(), ExportError("it isn't")])
def test_a_pair_goes_on_from_its_target(
    end: BaseException,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from edgespec.exporters.onnx_pair import export_pair

    models, made, make = (checkpoint(), checkpoint("Qwen2")), [], exporter._make

    def counted(model: Checkpoint, *rest: Any) -> Any:
        made.append(model.name)
        if made == [model.name for model in models]:
            raise end
        return make(model, *rest)

    def export() -> list[exporter.Result]:
        return export_pair(*models, tmp_path / "out", dtypes=("fp32", "fp32"), style="fused")

    monkeypatch.setattr(exporter, "_make", counted)
    with pytest.raises((KeyboardInterrupt, ExportError)):
        export()
    refused = str(end) == "it isn't"  # what failed its check is never gone on from
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"] * (not refused)
    results = export()
    names = [model.name for model in models]
    assert made == [*names, *(names if refused else names[1:])]
    assert [result.path.name for result in results] == ["target", "draft"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@with_extra
def test_a_graph_that_forgets_its_past_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass over a whole text is right, and only the steps show it."""
    import onnx_ir

    from edgespec.exporters import onnx_file
    from edgespec.exporters.onnx_graph import constant

    move_to = onnx_file.move_to

    def forgetful(model: Any, *args: Any) -> None:
        zero = constant(model.graph, "zero", np.float32(0))
        for past in [value for value in model.graph.inputs if value.name.startswith("past")]:
            readers = [use.node for use in past.uses() if use.node.op_type == "Concat"]
            blank = onnx_ir.node("Mul", [past, zero])
            model.graph.insert_before(readers[0], blank)
            readers[0].replace_input_with(0, blank.outputs[0])
        move_to(model, *args)

    monkeypatch.setattr(onnx_file, "move_to", forgetful)
    with pytest.raises(ExportError, match="Several tokens in a pass aren't"):
        exporter.export(checkpoint(), tmp_path / "out", dtype="fp32", style="portable")
    assert list(tmp_path.iterdir()) == []


@with_extra
def test_what_the_runtime_cant_use_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from edgespec.backends import ort_probe

    other = tmp_path / "other"
    shutil.copytree(checkpoint().path, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ExportError, match=r"edgespec can't open it: .*doesn't know: WordPiece"):
        exporter.export(Checkpoint.open(other), tmp_path / "out", dtype="fp32")
    monkeypatch.setattr(ort_probe, "SAME", -1.0)  # nothing is as alike as that
    with pytest.raises(ExportError, match="could check no drafts: a pass over three tokens"):
        exporter.export(checkpoint(), tmp_path / "out", dtype="fp32")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@with_extra
@pytest.mark.parametrize("stage", ["loading", "quantising", "writing", "checking", "reading the r"])
def test_a_stop_leaves_nothing(
    stage: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    def stop(said: str, done: int = 0, total: int | None = 0) -> None:
        if said.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exporter.export(checkpoint(), tmp_path / "out", dtype="int4", report=stop)
    assert list(tmp_path.iterdir()) == []


@with_extra
def test_a_file_with_something_in_it_twice_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.exporters import onnx_graph

    monkeypatch.setattr(exporter, "_ROOM", 30_000)
    monkeypatch.setattr(onnx_graph, "share_embedding", lambda _model, ends: ends)
    with pytest.raises(ExportError, match="twice"):
        exporter.export(checkpoint(), tmp_path / "out", dtype="fp32")


@with_extra
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "shape", "middle"), [("int4", 2, 0x88), ("int8", 3, 0x80)])
def test_embeddings_name_their_zeros(
    dtype: str,
    shape: int,
    middle: int,
    tied: bool,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
) -> None:
    """Of three blocks a row. ONNX Runtime has taken 0 on CUDA where none are named."""
    import onnx
    from onnx import numpy_helper

    source = checkpoint(tied=tied, hidden_size=96, head_dim=16)
    out = exporter.export(source, tmp_path / "out", dtype=dtype).path
    graph = onnx.load(out / "model.onnx").graph
    stored = {w.name: w for w in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "GatherBlockQuantized"]
    zeros = numpy_helper.to_array(stored[nodes[0].input[3]])
    rows = json.loads((out / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    assert len(nodes) == 1 and zeros.shape == (rows, shape)
    assert zeros.dtype == np.uint8 and (zeros == middle).all()
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert all(len(node.input) == 3 for node in products)  # whose middle all agree on


@with_extra
def test_zeros_and_filled_up_blocks_are_expected() -> None:
    from edgespec.exporters.onnx_weights import Quantised

    parameters = [(100_000, 300)]
    changed = Quantised(numbers=30_000_000, padding=8_000_000, zeros=2_000_000)
    need = 38_000_000 * 5 // 8 + 2_000_000
    exporter._check_size(need, parameters, "int4", changed)
    with pytest.raises(ExportError, match="twice"):
        exporter._check_size(need + 2_000_000, parameters, "int4", changed)


@with_extra
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_an_embedding_that_fills_no_blocks_stays_floats(
    dtype: str,
    tied: bool,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnx

    monkeypatch.setattr(exporter, "_ROOM", 30_000)  # a copy of the table would be 60 kB
    source = checkpoint(tied=tied, hidden_size=40, head_dim=16)
    result = exporter.export(source, tmp_path / "out", dtype=dtype)
    nodes = onnx.load(result.path / "model.onnx", load_external_data=False).graph.node
    operators = [node.op_type for node in nodes]
    assert "GatherBlockQuantized" not in operators
    assert operators.count("FusedMatMul") == tied
    said = f"can't hold {'/lm_head/MatMul, ' * tied}/model/embed_tokens/Gather, which stay floats"
    assert [said in note for note in result.notes] == [True]


@with_extra
def test_products_with_several_matrices_are_told_or_refused() -> None:
    """As the experts of a mixture are stored; the numbers of a rotation are none."""
    import onnx_ir
    from onnx import TensorProto, helper, numpy_helper

    from edgespec.exporters.onnx_graph import Ends
    from edgespec.exporters.onnx_weights import quantise

    def model(experts: int) -> Any:
        rng = np.random.default_rng(0)
        shapes = {"w": (64, 512), "experts": (experts, 64, 64), "turn": (1, 32, 1)}
        stored = [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ]
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="plain"),
            helper.make_node("MatMul", ["x", "experts"], ["z"], name="mixed"),
            helper.make_node("MatMul", ["turn", "places"], ["angles"], name="turned"),
        ]
        named = {
            name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", [1, 1, 64]), ("places", [1, 1, 4]), ("y", None), ("z", None),
                                ("angles", None))
        }  # fmt: skip
        graph = helper.make_graph(
            nodes, "g", [named["x"], named["places"]], [named[n] for n in ("y", "z", "angles")],
            stored,
        )  # fmt: skip
        return onnx_ir.from_proto(helper.make_model(graph))

    few = quantise(model(2), Ends(None, None), 4, report=lambda *_: None)
    assert few.kept == ["mixed"] and few.numbers == 64 * 512
    assert few.notes == ["blocks can't hold mixed, which stay floats"]
    with pytest.raises(ExportError, match=r"can't hold 50% of its weights.*mixed\); choose fp16"):
        quantise(model(8), Ends(None, None), 4, report=lambda *_: None)


_NO_MEMORY = {
    "python": MemoryError(),
    "torch": RuntimeError("[enforce fail at x] DefaultCPUAllocator: can't allocate memory: 9"),
    "onnxruntime": Exception("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"),
}


@with_extra
@pytest.mark.parametrize("whose", _NO_MEMORY)
@pytest.mark.parametrize("stage", ["loading", "building", "tracing", "checking"])
def test_memory_that_isnt_there_is_a_sentence(
    stage: str,
    whose: str,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise _NO_MEMORY[whose]

    place = {
        "loading": "transformers.AutoModelForCausalLM.from_pretrained",
        "building": "onnxruntime_genai.models.builders.LlamaModel.make_model",
        "tracing": "optimum.exporters.onnx.onnx_export_from_model",
        "checking": "onnxruntime.InferenceSession",
    }[stage]
    source = checkpoint()
    monkeypatch.setattr(place, fail)
    style: Any = "portable" if stage == "tracing" else "fused"
    with pytest.raises(ExportError, match=r"wasn't the memory.*takes about 1\.\d+ GB"):
        exporter.export(source, tmp_path / "out", dtype="fp32", style=style)
    assert list(tmp_path.iterdir()) == []


@with_extra
@pytest.mark.parametrize(
    ("style", "place"),
    [
        ("fused", "onnxruntime_genai.models.builders.LlamaModel.make_model"),
        ("portable", "optimum.exporters.onnx.onnx_export_from_model"),
    ],
)
def test_a_full_disk_is_not_the_models_fault(
    style: Any,
    place: str,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import errno

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "weights")

    monkeypatch.setattr(place, fail)
    with pytest.raises(ExportError, match=r"^Can't write .*out: No space left on device"):
        exporter.export(checkpoint(), tmp_path / "out", dtype="fp32", style=style)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="here no file is always full")
def test_a_full_disk_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    import errno

    onnx_ir = pytest.importorskip("onnx_ir")
    from onnx import TensorProto, helper, numpy_helper

    from edgespec.exporters import onnx_file

    weights = numpy_helper.from_array(np.ones((64, 512), np.float32), "w")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
        for name, width in (("x", 64), ("y", 512))
    ]
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "g", ends[:1], ends[1:], [weights])
    (tmp_path / onnx_file.DATA).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        onnx_file.move_to(
            onnx_ir.from_proto(helper.make_model(graph)), tmp_path, {}, lambda *_: None
        )
    assert caught.value.errno == errno.ENOSPC


@with_extra
def test_a_pair_is_written_and_registered(
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from edgespec import registry

    own = tmp_path / "models.toml"
    monkeypatch.setattr("edgespec.exporters.register.user_models_file", lambda: own)
    target, draft = checkpoint(), checkpoint("Qwen2")
    out = tmp_path / "pair"
    command = ["export", "onnx", str(target.path), str(out), "--draft", str(draft.path)]
    assert main([*command, "--dtype", "fp32", "--draft-dtype", "int4", "--register", "tiny"]) == 0
    pair = registry.load_registry(own).pair("tiny")
    assert pair.target.source == registry.FileSource(out / "target" / "model.onnx")
    assert pair.drafters[0] == registry.LOOKUP
    assert [model.format for model in pair.models] == ["onnx", "onnx"]
    assert capsys.readouterr().out.strip() == str(out)
    assert sorted(path.name for path in out.iterdir()) == ["draft", "target"]


@with_extra
@pytest.mark.parametrize("style", ["fused", "portable"])
def test_export_pair_makes_graphs_of_the_style_that_is_asked_for(
    style: str,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the sentences of a refused fused graph tell a person to."""
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path))
    models, out = [str(checkpoint().path), str(checkpoint("Qwen2").path)], tmp_path / "pair"
    command = ["export", "pair", *models, str(out), "--format", "onnx", "--quant", "f32"]
    assert main([*command, f"--{style}", "--no-register"]) == 0
    assert capsys.readouterr().err.count(f"{style}, fp32: about") == 2
    for name in ("target", "draft"):
        made = json.loads(manifest.beside(out / name).read_text("utf-8"))
        assert made["options"]["style"] == style


@with_extra
def test_a_pair_with_other_tokens_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    from tiny_checkpoint import byte_level_tokenizer

    from edgespec.exporters.onnx_pair import export_pair

    other = tmp_path / "other"
    shutil.copytree(checkpoint().path, other)
    tokenizer = byte_level_tokenizer()
    tokenizer["added_tokens"][1]["content"] = "<|another|>"  # which no probe text holds
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ExportError, match=r"other can't draft for .* is '<\|another\|>' there"):
        export_pair(checkpoint(), Checkpoint.open(other), tmp_path / "out", dtypes=("fp32", "fp32"))
    assert not (tmp_path / "out").exists()


@with_extra
def test_a_draft_may_know_more_tokens(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """As the 7B models of Qwen2 and their drafts do."""
    import shutil

    from tiny_checkpoint import added, byte_level_tokenizer

    from edgespec.exporters.onnx_pair import require_fit

    other = tmp_path / "other"
    shutil.copytree(checkpoint().path, other)
    tokenizer = byte_level_tokenizer()
    last = tokenizer["added_tokens"][-1]["id"]
    tokenizer["added_tokens"].append(added(last + 1, "<|more|>"))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for pair in ((checkpoint(), Checkpoint.open(other)), (Checkpoint.open(other), checkpoint())):
        require_fit(pair, ("fp32", "int4"))


@with_extra
@pytest.mark.parametrize("style", ["fused", "portable"])
def test_a_checkpoint_that_lacks_a_tensor_is_not_made_up(
    style: str, checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    from safetensors.numpy import load_file, save_file

    half = tmp_path / "half"
    shutil.copytree(checkpoint("Qwen2").path, half)
    found = load_file(half / "model.safetensors")
    del found["model.layers.1.mlp.up_proj.weight"]
    save_file(found, half / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=r"isn't whole: it holds no model\.layers\.1\.mlp\.up_"):
        exporter.export(Checkpoint.open(half), tmp_path / "out", dtype="fp32", style=style)
    assert [path.name for path in tmp_path.iterdir()] == ["half"]


@with_extra
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_a_table_of_positions_stays_floats_and_is_expected_to(
    dtype: str,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "_ROOM", 120_000)  # the table takes 262 kB
    exporter.export(checkpoint("GPT2"), tmp_path / "out", dtype=dtype)


@with_extra
def test_what_the_builder_stumbles_over_is_a_sentence(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime_genai.models import builders

    def fail(*_: Any) -> None:
        raise NotImplementedError("this rope is new\nand more")

    for method, what in (("make_model", "LlamaForCausalLM"), ("make_genai_config", ".*")):
        with monkeypatch.context() as patch:
            patch.setattr(builders.LlamaModel, method, fail)
            said = f"can't build {what}: this rope is new; use --portable"
            with pytest.raises(ExportError, match=said):
                exporter.export(checkpoint(), tmp_path / "out", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


@with_extra
def test_what_is_there_is_replaced_only_if_it_is_an_export(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    own = tmp_path / "own"
    shutil.copytree(checkpoint().path, own)
    source = Checkpoint.open(own)
    for out in (own, tmp_path):
        with pytest.raises(ExportError, match="is what is to be exported, or holds it"):
            exporter.export(source, out, dtype="fp32", overwrite=True)
    out = tmp_path / "out"
    exporter.export(source, out, dtype="fp32")
    exporter.export(source, out, dtype="int4", overwrite=True)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"holds notes\.txt, which is no part of an export"):
        exporter.export(source, out, dtype="fp32", overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


@with_extra
def test_what_can_be_refused_is_refused_before_the_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "models.toml"
    entry = '[models.mine-draft]\nsource = { kind = "file", path = "x" }\nformat = "onnx"\n'
    own.write_text(entry)
    monkeypatch.setattr("edgespec.exporters.register.user_models_file", lambda: own)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no-such-int4").write_text("mine")
    for asked, said in (
        (["org/no-such"], "no-such-int4 exists already"),
        (["org/no-such", "new", "--draft", "a/b", "--register", "mine"], '"mine-draft" already'),
        (["org/no-such", "new", "--register", "lookup"], '"lookup" is what chooses drafters'),
    ):
        assert main(["export", "onnx", *asked]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and said in lines[0]


# In a process of its own: the hub's client reads its settings when it is imported.
_EXPORTS = """
import sys
from edgespec.cli import main
print([main(["export", *asked.split()]) for asked in sys.argv[1:]])
"""


@with_extra
def test_what_the_small_files_rule_out_is_refused_before_the_weights_are_fetched(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import os
    import subprocess
    import sys

    from hub_server import HubServer
    from tiny_checkpoint import byte_level_tokenizer

    sources = {"target": checkpoint(), "old": checkpoint("GPT2"), "other": checkpoint("Qwen2")}
    files = {
        (f"org/{name}", path.name): path.read_bytes()
        for name, source in sources.items()
        for path in source.path.iterdir()
    }
    tokenizer = byte_level_tokenizer()
    tokenizer["added_tokens"][1]["content"] = "<|another|>"
    files["org/other", "tokenizer.json"] = json.dumps(tokenizer).encode()
    bare, packed = files["org/target", "config.json"], json.loads(files["org/old", "config.json"])
    files["org/bare", "config.json"] = bare  # and no tokenizer.json
    files["org/bare", "model.safetensors"] = files["org/target", "model.safetensors"]
    packed["quantization_config"] = {"bits": 4}
    files["org/packed", "config.json"] = json.dumps(packed).encode()
    files["org/packed", "model.safetensors"] = b""
    files |= {("org/new", name): data for (repo, name), data in files.items() if repo == "org/old"}
    new = json.loads(files["org/old", "config.json"]) | {"architectures": ["NewForCausalLM"]}
    files["org/new", "config.json"] = json.dumps(new).encode()
    kinds = {
        "coder": {"model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"]},
        "halves": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        "reading": {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        "both": {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]},
        "coded": {
            "model_type": "coded", "architectures": ["CodedForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_coded.CodedConfig"},
        },
    }  # fmt: skip
    for name, config in kinds.items():
        files |= {
            (f"org/{name}", file): data for (repo, file), data in files.items() if repo == "org/old"
        }
        files[f"org/{name}", "config.json"] = json.dumps(config).encode()
    asked = [
        *(f"onnx org/{name} o" for name in kinds),
        "onnx org/target o --draft org/coder",
        "pair org/target org/coder o --format onnx",
        "onnx org/old o --fused",
        "onnx org/target o --draft org/old --fused",
        "onnx org/target o --draft org/other",
        "onnx org/bare o",
        "pair org/target org/other o --format onnx",
        "pair org/target org/bare o --format onnx",
        "pair org/target org/packed o",
        "pair org/target org/other o",
        "gguf org/packed o",
        "gguf org/new o",
        "gguf org/bare o",
        "onnx org/packed o",
    ]
    with HubServer(files) as hub:
        env = {
            **os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
        }  # fmt: skip
        env.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _EXPORTS, *asked],
            capture_output=True, text=True, env=env, cwd=tmp_path, timeout=600,
        )  # fmt: skip
        assert done.stdout.strip() == str([1] * len(asked)), done.stderr
        said = "coder is a Starcoder2ForCausalLM, which neither onnxruntime-genai nor optimum can"
        assert done.stderr.count(said) == 3
        assert "reading is a BertForMaskedLM, which neither onnxruntime-genai nor" in done.stderr
        for said in ("halves is a T5ForConditional", "both is a BartForConditional"):
            assert f"{said}Generation, which is no causal language model" in done.stderr
        assert "coded is of model_type coded, which transformers" in done.stderr
        assert done.stderr.count("GPT2LMHeadModel, which can't be exported with fused") == 2
        assert done.stderr.count("other can't draft for target: token") == 3
        assert done.stderr.count("transformers can't load the tokenizer of bare: ") == 2
        assert done.stderr.count("org/packed is quantised already") == 3
        assert "org/new is of an architecture that can't be exported" in done.stderr
        assert "org/bare has neither tokenizer.json nor tokenizer.model" in done.stderr
        assert not [line for line in hub.log if "safetensors" in line]
        assert [line for line in hub.log if "/cdn/org/other/tokenizer.json" in line]


@with_extra
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_hold_what_was_put_in(bits: int) -> None:
    import torch

    from edgespec.exporters.onnx_blocks import pack, unpack

    torch.manual_seed(3)
    matrix = torch.randn(7, 80)
    matrix[2, :32] = 0  # a block of zeros
    matrix[3, :32] = 2.5  # one of a single number
    matrix[4, :32] = -matrix[5, :32]  # the largest number at either sign
    packed = pack(matrix, bits, 32)
    assert packed.data.shape == (7, 3, 32 * bits // 8) and packed.scales.shape == (7, 3)
    difference = np.abs(unpack(packed) - matrix.numpy())
    # A step of the coarsest grid: half for rounding, as much again for clipping and the fit.
    assert difference.max() <= float(matrix.abs().max()) / (2 ** (bits - 1) - 1)
    assert not difference[2, :32].any() and difference[3, :32].max() < 1e-6
    np.testing.assert_allclose(difference[4, :32], difference[5, :32], atol=1e-6)


@with_extra
@pytest.mark.parametrize("bits", [4, 8])
def test_operators_read_blocks_as_they_were_meant(bits: int) -> None:
    """Also the zero, named or not, and scales below it."""
    import onnxruntime as ort
    import torch
    from onnx import TensorProto, helper, numpy_helper

    from edgespec.exporters.onnx_blocks import pack, unpack

    torch.manual_seed(3)
    packed = pack(torch.randn(48, 64), bits, 32)
    assert packed.scales.min() < 0 < packed.scales.max()
    rows = packed.data.reshape(48, -1)
    zeros = np.full((48, 2 if bits == 8 else 1), 128 if bits == 8 else 0x88, np.uint8)
    stored = {"blocks": packed.data, "rows": rows, "scales": packed.scales, "zeros": zeros}
    common = {"domain": "com.microsoft", "bits": bits, "block_size": 32}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "blocks", "scales"], ["y"], K=64, N=48, **common),
        helper.make_node(
            "GatherBlockQuantized", ["rows", "ids", "scales"], ["z"], quantize_axis=1, **common
        ),
        helper.make_node(
            "GatherBlockQuantized", ["rows", "ids", "scales", "zeros"], ["named"],
            quantize_axis=1, **common,
        ),
    ]  # fmt: skip
    values = (
        ("x", TensorProto.FLOAT, [64, 64]), ("ids", TensorProto.INT64, [48]),
        ("y", TensorProto.FLOAT, [64, 48]), ("z", TensorProto.FLOAT, [48, 64]),
        ("named", TensorProto.FLOAT, [48, 64]),
    )  # fmt: skip
    infos = [helper.make_tensor_value_info(*value) for value in values]
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "both", infos[:2], infos[2:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.eye(64, dtype=np.float32), "ids": np.arange(48)}
    product, gathered, named = session.run(None, feeds)
    np.testing.assert_allclose(product, unpack(packed).T, atol=1e-5)
    np.testing.assert_allclose(gathered, unpack(packed), atol=1e-5)
    np.testing.assert_array_equal(named, gathered)
