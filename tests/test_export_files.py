"""What every export shares: whole checkpoints in, whole files out, and a record of both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_checkpoint as tiny
from hub_server import COMMIT, HubServer
from links import needs_links

from edgespec.cli import main
from edgespec.errors import ConfigError, EdgespecError, ExportError, ModelError
from edgespec.exporters import manifest, transformers_4
from edgespec.exporters.checkpoint import Checkpoint, Outline, refuse_quantised
from edgespec.exporters.manifest import Manifest
from edgespec.exporters.register import Exported, pair_entry, refuse_taken, register
from edgespec.exporters.staging import Stopped, refuse_existing, require_space, stage
from edgespec.exporters.weights import read_index
from edgespec.registry import load_registry

# ------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(("dtype", "width"), [("F32", 4), ("F16", 2), ("BF16", 2)])
def test_a_checkpoint_is_looked_through_without_its_weights(
    dtype: str, width: int, tmp_path: Path
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "model", dtype=dtype, shards=3)
    checkpoint = Checkpoint.open(folder)
    wrote = tiny.tensors(json.loads((folder / "config.json").read_text()))
    assert checkpoint.parameters == sum(array.size for array in wrote.values())
    assert checkpoint.size_bytes == width * checkpoint.parameters
    assert [path.name for path in checkpoint.shards] == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    assert (checkpoint.path, checkpoint.revision) == (folder, None)
    assert checkpoint.name == "model"
    assert checkpoint.config["model_type"] == "qwen2"
    name = "model.layers.1.mlp.up_proj.weight"
    exact = wrote[name].astype(np.float16).astype(np.float32) if dtype == "F16" else wrote[name]
    if dtype == "BF16":
        exact = (wrote[name].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert np.array_equal(checkpoint.tensors[name].floats(), exact)


def test_parts_without_an_index_are_found_by_their_numbers(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").unlink()
    assert len(Checkpoint.open(folder).shards) == 2
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ExportError, match="lacks model-00002-of-00002"):
        Checkpoint.open(folder)


def test_what_is_no_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(ExportError, match=said):
            Checkpoint.open(folder)

    folder = tmp_path / "m"
    folder.mkdir()
    refused("no config.json")
    (folder / "model.gguf").write_bytes(b"GGUF")
    refused("needs no export")
    tiny.write_json(folder / "adapter_config.json", {})
    refused("merge it into its base model")
    (folder / "config.json").write_text("[1, 2]")
    refused("damaged")
    (folder / "config.json").write_text("{")
    refused("damaged")
    tiny.write_json(folder / "config.json", {"model_type": "llama"})
    refused("no safetensors files")
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    refused("convert it to safetensors first")
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused("git lfs pull")
    (folder / "model.safetensors").write_bytes(b'\x08\0\0\0\0\0\0\0{"a": 1}')
    refused("damaged")
    tiny.write_safetensors(folder / "model.safetensors", {"a": np.ones(3, np.float32)})
    Checkpoint.open(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate((folder / "model.safetensors").stat().st_size - 4)
    refused("cut short")


@pytest.mark.parametrize("name", ["consolidated", "weights.00", "model.fp16", "pytorch_model"])
def test_weights_of_another_layout_are_named(name: str, tmp_path: Path) -> None:
    """The folder holds safetensors files, and downloading them again would change nothing."""
    folder = tiny.write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / f"{name}.safetensors")
    with pytest.raises(ExportError, match=rf"holds its weights as {name}\.saf.*save_pretrained"):
        Checkpoint.open(folder)
    (folder / f"{name}.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(ExportError, match="is an adapter, not a whole model"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "no folder nowhere"),
        ("./a/b", "no folder"),
        ("a/b/c", "no hub id either"),
        ("../b", "no hub id either"),
    ],
)
def test_neither_a_folder_nor_a_hub_id(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=said):
        Checkpoint.open(name)


@needs_links
def test_a_folder_is_called_by_its_name_from_inside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write_checkpoint(tmp_path / "model")
    (folder / "deeper").mkdir()
    (tmp_path / "link").symlink_to(folder)
    for inside, path, name in (
        (folder, ".", "model"),
        (folder / "deeper", "..", "model"),
        (tmp_path, "model/", "model"),
        (tmp_path, "link", "link"),
    ):
        monkeypatch.chdir(inside)
        assert Checkpoint.open(path).name == Checkpoint.name_of(path) == name
    assert Checkpoint.name_of("org/tiny") == "tiny"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")
def test_a_folder_whose_name_no_manifest_can_hold_is_refused_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tiny.write_checkpoint(tmp_path / os.fsdecode(b"caf\xe9"))
    tiny.write_checkpoint(odd / "m")
    monkeypatch.chdir(odd)
    monkeypatch.setenv("HOME", str(odd))
    assert Checkpoint.open("m").name == "m"  # which says nothing of where it lies
    for path in (".", "~/m", odd):
        with pytest.raises(ExportError, match=r"caf\\udce9.* holds bytes that aren't UTF-8"):
            Checkpoint.open(path)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no revisions to choose from: leave that option out"):
        Checkpoint.open(tiny.write_checkpoint(tmp_path / "m"), "main")


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}},
        {"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}},
        {"a": 3},
    ],
)
def test_a_damaged_header_is_a_sentence(header: object, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 16)
    with pytest.raises(ExportError):
        read_index(path)


def test_weights_of_eight_bits_are_not_taken_for_numbers(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(ExportError, match="quantised"):
        read_index(path)["a"].floats()


def test_the_licence_is_the_model_cards(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    assert Checkpoint.open(folder).licence == "unknown"
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n")
    assert Checkpoint.open(folder).licence == "apache-2.0"
    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-16")
    assert Checkpoint.open(folder).licence == "unknown"  # no reason to fail for


@pytest.mark.parametrize("parts_left", [True, False])
def test_a_single_file_goes_before_the_parts_that_lay_there_before(
    parts_left: bool, tmp_path: Path
) -> None:
    """As transformers loads it: saving a model again leaves the index of its parts behind."""
    folder = tiny.write_checkpoint(tmp_path / "m", shards=2)
    newer = tiny.write_checkpoint(tmp_path / "newer", seed=1)
    (newer / "model.safetensors").replace(folder / "model.safetensors")
    for part in () if parts_left else folder.glob("model-*.safetensors"):
        part.unlink()
    found = Checkpoint.open(folder)
    assert [path.name for path in found.shards] == ["model.safetensors"]
    wrote = tiny.tensors(json.loads((folder / "config.json").read_text()), seed=1)
    name = "model.norm.weight"
    assert np.array_equal(found.tensors[name].floats(), wrote[name])


@pytest.mark.parametrize("key", ["quantization_config", "quantization"])
@pytest.mark.parametrize("inner", [True, False])
def test_weights_that_are_said_to_be_quantised_are_refused(key: str, inner: bool) -> None:
    said = {key: {"bits": 4}}
    config = {"model_type": "m", **({"text_config": said} if inner else said)}
    with pytest.raises(ExportError, match="org/m is quantised already; export from the original"):
        refuse_quantised(Outline(Path(), config, "org/m", None))
    refuse_quantised(Outline(Path(), {key: None, "text_config": None}, "org/m", None))


# --------------------------------------------------------------- what a newer transformers wrote

_SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_FACTORS = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
_LOCAL = {"rope_type": "default", "rope_theta": 2e4}


def in_old_words(**values: Any) -> dict[str, Any]:
    checkpoint: Any = SimpleNamespace(name="mine", config=values)
    return transformers_4.config(checkpoint)


@pytest.mark.parametrize(
    ("model_type", "written", "expected"),
    [
        ("llama", {"rope_type": "default"}, {"rope_scaling": None}),
        ("llama", _SCALED, {"rope_scaling": _SCALED}),
        (
            "qwen2",
            {"type": "yarn", "factor": 4.0, "beta_fast": None, "short_factor": [1.0]},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        ),
        (
            "phi",
            {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.4},
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.4},
        ),
        (
            "phi3",
            {
                "type": "longrope", "rope_type": "longrope", **_FACTORS, "factor": 4.0,
                "original_max_position_embeddings": 64, "partial_rotary_factor": 1.0,
            },
            {
                "rope_scaling": {"type": "longrope", **_FACTORS}, "partial_rotary_factor": 1.0,
                "original_max_position_embeddings": 64,
            },
        ),
        ("phi3", {"rope_type": "default"}, {"rope_scaling": None}),
        (
            "olmo2",
            {"rope_type": "linear", "factor": 2.0},
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
        ),
        *(
            (
                neox,
                {"rope_type": "default", "partial_rotary_factor": 0.25},
                {
                    "rope_scaling": None, "partial_rotary_factor": 0.25, "rotary_pct": 0.25,
                    "rotary_emb_base": 5e5,
                },
            )
            for neox in ("gpt_neox", "gpt_neox_japanese")
        ),
    ],
)  # fmt: skip
def test_positions_in_the_words_of_transformers_4(
    model_type: str, written: dict[str, Any], expected: dict[str, Any]
) -> None:
    values = {"model_type": model_type, "max_position_embeddings": 256}
    said = in_old_words(**values, rope_parameters={**written, "rope_theta": 5e5})
    assert said == {**values, "rope_theta": 5e5, **expected}
    # And those of a text model within another.
    inner = {**values, "rope_parameters": {**written, "rope_theta": 5e5}}
    assert in_old_words(model_type="outer", text_config=inner)["text_config"] == said
    assert in_old_words(**said) == said


def test_layers_with_a_window_have_a_theta_of_their_own_in_gemma_3() -> None:
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    layers = {"full_attention": full, "sliding_attention": _LOCAL}
    assert in_old_words(model_type="gemma3_text", rope_parameters=layers) == {
        "model_type": "gemma3_text", "rope_theta": 5e5, "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    checkpoint: Any = SimpleNamespace(
        name="mine", config={"model_type": "gemma3_text", "rope_parameters": layers}
    )
    numbers = {"rope_theta": 5e5, "rope_local_base_freq": 2e4}
    assert transformers_4.positions(checkpoint) == (numbers, "linear")
    alike = {"full_attention": full, "sliding_attention": full}
    said = in_old_words(model_type="qwen2", rope_parameters=alike)
    assert said["rope_theta"] == 5e5 and "rope_local_base_freq" not in said


@pytest.mark.parametrize(
    ("model_type", "written", "said"),
    [
        ("llama", {"rope_type": "spiral"}, "hold spiral"),
        ("llama", {"rope_type": "default", "mrope_section": [1, 2]}, "hold mrope_section"),
        ("llama", "all of them", "hold all of them"),
        ("llama", {"rope_type": "longrope", "factor": "much", **_FACTORS}, "makes no sense"),
        (
            "llama",
            {
                "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 64,
                **_FACTORS,
            },
            "hold factor 2.0",
        ),
        ("phi3", {"rope_type": "longrope", "attention_factor": 1.2, **_FACTORS}, "attention_fac"),
        ("olmo2", _SCALED, "hold high_freq_factor"),
        ("qwen2", {"full_attention": {"rope_theta": 1e4}, "sliding_attention": _LOCAL}, "other"),
        (
            "gemma3_text",
            {
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {**_LOCAL, "rope_type": "linear", "factor": 2.0},
            },
            "other positions for sliding_attention",
        ),
        ("gemma3_text", {"hybrid": {"rope_theta": 1e6}}, "hold positions for hybrid"),
    ],
)  # fmt: skip
def test_positions_that_transformers_4_cant_be_told_are_refused(
    model_type: str, written: Any, said: str
) -> None:
    values = {"model_type": model_type, "max_position_embeddings": 256}
    if "no sense" in said:
        values["original_max_position_embeddings"] = 64
    with pytest.raises(ExportError, match=said):
        in_old_words(**values, rope_parameters=written)


# -------------------------------------------------------------------------------------- the hub

# In a process of its own: the hub's client reads its settings when it is imported.
OPEN = """
import sys
from edgespec.errors import EdgespecError
from edgespec.exporters.checkpoint import Checkpoint
try:
    found = Checkpoint.open(sys.argv[1], sys.argv[2] or None)
    said = (found.path, found.revision, found.parameters, found.name, *found.notes)
    print(*said, sep="\\n")
