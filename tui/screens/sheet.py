"""What the screens have in common: a sheet on top of the chat, and lists in columns.

Invariant: a row is never wider than asked for, whatever its texts hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from edgespec.tui.shown import one_line, shown

Answer = TypeVar("Answer")
Reply = TypeVar("Reply")

GAP = 2
"""Cells between columns."""


class Sheet(ModalScreen[Answer]):
    """A modal screen: a heading, a body, and its keys in the footer."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-roomy"), (104, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high")]  # noqa: RUF012 - as Screen declares them
    DEFAULT_CSS = """
    Sheet {
        align: center middle;
        background: $background;
        .sheet {
            width: 104;
            max-width: 100%;
            height: 1fr;
            max-height: 40;
            padding: 1 3;
            background: $surface;
            border: round $border;
        }
        &.-low .sheet { padding: 0 3; }
        &.-narrow .sheet { padding: 0 1; }
        .heading { height: 1; margin-bottom: 1; }
        &.-low .heading { margin-bottom: 0; }
        .heading .title { width: 1fr; color: $primary; text-style: bold; }
        .heading .aside { width: auto; color: $text-muted; }
        .detail { height: auto; color: $text-muted; }
        .buttons { height: 1; margin-top: 1; align-horizontal: right; }
        Button.-style-default.-textual-compact {
            margin-left: 2;
            min-width: 10;
            color: $foreground;
            background: $panel;
            text-style: none;
            &:hover { background: $primary 35%; }
            &:focus { color: $background; background: $primary; text-style: bold; }
        }
        Input.-textual-compact, TextArea.-textual-compact {
            padding: 0 1;
            background: $panel;
            &:focus { background: $panel-lighten-1; background-tint: transparent; }
        }
        OptionList {
            background: $surface;
            height: 1fr;
            scrollbar-size-vertical: 1;
            scrollbar-background: $surface;
            scrollbar-color: $foreground 25%;
            &:focus { background-tint: transparent; }
            & > .option-list--option-highlighted {
                background: $panel;
                color: $foreground;
                text-style: bold;
            }
            &:focus > .option-list--option-highlighted {
                background: $primary 30%;
                color: $foreground;
                text-style: bold;
            }
            & > .option-list--option-hover { background: $panel 60%; }
        }
        Rule.-horizontal { margin: 1 0 0 0; color: $border; }
        &.-low Rule.-horizontal { margin: 0; }
        Footer { background: $background; }
    }
    """

    _asking = False

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        """Close it; nothing where it is closed already, as a second key press may ask for it."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    @property
    def left(self) -> bool:
        """Whether it was closed, while something that it began goes on."""
        return self not in self.app.screen_stack

    async def ask(self, screen: Screen[Reply]) -> Reply | None:
        """What a screen on top is answered with; None where one is there already.

        So a key that is pressed twice asks once.
        """
        if self._asking:
            return None
        self._asking = True
        try:
            return await self.app.push_screen_wait(screen)
        finally:
            self._asking = False

    def on_resize(self, event: events.Resize) -> None:
        """Set the keys closer where there is little room."""
        for footer in self.query(Footer):
            footer.compact = event.size.width < 72


class SmallSheet(Sheet[Answer]):
    """A small sheet that what is below shows around."""

    DEFAULT_CSS = """
    SmallSheet {
        background: $background 80%;
        .sheet { width: 66; max-width: 96%; height: auto; padding: 1 3; }
        &.-low .sheet { padding: 0 3; }
        &.-narrow .sheet { padding: 0 1; }
    }
    """


class Heading(Horizontal):
    """The first line of a sheet: what it is, and something small at its right end."""

    def __init__(self, title: str, aside: str = "") -> None:
        super().__init__(classes="heading")
        self._title, self._aside = title, aside

    def compose(self) -> ComposeResult:
        """The two texts."""
        yield plain(self._title, classes="title")
        yield plain(self._aside, classes="aside")

    def aside(self, text: str) -> None:
        """Say something else at the right end."""
        self.query_one(".aside", Static).update(Content(one_line(text)))


class Rows(OptionList):
    """A list whose rows are laid out anew for the width there is."""

    def __init__(self, empty: str) -> None:
        """`empty` is said where there are no rows."""
        super().__init__(compact=True, markup=False)
        self._draw: list[Callable[[int], Content]] = []
        self.empty = empty
        self._drawn_for = 0

    def show(self, draw: list[Callable[[int], Content]], highlight: int = 0) -> None:
        """Show rows, each given as a function of its width; one of them is highlighted."""
        self._draw = draw
        self._drawn_for = 0
        self._fill(highlight)

    def on_resize(self) -> None:
        """Draw for the new width, at the same row."""
        if self._row_width != self._drawn_for:
            self._fill(self.highlighted or 0)

    @property
    def _row_width(self) -> int:
        return max(10, self.scrollable_content_region.width - 2)

    def _fill(self, highlight: int) -> None:
        width = self._drawn_for = self._row_width
        if self._draw:
            self.set_options(
                [Option(Content.assemble(" ", draw(width), " ")) for draw in self._draw]
            )
            self.highlighted = min(highlight, len(self._draw) - 1)
        else:
            note = Content.styled(f" {self.empty}", "$foreground-muted")
            self.set_options([Option(note, disabled=True)])


@dataclass(frozen=True)
class Cell:
    """A piece of a row: its text, its column's width (0: what the others leave), its style.

    `drop`: the fewest cells a row must have for this column to be in it.
    """

    text: str
    width: int = 0
    style: str = ""
    right: bool = False
    drop: int = 0


def row(width: int, cells: Iterable[Cell]) -> Content:
    """A row of exactly `width` cells: columns that have room, aligned, cut where they are long."""
    shown_cells = [cell for cell in cells if width >= cell.drop]
    fixed = sum(cell.width for cell in shown_cells) + GAP * (len(shown_cells) - 1)
    parts: list[Content] = []
    for cell in shown_cells:
        room = cell.width or max(1, width - fixed)
        text = Content.styled(one_line(cell.text), cell.style).truncate(room, ellipsis=True)
        space = max(0, room - text.cell_length)
        parts.append(text.pad_left(space) if cell.right else text.pad_right(space))
    return Content(" " * GAP).join(parts).truncate(width)


def plain(text: str, **options: Any) -> Static:
    """Text as it is written, made visible."""
    return Static(Content(shown(text)), **options)
