"""Which drafter guesses, how many tokens, or none: the seam between the loop and any policy.

Invariant: whether one more token is drafted may depend on everything seen so far; a token once
drawn is never taken back, since dropping it for what it is would bias what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from edgespec.drafters import Drafter
from edgespec.errors import ConfigError
from edgespec.options import check_lookahead
from edgespec.sampling import Sampler
from edgespec.session import Logits, TokenIds
from edgespec.verify import NO_DRAFT, Draft, Verdict, vet


class Seconds(NamedTuple):
    """What the parts of a round took: its draft, its check, and choosing tokens from the rows."""

    draft: float
    check: float
    sample: float = 0.0


NO_TIME = Seconds(0.0, 0.0)


@dataclass(frozen=True)
class Outcome:
    """What came of a round: the draft, how much of it stood and what followed, and what it cost.

    Behind a draft token that ended the text, and before a row with nothing to choose from, nothing
    followed; what was drafted behind it wasn't judged.
    `length` is that of the text before the round. `rows` are the target's logits (k+1, V), valid
    during `observe` only. What sampling took plain decoding takes as well.
    """

    draft: Draft
    verdict: Verdict
    seconds: Seconds
    length: int
    rows: Logits

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the round brought."""
        return self.verdict.tokens(self.draft)


@dataclass(frozen=True)
class PlannerStatus:
    """What a planner is doing, for people.

    `drafter` and `lookahead` are those of this answer's latest draft, empty and 0 before one and
    while parked; `reason` says in words why it drafts or doesn't, and is empty where nobody wanted
    a draft. `gain` is how many
    times plain decoding's tokens per second this answer has reached so far, plain rounds on this
    machine being the measure; None while unknown.
    """

    drafter: str
    lookahead: int
    parked: bool
    reason: str
    gain: float | None


class Planner(Protocol):
    """Drafts before each check, learns after it. The prompt's own round is none of its business."""

    def begin(self, length: int) -> None:
        """A new answer begins behind a prompt of `length` tokens."""
        ...

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """A draft of at most `room` tokens to follow `tokens`, or an empty one."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""
        ...

    def status(self) -> PlannerStatus:
        """What it is doing just now."""
        ...


_SURE = 4.0  # tokens that a lookup must have matched to go before a model


class FixedPlanner:
    """The same lookahead in every round, and the first drafter that has a guess.

    A guess that cost nothing and is unsure waits for what the drafters behind it have.
    """

    def __init__(self, drafters: Sequence[str], lookahead: int) -> None:
        check_lookahead(lookahead)
        self._drafters = tuple(drafters)
        self._lookahead = lookahead
        self._drafted = NO_DRAFT

    def begin(self, length: int) -> None:
        self._drafted = NO_DRAFT

    def require_drafters(self, drafters: Mapping[str, Drafter]) -> None:
        """Raises ConfigError where it is to draft with one that isn't among `drafters`."""
        for name in self._drafters if self._lookahead else ():
            if name not in drafters:
                there = ", ".join(drafters) or "none"
                raise ConfigError(
                    f"this runtime has no drafter {name!r} (it has: {there}): plan with those"
                )

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        lookahead, unsure = min(self._lookahead, room), NO_DRAFT
        self.require_drafters(drafters)
        for name in self._drafters if lookahead > 0 else ():
            drafter = drafters[name]
            draft = drafter.propose(tokens, lookahead, sampler)
            draft = vet(draft, lookahead, sampler.width, name, free=drafter.free)
            if draft and (not drafter.free or draft.confidence[0] >= _SURE):
                return draft
            unsure = unsure or draft
        return unsure

    def observe(self, outcome: Outcome) -> None:
        self._drafted = outcome.draft

    def status(self) -> PlannerStatus:
        """The latest round; without plain rounds beside it, its gain is unknown."""
        if not self._lookahead or not self._drafters:
            return PlannerStatus("", 0, True, "", None)
        reason = f"the lookahead is set to {self._lookahead}"
        return PlannerStatus(self._drafted.drafter, len(self._drafted), False, reason, None)
