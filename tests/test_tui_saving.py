"""Turns on their way to a disk that takes its time: the screen goes on, and nothing is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from tui_fakes import (
    Script,
    Stage,
    answers,
    drive,
    notices,
    say,
    screen_text,
    settled,
    stage,
    store,
    until,
)

from edgespec import platform
from edgespec.tui import items
from edgespec.tui.history import History
from edgespec.tui.leaving import run
from edgespec.tui.messages import Preferences, Turn
from edgespec.tui.saving import StillSaving


class Disk:
    """Its `fsync` returns once `free` is set, or raises `error`; `held` while one waits."""

    def __init__(self) -> None:
        self.free, self.held = threading.Event(), False
        self.free.set()
        self.error: OSError | None = None
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        self.held = not self.free.is_set()
        self.free.wait(5)  # a screen that waits for it goes on at last, and the test fails
        self.held = False
        if self.error is not None:
            raise self.error
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(os, "fsync", found.fsync)
    yield found
    found.free.set()


def history_of(s: Stage, patience: float = 2.0) -> History:
    assert s.app.stores.history is not None
    s.app.stores.history.saving.patience = patience
    return s.app.stores.history


def kept(folder: Path) -> list[list[tuple[str, str]]]:
    """Questions and answers of every conversation, as another window reads them."""
    history = History(folder / "conversations")
    found = [history.read(summary.id).turns for summary in history.list()]
    return [[(turn.question, turn.answer) for turn in turns] for turns in found]


async def held(pilot: Pilot[None], s: Stage, disk: Disk, question: str = "one") -> None:
    """A question's answer that is on its way to a disk that doesn't take it yet."""
    await settled(pilot)
    disk.free.clear()
    await say(pilot, question)
    await until(lambda: disk.held, pilot, "a put that waits")


def test_keys_are_answered_while_the_disk_takes_its_time(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await held(pilot, s, disk)
        await pilot.press("x")
        assert s.app.composer.text == "x" and disk.held
        disk.free.set()
        await settled(pilot)

    drive(stage(Script(answers=["1"]), stores=store(tmp_path)), body)
    assert kept(tmp_path) == [[("one", "1")]]


def test_turns_are_saved_in_their_order(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await held(pilot, s, disk)
        await say(pilot, "two")
        await until(lambda: len(s.app.talk.turns) == 2 and not s.app.busy, pilot)
        await pilot.press("ctrl+r")
        await until(lambda: s.app.talk.turns[-1].answer == "3", pilot)
        assert disk.held
        disk.free.set()
        await settled(pilot)
        assert s.app.unsaved == ""

    drive(stage(Script(answers=["1", "2", "3"]), stores=store(tmp_path)), body)
    assert kept(tmp_path) == [[("one", "1"), ("two", "3")]]


def test_a_disk_that_fails_is_told_once_it_has(tmp_path: Path, disk: Disk) -> None:
    def notes(s: Stage) -> list[str]:
        return [x.text for x in s.app.transcript.document.items if isinstance(x, items.Note)]

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await held(pilot, s, disk)
        await pilot.pause(0.3)
        assert notes(s) == []
        disk.error = OSError(28, "disk full")
        disk.free.set()
        await settled(pilot)
        assert len(notes(s)) == 1 and "disk full. It goes on in memory" in notes(s)[0]
        words = " ".join(screen_text(s.app).split())  # which wrap behind the path
        assert "disk full" in words and "disk full" in s.app.unsaved
        disk.error = None
        await say(pilot, "two")
        await settled(pilot)
        assert len(notes(s)) == 1 and s.app.unsaved == ""

    drive(stage(Script(answers=["1", "2"]), stores=store(tmp_path)), body)
    assert kept(tmp_path) == [[("one", "1"), ("two", "2")]]


@pytest.mark.parametrize("how", ["leave", "exception", "full"])
def test_leaving_waits_for_the_disk_and_says_so(
    how: str, tmp_path: Path, disk: Disk, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    s = stage(Script(answers=["1"]), stores=store(tmp_path))
    history = history_of(s, 0.05)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await held(pilot, s, disk)

    def play() -> None:
        drive(s, body, settles=False)
        if how == "exception":
            raise KeyboardInterrupt

    def close() -> None:  # not before the wait is told
        disk.error = OSError(28, "disk full") if how == "full" else None
        threading.Timer(0.2, disk.free.set).start()
        History.close(history)

    monkeypatch.setattr(s.app, "run", play)
    monkeypatch.setattr(history, "close", close)
    if how == "exception":
        with pytest.raises(KeyboardInterrupt):
            run(s.app)
    else:
        assert run(s.app) == (how == "full")
    told = capsys.readouterr().err
    assert "still saving the last turn; waiting for it" in told
    assert ("can't be saved" in told) == (how == "full")
    assert kept(tmp_path) == ([] if how == "full" else [[("one", "1")]])


LEAVING = ("ctrl+q", "ctrl+d", "/quit")


async def leave(pilot: Pilot[None], how: str) -> None:
    await (say(pilot, how) if how[0] == "/" else pilot.press(how))
    await pilot.pause()


@pytest.mark.parametrize("how", LEAVING)
def test_what_the_disk_didnt_take_is_tried_again_on_leaving(
    how: str, tmp_path: Path, disk: Disk, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    s = stage(Script(answers=["1"]), stores=store(tmp_path))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        disk.error = OSError(28, "disk full")
        await say(pilot, "one")
        await settled(pilot)
        disk.error = None
        await leave(pilot, how)
        assert not s.app._running

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0 and capsys.readouterr().err == ""
    assert kept(tmp_path) == [[("one", "1")]]


@pytest.mark.parametrize("how", LEAVING)
def test_who_leaves_what_isnt_saved_is_warned_once(
    how: str, tmp_path: Path, disk: Disk, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    s = stage(Script(answers=["1"]), stores=store(tmp_path))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        disk.error = OSError(28, "disk full")
        await say(pilot, "one")
        await settled(pilot)
        await leave(pilot, how)
        assert s.app._running and "/export keeps it elsewhere" in notices(s.app)
        await leave(pilot, how)
        assert not s.app._running

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 1 and "disk full" in capsys.readouterr().err
    assert kept(tmp_path) == []


@pytest.mark.parametrize("signalled", [False, True])
def test_what_the_disk_takes_at_last_is_saved_without_a_key(
    signalled: bool, tmp_path: Path, disk: Disk, monkeypatch: Any
) -> None:
    s = stage(Script(answers=["1"]), stores=store(tmp_path))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        disk.error = OSError(28, "disk full")
        await say(pilot, "one")
        await settled(pilot)
        disk.error = None
        if signalled:
            s.app.exit()  # what a signal does
        else:
            await pilot.press("ctrl+n")
            assert not s.app.talk.turns and "/export" not in notices(s.app)

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0
    assert kept(tmp_path) == [[("one", "1")]]


def test_a_question_that_waits_is_kept_on_leaving(tmp_path: Path, monkeypatch: Any) -> None:
    s = stage(stores=store(tmp_path), loading=True)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await until(lambda: s.app.has_settings, pilot)
        await say(pilot, "one")
        assert s.app.talk.waiting == "one"
        await pilot.press("ctrl+q")

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0
    assert kept(tmp_path) == [[("one", "")]]


def test_a_question_that_waits_is_kept_behind_the_answer_under_way(
    tmp_path: Path, monkeypatch: Any
) -> None:
    s = stage(stores=store(tmp_path), held=True)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        await say(pilot, "two")
        await pilot.press("ctrl+q")

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0
    ((first, second),) = kept(tmp_path)
    assert first[0] == "one" and first[1] and second == ("two", "")


@pytest.mark.parametrize("gone", [False, True])
def test_a_chat_whose_terminal_is_gone_ends_with_all_saved(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "terminal_gone", lambda descriptor: gone and descriptor == 77)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await settled(pilot)
        s.app.leave_gone_terminal(77)
        await pilot.pause()
        assert s.app._running != gone

    drive(stage(Script(answers=["1"]), stores=store(tmp_path)), body)
    assert [turns[0][0] for turns in kept(tmp_path)] == ["one"]


def test_another_conversation_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        history_of(s, 0.05)
        await held(pilot, s, disk)
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "still saving the last turn" in notices(s.app) and len(s.app.talk.turns) == 1
        history_of(s, 5)
        disk.free.set()
        await pilot.press("ctrl+n")
        await until(lambda: not s.app.talk.turns, pilot)

    drive(stage(stores=store(tmp_path)), body)
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("how", ["ctrl+n", "resume"])
def test_what_isnt_on_the_disk_is_dropped_only_after_a_warning(
    how: str, tmp_path: Path, disk: Disk
) -> None:
    stores = store(tmp_path)
    assert stores.history is not None
    other = stores.history.begin()
    other.put(0, Turn("other", "yes", "end"))

    async def leave(pilot: Pilot[None], s: Stage) -> None:
        s.app.clear_notifications()
        if how == "resume":
            s.app._resume(other.id)
        else:
            await pilot.press(how)
        await pilot.pause()

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        disk.error = OSError(28, "disk full")
        for question in ("one", "two"):  # what was said after a warning is warned of anew
            await say(pilot, question)
            await settled(pilot)
            await leave(pilot, s)
            assert "/export keeps it elsewhere" in notices(s.app)
            assert s.app.talk.turns[-1].question == question
        await leave(pilot, s)
        assert "/export" not in notices(s.app)
        left = ["other"] if how == "resume" else []
        assert [turn.question for turn in s.app.talk.turns] == left
        disk.error = None
        await say(pilot, "three")
        await settled(pilot)
        await leave(pilot, s)
        assert "/export" not in notices(s.app)

    drive(stage(stores=stores), body)


def test_an_answer_stopped_for_another_conversation_is_shown_as_it_ended(
    tmp_path: Path, disk: Disk
) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        history_of(s, 0.05)
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        disk.free.clear()
        await pilot.press("ctrl+n")
        await until(lambda: len(s.app.talk.turns) == 1, pilot)
        (answer,) = answers(s.app)
        assert answer.text and answer.caption and not answer.streaming
        disk.free.set()
        await settled(pilot)

    drive(stage(held=True, stores=store(tmp_path)), body)
    assert len(kept(tmp_path)) == 1


def test_a_new_name_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        history_of(s, 0.05)
        await held(pilot, s, disk)
        await say(pilot, "/rename other")
        assert "still saving the last turn" in notices(s.app)
        assert s.app.composer.text == "/rename other"
        disk.free.set()
        await settled(pilot)
        history = history_of(s, 5)
        assert [summary.title for summary in history.list()] == ["one"]
        await pilot.press("enter")
        await pilot.pause()
        assert [summary.title for summary in history.list()] == ["other"]

    drive(stage(stores=store(tmp_path)), body)


def put_behind_another(history: History, disk: Disk) -> str:
    """The id of a conversation whose first turn waits behind another's."""
    disk.free.clear()
    for name in ("first", "second"):
        writer = history.begin()
        history.saving.put(writer, 0, Turn(name, "yes", "end"))
    return writer.id


