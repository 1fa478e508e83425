"""Does speculation pay for this pair on this machine, and by how much?

Invariant: the table is arithmetic on measured costs, for one lookahead and one acceptance in every
round. The sentence below it is what the planner reached on sample prompts: it drafts where a guess
is sure and leaves the rest alone, so no sum over a mean acceptance stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgespec.costs import Costs
from edgespec.errors import ConfigError

LENGTH = 256
"""The text length, in tokens, that the sums are made for."""

RATES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MAX_LOOKAHEAD = 8
PAYS = 1.05
"""The least gain that is called one: less may be noise, or gone with another text."""
NOTHING_TO_JUDGE = (
    "the target's answers end with their first token, so there is nothing to judge a drafter by: "
    "give other texts with --prompts"
)


@dataclass(frozen=True)
class Choice:
    """A lookahead and the tokens per second it gives, as a multiple of plain decoding's."""

    lookahead: int
    gain: float


@dataclass(frozen=True)
class Sample:
    """What sample prompts showed of a drafter, with a fixed lookahead.

    `rate` is the chance of a draft token to stand where those before it did; `share` that of the
    rounds in which it had a guess.
    """

    rate: float
    share: float = 1.0


@dataclass(frozen=True)
class Answer:
    """A sample answer as the planner drafted it: its tokens behind the first, what they came to in
    plain decoding's speed (None where that is unknown), and who drafted in it.
    """

    tokens: int
    gain: float | None
    drafters: tuple[str, ...] = ()


def gain(costs: Costs, drafter: str | None, lookahead: int, rate: float) -> float:
    """Tokens per second over plain decoding's, if each draft token stands with chance `rate`.

    `drafter` None costs nothing, like a lookup; every round is taken to have a guess. Leviathan et
    al. 2023 (arXiv 2211.17192), with measured costs in place of constant ones.
    """
    plain = costs.expected(1, LENGTH)
    seconds = costs.expected(lookahead + 1, LENGTH)
    if drafter is not None and lookahead:
        seconds += costs.draft(drafter, lookahead, 2, LENGTH)
    return sum(rate**i for i in range(lookahead + 1)) * plain / seconds


def best(costs: Costs, drafter: str | None, rate: float) -> Choice:
    """The lookahead that pays most; 0 where none does."""
    choices = (Choice(k, gain(costs, drafter, k, rate)) for k in range(MAX_LOOKAHEAD + 1))
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
    """The table `edgespec tune` prints; None is a drafter that never had a guess."""
    plain = costs.expected(1, LENGTH)
    yield f"a pass of the target over one token: {plain * 1e3:.1f} ms; over n tokens, relative:"
    sizes = range(2, MAX_LOOKAHEAD + 2)
    yield "  n     " + "".join(f"{n:7}" for n in sizes)
    relative = (costs.expected(n, LENGTH) / plain for n in sizes)
    yield "  cost  " + "".join(f"{cost:7.2f}" for cost in relative)
    for name, sample in samples.items():
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
        yield f"  on the sample prompts  {_seen(sample)}"


def _seen(sample: Sample | None) -> str:
    if sample is None:
        return "it had no guess"
    guesses = f", with a guess in {sample.share:.0%} of the rounds" if sample.share < 0.995 else ""
    return f"acceptance {sample.rate:.2f}{guesses}"


def reached(answers: Sequence[Answer]) -> float | None:
    """All their tokens in all their time, over plain decoding's; None where none of it is known."""
    known = [(answer.tokens, answer.gain) for answer in answers if answer.gain]
    time = sum(tokens / gain for tokens, gain in known)
    return sum(tokens for tokens, _ in known) / time if time else None


def verdict(answers: Sequence[Answer]) -> str:
    """One sentence: does it pay, with which drafters, and by how much.

    Raises ConfigError where nothing came behind a first token.
    """
    if not any(answer.tokens for answer in answers):
        raise ConfigError(NOTHING_TO_JUDGE)
    gain = reached(answers)
    names = dict.fromkeys(name for answer in answers for name in answer.drafters)
    drafted = f"drafted with {' and '.join(names)}" if names else "drafted nothing"
    if gain is None:
        return (
            "Whether speculation pays can't be told from so little: give more prompts with "
            "--prompts, or longer answers with --max-tokens."
        )
    if gain < PAYS or not names:
        return (
            "Speculation does not pay for this pair on this machine: on the sample prompts the "
            f"planner {drafted} and reached {gain:.2f} times plain decoding's tokens per second "
            "(other texts may differ: give yours with --prompts)."
        )
    return (
        "Speculation pays for this pair on this machine: on the sample prompts the planner "
        f"{drafted} and reached {gain:.2f} times plain decoding's tokens per second."
    )
