"""The peers' scripts, without the programs that they run: what they count, and what they end."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "peers"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script, as it is found when it runs."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    names = [path.stem for path in SCRIPTS.glob("*.py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["J\u00f6rg", "\u0141ukasz"])
def test_an_environments_python_is_told_in_utf_8(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name / "llama_server_binary"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    (folder / "edgespec-peer.json").write_text("[]", "utf-8")  # so that none is made
    told = subprocess.run(
        [sys.executable, SCRIPTS / "llama_server_binary.py", "--make", folder.parent],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    assert Path(told.stdout.decode("utf-8").strip()).samefile(python)


class Generator:
    """Hands out one token a call, but checks several at a time, the first behind the prompt."""

    def __init__(self, batches: list[int], drafts: bool) -> None:
        self._batches, self._drafts = batches, drafts
        self._waiting = 0
        self._given = 0

    def append_tokens(self, ids: list[int]) -> None:
        pass

    def is_done(self) -> bool:
        return not self._waiting and not self._batches

    def generate_next_token(self) -> None:
        if not self._waiting:
            self._waiting = self._batches.pop(0)
        self._waiting -= 1
        self._given += 1

    def get_next_tokens(self) -> Any:
        return SimpleNamespace(tolist=lambda: [self._given])

    def get_speculative_stats(self) -> dict[str, int]:
        assert self._drafts
        return {
            "tokens_buffered": self._waiting,
            "draft_tokens_proposed": 9,
            "draft_tokens_accepted": 4,
        }


@pytest.mark.parametrize(
    ("setting", "batches", "firsts", "rounds"),
    [("draft-4", [5, 2, 1, 3], 5, 3), ("plain", [1] * 11, 1, None), ("draft-4", [1, 10], 1, 1)],
)
def test_a_first_check_behind_the_prompt_is_no_decoding(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    batches: list[int],
    firsts: int,
    rounds: int | None,
) -> None:
    peer = script("ort_genai")
    lib = ModuleType("onnxruntime_genai")
    params = SimpleNamespace(
        set_search_options=lambda **_: None, set_speculative_options=lambda **_: None
    )
    lib.GeneratorParams = lambda model: params  # type: ignore[attr-defined]
    lib.Generator = lambda *_: Generator(list(batches), setting != "plain")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", lib)
    models = object.__new__(peer.Models)
    models._options = {"plain": {}, "draft-4": {"max_draft_tokens": 4}}
    models._stop, models._drafted, models._alone = frozenset(), None, None
    answer = models.answer(setting, [1, 2], 20)
    assert answer["tokens"] == list(range(1, 12))
    assert answer["first_tokens"] == firsts
    assert [count for _, count in answer["arrivals"]] == batches  # a check's tokens come together
    assert answer.get("rounds") == rounds


def test_servers_start_when_asked_and_make_room(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peer = script("llama_server")
    happened: list[str] = []
    texts: list[list[int]] = []
    fails: list[str] = []

    class Process:
        def __init__(self, request: dict[str, Any]) -> None:
            (self.setting,) = request["settings"]
            assert request["alone"]
            happened.append(f"start {self.setting}")

        def ask(self, request: dict[str, Any]) -> dict[str, Any]:
            assert request["setting"] == self.setting
            if fails:
                raise RuntimeError(fails.pop())
            texts.append(request["ids"])
            return {"tokens": []}

        def end(self) -> None:
            happened.append(f"end {self.setting}")

    monkeypatch.setattr(peer, "Process", Process)
    monkeypatch.setattr(peer, "versions", lambda *_: {})
    memory: list[float | None] = [1000.0]
    monkeypatch.setattr(peer, "_free_memory", lambda: memory[0])
    for name, size in (("t.gguf", 80), ("d.gguf", 20)):
        (tmp_path / name).write_bytes(b"x" * size)
    servers = peer.load(
        {
            "target": str(tmp_path / "t.gguf"),
            "drafters": [str(tmp_path / "d.gguf")],
            "stop_ids": [0],
            "device": "CPU, 2 threads",
            "gpu_layers": 0,
            "settings": ["plain", "draft-3", "ngram-mod"],
        }
    )
    assert happened == []
    ids = list(range(40))
    started = [
        servers.answer(setting, ids, 2)["started"]
        for setting in ("plain", "draft-3", "plain", "ngram-mod", "ngram-mod")
    ]
    assert started == [True, True, False, True, True]
    # Each is warm before it is asked, by another text that is too short to learn from.
    warm = list(range(7, -1, -1))
    assert texts == [warm, ids, warm, ids, ids, warm, ids, warm, ids]
    # One that learns from its answers begins anew; the others stay.
    assert happened == [
        "start plain", "start draft-3", "start ngram-mod", "end ngram-mod", "start ngram-mod",
    ]  # fmt: skip
    del happened[:]
    memory[0] = 99.0  # not enough for any more
    servers.answer("plain", [1], 2)
    servers.answer("ngram-mod", [1], 2)
    assert happened == ["end ngram-mod", "end draft-3", "end plain", "start ngram-mod"]
    del happened[:]
    memory[0] = None  # nobody tells: one at a time
    servers.answer("plain", [1], 2)
    servers.answer("draft-3", [1], 2)
    servers.answer("draft-3", [1], 2)
    assert happened == ["end ngram-mod", "start plain", "end plain", "start draft-3"]
    # One that failed, warm or not yet, is ended, and another takes its place.
    memory[0] = 1000.0
    servers.answer("plain", [1], 2)
    del happened[:]
    fails.append("the server's process ended")
    with pytest.raises(RuntimeError, match="process ended"):
        servers.answer("plain", [1], 2)
    fails.append("it has no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        servers.answer("plain", [1], 2)
    assert servers.answer("plain", [1], 2)["started"]
    assert happened == ["end plain", "start plain", "end plain", "start plain"]


MEMORY = {
    "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8 kB\n",
    "proc/self/cgroup": "0::/a/b\n",
}
GROUP = {
    "sys/fs/cgroup/a/memory.max": "6000\n",
    "sys/fs/cgroup/a/memory.current": "3000\n",
    "sys/fs/cgroup/a/memory.stat": "anon 900\ninactive_file 500\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/b/memory.current": "2000\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\n"}, None),
        ({"proc/meminfo": MEMORY["proc/meminfo"]}, 8192),
        (MEMORY, 8192),
        (MEMORY | GROUP, 3500),
        (MEMORY | GROUP | {"sys/fs/cgroup/a/memory.max": "60000\n"}, 8192),
        (MEMORY | GROUP | {"proc/self/cgroup": "4:memory:/a\n"}, 8192),
        (MEMORY | GROUP | {"sys/fs/cgroup/a/memory.stat": "damaged"}, 8192),
    ],
)
def test_memory_that_can_be_had(
    script: Any, tmp_path: Path, files: dict[str, str], free: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert script("llama_server")._free_memory(tmp_path) == free


@pytest.mark.parametrize(
    ("setting", "types", "width"),
    [
        ("plain", None, None),
        ("draft-3", ["DRAFT_SIMPLE"], 3),
        ("ngram-mod", ["NGRAM_MOD"], None),
        ("ngram-simple+draft-6", ["NGRAM_SIMPLE", "DRAFT_SIMPLE"], 6),
    ],
)
def test_what_a_server_is_told(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    types: list[str] | None,
    width: int | None,
) -> None:
    peer = script("llama_server")
    monkeypatch.setattr(peer, "versions", lambda *_: {})
    request = {
        "target": "t.gguf", "drafters": ["d.gguf"], "threads": 2, "context": 64, "stop_ids": [],
        "settings": [setting], "device": "GPU", "gpu_layers": 7,
    }  # fmt: skip
    lib = ModuleType("xllamacpp")

    class Params:
        def __init__(self) -> None:
            cpus = SimpleNamespace(n_threads=0)
            draft = SimpleNamespace(
                mparams=SimpleNamespace(path=None),
                n_max=None,
                n_gpu_layers=None,
                cpuparams=cpus,
                cpuparams_batch=cpus,
            )
            self.model = SimpleNamespace(path=None)
            self.cpuparams = self.cpuparams_batch = cpus
            self.speculative = SimpleNamespace(types=None, draft=draft)

    class Kinds:
        def __getattr__(self, name: str) -> str:
            return name.removeprefix("COMMON_SPECULATIVE_TYPE_")

    lib.CommonParams = Params  # type: ignore[attr-defined]
    lib.common_speculative_type = Kinds()  # type: ignore[attr-defined]
    lib.Server = lambda params: params  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xllamacpp", lib)
    kinds = [0]  # GGML_BACKEND_DEVICE_TYPE_CPU
    lib.get_device_info = lambda: [{"type": kind} for kind in kinds]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="this peer runs on the CPU alone"):
        peer.load(request)
    kinds.append(1)
    assert peer.load(request).settings == [setting]  # it is offered
    params = peer._start(request, setting)
    assert params.n_gpu_layers == 7 and params.speculative.draft.n_gpu_layers == (width and 7)
    assert params.speculative.types == types
    assert params.speculative.draft.n_max == width
    assert params.speculative.draft.mparams.path == (width and "d.gguf")


def test_a_server_is_asked_greedily(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GGUF file may bring sampling of its own, which the server takes where it isn't told."""
    peer = script("llama_server")
    asked: list[dict[str, Any]] = []
    timings = {"prompt_ms": 1, "predicted_ms": 1, "predicted_n": 1}
    reply = {"tokens": [5], "content": "a", "stop_type": "limit", "timings": timings}
    monkeypatch.setattr(peer, "_post", lambda url, data: (asked.append(data), reply)[1])
    started = SimpleNamespace(listening_address="http://x")
    server = peer.Server({"settings": ["plain"], "stop_ids": []}, lambda *_: started)
    assert server.answer("plain", [1, 2], 1)["tokens"] == [5]
    (data,) = asked
    assert data["samplers"] == ["top_k", "temperature"]
    assert (data["top_k"], data["temperature"], data["mirostat"]) == (1, 0.0, 0)
    assert data["repeat_penalty"] == 1.0
    assert data["presence_penalty"] == data["frequency_penalty"] == 0.0


