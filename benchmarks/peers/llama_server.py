"""llama.cpp's server, as the xllamacpp wheel carries it: plain, with a drafter model, with n-grams.

draft-K drafts with the model, at most K tokens a round; ngram-simple and ngram-mod copy from the
text; ngram-simple+draft-K copies where it can and asks the model elsewhere. The server takes these
choices when it starts, so each setting is a server of its own, in a process of its own: OpenMP
teams of several servers in one process are more threads than CPUs, and then every barrier of all of
them sleeps instead of spinning. Servers start when they are first asked, and answer a few tokens of
another text before the one that is timed. Where memory runs short, those that were asked longest
ago are ended for it; where nobody tells how much is free, one runs at a time. ngram-mod learns from
every answer it gave, so it starts anew for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as HttpRequest

from common import Answer, Request, chosen, layers_on_gpu, main, versions

REQUIREMENTS = ["xllamacpp"]
NGRAMS = ("ngram-simple", "ngram-mod")
LONGEST = 8
PATIENCE = 3300.0  # seconds until a reply; `edgespec bench` itself waits an hour
DIRECT = build_opener(ProxyHandler({}))  # a proxy doesn't know this machine's own servers
WARM_UP = 8  # tokens read and written; together fewer than the 24 that ngram-mod learns from


def load(request: Request) -> Servers | Server:
    """All settings, or in a process below that, the one that it is for."""
    if request.get("alone"):
        return Server(request, _start)
    layers_on_gpu(request, _has_gpu)
    return Servers(request, {"versions": versions("xllamacpp")})


class Servers:
    """A process for each setting."""

    def __init__(self, request: Request, details: dict[str, Any]) -> None:
        drafts = [f"draft-{k}" for k in range(1, LONGEST + 1)] if request["drafters"] else []
        both = [f"ngram-simple+{draft}" for draft in drafts]
        self.settings = chosen(request, ["plain", *drafts, *NGRAMS, *both])
        self.details = details
        self._request = request
        self._running: dict[str, Process] = {}  # asked longest ago first

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """From the setting's process, which is started where it isn't running."""
        process = self._running.pop(setting, None)
        if process is not None and setting == "ngram-mod":
            process.end()
            process = None
        new = process is None
        if process is None:
            process = self._start(setting)
        try:
            if new:
                other = ids[:WARM_UP][::-1]
                process.ask({"setting": setting, "ids": other, "max_tokens": WARM_UP})
            reply = process.ask({"setting": setting, "ids": ids, "max_tokens": max_tokens})
        except BaseException:
            process.end()  # what failed may be gone, or at it still: the next prompt gets another
            raise
        self._running[setting] = process
        return {**reply, "started": new}

    def _start(self, setting: str) -> Process:
        files = [self._request["target"]]
        if "draft-" in setting:
            files.append(self._request["drafters"][0])
        needed = 1.25 * sum(Path(file).stat().st_size for file in files)
        while self._running and not _has_room(needed):
            self._running.pop(next(iter(self._running))).end()
        return Process({**self._request, "settings": [setting], "alone": True})


class Process:
    """A process of this script with one server; it ends when its parent does."""

    def __init__(self, request: Request) -> None:
        self._process = subprocess.Popen(
            [sys.executable, sys.argv[0], "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.ask(request)
        except BaseException:
            self.end()
            raise

    def ask(self, request: Request) -> Answer:
        """One request and its reply."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the server's process ended")
        reply: Answer = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def end(self) -> None:
        """Its memory is free afterwards."""
        assert self._process.stdin and self._process.stdout
        with suppress(OSError):  # what it didn't read any more
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _has_room(needed: float) -> bool:
    """Whether so many bytes can be had; no where the system doesn't tell."""
    free = _free_memory()
    return free is not None and free >= needed