def test_what_is_deleted_while_it_is_being_saved_stays_deleted(tmp_path: Path, disk: Disk) -> None:
    history = History(tmp_path)
    second = put_behind_another(history, disk)
    deleting = threading.Thread(target=history.delete, args=(second,))
    deleting.start()
    disk.free.set()
    deleting.join()
    assert [summary.title for summary in history.list()] == ["first"]
    assert [path.stem for path in tmp_path.glob("*.jsonl")] != [second]
    assert history.saving.failures() == []  # saved, and then deleted


def test_a_change_that_was_refused_does_not_happen_later(tmp_path: Path, disk: Disk) -> None:
    history = History(tmp_path)
    history.saving.patience = 0.05
    second = put_behind_another(history, disk)
    for change in (
        lambda: history.delete(second),
        lambda: history.rename(second, "other"),
        lambda: history.resume(second),
        lambda: history.read(second),
        history.list,
    ):
        with pytest.raises(StillSaving, match="still saving the last turn: try again"):
            change()
    disk.free.set()
    history.saving.patience = 5
    assert {summary.title for summary in history.list()} == {"first", "second"}


def test_the_history_closes_behind_all_that_is_put(tmp_path: Path, disk: Disk) -> None:
    history = History(tmp_path)
    disk.free.clear()

    class Slow:
        def put(self, index: int, turn: Turn) -> None:
            disk.free.wait(5)

    writer = history.begin()
    history.saving.put(Slow(), 0, Turn("slow"))  # type: ignore[arg-type]
    history.saving.put(writer, 0, Turn("one", "yes", "end"))
    threading.Timer(0.2, disk.free.set).start()
    history.close()
    assert [turn.answer for turn in History(tmp_path).resume(writer.id).turns] == ["yes"]