@pytest.mark.parametrize("name", ["ort_genai", "transformers_generate"])
def test_a_program_without_a_gpu_is_refused_beside_one(script: Any, name: str) -> None:
    with pytest.raises(ValueError, match="alone, and edgespec's target on CUDA: --device cpu"):
        script(name).Models({"device": "CUDA", "gpu_layers": 0})


def test_llama_cpp_python_has_the_targets_layers(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = script("llama_cpp_python")
    lib, drafts = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    gpu = [False]
    lib.Llama = lambda path, **options: (path, options)  # type: ignore[attr-defined]
    lib.llama_supports_gpu_offload = lambda: gpu[0]  # type: ignore[attr-defined]
    drafts.LlamaPromptLookupDecoding = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", lib)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", drafts)
    monkeypatch.setattr(peer, "versions", lambda *_: {})
    request = {
        "target": "t.gguf", "drafters": [], "threads": 2, "context": 64, "stop_ids": [],
        "settings": ["plain"], "device": "CPU, 2 threads", "gpu_layers": 0,
    }  # fmt: skip
    assert peer.Models(request)._models["plain"][1]["n_gpu_layers"] == 0
    request |= {"device": "GPU", "gpu_layers": 999}
    with pytest.raises(ValueError, match="runs on the CPU alone"):
        peer.Models(request)
    gpu[0] = True
    assert peer.Models(request)._models["plain"][1]["n_gpu_layers"] == 999


