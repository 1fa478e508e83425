"""Other programs as sides: each runs in an environment of its own and answers the same token ids.

A peer is a script that makes its environment (`SCRIPT --make FOLDER` prints its Python) and answers
requests there (`--serve`), JSON lines on stdin and stdout; benchmarks/peers/common.py has the other
end. Invariant: a peer is loaded before the first trial and asked in turn like any side; what it
reports is its own timing of its own decoding. One that doesn't answer in time is ended, with all
that it started where there are sessions, and alone on Windows.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from edgespec.bench.identity import script_hash
from edgespec.bench.record import Answer, one_line
from edgespec.errors import ConfigError, EdgespecError
from edgespec.platform import users_environment
from edgespec.platform.energy import EnergyMeter
from edgespec.sampling import SamplingParams

_N = TypeVar("_N", int, float)

PATIENCE = 3600.0
"""Seconds until a reply must have come: of a long prompt on a slow machine, or of loading."""


def peer_name(script: Path) -> str:
    """What results call the program behind a script."""
    return one_line(script.stem.replace("_", "-"))


class Unanswered(EdgespecError):
    """A request that a program said it can't answer; it is there for the next one."""


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

        Its keys: target, drafters (paths), threads, context, device and gpu_layers (where the
        target runs), stop_ids, settings (None: all).
        """
        if not script.is_file():
            raise ConfigError(f"there is no peer script {script}; benchmarks/peers/ has some")
        self.name = peer_name(script)
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
            try:
                self._process = subprocess.Popen(
                    [lines[0].strip(), str(script), "--serve"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env=users_environment(), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise EdgespecError(
                    f"{self.name} could not be started: {lines[0].strip()}: {error.strerror}"
                ) from None
        # A pipe can't be waited for with a limit everywhere; a thread can be left behind.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            hello = self.ask(request)
            settings = hello.pop("settings", None)
            if not isinstance(settings, list):
                raise EdgespecError(f"{self.name} named no settings, so it can't be asked")
        except BaseException:
            self.close()
            raise
        self.settings = [str(setting) for setting in settings]
        self.details = hello | {"script": script_hash(script)}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request and its reply; raises `Unanswered` for a refusal, and for a program that is
        gone any other EdgespecError.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._lines.get(timeout=self._patience))
            if not isinstance(reply, dict):
                raise ValueError("a reply is an object")
        except queue.Empty:
            self._kill()
            raise EdgespecError(
                f"{self.name} gave no reply within {self._patience / 60:.0f} minutes and was "
                f"ended: {self._log} may say why"
            ) from None
        except (OSError, ValueError, RecursionError):
            raise EdgespecError(
                f"{self.name} ended or made no sense: {self._log} says why"
            ) from None
        except KeyboardInterrupt:  # which doesn't reach a session of its own
            self._kill()
            raise
        if "error" in reply:
            raise Unanswered(f"{self.name} can't do this: {one_line(str(reply['error']))}")
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
            self._kill()
            self._process.wait()
        self._reader.join(10)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()

    def _kill(self) -> None:
        """End it at once, and what it started; where there are no sessions, it alone."""
        if sys.platform == "win32":
            self._process.kill()
        elif self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


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
        if joules is not None:
            joules = None if after is None or reply.get("started") else after - joules
        try:
            return _answer(self.name, reply, joules)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise EdgespecError(f"{self.name} gave a reply that holds no answer") from None


def _answer(side: str, reply: dict[str, Any], joules: float | None) -> Answer:
    return Answer(
        side=side,
        tokens=[int(token) for token in reply["tokens"]],
        text=str(reply.get("text", "")),
        finish_reason=str(reply.get("finish_reason", "")),
        ttft_seconds=_number(reply, "ttft_seconds", float),
        decode_seconds=_number(reply, "decode_seconds", float),
        arrivals=[(float(at), int(n)) for at, n in reply.get("arrivals", [])],
        first_tokens=int(reply.get("first_tokens", 1)),
        rounds=_number(reply, "rounds", int),
        drafted=_number(reply, "drafted", int),
        accepted=_number(reply, "accepted", int),
        joules=joules,
    )


def _number(reply: dict[str, Any], key: str, kind: Callable[[Any], _N]) -> _N | None:
    return None if reply.get(key) is None else kind(reply[key])
