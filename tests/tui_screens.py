"""Screens with made-up stores and a fixed time, for tests, snapshots and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from textual.app import App, ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from edgespec.registry import load_registry
from edgespec.tui.history import History
from edgespec.tui.messages import DownloadEnded, Downloading, Event, Turn
from edgespec.tui.pairs import PairInfo, list_pairs
from edgespec.tui.themes import DARK, LIGHT

NOW = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)
NASTY = "[/] [b + [red]x \x1b]0;evil\x07 \x9b31m 日本語 👩‍👩‍👧 e\u0301 العربية"


class Host(App[Any]):
    """An app with nothing but the screen; `answer` is what it was dismissed with."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, make: Callable[[], Screen[Any]], theme: str = DARK.name) -> None:
        super().__init__()
        self._make = make
        self._wanted_theme = theme
        self.answer: Any = "nothing yet"

    def compose(self) -> ComposeResult:
        yield Static(Content("The chat lies below.\n" * 60))

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = self._wanted_theme
        self.push_screen(self._make(), self._answered)

    def _answered(self, answer: Any) -> None:
        self.answer = answer

    def tell(self, *events: Event) -> None:
        """As the chat does with the bridge's events."""
        for event in events:
            handle = getattr(self.screen, "handle", None)
            if handle is not None:
                handle(event)


class FakeDownloads:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def download(self, pair: str) -> None:
        self.asked.append(f"download {pair}")

    def cancel_download(self, pair: str) -> None:
        self.asked.append(f"cancel {pair}")


class Ticks:
    """A clock that says what it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def some_pairs(files: tuple[str, ...] = ()) -> list[PairInfo]:
    """The registry's pairs on a machine of 8 GB that has one of them."""
    return list_pairs(
        load_registry(),
        files,
        8_000_000_000,
        here=lambda spec: spec.name == "smollm2-135m",
    )


def some_history(folder: Path) -> History:
    """Conversations of some days, one with a damaged file, one with a nasty title."""
    ages = {
        "What is speculative decoding, and when does it pay?": timedelta(minutes=12),
        "Merge two sorted lists in Python": timedelta(hours=3),
        NASTY: timedelta(hours=20),
        "A haiku about the sea": timedelta(days=3),
        "Explain the borrow checker to a Python programmer who has never met lifetimes":
            timedelta(days=40),
        "Old plans": timedelta(days=400),
    }  # fmt: skip
    for number, (title, age) in enumerate(ages.items()):
        at = (NOW - age).timestamp()
        history = History(folder, clock=lambda at=at: at)
        writer = history.begin()
        writer.rename(title)
        for index in range(number + 1):
            pair = "smollm2" if number % 2 == 0 else "qwen2.5-coder-1.5b"
            writer.put(index, Turn(f"question {index}", "An answer.", "end", pair=pair))
        writer.close()
    damaged = folder / "20260101-000000-damaged.jsonl"
    damaged.write_bytes(b"\x00" * 500)
    os.utime(damaged, (long_ago := (NOW - timedelta(days=332)).timestamp(), long_ago))
    return History(folder, clock=NOW.timestamp)


def steps(model: str, *done: int, total: int = 531_000_000) -> list[Downloading]:
    """What the bridge tells of a download."""
    return [Downloading("smollm2-1.7b", model, count, total) for count in done]


def ended(error: str = "", *, cancelled: bool = False) -> DownloadEnded:
    """How it ends."""
    return DownloadEnded("smollm2-1.7b", error, cancelled)