def test_tokens_of_one_pass_arrive_when_the_first_of_them_does(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to the first token is the first's, and decoding lasts to the last of them."""
    common = script("common")
    clock = iter((0.0, 1.0, 1.5, 3.0, 3.25, 4.0))
    monkeypatch.setattr(common, "perf_counter", lambda: next(clock))
    timed = common.Timed(frozenset([9]), common.perf_counter())
    assert timed.add([1]) and timed.add([2], joins=True)
    alone = timed.answer()
    assert alone["arrivals"] == [(1.0, 2)] and alone["first_tokens"] == 2
    assert (alone["ttft_seconds"], alone["decode_seconds"]) == (1.0, 0.0)  # nothing behind it
    assert timed.add([3]) and not timed.add([9], joins=True)
    answer = timed.answer()
    assert answer["arrivals"] == [(1.0, 2), (3.0, 1)] and answer["finish_reason"] == "end"
    assert (answer["ttft_seconds"], answer["decode_seconds"]) == (1.0, 2.25)
    assert common.Timed(frozenset()).answer()["decode_seconds"] is None


def test_tokens_of_one_pass_of_llama_cpp_python_come_together(script: Any) -> None:
    class Llama:
        """Hands out one token at a time, several for each pass."""

        def eval(self, tokens: list[int]) -> None:
            self.passes.append(tokens)

        def generate(self, ids: list[int], **_: object) -> Iterator[int]:
            token = 0
            for count in (1, 3, 1, 4):
                self.eval([token])
                for _ in range(count):
                    token += 1
                    yield token

        def reset(self) -> None:
            self.passes: list[list[int]] = []

        def detokenize(self, tokens: list[int]) -> bytes:
            return bytes(tokens)

    models = object.__new__(script("llama_cpp_python").Models)
    models._models, models._stop = {"lookup-2": Llama()}, frozenset([9])
    for _ in range(2):
        answer = models.answer("lookup-2", [1, 2], 20)
        assert [count for _, count in answer["arrivals"]] == [1, 3, 1, 3]
        assert (answer["tokens"], answer["finish_reason"]) == (list(range(1, 9)), "end")
        assert models._models["lookup-2"].passes == [[0], [1], [4], [5]]


def test_an_environment_whose_python_is_gone_is_made_anew(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    common = script("common")
    cleared: list[bool] = []

    def create(folder: Path, *, with_pip: bool, clear: bool) -> None:
        cleared.append(clear)
        python = folder.resolve() / place
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_bytes(b"")

    place = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    monkeypatch.setattr(common.venv, "create", create)
    python = common.make(tmp_path / "it", [])
    assert common.make(tmp_path / "it", []) == python and cleared == [False]
    python.unlink()
    assert common.make(tmp_path / "it", []) == python and cleared == [False, True]
    assert python.exists()


BINARY = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        timings = {{"prompt_ms": 50, "predicted_ms": 80, "predicted_n": 3, "draft_n": 2,
                   "draft_n_accepted": 1}}
        self.reply({{"content": "ab", "tokens": asked["prompt"] + [9], "stop_type": "limit",
                    "timings": timings}})

    def reply(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, *_):
        pass

if "--version" in sys.argv:
    print("version: 7 (abc)", file=sys.stderr)
elif "--list-devices" in sys.argv:
    print("Available devices:")
    print(open("{folder}/devices").read())
else:
    open("{folder}/told.json", "w").write(json.dumps(sys.argv[1:]))
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_a_server_of_ones_own_build(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(BINARY.format(python=sys.executable, folder=tmp_path))
    binary.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(binary))
    for name in ("no_proxy", "NO_PROXY"):  # as where a company's proxy is named, and no exception
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    peer = script("llama_server_binary")
    monkeypatch.setattr(peer, "PATIENCE", 20.0)
    request = {
        "target": "t.gguf", "drafters": ["d.gguf"], "threads": 2, "context": 64, "stop_ids": [9],
        "settings": ["ngram-simple+draft-3"], "device": "CPU, 2 threads", "gpu_layers": 0,
    }  # fmt: skip
    details = peer.load(request).details
    assert details["versions"] == {"llama-server": "version: 7 (abc)"}
    monkeypatch.setenv("LLAMA_SERVER_COMMIT", "c0ffee")  # what a build says of itself comes first
    assert peer.load(request).details["versions"] == details["versions"]
    text = binary.read_text()
    binary.write_text(text.replace("version: 7 (abc)", "version: 0 (unknown)"))
    said = peer.load(request).details["versions"]
    assert said == {"llama-server": "version: 0 (unknown), of commit c0ffee"}
    binary.write_text(text)
    (tmp_path / "libggml.so.1").write_bytes(b"another build")
    assert peer.load(request).details["binary"] != details["binary"]
    server = peer.load({**request, "alone": True})
    answer = server.answer("ngram-simple+draft-3", [5, 6], 4)
    assert (answer["tokens"], answer["finish_reason"], answer["rounds"]) == ([5, 6], "end", 1)
    told = " ".join(json.loads((tmp_path / "told.json").read_text()))
    assert "--spec-type ngram-simple,draft-simple" in told
    assert "--spec-draft-model d.gguf --spec-draft-n-max 3 --spec-draft-ngl 0" in told
    assert "--n-gpu-layers 0" in told
    on_gpu = {**request, "device": "GPU", "gpu_layers": 9}
    devices = tmp_path / "devices"
    for seen in ("  (none)", "  BLAS: OpenBLAS (0 MiB, 0 MiB free)"):
        devices.write_text(seen)
        with pytest.raises(ValueError, match="runs on the CPU alone"):
            peer.load(on_gpu)
    devices.write_text("  CUDA0: A GPU (two, new) (24576 MiB, 20000 MiB free)")
    assert peer.load(on_gpu).settings == ["ngram-simple+draft-3"]
    for running in server._servers.values():
        running._process.kill()
        running._process.wait()
    monkeypatch.delenv("LLAMA_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="set LLAMA_SERVER"):
        peer.load(request)
