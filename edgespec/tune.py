"""Does speculation pay for this pair on this machine, and by how much? The planner's sums by hand.

Invariant: everything here is arithmetic on measured costs and a measured acceptance. The planner
reckons likewise, with a margin for what it can't know, so it drafts a little less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgespec.costs import Costs

LENGTH = 256
"""The text length, in tokens, that the sums are made for."""

RATES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MAX_LOOKAHEAD = 8
PAYS = 1.05
"""The least gain that is called one: with less, the planner's margins leave nothing."""


@dataclass(frozen=True)
class Choice:
    """A lookahead and the tokens per second it gives, as a multiple of plain decoding's."""

    lookahead: int
    gain: float


@dataclass(frozen=True)
class Sample:
    """What sample prompts showed of a drafter.

    `rate` is the chance of a draft token to stand where those before it did; `share` that of the
    rounds in which it had a guess.
    """

    rate: float
    share: float = 1.0


def gain(
    costs: Costs, drafter: str | None, lookahead: int, rate: float, share: float = 1.0
) -> float:
    """Tokens per second over plain decoding's, if each draft token stands with chance `rate`.

    `drafter` None costs nothing, like a lookup; it drafts in a `share` of the rounds. Leviathan et
    al. 2023 (arXiv 2211.17192), with measured costs in place of constant ones.
    """
    plain = costs.expected(1, LENGTH)
    seconds = costs.expected(lookahead + 1, LENGTH)
    if drafter is not None and lookahead:
        seconds += costs.draft(drafter, lookahead, 2, LENGTH)
    tokens = 1 + sum(rate**i for i in range(1, lookahead + 1))
    return (1 + share * (tokens - 1)) * plain / (plain + share * (seconds - plain))


def best(costs: Costs, drafter: str | None, rate: float, share: float = 1.0) -> Choice:
    """The lookahead that pays most; 0 where none does."""
    choices = (Choice(k, gain(costs, drafter, k, rate, share)) for k in range(MAX_LOOKAHEAD + 1))
    return max(choices, key=lambda choice: choice.gain)


def break_even(costs: Costs, drafter: str | None, lookahead: int) -> float | None:
    """The acceptance rate from which a lookahead beats plain decoding; None if none does."""
    low, high = 0.0, 1.0
    if gain(costs, drafter, lookahead, high) <= 1:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(costs, drafter, lookahead, middle) > 1 else (middle, high)
    return high


def report(costs: Costs, samples: Mapping[str, Sample | None], free: set[str]) -> Iterator[str]:
    """The lines `edgespec tune` prints; None is a drafter that never had a guess."""
    plain = costs.expected(1, LENGTH)
    yield f"a pass of the target over one token: {plain * 1e3:.1f} ms; over n tokens, relative:"
    sizes = range(2, MAX_LOOKAHEAD + 2)
    yield "  n     " + "".join(f"{n:7}" for n in sizes)
    relative = (costs.expected(n, LENGTH) / plain for n in sizes)
    yield "  cost  " + "".join(f"{cost:7.2f}" for cost in relative)
    for name in samples:
        drafter = None if name in free else name
        yield ""
        if drafter is None:
            yield f"{name}: a draft costs next to nothing"
        else:
            step = costs.seconds(name, 1, LENGTH)
            yield f"{name}: a draft step costs {step * 1e3:.1f} ms, {step / plain:.2f} of a pass"
        yield "  lookahead              " + "".join(f"{k:7}" for k in range(1, MAX_LOOKAHEAD + 1))
        yield "  pays from acceptance   " + "".join(
            "  never" if rate is None else f"{rate:7.2f}"
            for rate in (break_even(costs, drafter, k) for k in range(1, MAX_LOOKAHEAD + 1))
        )
        yield "  at acceptance          " + "".join(f"{rate:7.2f}" for rate in RATES)
        plans = [best(costs, drafter, rate) for rate in RATES]
        yield "  best lookahead         " + "".join(f"{plan.lookahead:7}" for plan in plans)
        yield "  times plain            " + "".join(f"{plan.gain:7.2f}" for plan in plans)
    yield ""
    yield verdict(costs, samples, free)


def verdict(costs: Costs, samples: Mapping[str, Sample | None], free: set[str]) -> str:
    """One sentence: does it pay, with which drafter, and by how much."""
    tried = {
        name: (sample, best(costs, None if name in free else name, sample.rate, sample.share))
        for name, sample in samples.items()
        if sample is not None
    }
    if not tried:
        return "No drafter had a guess on the sample prompts, so plain decoding it is."
    drafting = {
        name: max(
            gain(costs, None if name in free else name, k, sample.rate, sample.share)
            for k in range(1, MAX_LOOKAHEAD + 1)
        )
        for name, (sample, _) in tried.items()
    }
    name = max(tried, key=lambda n: drafting[n])
    sample, choice = tried[name]
    guesses = f" and a guess in {sample.share:.0%} of the rounds" if sample.share < 0.995 else ""
    if choice.lookahead == 0 or choice.gain < PAYS:
        return (
            f"Speculation does not pay for this pair on this machine: the best drafter, {name}, "
            f"had its next token accepted {sample.rate:.0%} of the time{guesses} on the sample "
            f"prompts, and the best lookahead would give {drafting[name]:.2f} times plain "
            "decoding's tokens per second."
        )
    return (
        f"Speculation pays for this pair on this machine: {name} had its next token accepted "
        f"{sample.rate:.0%} of the time{guesses} on the sample prompts, and a lookahead of "
        f"{choice.lookahead} then gives {choice.gain:.2f} times plain decoding's tokens per second."
    )