except EdgespecError as error:
    sys.exit(str(error))
"""


def from_hub(
    hub: HubServer, home: Path, repo: str = "org/tiny", revision: str = ""
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OPEN, repo, revision],
        capture_output=True, text=True, env=env, timeout=600,
    )  # fmt: skip


def repository(folder: Path) -> dict[tuple[str, str], bytes]:
    return {("org/tiny", path.name): path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_of_the_hub(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", shards=2)
    wrote = Checkpoint.open(folder).parameters
    files = repository(folder) | {("org/tiny", "original.bin"): b"x", ("org/tiny", "x.gguf"): b"x"}
    with HubServer(files) as hub:
        done = from_hub(hub, tmp_path / "home")
        assert done.returncode == 0, done.stderr
        path, commit, parameters, name = done.stdout.splitlines()
        assert (commit, int(parameters), name) == (COMMIT, wrote, "tiny")
        assert sorted(p.name for p in Path(path).iterdir()) == sorted(
            p.name for p in folder.iterdir()
        )
        hub.log.clear()
        assert from_hub(hub, tmp_path / "home").returncode == 0
        assert not [line for line in hub.log if "/cdn/" in line]  # all of it was here
    offline = from_hub(hub, tmp_path / "home")
    assert offline.returncode == 0, offline.stderr
    note = offline.stdout.splitlines()[4]
    assert note.startswith("it is org/tiny as the hub's cache has it, commit 0123456789ab: ")
    assert "check your network connection" in note


def test_what_the_hub_cannot_give_is_a_sentence(tmp_path: Path) -> None:
    files = repository(tiny.write_checkpoint(tmp_path / "m"))
    home = tmp_path / "home"
    with HubServer(files) as hub:
        assert "no repository org/other" in from_hub(hub, home, "org/other").stderr
        assert "no revision v9" in from_hub(hub, home, revision="v9").stderr
        weights = hub.files.pop(("org/tiny", "model.safetensors"))
        hub.files["org/tiny", "part/model.safetensors"] = weights
        assert "no safetensors files" in from_hub(hub, home).stderr
        hub.files["org/tiny", "consolidated.safetensors"] = weights
        assert "holds its weights as consolidated.safetensors" in from_hub(hub, home).stderr
        del hub.files["org/tiny", "config.json"]
        assert "no config.json" in from_hub(hub, home).stderr
        hub.broken = True
        assert "answered 503" in from_hub(hub, tmp_path / "other").stderr


def test_of_a_repository_with_both_the_single_file_is_fetched(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m", shards=2)
    tiny.write_checkpoint(folder, seed=1)
    with HubServer(repository(folder)) as hub:
        for _ in range(2):  # the second time it is in the cache
            done = from_hub(hub, tmp_path / "home")
            assert done.returncode == 0, done.stderr
        assert [line for line in hub.log if "/cdn/org/tiny/model.safetensors" in line]
        assert not [line for line in hub.log if "model-0000" in line]


def test_an_adapter_of_the_hub_is_told_as_one(tmp_path: Path) -> None:
    with HubServer({("org/tiny", "adapter_config.json"): b"{}"}) as hub:
        done = from_hub(hub, tmp_path / "home")
        assert "org/tiny is an adapter" in done.stderr and "merge it" in done.stderr


def test_bytes_that_arrive_damaged_are_not_used(tmp_path: Path) -> None:
    with HubServer(repository(tiny.write_checkpoint(tmp_path / "m")), corrupt=True) as hub:
        done = from_hub(hub, tmp_path / "home")
        assert done.returncode == 1 and "damaged" in done.stderr
        hub.corrupt = False
        assert from_hub(hub, tmp_path / "home").returncode == 0


# -------------------------------------------------------------------------------------- staging


def visible(folder: Path) -> list[str]:
    return [name for name in names(folder) if not name.startswith(".")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def of_an_export(folder: Path, *files: str) -> Path:
    """A folder whose files a manifest in it names."""
    folder.mkdir(parents=True)
    outputs: dict[str, object] = {}
    for name in files:
        (folder / name).write_text("old")
        outputs[name] = {}
    tiny.write_json(folder / "x.manifest.json", {"output_files": outputs})
    return folder


def test_a_file_and_a_folder_get_their_names_when_they_are_whole(tmp_path: Path) -> None:
    for result in (tmp_path / "deep" / "file.txt", tmp_path / "folder"):
        with stage(result, wanted={}) as work:
            made = work.folder / "made"
            if result.suffix:
                made.write_text("new")
            else:
                made.mkdir()
                (made / "inside").write_text("new")
            assert not result.exists()
            work.publish({made: result})
    assert names(tmp_path) == ["deep", "folder"]
    assert (tmp_path / "deep/file.txt").read_text() == "new"
    assert names(tmp_path / "deep") == ["file.txt"]
    assert names(tmp_path / "folder") == ["inside"]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("end", [KeyboardInterrupt, ExportError, OSError])
def test_whatever_ends_it_the_old_one_stays(
    kind: str, end: type[BaseException], tmp_path: Path
) -> None:
    result = tmp_path / "result"
    if kind == "file":
        result.write_text("old")
    else:
        of_an_export(result, "inside")
    with pytest.raises((end, ExportError)), stage(result, wanted={}, overwrite=True) as work:
        (work.folder / "half").write_text("new")
        raise end("stop")
    assert names(tmp_path) == ["result"]
    assert (result if kind == "file" else result / "inside").read_text() == "old"
    with stage(result, wanted={}, overwrite=True) as work:
        made = work.folder / "made"
        made.mkdir()
        work.publish({made: result})
    assert result.is_dir() and names(tmp_path) == ["result"]
    assert names(result) == []


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("stopped", ["instead", "after"])
def test_a_model_and_its_manifest_are_replaced_together_or_not(
    there: bool, stopped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a model that another program has open can't be replaced."""
    results = {"manifest": tmp_path / "m.gguf.manifest.json", "model": tmp_path / "m.gguf"}
    for result in results.values() if there else ():
        result.write_text("old")
    replace = Path.replace

    def stops(path: Path, target: Path) -> Path:
        if target == results["model"] and stopped == "instead":
            raise PermissionError(13, "Permission denied")
        moved = replace(path, target)
        if target == results["model"]:
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "replace", stops)
    with (
        pytest.raises((ExportError, KeyboardInterrupt)),
        stage(results["model"], wanted={}, overwrite=True) as work,
    ):
        for name in results:
            (work.folder / name).write_text("new")
        work.publish({work.folder / name: result for name, result in results.items()})
    left = {path.read_text() for path in tmp_path.iterdir()}
    assert left == ({"new"} if stopped == "after" else {"old"} if there else set())
    assert len(list(tmp_path.iterdir())) == 2 * (there or stopped == "after")


