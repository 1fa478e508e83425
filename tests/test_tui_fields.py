"""Where a person writes: what gets into a field, and what is cut out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input
from tui_fakes import Script, Stage, drive, notices, say, screen_text, settled, stage, until
from tui_screens import Host

from edgespec.tui import commands
from edgespec.tui.messages import Settings
from edgespec.tui.screens.ask import AskText
from edgespec.tui.screens.settings import SettingsScreen
from edgespec.tui.widgets.fields import TextBox, TextField

WILD = "one\x1b[2J\r\n\ttwo \x9b31mred\x07\n"
"""A text with sequences, controls, tabs and line breaks."""


class Two(App[None]):
    """A field of each kind."""

    def __init__(self, value: str = "") -> None:
        super().__init__()
        self.value = value

    def compose(self) -> ComposeResult:
        self.field, self.box = TextField(self.value), TextBox(self.value)
        yield self.field
        yield self.box


def play(app: Two, body: Callable[[Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            await body(pilot)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["terminal", "ctrl+v"])
def test_a_paste_arrives_whole_in_each_field_less_its_controls(how: str) -> None:
    app = Two()

    async def body(pilot: Pilot[None]) -> None:
        app._clipboard = WILD
        for field in (app.field, app.box):
            field.focus()
            await pilot.press(*"ab", "left", "shift+left")  # "a" is selected
            if how == "terminal":
                field.post_message(events.Paste(WILD))
            else:
                await pilot.press("ctrl+v")
            await pilot.pause()
            await pilot.press("!")  # the cursor stands behind what was pasted
        assert app.field.value == "one  two red!b"
        assert app.box.text == "one\n\ttwo red\n!b"

    play(app, body)


def test_what_a_field_begins_with_and_is_given_holds_no_controls_either() -> None:
    app = Two(WILD)

    async def body(pilot: Pilot[None]) -> None:
        assert (app.field.value, app.box.text) == ("one  two red ", "one\n\ttwo red\n")
        app.field.value = app.box.text = "a\x1b]0;t\x07b"
        assert (app.field.value, app.box.text) == ("ab", "ab")

    play(app, body)


def test_nothing_copied_is_no_reason_to_delete() -> None:
    app = Two("some words")

    async def body(pilot: Pilot[None]) -> None:
        for field in (app.field, app.box):
            field.focus()
            await pilot.press("end", "shift+home", "ctrl+v")
        assert (app.field.value, app.box.text) == ("some words",) * 2

    play(app, body)


def test_the_form_draws_no_sequence_of_a_kept_prompt_and_keeps_what_was_not_changed() -> None:
    kept = Settings(system="Be \x1b[31mred", drafters=("a\x1b[2Jb.gguf",))

    async def body(app: Host) -> None:
        async with app.run_test(size=(120, 60)) as pilot:
            await pilot.pause()
            form = app.screen
            assert form.query_one("#system", TextBox).text == "Be red"
            assert form.query_one("#drafters", TextField).value == "ab.gguf"
            await pilot.press("end", "backspace", "5", "f10")
            await pilot.pause()

    app = Host(lambda: SettingsScreen(kept, "tiny"))
    asyncio.run(body(app))
    answer: Any = app.answer
    assert (answer.system, answer.drafters) == (kept.system, kept.drafters)
    assert answer != kept


def test_an_answer_pasted_into_the_search_breaks_no_line() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press("ctrl+y", "ctrl+f", "ctrl+v")
        await pilot.pause()
        assert s.app.search.query_one(TextField).value == "first line  third line"
        assert "first line  third line" in screen_text(s.app)

    drive(stage(Script(answers=["first line\n\nthird line"])), body)


def test_a_question_kept_with_a_sequence_is_edited_without_it() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for question in ("first", "second"):
            await say(pilot, question)
            await settled(pilot)
        s.app.talk.turns[1] = replace(s.app.talk.turns[1], question="sec\x1b[2Jond")
        await pilot.press("f2")
        assert s.app.composer.text == "second"
        await pilot.press("f2")  # unchanged, so the one before it is next
        assert s.app.composer.text == "first"

    drive(stage(), body)


def test_the_palette_takes_a_system_prompt_of_several_lines() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.put("half a mess")
        s.app._run_from_palette(commands.named("system"))
        await until(lambda: isinstance(s.app.screen, AskText), pilot)
        assert s.app.focused is not None
        s.app.focused.post_message(events.Paste("Be brief.\nBe kind."))
        await pilot.pause()
        await pilot.press("ctrl+j", *"Rhyme.", "enter")
        await until(lambda: s.app.settings.system != "", pilot)
        assert s.app.settings.system == "Be brief.\nBe kind.\nRhyme."
        assert s.app.composer.text == "half a mess" and len(s.app.screen_stack) == 1

    drive(stage(), body)


@pytest.mark.parametrize("how", ["terminal", "ctrl+v"])
def test_a_paste_into_the_palette_is_one_line_less_its_controls(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app._clipboard = WILD
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(s.app.focused, Input), pilot)
        line = s.app.focused
        assert isinstance(line, Input)
        if how == "terminal":
            s.app.post_message(events.Paste(WILD))
        else:
            await pilot.press("ctrl+v")
        await until(lambda: line.value == "one  two red", pilot)
        await pilot.press("escape", "ctrl+v")
        await until(lambda: s.app.composer.text == "one\n\ttwo red\n", pilot)

    drive(stage(), body)


@pytest.mark.parametrize(
    ("variable", "sent"),
    [("TMUX", ["\x1bPtmux;\x1b\x1b]52;c;Y3V0\x07\x1b\\\x1b]52;c;Y3V0\x07"]), ("STY", [])],
)
def test_what_is_cut_goes_the_way_of_what_is_copied(
    variable: str, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMUX", "STY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, "1")
    kept: list[bytes] = []
    monkeypatch.setattr(
        "edgespec.tui.clipboard.write_whole", lambda path, data, **_: kept.append(data)
    )

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        written: list[str] = []
        monkeypatch.setattr(s.app, "_write_sequence", written.append)
        assert s.app._driver is not None
        monkeypatch.setattr(s.app._driver, "write", written.append)
        await pilot.press("ctrl+x")  # nothing is written yet, so nothing is cut
        await pilot.press(*"cut", "ctrl+x")
        await until(lambda: "Copied 3 characters" in notices(s.app), pilot)
        assert s.app.composer.text == ""
        assert [data for data in written if "]52" in data] == sent and kept == [b"cut"]
        await pilot.press("ctrl+v")
        assert s.app.composer.text == "cut"

    drive(stage(), body)
