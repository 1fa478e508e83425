"""The picker, the download, the history list and the settings form: by key, by mouse, as pictures.

Pictures are compared with those in `__snapshots__`; `pytest --snapshot-update` takes them anew, and
whoever does looks at them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList, TextArea
from tiny_gguf import write_tiny
from tui_screens import (
    NASTY,
    NOW,
    FakeDownloads,
    Host,
    Ticks,
    ended,
    some_history,
    some_pairs,
    steps,
)

from edgespec.errors import ConfigError
from edgespec.tui.downloads import Meter, duration
from edgespec.tui.history import History, HistoryError, Summary
from edgespec.tui.messages import Choice, Downloading, Figures, Finished, Settings, Turn
from edgespec.tui.screens import pairs
from edgespec.tui.screens.ask import AskText, Confirm
from edgespec.tui.screens.dates import when
from edgespec.tui.screens.download import DownloadScreen
from edgespec.tui.screens.history import HistoryList
from edgespec.tui.screens.pairs import PairPicker
from edgespec.tui.screens.settings import SettingsScreen
from edgespec.tui.screens.sheet import Cell, row
from edgespec.tui.settings import FIELDS, PRESETS, with_preset
from edgespec.tui.settings_file import SettingsFile
from edgespec.tui.themes import DARK, LIGHT
from edgespec.tui.writer import NotSaved

Play = Callable[[Pilot[Any]], Awaitable[None]]
SIZES = {"narrow": (60, 20), "usual": (80, 24), "wide": (200, 60)}


def run(app: Host, play: Play, size: tuple[int, int] = (80, 24)) -> Host:
    """Show the screen and play; returns the app with its answer."""

    async def all_of_it() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(pilot)
            await play(pilot)
            await pilot.pause()

    asyncio.run(all_of_it())
    return app


async def settle(pilot: Pilot[Any]) -> None:
    """Wait for what the screen reads when it opens, and keep cursors from blinking."""
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    for widget in (*pilot.app.screen.query(Input), *pilot.app.screen.query(TextArea)):
        widget.cursor_blink = False
    await pilot.pause()


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Wait for what a thread brings about."""
    for _ in range(500):
        await pilot.pause()
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came: the screen shows\n{text_of(pilot.app)}")


async def shows(pilot: Pilot[Any], text: str) -> None:
    await until(pilot, lambda: text in text_of(pilot.app))


