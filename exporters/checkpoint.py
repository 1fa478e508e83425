"""A Hugging Face checkpoint: a folder on this machine, or a repository of the hub.

Invariant: a Checkpoint that exists is whole. Its config was read, every tensor its index names
lies in a file that is there, and no weights were loaded to find that out. An Outline is all but the
weights, so that what a configuration or a tokenizer rules out is refused before they are fetched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters import checkpoint_hub
from edgespec.exporters.checkpoint_folder import SMALL, look_through, read_config, read_json
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import require_text
from edgespec.exporters.weights import StoredTensor
from edgespec.fetch.sources import file_sha256
from edgespec.platform import expanded

# Buffers that older checkpoints hold, and that whatever runs the model computes itself.
_COMPUTED = re.compile(r".*(\.rotary_emb\.inv_freq|\.attn\.(masked_)?bias)")

# Where config.json tells of it: as transformers writes it, and as MLX does.
_QUANTISED = ("quantization_config", "quantization")
_PART = r"[A-Za-z0-9_][\w.-]*"
_HUB_ID = re.compile(rf"{_PART}/{_PART}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Outline:
    """What a checkpoint says of itself, its weights aside; see `open`.

    Attributes:
        path: the folder its files are in.
        config: config.json.
        source: what it was asked for as: a hub id, or the folder's path.
        revision: the commit, where it came from the hub.
        notes: what the person should know of where it came from.
        unfetched: the files with its weights that are on the hub, and the bytes of each.
    """

    path: Path
    config: Mapping[str, Any]
    source: str
    revision: str | None
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    unfetched: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def name(self) -> str:
        """What to call it in messages and file names: the last part of its source."""
        return self.source.rsplit("/", 1)[-1] if self.revision else _folder_name(self.path)

    @staticmethod
    def name_of(name_or_path: str | Path) -> str:
        """What `open(name_or_path).name` will be, before anything is fetched."""
        folder = expanded(name_or_path)
        return _folder_name(folder) if folder.exists() else str(name_or_path).rsplit("/", 1)[-1]

    @property
    def architectures(self) -> tuple[str, ...]:
        """The model classes config.json names, as in ("LlamaForCausalLM",)."""
        named = self.config.get("architectures") or ()
        return tuple(map(str, named)) if isinstance(named, (list, tuple)) else (str(named),)

    @property
    def licence(self) -> str:
        """As the model card names it; "unknown" where it doesn't, or can't be read."""
        try:
            card = self.text("README.md") or ""
        except ExportError:  # a label alone is at stake
            return "unknown"
        front = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
        named = front and re.search(r"^license:[ \t]*[\"']?([\w.-]+)", front[1], re.MULTILINE)
        return named[1] if named else "unknown"

    @staticmethod
    def open(
        name_or_path: str | Path, revision: str | None = None, report: Report = silent
    ) -> Outline:
        """Read what a checkpoint says of itself; of one of the hub these files are downloaded.

        Arguments and errors as of `Checkpoint.open`.
        """
        folder = expanded(name_or_path)
        require_text(name_or_path, folder, _folder_name(folder))
        if folder.exists():
            if revision is not None:
                raise ExportError(
                    f"{name_or_path} is on this machine, so it has no revisions to choose from: "
                    "leave that option out."
                )
            path = _folder(folder)
            return Outline(path, MappingProxyType(read_config(path)), str(folder), None)
        repo = str(name_or_path)
        if not _HUB_ID.fullmatch(repo):
            raise ExportError(
                f"There is no folder {repo}, and it is no hub id either, which reads owner/name; "
                "check the path."
            )
        found = checkpoint_hub.find(repo, revision or "main", report)
        return Outline(
            found.path, MappingProxyType(read_config(found.path)), repo, found.commit,
            notes=found.notes, unfetched=found.unfetched,
        )  # fmt: skip

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the checkpoint; {} where it has none. Raises ExportError if damaged."""
        return read_json(self.path / name) if (self.path / name).is_file() else {}

    def text(self, name: str) -> str | None:
        """A text file of the checkpoint; None where it has none."""
        path = self.path / name
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"Can't read {path}: {error}.") from error


@dataclass(frozen=True, eq=False)
class Checkpoint(Outline):
    """A checkpoint that was looked through; see `open`.

    Attributes, beside those of `Outline`:
        shards: the safetensors files, in the order of their names.
        tensors: every tensor by name; reading one is up to the caller.
        parameters: numbers in all tensors. size_bytes: their bytes.
    """

    shards: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]

    @property
    def weights(self) -> list[StoredTensor]:
        """Its tensors, without buffers that whatever runs the model computes itself."""
        return [t for t in self.tensors.values() if not _COMPUTED.fullmatch(t.name)]

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @staticmethod
    def open(
        name_or_path: str | Path, revision: str | None = None, report: Report = silent
    ) -> Checkpoint:
        """Look through a checkpoint; one of the hub is downloaded into the hub's cache first.

        revision: a branch, tag or commit of the hub; None is the newest commit.
        Raises ExportError, in one sentence with what to do, for anything that isn't a whole
        checkpoint in safetensors, and FetchError where the hub can't give it.
        """
        return Checkpoint.of(Outline.open(name_or_path, revision, report), report)

    @staticmethod
    def of(outline: Outline, report: Report = silent) -> Checkpoint:
        """The same with its weights, which are downloaded where they aren't here."""
        if outline.unfetched:
            assert outline.revision is not None
            sizes = outline.unfetched
            checkpoint_hub.fetch(outline.source, outline.revision, sizes, sizes, report)
        shards, tensors = look_through(outline.path)
        said = {entry.name: getattr(outline, entry.name) for entry in fields(Outline)}
        said["unfetched"] = {}  # none is left
        return Checkpoint(**said, shards=shards, tensors=MappingProxyType(tensors))

    def file_hashes(self, report: Report = silent) -> dict[str, str]:
        """The SHA-256 of its weights, config and tokenizer files, by name; reads them all."""
        small = (p for p in self.path.iterdir() if p.is_file() and SMALL.fullmatch(p.name))
        files = [*sorted(small), *self.shards]
        total = sum(file.stat().st_size for file in files)
        hashes, before = {}, 0
        for file in files:

            def count(done: int, _: int | None, before: int = before) -> None:
                report("reading the checkpoint's hashes", before + done, total)

            hashes[file.name] = file_sha256(file, count)
            before += file.stat().st_size
        return hashes


def refuse_quantised(outline: Outline) -> None:
    """Raises ExportError where a checkpoint says that its weights are quantised."""
    for config in (outline.config, outline.config.get("text_config")):
        if isinstance(config, Mapping) and any(config.get(key) for key in _QUANTISED):
            raise ExportError(
                f"{outline.source} is quantised already; export from the original checkpoint."
            )


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        raise ExportError(f"{path} is a GGUF file already; name a checkpoint's folder.")
    raise ExportError(f"{path} is a file; name the folder that holds it and its config.json.")


def _folder_name(path: Path) -> str:
    """Also of `.` and `..`, which are no names; a link's own name, not what it points to."""
    return path.resolve().name if path.name in ("", "..") else path.name
