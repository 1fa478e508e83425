"""Files of the Hugging Face hub, in the hub's own cache, through the hub's own client.

Invariant: this is the only importer of huggingface_hub, and it imports it inside the functions:
a run with local files doesn't pay for it.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import warnings
from pathlib import Path
from typing import Any, NoReturn

from edgespec.errors import FetchError
from edgespec.fetch.sources import Progress
from edgespec.platform import expanded
from edgespec.registry import HubSource


def cache_dir() -> Path:
    """Where the hub's client keeps its files (HF_HOME or HF_HUB_CACHE move it).

    The client's own rule, told here because importing it takes longer than listing the models.
    """
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(general, "huggingface")  # noqa: PTH118
    old = os.environ.get("HUGGINGFACE_HUB_CACHE")
    folder = os.environ.get("HF_HUB_CACHE") or old or os.path.join(home, "hub")  # noqa: PTH118
    return expanded(os.path.expandvars(folder))


def cached(source: HubSource) -> Path | None:
    """The file in the hub's cache, or None; no network."""
    folder = "--".join(("models", *source.repo.split("/")))
    if not os.path.isdir(cache_dir() / folder):  # noqa: PTH112 - False also where it can't be read
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repo, source.file, revision=source.revision)
    return Path(found) if isinstance(found, str) else None


def checksum(path: Path) -> str | None:
    """The SHA-256 that the hub gives for a cached file, where the cache has it.

    The cache names a large file's blob by its SHA-256. Small files are named by another hash, and
    where the cache can't use links (Windows without developer mode) the name isn't kept: then it is
    known of what this process downloaded.
    """
    if not path.is_symlink():
        return _told.get(path)
    blob = path.readlink()  # this link only: a blob may itself link to elsewhere
    return blob.name if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name) else None


_SHA256 = re.compile(r"[0-9a-f]{64}")
_told: dict[Path, str] = {}
"""The SHA-256 that the hub gave for each large file that was downloaded."""


def commit(path: Path) -> str | None:
    """The commit that a cached file belongs to, by its place in the cache."""
    try:
        _, folder, found, *_ = path.relative_to(cache_dir()).parts
    except ValueError:  # it lies elsewhere
        return None
    return found if folder == "snapshots" else None


def discard(path: Path) -> None:
    """Drop a cached file that isn't what it should be, with the blob behind it.

    Newer clients have that blob link to a store that all repositories share, and would link to the
    same bytes once more.
    """
    bytes_at, shared = path.resolve(), (cache_dir() / "blobs").resolve()
    if path.is_symlink():
        (path.parent / path.readlink()).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    if bytes_at.is_relative_to(shared):
        bytes_at.unlink(missing_ok=True)


