"""Where a person writes: several lines, sent with Enter.

Invariant: what is pasted arrives whole, less its control characters, and is never sent by the
paste itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from edgespec.tui.widgets.fields import SentBox

IDLE = "Write a message. Enter sends, Ctrl+J begins a line, / lists commands."
BUSY = "Esc stops the answer. What you send now waits for its end."
"""What an empty composer says."""


class Composer(SentBox):
    """A text area that grows with its text and sends it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", show=False),
        Binding("ctrl+d", "delete_or_leave", show=False),
    ]

    menu = False
    """Whether there is a menu that up and down are for."""
    sending = 0
    """Messages that were sent and aren't handled yet."""

    @dataclass
    class Sent(Message):
        """The person sent this; the composer is empty again."""

        text: str

    @dataclass
    class Wanted(Message):
        """A key the composer has no use for just now: "up", "down", "tab" or "ctrl+d"."""

        key: str

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder=IDLE,
        )
        self.cursor_blink = False  # a blinking cursor repaints, and the models need the processor

    def action_send(self) -> None:
        """Hand out what is written, if anything is; what is typed next is a new message."""
        text = self.text
        if text.strip():
            self.sending += 1
            self.post_message(self.Sent(text))
            self.load_text("")

    def action_complete(self) -> None:
        """Tab belongs to whoever knows what could be meant."""
        self.post_message(self.Wanted("tab"))

    def action_cursor_up(self, select: bool = False) -> None:
        """Up; in an empty composer, or with a menu above it, the key is somebody else's."""
        if self.text and not self.menu:
            super().action_cursor_up(select)
        else:
            self.post_message(self.Wanted("up"))

    def action_cursor_down(self, select: bool = False) -> None:
        """Down; with a menu above it, the key is the menu's."""
        if self.menu:
            self.post_message(self.Wanted("down"))
        else:
            super().action_cursor_down(select)

    def action_delete_or_leave(self) -> None:
        """Delete to the right; in an empty composer the key is somebody else's."""
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Wanted("ctrl+d"))

    def put(self, text: str) -> None:
        """Replace what is written."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def put_back(self, text: str) -> None:
        """Text that was sent returns, before what was written since."""
        self.put("\n".join(filter(None, [text, self.text])))
