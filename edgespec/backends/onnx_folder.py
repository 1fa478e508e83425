"""A folder with an ONNX language model: which graph, and what the files beside it say.

Folders from optimum, from onnxruntime-genai's builder and from the hub's onnx-community differ in
where the graph lies and in who names the end tokens. Invariant: nothing here reads a weight.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgespec.backends import fingerprint, onnx_rotation
from edgespec.errors import ModelFormatError
from edgespec.not_gguf import LFS_POINTER
from edgespec.registry import graph_files

_MAIN = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
# config.json's names for how far a layer looks back: Mistral's, Llama 4's, GPT-Neo's.
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


@dataclass(frozen=True)
class OnnxFolder:
    """A model's files.

    Attributes:
        graph: the graph's file.
        folder: where tokenizer.json and the configurations are.
        name: how messages call the model.
        alone: whether the graph is the only one there, so that the folder means it.
    """

    graph: Path
    folder: Path
    name: str
    alone: bool = True

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; of a model with several parts, the part that writes text."""
        config = self.read("config.json")
        part = config.get("text_config")
        return config | part if isinstance(part, dict) else config

    @cached_property
    def genai(self) -> dict[str, Any]:
        """The model's part of genai_config.json."""
        model = self.read("genai_config.json").get("model", {})
        return model if isinstance(model, dict) else {}

    @property
    def context_size(self) -> int | None:
        """Tokens the model was trained on, where that is said."""
        for value in (
            self.genai.get("context_length"),
            *map(self.config.get, ("max_position_embeddings", "n_positions", "seq_length")),
        ):
            if isinstance(value, int) and value > 0:
                return value
        return None

    @property
    def short_context(self) -> int | None:
        """Tokens up to which positions are rotated in one way, where those of longer texts are in
        another (LongRoPE): what is cached by then can't be turned again.
        """
        keys = ("rope_scaling", "rope_parameters")  # the second as transformers 5 writes it
        rules = [rule for rule in map(self.config.get, keys) if isinstance(rule, dict)]
        # Or with a rule for each kind of layer.
        rules += [part for rule in rules for part in rule.values() if isinstance(part, dict)]
        for rule in rules:
            for source in (self.config, rule) if "long_factor" in rule else ():
                value = source.get("original_max_position_embeddings")
                if isinstance(value, int) and value > 0:
                    return value
        return None if self.config.keys() & set(keys) else onnx_rotation.switch(self.graph)

    def refuse_pointers(self) -> None:
        """Raise ModelFormatError where git left the pointer to a large file in its place."""
        for path in (*graph_files(self.graph), self.folder / "tokenizer.json"):
            if path.is_file() and _is_pointer(path):
                raise ModelFormatError(
                    f"{path.name} of {self.name} is a Git LFS pointer, not the file itself: run "
                    "'git lfs pull' in its folder"
                )

    @property
    def window(self) -> int | None:
        """Tokens that some layer looks back at most, where it doesn't see the whole text."""
        if self.config.get("use_sliding_window") is False:
            return None
        decoder = self.genai.get("decoder")
        slid = decoder.get("sliding_window") if isinstance(decoder, dict) else None
        found = [self.config.get(key) for key in _WINDOWS]
        found.append(slid.get("window_size") if isinstance(slid, dict) else None)
        return min((size for size in found if isinstance(size, int) and size > 0), default=None)

    @property
    def architecture(self) -> str:
        return str(self.config.get("model_type") or self.genai.get("type") or "onnx")

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none. Raises ModelFormatError."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(f"{name} of {self.name} can't be read: {error}") from error
        if not isinstance(data, dict):
            raise ModelFormatError(f"{name} of {self.name} is damaged: it holds no object")
        return data

    def text(self, name: str) -> str | None:
        """A text file of the folder; None where there is none. Raises ModelFormatError."""
        path = self.folder / name
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except (ValueError, OSError) as error:
            raise ModelFormatError(f"{name} of {self.name} can't be read: {error}") from error

    def fingerprint(self) -> str:
        """See `backends.fingerprint`: of the graph and its weights."""
        return fingerprint(graph_files(self.graph))


def find(path: Path) -> OnnxFolder | None:
    """The model at a folder or an .onnx file; None where there is no graph.

    Raises ModelFormatError where a folder holds several graphs and none is the obvious one.
    """
    if path.is_file():
        return _around(path, path.absolute().parent) if looks_like_onnx(path) else None
    if not path.is_dir():
        return None
    decoder = OnnxFolder(path, path, path.name).genai.get("decoder")
    named = decoder.get("filename") if isinstance(decoder, dict) else None
    if isinstance(named, str) and (path / named).is_file():
        return _around(path / named, path)
    for folder in (path, path / "onnx"):
        graphs = sorted(folder.glob("*.onnx"))
        main = [folder / name for name in _MAIN if folder / name in graphs]
        if main or len(graphs) == 1:
            return _around((main or graphs)[0], folder)
        if graphs:
            names = ", ".join(graph.name for graph in graphs)
            raise ModelFormatError(f"{folder} holds several graphs: name one of {names}")
    return None


def _around(graph: Path, folder: Path) -> OnnxFolder:
    """With the folder of the tokenizer, which may be the one above."""
    folder = folder.absolute()  # links stay: in the hub's cache each file is one
    beside = folder
    if not (folder / "tokenizer.json").is_file() and (folder.parent / "tokenizer.json").is_file():
        beside = folder.parent
    alone = len(list(folder.glob("*.onnx"))) == 1
    name = _name(beside)
    return OnnxFolder(graph, beside, name if alone else f"{name}/{graph.name}", alone)


def _name(folder: Path) -> str:
    """A folder of the hub's cache is called after a commit, and its model after the repository."""
    repo = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.removeprefix("models--").replace("--", "/")
    return folder.name


def looks_like_onnx(path: Path) -> bool:
    """Whether a file starts as an ONNX model does: a version, then its producer or its graph.

    Protobuf writes fields in their order: 1 is the version of the format, 2 to 7 what follows.
    A file that can't be read is none, and whoever opens it next says why.
    """
    try:
        with path.open("rb") as file:
            head = file.read(3)
    except OSError:
        return False
    return re.match(rb"\x08[\x01-\x40][\x12\x1a\x22\x28\x32\x3a\x42]", head) is not None


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER
