"""A Hugging Face checkpoint: a folder on this machine, or a repository of the hub.

Invariant: a Checkpoint that exists is whole. Its config was read, every tensor its index names
lies in a file that is there, and no weights were loaded to find that out. An Outline is all but the
weights, so that what a configuration or a tokenizer rules out is refused before they are fetched.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgespec.errors import ExportError, FetchError
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import require_space, require_text
from edgespec.exporters.weights import StoredTensor, read_index
from edgespec.fetch import hub
from edgespec.fetch.sources import file_sha256
from edgespec.platform import expanded
from edgespec.registry import HubSource

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# What a checkpoint holds besides its weights, and an export may need.
_SMALL = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens"
    r"|vocab|chat_template|preprocessor_config|params)\.json|merges\.txt|[\w.-]+\.model"
    r"|[\w-]+\.jinja|[\w.-]+\.py|README\.md|LICEN[CS]E[\w.]*|" + re.escape(INDEX)
)
# Buffers that older checkpoints hold, and that whatever runs the model computes itself.
_COMPUTED = re.compile(r".*(\.rotary_emb\.inv_freq|\.attn\.(masked_)?bias)")

# Where config.json tells of it: as transformers writes it, and as MLX does.
_QUANTISED = ("quantization_config", "quantization")
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
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
            return Outline(path, MappingProxyType(_config(path)), str(folder), None)
        repo = str(name_or_path)
        if not _HUB_ID.fullmatch(repo):
            raise ExportError(
                f"There is no folder {repo}, and it is no hub id either, which reads owner/name; "
                "check the path."
            )
        return _from_hub(repo, revision or "main", report)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the checkpoint; {} where it has none. Raises ExportError if damaged."""
        return _json(self.path / name) if (self.path / name).is_file() else {}

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
            _download(outline.source, outline.revision, sizes, sizes, report)
        found = _look_through(outline.path, outline.source, outline.revision)
        return replace(found, notes=outline.notes)

    def file_hashes(self, report: Report = silent) -> dict[str, str]:
        """The SHA-256 of its weights, config and tokenizer files, by name; reads them all."""
        small = (p for p in self.path.iterdir() if p.is_file() and _SMALL.fullmatch(p.name))
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


def refuse_other_tokens(
    target: Outline, draft: Outline, ours: Sequence[str], theirs: Sequence[str]
) -> None:
    """Raises ExportError with the first id that means another text to the draft.

    The runtime's rule: one list may be longer, but ids that both have mean the same.
    """
    for token, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            raise ExportError(
                f"{draft.name} can't draft for {target.name}: token {token} is {b!r} there and "
                f"{a!r} here; choose a draft of the same family."
            )


# ---------------------------------------------------------------------------- on this machine


def _folder_name(path: Path) -> str:
    """Also of `.` and `..`, which are no names; a link's own name, not what it points to."""
    return path.resolve().name if path.name in ("", "..") else path.name


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        raise ExportError(f"{path} is a GGUF file already; name a checkpoint's folder.")
    raise ExportError(f"{path} is a file; name the folder that holds it and its config.json.")