def text_of(app: App[Any]) -> str:
    """What the screen shows."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in lines)


# --------------------------------------------------------------------------------------- the picker


def picker(downloads: FakeDownloads | None = None, **more: Any) -> PairPicker:
    more.setdefault("source", some_pairs)
    return PairPicker(
        Choice("smollm2"), downloads or FakeDownloads(), memory_bytes=8_000_000_000, **more
    )


def test_a_pair_on_disk_is_chosen_at_once() -> None:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")

    assert run(Host(picker), play).answer == Choice("smollm2")


def test_escape_chooses_nothing() -> None:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "escape")

    assert run(Host(picker), play).answer is None


@pytest.mark.parametrize("found", [True, False])
def test_pairs_found_too_late_do_nothing(found: bool) -> None:
    """Their thread may hand them over when the picker is left and not gone yet."""
    downloads, go = FakeDownloads(), threading.Event()

    def source() -> list[Any]:
        go.wait(20)
        return []

    wanted = Choice("smollm2-1.7b")
    app = Host(lambda: picker(downloads, source=source, wanted=wanted))

    async def play() -> None:
        async with app.run_test(notifications=True) as pilot:
            await pilot.pause()
            screen = app.screen
            assert isinstance(screen, PairPicker)
            screen.dismiss(None)
            if found:
                screen._fill(some_pairs(), wanted)
            else:
                screen._fail("/x/models.toml, line 3: no.")
            go.set()
            await until(pilot, lambda: app.answer is None)
            await pilot.pause()
            assert len(app.screen_stack) == 1 and downloads.asked == []
            assert screen._pairs == [] and screen._rows.empty == "Looking for pairs"

    asyncio.run(play())


def test_a_click_downloads_and_then_chooses() -> None:
    downloads = FakeDownloads()

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.click(OptionList, offset=(8, 1))
        await pilot.pause()
        assert isinstance(app.screen, DownloadScreen)
        assert downloads.asked == ["download smollm2-1.7b"]
        app.tell(*steps("smollm2-1.7b", 1, 2), ended())

    assert run(Host(lambda: picker(downloads)), play).answer == Choice("smollm2-1.7b")


def test_a_download_that_is_stopped_leads_back_to_the_list() -> None:
    downloads = FakeDownloads()

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("down", "enter")
        await pilot.pause()
        await pilot.press("escape")
        assert downloads.asked[-1] == "cancel smollm2-1.7b"
        assert isinstance(app.screen, DownloadScreen), "it ends when the bridge says so"
        app.tell(ended(cancelled=True))
        await until(pilot, lambda: isinstance(app.screen, PairPicker))
        await pilot.press("escape")

    assert run(Host(lambda: picker(downloads)), play).answer is None


@pytest.mark.parametrize(("keys", "chosen"), [(["y"], True), (["n"], False), (["enter"], False)])
def test_what_is_too_big_is_asked_about(keys: list[str], chosen: bool) -> None:
    def source() -> list[Any]:
        return [info for info in some_pairs() if info.name == "qwen3-8b"]

    downloads = FakeDownloads()

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Confirm)
        assert "It needs about 8.3 GB" in text_of(pilot.app)
        await pilot.press(*keys)
        await pilot.pause()
        assert isinstance(pilot.app.screen, DownloadScreen) == chosen

    run(Host(lambda: picker(downloads, source=source)), play)
    assert bool(downloads.asked) == chosen


def test_a_file_is_added_shown_and_removed(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "[red]mine.gguf")
    files = SettingsFile(tmp_path / "settings.toml")

    def make() -> PairPicker:
        return picker(files=files, source=lambda: some_pairs(files.files()))

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("a")
        await pilot.pause()
        assert isinstance(app.screen, AskText)
        app.screen.query_one(Input).value = str(tmp_path / "absent.gguf")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, AskText), "asked again, with what was written"
        assert app.screen.query_one(Input).value.endswith("absent.gguf")
        app.screen.query_one(Input).value = str(model)
        await pilot.press("enter")
        await shows(pilot, "[red]mine.gguf")
        assert files.files() == (str(model),)
        await pilot.press("enter")

    assert run(Host(make), play).answer == Choice(target=str(model))

    async def remove(pilot: Pilot[Any]) -> None:
        await pilot.press("up", "x")
        await until(pilot, lambda: "mine.gguf" not in text_of(pilot.app))

    run(Host(make), remove)
    assert files.files() == ()
    assert model.exists()


def test_the_screen_goes_on_while_a_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SettingsFile(tmp_path / "settings.toml")
    go, looked = threading.Event(), threading.Event()

    def check(text: str) -> str:
        looked.set()
        assert go.wait(20), "the screen waits for the disk"
        return text

    monkeypatch.setattr(pairs, "check_file", check)

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("a")
        await pilot.pause()
        pilot.app.screen.query_one(Input).value = "/far/away"
        await pilot.press("enter")
        await until(pilot, looked.is_set)
        go.set()
        await until(pilot, lambda: files.files() == ("/far/away",))

    run(Host(lambda: picker(files=files)), play)


def test_a_file_that_vanished_is_told(tmp_path: Path) -> None:
    def source() -> list[Any]:
        return some_pairs((str(tmp_path / "gone [/].gguf"),))

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("up", "enter")
        await pilot.pause()
        shown = text_of(pilot.app)
        assert "can't be loaded" in shown
        assert "gone [/].gguf" in shown
        assert isinstance(pilot.app.screen, PairPicker)

    run(Host(lambda: picker(source=source)), play, (200, 60))


def test_a_damaged_registry_is_told() -> None:
    def source() -> list[Any]:
        raise ConfigError("/x/models.toml, line 3: [b + is not a known key.")

    async def play(pilot: Pilot[Any]) -> None:
        assert "line 3: [b + is not a known key" in text_of(pilot.app)
        assert "Looking for pairs" not in text_of(pilot.app)
        await pilot.press("enter", "escape")

    assert run(Host(lambda: picker(source=source)), play).answer is None


# ------------------------------------------------------------------------------------ the download


def download(clock: Ticks, downloads: FakeDownloads | None = None) -> DownloadScreen:
    [info] = [info for info in some_pairs() if info.name == "smollm2-1.7b"]
    return DownloadScreen(info, downloads or FakeDownloads(), clock)


def test_a_download_shows_how_far_and_how_fast_it_is() -> None:
    clock = Ticks()

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        assert "Looking for it" in text_of(app)
        for event in steps("smollm2-1.7b", 0, 100_000_000, 200_000_000, total=1_060_000_000):
            app.tell(event)
            clock.now += 2
        app.tell(Downloading("another", "other", 5, 6))
        await pilot.pause()
        assert "200 MB of 1.0 GB · 50 MB/s · 17 s left" in text_of(app).replace("1.1 GB", "1.0 GB")
        assert "19%" in text_of(app)
        app.tell(*steps("smollm2-1.7b", 10, total=1_060_000_000))
        await pilot.pause()
        assert "Checking what came" in text_of(app)

    run(Host(lambda: download(clock)), play)


def test_a_download_that_failed_can_be_tried_again() -> None:
    downloads = FakeDownloads()

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("r")
        assert len(downloads.asked) == 1, "while it runs there is nothing to try again"
        app.tell(ended("Can't reach [/] the hub."))
        await pilot.pause()
        assert "Can't reach [/] the hub." in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert downloads.asked == ["download smollm2-1.7b"] * 2
        app.tell(ended("No."))
        await pilot.press("escape")

    assert run(Host(lambda: download(Ticks(), downloads)), play).answer is False


def test_who_stopped_a_download_neednt_wait_for_its_end() -> None:
    downloads = FakeDownloads()

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("escape")
        app.tell(*steps("smollm2-1.7b", 5))  # what was on its way
        await pilot.pause()
        assert "Stopping" in text_of(app) and "Close" in text_of(app)
        assert app.answer == "nothing yet"
        await pilot.press("escape")

    assert run(Host(lambda: download(Ticks(), downloads)), play).answer is False
    assert downloads.asked == ["download smollm2-1.7b", "cancel smollm2-1.7b"]


def test_speeds() -> None:
    meter = Meter()

    def take(model: str, done: int, now: float, total: int | None = 1000) -> Any:
        return meter.take(Downloading("p", model, done, total), now)

    assert take("a", 0, 0.0).bytes_per_second is None
    assert take("a", 100, 0.1).bytes_per_second is None, "too early to say"
    assert take("a", 200, 1.0).bytes_per_second == 200
    assert take("a", 200, 9.0).bytes_per_second is not None
    stalled = take("a", 200, 15.0)
    assert stalled.bytes_per_second == 0
    assert stalled.seconds_left is None
    assert stalled.line == "200 bytes of 1.0 kB"
    unknown = take("b", 7, 16.0, None)
    assert (unknown.share, unknown.again, unknown.line) == (None, False, "7 bytes")
    assert take("b", 3, 17.0).again
    assert take("b", 5000, 18.0).share == 1
    assert [duration(s) for s in (0.4, 59, 61, 3599, 4800)] == [
        "0 s", "59 s", "1 min", "1 h 0 min", "1 h 20 min",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- the history


def history_list(history: History, folder: Path | None = None) -> HistoryList:
    return HistoryList(history, now=lambda: NOW, folder=folder)


def test_a_conversation_is_resumed(tmp_path: Path) -> None:
    history = some_history(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "enter")

    answer = run(Host(lambda: history_list(history)), play).answer
    assert history.read(answer).mark.title == "Merge two sorted lists in Python"  # type: ignore[union-attr]


def test_titles_are_searched(tmp_path: Path) -> None:
    history = some_history(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("slash", *"PYTHON lists")
        await pilot.pause()
        shown = text_of(app)
        assert "Merge two" in shown
        assert "borrow checker" not in shown
        await pilot.press(*"zzz")
        await pilot.pause()
        assert "No title holds these words." in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "Old plans" in text_of(app)
        await pilot.press("slash", *"old", "enter", "enter")

    answer = run(Host(lambda: history_list(history)), play).answer
    assert history.read(answer).mark.title == "Old plans"  # type: ignore[union-attr]


def test_a_conversation_is_renamed_and_deleted(tmp_path: Path) -> None:
    history = some_history(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("r")
        await pilot.pause()
        app.screen.query_one(Input).value = "A better [/] title"
        await pilot.press("enter")
        await shows(pilot, "A better [/] title")
        await pilot.press("d")
        await pilot.pause()
        assert "Delete “A better [/] title”" in text_of(app)
        await pilot.press("escape")
        await settle(pilot)
        assert "A better" in text_of(app)
        await pilot.press("d")
        await pilot.pause()
        await pilot.click("#yes")
        await until(pilot, lambda: "A better" not in text_of(app))

    run(Host(lambda: history_list(history)), play)
    assert len(history.list()) == 6


def test_what_another_window_has_is_told(tmp_path: Path) -> None:
    history, other = some_history(tmp_path), History(tmp_path)
    opened = other.resume(history.list()[0].id)

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("d")
        await pilot.pause()
        await pilot.press("y")
        await shows(pilot, "This conversation is open")

    run(Host(lambda: history_list(history)), play)
    assert opened.writer.path.exists()


def test_a_conversation_is_exported(tmp_path: Path) -> None:
    history = some_history(tmp_path / "history")
    there = tmp_path / "What-is-speculative-decoding-and-when-does-it-pay.md"

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("e")
        await pilot.pause()
        assert app.screen.query_one(Input).value == str(there)
        await pilot.press("enter")
        await shows(pilot, "Written to")
        assert there.read_text("utf-8").startswith("# What is speculative decoding")
        there.write_text("mine")
        await pilot.press("e")
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await shows(pilot, "Replace it")
        await pilot.press("n")
        await pilot.pause()
        assert there.read_text("utf-8") == "mine"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: there.read_text("utf-8") != "mine")
        await pilot.press("e")
        await pilot.pause()
        app.screen.query_one(Input).value = str(tmp_path / "x.json")
        await pilot.press("enter")
        await until(pilot, (tmp_path / "x.json").exists)

    run(Host(lambda: history_list(history, tmp_path)), play, (200, 60))
    assert len(json.loads((tmp_path / "x.json").read_text("utf-8"))["turns"]) == 1


def test_an_export_says_what_of_the_conversation_it_lacks(tmp_path: Path) -> None:
    history = some_history(tmp_path)
    (oldest,) = [summary for summary in history.list() if summary.title == "Old plans"]
    path = history.path(oldest.id)
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3][:20]
    path.write_bytes(b"\n".join(lines))

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("end", "e")
        await pilot.pause()
        await pilot.press("enter")
        await shows(pilot, "Written to")
        told = {(note.severity, note.message) for note in pilot.app._notifications}
        assert [(kind, "(line 4); the rest is here" in text) for kind, text in sorted(told)] == [
            ("information", False),
            ("warning", True),
        ]

    run(Host(lambda: history_list(history, tmp_path)), play, (200, 60))
    exported = (tmp_path / "Old-plans.md").read_text("utf-8")
    assert "question 0" in exported and "question 1" not in exported and "question 5" in exported


def test_an_export_of_what_is_open_here_has_the_turns_that_the_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = some_history(tmp_path)
    writer = history.begin()
    writer.put(0, Turn("kept", "An answer.", "end"))
    with monkeypatch.context() as full:
        full.setattr("edgespec.tui.writer._write", _refuse)
        with pytest.raises(NotSaved):
            writer.put(1, Turn("refused", "An answer.", "end"))

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("home", "e")
        await pilot.pause()
        await pilot.press("enter")
        await shows(pilot, "Written to")

    run(Host(lambda: history_list(history, tmp_path)), play, (200, 60))
    exported = (tmp_path / "kept.md").read_text("utf-8")
    assert "kept" in exported and "refused" in exported


def _refuse(*_: object) -> None:
    raise OSError(28, "disk full")


def test_a_damaged_conversation_is_told_and_kept(tmp_path: Path) -> None:
    history = some_history(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("end", "up", "enter")
        await pilot.pause()
        assert "damaged" in text_of(app)
        assert isinstance(app.screen, HistoryList)

    app = run(Host(lambda: history_list(history)), play, (200, 60))
    assert app.answer == "nothing yet"
    assert (tmp_path / "20260101-000000-damaged.jsonl").read_bytes() == bytes(500)


def test_an_answer_that_ends_behind_the_list_joins_it(tmp_path: Path) -> None:
    history = History(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        assert "No conversation yet" in text_of(app)
        history.begin().put(0, Turn("A late question", "Yes.", "end"))
        app.tell(Finished(1, "Yes.", "end", Figures(1)))
        await shows(pilot, "A late question")

    run(Host(lambda: history_list(history)), play)


def test_a_list_that_isnt_there_yet_is_no_empty_list(tmp_path: Path) -> None:
    read = threading.Event()

    class Slow(History):
        def list(self) -> list[Summary]:
            assert read.wait(5)
            return super().list()

    async def play() -> None:
        app = Host(lambda: history_list(Slow(tmp_path)))
        async with app.run_test() as pilot:
            await until(pilot, lambda: isinstance(app.screen, HistoryList))
            await shows(pilot, "Looking for conversations")
            await pilot.press("slash", "x")
            assert "No conversation yet" not in text_of(app)
            read.set()
            await shows(pilot, "No conversation yet")

    asyncio.run(play())


@pytest.mark.parametrize("fails", [False, True])
def test_a_change_that_ends_behind_a_closed_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    begun, go = threading.Event(), threading.Event()
    some_history(tmp_path)
    lists: list[int] = []

    class Slow(History):
        def list(self) -> list[Summary]:
            lists.append(1)
            return super().list()

        def rename(self, key: str, title: str) -> None:
            begun.set()
            assert go.wait(10)
            if fails:
                raise HistoryError("no room")
            super().rename(key, title)

    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press("r", "!", "enter")
        await until(pilot, begun.is_set)
        await pilot.press("escape")
        await until(pilot, lambda: app.answer is None)
        call, told = app.call_from_thread, list[Any]()
        monkeypatch.setattr(app, "call_from_thread", lambda *a: (call(*a), told.append(a)))
        go.set()
        await until(pilot, lambda: len(told) >= 1 + fails)
        assert [note.message for note in app._notifications] == ["no room"] * fails

    run(Host(lambda: history_list(Slow(tmp_path))), play)
    assert lists == [1]
    assert fails or "!" in "".join(summary.title for summary in History(tmp_path).list())


def test_why_conversations_cant_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def play(pilot: Pilot[Any]) -> None:
        await shows(pilot, "The conversations can't be listed")
        assert "Can't read the conversations" in text_of(pilot.app)
        assert "No conversation yet" not in text_of(pilot.app)

    run(Host(lambda: history_list(History(tmp_path / "file"))), play)


def test_no_conversation_yet(tmp_path: Path) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        assert "No conversation yet" in text_of(pilot.app)
        await pilot.press("enter", "r", "d", "e", "escape")

    assert run(Host(lambda: history_list(History(tmp_path))), play).answer is None


def test_times_as_people_say_them() -> None:
    zone = timezone(timedelta(hours=-8))
    now = datetime(2026, 11, 29, 1, 0, tzinfo=zone)
    ages = [0.5, 2, 49, 24 * 40, 24 * 400, -100]
    said = [when((now - timedelta(hours=age)).timestamp(), now) for age in ages]
    assert said == ["00:30", "yesterday", "Fri 00:00", "20 Oct", "25 Oct 2025", "3 Dec"]
    assert when(1e300, now) == ""


# ------------------------------------------------------------------------------------ the settings


def settings_form(settings: Settings | None = None) -> SettingsScreen:
    kept = Settings(system="You answer in one sentence.")
    return SettingsScreen(settings or kept, "qwen2.5-coder-1.5b")


def test_a_setting_is_changed_by_keyboard() -> None:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press(*"0.2", "down", *"5", "enter")

    answer = run(Host(settings_form), play).answer
    assert answer == Settings(temperature=0.2, top_k=5, system="You answer in one sentence.")


def test_a_preset_is_chosen_by_mouse() -> None:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.click("#preset-creative")
        await shows(pilot, "● Creative")
        await pilot.click("#use")

    answer = run(Host(settings_form), play).answer
    assert answer == with_preset(Settings(system="You answer in one sentence."), "creative")


def test_what_cannot_be_used_is_told_and_not_applied() -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, Host)
        await pilot.press(*"[/]")
        await pilot.pause()
        assert "! temperature must be a number, not '[/]'" in text_of(app)
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert app.answer == "nothing yet"
        assert app.focused is app.screen.query_one("#temperature")
        await pilot.press("escape")

    assert run(Host(settings_form), play).answer is None


def test_every_field_is_kept_and_reset() -> None:
    full = Settings(
        temperature=0.3, top_k=1, seed=4, rule="rejection", system="a\nb [/]", lookahead=2,
        drafters=("lookup",), context_size=512, threads=1, gpu_layers=0,
    )  # fmt: skip

    async def keep(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")

    assert run(Host(lambda: settings_form(full)), keep).answer == full

    async def reset(pilot: Pilot[Any]) -> None:
        await pilot.press("f5", "f10")

    assert run(Host(lambda: settings_form(full)), reset).answer == Settings(system="a\nb [/]")


def test_a_form_that_nothing_was_changed_in_changes_nothing() -> None:
    exact = Settings(temperature=0.12345678, drafters=("lookup", "/my models/a, b.gguf"))

    async def keep(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")

    assert run(Host(lambda: settings_form(exact)), keep).answer == exact

    async def change(pilot: Pilot[Any]) -> None:
        await pilot.press("down", *"5", "enter")

    assert run(Host(lambda: settings_form(exact)), change).answer == replace(exact, top_k=5)

    async def choose(pilot: Pilot[Any]) -> None:
        await pilot.click("#preset-precise")
        await shows(pilot, "● Precise")
        await pilot.click("#use")

    assert run(Host(lambda: settings_form(exact)), choose).answer == with_preset(exact, "precise")


@pytest.mark.parametrize("size", ["narrow", "usual"])
def test_every_field_can_be_reached_by_keyboard(size: str) -> None:
    seen: set[str] = set()

    async def play(pilot: Pilot[Any]) -> None:
        for _ in range(len(FIELDS) + 6):  # and four presets, two buttons
            focused = pilot.app.focused
            assert focused is not None
            seen.add(focused.id or "")
            region = focused.region
            assert pilot.app.screen.region.contains_region(region)
            await pilot.press("tab")

    run(Host(settings_form), play, SIZES[size])
    buttons = {"use", "cancel", *(f"preset-{name}" for name in PRESETS)}
    assert seen == buttons | {field.key for field in FIELDS}


# -------------------------------------------------------------------------------------------- rows


@given(
    width=st.integers(10, 120),
    texts=st.lists(st.text(max_size=40) | st.just(NASTY), min_size=1, max_size=3),
)
def test_a_row_is_as_wide_as_asked_for(width: int, texts: list[str]) -> None:
    cells = [Cell(texts[0]), *(Cell(text, 6, right=True, drop=40) for text in texts[1:])]
    drawn = row(width, cells)
    assert drawn.cell_length == width
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in drawn.plain)


def test_nasty_text_is_shown_as_written(tmp_path: Path) -> None:
    history = some_history(tmp_path)

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "down")
        await pilot.pause()
        shown = text_of(pilot.app)
        assert "[/] [b + [red]x ␛]0;evil␇" in shown
        assert "\x1b" not in shown
        assert "\x9b" not in shown
        borders = [line for line in shown.splitlines() if "evil" in line]
        assert all(line.rstrip().endswith("│") for line in borders)
        await pilot.press("d")
        await pilot.pause()
        assert "[/] [b + [red]x" in text_of(pilot.app)

    run(Host(lambda: history_list(history)), play)


# ---------------------------------------------------------------------------------------- pictures


async def begin_download(pilot: Pilot[Any]) -> None:
    app, screen = pilot.app, pilot.app.screen
    assert isinstance(app, Host)
    assert isinstance(screen, DownloadScreen)
    clock = screen._clock
    assert isinstance(clock, Ticks)
    for event in steps("smollm2-1.7b", 1, 60_000_000, 420_000_000, total=1_060_000_000):
        clock.now += 2
        app.tell(event)
    await pilot.pause()


async def fail_download(pilot: Pilot[Any]) -> None:
    await begin_download(pilot)
    app = pilot.app
    assert isinstance(app, Host)
    app.tell(ended("Can't reach the hub [/]: connection refused; check your network connection."))
    await pilot.pause()


def keys(*names: str) -> Play:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press(*names)
        await pilot.pause()

    return play


PICTURES: dict[str, tuple[Callable[[Path], Any], Play]] = {
    "picker": (lambda folder: picker(), keys(*["down"] * 7)),
    "download": (lambda folder: download(Ticks()), begin_download),
    "failed": (lambda folder: download(Ticks()), fail_download),
    "history": (lambda folder: history_list(some_history(folder)), keys("down")),
    "delete": (lambda folder: history_list(some_history(folder)), keys("d")),
    "settings": (lambda folder: settings_form(), keys("down", "x")),
}


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
@pytest.mark.parametrize("size", ["narrow", "usual"])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, size: str, theme: str, snap_compare: Any, tmp_path: Path) -> None:
    compare(name, SIZES[size], theme, snap_compare, tmp_path)


@pytest.mark.parametrize("name", ["picker", "history", "settings"])
def test_pictures_on_a_large_screen(name: str, snap_compare: Any, tmp_path: Path) -> None:
    compare(name, SIZES["wide"], DARK.name, snap_compare, tmp_path)


def test_a_picture_without_colour(
    snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    compare("picker", SIZES["usual"], DARK.name, snap_compare, tmp_path)


def compare(name: str, size: tuple[int, int], theme: str, snap_compare: Any, folder: Path) -> None:
    make, play = PICTURES[name]

    async def before(pilot: Pilot[Any]) -> None:
        await settle(pilot)
        await play(pilot)
        for button in pilot.app.screen.query(Button):
            button.active_effect_duration = 0
        await pilot.pause()

    app = Host(lambda: make(folder), theme)
    assert snap_compare(app, terminal_size=size, run_before=before)
