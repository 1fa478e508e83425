"""The chat as a person has it: every key and command; the real bridge on a scripted runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input
from tui_fakes import (
    ANSWER,
    PARKED,
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

from edgespec.errors import ModelError
from edgespec.tui import commands, items
from edgespec.tui.app import ChatApp
from edgespec.tui.messages import Choice, Preferences, Settings, Turn

# ---------------------------------------------------------------------------- asking, stopping


def test_a_question_is_answered_and_drawn() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press(*"hi", "enter")
        await settled(pilot)
        text = screen_text(s.app)
        assert "hi" in text and "target's own distribution: drafts" in text
        assert "52.0 tok/s (1.6x plain)" in text
        assert [t.answer for t in s.app.talk.turns] == [ANSWER]

    drive(stage(), body)


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
def test_keys_that_break_the_line(key: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("a", key, "b", "enter")
        await settled(pilot)
        assert s.runtime.asked[0][-1].content == "a\nb"

    drive(stage(), body)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
def test_a_key_stops_an_answer_and_keeps_what_came(key: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(3)
        await until(lambda: len(answers(s.app)[0].text) > 20, pilot)
        await pilot.press(key)
        await settled(pilot)
        (turn,) = s.app.talk.turns
        assert turn.reason == "cancelled" and ANSWER.startswith(turn.answer) and turn.answer
        assert "stopped" in screen_text(s.app)

    drive(stage(held=True), body)


def test_enter_in_a_burst_of_keys_sends_all_that_was_typed_before_it() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for key in [*"burst", "enter"]:
            s.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(lambda: bool(s.app.talk.turns), pilot)
        assert s.app.talk.turns[0].question == "burst"

    drive(stage(), body)


def test_ctrl_c_ten_times_is_harmless() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(2)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        await pilot.press(*["ctrl+c"] * 10)
        await settled(pilot)
        await pilot.press("ctrl+c")
        assert s.app.is_running and "Ctrl+Q leaves" in notices(s.app)
        await say(pilot, "again")
        s.runtime.free()
        await settled(pilot)
        assert s.app.talk.turns[1].answer == ANSWER

    drive(stage(held=True), body)


def test_late_tokens_of_a_stopped_turn_never_land_in_another() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        await pilot.press("ctrl+n")
        s.runtime.free()
        await until(lambda: not s.app.busy, pilot)
        await say(pilot, "two")
        await settled(pilot)
        assert [a.text for a in answers(s.app)] == ["second"]

    drive(stage(Script(answers=[ANSWER, "second"]), held=True), body)


def test_a_second_question_waits_and_a_third_stays_in_the_composer() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await say(pilot, "two")
        await say(pilot, "three")
        assert "waits for the answer above" in screen_text(s.app)
        assert s.app.composer.text == "three" and "waiting already" in notices(s.app)
        s.runtime.free()
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["one", "two"]
        assert "waits" not in screen_text(s.app)

    drive(stage(held=True), body)


def test_the_line_says_that_the_question_is_read_until_the_first_text() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await until(lambda: s.app.figures.status == "reading the question", pilot)
        s.runtime.allow(1)
        await until(lambda: answers(s.app)[0].text != "" and s.app.figures.status == "", pilot)
        assert s.app.busy
        s.runtime.free()
        await settled(pilot)

    drive(stage(held=True), body)


def test_the_line_says_how_far_a_long_question_is_read() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        told = "reading the question: 600 of 2,000 tokens"
        await until(lambda: s.app.figures.status == told, pilot)
        s.runtime.allow(1)
        await until(lambda: answers(s.app)[0].text != "" and s.app.figures.status == "", pilot)
        s.runtime.free()
        await settled(pilot)

    drive(stage(Script(prompt_read=600, prompt_tokens=2000), held=True), body)


def test_stopping_gives_a_waiting_question_back() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await say(pilot, "two")
        await pilot.press("escape")
        await settled(pilot)
        assert s.app.composer.text == "two" and len(s.app.talk.turns) == 1

    drive(stage(held=True), body)


def test_typing_and_asking_while_the_model_loads() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await pilot.press(*"early", "enter")
        await pilot.pause()
        assert "waits for the model" in screen_text(s.app)
        s.opening.set()
        await settled(pilot)
        assert s.app.talk.turns[0].question == "early" and s.app.talk.turns[0].answer

    drive(stage(loading=True), body)


@pytest.mark.parametrize("when", ["loading", "streaming", "idle"])
def test_leaving_never_hangs(when: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        if when != "loading":
            await settled(pilot)
        if when == "streaming":
            await say(pilot, "go")
            s.runtime.allow(2)
            await until(lambda: answers(s.app)[0].text != "", pilot)
        await pilot.press("ctrl+q")
        await until(lambda: not s.app._running, pilot)

    drive(stage(held=True, loading=when == "loading"), body)


# ------------------------------------------------------------------------------------- other turns


def test_again_replaces_the_answer_and_not_what_came_before() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for text in ("a", "b"):
            await say(pilot, text)
            await settled(pilot)
        await pilot.press("ctrl+r")
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == ["1", "3"]
        assert [m.content for m in s.runtime.asked[-1]] == ["a", "1", "b"]
        assert [a.text for a in answers(s.app)] == ["1", "3"]

    drive(stage(Script(answers=["1", "2", "3"])), body)


def test_again_that_is_stopped_before_its_first_word_leaves_the_old_answer() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        s.runtime.free()
        await settled(pilot)
        s.runtime.held = True
        while s.runtime._permits.acquire(blocking=False):
            pass
        await pilot.press("ctrl+r")
        await pilot.press("escape")
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == ["one two three"]
        assert [a.text for a in answers(s.app)] == ["one two three"]

    drive(stage(Script(answers=["one two three"]), held=True), body)


@pytest.mark.parametrize("how", ["f2", "up", "/edit"])
def test_the_last_question_is_changed_and_asked_in_its_place(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await (say(pilot, how) if how[0] == "/" else pilot.press(how))
        assert s.app.composer.text == "a"
        await pilot.press("!", "enter")
        await settled(pilot)
        assert [(t.question, t.answer) for t in s.app.talk.turns] == [("a!", "2")]

    drive(stage(Script(answers=["1", "2"])), body)


def test_an_earlier_question_is_changed_and_what_followed_it_is_dropped(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for question in "abc":
            await say(pilot, question)
            await settled(pilot)
        await pilot.press("f2", "f2")
        assert s.app.composer.text == "b"
        await pilot.pause()
        assert "editing question 2 of 3 · Enter drops the 1 turn behind it" in screen_text(s.app)
        await pilot.press("f2")
        assert s.app.composer.text == "a"
        await pilot.press("f2")  # there is none before the first
        assert s.app.composer.text == "a"
        await pilot.press("escape")
        assert s.app.composer.text == "" and len(s.app.talk.turns) == 3
        await pilot.press("f2", "!", "f2")  # a changed one isn't left: the last again
        assert s.app.composer.text == "c"
        await pilot.press("f2", "!", "enter")
        await settled(pilot)
        kept = [("a", "1"), ("b!", "4")]
        assert [(t.question, t.answer) for t in s.app.talk.turns] == kept
        assert [q.text for q in s.app.transcript.document.items[::2]] == ["a", "b!"]
        assert stores.history is not None
        (summary,) = stores.history.list()
        found = stores.history.read(summary.id).turns
        assert [(t.question, t.answer) for t in found] == kept

    drive(stage(Script(answers=["1", "2", "3", "4"]), stores=stores), body)


def test_deleting_the_open_conversation_begins_a_new_one(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "drop me")
        await settled(pilot)
        await pilot.press("ctrl+l")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.pause(0.2)
        await pilot.press("delete")
        await until(lambda: len(s.app.screen_stack) == 3, pilot)
        await pilot.press("y")
        assert stores.history is not None
        await until(lambda: not stores.history.list(), pilot)
        await pilot.press("escape")
        await until(lambda: not s.app.talk.turns, pilot)
        await say(pilot, "anew")
        await settled(pilot)
        assert [summary.title for summary in stores.history.list()] == ["anew"]

    drive(stage(stores=stores), body)


@pytest.mark.parametrize("how", ["f9", "/continue"])
def test_an_answer_goes_on(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        await (say(pilot, how) if how[0] == "/" else pilot.press(how))
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == ["one two three four"]
        assert [m.content for m in s.runtime.asked[-1]] == ["a", "one two"]

    drive(stage(Script(answers=["one two", " three four"], reason="length")), body)


def test_a_character_that_was_cut_is_shown_whole_when_the_answer_goes_on() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        assert "one \ufffd" in screen_text(s.app)
        await pilot.press("f9")
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == ["one é two"]
        assert "one é two" in screen_text(s.app) and "\ufffd" not in screen_text(s.app)

    drive(stage(Script(answers=["one \ufffd", "é two"], reason="length")), body)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("how", ["ctrl+n", "leave", "failure"])
def test_a_character_that_was_cut_is_whole_as_soon_as_the_rest_of_it_comes(
    how: str, tokens: bool, tmp_path: Path
) -> None:
    script = Script(answers=["one \ufffd", "é two three"], lengths=[1], reason="length")
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        s.runtime.held = True
        script.breaks = (2, ModelError("the pass failed")) if how == "failure" else None
        await pilot.press("f9")
        await pilot.pause(0.2)
        assert "one \ufffd" in screen_text(s.app)
        s.runtime.allow(2)
        await until(lambda: "two" in answers(s.app)[0].text, pilot)
        assert "one é two" in screen_text(s.app) and "\ufffd" not in screen_text(s.app)
        if how == "ctrl+n":
            await pilot.press("ctrl+n")
        elif how == "leave":
            s.app.take_last_words()
        else:
            s.runtime.free()
        await settled(pilot)

    drive(stage(script, stores=stores, preferences=Preferences(tokens=tokens)), body)
    assert stores.history is not None
    (summary,) = stores.history.list()
    (turn,) = stores.history.read(summary.id).turns
    assert turn.answer == "one é two"
    assert bool(turn.error) == (how == "failure")


def test_a_character_that_was_cut_stays_so_when_nothing_more_comes() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "a")
        await settled(pilot)
        s.runtime.held = True
        await pilot.press("f9")
        await until(lambda: len(s.runtime.asked) == 2, pilot)
        await pilot.press("escape")
        await settled(pilot)
        assert [t.answer for t in s.app.talk.turns] == ["one \ufffd"]
        assert "one \ufffd" in screen_text(s.app)

    drive(stage(Script(answers=["one \ufffd", "é two"], reason="length")), body)


# ------------------------------------------------------------------------------------ reading


def test_a_reader_further_up_is_never_pulled_down() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.runtime.free()
        await say(pilot, "long")
        await settled(pilot)
        s.runtime.held = True
        await say(pilot, "more")
        await until(lambda: s.app.talk.running is not None, pilot)
        s.app.transcript.focus()
        await pilot.press("pageup", "pageup")
        top = screen_text(s.app).splitlines()[2]
        s.runtime.free()
        await settled(pilot)
        assert screen_text(s.app).splitlines()[2] == top
        assert not s.app.transcript.following
        await pilot.press("end")
        await pilot.pause()
        assert s.app.transcript.following

    drive(stage(Script(answers=["\n\n".join(f"line {i}" for i in range(80))]), held=True), body)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (100, 16)])
def test_the_end_is_at_the_bottom_with_no_room_below(size: tuple[int, int]) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "why? " * 30)
        await settled(pilot)
        transcript = s.app.transcript
        last = transcript.document.height - 1
        assert transcript.document.line(last) is not None
        assert transcript.scroll_y == max(0, last + 1 - transcript.size.height)
        real = sum(len(i.lines(transcript.document.width)) for i in transcript.document.items[-2:])
        top = transcript.document.top(len(transcript.document.items) - 2)
        assert top + real == last + 1

    drive(stage(), body, size)


def test_search_goes_from_match_to_match() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for text in ("needle one", "nothing", "needle two"):
            await say(pilot, text)
            await settled(pilot)
        await pilot.press("ctrl+f", *"needle")
        await until(lambda: "2 of 2" in screen_text(s.app), pilot)
        await pilot.press("ctrl+f")
        await until(lambda: "1 of 2" in screen_text(s.app), pilot)
        assert "needle one" in screen_text(s.app)
        await pilot.press("escape")
        assert s.app.focused is s.app.composer and not s.app.search.display

    drive(stage(Script(answers=["\n\n".join("xyz" * 20)])), body)


def test_search_finds_what_is_seen_line_by_line() -> None:
    answer = "It is **very** `fast` here.\n\n" + "\n\n".join("fast **and** slow" for _ in "12345")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "and? " * 30)
        await settled(pilot)
        for sought, of in (
            ("very fast here", "1 of 1"),  # with marks between the words
            ("fast and", "5 of 5"),  # each in its line
            ("and? and?", "2 of 2"),  # of a question in two lines
            ("slow fast", "not found"),  # in two paragraphs
            ("**", "not found"),
            ("FAST", "6 of 6"),
        ):
            await say(pilot, f"/search {sought}")
            await until(lambda of=of: of in screen_text(s.app), pilot, f"{sought}: {of}")
            await pilot.press("escape")
        await say(pilot, "/search fast")
        await until(lambda: "6 of 6" in screen_text(s.app), pilot)
        for count in (5, 4, 3, 2, 1, 6):
            await pilot.press("up")
            await until(lambda count=count: f"{count} of 6" in screen_text(s.app), pilot)

    drive(stage(Script(answers=[answer])), body)


def test_tokens_are_shown_with_origin_and_probability() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("ctrl+t")
        await say(pilot, "hi")
        await settled(pilot)
        assert "accepted" in screen_text(s.app) and "recovered" in screen_text(s.app)
        await pilot.press("tab", "left", "left")
        await pilot.pause()
        line = next(x for x in screen_text(s.app).splitlines() if "probability" in x)
        assert "“ anew.”" in line and "%" in line
        await pilot.press("ctrl+t")
        assert not s.app.preferences.tokens

    drive(stage(), body)


def test_hovering_a_token_tells_it() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.hover(s.app.transcript, offset=(5, 3))
        await pilot.pause()
        assert "“Speculative”" in screen_text(s.app) and "nothing was drafted" in screen_text(s.app)

    drive(stage(preferences=Preferences(tokens=True)), body)


# ------------------------------------------------------------------------------------- commands


def test_every_command_has_a_method_and_every_key_its_command() -> None:
    keys = {binding.key for binding in ChatApp.BINDINGS if hasattr(binding, "key")}
    for command in commands.COMMANDS:
        assert hasattr(ChatApp, f"command_{command.name}") or hasattr(
            ChatApp, f"action_{command.name}"
        ), command.name
        if command.keys:
            assert command.keys in keys, command.name


def test_an_unknown_command_is_said_and_stays() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/quti")
        assert "did you mean /quit?" in notices(s.app) and s.app.composer.text == "/quti"
        await say(pilot, "/usr/bin is a path, isn't it?")
        await settled(pilot)
        assert s.app.talk.turns[0].question.startswith("/usr")

    drive(stage(), body)


def test_tab_completes_commands_and_their_words() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("/", "e", "x")
        await pilot.pause()
        assert "write the conversation to a file" in screen_text(s.app)
        await pilot.press("tab")
        assert s.app.composer.text == "/export "
        await pilot.press("j", "tab")
        assert s.app.composer.text == "/export json"

    drive(stage(), body)


def test_settings_are_set_saved_and_used(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/set temperature 0.2")
        await say(pilot, "/system Be brief.")
        await say(pilot, "hi")
        await settled(pilot)
        assert s.runtime.asked[0][0].content == "Be brief."
        assert s.runtime.options[0]["sampling"].temperature == 0.2
        await say(pilot, "/save")
        await settled(pilot)
        assert s.app.stores.settings is not None
        assert s.app.stores.settings.settings("tiny").temperature == 0.2
        await say(pilot, "/set temperature cold")
        assert "temperature" in notices(s.app)

    drive(stage(stores=store(tmp_path)), body)


def test_a_setting_that_a_pair_is_loaded_with_loads_it_again() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/set lookahead 0")
        await settled(pilot)
        assert len(s.runtimes) == 2 and s.runtimes[0].closed

    drive(stage(), body)


def test_a_conversation_is_kept_found_and_exported(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "keep me")
        await settled(pilot)
        await say(pilot, f"/export json {tmp_path / 'out.json'}")
        await settled(pilot)
        kept = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert kept["turns"][0]["question"] == "keep me"
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert s.app.talk.turns == []
        await pilot.press("ctrl+l")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.pause(0.2)
        await pilot.press("enter")
        await until(lambda: len(s.app.talk.turns) == 1, pilot)
        assert s.app.talk.turns[0].answer == ANSWER

    drive(stage(stores=stores), body)


def test_a_disk_that_is_full_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "conversations").write_text("no folder")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        assert "✗" in screen_text(s.app)
        await say(pilot, "and more")
        await settled(pilot)
        assert len(s.app.talk.turns) == 2

    drive(stage(stores=store(tmp_path)), body)


def test_the_panel_opens_with_its_key_and_by_mouse() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+g")
        await pilot.pause()
        assert "Tokens in a round" in screen_text(s.app)
        await pilot.click("FooterKey.-command-palette")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.press("escape")
        await say(pilot, "/stats")
        assert "Tokens in a round" not in screen_text(s.app)

    drive(stage(), body, (120, 36))


def test_copying_an_answer_a_code_block_and_by_a_click(monkeypatch: Any) -> None:
    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("ctrl+y")
        assert "no answer to copy" in notices(s.app)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+y")
        await say(pilot, "/copy code")
        head = next(i for i, x in enumerate(screen_text(s.app).splitlines()) if " python " in x)
        await pilot.click(offset=(6, head))
        await pilot.pause()
        code = ANSWER.split("```")[1].removeprefix("python\n").strip("\n")
        assert copied == [ANSWER, code, code]
        await say(pilot, "/copy code 3")
        assert "1 to 1" in notices(s.app)

    drive(stage(), body)


def test_code_is_copied_as_it_came(monkeypatch: Any) -> None:
    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))
    made = "all:\n\tcc -o a a.c\t# \u0645\u06cc\u200c\u062e 👨\u200d👩\u200d👧 👍🏽 ❤\ufe0f"
    nested = "if x:\n\ty"
    item = "- one\n\n  ```\n  if x:\n  \ty\n  ```"
    answer = f"Make\u200bfile:\n\n```make\n{made}\n```\n\n{item}\n"

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        for words in ("code 1", "code 2"):
            await say(pilot, f"/copy {words}")
        head = next(i for i, x in enumerate(screen_text(s.app).splitlines()) if " make " in x)
        await pilot.click(offset=(6, head))
        await pilot.pause()
        assert copied == [made, nested, made]

    drive(stage(Script(answers=[answer])), body)


def test_typing_works_wherever_the_keys_are() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.click(s.app.transcript)
        assert s.app.focused is s.app.transcript
        await pilot.press("j", "k", "space", "g", "enter")
        await settled(pilot)
        assert s.runtime.asked[0][-1].content == "jk g"

    drive(stage(), body)


def test_the_menu_of_commands_is_walked_with_the_arrows() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("/", "s", "down", "down", "up", "tab")
        assert s.app.composer.text == "/set "
        await pilot.press("escape")
        await pilot.pause()
        assert not s.app.suggestions.display

    drive(stage(), body)


def test_leaving_in_the_middle_keeps_what_came(tmp_path: Path) -> None:
    stores = store(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(3)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        s.app.save_unfinished()

    drive(stage(stores=stores, held=True), body)
    assert stores.history is not None
    (summary,) = stores.history.list()
    (turn,) = stores.history.read(summary.id).turns
    assert turn.question == "go" and turn.answer and ANSWER.startswith(turn.answer)


def test_two_thousand_messages_open_and_scroll() -> None:
    turns = [Turn(f"question {i}", f"{ANSWER}\n{i}", "end") for i in range(1000)]

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.show_turns(turns, None)
        await pilot.pause()
        laid_out = [x for x in s.app.transcript.document.items if x._kept is not None]
        assert len(laid_out) < 10  # only what is in view
        assert "999" in screen_text(s.app)
        s.app.transcript.focus()
        await pilot.press("home")
        await pilot.pause()
        assert "question 0" in screen_text(s.app).splitlines()[2]
        await pilot.press(*["pagedown"] * 5, "end")
        await pilot.pause()
        assert "999" in screen_text(s.app)

    drive(stage(), body)


def test_help_and_theme() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("f1")
        await pilot.pause()
        assert "/export [md|json] [FILE]" in screen_text(s.app)
        await pilot.press("escape")
        await say(pilot, "/theme edgespec-light")
        assert s.app.theme == "edgespec-light"

    drive(stage(), body)


# ------------------------------------------------------------------------------------ hard cases


@pytest.mark.parametrize("text", ["[/", "[b +", "[red]x", "[/red]", "[@click=app.quit]x[/]"])
def test_brackets_are_shown_as_written(text: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, f"ask {text}")
        await settled(pilot)
        assert screen_text(s.app).count(text) >= 3  # model, user and error
        s.app.tell(f"told {text}", "error")
        await until(lambda: f"told {text}" in screen_text(s.app), pilot, "the notice")
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert screen_text(s.app).count(text) >= 3

    script = Script(answers=[f"say {text}"], notes=[f"path /tmp/{text}"])
    drive(stage(script, choice=Choice(target=f"/tmp/{text}")), body)


def test_nothing_reaches_the_terminal_as_a_control_sequence() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\x9b31m\x1b]52;c;eA==\x07\u202eabc\x00\x7f"

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.post_message(events.Paste(f"user {evil}end"))
        await pilot.pause()
        assert s.app.composer.text == "user \u202eabcend"
        await pilot.press("enter")
        await settled(pilot)
        for _ in range(2):
            drawn = screen_text(s.app)
            bad = [c for c in drawn if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
            assert not bad and "\u202e" not in drawn and "␛[2J" in drawn
            await pilot.press("ctrl+t")
            await pilot.pause()

    script = Script(answers=[f"model {evil}\n```\n{evil}\n```"], notes=[evil])
    drive(stage(script), body)


WIDE = "❤️ 👨‍👩‍👧 👍🏽 🇩🇪 1️⃣ 表示 ｆｕｌｌ مرحبا بالعالم e\u0301 n\u0303\u0325 ﷽ \u200b|"


@pytest.mark.parametrize("size", [(60, 20), (120, 36)])
def test_every_line_is_as_wide_as_the_screen(size: tuple[int, int]) -> None:
    from rich.cells import cell_len

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, WIDE * 3)
        await settled(pilot)
        for _ in range(2):
            widths = {cell_len(line) for line in screen_text(s.app).splitlines()}
            assert widths == {size[0]}
            assert "\ufe0f" not in screen_text(s.app) and "\u200d" not in screen_text(s.app)
            await pilot.press("ctrl+t")
            await pilot.pause()
        assert s.runtime.asked[0][-1].content == WIDE * 3  # what is sent is what was written

    script = Script(answers=[f"{WIDE}\n\n| a | b |\n|---|---|\n| {WIDE} | 表 |\n"])
    drive(stage(script, preferences=Preferences(panel=True)), body, size)


def test_a_paste_of_5000_lines_arrives_whole_and_isnt_sent() -> None:
    paste = "\r\n".join(f"line {i}" for i in range(5000)) + "\n"

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.post_message(events.Paste(paste))
        await pilot.pause()
        assert s.app.talk.running is None
        await pilot.press("enter")
        await settled(pilot)
        assert s.runtime.asked[0][-1].content == paste.replace("\r\n", "\n")

    drive(stage(), body)


@pytest.mark.parametrize(
    "answer",
    [
        "x" * 20_000,
        "word " * 4_000,
        "```python\n" + "print(1)\n" * 300,
        "# a\n" + "> " * 200,
        "*" * 800 + "x" + "*" * 800,
    ],
    ids=["one word", "one line", "open fence", "deep quote", "deep emphasis"],
)
def test_answers_of_odd_shape(answer: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        s.runtime.allow(20)
        await until(lambda: answers(s.app)[0].text != "", pilot)
        s.runtime.free()
        await settled(pilot)
        assert s.app.talk.turns[0].answer == answer
        assert s.app.transcript.following

    drive(stage(Script(answers=[answer], lengths=(400,)), held=True, settings=LONG), body, (60, 20))


LONG = Settings(max_tokens=100_000)


def test_resizing_while_an_answer_streams() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        for width, height in ((60, 20), (200, 60), (80, 24), (30, 8), (110, 30)):
            s.runtime.allow(2)
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert len(screen_text(s.app).splitlines()) == height
        s.runtime.free()
        await settled(pilot)
        assert s.app.talk.turns[0].answer == ANSWER and s.app.transcript.following

    drive(stage(held=True, preferences=Preferences(panel=True)), body)


def test_a_pair_that_cannot_be_loaded_is_told_and_another_can_be() -> None:
    s = stage()
    s.fail.append(ModelError("/models/[red]gone.gguf isn't there any more: run `edgespec pull x`"))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await until(lambda: not s.app.busy, pilot)
        assert "✗ /models/[red]gone.gguf isn't there" in screen_text(s.app)
        await say(pilot, "hi")
        assert s.app.composer.text == "hi" and "choose a pair first" in notices(s.app)
        s.app._choose(Choice("tiny"))
        await settled(pilot)
        await pilot.press("enter")
        await settled(pilot)
        assert s.app.talk.turns[0].answer == ANSWER

    drive(s, body)


def test_an_answer_that_fails_is_told_and_the_next_is_given() -> None:
    script = Script(answers=[ModelError("the pass failed [b +"), ANSWER], status=PARKED)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "one")
        await settled(pilot)
        assert "✗ the pass failed [b +" in screen_text(s.app)
        await say(pilot, "two")
        await settled(pilot)
        assert [t.error != "" for t in s.app.talk.turns] == [True, False]
        assert [m.content for m in s.runtime.asked[-1]] == ["two"]

    drive(stage(script), body)


def test_loading_is_stopped_with_escape() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await until(lambda: s.app._load > 0, pilot)
        await pilot.press("escape")
        await until(lambda: not s.app.busy, pilot)
        assert "Loading was stopped." in screen_text(s.app)

    drive(stage(loading=True), body)


def test_what_went_wrong_in_an_answer_is_told_below_it() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await say(pilot, "one")
        await settled(pilot)
        (note,) = [x.text for x in s.app.transcript.document.items if isinstance(x, items.Note)]
        assert note == "model stopped drafting"
        assert s.app.talk.turns[-1].answer == "1"

    drive(stage(Script(answers=["1"], failed=("model stopped drafting",))), body)


def test_what_went_wrong_stands_above_the_question_that_waited() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await say(pilot, "one")
        await say(pilot, "two")
        s.runtime.allow(99)
        await settled(pilot)
        kinds = [type(x).__name__ for x in s.app.transcript.document.items]
        assert kinds == ["Question", "Answer", "Note"] * 2

    script = Script(answers=["1", "2"], failed=("model stopped drafting",))
    drive(stage(script, held=True), body)


@pytest.mark.parametrize("how", ["ctrl+n", "another pair"])
def test_figures_go_with_what_they_are_of(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        await settled(pilot)
        assert "first token" in screen_text(s.app) and "TTFT" in screen_text(s.app)
        if how == "ctrl+n":
            await pilot.press(how)
        else:
            s.app.open_pair(Choice("other"), s.app.settings)
        await settled(pilot)
        assert "TTFT" not in screen_text(s.app)
        assert "Figures appear with the next answer" in screen_text(s.app)
        await say(pilot, "go")
        await settled(pilot)
        assert "TTFT" in screen_text(s.app)

    drive(stage(preferences=Preferences(panel=True)), body, (140, 40))


def test_ctrl_c_in_the_search_copies_what_is_selected_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "go")
        await pilot.press("ctrl+f", *"word")
        s.app.search.query_one(Input).select_all()
        await pilot.press("ctrl+c")
        await settled(pilot)
        assert copied == ["word"] and s.app.talk.turns[-1].reason == "end"

    drive(stage(), body)


@pytest.mark.parametrize("rows", [12, 14, 21])
def test_a_long_message_leaves_the_conversation_its_room(rows: int) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.put("\n".join("abcdefghijkl"))
        await pilot.pause()
        assert s.app.transcript.size.height >= rows // 3
        await pilot.resize_terminal(80, 40)
        await pilot.pause()
        assert s.app.composer.size.height == 8  # and two lines around it

    drive(stage(), body, (80, rows))
