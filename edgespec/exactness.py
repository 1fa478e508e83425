"""What the comparison of a pair with its target found, and the verdict on it.

Invariant: a pair is called exact only where something was drafted and nothing speaks against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEAR_TIE = 0.02
"""A top-2 gap in logits that rounding explains even where no rounding was measured."""

NOISE_SHARE = 4.0
"""Elsewhere it explains a gap of this many times the largest difference that was measured."""

MOST_NOISE = 0.25
"""Differences and gaps above this, in logits, are not rounding: something else is wrong."""

BINS = 10
CHI_SQUARE_LIMIT = 33.72
"""What chi-square with 9 degrees of freedom exceeds once in 10,000 exact pairs."""


def common(plain: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers share from their start."""
    pairs = zip(plain, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(other)))


def near_tie(noise: float) -> float:
    """The gap in logits up to which rounding explains another token, where it measured `noise`."""
    return min(max(NEAR_TIE, NOISE_SHARE * noise), MOST_NOISE)


@dataclass(frozen=True)
class Difference:
    """The first token of an answer to a prompt that isn't the target's.

    `token` counts from 0. `gap` is how little the logits would have had to change for the other
    token: in a greedy answer, how far the likeliest is above the less likely of the two; in one
    drawn with the same seed, what would have changed the winner of that draw.
    """

    prompt: int
    token: int
    plain: int | None
    speculative: int | None
    gap: float


@dataclass(frozen=True)
class Report:
    """What was compared and what came of it.

    Attributes:
        greedy_tokens: greedy tokens compared, up to the first difference of each prompt.
        differences: at most one for each prompt.
        noise: the largest difference between the two runs in a log-probability of the same token.
        near_tie: gaps up to this are explained by rounding.
        repeated_tokens: tokens drawn again with the same seed by the target alone, or chosen again
            at temperature 0, up to the first difference of each answer; 0 where the rule was
            `rejection`.
        redrawn: those differences.
        sampled_tokens: sampled tokens placed in the target's distribution.
        impossible: those of them that the target alone would never draw.
        chi_square: how unevenly they lie over 10 bins; None where there are too few to tell.
        drafted, accepted: draft tokens of all speculative answers.
        seeded: whether repeated tokens were drawn; at temperature 0 they are chosen under
            penalties, biases, bans or steps.
    """

    greedy_tokens: int
    differences: tuple[Difference, ...]
    noise: float
    repeated_tokens: int
    redrawn: tuple[Difference, ...]
    sampled_tokens: int
    impossible: int
    chi_square: float | None
    drafted: int
    accepted: int
    seeded: bool = True

    @property
    def near_tie(self) -> float:
        return near_tie(self.noise)

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences with a gap that rounding doesn't explain."""
        return tuple(d for d in (*self.differences, *self.redrawn) if not d.gap <= self.near_tie)

    @property
    def exact(self) -> bool:
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why the pair can't be called exact, if so."""
        if not self.drafted:
            return "nothing was drafted, so nothing was tested"
        if self.unexplained:
            d = self.unexplained[0]
            answer = "greedy answer" if d in self.differences else f"answer {self._again}"
            return (
                f"the {answer} to prompt {d.prompt + 1} differs at token {d.token + 1}, where the "
                f"two tokens are {d.gap:.3g} apart: rounding explains {self.near_tie:.2g}"
            )
        if self.noise > MOST_NOISE:
            return (
                f"the target's log-probabilities change by up to {self.noise:.2g} when it checks "
                "drafts: that is more than rounding"
            )
        if self.impossible > max(1, self.sampled_tokens // 100):
            return (
                f"{self.impossible} of {self.sampled_tokens} sampled tokens are ones the target "
                "alone would never draw"
            )
        if self.chi_square is not None and self.chi_square > CHI_SQUARE_LIMIT:
            return (
                f"sampled tokens are not distributed as the target's (chi-square "
                f"{self.chi_square:.1f}, limit {CHI_SQUARE_LIMIT:.1f})"
            )
        return None

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if self.problem is not None:
            return f"this pair is not shown to be exact on this machine: {self.problem}"
        parts = [
            f"{self.greedy_tokens} greedy tokens are the target's own"
            + self._near_ties(self.differences)
        ]
        if self.repeated_tokens:
            parts.append(
                f"{self.repeated_tokens} come again {self._again}" + self._near_ties(self.redrawn)
            )
        if self.chi_square is not None:
            parts.append(
                f"{self.sampled_tokens} sampled ones are distributed as the target's (chi-square "
                f"{self.chi_square:.1f}, limit {CHI_SQUARE_LIMIT:.1f})"
            )
        *first, last = parts
        said = f"{', '.join(first)} and {last}" if first else last
        rounding = ", up to rounding" if self.differences or self.redrawn else ""
        drawn_again = self.seeded and self.repeated_tokens
        tested = self.chi_square is not None or drawn_again
        sampling = "" if tested else "; sampling is untested"
        return f"this pair is exact on this machine{rounding}: {said}{sampling}"

    @property
    def _again(self) -> str:
        if self.seeded:
            return "with the same seed"
        return "with the penalties, biases, bans or steps that were given"

    def _near_ties(self, differences: tuple[Difference, ...]) -> str:
        if not differences:
            return ""
        widest = max(difference.gap for difference in differences)
        return (
            f" up to {len(differences)} near-ties (gaps up to {widest:.2g}; rounding explains "
            f"{self.near_tie:.2g})"
        )