def test_no_thread_begins_before_the_first_turn(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    history = History(tmp_path)
    history.saving.settle()
    assert history.list() == []
    assert set(threading.enumerate()) <= before


def test_a_change_under_way_that_fails_later_is_told(tmp_path: Path, disk: Disk) -> None:
    history = History(tmp_path)
    history.saving.patience = 0.05
    writer = history.begin()
    writer.put(0, Turn("one", "yes", "end"))
    disk.free.clear()
    with pytest.raises(StillSaving, match="still under way"):
        history.rename(writer.id, "other")
    disk.error = OSError(28, "disk full")
    disk.free.set()
    history.saving.settle(forever=True)
    (told,) = history.saving.failures()
    assert "disk full" in told and history.saving.failures() == []
    writer.close()


def test_settings_preferences_and_copies_dont_wait_for_the_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    stores = store(tmp_path)
    assert stores.settings is not None

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/set top_k 3")
        await say(pilot, "hi")
        await settled(pilot)
        disk.free.clear()
        await pilot.press("ctrl+g")
        await until(lambda: disk.held, pilot, "a file that waits")
        await say(pilot, "/save")
        await pilot.press("ctrl+y", "ctrl+t")
        assert disk.held and s.app.preferences.panel and s.app.preferences.tokens
        assert "are saved" not in notices(s.app) and "Copied" not in notices(s.app)
        disk.free.set()
        await settled(pilot)
        assert "The settings of tiny are saved." in notices(s.app)
        assert "Copied 1 character" in notices(s.app)
        assert (tmp_path / "copied.txt").read_text("utf-8") == "1"

    drive(stage(Script(answers=["1"]), stores=stores), body)
    assert stores.settings.settings("tiny").top_k == 3
    assert stores.settings.preferences() == Preferences(panel=True, tokens=True)


def test_an_export_waits_for_the_disk_and_the_screen_does_not(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        disk.free.clear()
        await say(pilot, f"/export {tmp_path / 'out.md'}")
        await until(lambda: disk.held, pilot, "a file that waits")
        await pilot.press("x")
        assert s.app.composer.text == "x" and disk.held and "Written" not in notices(s.app)
        disk.free.set()
        await settled(pilot)
        assert "Written to" in notices(s.app)
        await say(pilot, f"/export {tmp_path / 'out.md'}")
        assert "is there already: write another name behind /export, or" in notices(s.app)
        assert s.app.composer.text.startswith("/export")  # to be mended

    drive(stage(Script(answers=["1"]), stores=store(tmp_path)), body)
    assert (tmp_path / "out.md").read_text("utf-8").startswith("# hi\n")


def test_a_preference_that_cannot_be_kept_is_told(tmp_path: Path, disk: Disk) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        disk.error = OSError(28, "disk full")
        await pilot.press("ctrl+g")
        await until(lambda: "Can't save the settings" in notices(s.app), pilot)
        assert s.app.preferences.panel

    drive(stage(stores=store(tmp_path)), body)


def test_what_was_set_last_is_kept_on_leaving(
    tmp_path: Path, disk: Disk, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    s = stage(stores=store(tmp_path))
    disk.error = OSError(28, "disk full")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.ticker._started = False  # nobody looks any more
        await pilot.press("ctrl+g")

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 1
    assert "edgespec: Can't save the settings" in capsys.readouterr().err