def files(repo: str, revision: str) -> tuple[str, dict[str, int]]:
    """The commit that `revision` stands for now, and the repository's files with their bytes.

    Raises FetchError.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        listed = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        return info.sha or revision, listed
    except Exception as error:  # as in `download`
        _raise(error, HubSource(repo, "the list of files", revision))


def snapshot(repo: str, revision: str) -> Path | None:
    """The folder of a repository's files in the hub's cache, however many are there; no network."""
    folder = cache_dir() / "--".join(("models", *repo.split("/")))
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision
    found = folder / "snapshots" / commit
    return found if found.is_dir() else None


def download(source: HubSource, report: Progress, *, again: bool = False) -> Path:
    """Download into the hub's cache and return the file there.

    again: also where the file is there; it is replaced by the whole new one, or stays as it is.

    Raises FetchError, and what `report` raises.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import disable_progress_bars, tqdm

    stops: list[BaseException] = []  # what `report` raised, whatever the client makes of it

    class Bar(tqdm):
        """Passes the client's counts on, and draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            try:
                report(int(self.n), self.total and int(self.total))
            except BaseException as error:
                stops.append(error)
                raise
            return None

        def update_transfer(self, n: float) -> None:
            """Its presence keeps the client from opening a second bar for the same bytes."""

    # A cache without links (Windows without developer mode) is as good for us.
    warnings.filterwarnings("ignore", "`huggingface_hub` cache-system uses symlinks", UserWarning)
    options: dict[str, Any] = {"revision": source.revision, "force_download": again}
    if "tqdm_class" in inspect.signature(hf_hub_download).parameters:
        options["tqdm_class"] = Bar
    else:  # before 1.0 it tells nobody how far it is; its own bar would cross ours
        disable_progress_bars()
    try:
        # Asked once first: the download itself tries for half a minute before it says "offline".
        told = get_hf_file_metadata(hf_hub_url(source.repo, source.file, revision=source.revision))
        path = Path(hf_hub_download(source.repo, source.file, **options))
    except Exception as error:  # its transport's own errors come through, and their names change
        if not stops:
            _raise(error, source)
    if stops:
        raise stops[0]
    blob = path.parents[len(Path(source.file).parts) + 1] / "blobs" / str(told.etag)
    if again and not path.is_symlink() and blob.is_file():
        blob.replace(path)  # before 1.0, a cache without links kept the old file beside the new one
    # A branch may have moved on in between.
    if told.commit_hash in path.parts and _SHA256.fullmatch(told.etag or ""):
        _told[path] = str(told.etag)
    return path


def _raise(error: Exception, source: HubSource) -> NoReturn:
    from huggingface_hub import constants, errors, get_token

    repo, endpoint = source.repo, constants.ENDPOINT
    what = f"Can't download {source.file} from {repo}"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    if isinstance(error, errors.GatedRepoError):
        message = (
            f"{repo} asks you to accept its licence first: do so at {endpoint}/{repo}, "
            "run `hf auth login`, and try again."
        )
    elif isinstance(error, errors.RepositoryNotFoundError):
        message = (
            f"There is no repository {repo} at {endpoint}, or it is private; check the name, or "
            "run `hf auth login`."
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        message = f"{repo} has no revision {source.revision}; check the revision you asked for."
    elif isinstance(error, errors.EntryNotFoundError) and error is cause:
        message = f"{repo} has no file {source.file}" + _near_files(source)
    elif isinstance(cause, errors.OfflineModeIsEnabled):
        message = f"{what}: HF_HUB_OFFLINE is set; unset it, or fetch the file another way."
    elif isinstance(cause, errors.FileMetadataError):
        message = f"{what}: {endpoint} doesn't answer like a hub; check HF_ENDPOINT or your proxy."
    elif (response := getattr(cause, "response", None)) is not None:
        message = f"{what}: {endpoint} answered {response.status_code}; try again later."
        if response.status_code == 401 and get_token():
            message = (
                f"{what}: {endpoint} refuses your token; run `hf auth login` again, or unset "
                "HF_TOKEN."
            )
        elif response.status_code == 403 and get_token():
            message = (
                f"{what}: your token may not read {repo}; give it that right at "
                f"{endpoint}/settings/tokens."
            )
    elif isinstance(error, OSError) and error.errno is not None:
        raise error  # the disk, not the hub: `fetch` says so
    elif "Consistency check" in str(error):
        message = f"{what}: the download stopped early; try again."
    else:
        reason = str(cause or error).split("\n", 1)[0].rstrip(".")
        message = f"{what}: {reason}; check your network connection, and that {endpoint} is up."
    raise FetchError(message) from error


def _near_files(source: HubSource) -> str:
    """What to say after a missing file: the files with a similar name, if the hub tells them."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(source.repo, revision=source.revision)
    except Exception:  # a hint isn't worth a second error
        return "; check `file` in the models file."
    close = difflib.get_close_matches(source.file, files)
    close = close or [file for file in files if file.endswith((".gguf", ".onnx"))][:5]
    return f"; it has {', '.join(close)}." if close else "; it has no model file."