@pytest.mark.parametrize("links", [True, False])
def test_a_model_has_its_manifest_at_every_moment(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can be killed before and after every rename."""
    results = [tmp_path / "m.gguf.manifest.json", tmp_path / "m.gguf"]
    for result in results:
        result.write_text("old")
    rename, link = Path.replace, os.link
    seen: list[list[str]] = []
    refused: list[Path] = []

    def watched(path: Path, target: Path) -> Path:
        seen.append(visible(tmp_path))
        if target in refused:
            raise PermissionError(13, "Permission denied")
        moved = rename(path, target)
        seen.append(visible(tmp_path))
        return moved

    def linked(path: Path, target: Path) -> None:
        if not links:
            raise OSError(95, "Operation not supported")
        link(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    monkeypatch.setattr(os, "link", linked)

    def run() -> None:
        with stage(results[1], wanted={}, overwrite=True) as work:
            for result in results:
                (work.folder / result.name).write_text("new")
            work.publish({work.folder / result.name: result for result in results})

    refused.append(results[0])
    with pytest.raises(ExportError, match=r"^Can't write .*: Permission denied"):
        run()
    assert [result.read_text() for result in results] == ["old", "old"]
    refused.clear()
    run()
    assert [result.read_text() for result in results] == ["new", "new"]
    assert len(seen) == 5 and all(each == ["m.gguf", "m.gguf.manifest.json"] for each in seen)
    assert names(tmp_path) == ["m.gguf", "m.gguf.manifest.json"]


def test_what_cant_be_moved_back_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [of_an_export(tmp_path / name, "inside") for name in ("first", "second", "third")]
    rename = Path.replace

    def stuck(path: Path, target: Path) -> Path:
        if path.name in ("made-third", "second") and "replaced-" not in str(target):
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    def run(*, overwrite: bool) -> None:
        with stage(results[1], wanted={}, overwrite=overwrite) as work:
            for result in results:
                (work.folder / f"made-{result.name}").mkdir()
                (work.folder / f"made-{result.name}" / "inside").write_text("new")
            work.publish({work.folder / f"made-{result.name}": result for result in results})

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stuck)
        with pytest.raises(
            ExportError, match=r"couldn't be replaced .*lies in \S+ now; move it"
        ) as told:
            run(overwrite=True)
    assert [(result / "inside").read_text() for result in results] == ["old", "new", "old"]
    old = Path(str(told.value).split(" lies in ")[1].split(" now; ")[0])
    assert (old / "inside").read_text() == "old"
    shutil.rmtree(results[1])  # as after a kill between the two renames
    with pytest.raises(ExportError, match="exists already"):
        run(overwrite=False)
    assert [(result / "inside").read_text() for result in results] == ["old", "old", "old"]


@pytest.mark.parametrize("stranger", ["notes.txt", "target/notes.txt", "empty/", "x.manifest.json"])
def test_a_folder_with_more_than_an_export_in_it_is_never_replaced(
    stranger: str, tmp_path: Path
) -> None:
    result = of_an_export(tmp_path / "result", "model.onnx")
    of_an_export(result / "target", "model.onnx")
    (result / ".DS_Store").write_bytes(b"")  # looking at it in macOS makes no stranger of it
    refuse_existing(result, overwrite=True)
    if stranger.endswith("/"):
        (result / stranger).mkdir()
    else:
        (result / stranger).write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ExportError, match=r"no part of an export; choose another folder"):
            refuse_existing(result, overwrite)
        with pytest.raises(ExportError), stage(result, wanted={}, overwrite=overwrite):
            pytest.fail("it began all the same")
    assert (result / "model.onnx").read_text() == "old"


def test_what_came_into_the_folder_meanwhile_is_not_lost(tmp_path: Path) -> None:
    result = of_an_export(tmp_path / "result", "model.onnx")

    def run(*, late: bool) -> bool:
        with stage(result, wanted={}, overwrite=True) as work:
            resumed = work.finished("all") is not None
            made = work.folder / "made"
            made.mkdir(exist_ok=True)
            work.finish("all", made)
            if late:
                (result / "notes.txt").write_text("mine")
            work.publish({made: result})
            return resumed

    with pytest.raises(ExportError, match=r"holds notes\.txt now"):
        run(late=True)
    assert names(result) == ["model.onnx", "notes.txt", "x.manifest.json"]
    (result / "notes.txt").unlink()
    assert run(late=False) is True
    assert names(tmp_path) == ["result"] and names(result) == []


@needs_links
def test_what_is_exported_is_never_the_destination(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m" / "model", shards=2)
    shards = Checkpoint.open(folder).shards
    link = tmp_path / "link"
    link.symlink_to(folder)
    for place in (folder, folder.parent, tmp_path, shards[1], link, link / shards[0].name):
        for overwrite in (False, True):
            with pytest.raises(ExportError, match="is what is to be exported, or holds it"):
                refuse_existing(place, overwrite, shards)
    refuse_existing(folder / "new.gguf", overwrite=False, sources=shards)


def test_what_a_disk_didnt_delete_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file that another program has open, on a network's disk or on Windows."""
    result = of_an_export(tmp_path / "result", "busy")
    unlink = os.unlink

    def refuses(path: Any, **options: Any) -> None:
        if Path(path).name == "busy":
            raise PermissionError(13, "in use", path)
        unlink(path, **options)

    def export() -> None:
        with stage(result, wanted={}, overwrite=True) as work:
            made = work.folder / "made"
            made.mkdir()
            work.publish({made: result})

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuses)
        export()
        assert len(list(tmp_path.rglob("busy"))) == 1 and names(result) == []
        shutil.rmtree(result)
        export()
        assert names(result) == []
    export()
    assert names(tmp_path) == ["result"]


