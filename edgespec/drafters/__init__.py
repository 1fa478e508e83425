"""Drafters: whatever can guess the next tokens cheaply.

Invariant: a drafter is given the whole committed sequence each time and brings itself to it, so it
can be skipped for any number of rounds and never falls out of step.
"""

from __future__ import annotations

from typing import Protocol

from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import Draft


class Drafter(Protocol):
    """Guesses tokens that the target then checks."""

    name: str

    def propose(self, tokens: TokenIds, max_tokens: int, sampler: Sampler) -> Draft:
        """Up to `max_tokens` guesses for what follows `tokens` (the committed sequence, (n,)).

        Returns an empty draft when it has none.
        """
        ...

    def close(self) -> None:
        """Free what it holds; safe to call twice."""
        ...