def _look_through(path: Path, source: str, commit: str | None) -> Checkpoint:
    config = _config(path)
    shards = _shards(path)
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in read_index(shard).items():
            if name in tensors:
                first = tensors[name].file.name
                raise ExportError(f"{path} holds {name} twice, in {first} and {shard.name}.")
            tensors[name] = tensor
    named = _weight_map(path)
    for name, file in named.items():
        if name not in tensors:
            raise ExportError(f"{INDEX} in {path} says {file} holds {name}, but it doesn't.")
    if named:  # a tensor the index doesn't name is not part of the model
        tensors = {name: tensor for name, tensor in tensors.items() if name in named}
    if not tensors:
        raise ExportError(f"{path} holds no tensors; download it again.")
    return Checkpoint(
        path, MappingProxyType(config), source, commit, shards, MappingProxyType(tensors)
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        if (path / "adapter_config.json").is_file():
            raise _adapter(path)
        gguf = sorted(path.glob("*.gguf"))
        hint = f"it holds {gguf[0].name}, which needs no export" if gguf else "check the path"
        raise ExportError(f"{path} has no config.json, so it is no checkpoint; {hint}.")
    return _json(file)


def _adapter(place: Path | str) -> ExportError:
    return ExportError(
        f"{place} is an adapter, not a whole model; merge it into its base model first "
        "(`merge_and_unload` in peft) and save that."
    )


def _shards(path: Path) -> tuple[Path, ...]:
    """The files with the weights: the single one, what the index names, or numbered ones."""
    named = [SINGLE] if (path / SINGLE).is_file() else sorted(set(_weight_map(path).values()))
    named = named or _numbered(path)
    missing = [name for name in named if not (path / name).is_file()]
    if missing:
        raise ExportError(
            f"{path} lacks {missing[0]}, one of {len(named)} files of weights "
            f"({len(missing)} missing); download the checkpoint again."
        )
    if named:
        return tuple(path / name for name in named)
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
    if others:
        raise ExportError(
            f"{path} holds its weights as {others[0]}, a format that can run code when it is "
            "opened; convert it to safetensors first: load it with transformers, and save it "
            "again with `save_pretrained(folder)`."
        )
    raise ExportError(f"{path} holds no safetensors files, so no weights; download it again.")


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file name, as the index has it; {} where there is none.

    Beside a single file it is of what lay there before: that file goes first, as in transformers.
    """
    if (path / SINGLE).is_file() or not (path / INDEX).is_file():
        return {}
    named = _json(path / INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in named.values()
    ):
        raise ExportError(f"{path / INDEX} is damaged; download it again.")
    return named


def _numbered(path: Path) -> list[str]:
    """model-00001-of-00003.safetensors and so on, where there is no index: all of them."""
    counts = {m[2] for p in path.iterdir() if (m := _SHARD.fullmatch(p.name))}
    if len(counts) > 1:
        raise ExportError(f"{path} holds the files of more than one checkpoint; keep one of them.")
    return [
        f"model-{i:05}-of-{count}.safetensors" for count in counts for i in range(1, int(count) + 1)
    ]


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"Can't read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{file} is damaged ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise ExportError(f"{file} is damaged: it holds no object; download it again.")
    return value


# --------------------------------------------------------------------------------- of the hub


def _from_hub(repo: str, revision: str, report: Report) -> Outline:
    """With all files an export may need in the hub's cache, its weights aside."""
    report(f"asking the hub for {repo}")
    try:
        commit, sizes = hub.files(repo, revision)
    except FetchError as error:
        cached = _cached(repo, revision)
        if cached is None:
            raise
        reason = str(error).rstrip(".")
        note = f"it is {repo} as the hub's cache has it, commit {cached[1][:12]}: {reason}"
        path, commit = cached
        return Outline(path, MappingProxyType(_config(path)), repo, commit, notes=(note,))
    small = [name for name in sizes if _SMALL.fullmatch(name)]
    if "config.json" not in small:
        if "adapter_config.json" in sizes:
            raise _adapter(repo)
        gguf = sorted(name for name in sizes if name.endswith(".gguf"))
        hint = f"it holds {gguf[0]}, which needs no export" if gguf else "check the name"
        raise ExportError(f"{repo} has no config.json, so it is no checkpoint; {hint}.")
    # Its config by the name that was asked for: so the cache learns which commit that stands for
    # now, and a run without a network finds it.
    _download(repo, revision, ["config.json"], sizes, report, again=True)
    path = _download(repo, commit, small, sizes, report).parent
    weights = [SINGLE] if SINGLE in sizes else sorted(set(_weight_map(path).values()))
    weights = weights or [name for name in sizes if _SHARD.fullmatch(name)]
    if not weights:
        raise ExportError(
            f"{repo} holds no safetensors files; look for a repository that does, or load it with "
            "transformers and save it with `save_pretrained(folder)`."
        )
    unfetched = {name: sizes.get(name, 0) for name in weights}
    return Outline(path, MappingProxyType(_config(path)), repo, commit, unfetched=unfetched)


def _cached(repo: str, revision: str) -> tuple[Path, str] | None:
    """What the cache holds, if that is a whole checkpoint."""
    path = hub.snapshot(repo, revision)
    if path is None:
        return None
    try:
        _look_through(path, repo, path.name)
    except ExportError:
        return None
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return (path, path.name) if any((path / name).is_file() for name in tokenizers) else None


def _download(
    repo: str,
    commit: str,
    names: Iterable[str],
    sizes: Mapping[str, int],
    report: Report,
    *,
    again: bool = False,
) -> Path:
    """Every file that isn't in the cache yet, each compared with the hub's own hash.

    again: ask the hub whatever the cache holds; it sends nothing that is there. Returns a file.
    """
    files = {name: HubSource(repo, name, commit) for name in names}
    here = {name: None if again else hub.cached(source) for name, source in files.items()}
    wanted = [name for name, path in here.items() if path is None]
    total, before = sum(sizes.get(name, 0) for name in wanted), 0
    require_space(hub.cache_dir(), total)
    for name in wanted:

        def count(done: int, _: int | None, before: int = before) -> None:
            report(f"downloading {repo}", min(before + done, total), total)

        path = hub.download(files[name], count)
        checksum = hub.checksum(path)
        if checksum is not None and file_sha256(path, lambda *_: None) != checksum:
            hub.discard(path)
            raise ExportError(f"{name} of {repo} arrived damaged; run the export again.")
        here[name] = path
        before += sizes.get(name, 0)
    return next(path for path in here.values() if path is not None)