EXPORTS = [["gguf", "a/b"], ["onnx", "a/b"], ["pair", "a/b", "a/c"]]


@pytest.mark.parametrize("command", EXPORTS)
def test_a_home_folder_that_no_shell_has_written_out_is_found(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr("edgespec.exporters.onnx.require_extra", lambda *_: None)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "out.gguf").touch()
    assert main(["export", *command, "~/out.gguf"]) == 1
    assert f"{tmp_path / 'out.gguf'} exists already; --force" in capsys.readouterr().err


@pytest.mark.parametrize("command", EXPORTS)
def test_a_place_that_cant_be_written_is_refused_before_a_download(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr("edgespec.exporters.onnx.require_extra", lambda *_: None)
    monkeypatch.setattr(Outline, "open", lambda *_: pytest.fail("it asked the hub"))
    (tmp_path / "file").touch()
    assert main(["export", *command, str(tmp_path / "file" / "deep" / "out")]) == 1
    assert f"{tmp_path / 'file'} is no folder; choose another" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert main(["export", *command, str(tmp_path / "new" / "out")]) == 1
    assert f"nothing can be written in {tmp_path};" in capsys.readouterr().err


def test_a_finished_step_is_kept_for_the_same_wish_only(tmp_path: Path) -> None:
    result = tmp_path / "result"

    def run(wanted: dict[str, object], *, stop: bool) -> bool:
        with stage(result, wanted=wanted, overwrite=True) as work:
            found = work.finished("first") is not None
            made = work.folder / "made"
            made.write_text("x")
            work.finish("first", made)
            if stop:
                raise KeyboardInterrupt
            work.publish({made: result})
            return found

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run({"quant": "f16"}, stop=True)
    assert not result.exists()
    assert run({"quant": "f16"}, stop=False) is True
    assert names(tmp_path) == ["result"]
    with pytest.raises(KeyboardInterrupt):
        run({"quant": "f16"}, stop=True)
    (tmp_path / ".result.partial" / "litter").write_text("of the other one")
    assert run({"quant": "f32"}, stop=False) is False
    assert names(tmp_path) == ["result"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (KeyboardInterrupt(), True),
        (OSError(28, "No space left on device"), True),
        (Stopped("the system ended it"), True),
        (ExportError("it isn't faithful"), False),
        (ModelError("llama.cpp can't open it"), False),
    ],
)
def test_what_failed_its_check_is_not_gone_on_from(
    end: BaseException, kept: bool, nested: bool, tmp_path: Path
) -> None:
    """And leaves nothing on the disk, where a stop leaves what it finished."""
    result = tmp_path / "result"
    with pytest.raises((KeyboardInterrupt, EdgespecError)), stage(result, wanted={}) as work:
        made = work.folder / "made"
        made.write_text("x")
        work.finish("first", made)
        if nested:
            with stage(work.folder / "part", wanted={}):
                raise end
        raise end
    assert names(tmp_path) == ([".result.partial"] if kept else [])
    with stage(result, wanted={}) as work:
        assert (work.finished("first") is not None) is kept


