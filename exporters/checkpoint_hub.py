"""A checkpoint in a repository of the hub: its small files first, its weights when asked for.

Invariant: what is in the hub's cache afterwards was compared with the hub's own hashes; without a
network a whole checkpoint of the cache does, and the person is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.errors import ExportError, FetchError
from edgespec.exporters.checkpoint_folder import (
    NUMBERED,
    SINGLE,
    SMALL,
    look_through,
    no_config,
    read_config,
    refuse_misnamed,
    weight_map,
)
from edgespec.exporters.progress import Report
from edgespec.exporters.staging import require_space
from edgespec.fetch import hub
from edgespec.fetch.sources import file_sha256
from edgespec.registry import HubSource


@dataclass(frozen=True)
class Found:
    """A repository, its weights aside.

    Attributes:
        path: the folder of the hub's cache with its files. commit: which revision that is.
        notes: what the person should know of where it came from.
        unfetched: the files with its weights that are on the hub, and the bytes of each.
    """

    path: Path
    commit: str
    notes: tuple[str, ...] = ()
    unfetched: Mapping[str, int] = field(default_factory=dict)


def find(repo: str, revision: str, report: Report) -> Found:
    """Download all files that an export may need, the weights aside.

    Raises ExportError where it is no checkpoint, and FetchError where the hub can't be asked and
    the cache holds none.
    """
    report(f"asking the hub for {repo}")
    try:
        commit, sizes = hub.files(repo, revision)
    except FetchError as error:
        path = _cached(repo, revision)
        if path is None:
            raise
        reason = str(error).rstrip(".")
        note = f"it is {repo} as the hub's cache has it, commit {path.name[:12]}: {reason}"
        return Found(path, path.name, notes=(note,))
    small = [name for name in sizes if SMALL.fullmatch(name)]
    if "config.json" not in small:
        raise no_config(repo, sizes, "check the name")
    # Its config by the name that was asked for: so the cache learns which commit that stands for
    # now, and a run without a network finds it.
    fetch(repo, revision, ["config.json"], sizes, report, again=True)
    path = fetch(repo, commit, small, sizes, report)["config.json"].parent
    weights = [SINGLE] if SINGLE in sizes else sorted(set(weight_map(path).values()))
    weights = weights or [name for name in sizes if NUMBERED.fullmatch(name)]
    if not weights:
        refuse_misnamed(repo, sizes)
        raise ExportError(
            f"{repo} holds no safetensors files; look for a repository that does, or load it with "
            "transformers and save it with `save_pretrained(folder)`."
        )
    return Found(path, commit, unfetched={name: sizes.get(name, 0) for name in weights})


def _cached(repo: str, revision: str) -> Path | None:
    """The folder in the cache, if that is a whole checkpoint; it is called by its commit."""
    path = hub.snapshot(repo, revision)
    if path is None:
        return None
    try:
        read_config(path)
        look_through(path)
    except ExportError:
        return None
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return path if any((path / name).is_file() for name in tokenizers) else None


def fetch(
    repo: str,
    revision: str,
    names: Iterable[str],
    sizes: Mapping[str, int],
    report: Report,
    *,
    again: bool = False,
) -> dict[str, Path]:
    """Every file that isn't in the cache yet, each compared with the hub's own hash; all by name.

    again: ask the hub whatever the cache holds; it sends nothing that is there. sizes: the bytes
    of files by name, as far as they are known. Raises ExportError where one arrives damaged.
    """
    sources = {name: HubSource(repo, name, revision) for name in names}
    here = {} if again else {name: hub.cached(source) for name, source in sources.items()}
    found = {name: path for name, path in here.items() if path is not None}
    wanted = [name for name in sources if name not in found]
    total, before = sum(sizes.get(name, 0) for name in wanted), 0
    require_space(hub.cache_dir(), total)
    for name in wanted:

        def count(done: int, _: int | None, before: int = before) -> None:
            report(f"downloading {repo}", min(before + done, total), total)

        path = hub.download(sources[name], count)
        checksum = hub.checksum(path)
        if checksum is not None and file_sha256(path, lambda *_: None) != checksum:
            hub.discard(path)
            raise ExportError(f"{name} of {repo} arrived damaged; run the export again.")
        found[name] = path
        before += sizes.get(name, 0)
    return found
