"""llama.cpp's server of your own build: LLAMA_SERVER is its path, else the one on PATH.

The wheel that llama_server.py measures is built for many machines at once; one built here has this
machine's instructions, as edgespec's llama.cpp has. The same settings, asked in the same way. A
build outside of git doesn't know its commit: LLAMA_SERVER_COMMIT names it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from common import Request, layers_on_gpu, main
from llama_server import DIRECT, Server, Servers, speculation

LIBRARY = re.compile(r"^(lib)?(llama|ggml|mtmd).*\.(so|dylib|dll)\b")
# What computes for the CPU is listed too, without any memory of its own.
GPU = re.compile(r"^ +\S+: .*\([1-9]\d* MiB,", re.MULTILINE)
PATIENCE = 600.0  # seconds until a server has loaded


def load(request: Request) -> Servers | Server:
    """All settings, or in a process below that, the one that it is for."""
    if request.get("alone"):
        return Server(request, Running)
    layers_on_gpu(request, _has_gpu)
    said = subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True)
    version = ", ".join((said.stdout + said.stderr).strip().splitlines()[-2:])
    commit = os.environ.get("LLAMA_SERVER_COMMIT")
    if commit and "unknown" in version:
        version += f", of commit {commit}"
    details = {"versions": {"llama-server": version}, "binary": _hash(_binary())}
    return Servers(request, details)


class Running:
    """A server on a port of its own; it ends with this process."""

    def __init__(self, request: Request, setting: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.listening_address = f"http://127.0.0.1:{port}"
        threads, layers = str(request["threads"]), str(request["gpu_layers"])
        command = [
            _binary(), "--model", request["target"], "--ctx-size", str(request["context"]),
            "--parallel", "1", "--port", str(port), "--cache-ram", "0", "--no-ui",
            "--n-gpu-layers", layers, "--threads", threads, "--threads-batch", threads,
            "--log-verbosity", "1",
        ]  # fmt: skip
        kinds, width = speculation(setting)
        if kinds:
            command += ["--spec-type", ",".join(kinds)]
        if width:
            command += ["--spec-draft-model", request["drafters"][0]]
            command += ["--spec-draft-n-max", str(width), "--spec-draft-ngl", layers]
            command += ["--spec-draft-threads", threads, "--spec-draft-threads-batch", threads]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        atexit.register(self._process.kill)
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} didn't start for {setting}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with DIRECT.open(self.listening_address + "/health", timeout=10) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


def _binary() -> str:
    found = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not found:
        raise RuntimeError("set LLAMA_SERVER to the path of llama-server")
    return found


def _has_gpu() -> bool:
    said = subprocess.run([_binary(), "--list-devices"], capture_output=True, text=True, check=True)
    return bool(GPU.search(said.stdout))


def _hash(binary: str) -> str:
    """SHA-256 of the program and of the libraries beside it: one version has many builds."""
    program = Path(binary).resolve()
    libraries = (f for f in program.parent.iterdir() if LIBRARY.search(f.name) and f.is_file())
    digest = hashlib.sha256()
    for file in (program, *sorted(libraries)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main([], load)
