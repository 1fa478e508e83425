"""Every command, sent as a line, and every key that does the same: what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from tui_fakes import (
    ANSWER,
    Stage,
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

from edgespec.tui import commands
from edgespec.tui.app import ChatApp

Effect = Callable[[Stage], bool]


def on_top(name: str) -> Effect:
    return lambda s: type(s.app.screen).__name__ == name


def told(words: str) -> Effect:
    return lambda s: words in notices(s.app)


EFFECTS: dict[str, tuple[str, Effect]] = {
    "help": ("", on_top("HelpScreen")),
    "pair": ("", on_top("PairPicker")),
    "system": ("Be brief.", lambda s: s.app.settings.system == "Be brief."),
    "set": ("top_k 3", lambda s: s.app.settings.top_k == 3),
    "save": ("", told("The settings of tiny are saved.")),
    "settings": ("", on_top("SettingsScreen")),
    "export": ("json FOLDER/out.json", told("Written to")),
    "clear": ("", lambda s: not s.app.talk.turns and not s.app.transcript.document.items),
    "stats": ("", lambda s: s.app.preferences.panel and "Planner" in screen_text(s.app)),
    "tokens": ("", lambda s: s.app.preferences.tokens and "recovered" in screen_text(s.app)),
    "search": ("", lambda s: s.app.search.display),
    "history": ("", on_top("HistoryList")),
    "rename": ("A name", told("This conversation is now called A name.")),
    "again": ("", lambda s: len(s.runtime.asked) == 2 and len(s.app.talk.turns) == 1),
    "continue": ("", lambda s: len(s.runtime.asked) == 2 and len(s.app.talk.turns) == 1),
    "edit": ("", lambda s: s.app.editing == 0 and s.app.composer.text == "hi"),
    "copy": ("", told("COPIED")),
    "theme": ("edgespec-light", lambda s: s.app.theme == "edgespec-light"),
    "quit": ("", lambda s: not s.app._running),
}


def test_every_command_is_tried_here() -> None:
    named = [command.name for command in commands.COMMANDS]
    named.remove("stop")  # it needs something to stop: see test_stopping
    assert list(EFFECTS) == named


def try_it(how: Any, effect: Effect, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.tui.clipboard.copy", lambda text, *_: lambda: f"COPIED {text}")

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        assert not effect(s)
        await how(pilot, s)
        await until(lambda: effect(s), pilot)
        if s.app._running:
            await until(lambda: not s.app.busy, pilot)

    drive(stage(stores=store(folder)), body)


NAMES = [n for c in commands.COMMANDS for n in (c.name, *c.aliases) if c.name != "stop"]


@pytest.mark.parametrize("name", NAMES)
def test_each_command_and_alias(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, _ = commands.parse(f"/{name}")
    assert command is not None
    words, effect = EFFECTS[command.name]

    async def how(pilot: Pilot[None], s: Stage) -> None:
        await say(pilot, f"/{name} {words.replace('FOLDER', str(tmp_path))}".strip())

    try_it(how, effect, tmp_path, monkeypatch)


@pytest.mark.parametrize("key", [c.keys for c in commands.COMMANDS if c.keys and c.name != "stop"])
def test_each_key(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = [command for command in commands.COMMANDS if command.keys == key]

    async def how(pilot: Pilot[None], s: Stage) -> None:
        await pilot.press(key)

    try_it(how, EFFECTS[command.name][1], tmp_path, monkeypatch)


@pytest.mark.parametrize("how", ["/stop", "escape"])
def test_stopping(how: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        s.runtime.allow(3)
        await until(lambda: bool(s.app.transcript.document.items[-1].text), pilot)
        await (say(pilot, how) if how[0] == "/" else pilot.press(how))
        await settled(pilot)
        assert s.app.talk.turns[0].reason == "cancelled"

    drive(stage(held=True), body)


def test_the_palette_lists_them_and_leaves() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("ctrl+p")
        await until(lambda: len(s.app.screen_stack) == 2, pilot)
        await pilot.press(*"leave")
        await until(lambda: "/quit (ctrl+q)" in screen_text(s.app), pilot)
        await pilot.pause(0.3)
        await pilot.press("enter")
        await until(lambda: not s.app._running, pilot)

    drive(stage(), body)


@pytest.mark.parametrize("focused", ["composer", "transcript"])
def test_ctrl_d_leaves_only_an_empty_message(focused: str) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("a", "b", "home", "ctrl+d")
        assert s.app.composer.text == "b"
        await pilot.press("ctrl+d", "delete")  # Delete never leaves
        await pilot.pause()
        assert s.app._running and s.app.composer.text == ""
        getattr(s.app, focused).focus()
        await pilot.press("ctrl+d")
        await until(lambda: not s.app._running, pilot)

    drive(stage(), body)


# ------------------------------------------------------------------------------ what commands take


def test_a_space_sends_a_message_that_begins_like_a_command() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/etc is what?")
        assert "A space before it sends it" in notices(s.app) and not s.app.talk.turns
        await say(pilot, " /etc is what?")
        await settled(pilot)
        await say(pilot, " /help")
        await settled(pilot)
        assert [t.question for t in s.app.talk.turns] == ["/etc is what?", "/help"]

    drive(stage(), body)


def test_a_system_prompt_has_lines_is_shown_and_taken_away() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "/system")
        assert "There is no system prompt" in notices(s.app)
        await say(pilot, "/system Be brief.\nBe kind.")
        assert s.app.settings.system == "Be brief.\nBe kind." and not s.app.talk.turns
        await say(pilot, "/system")
        assert s.app.settings.system == "Be brief.\nBe kind."
        assert "The system prompt: Be brief.\nBe kind." in notices(s.app)
        await say(pilot, "/set system")
        assert s.app.settings.system == ""
        await say(pilot, "/help\nis no command in two lines")
        await settled(pilot)
        assert len(s.app.talk.turns) == 1

    drive(stage(), body)


def test_answers_further_up_are_copied_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr("edgespec.tui.clipboard.copy", noting(copied))
    from tui_fakes import Script

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        for question in "ab":
            await say(pilot, question)
            await settled(pilot)
        for words in ("2", "2 code", "2 code 1", "1", "0", "3", "code", "x"):
            await say(pilot, f"/copy {words}")
        code = ANSWER.split("```")[1].removeprefix("python\n").strip("\n")
        assert copied == [ANSWER, code, code, "second"]
        for told_now in ("1 (the last) to 2", "has no code block", "Write /copy"):
            assert told_now in notices(s.app)

    drive(stage(Script(answers=[ANSWER, "second"])), body)


def test_a_suggestion_is_taken_with_a_click() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("/", "s")
        await pilot.pause()
        at = next(y for y, x in enumerate(screen_text(s.app).splitlines()) if "/save" in x)
        await pilot.click(offset=(6, at))
        await pilot.pause()
        assert s.app.composer.text == "/save" and s.app.focused is s.app.composer

    drive(stage(), body)


def test_a_damaged_list_of_models_is_told_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "models.toml"
    damaged.write_text("[models.x]\nnonsense = 1\n", encoding="utf-8")
    monkeypatch.setattr("edgespec.registry.user_models_file", lambda: damaged)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press(*"/pair", "space", "s")
        await pilot.pause()
        assert s.app._running and s.app.composer.text == "/pair s"
        await pilot.press("escape", "enter")
        await until(lambda: "nonsense" in notices(s.app), pilot)

    drive(stage(), body)


def test_a_model_that_cannot_be_looked_at_is_told_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "x" * 300  # more than a file's name may have
    models = tmp_path / "models.toml"
    models.write_text(
        f'[models.far]\nsource = {{ kind = "file", path = "{name}.gguf" }}\nformat = "gguf"\n'
        '[pairs.far]\ntarget = "far"\ndrafters = []\ndescription = "Far away"\n',
        encoding="utf-8",
    )
    monkeypatch.setattr("edgespec.registry.user_models_file", lambda: models)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press(*"/pair", "space", "f")
        await pilot.pause()
        assert "/pair far" in screen_text(s.app)
        await pilot.press("escape")
        await say(pilot, f"/pair {name}")
        assert "There is no pair called" in notices(s.app)
        await pilot.press("ctrl+o")
        await until(lambda: "can't be loaded" in screen_text(s.app), pilot)

    drive(stage(), body)


def test_the_pairs_are_read_once_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec import registry

    read: list[str] = []
    load = registry.load_registry

    async def body(pilot: Pilot[None], s: Stage) -> None:
        def noted() -> registry.Registry:
            read.append(s.app.composer.text)
            return load()

        await settled(pilot)
        monkeypatch.setattr(registry, "load_registry", noted)
        await pilot.press(*"/pair", "space", *"smol", "backspace")
        await pilot.pause()
        assert read == ["/pair "] and "/pair smollm2" in screen_text(s.app)
        s.app.composer.put("")
        await pilot.press(*"/pair", "space")
        await pilot.pause()
        assert read == ["/pair "] * 2  # another line: the files may have changed

    drive(stage(), body)


def test_what_is_written_elsewhere_offers_nothing() -> None:
    from textual.widgets import TextArea

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("/", "s", "escape")
        await pilot.pause()
        assert not s.app.suggestions.display
        await pilot.press("ctrl+s")
        await until(lambda: on_top("SettingsScreen")(s), pilot)
        s.app.screen.query_one(TextArea).insert("Be brief.")
        await pilot.pause()
        assert not s.app.suggestions.display

    drive(stage(), body)


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("top_k=3", "top_k", 3),
        ("top-k = 3", "top_k", 3),
        ("system Answer x=1 as a=b.", "system", "Answer x=1 as a=b."),
        ("system=Answer x=1.", "system", "Answer x=1."),
        ("system\nBe brief.\nBe kind.", "system", "Be brief.\nBe kind."),
        ("drafters /models/a=b.gguf", "drafters", ("/models/a=b.gguf",)),
    ],
)
def test_a_setting_is_its_name_and_the_rest_as_it_is(line: str, setting: str, value: Any) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, f"/set {line}")
        await settled(pilot)
        assert getattr(s.app.settings, setting) == value, notices(s.app)

    drive(stage(), body)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set top_k 4o", "must be a whole number"),
        ("/export md FOLDER/none/out.md", "There is no folder"),
        ("/theme nowhere", "There is no theme nowhere"),
        ("/copy 9", "Answers are 1"),
        ("/pair nowhere", "nowhere"),
    ],
)
def test_a_line_that_failed_comes_back(line: str, sentence: str, tmp_path: Path) -> None:
    line = line.replace("FOLDER", str(tmp_path))

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await say(pilot, line)
        assert sentence in notices(s.app) and s.app.composer.text == line

    drive(stage(), body)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("out", "out.md"),
        ("json out", "out.json"),
        ("md out", "out.md"),
        ("json out.JSON", "out.JSON"),
        ("out.json", "out.json"),
        ("json out.md", "no name for .json"),
        ("md out.json", "no name for .md"),
        (".", "is a folder"),
        ("md /", "is a folder"),
        ("..", "is a folder"),
        ("~", "is a folder"),
        ("none/out.md", "There is no folder"),
        (f"{'x' * 300}.md", "Can't write"),
    ],
)
def test_an_export_has_the_name_and_the_form_that_were_asked_for(
    words: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await say(pilot, f"/export {words}")
        await settled(pilot)
        assert written in notices(s.app)

    drive(stage(), body)
    found = [path.name for path in tmp_path.iterdir()]
    assert found == ([written] if "." in written[-6:] and " " not in written else [])
    for path in tmp_path.iterdir():
        assert (path.read_text(encoding="utf-8")[0] == "{") == (path.suffix.lower() == ".json")


def test_a_second_export_says_what_can_replace_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        for _ in range(2):
            await say(pilot, "/export")
            await settled(pilot)
        sentence = "hi.md is there already: write another name behind /export, or press Ctrl+L"
        assert sentence in notices(s.app)

    drive(stage(), body)
    assert [path.name for path in tmp_path.iterdir()] == ["hi.md"]


def test_a_mark_that_was_moved_is_what_enter_takes() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await say(pilot, "hi")
        await settled(pilot)
        await pilot.press(*"/export", "space", "down", "enter")
        await pilot.pause()
        assert s.app.composer.text == "/export json" and "Written" not in notices(s.app)
        await pilot.press(*["backspace"] * 4, "escape", *"x/y.md", "enter")  # no menu: as written
        await pilot.pause()
        assert "There is no folder" in notices(s.app)

    drive(stage(), body)


@pytest.mark.parametrize("empty", [True, False])
def test_the_palette_never_writes_over_a_message(empty: bool) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        s.app.composer.put("" if empty else "half a mess")
        s.app._run_from_palette(commands.parse("/set")[0])  # type: ignore[arg-type]
        await pilot.pause()
        if empty:
            assert s.app.composer.text == "/set " and len(s.app.screen_stack) == 1
            return
        await until(lambda: on_top("AskText")(s), pilot)
        await pilot.press(*"top_k", "space", *"4o", "enter")
        await until(lambda: "whole number" in notices(s.app) and on_top("AskText")(s), pilot)
        await pilot.press("end", "backspace", "2", "enter")
        await until(lambda: on_top("ChatScreen")(s), pilot)
        await until(lambda: s.app.settings.top_k == 42, pilot)
        assert s.app.composer.text == "half a mess"

    drive(stage(), body)


# ------------------------------------------------------------------------------------- preferences


def test_a_theme_is_there_the_next_time(tmp_path: Path) -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        assert s.app.theme == "edgespec-dark"
        await say(pilot, "/theme edgespec-light")

    stores = store(tmp_path)
    drive(stage(stores=stores), body)
    assert stores.settings is not None and stores.settings.preferences().theme == "edgespec-light"


def test_the_settings_form_says_how_they_are_kept() -> None:
    async def body(pilot: Pilot[None], s: Stage) -> None:
        await settled(pilot)
        await pilot.press("ctrl+s")
        await until(lambda: on_top("SettingsScreen")(s), pilot)
        await pilot.pause(0.1)
        await pilot.press("end", "5", "enter")
        await until(lambda: on_top("ChatScreen")(s), pilot)
        await until(lambda: s.app.settings.temperature == 0.75, pilot)
        assert "/save keeps them" in notices(s.app)

    drive(stage(), body)


def test_no_key_is_bound_twice() -> None:
    bound = [binding.key for binding in ChatApp.BINDINGS if hasattr(binding, "key")]
    bound.remove("escape")  # it stops, and where there is nothing to stop it closes
    assert len(bound) == len(set(bound))