def test_a_full_disk_keeps_what_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tmp_path / "result"
    with pytest.raises(KeyboardInterrupt), stage(result, wanted={}) as work:
        made = work.folder / "made"
        made.write_text("x")
        work.finish("first", made)
        raise KeyboardInterrupt
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 0))
        with (
            pytest.raises(ExportError, match="is free"),
            stage(result, wanted={}, need_bytes=9_999),
        ):
            pytest.fail("it began all the same")
    with stage(result, wanted={}) as work:
        assert work.finished("first") is not None


def test_the_lock_of_another_export_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may have begun the moment this one's lock was gone."""
    lock = tmp_path / ".result.partial.lock"
    unlink, begun = Path.unlink, []

    def and_another_begins(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path == lock and not begun:
            lock.touch()
            begun.append(True)

    with stage(tmp_path / "result", wanted={}):
        monkeypatch.setattr(Path, "unlink", and_another_begins)
    monkeypatch.undo()
    assert begun and lock.exists()


def test_damaged_leftovers_are_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / ".result.partial"
    (folder / "deep").mkdir(parents=True)
    (folder / "steps.json").write_text("{")
    with stage(tmp_path / "result", wanted={}) as work:
        assert work.finished("first") is None
        assert names(work.folder) == []
    assert names(tmp_path) == []


def test_what_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "result").write_text("old")
    with pytest.raises(ExportError, match="--force"), stage(tmp_path / "result", wanted={}):
        pytest.fail("it began all the same")
    assert names(tmp_path) == ["result"]


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from edgespec.exporters.staging import stage\n"
        "with stage(Path(sys.argv[1]), wanted={}):\n"
        "    print('in', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "result")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None and other.stdout.readline() == "in\n"
    with (
        pytest.raises(ExportError, match="Another export is writing to"),
        stage(tmp_path / "result", wanted={}),
    ):
        pytest.fail("both are in")
    other.kill()  # the lock goes with its process, what it left is found
    other.communicate()
    with stage(tmp_path / "result", wanted={}) as work:
        made = work.folder / "made"
        made.write_text("x")
        work.publish({made: tmp_path / "result"})
    assert names(tmp_path) == ["result"]


