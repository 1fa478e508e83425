"""A document on the screen: its items, what part of it is in view, whether its end is followed.

Invariant: whoever reads further up is never pulled down. The view follows new text only while its
end is in sight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.widget import Widget

from edgespec.tui.document import Document
from edgespec.tui.items import Item

WIDEST = 108
"""Cells of a line: a longer one is hard to read."""


class Scrolled(ScrollView):
    """Holds items; knows where the reader is. What lines look like is its heirs' business."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_home", show=False),
        Binding("end", "scroll_end", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.document = Document()
        self.query_text = ""
        self._following = True

    def forget_cursor(self) -> None:
        """What the cursor was on may be gone."""

    # ---------------------------------------------------------------------------- its contents

    def show(self, items: Iterable[Item]) -> None:
        """These items instead of what was there, seen from the end."""
        self.document.cut(0)
        for item in items:
            self.document.add(item)
        self.forget_cursor()
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
        self.forget_cursor()
        if not self._following and 0 <= first < len(document.items):
            self._place(document.top(first) + inside)
        self._update()
        return dropped

    def lay_out_again(self) -> None:
        """Every item looks different now; about the same text stays at the top, or the end."""
        place = self._reading()
        for item in self.document.items:
            item.changed()
        self.document.set_width(self.document.width)
        self._read_on(*place)
        self._update()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._following = True
        self._update()

    def find(self, text: str) -> None:
        """Mark a text wherever it is seen."""
        self.query_text = text
        self.refresh()

    def go_to(self, index: int, inside: int = 0) -> None:
        """Bring an item into view, at one of its lines."""
        self._following = False
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

    def _reading(self) -> tuple[int, float]:
        """The item at the top (-1: none), and the share of it that is above."""
        document, line = self.document, int(self.scroll_y)
        first = document.at(line)
        if first < 0:
            return first, 0.0
        top = document.top(first)
        return first, (line - top) / max(1, document.top(first + 1) - top)

    def _read_on(self, first: int, share: float) -> None:
        """Bring that place to the top again, unless the end is followed."""
        if first >= 0 and not self._following:
            document = self.document
            lines = len(document.items[first].lines(document.width))
            self._place(document.top(first) + round(share * lines))

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
        """Lay out for the new width; about the same text stays at the top, or the end."""
        width = max(10, min(WIDEST, event.size.width - 2))
        document = self.document
        if width != document.width:
            place = self._reading()
            document.set_width(width)
            self._read_on(*place)
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
