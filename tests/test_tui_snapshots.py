"""Pictures of the chat, compared with those in `__snapshots__`.

`pytest --snapshot-update` takes them anew, and whoever does looks at them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tui_fakes import (
    ANSWER,
    PARKED,
    Script,
    Stage,
    notices,
    say,
    screen_text,
    settled,
    stage,
    until,
)

from edgespec.errors import ModelError
from edgespec.tui.messages import Downloading, Preferences

DARK, LIGHT = "edgespec-dark", "edgespec-light"
SIZES = {"narrow": (60, 20), "usual": (80, 24), "wide": (200, 60)}
Prepare = Callable[[Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process takes differs from machine to machine."""
    monkeypatch.setattr("edgespec.platform.memory.resident_memory", lambda: 412_000_000)


@pytest.fixture
def picture(snap_compare: Any) -> Callable[..., None]:
    """Compares a stage's screen after `prepare` with its picture."""

    def compare(s: Stage, prepare: Prepare, size: tuple[int, int] = (100, 30)) -> None:
        async def run_before(pilot: Any) -> None:
            await prepare(pilot)
            await pilot.pause()

        assert snap_compare(s.app, run_before=run_before, terminal_size=size)
        s.app.bridge.close(5)

    return compare


async def finished(pilot: Any) -> None:
    await settled(pilot)
    await say(pilot, "Why is speculative decoding exact? Show it [in code].")
    await settled(pilot)


def test_empty(picture: Any) -> None:
    picture(stage(), settled)


def test_streaming(picture: Any) -> None:
    s = stage(held=True, preferences=Preferences(panel=True))

    async def prepare(pilot: Any) -> None:
        await settled(pilot)
        await say(pilot, "Why is speculative decoding exact?")
        s.runtime.allow(9)
        await until(lambda: s.app.figures.figures is not None, pilot)
        answer = s.app.transcript.document.items[-1]
        await until(lambda: "checks them in" in answer.text, pilot)

    picture(s, prepare, (120, 36))


@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("size", SIZES)
def test_finished(picture: Any, size: str, theme: str) -> None:
    picture(stage(preferences=Preferences(theme=theme, panel=True)), finished, SIZES[size])


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_tokens(picture: Any, theme: str) -> None:
    async def prepare(pilot: Any) -> None:
        await finished(pilot)
        await pilot.press("tab", "left", "left", "left")

    picture(stage(preferences=Preferences(theme=theme, tokens=True)), prepare)


def test_parked(picture: Any) -> None:
    picture(stage(Script(status=PARKED), preferences=Preferences(panel=True)), finished, (120, 36))


def test_error(picture: Any) -> None:
    s = stage()
    s.fail.append(ModelError("/models/[red]gone.gguf isn't there: run `edgespec pull tiny`"))

    async def prepare(pilot: Any) -> None:
        await until(lambda: not s.app.busy, pilot)

    picture(s, prepare, SIZES["usual"])


def test_download(picture: Any) -> None:
    s = stage(loading=True)

    async def prepare(pilot: Any) -> None:
        await until(lambda: s.app._load > 0, pilot)
        await until(lambda: s.app.figures.status.startswith("loading"), pilot)
        s.app.take(Downloading("tiny", "tiny-135m", 34_000_000, 98_362_432))
        s.app.ticker._started = False  # what the load says next would hide it
        await pilot.press(*"I can write meanwhile")

    picture(s, prepare, SIZES["usual"])
    s.opening.set()


def test_completions(picture: Any) -> None:
    async def prepare(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("/", "s")

    picture(stage(), prepare, SIZES["usual"])


def test_search(picture: Any) -> None:
    async def prepare(pilot: Any) -> None:
        await finished(pilot)
        await pilot.press("ctrl+f", *"draft")
        await until(lambda: " of " in screen_text(pilot.app), pilot)

    picture(stage(), prepare)


def test_help(picture: Any) -> None:
    async def prepare(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("f1")

    picture(stage(), prepare, (100, 40))


def test_help_in_few_columns(picture: Any) -> None:
    async def prepare(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("f1")
        await pilot.pause()
        lines = screen_text(pilot.app).splitlines()
        assert sum("stop the answer" in line for line in lines) == 1  # not a letter a line

    picture(stage(), prepare, (40, 20))


@pytest.mark.parametrize("rows", [12, 16])
def test_the_panel_leaves_the_conversation_its_room(picture: Any, rows: int) -> None:
    async def prepare(pilot: Any) -> None:
        await finished(pilot)
        if rows == 12:
            await pilot.press("ctrl+g")
            assert "a higher terminal" in notices(pilot.app) and pilot.app.preferences.panel
        assert pilot.app.transcript.size.height >= 4

    picture(stage(preferences=Preferences(panel=True)), prepare, (80, rows))


def test_scripts_of_the_world(picture: Any) -> None:
    text = "❤️ 👨‍👩‍👧 👍🏽 表示 ｆｕｌｌ مرحبا e\u0301 [/ [b + [red]x \x1b[2J"
    script = Script(answers=[f"{text}\n\n| {text} | b |\n|---|---|\n| 表 | c |\n\n> {text}"])

    async def prepare(pilot: Any) -> None:
        await settled(pilot)
        pilot.app.ask(text)  # the composer would leave out the sequence
        await settled(pilot)

    picture(stage(script, preferences=Preferences(panel=True)), prepare, (120, 30))


def test_no_colour(picture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    picture(stage(preferences=Preferences(tokens=True)), finished)


def test_the_answer_used_here_has_every_kind_of_block() -> None:
    assert all(part in ANSWER for part in ("**", "`one pass`", "```python", "1. "))
    assert Path(__file__).with_name("__snapshots__").is_dir()
