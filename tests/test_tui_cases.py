"""What people do at the wrong moment: nothing they wrote, asked or read is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from io import BufferedWriter, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from tui_fakes import (
    ANSWER,
    Script,
    Stage,
    answers,
    drive,
    notices,
    noting,
    say,
    screen_text,
    settled,
    stage,
    store,
    until,
)

from edgespec.errors import ConfigError, ModelError
from edgespec.tui import items
from edgespec.tui.messages import (
    Choice,
    DownloadEnded,
    Failed,
    Finished,
    Preferences,
    Settings,
)
from edgespec.tui.pairs import list_pairs
from edgespec.tui.screens.download import DownloadScreen
from edgespec.tui.screens.pairs import PairPicker
from edgespec.tui.ticking import SOON, TICK, until_next_look
from edgespec.tui.writer import NotSaved, Writer

LONG = "\n\n".join(f"line {number}" for number in range(80))


def burst(s: Stage, *keys: str) -> None:
    """Keys that are all there before the first of them is handled."""
    for key in keys:
        character = {"space": " "}.get(key, key if len(key) == 1 else None)
        s.app.post_message(events.Key(key, character))


RARELY = 60.0
"""Seconds between two looks at the events where a test has looks of its own."""


async def loaded(pilot: Pilot[None], s: Stage) -> None:
    """Wait for the pair, with looks of our own."""
    await until(lambda: s.app._load > 0, pilot)
    for _ in range(500):
        await asyncio.sleep(0.01)
        for event in s.app.bridge.drain():
            s.app.take(event)
        if s.app.loaded is not None:
            return


async def listed(pilot: Pilot[None], s: Stage) -> None:
    """Open the history and wait until it is filled."""
    await pilot.press("ctrl+l")
    await until(lambda: len(s.app.screen_stack) == 2, pilot)
    await until(lambda: bool(s.app.screen._found), pilot)  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------- writing


def test_what_is_typed_right_after_enter_is_the_next_message() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        burst(s, *"one", "enter", "enter", *"two")
        await until(lambda: s.app.composer.text == "two", pilot)
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["one"]

    drive(stage(), body)


def test_what_comes_back_stands_before_what_was_typed_since() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await say(pilot, "two")
        burst(s, *"three", "enter", *"four")
        await until(lambda: s.app.composer.text == "three\nfour", pilot)
        await pilot.press("escape")
        await settled(pilot)
        assert s.app.composer.text == "two\nthree\nfour"

    drive(stage(held=True), body)


def test_a_paste_reaches_the_message_wherever_the_keys_are() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.transcript.focus()
        await pilot.pause()
        s.app.post_message(events.Paste("from\r\nelse\x1b[2Jwhere"))
        await until(lambda: s.app.composer.text == "from\nelsewhere", pilot)
        assert s.app.focused is s.app.composer

    drive(stage(), body)


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("he said \x93so\x94 and \x9dgo\x9d on\nto the end", "he said so and go on\nto the end"),
        ("a \x9d b\nc\x07d", "a  b\ncd"),
        ("an \x1b] open\none \x1b\\ end", "an ] open\none \\ end"),
        ("x\x9bhello", "xhello"),
        ("\x1b]0;title\x07a\x1b]8;;u\x1b\\b\x9d0;t\x9cc\x1b[1;31md\x9b0me", "abcde"),
        ("a\x1b", "a"),
    ],
)
def test_a_paste_loses_controls_and_no_word(pasted: str, text: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.post_message(events.Paste(pasted))
        await until(lambda: s.app.composer.text != "", pilot)
        assert s.app.composer.text == text

    drive(stage(), body)


def test_what_was_copied_here_is_pasted_here(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting([]))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press(*"one", "ctrl+a", "shift+home", "ctrl+v")
        assert s.app.composer.text == "one"  # nothing to paste is no reason to delete
        await pilot.press("end", "shift+home", "ctrl+c", "ctrl+v", "ctrl+v")
        assert s.app.composer.text == "oneone"

    drive(stage(), body)


def test_ctrl_c_in_a_dialogs_field_copies_what_is_selected_there(monkeypatch: Any) -> None:
    from edgespec.tui.screens.ask import AskText

    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await until(lambda: s.app.busy, pilot)
        s.app.push_screen(AskText("Rename", "", "two words"))
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.press("end", "ctrl+shift+left", "ctrl+c")
        assert copied == ["words"] and s.app.busy
        await pilot.press("end", "ctrl+c")  # nothing is selected: it stops the answer
        await settled(pilot)
        assert copied == ["words"] and len(s.app.screen_stack) == 2

    drive(stage(held=True), body)


def test_ten_times_the_same_sentence_is_one() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press(*["ctrl+c"] * 10)
        await pilot.pause(0.1)
        assert notices(s.app) == "Ctrl+Q leaves the chat."
        assert screen_text(s.app).count("Ctrl+Q leaves") == 1

    drive(stage(), body)


# ----------------------------------------------------------------------------------------- editing


def test_an_edited_question_sent_in_one_burst_takes_its_place() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await pilot.press("up")
        burst(s, "!", "enter")
        await until(lambda: len(s.runtime.asked) == 2, pilot)
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["a!"]
        assert s.app.editing is None
        await say(pilot, "b")
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["a!", "b"]

    drive(stage(), body)


@pytest.mark.parametrize("key", ["escape", "enter"])
def test_a_draft_comes_back_after_an_edit(key: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for question in "ab":
            await say(pilot, question)
            await settled(pilot)
        await pilot.press(*"draft", "f2", "f2")
        assert s.app.composer.text == "a" and s.app.editing == 0
        await pilot.press("!", key)
        await settled(pilot)
        assert s.app.composer.text == "draft" and s.app.editing is None
        asked = ["a", "b"] if key == "escape" else ["a!"]
        assert [t.question for t in s.app.talk.turns] == asked
        await pilot.press("enter")
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == [*asked, "draft"]
        assert s.app.composer.text == ""

    drive(stage(), body)


def test_a_draft_comes_back_where_the_edited_question_was_emptied() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await pilot.press(*"draft", "f2", "backspace")
        await pilot.pause()
        assert s.app.composer.text == "" and s.app.editing is None
        await pilot.press("escape")
        assert s.app.composer.text == "draft"

    drive(stage(), body)


@pytest.mark.parametrize("how", ["up", "f2", "escape", "edited"])
def test_a_question_like_a_command_comes_back_as_a_question(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        if how == "escape":
            await say(pilot, "one")
            await say(pilot, " /help")
            await pilot.press("escape")
        else:
            s.runtime.allow(100)
            await say(pilot, " /help")
            await settled(pilot)
            assert s.app.talk.turns[0].question == "/help"
            await pilot.press("f2" if how == "edited" else how)
            if how == "edited":
                while s.runtime._permits.acquire(blocking=False):
                    pass
                await pilot.press("s", "enter", "escape")
        await settled(pilot)
        assert s.app.composer.text == (" /helps" if how == "edited" else " /help")
        s.runtime.free()
        await pilot.press("enter")
        await settled(pilot)
        assert len(s.app.screen_stack) == 1
        assert s.app.talk.turns[-1].question == ("/helps" if how == "edited" else "/help")

    drive(stage(Script(answers=["one two"]), held=True), body)


def test_whoever_empties_an_edited_question_asks_a_new_one() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await pilot.press("up")
        await pilot.pause()
        assert "editing question 1 of 1" in screen_text(s.app)
        await pilot.press("ctrl+u")
        await pilot.pause()
        assert s.app.editing is None and "editing" not in screen_text(s.app)
        await pilot.press("b", "enter")
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["a", "b"]

    drive(stage(), body)


def test_editing_ends_with_the_conversation(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "old")
        await settled(pilot)
        await pilot.press("ctrl+n")
        await say(pilot, "new")
        await settled(pilot)
        await pilot.press("f2")
        await listed(pilot, s)
        await pilot.press("down", "enter")
        await until(lambda: [t.question for t in s.app.talk.turns] == ["old"], pilot)
        await pilot.press("enter")
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["old", "new"]

    drive(stage(stores=store(tmp_path)), body)


def test_an_edited_question_that_cant_be_asked_now_stays_to_be_edited() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        s.runtime.free()
        await settled(pilot)
        s.opening.clear()
        await pilot.press("f2", "!")
        s.app._choose(Choice("other"))
        await pilot.press("enter")
        await pilot.pause()
        assert s.app.composer.text == "a!" and s.app.editing == 0
        s.opening.set()
        await settled(pilot)
        assert "editing question 1" in screen_text(s.app)
        await pilot.press("enter", "escape")  # stopped before its first word
        await settled(pilot)
        assert s.app.composer.text == "a!" and s.app.editing == 0
        assert [t.question for t in s.app.talk.turns] == ["a"]
        assert [q.text for q in s.app.transcript.document.items[:1]] == ["a"]
        await pilot.press("enter")
        s.runtime.free()
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["a!"]

    drive(stage(held=True), body)


# ------------------------------------------------------------------------- answers and their moment


@pytest.mark.parametrize("how", ["ctrl+n", "resume"])
def test_another_conversation_leaves_a_load_alone(how: str, tmp_path: Path) -> None:
    stores = store(tmp_path)
    assert stores.history is not None
    from edgespec.tui.messages import Turn

    stores.history.begin().put(0, Turn("kept", "yes", "end"))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await until(lambda: s.app._load > 0, pilot)
        if how == "resume":
            await listed(pilot, s)
            await pilot.press("enter")
            await until(lambda: len(s.app.talk.turns) == 1, pilot)
        else:
            await pilot.press(how)
        await pilot.pause(0.2)
        assert s.app.busy
        s.opening.set()
        await settled(pilot)
        assert s.app.loaded is not None

    drive(stage(loading=True, stores=stores), body)


def test_resuming_the_open_conversation_lets_its_answer_go_on(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(100)
        await settled(pilot)
        while s.runtime._permits.acquire(blocking=False):
            pass
        await say(pilot, "two")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[-1].text != "", pilot)
        await listed(pilot, s)
        await pilot.press("enter")
        await until(lambda: len(s.app.screen_stack) == 1, pilot)
        s.runtime.free()
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == [ANSWER, ANSWER]
        assert stores.history is not None
        (summary,) = stores.history.list()
        assert [t.question for t in stores.history.read(summary.id).turns] == ["one", "two"]

    drive(stage(held=True, stores=stores), body)


def test_a_new_conversation_during_an_answer_says_nothing_of_stopping() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[-1].text != "", pilot)
        await pilot.press("ctrl+n")
        await pilot.pause(0.3)
        assert "stopping" not in screen_text(s.app)

    drive(stage(held=True), body)


def test_a_question_waits_for_a_pair_chosen_during_an_answer() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(2)
        await until(lambda: answers(s.app)[-1].text != "", pilot)
        await say(pilot, "two")
        s.opening.clear()
        asked = s.app.choice.label
        s.app._choose(Choice("other"))
        await pilot.press("enter")  # the question that came back
        await until(lambda: s.app.talk.running is None, pilot)
        await pilot.pause(0.2)
        assert s.app.talk.waiting == "two" and s.app.talk.running is None
        s.opening.set()
        await until(lambda: len(s.runtimes) == 2, pilot)
        s.runtime.free()
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["one", "two"]
        first, second = (turn.pair for turn in s.app.talk.turns)
        assert (first, second) == (asked, "other") and asked != "other"  # each under who was asked
        assert s.runtimes[1].asked and len(s.runtimes[0].asked) == 1

    drive(stage(held=True), body)


@pytest.mark.parametrize("when", ["loaded", "answering", "loading", "stopped"])
def test_a_pair_that_is_there_is_not_loaded_again(when: str) -> None:
    """As after a download that the pair's own load was waiting for."""
    s = stage(held=True, loading=when in ("loading", "stopped"))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await until(lambda: s.app._load > 0, pilot)
        if when in ("loaded", "answering"):
            await settled(pilot)
        if when == "answering":
            await say(pilot, "one")
        elif when == "stopped":
            await pilot.press("escape")
        load, running = s.app._load, s.app.talk.running
        s.app._choose(s.app.choice)
        assert (s.app._load == load) == (when != "stopped")
        assert s.app.talk.running is running
        s.opening.set()
        await until(lambda: s.app.loaded is not None, pilot)
        s.runtime.free()
        await settled(pilot)
        assert len(s.runtimes) == 1
        assert [t.answer for t in s.app.talk.turns] == [ANSWER] * (when == "answering")
        assert s.app.preferences.last_pair == s.app.choice.pair

    drive(s, body)


