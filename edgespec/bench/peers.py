"""Other programs as sides: each runs in an environment of its own and answers the same token ids.

A peer is a script that makes its environment (`SCRIPT --make FOLDER` prints its Python) and answers
requests there (`--serve`), JSON lines on stdin and stdout; benchmarks/peers/common.py has the other
end. Invariant: a peer is loaded before the first trial and asked in turn like any side; what it
reports is its own timing of its own decoding. One that doesn't answer in time is ended, with all
that it started where there are sessions, and alone on Windows. One that is gone is started anew
when it is asked again, and is the same program then, or no more is asked of it.
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
from typing import IO, Any, TypeVar

from edgespec.bench.identity import script_hash
from edgespec.bench.record import Answer, as_seconds, one_line
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


WARM_UP_TOKENS = 8
"""Tokens read and written, unmeasured, by a setting of a program that was started anew."""


class Unanswered(EdgespecError):
    """A request that a program said it can't answer; it is there for the next one."""


class Gone(EdgespecError):
    """A program that ended, made no sense or hung while it was asked; `reason` says which.

    One that hung may do so again for as long.
    """

    def __init__(self, peer: str, reason: str, log: Path, *, hung: bool) -> None:
        super().__init__(f"{peer} {reason}: {log} says why")
        self.hung = hung
        self.peer, self.reason = peer, f"{peer} {reason} ({log.name} says why)"


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
        self.starts = 0
        self._script = script
        self._request = request
        self._log = log
        self._patience = patience
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            made = subprocess.run(
                [sys.executable, str(script), "--make", str(environments)],
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._python = made.stdout.decode("utf-8", "replace").split("\n")[0].strip()
        if made.returncode or not self._python:
            raise ConfigError(f"{self.name} could not be installed: {log} says why")
        self.settings, self.details = self._start()

    def _start(self) -> tuple[list[str], dict[str, Any]]:
        """Start and load; what it says of itself."""
        with self._log.open("ab") as errors:
            try:
                self._process = subprocess.Popen(
                    [self._python, str(self._script), "--serve"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env=users_environment(), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise EdgespecError(
                    f"{self.name} could not be started: {self._python}: {error.strerror}"
                ) from None
        self.starts += 1
        self._gone = False
        self._lines: queue.Queue[bytes] = queue.Queue()
        # A pipe can't be waited for with a limit everywhere; a thread can be left behind.
        self._reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        try:
            hello = self.ask(self._request)
            settings = hello.pop("settings", None)
            if not isinstance(settings, list):
                raise EdgespecError(f"{self.name} named no settings, so it can't be asked")
        except BaseException:
            self.close()
            raise
        details = hello | {"script": script_hash(self._script)}
        return [str(setting) for setting in settings], details

    def be_there(self) -> None:
        """Start it anew where it is gone; raises EdgespecError where it isn't the same any more."""
        if not self._gone:
            return
        try:
            now = self._start()
        except EdgespecError as error:
            raise EdgespecError(f"{self.name} can't be started again: {error}") from None
        if now != (self.settings, self.details):
            raise EdgespecError(
                f"{self.name} isn't what it was when it is started again: choose another --out"
            )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request and its reply; raises `Unanswered` for a refusal, and `Gone`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._lines.get(timeout=self._patience))
            if not isinstance(reply, dict):
                raise ValueError("a reply is an object")
        except queue.Empty:
            minutes = f"{self._patience / 60:.0f} minutes"
            reason = f"gave no reply within {minutes} and was ended"
            raise self._lost(reason, hung=True) from None
        except (OSError, ValueError, RecursionError):
            raise self._lost("ended or made no sense", hung=False) from None
        except KeyboardInterrupt:  # which doesn't reach a session of its own
            self._kill()
            raise
        if "error" in reply:
            raise Unanswered(f"{self.name} can't do this: {one_line(str(reply['error']))}")
        return reply

    def _lost(self, reason: str, *, hung: bool) -> Gone:
        self._gone = True
        self._kill()
        self.close()
        return Gone(self.name, reason, self._log, hung=hung)

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
        """End it at once, and what it started, which may be there without it; where there are no
        sessions, it alone.
        """
        if sys.platform == "win32":
            self._process.kill()
        elif self._process.returncode is None:  # until it is waited for, its number is its own
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _read(replies: IO[bytes], lines: queue.Queue[bytes]) -> None:
    for line in replies:
        lines.put(line)
    lines.put(b"")  # it ended


class PeerSide:
    """A peer under one of its settings."""

    def __init__(self, peer: Peer, setting: str) -> None:
        self.name = f"{peer.name}/{setting}"
        self._peer = peer
        self._setting = setting
        self._meter = EnergyMeter()
        self._starts = peer.starts

    def answer(self, ids: Sequence[int], max_tokens: int, sampling: SamplingParams) -> Answer:
        """See `Side.answer`; greedy alone. A program that ends is asked once more: it may have been
        gone before, and only what ends it twice is held against a setting.
        """
        if sampling.temperature:
            raise ConfigError("peers are measured greedily: leave --temperature out")
        try:
            return self._answered(ids, max_tokens)
        except Gone as gone:
            if gone.hung:
                raise
        return self._answered(ids, max_tokens)

    def _answered(self, ids: Sequence[int], max_tokens: int) -> Answer:
        self._peer.be_there()
        if self._starts != self._peer.starts:
            with suppress(Unanswered):
                self._ask(ids[:WARM_UP_TOKENS][::-1], WARM_UP_TOKENS)
            self._starts = self._peer.starts
        joules = self._meter.joules()
        reply = self._ask(ids, max_tokens)
        after = self._meter.joules()
        if joules is not None:
            joules = None if after is None or reply.get("started") else after - joules
        try:
            return _answer(self.name, reply, joules)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise Unanswered(f"{self.name} gave a reply that holds no answer") from None

    def _ask(self, ids: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return self._peer.ask(
            {"setting": self._setting, "ids": list(ids), "max_tokens": max_tokens}
        )


def _answer(side: str, reply: dict[str, Any], joules: float | None) -> Answer:
    """Raises ValueError, or what else a reply of another form leads to."""
    return Answer(
        side=side,
        tokens=[_counted(token) for token in reply["tokens"]],
        text=str(reply.get("text", "")),
        finish_reason=str(reply.get("finish_reason", "")),
        ttft_seconds=_told(reply, "ttft_seconds", as_seconds),
        decode_seconds=_told(reply, "decode_seconds", as_seconds),
        arrivals=[(as_seconds(at), _counted(n)) for at, n in reply.get("arrivals", [])],
        first_tokens=_counted(reply.get("first_tokens", 1)),
        rounds=_told(reply, "rounds", _counted),
        drafted=_told(reply, "drafted", _counted),
        accepted=_told(reply, "accepted", _counted),
        joules=joules,
    )


def _told(reply: dict[str, Any], key: str, kind: Callable[[Any], _N]) -> _N | None:
    return None if reply.get(key) is None else kind(reply[key])


def _counted(value: Any) -> int:
    count = int(value)
    if count < 0:
        raise ValueError("neither a count nor a token")
    return count
