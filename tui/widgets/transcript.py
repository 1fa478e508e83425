"""The conversation: one widget that draws the lines in view, however many messages there are.

Invariant: whoever reads further up is never pulled down. The view follows new text only while its
end is in sight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from edgespec.tui.document import Document
from edgespec.tui.items import Answer, Item
from edgespec.tui.lines import Line
from edgespec.tui.palette import Palette, restyled

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
WIDEST = 108
"""Cells of a line: a longer one is hard to read."""


class Transcript(ScrollView, can_focus=True):
    """Shows items; knows where the reader is."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in STYLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_home", show=False),
        Binding("end", "scroll_end", show=False),
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
        self.document = Document()
        self.query_text = ""
        self._following = True
        self.palette = Palette(self, "transcript--", STYLES)
        self._cursor: tuple[Answer, int] | None = None

    # ---------------------------------------------------------------------------- its contents

    def show(self, items: Iterable[Item]) -> None:
        """These items instead of what was there, seen from the end."""
        self.document.cut(0)
        for item in items:
            self.document.add(item)
        self._cursor = None
        self._following = True
        self._update()

    def add(self, item: Item) -> None:
        """One more item at the end."""
        self.document.add(item)
        self._update()

    def touch(self, item: Item) -> None:
        """An item changed."""
        self.document.touch(item)
        self._update()

    def take_out(self, item: Item) -> None:
        """Take out an item."""
        items = self.document.items
        if item in items:
            index = items.index(item)
            rest = items[index + 1 :]
            self.document.cut(index)
            for other in rest:
                self.document.add(other)
            self._update()

    def replace(self, index: int, items: Iterable[Item] = ()) -> list[Item]:
        """These items in the place of those from `index` on, which are returned.

        The reader stays at the same line of the item that has the place of the one at the top.
        """
        document = self.document
        first = document.at(int(self.scroll_y))
        inside = int(self.scroll_y) - document.top(first) if first >= 0 else 0
        dropped = document.items[index:]
        document.cut(index)
        for item in items:
            document.add(item)
        self._cursor = None
        if not self._following and 0 <= first < len(document.items):
            self._place(document.top(first) + inside)
        self._update()
        return dropped

    def lay_out_again(self) -> None:
        """Every item looks different now; the same one stays at the top, or the end in sight."""
        document = self.document
        first = document.at(int(self.scroll_y))
        for item in document.items:
            item.changed()
        document.set_width(document.width)
        if first >= 0 and not self._following:
            self._place(document.top(first))
        self._update()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._following = True
        self._update()

    def find(self, text: str) -> None:
        """Mark a text wherever it is seen."""
        self.query_text = text
        self.refresh()

    def go_to(self, index: int, text: str = "") -> None:
        """Bring an item into view, at the first line with `text` if it has one."""
        self._following = False
        item = self.document.items[index]
        lines = item.lines(self.document.width)
        needle = text.casefold()
        inside = next(
            (n for n, line in enumerate(lines) if needle and needle in line.text.plain.casefold()),
            0,
        )
        for _ in range(3):  # items above it are laid out on the way
            self._place(self.document.top(index) + inside - self.size.height // 3)
            self.document.settle(int(self.scroll_y), self.size.height)
        self._following = self.scroll_y >= self.document.height - self.size.height
        self._update()

    @property
    def following(self) -> bool:
        """Whether the end is in sight, and new text is followed."""
        return self._following

    # -------------------------------------------------------------------------------- scrolling

    def _update(self) -> None:
        """Make view and scrollbar agree with the document, without a layout of the screen."""
        height = self.size.height
        if not height:
            return
        for _ in range(4):  # layout in place of estimates can bring other items into view
            if self._following:
                self._place(self.document.height - height)
            moved = self.document.settle(int(self.scroll_y), height)
            end = max(0, self.document.height - height)
            if self._following and self.scroll_y != end:
                continue
            if not self._following and (moved or self.scroll_y > end):
                self._place(int(self.scroll_y) + moved)
            break
        self._measure()
        self.refresh()

    def _measure(self) -> None:
        """Tell the scrollbar how long the document is."""
        size = Size(self.size.width, self.document.height)
        if size != self.virtual_size:
            # The scrollbar is always there, so no other widget is concerned.
            self.set_reactive(Widget.virtual_size, size)
            self.vertical_scrollbar.window_virtual_size = size.height

    def _place(self, line: int) -> None:
        self._measure()
        line = max(0, min(line, self.document.height - self.size.height))
        self.set_reactive(Widget.scroll_y, line)
        self.set_reactive(Widget.scroll_target_y, line)
        self.vertical_scrollbar.position = line

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The person scrolled."""
        super().watch_scroll_y(old_value, new_value)
        self._following = round(new_value) >= self.document.height - self.size.height
        moved = self.document.settle(int(new_value), self.size.height)
        self._measure()
        if moved:
            self._place(int(new_value) + moved)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new width; the same text stays at the top, or the end in sight."""
        width = max(10, min(WIDEST, event.size.width - 2))
        document = self.document
        if width != document.width:
            first = document.at(int(self.scroll_y))
            inside = int(self.scroll_y) - document.top(first) if first >= 0 else 0
            document.set_width(width)
            if first >= 0 and not self._following:
                self._place(document.top(first) + inside)
        self._update()

    def action_page_up(self) -> None:
        """A page up, at once."""
        self.scroll_relative(y=1 - self.size.height, animate=False)

    def action_page_down(self) -> None:
        """A page down, at once."""
        self.scroll_relative(y=self.size.height - 1, animate=False)

    def action_scroll_up(self) -> None:
        """A line up, at once."""
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_down(self) -> None:
        """A line down, at once."""
        self.scroll_relative(y=1, animate=False)

    def action_scroll_home(self) -> None:
        """To the beginning, at once."""
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        """To the end, at once, and stay there."""
        self.follow()

    # ---------------------------------------------------------------------------------- drawing

    def render_line(self, y: int) -> Strip:
        """A line of the view."""
        number = int(self.scroll_y) + y
        width = self.size.width
        line = self.document.line(number) if self.document.items else self._greeting(number)
        if line is None:
            return Strip.blank(width, self.rich_style)
        strip = line.strip
        if strip is None or strip.cell_length != width:
            strip = line.strip = self._draw(line, width)
        for begin, end, name in self._marks(line, number):
            strip = restyled(strip, begin, end, name)
        return strip.apply_offsets(-MARGIN - line.indent, number)

    def _greeting(self, number: int) -> Line | None:
        """What stands where nothing was said yet."""
        if not 0 < number <= len(GREETING):
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
        """The selected text, as it is seen."""
        document = self.document
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else document.height - 1
        lines = []
        for number in range(first, last + 1):
            line = document.line(number)
            span = selection.get_span(number)
            if line is not None and span is not None:
                begin, end = max(0, span[0]), None if span[1] == -1 else max(0, span[1])
                lines.append(line.text.plain[begin:end])
        return "\n".join(lines), "\n"

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
        """A click on the head of a code block asks for its code."""
        number = int(self.scroll_y) + event.y
        line = self.document.line(number)
        item = self.document.items[self.document.at(number)] if line is not None else None
        if line is not None and line.head and isinstance(item, Answer) and line.code is not None:
            self.post_message(self.CodeClicked(item.codes[line.code]))

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
