"""Keys and commands, from the one table there is.

Invariant: what it lists is what there is.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from edgespec.tui.commands import COMMANDS
from edgespec.tui.lines import wrapped

_COLUMN = 34
_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Shift+Enter", "a new line"),
    ("Esc, Ctrl+C", "stop the answer and keep what came"),
    ("Up, in an empty message", "change the last question"),
    ("Tab", "complete a command; else to the conversation and back"),
    ("Up Down PgUp PgDn Home End", "scroll, in the conversation"),
    ("Left Right", "from token to token, with tokens shown"),
    ("Ctrl+P", "every command, to choose from"),
)


class HelpScreen(ModalScreen[None]):
    """A page to read; any of a few keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,f1", "dismiss", "Close", priority=True)
    ]

    def __init__(self) -> None:
        super().__init__()
        self._page = Static(markup=False)

    def compose(self) -> ComposeResult:
        """Keys, then commands."""
        with VerticalScroll():
            yield self._page

    def on_resize(self, event: events.Resize) -> None:
        """Wrap it anew."""
        self._page.update(_text(min(84, event.size.width - 9)))


def _text(width: int) -> Content:
    """All of it; what goes on in a second line stays in its column."""
    lines = [Content.styled("Keys", "bold $primary")]
    for key, what in _KEYS:
        lines += _row(Content(f"{key:<{_COLUMN}}"), what, width)
    lines += [Content(), Content.styled("Commands", "bold $primary")]
    for command in COMMANDS:
        usage = f"/{command.name} {command.words}".strip()
        key = "+".join(part.capitalize() for part in command.keys.split("+"))
        head = Content.assemble(f"{usage:<{_COLUMN - 8}}", (f"{key:<8}", "$primary"))
        lines += _row(head, command.help, width)
    return Content("\n").join(lines)


def _row(head: Content, what: str, width: int) -> list[Content]:
    text = Content.styled(what, "$foreground 70%")
    return [line.text for line in wrapped(text, width, head, Content(" " * head.cell_length))]
