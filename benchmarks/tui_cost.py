"""What the chat's screen costs: seconds until one can type, tokens/s with the figures panel open
against `edgespec run`, and how fast the screen answers a key meanwhile.

    python benchmarks/tui_cost.py --target MODEL.gguf [--tokens 2000] [--turns 3] [--starts 5]
        [options of chat]

Both sides answer the same prompt greedily, in turns, each in a process of its own; the chat runs on
a pseudo-terminal of 120 by 40. Needs a system that has those (not Windows). Modules
are compiled before anything is timed, as they are where edgespec is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path

PROMPT = "Write a long story about a lighthouse keeper, with many chapters."
KEYS = "¤§¶¢£¥ß¬µ±"  # hardly what a story holds
EDGESPEC = [sys.executable, "-m", "edgespec.cli"]


def plain(options: list[str], tokens: int) -> float:
    """Tokens per second of `edgespec run`, its output thrown away as it streams."""
    command = [
        *EDGESPEC,
        "run",
        PROMPT,
        "--max-tokens",
        str(tokens),
        "--temperature",
        "0",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"(\d+) tokens · ([\d.]+) tok/s", done.stderr)
    assert found is not None, done.stderr
    print(f"  run:  {found[1]} tokens, {found[2]} tok/s", flush=True)
    return float(found[2])


class Screen:
    """The chat on a pseudo-terminal."""

    def __init__(self, options: list[str], tokens: int, folder: Path) -> None:
        self.folder = folder
        (folder / "settings.toml").write_text("panel = true\n", encoding="utf-8")
        self._end, other = pty.openpty()
        # Before the chat has it, the terminal isn't to echo what is typed, nor to take Ctrl+Q.
        modes = termios.tcgetattr(other)
        modes[0] &= ~termios.IXON
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(other, termios.TCSANOW, modes)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = os.environ | {
            "TERM": "xterm-256color", "LANG": "C.UTF-8", "EDGESPEC_DATA": str(folder),
            "EDGESPEC_CONFIG": str(folder),
        }  # fmt: skip
        command = [*EDGESPEC, "chat", "--max-tokens", str(tokens), "--temperature", "0", *options]
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment
        )
        os.close(other)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read(self, seconds: float) -> bytes:
        """What is drawn within so many seconds, or as soon as something is."""
        if select.select([self._end], [], [], seconds)[0]:
            return os.read(self._end, 1 << 16)
        return b""

    def wait_for(self, text: str, seconds: float) -> float:
        """Seconds until a text is drawn."""
        began, drawn = time.perf_counter(), b""
        while text.encode() not in drawn:
            if time.perf_counter() - began > seconds:
                raise SystemExit(f"{text!r} didn't appear on the screen")
            drawn += self.read(0.05)
        return time.perf_counter() - began

    def leave(self) -> None:
        """Press Ctrl+Q and wait for the end."""
        self.type("\x11")
        with suppress(OSError):  # the terminal of a program that has ended can't be read
            while self.process.poll() is None:
                self.read(0.05)

    def saved(self) -> dict[str, object] | None:
        """The figures of the answer that was saved last."""
        for file in (self.folder / "conversations").glob("*.jsonl"):
            for line in reversed(file.read_text(encoding="utf-8").splitlines()):
                figures = json.loads(line).get("figures")
                if figures:
                    return dict(figures)
        return None


def start(options: list[str]) -> float:
    """Seconds from the program's start until a key that was typed is on the screen."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        screen = Screen(options, 1, Path(folder))
        screen.wait_for("\x1b[?1049h", 30)  # the chat has the terminal
        screen.type(KEYS[0])
        screen.wait_for(KEYS[0], 30)
        spent = time.perf_counter() - began
        screen.leave()
        return spent


def on_screen(options: list[str], tokens: int, latencies: list[float]) -> float:
    """Tokens per second in the chat with its panel open; adds seconds from key to picture."""
    with tempfile.TemporaryDirectory() as folder:
        screen = Screen(options, tokens, Path(folder))
        screen.wait_for("drafters:", 120)
        screen.type(PROMPT + "\r")
        began, pressed = time.perf_counter(), 0
        while (figures := screen.saved()) is None:
            until = time.perf_counter() + 0.5
            while time.perf_counter() < until:
                screen.read(0.05)
            if time.perf_counter() - began > 2:
                key = KEYS[pressed % len(KEYS)]
                screen.type(key)
                latencies.append(screen.wait_for(key, 5))
                pressed += 1
        screen.leave()
        speed = float(str(figures["tokens_per_second"]))
        print(f"  chat: {figures['tokens']} tokens, {speed:.1f} tok/s", flush=True)
        return speed


def main() -> int:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--starts", type=int, default=5)
    args, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        return measure(args, options)


def measure(args: argparse.Namespace, options: list[str]) -> int:
    """The same, where compiled modules can be kept."""
    if args.starts:
        start(options)  # compiles them
    starts = [start(options) for _ in range(args.starts)]
    if starts:
        print(
            f"start to a typed key: median {statistics.median(starts):.2f} s, "
            f"most {max(starts):.2f} s, of {len(starts)}"
        )
    latencies: list[float] = []
    ratios = []
    for _ in range(args.turns):
        run = plain(options, args.tokens)
        ratios.append(on_screen(options, args.tokens, latencies) / run)
    if not ratios:
        return 0
    latencies.sort()
    print(
        f"chat / run: {statistics.median(ratios):.3f} (of {', '.join(f'{r:.3f}' for r in ratios)})"
    )
    print(
        f"key to picture: median {1000 * statistics.median(latencies):.0f} ms, "
        f"95% within {1000 * latencies[int(0.95 * (len(latencies) - 1))]:.0f} ms, "
        f"most {1000 * latencies[-1]:.0f} ms, of {len(latencies)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