def test_a_disk_too_full_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 60_000_000))
    require_space(tmp_path / "not" / "there", 9_000_000)
    with (
        pytest.raises(ExportError, match=r"needs 20 MB .*60 MB is free"),
        stage(tmp_path / "result", wanted={}, need_bytes=20_000_000),
    ):
        pytest.fail("it began all the same")
    assert names(tmp_path) == []


# ----------------------------------------------------------------------- manifests and registering


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "m")
    checkpoint = Checkpoint.open(folder)
    out = tmp_path / "x.gguf"
    out.write_bytes(b"abc")
    told = manifest.describe(
        checkpoint, "gguf", {"x.gguf": out}, options={"quant": "f16"}, tools=("numpy", "no-such"),
        parity={"ids": {"equal": True}}, notes=("one",),
    )  # fmt: skip
    told.write(manifest.beside(out))
    assert Manifest.read(tmp_path / "x.gguf.manifest.json") == told
    assert told.tools["numpy"] == np.__version__ and "no-such" not in told.tools
    assert told.output_files["x.gguf"]["size_bytes"] == 3
    assert manifest.beside(tmp_path) == tmp_path / "edgespec.manifest.json"
    noted = replace(checkpoint, notes=("of yesterday",))
    again = manifest.describe(noted, "gguf", {}, options={}, parity={}, notes=("one",))
    assert again.notes == ("of yesterday", "one")
    out.write_text("{}")
    with pytest.raises(ExportError, match="no manifest"):
        Manifest.read(out)


