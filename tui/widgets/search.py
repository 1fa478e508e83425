"""Search in the conversation: a line to type in, and how many messages have it.

Invariant: searching changes nothing but where the reader is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from edgespec.tui.widgets.board import TextLine
from edgespec.tui.widgets.fields import TextField


class SearchBar(Horizontal):
    """Asks for text to find; the app finds it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up,ctrl+f", "step(-1)", "Earlier", priority=True),
        Binding("down", "step(1)", "Later", priority=True),
        Binding("escape", "close", "Close", priority=True),
    ]

    @dataclass
    class Wanted(Message):
        """Find this text; `step` is 0 for the newest match, -1 for the one before, 1 the next."""

        text: str
        step: int

    class Closed(Message):
        """The search is over."""

    def __init__(self) -> None:
        super().__init__(id="search")
        self._input = TextField(placeholder="Find in this conversation", compact=True)
        self._found = TextLine()
        self._found.id = "found"
        self.display = False

    def compose(self) -> ComposeResult:
        """A place to type, and what was found."""
        yield self._input
        yield self._found

    def open(self, text: str | None = None) -> None:
        """Show it and take the keys."""
        self.display = True
        if text is not None:
            self._input.value = text
        self._input.focus()

    def close(self) -> None:
        """Hide it."""
        self.display = False
        self._input.value = ""
        self.post_message(self.Closed())

    def tell(self, number: int, of: int) -> None:
        """Which match is in view."""
        if not self._input.value:
            self._found.say("")
        else:
            self._found.say("", f"{number} of {of}" if of else "not found")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.display:
            self.post_message(self.Wanted(event.value, 0))

    def action_step(self, step: int) -> None:
        """The match before or after."""
        self.post_message(self.Wanted(self._input.value, step))

    def action_close(self) -> None:
        """See `close`."""
        self.close()

    def on_click(self, event: events.Click) -> None:
        """A click on the count goes to the match before."""
        if event.widget is self._found:
            self.action_step(-1)
