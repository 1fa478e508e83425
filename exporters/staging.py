"""A result under its final name only when it is whole.

Invariant: whatever ends an export early, nothing appears under a final name, and what was there
before is still there, or where it lies is said. Work happens in a folder beside the destination,
so publishing is one rename on one disk. A folder is replaced only if everything in it is an
export's. A run that was stopped, or that the disk or the system stopped, leaves its working folder
behind when a finished step in it is worth keeping; the next run for the same destination goes on
from it if it is asked for the same thing, and clears it away otherwise. What failed its check is
never gone on from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from edgespec.errors import EdgespecError, ExportError
from edgespec.fetch.sources import free_bytes
from edgespec.platform import lock_file
from edgespec.units import human_bytes

MANIFEST_SUFFIX = ".manifest.json"

_STATE = "steps.json"
_SPARE_BYTES = 50_000_000  # left free: a disk filled to the last byte breaks other programs
# As NumPy says it when a disk takes no more, without the system's reason.
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
_SYSTEM_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}  # there because somebody looked


class Stopped(ExportError):
    """The machine stopped the work: what was finished before that is good."""


class DiskError(Stopped):
    """Trouble with the disk."""


class Stage:
    """The folder an export works in.

    Attributes:
        folder: write everything here.
    """

    def __init__(self, folder: Path, wanted: str, finished: Mapping[str, str]) -> None:
        self.folder = folder
        self._wanted = wanted
        self._finished = dict(finished)
        self._asides: list[Path] = []

    def finished(self, step: str) -> Path | None:
        """What an earlier run made in this step, if it is there; None means: do it now."""
        name = self._finished.get(step)
        return self.folder / name if name is not None and (self.folder / name).exists() else None

    def finish(self, step: str, made: Path) -> None:
        """Keep `made` (in the folder, whole and closed) for a later run, should this one stop."""
        self._finished[step] = made.relative_to(self.folder).as_posix()
        self._save()

    def _save(self) -> None:
        if not self._finished:
            (self.folder / _STATE).unlink(missing_ok=True)
            return
        state = {"wanted": self._wanted, "finished": self._finished}
        part = self.folder / f"{_STATE}.part"
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(self.folder / _STATE)

    def forget(self, step: str) -> None:
        """Nothing that it made is worth keeping."""
        del self._finished[step]
        self._save()

    def publish(self, results: Mapping[Path, Path]) -> None:
        """Move each file or folder made here to its final name, replacing what is there.

        All of them or, whatever fails, none. Name the model last: who sees it may rely on what goes
        with it.
        """
        begun: list[tuple[Path, Path, Path]] = []
        try:
            for number, (made, destination) in enumerate(results.items(), 1):
                _flush(made)
                folder = destination.is_dir() and not destination.is_symlink()
                if folder and (stranger := _stranger(destination)) is not None:  # since we began
                    raise DiskError(
                        f"{destination} holds {stranger} now; take it out and try again."
                    )
                aside = Path(tempfile.mkdtemp(prefix="replaced-", dir=self.folder)) / "old"
                begun.append((made, destination, aside))
                if _is_there(destination):
                    if folder or made.is_dir():
                        destination.replace(aside)
                    elif number < len(results):  # behind the last rename nothing can fail
                        _copy(destination, aside)
                made.replace(destination)
        except BaseException:
            if len(begun) < len(results) or begun[-1][0].exists():
                self._asides = [aside for *_, aside in begun]
                for step in reversed(begun):
                    _take_back(*step)
            raise

    def not_back(self) -> Path | None:
        """What was under a final name, where `publish` failed and couldn't move it back there."""
        return next(filter(_is_there, self._asides), None)


def _copy(path: Path, aside: Path) -> None:
    """So that a file is there until the rename over it; a link is copied as a link."""
    if not path.is_symlink():
        with contextlib.suppress(OSError):  # a disk without hard links
            os.link(path, aside)
            return
    shutil.copy2(path, aside, follow_symlinks=False)


def _take_back(made: Path, destination: Path, aside: Path) -> None:
    """Each step by itself: where one can't be done, the others still are."""
    moved = not made.exists()
    if moved:
        with contextlib.suppress(OSError):
            destination.replace(made)
    with contextlib.suppress(OSError):
        if not moved and not made.is_dir() and _is_there(destination):
            aside.unlink()  # a copy of what never left
        elif _is_there(aside):
            aside.replace(destination)


def _is_there(path: Path) -> bool:
    """Also a link that points nowhere."""
    return path.is_symlink() or path.exists()


@contextlib.contextmanager
def stage(
    destination: Path, *, wanted: Mapping[str, Any], need_bytes: int = 0, overwrite: bool = False
) -> Iterator[Stage]:
    """A folder to work in, beside `destination` (a file or a folder); it is gone afterwards.

    wanted: everything that decides the result, as JSON values; an earlier run's steps are used
        only where it is the same. need_bytes: what the work will take on the disk.
    Raises ExportError where the destination exists and overwrite is False, where the disk is too
    full, and where another export to this destination is running.
    """
    destination = destination.absolute()
    refuse_existing(destination, overwrite)
    folder = destination.with_name(f".{destination.name}.partial")
    fingerprint = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    with _os_errors(destination), _locked(folder):
        if _put_back(folder, destination):
            refuse_existing(destination, overwrite)
        finished = _earlier(folder, fingerprint)
        if not finished:
            _clear(folder)
        already = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        current = Stage(folder, fingerprint, finished)
        try:
            require_space(folder, need_bytes - already)
            yield current
        except BaseException as error:
            if (old := current.not_back()) is not None:
                reason = str(error).rstrip(".") or type(error).__name__
                raise DiskError(
                    f"{destination} couldn't be replaced ({reason}), and what was there before "
                    f"lies in {old} now; move it back."
                ) from error
            refused = isinstance(error, EdgespecError) and not isinstance(error, Stopped)
            if refused or not (folder / _STATE).is_file():
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for old in folder.glob("replaced-*/old"):  # what can't be deleted now never comes back
            with contextlib.suppress(OSError):
                old.rename(old.with_name("gone"))
        shutil.rmtree(folder, ignore_errors=True)


