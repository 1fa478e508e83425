"""What happens between a person's message and its answer, on the screen and in the store.

Invariant: an event changes the screen only if its turn, or its load, is the one under way; whatever
ends a turn has it saved, ahead of the next.
"""

from __future__ import annotations

from time import thread_time
from typing import TYPE_CHECKING, Any

from edgespec.tui import items
from edgespec.tui.commands import as_written
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
    Settings,
    Started,
    Streamed,
    Turn,
)
from edgespec.tui.panel import caption
from edgespec.tui.showing import Showing, count
from edgespec.tui.shown import one_line
from edgespec.tui.ticking import TICK, Ticker
from edgespec.tui.widgets.composer import BUSY, IDLE
from edgespec.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgespec.tui.writer import Writer

_READING = "reading the question"
"""Stands in the line of figures while no text of the answer is there."""
_LONG = 128  # tokens still to be read, from which on it is told how many they are


class Conversing(Showing):
    """The chat's state and what events do to it."""

    def __init__(
        self,
        *args: Any,
        remember: str = "",
        tick: float = TICK,
        spent: Callable[[], float] = thread_time,
        **options: Any,
    ) -> None:
        """`remember`: the pair that was named, to begin with the next time too.

        `tick` and `spent`: see `Ticker`.
        """
        super().__init__(*args, **options)
        self._load = -1
        self._loading = True
        self._stopped_early = False  # before the pair's settings were read
        self._remembered = remember  # the pair to begin with the next time, once it is loaded
        self._answer: items.Answer | None = None
        self._awaits_text = False  # of the answer under way
        self._replaced: list[items.Item] = []  # what is shown again where nothing comes instead
        self._waiting: items.Question | None = None
        self._shown_busy = True
        self.ticker = Ticker(self, self._look, tick=tick, spent=spent)

    # ----------------------------------------------------------------------------- what came

    def _look(self) -> None:
        self._drain()
        self._take_saved(self.note)
        self._take_written()

    def _drain(self) -> None:
        if self.ticker.looking:
            for event in self.bridge.drain():
                self.take(event)
            self._show_reading()
            self._show_busy()

    def _show_reading(self) -> None:
        """How far a prompt is read that takes its time, while no text of the answer is there."""
        read, tokens = self.bridge.prompt_read if self._awaits_text else (0, 0)
        if read and tokens - read >= _LONG:
            self._say(f"{_READING}: {read:,} of {tokens:,} tokens")

    def take_last_words(self) -> None:
        """Take what came of the answer since the last look, when nobody will look again.

        A question that waits is kept without an answer: it was sent.
        """
        question, self.talk.waiting = self.talk.waiting, ""  # it isn't asked any more
        for event in self.bridge.drain():
            if isinstance(event, Streamed | Finished | Failed) and self.talk.is_running(event.turn):
                self._take_turn(event)
        self.save_unfinished()
        if question:
            error = "the chat was left before this was asked; Ctrl+R asks it"
            asked_at = self._wall_clock()
            turn = Turn(question, error=error, pair=self.choice.label, asked_at=asked_at)
            self.talk.turns.append(turn)
            self._save(len(self.talk.turns) - 1, turn)

    def _show_busy(self) -> None:
        """Show in the footer which key stops what is under way, or that none does."""
        if self.busy != self._shown_busy and len(self.screen_stack) == 1:
            self._shown_busy = self.busy
            self.refresh_bindings()

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
                    of = f" of {human_bytes(total)}" if total else ""
                    what, done = one_line(event.model), human_bytes(event.done_bytes)
                    self._say(f"downloading {what}: {done}{of} · Esc stops it")
        for screen in tuple(self.screen_stack):  # the one it is for may have another on top
            handle = getattr(screen, "handle", None)
            if handle is not None:
                handle(event)

    def _take_load(self, event: Loading | Measured | Loaded | LoadFailed) -> None:
        match event:
            case Loading(_, what):
                self._say(f"{what} · write your message meanwhile")
            case Measured(_, kind, tokens, seconds):
                what = "a check of" if kind == "check" else f"{kind} reading"
                self._say(
                    f"measuring this pair, once: {what} {count(tokens, 'token')} "
                    f"took {seconds * 1000:.1f} ms"
                )
            case Loaded():
                self._loading = False
                self.loaded = event
                self._forget_figures()  # the pair's before
                drafters = ", ".join(event.drafters) or "none"
                device = f"{event.device} · " if event.device else ""
                self.bar.say(one_line(event.name), one_line(f"{device}drafters: {drafters}"))
                self._say("")
                # Not before: a pair the system ended for its memory isn't to be loaded every time.
                if self._remembered and self._remembered == event.choice.pair:
                    self.prefer(last_pair=self._remembered)
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
            self.composer.put_back(as_written(question))
            self.tell("No model is loaded: choose a pair first (Ctrl+O).")
        elif self.talk.running is None and not self._loading:
            self._begin(question)
            self.transcript.follow()
        elif not self.talk.waiting:
            self.talk.waiting = question
            self._waiting = items.Question(question)
            what = "the model" if self._loading else "the answer above"
            self._waiting.waiting = f"waits for {what}"
            self.transcript.add(self._waiting)
            self.transcript.follow()
        else:
            self.composer.put_back(as_written(question))
            self.tell("One question is waiting already: this one stays here.")

    def again(self) -> None:
        """Have the last question answered anew."""
        if self._last_turn() is not None:
            self._begin(self.talk.turns[-1].question, index=len(self.talk.turns) - 1)
            self.transcript.follow()

    def go_on(self) -> None:
        """Continue the last answer."""
        turn = self._last_turn()
        if turn is None:
            return
        if not turn.answer:
            self.tell("There is nothing to continue: the answer is empty.")
            return
        self._begin(turn.question, index=len(self.talk.turns) - 1, more=True)
        self.transcript.follow()

    def ask_instead(self, question: str, index: int) -> None:
        """Ask something else in the place of turn `index`; it and what follows are replaced.

        Where that can't be now, the question stays to be edited.
        """
        if self._last_turn() is None:
            self.composer.put_back(as_written(question))
            return
        self.editing = None
        self._begin(question, index=index)
        self.transcript.follow()

    def stop(self) -> None:
        """Stop what is under way; a question that waits comes back to the composer."""
        self.stop_answer()
        if self._loading:
            self._stopped_early = not self.has_settings
            self.bridge.cancel_load()
            self._say("stopping")

    def stop_answer(self) -> None:
        """The same, but a pair that is being loaded goes on."""
        self._give_back_waiting()
        if self.talk.running is not None:
            self.bridge.stop()
            self._awaits_text = False  # what still comes leaves it at "stopping"
            self._say("stopping")
            self.ticker.soon(self._drain)

    @property
    def has_settings(self) -> bool:
        """Whether the first pair's settings were read, and its load was asked for."""
        return self._load > 0

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
            pair=self.choice.label,
        )
        assert self.talk.running is not None
        place = self.talk.running.index
        self._answer = answer = items.Answer(ask.answer, place)
        answer.streaming = True
        answer.tokens_shown = self.preferences.tokens
        shown = [items.Question(question, place), answer]
        self._replaced = self.transcript.replace(self._place_of(place), shown)
        if more:
            before = [item for item in self._replaced if isinstance(item, items.Answer)]
            answer.pieces = list(before[0].pieces) if before else []
        self._awaits_text = True
        self._say(_READING)
        self._show_busy()
        self.composer.placeholder = BUSY
        self.bridge.ask(ask)

    def _take_turn(self, event: Streamed | Figures | Finished | Failed | Started) -> None:
        answer = self._answer
        assert answer is not None
        match event:
            case Started(_, notes):
                for note in notes:
                    self.tell(note)
            case Streamed(_, text, pieces, completes):
                if self._awaits_text:
                    self._awaits_text = False
                    self._say("")
                answer.take_back(completes)
                answer.append(text, pieces)
                self.transcript.touch(answer)
            case Figures():
                self._show_figures(event)
            case Finished():
                self._show_figures(event.figures)
                self._end(event)
            case Failed():
                self._end(event)

    def _end(self, event: Finished | Failed) -> None:
        answer = self._answer
        assert answer is not None
        running = self.talk.running
        assert running is not None
        turn = self.talk.end(event, answer.text)
        replaced, self._answer, self._replaced = self._replaced, None, []
        self.composer.placeholder = IDLE
        if not self._loading:
            self._say("")
        if turn is None:
            place = self._place_of(running.index)
            since = self.transcript.document.items[place + 2 :]  # notes, a question that waits
            self.transcript.replace(place, [*replaced, *since])
            if isinstance(event, Finished) and event.reason != "cancelled":
                self.tell(
                    "The model added nothing." if running.before
                    else "The model answered with nothing, so all stays as it was."
                )  # fmt: skip
            asked = self.talk.turns[running.index].question
            if running.question != asked and self.is_running:
                self.set_draft_aside()
                self.composer.put(as_written(running.question))  # edited, and nothing came of it
                self.editing = running.index
        else:
            answer.end(turn.answer)
            answer.caption = caption(turn)
            self.transcript.touch(answer)
            self._save(running.index, turn)
        if isinstance(event, Failed):
            self.note(event.error, "error")
        else:
            for note in event.notes:
                self.note(note)
        self._ask_waiting()

    def save_unfinished(self) -> None:
        """Keep what came of an answer whose end nobody waits for."""
        running, answer = self.talk.running, self._answer
        if running is None or answer is None:
            return
        if answer.text != running.before or running.index == len(self.talk.turns):
            figures = self._figured
            if figures is None or figures.turn != running.number:
                figures = Figures(running.number)
            turn = self.talk.end(Finished(running.number, answer.text, "cancelled", figures))
            if turn is not None:
                self._save(running.index, turn)
        elif running.question != self.talk.turns[running.index].question and self.is_running:
            self.composer.put_back(as_written(running.question))  # edited, and nothing came of it
        self.talk.running = self._answer = None
        self._replaced = []
        self.composer.placeholder = IDLE
        if not self._loading:
            self._say("")

    def _ask_waiting(self) -> None:
        if self._loading or self.talk.running is not None:
            return
        question, self.talk.waiting = self.talk.waiting, ""
        self._drop_waiting()
        if question:
            self._begin(question)

    def _give_back_waiting(self) -> None:
        question, self.talk.waiting = self.talk.waiting, ""
        self._drop_waiting()
        if question:
            self.composer.put_back(as_written(question))

    def _drop_waiting(self) -> None:
        if self._waiting is not None:
            self.transcript.take_out(self._waiting)
            self._waiting = None

    def show_turns(self, turns: Sequence[Turn], writer: Writer | None) -> bool:
        """A conversation as it is kept, in the place of the one that is open; no question waits.

        False, and the person was told, where the disk is still saving that one, or doesn't take it.
        """
        self._drain()  # the open one's answer may have ended since the last look
        unfinished = self.talk.running is not None
        self.save_unfinished()
        if not self._settle() or not self._may_drop():
            if unfinished:
                self._show_items(self.talk.turns)  # what came of it, as it stands now
            return False
        self.talk.restart(turns)
        self.editing = None
        self._writer = writer
        self._answer = None
        self._loss_told = False
        self._forget_figures()
        self._show_items(turns)
        return True
