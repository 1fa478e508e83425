"""What the person can have done: an action for each key, a method for each command with words.

Invariant: every row of `commands.COMMANDS` has its method here, `command_NAME` or `action_NAME`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from textual.widgets import Input, TextArea

from edgespec.errors import EdgespecError
from edgespec.terminal import printable
from edgespec.tui import commands, items
from edgespec.tui.commands import as_written
from edgespec.tui.conversing import Conversing
from edgespec.tui.messages import LOADED_WITH, Choice, Settings
from edgespec.tui.shown import one_line
from edgespec.tui.widgets.fields import without_controls

_SETTING = re.compile(r"(?P<name>[^\s=]*)\s*=?\s*(?P<value>.*)", re.DOTALL)
_COPIED = re.compile(r"(?P<answer>\d{1,6})? *(?P<code>code(?: *(?P<block>\d{1,6}))?)?")


class Mistyped(EdgespecError):
    """A command's words that mean nothing here; the sentence says what would."""


@contextmanager
def _told_who_replaces() -> Iterator[None]:
    """An export that would replace a file fails with a sentence that says what can replace it."""
    from edgespec.tui.export import AlreadyThere

    try:
        yield
    except AlreadyThere as there:
        other = ", or press Ctrl+L, then e: an export from the history can replace it"
        raise AlreadyThere(there.path, other) from there


