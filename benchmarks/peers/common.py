"""The peers' end of `edgespec bench --peer SCRIPT`: environments, and requests in JSON lines.

A script calls `main(requirements, load)`. `SCRIPT --make FOLDER` makes a virtual environment there,
if it isn't there yet, and prints its Python; `SCRIPT --serve`, run by that Python, reads requests.
The first is {target, drafters, threads, context, device, gpu_layers, stop_ids, settings}; `load`
gets it and gives back the peer. Then each {setting, ids, max_tokens} is answered greedily, from an
empty cache, or with {error}, where this one can't be answered and the next one may be.

This file runs in other programs' environments: it imports the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, cast

Answer = dict[str, Any]
Request = dict[str, Any]


class Peer(Protocol):
    """A loaded program.

    `settings` are the names that requests may use, `details` what else is worth keeping.
    """

    settings: Sequence[str]
    details: dict[str, Any]

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """Tokens without an end token, finish_reason, ttft_seconds, decode_seconds, and more.

        `started` is true where a process was started for it, whose energy is no answer's.
        """
        ...


@dataclass
class Timed:
    """Collects tokens as they come and takes the time of each."""

    stop_ids: frozenset[int]
    began: float = field(default_factory=perf_counter)
    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    newest: float = 0.0
    ended: bool = False

    def add(self, tokens: Iterable[int], *, joins: bool = False) -> bool:
        """Take what came; False once the text has ended.

        With `joins` it is of the same pass as what came before, and so arrives with that.
        """
        new = 0
        for token in tokens:
            if token in self.stop_ids:
                self.ended = True
                break
            self.tokens.append(int(token))
            new += 1
        self.newest = round(perf_counter() - self.began, 6)
        at = self.newest
        if joins:
            at, before = self.arrivals.pop()
            new += before
        self.arrivals.append((at, new))
        return not self.ended

    def answer(self, **more: Any) -> Answer:
        """The whole; decoding is what came behind the first arrival, to the newest token."""
        first = self.arrivals[0][0] if self.arrivals else None
        last = self.newest if len(self.arrivals) > 1 else first
        return {
            "tokens": self.tokens,
            "finish_reason": "end" if self.ended else "length",
            "ttft_seconds": first,
            "decode_seconds": None if first is None or last is None else last - first,
            "arrivals": self.arrivals,
            "first_tokens": max(1, self.arrivals[0][1]) if self.arrivals else 1,
            **more,
        }


def main(requirements: Sequence[str], load: Callable[[Request], Peer]) -> None:
    """A peer script's whole program."""
    parser = argparse.ArgumentParser()
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--make", metavar="FOLDER", type=Path)
    group.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.make:
        # A pipe's encoding is the system's; whoever reads this one expects UTF-8.
        cast(TextIOWrapper, sys.stdout).reconfigure(encoding="utf-8")
        print(make(args.make / Path(sys.argv[0]).stem, requirements), flush=True)
    else:
        serve(load)


def make(folder: Path, requirements: Sequence[str]) -> Path:
    """The Python of an environment with these packages, made if it isn't there."""
    python = folder.resolve() / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done, wanted = folder / "edgespec-peer.json", sorted(requirements)
    try:
        # The Python that it was made with may be gone, and then its link leads nowhere.
        if json.loads(done.read_text("utf-8")) == wanted and python.exists():
            return python
    except (OSError, ValueError):
        pass
    venv.create(folder, with_pip=True, clear=done.is_file())
    if wanted:
        command = [str(python), "-m", "pip", "install", "--quiet", *wanted]
        subprocess.run(command, check=True, stdout=sys.stderr)
    done.write_text(json.dumps(wanted), "utf-8")
    return python


def versions(*packages: str) -> dict[str, str]:
    """What of these is installed here."""
    return {package: version(package) for package in packages}


def chosen(request: Request, settings: Sequence[str]) -> list[str]:
    """Those of a peer's settings that were asked for; all where none were named."""
    wanted = request.get("settings")
    if not wanted:
        return list(settings)
    unknown = [name for name in wanted if name not in settings]
    if unknown:
        raise ValueError(f"no setting {unknown[0]!r}; there are {', '.join(settings)}")
    return list(wanted)


def layers_on_gpu(request: Request, has_gpu: Callable[[], bool] = lambda: False) -> int:
    """How many layers go to the GPU: as many as edgespec's target has there.

    `has_gpu` says whether this program can use one. Raises ValueError where edgespec's target runs
    on what it can't use.
    """
    device = str(request["device"])
    if not device.startswith("CPU") and not has_gpu():
        raise ValueError(
            f"this peer runs on the CPU alone, and edgespec's target on {device}: --device cpu has "
            "both there"
        )
    return int(request["gpu_layers"])


def serve(load: Callable[[Request], Peer]) -> None:
    """Answer requests until stdin ends."""
    # What a library prints must not get among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(data: dict[str, Any]) -> None:
        replies.write(json.dumps(data) + "\n")
        replies.flush()

    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if peer is None:
                peer = load(request)
                reply({"settings": list(peer.settings), **peer.details})
            else:
                reply(peer.answer(request["setting"], request["ids"], request["max_tokens"]))
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
