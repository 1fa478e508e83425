"""What the line being typed could become, above the composer.

Invariant: it never takes the keys from the composer; Tab takes what is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.message import Message

from edgespec.tui import commands
from edgespec.tui.widgets.board import Board

_MOST = 8


class Suggestions(Board):
    """A few lines, one of them marked. `moved`: the person chose which."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"board--heading"}

    @dataclass
    class Clicked(Message):
        """A line was clicked."""

        line: str

    def __init__(self) -> None:
        super().__init__()
        self._lines: Sequence[str] = ()
        self._at = 0
        self.moved = False
        self.display = False

    @property
    def chosen(self) -> str | None:
        """The marked line."""
        return self._lines[self._at] if self._lines else None

    def offer(self, lines: Sequence[str]) -> None:
        """Show these; none hides it."""
        if lines == self._lines:
            return
        self._lines, self._at, self.moved = lines, 0, False
        self.display = bool(lines)
        self.styles.height = min(_MOST, len(lines)) or 1
        self.changed()

    def move(self, step: int) -> None:
        """Mark another."""
        if self._lines:
            self._at = (self._at + step) % len(self._lines)
            self.moved = True
            self.changed()

    def on_click(self, event: events.Click) -> None:
        """Tell which line."""
        event.stop()
        place = self._first(self.size.height) + event.get_content_offset_capture(self).y
        if 0 <= place < len(self._lines):
            self.post_message(self.Clicked(self._lines[place]))

    def _first(self, height: int) -> int:
        return max(0, min(self._at - height // 2, len(self._lines) - height))

    def contents(self, width: int, height: int) -> list[Content]:
        """See `Board.contents`."""
        first = self._first(height)
        rows = []
        for place, line in enumerate(self._lines[first : first + height], first):
            command, words, _ = commands.parse(line)
            told = command.help if command is not None and not words else ""
            mark = "› " if place == self._at else "  "
            style = "heading" if place == self._at else "value"
            row = Content.assemble((f"{mark}{line.strip():<14}", style), (f"  {told}", "label"))
            rows.append(row.truncate(width, ellipsis=True))
        return rows