def test_choosing_the_pair_that_is_there_keeps_what_was_set() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/set top_k 3")
        await say(pilot, "/set lookahead 0")
        await settled(pilot)
        s.app._choose(s.app.choice)
        await settled(pilot)
        assert (s.app.settings.top_k, s.app.settings.lookahead) == (3, 0)
        assert len(s.runtimes) == 2  # the setting's, and no other

    drive(stage(), body)


def test_a_pair_whose_settings_cannot_be_read_is_not_loaded() -> None:
    """Nor with the usual ones: what was said on the command line holds for every pair."""

    def broken(choice: Choice) -> Settings:
        raise ConfigError("settings.toml, line 3: no.")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        before = s.app.settings_of
        s.app.settings_of = broken
        s.app._choose(Choice("other"))
        await settled(pilot)
        assert "settings.toml, line 3" in notices(s.app)
        assert s.app.choice == Choice("tiny") and s.app.loaded is not None
        assert len(s.runtimes) == 1 and not s.runtime.closed
        s.app.settings_of = before
        s.app._choose(Choice("other"))
        await settled(pilot)
        assert s.app.choice == Choice("other") and s.app.settings.top_k == 3

    drive(stage(settings=Settings(top_k=3)), body)


# ------------------------------------------------------------------------------------ the beginning


