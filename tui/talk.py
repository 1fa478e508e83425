"""The conversation as data: turns that are over, the one under way, the question that waits.

Invariant: at most one turn is under way and at most one question waits. A turn that is asked anew,
changed or continued takes the place of the old one only when something has come of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.tui.messages import Ask, Failed, Finished, Settings, Turn


@dataclass(frozen=True)
class Running:
    """The turn under way: its number, its place among the turns, what was there before it, and the
    pair that was asked.
    """

    number: int
    index: int
    question: str
    before: str
    asked_at: float
    pair: str = ""


class Talk:
    """A conversation; numbers of turns go on rising when another one begins."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.running: Running | None = None
        self.waiting = ""
        self._number = 0

    def restart(self, turns: Sequence[Turn] = ()) -> None:
        """Another conversation: these turns, nothing under way."""
        self.turns = list(turns)
        self.running = None
        self.waiting = ""

    def ask(
        self,
        question: str,
        settings: Settings,
        *,
        index: int | None = None,
        more: bool = False,
        probabilities: bool = False,
        now: float = 0.0,
        pair: str = "",
    ) -> Ask:
        """A question as turn `index` (None: a new one); `more` goes on with the answer there."""
        assert self.running is None
        index = len(self.turns) if index is None else index
        before = self.turns[index].answer if more else ""
        self._number += 1
        self.running = Running(self._number, index, question, before, now, pair)
        history = tuple((t.question, t.answer) for t in self.turns[:index] if t.answer)
        return Ask(self._number, history, question, settings, before, probabilities)

    def is_running(self, number: int) -> bool:
        """Whether events of this turn number are still of interest."""
        return self.running is not None and self.running.number == number

    def end(self, event: Finished | Failed, came: str = "") -> Turn | None:
        """The turn under way is over: what it came to, in its place.

        came: the text so far, which is the answer where it failed in the middle.
        None: nothing came of asking again, so what was there before stands.
        """
        running = self.running
        assert running is not None
        turn = Turn(running.question, pair=running.pair, asked_at=running.asked_at)
        if isinstance(event, Failed):
            turn = replace(turn, answer=came or running.before, error=event.error)
        else:
            figures = replace(event.figures, continued=bool(running.before))
            turn = replace(turn, answer=event.text, reason=event.reason, figures=figures)
        self.running = None
        if running.index < len(self.turns) and turn.answer == running.before:
            return None
        self.turns[running.index :] = [turn]
        return turn
