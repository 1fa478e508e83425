"""Two small questions: yes or no, and a text.

Invariant: escape is always the answer that changes nothing.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, Footer

from edgespec.tui.screens.sheet import Heading, SmallSheet, plain
from edgespec.tui.widgets.fields import SentBox, TextField


class Confirm(SmallSheet[bool]):
    """A question with two answers; dismissed with True for `yes`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No", key_display="n"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, question: str, yes: str, no: str = "Cancel") -> None:
        super().__init__()
        self._title, self._question, self._yes, self._no = title, question, yes, no

    def compose(self) -> ComposeResult:
        """The question, and a button for each answer; no is where the focus is."""
        with Vertical(classes="sheet"):
            yield Heading(self._title)
            yield plain(self._question)
            with Horizontal(classes="buttons"):
                yield Button(self._no, id="no", compact=True)
                yield Button(self._yes, id="yes", compact=True)
        yield Footer(show_command_palette=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button answers."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """A key answers."""
        self.dismiss(yes)


class Lines(SentBox):
    """The place for a text of several lines."""

    class Sent(Message):
        """The person pressed Enter."""

    def action_send(self) -> None:
        """See `SentBox`."""
        self.post_message(self.Sent())


class AskText(SmallSheet[str | None]):
    """A line of text, or several; dismissed with it, or with None."""

    DEFAULT_CSS = """
    AskText {
        TextArea { height: 6; border: none; }
        TextArea:focus { border: none; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f10", "use", "Use", key_display="enter"),
        Binding("escape", "dismiss(None)", "Cancel"),
    ]

    def __init__(
        self, title: str, help_text: str, value: str = "", use: str = "OK", *, lines: bool = False
    ) -> None:
        """`lines`: there may be several, and Enter still is the end of them all."""
        super().__init__()
        self._title, self._help, self._use = title, help_text, use
        self._input = Lines(value, compact=True) if lines else TextField(value, compact=True)

    def compose(self) -> ComposeResult:
        """The line, what it is for, and two buttons."""
        with Vertical(classes="sheet"):
            yield Heading(self._title)
            yield self._input
            yield plain(self._help, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(self._use, id="use", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin in the text."""
        self._input.focus()

    def on_input_submitted(self) -> None:
        """Enter in the line."""
        self.action_use()

    def on_lines_sent(self) -> None:
        """Enter in the lines."""
        self.action_use()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button."""
        if event.button.id == "use":
            self.action_use()
        else:
            self.dismiss(None)

    def action_use(self) -> None:
        """Answer with what is written."""
        field = self._input
        self.dismiss(field.value if isinstance(field, TextField) else field.text)