def test_keys_before_the_saved_settings_are_read(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await pilot.press("a")
        await pilot.pause()
        assert s.app.composer.text == "a" and s.app._load < 0  # nobody waits for them
        await pilot.press("ctrl+s", "ctrl+o")
        assert len(s.app.screen_stack) == 1 and "One moment" in notices(s.app)
        for line in ("/settings", "/set top_k 5", "/system Sing.", "/save", "/pair smollm2"):
            await say(pilot, line)
            assert s.app.composer.text == line and len(s.app.screen_stack) == 1
        assert s.app._load < 0
        s.reading.set()
        await until(lambda: s.app._load > 0, pilot)
        assert s.app.settings == Settings(top_k=3)
        await pilot.press("ctrl+s")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)

    drive(stage(unread=True, settings=Settings(top_k=3), stores=store(tmp_path)), body)
    assert not (tmp_path / "settings.toml").exists()


@pytest.mark.parametrize("key", ["ctrl+c", "escape"])
def test_a_stop_before_the_saved_settings_are_read_is_kept(key: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await say(pilot, "one")
        await pilot.press(key)
        assert s.app._load < 0 and s.app.composer.text == "one"
        s.reading.set()
        await until(lambda: not s.app.busy, pilot)
        assert "Loading was stopped." in screen_text(s.app) and not s.runtimes
        s.opening.set()
        s.app._choose(s.app.choice)
        await settled(pilot)
        assert s.app.loaded is not None

    drive(stage(unread=True, loading=True), body)


def test_a_theme_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        assert "There is no theme no[where" in notices(s.app)
        assert s.app.theme == "edgespec-dark"

    drive(stage(preferences=Preferences(theme="no[where"), stores=store(tmp_path)), body)
    assert not (tmp_path / "settings.toml").exists()  # what the person wrote stays


@pytest.mark.parametrize("how", ["ctrl+n", "leave"])
def test_a_question_whose_answer_hasnt_begun_is_kept(how: str, tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.allow(100)
        await say(pilot, "one")
        await settled(pilot)
        while s.runtime._permits.acquire(blocking=False):
            pass
        await say(pilot, "two")
        await until(lambda: len(s.runtime.asked) == 2, pilot)
        if how == "leave":
            s.app.save_unfinished()
        else:
            await pilot.press(how)
            await until(lambda: not s.app.talk.turns, pilot)

    drive(stage(held=True, stores=store(tmp_path)), body)
    history = store(tmp_path).history
    assert history is not None
    (summary,) = history.list()
    turn = history.read(summary.id).turns[1]
    assert (turn.question, turn.answer, turn.reason) == ("two", "", "cancelled")
    assert turn.figures is not None and turn.figures.tokens == 0  # not the ones before it


def test_an_edited_question_whose_answer_hasnt_begun_comes_back() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.allow(100)
        await say(pilot, "a")
        await settled(pilot)
        while s.runtime._permits.acquire(blocking=False):
            pass
        await pilot.press("f2", "!", "enter")
        await until(lambda: len(s.runtime.asked) == 2, pilot)
        await pilot.press("ctrl+n")
        await until(lambda: not s.app.talk.turns, pilot)
        assert s.app.composer.text == "a!" and s.app.editing is None

    drive(stage(held=True), body)


def test_leaving_right_after_an_edited_question_was_stopped() -> None:
    """Its end is taken when the screen is gone, and there is nobody to give it back to."""

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.allow(100)
        await say(pilot, "a")
        await settled(pilot)
        while s.runtime._permits.acquire(blocking=False):
            pass
        await pilot.press("f2", "!", "enter")
        await until(lambda: len(s.runtime.asked) == 2, pilot)
        s.app.ticker._started = False
        await pilot.press("escape", "ctrl+q")

    left = stage(held=True)
    drive(left, body)
    left.app.take_last_words()
    left.app.save_unfinished()
    assert [turn.question for turn in left.app.talk.turns] == ["a"]
    assert left.app.talk.running is None


@pytest.mark.parametrize(
    ("key", "sentence"),
    [("f9", "The model added nothing."), ("ctrl+r", "The model answered with nothing")],
)
def test_that_nothing_came_is_told(key: str, sentence: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await pilot.press(key)
        await settled(pilot)
        assert sentence in notices(s.app)
        assert [t.answer for t in s.app.talk.turns] == ["one"]

    drive(stage(Script(answers=["one", ""])), body)


def test_an_answer_with_no_word_yet_isnt_copied(monkeypatch: Any) -> None:
    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await until(lambda: bool(s.runtime.asked), pilot)
        await pilot.press("ctrl+y")
        assert copied == [] and "This answer has no text yet." in notices(s.app)

    drive(stage(held=True), body)


def test_what_came_before_a_failure_is_kept(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        await pilot.pause(0.3)
        came = answers(s.app)[0].text
        assert s.app.talk.running is not None
        s.app.take(Failed(s.app.talk.running.number, "the pass failed"))
        (turn,) = s.app.talk.turns
        assert (turn.answer, turn.error) == (came, "the pass failed")
        assert stores.history is not None
        (summary,) = stores.history.list()
        assert stores.history.read(summary.id).turns[0].answer == came
        assert "✗ the pass failed" in screen_text(s.app)

    drive(stage(held=True, stores=stores), body)


@pytest.mark.parametrize("how", ["ctrl+n", "resume", "leave"])
def test_an_answer_that_ended_since_the_last_look_is_kept_whole(
    how: str, tmp_path: Path, monkeypatch: Any
) -> None:
    from edgespec.tui.leaving import run
    from edgespec.tui.messages import Turn

    stores = store(tmp_path)
    assert stores.history is not None
    stores.history.begin().put(0, Turn("other", "yes", "end"))
    s = stage(stores=stores, tick=RARELY)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await loaded(pilot, s)
        await say(pilot, "go")
        await until(lambda: any(isinstance(e, Finished) for e in s.app.bridge._events), pilot)
        if how == "ctrl+n":
            await pilot.press("ctrl+n")
        elif how == "resume":
            assert stores.history is not None
            (other,) = [x.id for x in stores.history.list() if x.title == "other"]
            s.app._resume(other)

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0
    history = store(tmp_path).history
    assert history is not None
    (found,) = [x.id for x in history.list() if x.title == "go"]
    (turn,) = history.read(found).turns
    assert (turn.answer, turn.reason) == (ANSWER, "end")


def test_the_footer_says_how_to_stop_while_there_is_something_to_stop() -> None:
    def footer(s: Stage) -> str:
        return screen_text(s.app).splitlines()[-1]

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await until(lambda: "Figures" in footer(s) and "Stop" not in footer(s), pilot)
        await say(pilot, "go")
        await until(lambda: "esc Stop" in footer(s), pilot)
        await pilot.press("ctrl+s")  # keys of a screen on top are its own
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.press("escape")
        await until(lambda: "esc Stop" in footer(s), pilot)
        await pilot.click("FooterKey")
        await settled(pilot)
        await until(lambda: "Figures" in footer(s) and "Stop" not in footer(s), pilot)
        assert s.app.talk.turns[0].reason == "cancelled"

    drive(stage(held=True), body)


# ------------------------------------------------------------------------------------------ reading


def test_a_waiting_question_that_begins_doesnt_pull_a_reader_down() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.free()
        await say(pilot, "long")
        await settled(pilot)
        s.runtime.held = True
        await say(pilot, "more")
        await say(pilot, "next")
        s.app.transcript.focus()
        await pilot.press(*["pageup"] * 3)
        top = screen_text(s.app).splitlines()[2]
        s.runtime.free()
        await settled(pilot)
        assert len(s.app.talk.turns) == 3
        assert screen_text(s.app).splitlines()[2] == top and not s.app.transcript.following

    drive(stage(Script(answers=[LONG]), held=True), body)


@pytest.mark.parametrize("key", ["ctrl+r", "f9"])
def test_nothing_in_place_of_an_answer_leaves_reader_tokens_and_notes(key: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.free()
        for question in "ab":
            await say(pilot, question)
            await settled(pilot)
        s.app.note("a note")
        before = list(s.app.transcript.document.items)
        pieces = len(answers(s.app)[-1].pieces)
        assert pieces > 0
        s.runtime.held = True
        while s.runtime._permits.acquire(blocking=False):
            pass
        await pilot.press(key)
        await until(lambda: len(s.runtime.asked) == 3, pilot)
        s.app.note("said meanwhile")
        before.append(s.app.transcript.document.items[-1])
        s.app.transcript.focus()
        await pilot.press(*["pageup"] * 3)
        await pilot.pause()
        top = screen_text(s.app).splitlines()[2]
        s.app.stop()
        await settled(pilot)
        assert s.app.transcript.document.items == before
        assert screen_text(s.app).splitlines()[2] == top and not s.app.transcript.following
        assert len(answers(s.app)[-1].pieces) == pieces

    drive(stage(Script(answers=[LONG]), held=True), body)


def test_a_continued_answer_keeps_the_tokens_of_its_beginning() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await pilot.press("f9")
        await settled(pilot)
        text = "".join(piece.text for piece in answers(s.app)[0].pieces)
        assert text == s.app.talk.turns[0].answer == "one two three four"

    drive(stage(Script(answers=["one two", " three four"], reason="length")), body)


def test_the_cursor_goes_from_answer_to_answer() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for question in "ab":
            await say(pilot, question)
            await settled(pilot)
        await pilot.press("tab")
        seen = []
        for key in ["left"] * 5 + ["right"] * 4:
            await pilot.press(key)
            await pilot.pause()
            cursor = s.app.transcript._cursor
            assert cursor is not None
            seen.append(cursor[0].pieces[cursor[1]].text.strip())
        assert seen == ["four", "three", "two", "one", "one", "two", "three", "four", "four"]

    script = Script(answers=["one two", "three four"])
    drive(stage(script, preferences=Preferences(tokens=True)), body)


def test_lines_that_are_kept_take_the_new_colours() -> None:
    def colours(s: Stage) -> set[Any]:
        strips = s.app.screen._compositor.render_strips(s.app.size)
        return {
            x.style.color for strip in strips[2:14] for x in strip if x.style and x.text.strip()
        }

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+t")
        await pilot.pause()
        tokens = colours(s)
        await pilot.press("ctrl+t")
        await pilot.pause()
        markdown = colours(s)
        await pilot.press("ctrl+t")  # Markdown is kept for later, drawn in the old colours
        s.app.theme = "edgespec-light"
        await pilot.pause()
        assert not tokens & colours(s)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert not markdown & colours(s)

    drive(stage(), body)


def test_origins_are_told_apart_without_colour() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        palette = s.app.transcript.palette
        looks = {
            name: (style.bold, style.underline, style.reverse)
            for name in ("accepted", "recovered", "bonus", "plain")
            for style in [palette[f"token-{name}"].rich_style]
        }
        assert len(set(map(str, looks.values()))) == 4
        assert palette["cursor"].rich_style.reverse and palette["found"].rich_style.reverse

    drive(stage(), body)


def test_a_narrow_panel_has_pages() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+g")
        await pilot.pause()
        assert "page 1 of" in screen_text(s.app)
        await pilot.click(s.app.panel, offset=(5, 3))
        await pilot.pause()
        assert "page 2 of" in screen_text(s.app)
        found = screen_text(s.app)
        for _ in range(10):
            await pilot.press("ctrl+g")
            await pilot.pause()
            if not s.app.preferences.panel:
                break
            found += screen_text(s.app)
        assert not s.app.preferences.panel
        assert "Drafters" in found and "Machine" in found

    drive(stage(), body, (60, 24))


# ----------------------------------------------------------------------------------------- the disk


def full(*_: Any) -> None:
    raise NotSaved("The disk is full.")


def test_a_new_name_on_a_full_disk_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        monkeypatch.setattr(Writer, "rename", full)
        await say(pilot, "/rename other")
        assert "✗ The disk is full." in screen_text(s.app)
        assert "now called" not in notices(s.app)

    drive(stage(stores=store(tmp_path)), body)


def test_that_a_conversation_goes_on_in_a_copy_is_said_once(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await settled(pilot)
        (file,) = (tmp_path / "conversations").glob("*.jsonl")
        file.write_bytes(file.read_bytes() + b"\n")
        for question in ("two", "three"):
            await say(pilot, question)
            await settled(pilot)
        notes = [x.text for x in s.app.transcript.document.items if isinstance(x, items.Note)]
        assert len(notes) == 1 and "goes on in a copy" in notes[0]

    drive(stage(stores=stores), body)


def test_what_couldnt_be_saved_is_told_after_leaving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from edgespec.tui.leaving import run

    (tmp_path / "conversations").write_text("no folder")
    s = stage(stores=store(tmp_path), held=True)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 1
    told = capsys.readouterr().err
    assert "edgespec: This conversation can't be saved" in told and "memory" not in told


def test_a_conversation_that_was_deleted_isnt_unsaved_after_leaving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from edgespec.tui.leaving import run

    stores = store(tmp_path)
    s = stage(stores=stores)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "drop me")
        await settled(pilot)
        s.runtime.held = True
        await say(pilot, "and this")
        await listed(pilot, s)
        await pilot.press("delete")
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        await pilot.press("y")
        assert stores.history is not None
        await until(lambda: not stores.history.list(), pilot)
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[-1].text != "", pilot)
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert not s.app._running

    monkeypatch.setattr(s.app, "run", lambda: drive(s, body))
    assert run(s.app) == 0 and capsys.readouterr().err == ""
    assert list((tmp_path / "conversations").glob("*.jsonl")) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that takes nothing")
def test_a_chat_whose_terminal_is_gone_waits_for_no_model(tmp_path: Path, monkeypatch: Any) -> None:
    from edgespec.tui.leaving import run

    (tmp_path / "conversations").write_text("no folder")
    s = stage(stores=store(tmp_path))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        await settled(pilot)

    def play() -> None:
        drive(s, body)
        s.app.bridge.close = lambda timeout: False  # type: ignore[method-assign]

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(s.app, "run", play)
    monkeypatch.setattr("os._exit", leave)
    with Path("/dev/full").open("wb", buffering=0) as full:
        gone = TextIOWrapper(BufferedWriter(full), line_buffering=True)
        monkeypatch.setattr("sys.stderr", gone)
        with pytest.raises(SystemExit) as left:
            run(s.app)
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            gone.close()
    assert left.value.code == 1


def test_an_absurd_time_in_a_file_is_no_crash(tmp_path: Path) -> None:
    from edgespec.tui.history import History
    from edgespec.tui.messages import Turn

    history = History(tmp_path / "conversations")
    writer = history.begin()
    writer.put(0, Turn("kept", "yes", "end"))
    writer.close()
    path = history.path(writer.id)
    import re

    text = re.sub(r'"at":\s*[0-9.]+', '"at":1e30', path.read_text(encoding="utf-8"))
    assert "1e30" in text
    path.write_text(text, encoding="utf-8")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await listed(pilot, s)
        await pilot.pause()
        assert "kept" in screen_text(s.app)

    drive(stage(stores=store(tmp_path)), body)


# --------------------------------------------------------------------------------- screens on top


def test_enter_twice_in_the_history_is_enter_once(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+n")
        await listed(pilot, s)
        burst(s, "enter", "enter", "enter")
        await until(lambda: len(s.app.talk.turns) == 1, pilot)
        assert len(s.app.screen_stack) == 1 and s.app._running

    drive(stage(stores=store(tmp_path)), body)


def fetch_until(stop: Any) -> Any:
    def fetcher(pair: str | None, told: Any) -> None:
        while pair != "tiny" and not stop.wait(0.005):
            told("model", 1, 2)

    return fetcher


@pytest.mark.parametrize("twice", [False, True])
def test_a_pair_by_name_is_asked_about_and_downloaded(twice: bool, monkeypatch: Any) -> None:
    import threading

    stop = threading.Event()
    monkeypatch.setattr("edgespec.tui.screens.pairs.total_memory", lambda: 64_000_000_000)
    nothing_here = partial(list_pairs, here=lambda spec: False)
    monkeypatch.setattr("edgespec.tui.screens.pairs.list_pairs", nothing_here)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/pair smollm2")
        await until(lambda: isinstance(s.app.screen, DownloadScreen), pilot)
        await pilot.press("f1")  # no help on top of it
        await pilot.pause()
        assert isinstance(s.app.screen, DownloadScreen)
        if twice:
            await pilot.press("escape")
            await until(lambda: isinstance(s.app.screen, PairPicker), pilot)
            burst(s, "enter", "enter")
            await until(lambda: isinstance(s.app.screen, DownloadScreen), pilot)
            assert len(s.app.screen_stack) == 3
        assert len(s.runtimes) == 1
        stop.set()
        await until(lambda: len(s.app.screen_stack) == 1 and len(s.runtimes) == 2, pilot)
        assert s.app.choice == Choice("smollm2")

    drive(stage(fetcher=fetch_until(stop)), body)


def test_a_download_that_ends_behind_another_screen_is_over() -> None:
    from tui_screens import FakeDownloads, some_pairs

    from edgespec.tui.screens.ask import Confirm

    (info,) = [info for info in some_pairs() if info.name == "smollm2-1.7b"]
    over: list[Any] = []

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.push_screen(DownloadScreen(info, FakeDownloads()), over.append)
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        s.app.push_screen(Confirm("On top", "?", "Yes"))
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        s.app.take(DownloadEnded("smollm2-1.7b"))
        await pilot.press("n")
        await until(lambda: over == [True], pilot)
        assert len(s.app.screen_stack) == 1

    drive(stage(), body)


def test_leaving_while_downloading_never_hangs(monkeypatch: Any) -> None:
    import threading

    stop = threading.Event()

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.bridge.download("other")
        await pilot.press("ctrl+q")
        await until(lambda: not s.app._running, pilot)

    s = stage(fetcher=fetch_until(stop))
    drive(s, body)
    assert not stop.is_set() and not s.app.bridge._downloads


def test_a_pair_is_the_usual_one_only_after_it_was_loaded(tmp_path: Path) -> None:
    stores = store(tmp_path)
    assert stores.settings is not None
    settings = stores.settings

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.fail.append(ModelError("no"))
        s.app._choose(Choice("heavy"))
        await until(lambda: not s.app.busy, pilot)
        assert settings.preferences().last_pair == ""
        s.app._choose(Choice("light"))
        await settled(pilot)
        assert settings.preferences().last_pair == "light"

    drive(stage(stores=stores), body)


def test_a_pair_that_was_named_is_the_usual_one_once_it_was_loaded(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from edgespec.cli import main
    from edgespec.tui.app import ChatApp
    from edgespec.tui.settings_file import SettingsFile

    found: list[ChatApp] = []

    def run(app: ChatApp) -> int:
        found.append(app)
        return 0

    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"EDGESPEC_{name}", str(tmp_path))
    monkeypatch.setattr("edgespec.terminal.line_chat_reason", lambda environment: "")
    monkeypatch.setattr("edgespec.tui.leaving.run", run)
    s = stage()
    assert main(["chat", "--pair", "qwen3-4b"]) == 0
    found[0].bridge, s.app = s.app.bridge, found[0]

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        assert SettingsFile().preferences().last_pair == "qwen3-4b"

    drive(s, body)


def test_every_setting_is_reached_by_keyboard_in_the_chat() -> None:
    from edgespec.tui.settings import FIELDS

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("ctrl+s")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.pause(0.1)
        for key, expected in (("tab", 1), ("down", 2), ("up", 1), ("shift+tab", 0)):
            await pilot.press(key)
            assert s.app.focused is not None and s.app.focused.id == FIELDS[expected].key, key
        seen = set()
        for _ in range(len(FIELDS) + 6):
            assert s.app.focused is not None
            seen.add(s.app.focused.id)
            await pilot.press("tab")
        assert {field.key for field in FIELDS} < seen and {"use", "cancel"} < seen
        await pilot.press(*["ctrl+l", "ctrl+o", "ctrl+n", "ctrl+p", "f1", "f2"])
        assert len(s.app.screen_stack) == 2  # the chat's own keys rest

    drive(stage(), body)


@pytest.mark.parametrize("key", ["tab", "right", "left", "shift+tab"])
def test_yes_is_reached_with_keys_in_the_chat(key: str, tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "drop me")
        await settled(pilot)
        await pilot.press("ctrl+n")
        await listed(pilot, s)
        await pilot.press("d")
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        await pilot.press(key, "enter")
        assert stores.history is not None
        await until(lambda: not stores.history.list(), pilot)

    drive(stage(stores=stores), body)


def test_tab_goes_from_search_to_list_and_from_line_to_button_in_the_chat(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await listed(pilot, s)
        await pilot.press("slash", "tab")
        assert type(s.app.focused).__name__ == "Rows"
        await pilot.press("r")
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        await pilot.press("tab", "tab")
        assert s.app.focused is not None and s.app.focused.id == "use"

    drive(stage(stores=store(tmp_path)), body)


@pytest.mark.parametrize("path", ["", ".", "/", "none/x.md"])
def test_no_name_for_an_export_is_told_and_asked_for_again(
    path: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await listed(pilot, s)
        await pilot.press("e")
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        s.app.screen.query_one("Input").value = path  # type: ignore[attr-defined]
        await pilot.press("enter")
        wanted = "There is no folder" if path.endswith("md") else "is a folder"
        await until(lambda: wanted in notices(s.app), pilot)
        assert s.app.is_running and len(s.app.screen_stack) == 3

    drive(stage(stores=store(tmp_path / "store")), body)
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_help_is_closed_with_its_own_key() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("f1")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.press("f1")
        await until(lambda: len(s.app.screen_stack) == 1, pilot)

    drive(stage(), body)


def test_help_is_closed_with_a_click() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("f1")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        assert "Close" in screen_text(s.app)
        await pilot.click("Button")
        await until(lambda: len(s.app.screen_stack) == 1, pilot)

    drive(stage(), body, (80, 24))


def test_looks_get_rarer_the_longer_drawing_takes() -> None:
    assert [until_next_look(used) for used in (0.0, 0.02, 9.0)] == [TICK, 0.5, 1.0]
    assert until_next_look(0.0, RARELY) == RARELY

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        delays: list[float] = []
        s.app.set_timer = lambda delay, *_: delays.append(delay)  # type: ignore[method-assign]
        for total in (0.02, 0.05):
            s.app.ticker._spent = lambda total=total: total  # type: ignore[misc]
            s.app.ticker._tick()
        assert delays == pytest.approx([0.5, 0.75])

    drive(stage(), body)


def test_a_stop_shows_at_once_however_long_drawing_takes() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await loaded(pilot, s)
        await say(pilot, "go")
        s.runtime.allow(3)
        await pilot.press("escape")
        await until(lambda: not s.app.busy, pilot)
        assert len(s.app.talk.turns) == 1 and max(SOON) < 0.2

    drive(stage(held=True, tick=RARELY), body)
