"""What happens between a person's message and its answer, on the screen and in the store.

Invariant: an event changes the screen only if its turn, or its load, is the one under way; whatever
ends a turn saves it before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time, time
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App

from edgespec.errors import EdgespecError
from edgespec.tui import items
from edgespec.tui.messages import (
    Choice,
    Downloading,
    Event,
    Failed,
    Figures,
    Finished,
    Loaded,
    LoadFailed,
    Loading,
    Measured,
    Preferences,
    Settings,
    Started,
    Streamed,
    Turn,
)
from edgespec.tui.panel import bytes_of, caption
from edgespec.tui.shown import one_line, shown
from edgespec.tui.talk import Talk
from edgespec.tui.widgets.board import FiguresLine, FiguresPanel, TextLine
from edgespec.tui.widgets.composer import BUSY, IDLE, Composer
from edgespec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

    from edgespec.tui.bridge import Bridge
    from edgespec.tui.history import History, Writer
    from edgespec.tui.settings_file import SettingsFile

TICK = 0.1
"""Seconds from one look at the events to the next, unless drawing takes too long for that."""
SHARE = 0.04
"""The share of a processor that drawing may take: the models compute on the same ones."""
_LONGEST_TICK = 1.0
_A = TypeVar("_A")
_R = TypeVar("_R")


@dataclass
class Stores:
    """Where things are kept; None keeps nothing."""

    history: History | None = None
    settings: SettingsFile | None = None


class Conversing(App[None]):
    """The chat's state and what events do to it; `ChatApp` adds keys, commands and screens."""

    def __init__(
        self,
        bridge: Bridge,
        choice: Choice,
        settings: Callable[[str], Settings],
        stores: Stores,
        preferences: Preferences,
        *,
        clock: Callable[[], float] = perf_counter,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        """`settings` gives those of a pair by its label; it may take its time, and raise."""
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
        self.composer = Composer()
        self._clock = clock
        self._wall_clock = wall_clock
        self._writer: Writer | None = None
        self._load = -1
        self._loading = True
        self._answer: items.Answer | None = None
        self._waiting: items.Question | None = None
        self._figured: Figures | None = None
        self._used = 0.0
        self._ticking = False

    # ------------------------------------------------------------------------------------- time

    def start_ticking(self) -> None:
        """Look for events from now on."""
        self._ticking = True
        self._used = thread_time()
        self._tick()

    def _tick(self) -> None:
        """Take what came, and come back the later the more of the processor drawing took."""
        if not self._ticking or not self.is_running:
            return
        for event in self.bridge.drain():
            self.take(event)
        used, self._used = thread_time() - self._used, thread_time()
        self.set_timer(min(_LONGEST_TICK, max(TICK, used / SHARE)), self._tick)

    # ---------------------------------------------------------------------------------- loading

    def open_pair(self, choice: Choice, settings: Settings) -> None:
        """Load a pair; what is asked meanwhile waits."""
        self.choice, self.settings = choice, settings
        self.loaded = None
        self._loading = True
        self.bar.say(one_line(choice.label), "loading")
        self._load = self.bridge.open(choice, settings)

    def take(self, event: Event) -> None:
        """What an event does."""
        match event:
            case Streamed() | Figures() | Finished() | Failed() | Started():
                if self.talk.is_running(event.turn):
                    self._take_turn(event)
            case Loading() | Measured() | Loaded() | LoadFailed():
                if event.load == self._load:
                    self._take_load(event)
            case Downloading():
                if self._loading and event.pair == (self.choice.pair or ""):
                    total = event.total_bytes
                    of = f" of {bytes_of(total)}" if total else ""
                    done = f"downloading {one_line(event.model)}: {bytes_of(event.done_bytes)}{of}"
                    self._say(f"{done} · Esc stops it")
        handle = getattr(self.screen, "handle", None)
        if handle is not None:
            handle(event)

    def _take_load(self, event: Loading | Measured | Loaded | LoadFailed) -> None:
        match event:
            case Loading(_, what):
                self._say(f"{what} · write your message meanwhile")
            case Measured(_, kind, tokens, seconds):
                what = "a check of" if kind == "check" else f"{kind} reading"
                self._say(
                    f"measuring this pair, once: {what} {tokens} "
                    f"token{'s' * (tokens != 1)} took {seconds * 1000:.1f} ms"
                )
            case Loaded():
                self._loading = False
                self.loaded = event
                drafters = ", ".join(event.drafters) or "none"
                device = f"{event.device} · " if event.device else ""
                self.bar.say(one_line(event.name), one_line(f"{device}drafters: {drafters}"))
                self._say("")
                for note in event.notes:
                    self.note(note)
                self._ask_waiting()
            case LoadFailed(_, _, error):
                self._loading = False
                self.bar.say(one_line(self.choice.label), "not loaded")
                self._say("no model is loaded · Ctrl+O chooses a pair")
                self.note(error or "Loading was stopped.", "error" if error else "note")
                self._give_back_waiting()

    # ---------------------------------------------------------------------------------- answers

    def ask(self, question: str) -> None:
        """Ask now, or as soon as model and answer under way allow it."""
        if self.talk.running is None and not self._loading and self.loaded is None:
            self.composer.put(question)
            self.tell("No model is loaded: choose a pair first (Ctrl+O).")
        elif self.talk.running is None and not self._loading:
            self._begin(question)
        elif not self.talk.waiting:
            self.talk.waiting = question
            self._waiting = items.Question(question)
            what = "the model" if self._loading else "the answer above"
            self._waiting.waiting = f"waits for {what}"
            self.transcript.add(self._waiting)
            self.transcript.follow()
        else:
            self.composer.put(question)
            self.tell("One question is waiting already: this one stays here.")

    def again(self) -> None:
        """Have the last question answered anew."""
        if self._last_turn() is not None:
            self._begin(self.talk.turns[-1].question, index=len(self.talk.turns) - 1)

    def go_on(self) -> None:
        """Continue the last answer."""
        turn = self._last_turn()
        if turn is None:
            return
        if not turn.answer:
            self.tell("There is nothing to continue: the answer is empty.")
            return
        self._begin(turn.question, index=len(self.talk.turns) - 1, more=True)

    def ask_instead(self, question: str, index: int) -> None:
        """Ask something else in the place of turn `index`; it and what follows are replaced."""
        if self._last_turn() is not None:
            self._begin(question, index=index)

    def stop(self) -> None:
        """Stop what is under way; a question that waits comes back to the composer."""
        self._give_back_waiting()
        if self._loading:
            self.bridge.cancel_load()
            self._say("stopping")
        elif self.talk.running is not None:
            self.bridge.stop()
            self._say("stopping")

    @property
    def busy(self) -> bool:
        """Whether there is something to stop."""
        return self._loading or self.talk.running is not None

    def _last_turn(self) -> Turn | None:
        """The last turn, if something can be done with it now; else the person is told why not."""
        if self.talk.running is not None:
            self.tell("An answer is under way: Esc stops it.")
        elif self.loaded is None:
            self.tell("No model is loaded yet.")
        elif not self.talk.turns:
            self.tell("Nothing was asked yet.")
        else:
            return self.talk.turns[-1]
        return None

    def _begin(self, question: str, *, index: int | None = None, more: bool = False) -> None:
        ask = self.talk.ask(
            question,
            self.settings,
            index=index,
            more=more,
            probabilities=self.preferences.tokens,
            now=self._wall_clock(),
        )
        place = self.talk.running.index if self.talk.running is not None else 0
        self._cut_items(place)
        self.transcript.add(items.Question(question, place))
        self._answer = answer = items.Answer(ask.answer, place)
        answer.streaming = True
        answer.tokens_shown = self.preferences.tokens
        self.transcript.add(answer)
        self.transcript.follow()
        self._say("reading the question")
        self.composer.placeholder = BUSY
        self.bridge.ask(ask)

    def _take_turn(self, event: Streamed | Figures | Finished | Failed | Started) -> None:
        answer = self._answer
        assert answer is not None
        match event:
            case Started(_, notes):
                for note in notes:
                    self.tell(note)
            case Streamed(_, text, pieces):
                if self.figures.status == "reading the question":
                    self._say("")
                answer.append(text, pieces)
                self.transcript.touch(answer)
            case Figures():
                self._show_figures(event)
            case Finished():
                self._show_figures(event.figures)
                self._end(event)
            case Failed(_, error):
                self._end(event)
                self.note(error, "error")

    def _end(self, event: Finished | Failed) -> None:
        answer = self._answer
        assert answer is not None
        index = self.talk.running.index if self.talk.running is not None else 0
        turn = self.talk.end(event, self.choice.label)
        self._answer = None
        self.composer.placeholder = IDLE
        self._say("")
        if turn is None:
            self.show_turns(self.talk.turns, self._writer)
        else:
            answer.streaming = False
            answer.caption = caption(turn)
            self.transcript.touch(answer)
            self._save(index, turn)
        self._ask_waiting()

    def _lay_out(self, width: int) -> None:
        """Fit the screen to its width and the preferences; see `ChatApp`."""

    def save_unfinished(self) -> None:
        """Keep what came of an answer whose end nobody waits for."""
        running, answer = self.talk.running, self._answer
        if running is None or answer is None:
            return
        if answer.text != running.before:
            figures = self._figured or Figures(running.number)
            turn = self.talk.end(
                Finished(running.number, answer.text, "cancelled", figures), self.choice.label
            )
            if turn is not None:
                self._save(running.index, turn)
        self.talk.running = self._answer = None
        self.composer.placeholder = IDLE

    def _save(self, index: int, turn: Turn) -> None:
        if self.stores.history is None:
            return
        if self._writer is None:
            self._writer = self.stores.history.begin()
        try:
            self._writer.put(index, turn)
        except OSError as error:  # the conversation goes on in memory
            self.note(str(error), "error")
        if self._writer.notice:
            self.note(self._writer.notice)

    def _ask_waiting(self) -> None:
        question, self.talk.waiting = self.talk.waiting, ""
        self._drop_waiting()
        if question:
            self._begin(question)

    def _give_back_waiting(self) -> None:
        question, self.talk.waiting = self.talk.waiting, ""
        self._drop_waiting()
        if question:
            self.composer.put("\n".join(filter(None, [question, self.composer.text])))

    def _drop_waiting(self) -> None:
        if self._waiting is not None:
            self.transcript.take_out(self._waiting)
            self._waiting = None

    # --------------------------------------------------------------------------------- the screen

    def show_turns(self, turns: Sequence[Turn], writer: Writer | None) -> None:
        """A conversation as it is kept, in the place of what is shown."""
        self.save_unfinished()
        waiting = self.talk.waiting
        self.talk.restart(turns)
        self.talk.waiting = waiting
        self._writer = writer
        self._answer = None
        found: list[items.Item] = []
        for index, turn in enumerate(turns):
            answer = items.Answer(turn.answer, index)
            answer.caption = caption(turn)
            answer.tokens_shown = self.preferences.tokens
            found += [items.Question(turn.question, index), answer]
            if turn.error:
                found.append(items.Note(turn.error, "error", index))
        if self._waiting is not None:
            found.append(self._waiting)
        self.transcript.show(found)

    def tell(self, text: str, severity: SeverityLevel = "information") -> None:
        """A sentence that goes away by itself."""
        self.notify(shown(text), severity=severity, markup=False)

    def prefer(self, **changes: Any) -> None:
        """Change preferences, and keep them."""
        self.preferences = replace(self.preferences, **changes)
        self._lay_out(self.size.width)
        if self.stores.settings is not None:
            self.kept(self.stores.settings.save_preferences, self.preferences)

    def kept(self, function: Callable[[_A], _R], argument: _A) -> _R | None:
        """What a store answers; where it can't, the person is told."""
        try:
            return function(argument)
        except EdgespecError as error:
            self.tell(str(error), "warning")
            return None

    def note(self, text: str, style: str = "note") -> None:
        """A sentence for the person, where the conversation is."""
        self.transcript.add(items.Note(text, style, len(self.talk.turns) - 1))

    def _cut_items(self, index: int) -> None:
        for place, item in enumerate(self.transcript.document.items):
            if item.turn >= index and not isinstance(item, items.Note):
                self.transcript.cut(place)
                return

    def _show_figures(self, figures: Figures) -> None:
        self._figured = self.figures.figures = figures
        self.figures.changed()
        self.panel.take(figures)

    def _say(self, status: str) -> None:
        if status != self.figures.status:
            self.figures.status = one_line(status)
            self.figures.changed()
