"""The chat's widgets and state, and how sentences, figures and turns get on the screen.

Invariant: nothing here asks a model for anything, and what a store can't take is told, not raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App

from edgespec.errors import EdgespecError
from edgespec.tui import items
from edgespec.tui.messages import Choice, Figures, Loaded, Preferences, Settings, Turn
from edgespec.tui.panel import caption
from edgespec.tui.saving import Saving, StillSaving
from edgespec.tui.shown import one_line, shown
from edgespec.tui.talk import Talk
from edgespec.tui.widgets.board import FiguresLine, FiguresPanel, TextLine, TokenLine
from edgespec.tui.widgets.composer import Composer
from edgespec.tui.widgets.search import SearchBar
from edgespec.tui.widgets.suggestions import Suggestions
from edgespec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.geometry import Size
    from textual.notifications import SeverityLevel

    from edgespec.tui.bridge import Bridge
    from edgespec.tui.history import History
    from edgespec.tui.settings_file import SettingsFile
    from edgespec.tui.writer import Writer

_A = TypeVar("_A")
_R = TypeVar("_R")

WIDE = 104
"""Columns from which the panel stands beside the conversation."""
_HIGH = 16
"""Rows from which there is room for it below."""
_TALL = 22
"""Rows from which what is written may fill as many as the stylesheet says."""


@dataclass
class Stores:
    """Where things are kept; None keeps nothing. `writing`: changes of what is no conversation."""

    history: History | None = None
    settings: SettingsFile | None = None
    writing: Saving = field(default_factory=Saving)


class Showing(App[None]):
    """What there is to see; `Conversing` adds events, `Doing` actions, `ChatApp` keys."""

    def __init__(
        self,
        bridge: Bridge,
        choice: Choice,
        settings: Callable[[Choice], Settings],
        stores: Stores,
        preferences: Preferences,
        *,
        clock: Callable[[], float] = perf_counter,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        """`settings` gives those of a pair; it may take its time, and raise."""
        super().__init__()
        self.bridge = bridge
        self.choice = choice
        self.settings = Settings()
        self.settings_of = settings
        self.stores = stores
        self.preferences = preferences
        self.talk = Talk()
        self.loaded: Loaded | None = None
        self.bar = TextLine()
        self.transcript = Transcript()
        self.panel = FiguresPanel()
        self.figures = FiguresLine()
        self.inspector = TokenLine()
        self.suggestions = Suggestions()
        self.search = SearchBar()
        self.composer = Composer()
        self._clock = clock
        self._wall_clock = wall_clock
        self._figured: Figures | None = None
        self._editing: int | None = None
        self.draft = ""  # what was being written when an earlier question took its place
        self._writer: Writer | None = None
        self._loss_told = False  # that leaving the open conversation loses some of it

    # ------------------------------------------------------------------------------------ sentences

    def tell(self, text: str, severity: SeverityLevel = "information") -> None:
        """A sentence that goes away by itself; the same one takes the place of one still there."""
        message = shown(text)
        for old in list(self._notifications):
            if (old.message, old.severity) == (message, severity):
                self._unnotify(old, refresh=False)
        self.notify(message, severity=severity, markup=False)

    def note(self, text: str, style: str = "note") -> None:
        """A sentence for the person, where the conversation is."""
        self.transcript.add(items.Note(text, style, len(self.talk.turns) - 1))

    def _say(self, status: str) -> None:
        """What is going on, in the line of figures; "" shows figures again."""
        if status != self.figures.status:
            self.figures.status = one_line(status)
            self.figures.changed()

    def _show_figures(self, figures: Figures) -> None:
        self._figured = self.figures.figures = figures
        self.figures.changed()
        self.panel.take(figures)

    def _forget_figures(self) -> None:
        """What is shown of an answer isn't of what is there now."""
        self.figures.forget()
        self.panel.forget()

    # ---------------------------------------------------------------------------------- preferences

    def _lay_out(self, size: Size) -> None:
        """Fit the screen to its size and the preferences."""
        for name, has in self.looks(size).items():
            self.screen_stack[0].set_class(has, name)

    def looks(self, size: Size) -> dict[str, bool]:
        """The screen's classes, as the stylesheet has them."""
        wide, shown = size.width >= WIDE, self.preferences
        looks = {"wide": wide, "narrow": not wide, "low": size.height < _TALL}
        panel = shown.panel and self.has_room_for_panel(size)
        return looks | {"panel": panel, "tokens": shown.tokens}

    def has_room_for_panel(self, size: Size) -> bool:
        """Whether the conversation can be read beside or above the figures panel."""
        return size.width >= WIDE or size.height >= _HIGH

    def prefer(self, **changes: Any) -> None:
        """Change preferences, and have them kept."""
        self.preferences = replace(self.preferences, **changes)
        self._lay_out(self.size)
        if self.stores.settings is not None:
            self.stores.writing.later(
                partial(self.stores.settings.save_preferences, self.preferences)
            )

    def kept(self, function: Callable[[_A], _R], argument: _A) -> _R | None:
        """What a store answers; where it can't, the person is told."""
        try:
            return function(argument)
        except EdgespecError as error:
            self.tell(str(error), "warning")
            return None

    # ------------------------------------------------------------------------------------- the disk

    @property
    def unsaved(self) -> str:
        """Why the open conversation isn't on the disk, or not all of it; "" where it is, or where
        it was deleted on purpose.

        Right once nothing is being saved any more.
        """
        writer = self._writer
        return "" if writer is None or writer.forgotten else writer.problem

    def _save(self, index: int, turn: Turn) -> None:
        """Have a turn saved, without waiting for it."""
        self._loss_told = False
        history = self.stores.history
        if history is not None:
            self._writer = self._writer or history.begin()
            history.saving.put(self._writer, index, turn)

    def _take_saved(self, say: Callable[..., None]) -> None:
        """Say, as a `note` or in passing (`tell`), what saving came to since the last look."""
        if self.stores.history is not None:
            for problem in self.stores.history.saving.failures():
                say(problem, "error")  # the conversation goes on in memory
        writer = self._writer
        if writer is not None and writer.notice:
            notice, writer.notice = writer.notice, ""
            say(notice)

    def _take_written(self) -> None:
        """Say in passing what came of settings, preferences and copies since the last look."""
        for sentence, failed in self.stores.writing.outcomes():
            self.tell(sentence, "warning" if failed else "information")

    def _settle(self) -> bool:
        """Whether saving is over now; the person is told what it came to, or that it isn't."""
        if self.stores.history is not None:
            try:
                self.stores.history.saving.settle()
            except EdgespecError as error:
                self.tell(str(error), "warning")
                return False
        self._take_saved(self.tell)  # what is noted goes away with the conversation
        return True

    def _may_drop(self) -> bool:
        """Whether the open conversation may be left: it is saved, or the person knows it isn't.

        What the disk didn't take is tried once more before.
        """
        writer, history = self._writer, self.stores.history
        if not self.unsaved or writer is None or history is None:
            return True
        with suppress(OSError, StillSaving):  # told already, and what isn't saved is told below
            history.saving.do(writer.save_rest)
        if not self.unsaved or self._loss_told:
            return True
        self._loss_told = True
        self.tell(
            "This conversation isn't on the disk, or not all of it: /export keeps it elsewhere, "
            "and the same once more drops it.",
            "warning",
        )
        return False

    # ---------------------------------------------------------------------------------------- turns

    @property
    def editing(self) -> int | None:
        """The turn whose question is in the composer to be changed; the line of figures says so."""
        return self._editing

    @editing.setter
    def editing(self, index: int | None) -> None:
        self._editing = index
        mode = ""
        if index is not None:
            behind = len(self.talk.turns) - 1 - index
            parts = [
                f"editing question {index + 1} of {len(self.talk.turns)}",
                f"Enter drops the {count(behind, 'turn')} behind it"
                if behind > 0
                else "Enter asks it anew",
                "Esc leaves all as it was",
            ]
            mode = " · ".join(parts + ["F2 further back"] * (index > 0))
        if mode != self.figures.mode:
            self.figures.mode = mode
            self.figures.changed()

    def set_draft_aside(self) -> None:
        """Keep what is written, as something else is to be written first."""
        self.draft = "\n".join(filter(None, [self.draft, self.composer.text]))

    def give_draft_back(self) -> None:
        """Go on with what was set aside."""
        draft, self.draft = self.draft, ""
        if draft:
            self.composer.put(draft)

    def _show_items(self, turns: Sequence[Turn], *last: items.Item) -> None:
        """Turns as they are kept, in the place of what is shown."""
        found: list[items.Item] = []
        for index, turn in enumerate(turns):
            answer = items.Answer(turn.answer, index)
            answer.caption = caption(turn)
            answer.tokens_shown = self.preferences.tokens
            found += [items.Question(turn.question, index), answer]
            if turn.error:
                found.append(items.Note(turn.error, "error", index))
        self.transcript.show([*found, *last])

    def show_turn(self, index: int) -> None:
        """Bring the question of a turn into view."""
        for place, item in enumerate(self.transcript.document.items):
            if item.turn == index and isinstance(item, items.Question):
                self.transcript.go_to(place)
                return

    def _place_of(self, index: int) -> int:
        """Where the items of turn `index` begin, or would."""
        found = self.transcript.document.items
        for place, item in enumerate(found):
            if item.turn >= index and not isinstance(item, items.Note):
                return place
        return len(found)


def count(number: int, thing: str) -> str:
    """A number of things: "1 turn", "2 turns"."""
    return f"{number} {thing}{'s' * (number != 1)}"