def refuse_existing(destination: Path, overwrite: bool, sources: Sequence[Path] = ()) -> None:
    """Raises ExportError where `destination` exists and may not be replaced.

    sources: files it is made from, which it may neither be nor hold.
    """
    with _os_errors(destination):
        if not destination.exists():
            return
        places = (path for source in sources for path in (source, *source.absolute().parents))
        holds = any(destination.samefile(path) for path in places)
        stranger = _stranger(destination) if destination.is_dir() else None
    if holds:
        raise ExportError(
            f"{destination} is what is to be exported, or holds it; choose another place."
        )
    if stranger is not None:
        raise ExportError(
            f"{destination} holds {stranger}, which is no part of an export; choose another folder."
        )
    if not overwrite:
        raise ExportError(f"{destination} exists already; --force replaces it.")


def _stranger(folder: Path) -> str | None:
    """What is in a folder and named by no manifest in it; None where all is an export's."""
    try:
        entries = [path for path in folder.iterdir() if path.name not in _SYSTEM_FILES]
        named: set[str] = set()
        for path in entries:
            if path.name.endswith(MANIFEST_SUFFIX):
                outputs = json.loads(path.read_text(encoding="utf-8"))["output_files"]
                named |= {path.name, *outputs}
    except (OSError, ValueError, LookupError, TypeError):
        return "something that can't be read"
    for path in entries:
        if path.name in named:
            continue
        if path.is_symlink() or not path.is_dir():
            return path.name
        inside = _stranger(path) if any(path.iterdir()) else ""
        if inside is not None:
            return f"{path.name}/{inside}"
    return None


def require_place(destination: Path) -> None:
    """Raises DiskError where nothing can be made at `destination`, as far as its folder says."""
    with _os_errors(destination):
        folder = next(filter(_is_there, destination.absolute().parents), None)
        if folder is None or not folder.is_dir():
            problem = f"{folder} is no folder" if folder else "there is no such disk"
        elif not os.access(folder, os.W_OK):
            problem = f"nothing can be written in {folder}"
        else:
            return
    raise DiskError(f"Can't write {destination}: {problem}; choose another place.")


def require_text(*paths: Path | str) -> None:
    """Raises ExportError for a path that isn't Unicode, which no manifest can hold."""
    for path in paths:
        try:
            str(path).encode("utf-8")
        except UnicodeEncodeError:
            raise ExportError(
                f"{str(path)!r} holds bytes that aren't UTF-8, so no manifest can name it; rename "
                "it, or choose another place."
            ) from None


def require_space(folder: Path, need_bytes: int) -> None:
    """Raises ExportError where the disk of `folder` has no room for `need_bytes` and a little."""
    if not has_space(folder, need_bytes):
        raise DiskError(
            f"This needs {human_bytes(need_bytes)} on the disk of {folder}, where "
            f"{human_bytes(free_bytes(folder))} is free; make room, or choose a place on another "
            "disk."
        )


def has_space(folder: Path, need_bytes: int) -> bool:
    """Whether the disk of `folder` has room for `need_bytes` and a little."""
    return need_bytes <= 0 or free_bytes(folder) >= need_bytes + _SPARE_BYTES


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one export at a time works in `folder`; the system frees the lock of one that died."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    with path.open("a+b") as file:
        # One that ended just now takes its lock file with it: then this lock is on a file without a
        # name, and holds nobody off.
        if not lock_file(file) or not _same_file(file, path):
            raise ExportError(f"Another export is writing to {_final(folder)}; wait for it to end.")
        folder.mkdir(exist_ok=True)
        gone = False
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows keeps an open file; it is empty
                path.unlink()
                gone = True
    if not gone:  # else one that is there now is another export's
        with contextlib.suppress(OSError):
            path.unlink()


def _same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _earlier(folder: Path, fingerprint: str) -> dict[str, str]:
    """The finished steps of an earlier run that was asked for the same thing."""
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        finished = state["finished"] if state["wanted"] == fingerprint else {}
        return {str(step): str(name) for step, name in finished.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _put_back(folder: Path, destination: Path) -> bool:
    """Move back the folder that a run had moved aside when it was killed; whether there was one."""
    for old in folder.glob("replaced-*/old"):
        if old.is_dir() and not old.is_symlink() and not _is_there(destination):
            old.replace(destination)
            return True
    return False


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=path.name.startswith("replaced-"))
        else:
            path.unlink()


def _flush(made: Path) -> None:
    """On the disk before it gets its name, or a power cut could leave the name on empty blocks."""
    for path in made.rglob("*") if made.is_dir() else (made,):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def _os_errors(destination: Path) -> Iterator[None]:
    """What the disk says, as a sentence."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = error.strerror or str(error)
        if _CUT_SHORT.fullmatch(reason):
            reason = "the disk took no more of it; make room, or choose a place on another disk"
        raise DiskError(f"Can't write {destination}: {reason}{where}.") from error


def _final(folder: Path) -> str:
    return str(folder.with_name(folder.name.removeprefix(".").removesuffix(".partial")))