class Doing(Conversing):
    """Actions and commands."""

    def run_command(self, command: commands.Command, words: str) -> bool:
        """Do what a command says; False where it can't be, and the person was told why."""
        if command.needs_settings and self._awaits_settings():
            return False
        with_words = getattr(self, f"command_{command.name}", None)
        try:
            if with_words is not None:
                with_words(words)
            else:
                getattr(self, f"action_{command.name}")()
        except EdgespecError as error:
            self.tell(str(error), "warning" if isinstance(error, Mistyped) else "error")
            return False
        return True

    # ------------------------------------------------------------------------------------ actions

    def action_interrupt(self) -> None:
        """Ctrl+C: stop an answer, else copy what is selected, else say how to leave.

        In the search and a dialog's text field, what is selected there is copied first.
        """
        field = None if self.focused is self.composer else self.focused
        if isinstance(field, Input | TextArea) and field.selected_text:
            self._copy(field.selected_text)
            return
        selected = self.screen.get_selected_text() or self.composer.selected_text
        if self.busy:
            self.stop()
        elif selected:
            self._copy(selected)
            self.screen.clear_selection()
        else:
            self.tell("Ctrl+Q leaves the chat.")

    def action_stop(self) -> None:
        """Escape: the search, the suggestions, or what is under way."""
        if self.search.display:
            self.search.close()
        elif self.suggestions.display:
            self.suggestions.offer([])
            self.composer.menu = False
        elif self.busy:
            self.stop()
        elif self.editing is not None or (self.draft and not self.composer.text):
            self.editing = None
            self.composer.put("")
            self.give_draft_back()
        elif self.focused is not self.composer:
            self.composer.focus()
            self.transcript.follow()

    def action_escape(self) -> None:
        """Escape where there is nothing to stop."""
        self.action_stop()

    def action_leave(self) -> None:
        """Ctrl+D in an empty composer leaves."""
        if not self.composer.text:
            self._leave()

    async def action_quit(self) -> None:
        """Ctrl+Q leaves."""
        self._leave()

    def _leave(self) -> None:
        if self._may_drop():
            self.exit()

    def action_stats(self) -> None:
        """Show the figures panel, then what it has no room for, then hide it."""
        if not self.has_room_for_panel(self.size):
            self.tell("The figures panel needs a higher terminal, or a wider one.", "warning")
            return
        if not self.preferences.panel or not self.panel.turn_page():
            self.prefer(panel=not self.preferences.panel)
        self.panel.changed()

    def action_tokens(self) -> None:
        """Show tokens by origin, or Markdown again."""
        self.prefer(tokens=not self.preferences.tokens)
        for item in self.transcript.document.items:
            if isinstance(item, items.Answer):
                item.tokens_shown = self.preferences.tokens
        self.transcript.lay_out_again()
        self.inspector.show(None)

    def action_again(self) -> None:
        """Regenerate."""
        self.again()

    def action_continue(self) -> None:
        """Go on with the last answer."""
        self.go_on()

    def action_edit(self) -> None:
        """Bring the last question back to be changed, or the one before that in the composer.

        Sending it replaces its turn and drops those behind it. What was written in the composer is
        set aside, and comes back when the question is sent or left.
        """
        if self._last_turn() is None:
            return
        last = len(self.talk.turns) - 1
        at = self.editing
        unchanged = at is not None and at <= last and self._as_asked(at)
        if not unchanged:
            self.set_draft_aside()
        self.editing = at = max(0, at - 1) if at is not None and unchanged else last
        self.composer.put(as_written(self.talk.turns[at].question))
        self.composer.focus()
        self.show_turn(at)

    def _as_asked(self, index: int) -> bool:
        """Whether the composer holds question `index` as it was asked."""
        return self.composer.text == without_controls(as_written(self.talk.turns[index].question))

    def action_clear(self) -> None:
        """A new conversation."""
        self.stop_answer()
        self.show_turns((), None)

    def action_help(self) -> None:
        """Keys and commands."""
        from edgespec.tui.widgets.help import HelpScreen

        if len(self.screen_stack) == 1:
            self.push_screen(HelpScreen())

    def action_copy(self) -> None:
        """Copy the last answer."""
        self.command_copy("")

    def action_search(self) -> None:
        """Open the search, or go to the next match."""
        if self.search.display:
            self.search.action_step(-1)
        else:
            self.search.open()

    def action_pair(self) -> None:
        """Choose a pair."""
        self.run_command(commands.named("pair"), "")

    def action_history(self) -> None:
        """Choose a conversation."""
        from edgespec.tui.screens.history import HistoryList

        if self.stores.history is not None:
            self.push_screen(HistoryList(self.stores.history), self._resume)

    def action_settings(self) -> None:
        """Look at all settings."""
        self.run_command(commands.named("settings"), "")

    def action_save(self) -> None:
        """Keep this pair's settings."""
        store, choice, settings = self.stores.settings, self.choice, self.settings

        def save() -> str:
            assert store is not None
            store.save_settings(choice.key, settings)
            return f"The settings of {one_line(choice.label)} are saved."

        if store is not None:
            self.stores.writing.later(save)

    # --------------------------------------------------------------------- commands that take words

    def command_pair(self, name: str) -> None:
        """Load a pair by name, or choose one."""
        if name:
            from edgespec.registry import load_registry

            name = load_registry().pair(name).name
        from edgespec.tui.screens.pairs import PairPicker

        wanted = Choice(name) if name else None  # too big or not here: the picker asks
        self.push_screen(
            PairPicker(self.choice, self.bridge, self.stores.settings, wanted=wanted), self._choose
        )

    def command_settings(self, words: str) -> None:  # noqa: ARG002
        """Look at all settings."""
        from edgespec.tui.screens.settings import SettingsScreen

        self.push_screen(SettingsScreen(self.settings, self.choice.label), self._set_all)

    def command_system(self, text: str) -> None:
        """Set the system prompt; without words, show it."""
        if text:
            self._set_text("system", text)
        elif self.settings.system:
            self.tell(f"The system prompt: {self.settings.system}\n/set system takes it away.")
        else:
            self.tell("There is no system prompt: /system TEXT sets one.")

    def command_set(self, words: str) -> None:
        """Change a setting: its name and its value."""
        found = _SETTING.match(words)
        if found is None or not found["name"]:
            self.command_settings("")
        else:
            self._set_text(found["name"], found["value"].strip())

    def command_copy(self, words: str) -> None:
        """Copy answer N from the end (the last one), or its code block M (the last one)."""
        answers = [i for i in self.transcript.document.items if isinstance(i, items.Answer)]
        if not answers:
            self.tell("There is no answer to copy yet.")
            return
        asked = _COPIED.fullmatch(words)
        if asked is None:
            raise Mistyped("Write /copy, /copy 2 (the answer before the last) or /copy code 1.")
        back, what, block = int(asked["answer"] or 1), asked["code"], int(asked["block"] or 0)
        if not 1 <= back <= len(answers):
            raise Mistyped(f"Answers are 1 (the last) to {len(answers)}.")
        answer = answers[-back]
        if not what:
            if answer.text:
                self._copy(answer.text)
            else:
                self.tell("This answer has no text yet.")
            return
        codes = answer.codes
        if not codes:
            self.tell("This answer has no code block.")
        elif asked["block"] and not 1 <= block <= len(codes):
            raise Mistyped(f"This answer's code blocks are 1 to {len(codes)}.")
        else:
            self._copy(codes[block - 1])

    def command_export(self, words: str) -> None:
        """Have the conversation written to a file; a name that can't be is told at once."""
        from edgespec.tui.export import destination, export, file_name
        from edgespec.tui.records import title_of

        if not self.talk.turns:
            self.tell("There is nothing to export yet.")
            return
        form, _, rest = words.partition(" ")
        if form not in ("md", "json"):
            form, rest = "", words
        with _told_who_replaces():
            named = destination(Path(rest.strip()), form) if rest.strip() else None
        turns, system, writer = tuple(self.talk.turns), self.settings.system, self._writer

        def write() -> str:
            title = (writer.title if writer is not None else "") or title_of(turns[0].question)
            path = named or Path(f"{file_name(title)}.{form or 'md'}")
            with _told_who_replaces():
                path = export(path, turns, title=title, system=system, form=form)
            return f"Written to {path}"

        self.stores.writing.later(write)

    def command_search(self, text: str) -> None:
        """Find text."""
        self.search.open(text)

    def command_rename(self, title: str) -> None:
        """Name the conversation."""
        if not title:
            raise Mistyped("Give a title: /rename TITLE")
        writer, history = self._writer, self.stores.history
        if writer is None or history is None:
            self.tell("This conversation begins with its first question; name it then.")
            return
        try:
            history.saving.do(lambda: writer.rename(title))
        except OSError as error:
            self.note(str(error), "error")
        else:
            self.tell(f"This conversation is now called {one_line(title)}.")
        self._take_saved(self.note)

    def command_theme(self, name: str) -> None:
        """Change the colours."""
        if not name:
            self.action_change_theme()
        elif name in self.available_themes:
            self.theme = name
        else:
            raise Mistyped(f"There is no theme {one_line(name)}: Tab lists them.")

    def command_quit(self, words: str) -> None:  # noqa: ARG002
        """Leave."""
        self._leave()

    # ------------------------------------------------------------------------------------- helpers

    def _awaits_settings(self) -> bool:
        """Whether the saved settings aren't there yet to be looked at or changed; it is told."""
        if not self.has_settings:
            self.tell("One moment: the saved settings are being read.", "warning")
        return not self.has_settings

    def copy_to_clipboard(self, text: str) -> None:
        """What is cut or copied in a field, by Textual's own keys, goes the same way."""
        if text:
            self._copy(text)

    def _copy(self, text: str) -> None:
        from edgespec.tui.clipboard import copy

        # Ctrl+V pastes it here, whatever the terminal makes of it.
        self._clipboard = printable(text.replace("\r\n", "\n"))
        self.stores.writing.later(copy(text, self._write_sequence, os.environ))

    def _write_sequence(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    def _choose(self, choice: Choice | None) -> None:
        """Load what was chosen, unless it is or will be; the conversation stays.

        Where its settings can't be read, the pair that is there stays too.
        """
        if choice is None:
            return
        comes = self._loading and self.bridge.goes_on(self._load)  # a download joined its own
        if choice == self.choice and (comes or self.loaded is not None):
            self._remembered = choice.pair or ""
            if self.loaded is not None and self._remembered:
                self.prefer(last_pair=self._remembered)
        elif (settings := self.kept(self.settings_of, choice)) is not None:
            self._remembered = choice.pair or ""
            self.stop()
            self.open_pair(choice, settings)

    def _resume(self, conversation: str | None) -> None:
        """Go on with a conversation of the history."""
        if conversation is None or self.stores.history is None:
            if self._writer is not None and self._writer.forgotten:
                self.action_clear()  # it was deleted in the list
            return
        if self._writer is not None and self._writer.id == conversation:
            self.transcript.follow()  # it is open here, perhaps with an answer under way
            return
        try:
            opened = self.stores.history.resume(conversation)
        except EdgespecError as error:
            self.tell(str(error), "error")
            return
        self.stop_answer()
        if self.show_turns(opened.turns, opened.writer):
            for note in opened.notes:
                self.note(note)

    def _set_text(self, name: str, value: str) -> None:
        from edgespec.tui.settings import told, with_text

        changed = with_text(self.settings, name, value)
        self._set(changed)
        self.tell(f"{told(changed, one_line(name), one_line(value))}; /save keeps it.")

    def _set_all(self, settings: Settings | None) -> None:
        """Take over those of the form."""
        if settings is not None and settings != self.settings:
            self._set(settings)
            self.tell("These settings hold until you leave; /save keeps them.")

    def _set(self, settings: Settings) -> None:
        """Take over settings; what a pair is loaded with loads it again."""
        before, self.settings = self.settings, settings
        if any(getattr(before, name) != getattr(settings, name) for name in LOADED_WITH):
            self.stop()
            self.open_pair(self.choice, settings)
