"""The conversation: one widget that draws the lines in view, however many messages there are.

Invariant: only lines in view are drawn, and each once until it changes; marks (what was found, the
cursor, a selection) are laid over them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip

from edgespec.tui.items import Answer, Note
from edgespec.tui.lines import Line
from edgespec.tui.palette import Palette, restyled
from edgespec.tui.widgets.scrolled import Scrolled

STYLES = frozenset(
    (
        "you you-bar note error caption muted title heading strong emphasis strike link code "
        "code-block code-label quote bullet rule token-accepted token-recovered token-bonus "
        "token-plain found cursor"
    ).split()
)
"""What lines are made of; the stylesheet says how `.transcript--NAME` looks."""

GREETING = (
    "edgespec",
    "A model on this machine; what you write stays here.",
    "",
    "Ctrl+G   figures: how fast it is, and what speculation gains",
    "Ctrl+T   tokens: which were drafted, and which stood",
    "Ctrl+O   another pair of models",
    "F1       all keys and commands",
)
MARGIN = 1


class Transcript(Scrolled, can_focus=True):
    """Draws the items, and knows what is pointed at."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in STYLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "token(-1)", show=False),
        Binding("right", "token(1)", show=False),
    ]

    @dataclass
    class TokenPointed(Message):
        """The pointer or the cursor is on a token of an answer; `index` -1: on none."""

        answer: Answer | None
        index: int

    @dataclass
    class Typed(Message):
        """The person writes, though the keys are here; "" for Enter."""

        text: str

    @dataclass
    class Pasted(Message):
        """The person pastes, though the keys are here."""

        text: str

    @dataclass
    class CodeClicked(Message):
        """The head of a code block was clicked."""

        code: str

    def __init__(self) -> None:
        super().__init__()
        self.palette = Palette(self, "transcript--", STYLES)
        self._cursor: tuple[Answer, int] | None = None

    def forget_cursor(self) -> None:
        """See `Scrolled.forget_cursor`."""
        if self._cursor is not None:
            self._point(None)

    # ---------------------------------------------------------------------------------- drawing

    def render_line(self, y: int) -> Strip:
        """A line of the view."""
        number = int(self.scroll_y) + y
        width = self.size.width
        line = self.document.line(number) or self._greeting(number)
        if line is None:
            return Strip.blank(width, self.rich_style)
        strip = line.strip
        if strip is None or strip.cell_length != width:
            strip = line.strip = self._draw(line, width)
        for begin, end, name in self._marks(line, number):
            strip = restyled(strip, begin, end, name)
        return strip.apply_offsets(-MARGIN - line.indent, number)

    def _greeting(self, number: int) -> Line | None:
        """What stands where nothing was said yet, behind what the program has to tell."""
        number -= self.document.height
        if not 0 < number <= len(GREETING):
            return None
        if not all(isinstance(item, Note) for item in self.document.items):
            return None
        style = "heading" if number == 1 else "muted"
        return Line(Content.styled(GREETING[number - 1], style).truncate(self.document.width))

    def _draw(self, line: Line, width: int) -> Strip:
        """A line with its margin, and its background over the whole of it."""
        outside = self.rich_style
        base = self.visual_style + self.palette[line.base] if line.base else self.visual_style
        room = self.document.width - line.indent
        segments = [Segment(" " * (MARGIN + line.indent), outside)]
        segments += [
            Segment(text, style.rich_style)
            for text, style in line.text.render(base, "", parse_style=self.palette.__getitem__)
        ]
        cells = line.text.cell_length
        if line.base and cells < room:
            segments.append(Segment(" " * (room - cells), base.rich_style))
        return Strip(segments).adjust_cell_length(width, outside)

    def _marks(self, line: Line, number: int) -> Iterator[tuple[int, int, RichStyle]]:
        """What is laid over a line, as cells and style: what was found, the cursor, a selection."""
        before = MARGIN + line.indent
        plain = line.text.plain
        if self.query_text:
            for match in re.finditer(re.escape(self.query_text), plain, re.IGNORECASE):
                begin = before + cell_len(plain[: match.start()])
                end = begin + cell_len(match.group())
                yield begin, end, self.palette["found"].rich_style
        if self._cursor is not None and line.tokens:
            item, token = self._cursor
            if self.document.items[self.document.at(number)] is item:
                for begin, end, index in line.tokens:
                    if index == token:
                        style = self.palette["cursor"].rich_style
                        yield before + begin, before + end, style
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(number)) is not None:
            begin, end = max(0, span[0]), len(plain) if span[1] == -1 else max(0, span[1])
            style = self.screen.get_component_rich_style("screen--selection")
            yield before + cell_len(plain[:begin]), before + cell_len(plain[:end]), style

    def notify_style_update(self) -> None:
        """The theme changed."""
        super().notify_style_update()
        self.palette.clear()
        for item in self.document.items:
            item.restyle()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, as it is seen; code as it is written, in its own lines."""
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else None
        parts: list[str] = []
        for number, line in self.document.lines(first, last):
            if (span := selection.get_span(number)) is not None:
                begin, end = max(line.prefix, span[0]), None if span[1] == -1 else max(0, span[1])
                parts += [line.text.plain[begin:end], line.behind]
        return "".join(parts[:-1]), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        """See `Widget.selection_updated`."""
        self.refresh()

    # ------------------------------------------------------------------------- pointer and cursor

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say which token is pointed at."""
        found = self._token_at(event.x, event.y)
        if found != self._cursor and (found is not None or self._cursor is not None):
            self._point(found)

    def on_key(self, event: events.Key) -> None:
        """What is typed here is meant for the composer."""
        if event.is_printable or event.key == "enter":
            event.stop()
            typed = event.character if event.is_printable else ""
            self.post_message(self.Typed(typed or ""))

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted here is meant for the composer too."""
        event.stop()
        self.post_message(self.Pasted(event.text))

    def on_leave(self) -> None:
        """The pointer is gone."""
        if self._cursor is not None:
            self._point(None)

    def on_click(self, event: events.Click) -> None:
        """A click on the head of a code block asks for its code; a double click selects an item."""
        number = int(self.scroll_y) + event.y
        line = self.document.line(number)
        item = self.document.items[self.document.at(number)] if line is not None else None
        if event.chain > 1:
            event.prevent_default()  # which would select all items
            if item is not None:
                self._select(self.document.at(number))
            return
        if line is not None and line.head and isinstance(item, Answer) and line.code is not None:
            self.post_message(self.CodeClicked(item.codes[line.code]))

    def _select(self, index: int) -> None:
        """Have an item selected, less the blank lines around it."""
        top = self.document.top(index)
        lines = self.document.items[index].lines(self.document.width)
        said = [inside for inside, line in enumerate(lines) if line.text.plain]
        if said:
            begin, end = Offset(0, top + said[0]), top + said[-1]
            selection = Selection(begin, Offset(len(lines[said[-1]].text.plain), end))
            self.screen.selections = {self: selection}

    def action_token(self, step: int) -> None:
        """Move the cursor to the next token, over the end of an answer into its neighbour."""
        answers = [
            item
            for item in self.document.items
            if isinstance(item, Answer) and item.tokens_shown and item.pieces
        ]
        if not answers:
            return
        if self._cursor is not None and self._cursor[0] in answers:
            item, token = self._cursor
            token += step
        else:
            item, token = answers[-1], len(answers[-1].pieces) - 1 if step < 0 else 0
        at = answers.index(item)
        if token < 0 and at > 0:
            item = answers[at - 1]
            token = len(item.pieces) - 1
        elif token >= len(item.pieces) and at + 1 < len(answers):
            item, token = answers[at + 1], 0
        token = max(0, min(token, len(item.pieces) - 1))
        self._point((item, token))
        index = self.document.items.index(item)
        for inside, line in enumerate(item.lines(self.document.width)):
            if any(number == token for _, _, number in line.tokens):
                at = self.document.top(index) + inside
                if not self.scroll_y <= at < self.scroll_y + self.size.height:
                    self.scroll_to(y=at - self.size.height // 2, animate=False)
                return

    def _point(self, cursor: tuple[Answer, int] | None) -> None:
        self._cursor = cursor
        self.post_message(self.TokenPointed(*(cursor or (None, -1))))
        self.refresh()

    def _token_at(self, x: int, y: int) -> tuple[Answer, int] | None:
        number = int(self.scroll_y) + y
        line = self.document.line(number)
        if line is None or not line.tokens:
            return None
        item = self.document.items[self.document.at(number)]
        cell = x - MARGIN - line.indent
        for begin, end, token in line.tokens:
            if begin <= cell < end and isinstance(item, Answer):
                return item, token
        return None