def test_a_pair_is_registered_beside_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "config" / "models.toml"
    model = tmp_path / 'odd "name" \\ü.gguf'
    model.write_bytes(b"x" * 10)
    target = Exported("big.model", model, "gguf", "mit")
    draft = Exported("small", model, "gguf", "mit")
    register(pair_entry("my pair", target, [draft], 'A "pair"'), ["my pair"], file)
    first = file.read_text(encoding="utf-8")
    file.write_text(first + "# mine", encoding="utf-8")
    register(pair_entry("second", Exported("one", model, "gguf", "mit"), [], "x"), ["one"], file)
    text = file.read_text(encoding="utf-8")
    assert text.startswith(first + "# mine\n\n")
    found = load_registry(file).pair("my pair")
    assert found.description == 'A "pair"'
    assert found.target.name == "big.model" and found.size_bytes == 20
    assert found.drafters[0] == "lookup"
    with pytest.raises(ConfigError, match='an entry "small" already'):
        register(pair_entry("third", target, [draft], "x"), ["third", "small"], file)
    file.write_text("not = [toml", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid TOML"):
        register(pair_entry("third", target, [], "x"), ["third"], file)
    assert file.read_text(encoding="utf-8") == "not = [toml"
    assert names(file.parent) == ["models.toml"]


@needs_links
def test_a_link_to_a_models_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    real, file = tmp_path / "kept" / "mine.toml", tmp_path / "models.toml"
    real.write_text("# mine\n", encoding="utf-8")
    file.symlink_to(real)
    model = Exported("one", tmp_path / "x.gguf", "gguf", "mit")
    assert register(pair_entry("mine", model, [], "x"), ["one", "mine"], file) == file
    assert file.is_symlink() and real.read_text(encoding="utf-8").startswith("# mine\n\n[models")
    assert names(real.parent) == ["mine.toml"]
    assert load_registry(file).pair("mine").target.name == "one"


@pytest.mark.parametrize("name", ["smollm2", "smollm2-135m"])
def test_names_that_edgespec_comes_with_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf'comes with an entry "{name}"'):
        refuse_taken(["mine", name], tmp_path / "models.toml")


def test_what_cant_be_registered_in_the_end_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    model = Exported("one", tmp_path / "x.gguf", "gguf", "mit")  # which isn't there
    entry = pair_entry("mine", model, [], "x").replace('"gguf"', '"gguff"')
    with pytest.raises(ConfigError) as caught:
        register(entry, ["one", "mine"], file)
    said = str(caught.value)
    assert said.endswith(f"The entry for {file}:\n\n{entry}")
    assert f"registered: {file}, line 4" in said and ".part" not in said
    assert not file.exists()
    odd = pair_entry("mine", Exported("one", Path("caf\udce9.gguf"), "gguf", "mit"), [], "x")
    with pytest.raises(ConfigError, match=r"but it wasn't registered: can't write"):
        register(odd, ["one", "mine"], file)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["lookup", "model"])
def test_names_that_choose_drafters_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf'"{name}" is what chooses drafters'):
        refuse_taken([f"{name}-target", name], tmp_path / "models.toml")


def test_a_models_file_with_a_mistake_is_refused_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models.mine]\nformat = "gguf"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r'models\.toml.*"source"'):
        refuse_taken(["other"], file)
