"""Which drafter guesses next, and how many tokens: the seam between the loop and any policy.

Invariant: a plan depends on what was seen before the round, never on a token already drawn in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """Ask `drafters` in this order for up to `lookahead` tokens, and take the first that answers.

    No drafters, or a lookahead of 0, is plain decoding.
    """

    drafters: tuple[str, ...] = ()
    lookahead: int = 0


PLAIN = Plan()


@dataclass(frozen=True)
class Outcome:
    """What came of a round; times in seconds."""

    drafter: str
    drafted: int
    accepted: int
    draft_seconds: float
    check_seconds: float


class Planner(Protocol):
    """Chooses before each round, learns after it."""

    def plan(self, length: int) -> Plan:
        """The plan for the next round of a text that is `length` tokens long."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""
        ...


class FixedPlanner:
    """The same drafters and lookahead in every round."""

    def __init__(self, drafters: Sequence[str], lookahead: int) -> None:
        if lookahead < 0:
            raise ConfigError(f"lookahead must be 0 (plain decoding) or more, not {lookahead}")
        self._plan = Plan(tuple(drafters), lookahead) if drafters and lookahead else PLAIN

    def plan(self, length: int) -> Plan:
        return self._plan

    def observe(self, outcome: Outcome) -> None:
        pass