def _free_memory(root: Path = Path("/")) -> float | None:
    """Bytes that can be had, in a container those that it may take; None where nobody tells."""
    try:
        lines = (root / "proc/meminfo").read_text("utf-8").splitlines()
        amounts = dict(line.split(":", 1) for line in lines)
        free = float(amounts["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
    return min([free, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[float]:
    """What the limit of each control group of this process leaves (Linux, version 2).

    Pages of files that nobody used lately make room.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return
    base = root / "sys/fs/cgroup"
    for group in (base / line[3:].strip("/") for line in lines if line.startswith("0::")):
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max" is no number
                limit = float((folder / "memory.max").read_text("utf-8"))
                used = float((folder / "memory.current").read_text("utf-8"))
                stat = (folder / "memory.stat").read_text("utf-8").splitlines()
                unused = dict(line.split() for line in stat).get("inactive_file", 0)
                yield limit - used + float(unused)
            if folder == base:
                break


class Server:
    """The server of one setting, asked over its own HTTP interface."""

    def __init__(self, request: Request, start: Callable[[Request, str], Any]) -> None:
        """`start` gives something with a `listening_address`."""
        self.settings = request["settings"]
        self.details: dict[str, Any] = {}
        self._stop = frozenset(request["stop_ids"])
        self._servers = {setting: start(request, setting) for setting in self.settings}

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """The server's own timings: prompt, and decoding behind the first token."""
        reply = _post(
            self._servers[setting].listening_address + "/completion",
            {
                "prompt": ids,
                "n_predict": max_tokens,
                # Greedy whatever the GGUF file says of sampling; without top_k all is sorted.
                "samplers": ["top_k", "temperature"],
                "temperature": 0.0,
                "top_k": 1,
                "mirostat": 0,
                "repeat_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        timings = reply["timings"]
        ended = reply["stop_type"] == "eos" or reply["tokens"][-1:] in [[s] for s in self._stop]
        return {
            "tokens": [token for token in reply["tokens"] if token not in self._stop],
            "text": reply["content"],
            "finish_reason": "end" if ended else "length",
            "ttft_seconds": timings["prompt_ms"] / 1e3,
            "decode_seconds": timings["predicted_ms"] / 1e3,
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
            # Every token is an accepted guess or a round's own.
            "rounds": max(0, timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0)),
        }


def speculation(setting: str) -> tuple[list[str], int]:
    """The server's kinds of drafters for a setting, and the longest draft of its model, or 0."""
    kinds, width = [] if setting == "plain" else setting.split("+"), 0
    for i, kind in enumerate(kinds):
        if kind.startswith("draft-"):
            width, kinds[i] = int(kind.removeprefix("draft-")), "draft-simple"
    return kinds, width


def _start(request: Request, setting: str) -> Any:
    import xllamacpp as lib

    params = lib.CommonParams()
    params.model.path = request["target"]
    params.n_gpu_layers = request["gpu_layers"]
    params.n_ctx = request["context"]
    params.n_parallel = 1
    params.port = 0
    params.cache_ram_mib = 0
    params.verbosity = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request["threads"]
    kinds, width = speculation(setting)
    if kinds:
        params.speculative.types = [_type(lib, kind) for kind in kinds]
    if width:
        draft = params.speculative.draft
        draft.mparams.path = request["drafters"][0]
        draft.n_gpu_layers = request["gpu_layers"]
        draft.n_max = width
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = request["threads"]
    return lib.Server(params)


def _has_gpu() -> bool:
    import xllamacpp as lib

    kinds = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
    return any(device["type"] in kinds for device in lib.get_device_info())


def _type(lib: Any, kind: str) -> Any:
    kinds = lib.common_speculative_type
    return getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}")


def _post(url: str, data: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(data).encode()
    asked = HttpRequest(url, body, {"content-type": "application/json"})
    with DIRECT.open(asked, timeout=PATIENCE) as reply:
        result: dict[str, Any] = json.load(reply)
        return result


if __name__ == "__main__":
    main(REQUIREMENTS, load)
