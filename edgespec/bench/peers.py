"""Other programs as sides: each runs in an environment of its own and answers the same token ids.

A peer is a script that makes its environment (`SCRIPT --make FOLDER` prints its Python) and answers
requests there (`--serve`), JSON lines on stdin and stdout; benchmarks/peers/common.py has the other
end. Invariant: a peer is loaded before the first trial and asked in turn like any side; what it
reports is its own timing of its own decoding. One that doesn't answer in time is ended.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.bench.record import Answer
from edgespec.errors import ConfigError, EdgespecError
from edgespec.platform import EnergyMeter, users_environment
from edgespec.sampling import SamplingParams

PATIENCE = 3600.0
"""Seconds until a reply must have come: of a long prompt on a slow machine, or of loading."""


class Peer:
    """A running peer process."""

    def __init__(
        self,
        script: Path,
        environments: Path,
        log: Path,
        request: dict[str, Any],
        *,
        patience: float = PATIENCE,
    ) -> None:
        """Make the environment where needed, start, load; `request` says what.

        Its keys: target, drafters (paths), threads, context, stop_ids, settings (None: all).
        """
        if not script.is_file():
            raise ConfigError(f"there is no peer script {script}; benchmarks/peers/ has some")
        self.name = script.stem.replace("_", "-")
        self._log = log
        self._patience = patience
        self._lines: queue.Queue[bytes] = queue.Queue()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            made = subprocess.run(
                [sys.executable, str(script), "--make", str(environments)],
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            lines = made.stdout.decode("utf-8", "replace").split("\n")
            if made.returncode or not lines[0].strip():
                raise ConfigError(f"{self.name} could not be installed: {log} says why")
            self._process = subprocess.Popen(
                [lines[0].strip(), str(script), "--serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=users_environment(),
            )  # fmt: skip
        # A pipe can't be waited for with a limit everywhere; a thread can be left behind.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            hello = self.ask(request)
        except BaseException:
            self.close()
            raise
        self.settings = [str(setting) for setting in hello["settings"]]
        self.details = {key: hello[key] for key in hello if key != "settings"}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request and its reply."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._lines.get(timeout=self._patience))
        except queue.Empty:
            self._process.kill()
            raise EdgespecError(
                f"{self.name} gave no reply within {self._patience / 60:.0f} minutes and was "
                f"ended: {self._log} may say why"
            ) from None
        except (OSError, ValueError):
            raise EdgespecError(
                f"{self.name} ended or made no sense: {self._log} says why"
            ) from None
        if "error" in reply:
            raise EdgespecError(f"{self.name} can't do this: {reply['error']}")
        return reply

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")  # it ended

    def close(self) -> None:
        """End it; safe to call twice."""
        with suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()


class PeerSide:
    """A peer under one of its settings."""

    def __init__(self, peer: Peer, setting: str) -> None:
        self.name = f"{peer.name}/{setting}"
        self._peer = peer
        self._setting = setting
        self._meter = EnergyMeter()

    def answer(self, ids: Sequence[int], max_tokens: int, sampling: SamplingParams) -> Answer:
        """See `Side.answer`; greedy alone."""
        if sampling.temperature:
            raise ConfigError("peers are measured greedily: leave --temperature out")
        joules = self._meter.joules()
        reply = self._peer.ask(
            {"setting": self._setting, "ids": list(ids), "max_tokens": max_tokens}
        )
        after = self._meter.joules()
        return Answer(
            side=self.name,
            tokens=list(reply["tokens"]),
            text=str(reply.get("text", "")),
            finish_reason=str(reply.get("finish_reason", "")),
            ttft_seconds=reply.get("ttft_seconds"),
            decode_seconds=reply.get("decode_seconds"),
            arrivals=[(float(at), int(n)) for at, n in reply.get("arrivals", [])],
            first_tokens=int(reply.get("first_tokens", 1)),
            rounds=reply.get("rounds"),
            drafted=reply.get("drafted"),
            accepted=reply.get("accepted"),
            joules=None
            if joules is None or after is None or reply.get("started")
            else after - joules,
        )
