"""Where a person writes: a line of text, or several.

Invariant: no control character is in a field, whoever fills it: the person, a paste, a file. Of
what is pasted nothing else is left out.
"""

from __future__ import annotations

import re
from typing import Any

from textual import events
from textual.widgets import Input, TextArea

_CONTROL = re.compile(
    "\x1b\\[[0-9;?]*[ -/]*[@-~]"
    "|\x9b[0-9;?]+[ -/]*[@-~]"
    "|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\x9d\n]*(?:\x07|\x1b\\\\|\x9c)"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
"""Escape sequences whole, then single control characters; line feeds and tabs stay.

U+009B and U+009D are quotation marks too, in text that was decoded wrongly: alone, or without the
end of a sequence in their line, they begin none.
"""

_NEW_LINE = ("ctrl+j", "shift+enter", "alt+enter")


def without_controls(text: str) -> str:
    """The text without control characters and escape sequences; its lines end in line feeds."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def in_one_line(text: str) -> str:
    """The same in one line: breaks within and tabs become spaces, breaks at its ends go."""
    return _spaced(without_controls(text).strip("\n"))


def _spaced(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ")


class TextField(Input):
    """One line: line breaks and tabs become spaces."""

    def validate_value(self, value: str) -> str:
        """See the invariant."""
        return _spaced(without_controls(value))

    def paste(self, text: str) -> None:
        """Take in text from elsewhere, all its lines, in the place of what is selected."""
        self.replace(in_one_line(text), *sorted(self.selection))

    def action_paste(self) -> None:
        """Paste what was copied here last; nothing is no reason to delete what is selected."""
        if self.app.clipboard:
            self.paste(self.app.clipboard)

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.paste(event.text)


class TextBox(TextArea):
    """Several lines."""

    def __init__(self, text: str = "", **options: Any) -> None:
        """`options` are those of a `TextArea`."""
        super().__init__(without_controls(text), **options)

    def load_text(self, text: str) -> None:
        """See `TextArea.load_text`; also what assigning `text` does."""
        super().load_text(without_controls(text))

    def paste(self, text: str) -> None:
        """Take in text from elsewhere, in the place of what is selected."""
        if result := self._replace_via_keyboard(without_controls(text), *self.selection):
            self.move_cursor(result.end_location)
            self.focus()

    def action_paste(self) -> None:
        """Paste what was copied here last; nothing is no reason to delete what is selected."""
        if self.app.clipboard:
            self.paste(self.app.clipboard)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.paste(event.text)


class SentBox(TextBox):
    """Several lines that Enter sends; Ctrl+J begins another."""

    def action_send(self) -> None:
        """What Enter does."""
        raise NotImplementedError

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    async def _on_key(self, event: events.Key) -> None:
        # No bindings: those of priority are obeyed before the letters typed just ahead of them.
        if event.key == "enter" or event.key in _NEW_LINE:
            event.stop()
            event.prevent_default()
            if event.key == "enter":
                self.action_send()
            else:
                self.action_newline()
