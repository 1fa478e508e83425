"""Keys and commands, from the one table there is.

Invariant: what it lists is what there is.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Footer, Static

from edgespec.tui.commands import COMMANDS
from edgespec.tui.lines import wrapped
from edgespec.tui.screens.sheet import Heading, Sheet

_COLUMN = 34
_LEAST = 20  # cells beside it; where there are fewer, what a key does stands below it
_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Shift+Enter", "a new line"),
    ("Esc, Ctrl+C", "stop the answer and keep what came"),
    ("Up, in an empty message", "change the last question; F2 one further back"),
    ("Space before a /", "send it as a message"),
    ("Tab", "complete a command; else to the conversation and back"),
    ("Up Down PgUp PgDn Home End", "scroll, in the conversation"),
    ("Left Right", "from token to token, with tokens shown"),
    ("Ctrl+P", "every command, to choose from"),
    ("Ctrl+D, in an empty message", "leave"),
)


class HelpScreen(Sheet[None]):
    """A page to read; any of a few keys closes it."""

    DEFAULT_CSS = """
    HelpScreen {
        .sheet { width: 92; max-height: 48; }
        VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
        VerticalScroll Static { height: auto; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,f1", "dismiss", "Close", key_display="esc", priority=True)
    ]

    def __init__(self) -> None:
        super().__init__()
        self._page = Static(markup=False)

    def compose(self) -> ComposeResult:
        """Keys, then commands."""
        with Vertical(classes="sheet"):
            yield Heading("Help")
            with VerticalScroll():
                yield self._page
            with Horizontal(classes="buttons"):
                yield Button("Close", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """The keys that scroll are for the page."""
        self.query_one(VerticalScroll).focus()

    def on_button_pressed(self) -> None:
        """The one button there is."""
        self.dismiss()

    def on_resize(self, event: events.Resize) -> None:
        """Wrap it anew."""
        super().on_resize(event)
        self._page.update(_text(min(82, event.size.width - 10)))


def _text(width: int) -> Content:
    """All of it; what goes on in a second line stays in its column."""
    lines = [Content.styled("Keys", "bold $primary")]
    for key, what in _KEYS:
        lines += _row([Content(f"{key:<{_COLUMN}}")], what, width)
    lines += [Content(), Content.styled("Commands", "bold $primary")]
    for command in COMMANDS:
        usage = f"/{command.name} {command.words}".strip()
        key = "+".join(part.capitalize() for part in command.keys.split("+"))
        head = [Content(f"{usage:<{_COLUMN - 8}}"), Content.styled(f"{key:<8}", "$primary")]
        lines += _row(head, command.help, width)
    return Content("\n").join(lines)


def _row(head: list[Content], what: str, width: int) -> list[Content]:
    text = Content.styled(what, "$foreground 70%")
    if width < _COLUMN + _LEAST:
        indent = Content("  ")
        above = indent.join(part.rstrip() for part in head)
        return [above.rstrip(), *(line.text for line in wrapped(text, width, indent, indent))]
    before = Content().join(head)
    return [line.text for line in wrapped(text, width, before, Content(" " * before.cell_length))]
