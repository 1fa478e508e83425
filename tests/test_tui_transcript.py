"""The conversation's widget alone: where the reader is, and what is pointed at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import SELECT_ALL, Selection

from edgespec.tui.items import Answer, Question
from edgespec.tui.messages import Piece
from edgespec.tui.widgets.transcript import Transcript

WORDS = [f"w{number} " for number in range(3000)]


class Alone(App[None]):
    """A transcript, and what it said of tokens."""

    CSS = "Transcript { height: 1fr; overflow-y: scroll; }"

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.pointed: list[int] = []

    def compose(self) -> ComposeResult:
        yield self.transcript

    def on_transcript_token_pointed(self, event: Transcript.TokenPointed) -> None:
        self.pointed.append(event.index)


def answer(*, tokens: bool) -> Answer:
    """As a list, as tokens and at another width it takes different numbers of lines."""
    found = Answer("", 0)
    text = "".join(f"{word}\n- " if n % 12 == 0 else word for n, word in enumerate(WORDS))
    found.append(text, [Piece(f"{part} ", "accepted") for part in text.split()])
    found.tokens_shown = tokens
    return found


def play(body: Callable[[Pilot[None], Alone], Awaitable[None]]) -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await body(pilot, app)

    asyncio.run(run())


def share_above(transcript: Transcript, index: int) -> float:
    """The share of an item that is above the view."""
    document = transcript.document
    lines = len(document.items[index].lines(document.width))
    return (transcript.scroll_y - document.top(index)) / lines


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("how", ["tokens", "narrower"])
def test_the_middle_of_a_long_answer_stays_in_view(share: float, how: str) -> None:
    async def body(pilot: Pilot[None], app: Alone) -> None:
        transcript = app.transcript
        document, long = transcript.document, answer(tokens=False)
        height = len(long.lines(document.width))
        transcript.show([Question("short", 0), long, Question("more", 1), Answer("x\n\n" * 50, 1)])
        transcript.scroll_to(y=document.top(1) + round(share * height), animate=False)
        await pilot.pause()
        before = transcript.scroll_y
        assert share_above(transcript, 1) == pytest.approx(share, abs=0.01)
        if how == "tokens":
            long.tokens_shown = True
            transcript.lay_out_again()
        else:
            await pilot.resize_terminal(50, 24)
        await pilot.pause()
        assert len(long.lines(document.width)) != height
        assert share_above(transcript, 1) == pytest.approx(share, abs=0.01)
        if how == "tokens":
            long.tokens_shown = False
            transcript.lay_out_again()
        else:
            await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert transcript.scroll_y == pytest.approx(before, abs=2)

    play(body)


def test_nothing_is_told_of_a_token_that_was_replaced() -> None:
    async def body(pilot: Pilot[None], app: Alone) -> None:
        transcript = app.transcript
        transcript.show([Question("q", 0), answer(tokens=True)])
        transcript.focus()
        await pilot.press("left")
        assert len(app.pointed) == 1 and app.pointed[0] > 0
        transcript.replace(0, [Question("q", 0), answer(tokens=True)])
        await pilot.pause()
        assert app.pointed[1:] == [-1]
        transcript.replace(0, [Question("q", 0)])
        await pilot.pause()
        assert app.pointed[1:] == [-1], "once is enough"

    play(body)


@pytest.mark.parametrize("end", [None, "the last line"])
def test_what_is_selected_is_copied_whole_though_it_was_never_laid_out(end: str | None) -> None:
    async def body(pilot: Pilot[None], app: Alone) -> None:
        transcript = app.transcript
        said = [f"{'表' * 400} end{number}" for number in range(30)]
        transcript.show([item for text in said for item in (Question("q"), Answer(text))])
        await pilot.pause()
        last = transcript.document.height - 1
        selection = SELECT_ALL if end is None else Selection(None, Offset(200, last))
        app.screen.selections = {transcript: selection}
        text = (app.screen.get_selected_text() or "").replace("\n", "")
        assert [f"end{number}" in text for number in range(30)] == [True] * 30
        assert text.count("表") == 400 * 30
        down = transcript.document.height - 2
        app.screen.selections = {transcript: Selection(Offset(3, down), None)}
        end_of_it = app.screen.get_selected_text() or ""
        assert end_of_it.startswith("表表") and text.endswith(f"表表表{end_of_it}")

    play(body)


def test_a_double_click_selects_what_was_said() -> None:
    async def body(pilot: Pilot[None], app: Alone) -> None:
        transcript = app.transcript
        transcript.show([Question("one"), Answer("two\n\nthree"), Question("four")])
        await pilot.pause()
        await pilot.click(transcript, (4, transcript.document.top(1)), times=2)
        await pilot.pause()
        assert app.screen.get_selected_text() == "two\n\nthree"

    play(body)


def test_selected_code_is_what_was_written() -> None:
    async def body(pilot: Pilot[None], app: Alone) -> None:
        transcript = app.transcript
        code = ["def f(x):", f"    return {' + '.join(['number'] * 20)}", "", "print(f(1))"]
        source = "Look:\n\n- here\n\n  ```python\n  " + "\n  ".join(code) + "\n  ```\n\nSo."
        transcript.show([Answer(source)])
        await pilot.pause()
        lines = transcript.document.items[0].lines(transcript.document.width)
        (head,) = [number for number, line in enumerate(lines) if line.head]
        end = max(number for number, line in enumerate(lines) if line.code is not None)
        assert end > head + 4, "a line is broken"
        app.screen.selections = {transcript: Selection(Offset(0, head + 1), Offset(90, end))}
        assert app.screen.get_selected_text() == "\n".join(code)
        app.screen.selections = {transcript: Selection(Offset(7, head + 1), Offset(8, end))}
        assert app.screen.get_selected_text() == "\n".join(["f(x):", *code[1:3], "print"])

    play(body)
