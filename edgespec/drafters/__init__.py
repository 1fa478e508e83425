"""Drafters: whatever can guess the next tokens cheaply.

Invariant: a drafter is given the whole committed sequence each time and brings itself to it, so it
can be skipped for any number of rounds and never falls out of step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import Draft

GoOn = Callable[[int, float], bool]
"""Asked after each draft token, with it and the confidence in it: is another one worth its cost?"""


class Drafter(Protocol):
    """Guesses tokens that the target then checks.

    Attributes:
        name: how figures and options call it.
        free: whether a guess costs next to nothing, so that it may be had just to be judged, and
            used in part. Nothing is drawn for it: its drafts have no `probs`.
        failed: why it has no more guesses in this answer, in a sentence; empty where nothing went
            wrong. The target goes on without it. A planner sets it of one that keeps failing.
    """

    name: str
    free: bool
    failed: str

    def begin(self, length: int) -> None:
        """An answer begins, behind a prompt of `length` tokens."""
        ...

    def propose(
        self,
        tokens: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        """Up to `max_tokens` guesses for what follows `tokens` (the committed sequence, (n,)), ids
        below `sampler.width`, none of them behind one of `sampler.ends`.

        Returns an empty draft when it has none; `Draft` names the scale of its `confidence`.
        `go_on` can end the draft early. `near`: that it knows the nearest part of the text is
        enough, where it can do with less.

        The text keeps the target's distribution on two conditions. A token that was drawn is in the
        draft, however unlikely it turned out, and the draft may end behind it but not before it.
        And `probs` are what each token was drawn from, cut and normalised as then.

        Raises nothing for a failure of its own: it sets `failed`, which `begin` clears, and returns
        what it had drawn, or an empty draft. What it raises ends the answer.
        """
        ...

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        """How many of the committed `tokens` it would have to read before its first guess."""
        ...

    def close(self) -> None:
        """Free what it holds; safe to call twice."""
        ...
