"""What was drafted, accepted and spent, and the figures people read off it.

Invariant: counters know no clock, and every figure is derived from them. All only grow but
`tokens`, from which a stop string takes those that stood for its beginning. They may be read while
another thread counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DrafterCounts:
    """One drafter's part; `rejections` counts the rounds in which the target replaced a token."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejections: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """The share of draft tokens that stood: accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass
class Counters:
    """One answer's counters; times in seconds.

    `rounds` and `decode_seconds` leave out the first round, which is the prompt's. `ended`: an end
    token was decoded, which `tokens` leaves out.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    ended: bool = False
    ttft_seconds: float | None = None
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    check_seconds: float = 0.0
    sample_seconds: float = 0.0
    drafters: dict[str, DrafterCounts] = field(default_factory=dict)

    def add_draft(
        self, drafter: str, drafted: int, accepted: int, *, rejected: bool = False
    ) -> None:
        counts = self.drafters.setdefault(drafter, DrafterCounts())
        counts.rounds += 1
        counts.drafted += drafted
        counts.accepted += accepted
        counts.rejections += rejected

    @property
    def drafted(self) -> int:
        return sum(d.drafted for d in list(self.drafters.values()))

    @property
    def accepted(self) -> int:
        return sum(d.accepted for d in list(self.drafters.values()))

    @property
    def acceptance_rate(self) -> float | None:
        """The share of draft tokens that stood; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def decoded(self) -> int:
        """Tokens behind the first, an end token included."""
        return max(0, self.tokens - 1 + self.ended)

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per round, the recovered or bonus token included; the prompt's round left out."""
        return self.decoded / self.rounds if self.rounds and self.tokens else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of decoding alone: the first token belongs to the prompt."""
        return self.decoded / self.decode_seconds if self.decoded and self.decode_seconds else None
