"""The conversation's widget alone: where the reader is, and what is pointed at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

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
