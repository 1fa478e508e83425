"""The chat's screen: its widgets, its keys, and what they do.

Invariant: nothing heavy is imported before the first picture is drawn, and every key's action is a
command too, so that it can be typed, found in the palette and clicked.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.driver import Driver
from textual.screen import Screen
from textual.widgets import Footer, Input, TextArea

from edgespec import platform
from edgespec.errors import EdgespecError
from edgespec.tui import commands
from edgespec.tui.doing import Doing
from edgespec.tui.driver import on_stdout
from edgespec.tui.shown import one_line
from edgespec.tui.themes import DARK, LIGHT
from edgespec.tui.widgets.composer import Composer
from edgespec.tui.widgets.fields import TextField, in_one_line
from edgespec.tui.widgets.search import SearchBar
from edgespec.tui.widgets.suggestions import Suggestions
from edgespec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from edgespec.tui.searching import Search

_LOOK_FOR_TERMINAL_S = 2.0


class ChatScreen(Screen[None]):
    """Where the person is asked nothing but to write."""

    AUTO_FOCUS = "Composer"


class ChatApp(Doing):
    """The chat."""

    CSS_PATH = "edgespec.tcss"
    TITLE = "edgespec"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),  # shown while there is something to stop
        Binding("escape", "escape", show=False),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True),
        Binding("ctrl+g", "stats", "Figures", priority=True),
        Binding("ctrl+t", "tokens", "Tokens", priority=True),
        Binding("ctrl+o", "pair", "Pair", priority=True),
        Binding("ctrl+l", "history", "History", priority=True),
        Binding("ctrl+f", "search", "Search", priority=True),
        Binding("ctrl+r", "again", "Again", show=False, priority=True),
        Binding("ctrl+s", "settings", "Settings", show=False, priority=True),
        Binding("ctrl+n", "clear", "New", show=False, priority=True),
        Binding("ctrl+y", "copy", "Copy", show=False, priority=True),
        Binding("f2", "edit", "Edit", show=False, priority=True),
        Binding("f9", "continue", "Continue", show=False, priority=True),
        Binding("f1", "help", "Help", priority=True),
        Binding("ctrl+q", "quit", "Quit", show=False, priority=True),
        Binding("ctrl+d", "leave", show=False),
    ]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._offered: tuple[str, list[str]] = ("", [])  # a command, and what may follow it
        self.failure = ""
        self._wear(self.preferences.theme)

    # --------------------------------------------------------------------------------- its parts

    def _wear(self, theme: str) -> None:
        """Begin with a theme (our dark one where it isn't known).

        Setting it later would have every style read and applied once more.
        """
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.set_reactive(ChatApp.theme, theme if theme in self.available_themes else DARK.name)
        worn = self.current_theme
        self.set_class(True, f"-theme-{worn.name}", update=False)
        self.set_class(worn.dark, "-dark-mode", update=False)
        self.set_class(not worn.dark, "-light-mode", update=False)
        self._refresh_truecolor_filter(self.ansi_theme)
        self.stylesheet.set_variables(self.get_css_variables())

    def get_driver_class(self) -> type[Driver]:
        """Textual's for this system, on stdout."""
        return on_stdout(super().get_driver_class())

    def get_default_screen(self) -> Screen[Any]:
        """The screen that is always there, laid out for the terminal as it is."""
        looks = self.looks(self.size)
        return ChatScreen(id="_default", classes=" ".join(name for name in looks if looks[name]))

    def compose(self) -> ComposeResult:
        """The screen, from top to bottom."""
        self.bar.id = "bar"
        self.figures.id = "figures"
        self.inspector.id = "inspector"
        yield self.bar
        with Container(id="middle"):
            yield self.transcript
            yield self.panel
        yield self.search
        yield self.inspector
        yield self.suggestions
        yield self.composer
        yield self.figures
        yield Footer()

    def on_mount(self) -> None:
        """Show, and only then begin to load."""
        self.bar.say(one_line(self.choice.label), "loading")
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    asyncio.get_running_loop().add_signal_handler(getattr(signal, name), self.exit)
        if not self.is_headless and sys.__stdin__ is not None and sys.__stdin__.isatty():
            descriptor = sys.__stdin__.fileno()
            self.set_interval(_LOOK_FOR_TERMINAL_S, partial(self.leave_gone_terminal, descriptor))
        # As a worker: until the settings are read, the screen draws what is typed.
        self.call_after_refresh(self.run_worker, self._start)

    def leave_gone_terminal(self, descriptor: int) -> None:
        """Leave where there is nobody any more, and no signal said so, as under `nohup`."""
        if platform.terminal_gone(descriptor):
            self.exit()

    async def _start(self) -> None:
        if (theme := self.preferences.theme) not in self.available_themes:
            known = f"{self.theme} is used, and /theme lists what there is."
            self.tell(f"There is no theme {one_line(theme)}: {known}", "warning")
        try:
            settings = await asyncio.to_thread(self.settings_of, self.choice)
        except EdgespecError as error:
            self.failure = str(error)
            self.exit(return_code=1)
            return
        self.open_pair(self.choice, settings)
        if self._stopped_early:
            self.bridge.cancel_load()
        self.ticker.start()
        from edgespec.tui.ahead import import_ahead

        self.run_worker(import_ahead, thread=True, exit_on_error=False)

    def watch_theme(self, name: str) -> None:
        """A theme that was chosen is there the next time."""
        if name != self.preferences.theme:
            self.prefer(theme=name)

    def on_resize(self, event: events.Resize) -> None:
        """Put the panel where there is room."""
        self._lay_out(event.size)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys of the chat rest while another screen is open; "stop" shows when it has a use."""
        if len(self.screen_stack) > 1 and action in _RESTING:
            return False
        return action != "stop" or self.busy

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: our commands, and Textual's choice of themes."""
        for command in commands.COMMANDS:
            keys = f" ({command.keys})" if command.keys else ""
            run = partial(self._run_from_palette, command)
            yield SystemCommand(command.title, f"/{command.name}{keys}", run)
        for system in super().get_system_commands(screen):
            if system.title == "Theme":
                yield system

    def _run_from_palette(self, command: commands.Command) -> None:
        if not command.words or command.words.startswith("["):
            self.run_command(command, "")
        elif self.composer.text:
            self._ask_words(command)  # what is written stays
        else:
            self.composer.put(f"/{command.name} ")  # it can't do without words
            self.composer.focus()

    def _ask_words(self, command: commands.Command, words: str = "") -> None:
        """Ask for a command's words until it can be done with them, or for none."""
        from edgespec.tui.screens.ask import AskText

        def do(answer: str | None) -> None:
            if answer is not None and not self.run_command(command, answer.strip()):
                self._ask_words(command, answer)

        usage = f"/{command.name} {command.words}"
        if command.lines:
            usage += " · Ctrl+J begins a line"
        self.push_screen(AskText(command.title, usage, words, lines=command.lines), do)

    async def on_event(self, event: events.Event) -> None:
        """See `App.on_event`; the palette's line takes a paste as it comes, so it comes clean."""
        if isinstance(event, events.Paste) and self._in_palette:
            event.text = in_one_line(event.text)
        await super().on_event(event)

    @property
    def clipboard(self) -> str:
        """What was copied here last; in one line for the palette, which takes it as it is too."""
        return in_one_line(self._clipboard) if self._in_palette else self._clipboard

    @property
    def _in_palette(self) -> bool:
        return isinstance(self.focused, Input) and not isinstance(self.focused, TextField)

    # ---------------------------------------------------------------------------------- messages

    def on_composer_sent(self, event: Composer.Sent) -> None:
        """A message, or a command."""
        self.composer.sending -= 1
        text, chosen, moved = event.text, self.suggestions.chosen, self.suggestions.moved
        self.suggestions.offer([])
        if commands.is_command(line := text.strip("\n")):
            command, words, problem = commands.parse(line)
            if chosen is not None and (command is None or moved):
                # "/he" is the marked one, to be sent with another Enter
                self.composer.put(chosen + self.composer.text)
            elif command is None:
                self.composer.put_back(text)
                self.tell(problem, "warning")
            elif not self.run_command(command, words):
                self.composer.put_back(text)
            return
        text = text.removeprefix(" ") if text.startswith(" /") else text
        if self.editing is not None and self.editing < len(self.talk.turns):
            self.ask_instead(text, self.editing)
        else:
            self.editing = None
            self.ask(text)
        if not self.composer.text:
            self.give_draft_back()

    def on_composer_wanted(self, event: Composer.Wanted) -> None:
        """Tab completes; in an empty composer up brings a question back and Ctrl+D leaves."""
        if event.key == "ctrl+d":
            self.action_leave()
        elif event.key == "tab":
            if (line := self.suggestions.chosen) is not None:
                self.composer.put(line)
            else:
                self.transcript.focus()
        elif self.suggestions.display:
            self.suggestions.move(-1 if event.key == "up" else 1)
        elif event.key == "up" and self.talk.turns:
            self.action_edit()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Offer what the line could become; whoever empties it doesn't edit any more."""
        if event.text_area is not self.composer:
            return
        text = self.composer.text
        if not text and not self.composer.sending:
            self.editing = None
        name = text[1:].partition(" ")[0] if text.startswith("/") and " " in text else ""
        if name != self._offered[0]:
            self._offered = name, self._values(name)
        lines = commands.completions(text, self._offered[1])
        self.suggestions.offer([] if lines == [text] else lines)
        self.composer.menu = self.suggestions.display

    def _values(self, name: str) -> list[str]:
        """What may follow a command's name; it may read files, so once is enough for a line."""
        if name == "set":
            from edgespec.tui.settings import FIELDS

            return [field.key for field in FIELDS]
        if name == "theme":
            return sorted(self.available_themes)
        if name == "pair":
            from edgespec.registry import load_registry

            with suppress(EdgespecError):  # told when a pair is to be chosen
                return list(load_registry().pairs)
        return {"copy": ["code"], "export": ["md", "json"]}.get(name, [])

    def on_transcript_token_pointed(self, event: Transcript.TokenPointed) -> None:
        """Say what is known of a token."""
        known = event.answer is not None and 0 <= event.index < len(event.answer.pieces)
        self.inspector.show(event.answer.pieces[event.index] if known and event.answer else None)

    def on_search_bar_wanted(self, event: SearchBar.Wanted) -> None:
        """Go to a match, from the newest backwards."""
        self.transcript.find(event.text)
        self.run_worker(self._finder.go(event.text, event.step), group="search", exclusive=True)

    @cached_property
    def _finder(self) -> Search:
        from edgespec.tui.searching import Search

        return Search(self.transcript, self.search)

    def on_search_bar_closed(self) -> None:
        """Back to writing; the reader stays where the match was."""
        self.workers.cancel_group(self, "search")
        self.transcript.find("")
        self.composer.focus()

    def on_transcript_typed(self, event: Transcript.Typed) -> None:
        """Whoever writes after a click into the conversation writes a message."""
        self.composer.focus()
        if event.text:
            self.composer.insert(event.text)
        else:
            self.composer.action_send()

    def on_transcript_pasted(self, event: Transcript.Pasted) -> None:
        """Whoever pastes into the conversation pastes into the message."""
        self.composer.focus()
        self.composer.paste(event.text)

    def on_suggestions_clicked(self, event: Suggestions.Clicked) -> None:
        """A click takes a suggestion, as Tab does."""
        self.composer.put(event.line)
        self.composer.focus()

    def on_transcript_code_clicked(self, event: Transcript.CodeClicked) -> None:
        """A click on the head of a code block copies it."""
        self._copy(event.code)


_RESTING = {key.action for key in ChatApp.BINDINGS if isinstance(key, Binding)}
_RESTING |= {"command_palette"}
_RESTING -= {"interrupt", "quit"}
"""What the chat's keys do only while no other screen is open."""
