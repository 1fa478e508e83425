"""What drafters are worth for a target on this machine: tried on what the target itself says.

Invariant: every drafter is judged by the same text. Where the target takes the likeliest token, a
draft token stands with exactly the chance that the drafter names the target's own next token behind
the target's own text; so reading that text once finds the acceptance, and what differs between two
drafters is the drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgespec.costs import Costs
from edgespec.errors import ConfigError
from edgespec.sampling import GREEDY, Sampler
from edgespec.session import Session
from edgespec.terminal import columns, printable
from edgespec.timing import measure
from edgespec.tune import LENGTH, NOTHING_TO_JUDGE, PAYS, Choice, best

_NAME = "model"


@dataclass(frozen=True)
class Text:
    """A prompt and the target's greedy answer, as ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """What came out.

    Attributes:
        name: the drafter.
        nbytes: its file's size.
        step: seconds of a draft step, relative to the target's pass over one token.
        acceptance: the chance of a draft token to stand, where those before it did.
        choice: the lookahead that pays most at that rate, and its gain over plain decoding.
    """

    name: str
    nbytes: int
    step: float
    acceptance: float
    choice: Choice


def require_drafted(texts: Iterable[Text]) -> None:
    """Raises ConfigError where no answer has a token that is ever drafted: one behind its first."""
    if all(len(text.answer) < 2 for text in texts):
        raise ConfigError(NOTHING_TO_JUDGE)


def acceptance(
    session: Session, texts: Sequence[Text], width: int, suppressed: Collection[int] = ()
) -> float:
    """The share of the target's tokens, of ids below `width`, that a drafter would have named.

    `suppressed` ids are named by neither. The first token of an answer doesn't count, since it is
    never drafted. One that the drafter doesn't have is never fed to it, and nothing is named behind
    it. Raises ConfigError as `require_drafted` does.
    """
    require_drafted(texts)
    sampler = Sampler(GREEDY, width, suppressed=suppressed).named(session.name)
    right = count = 0
    for text in texts:
        session.rollback(0)
        if len(text.answer) < 2:
            continue
        if prompt := [token for token in text.prompt if token < session.vocab_size]:
            session.forward(prompt)
        # One at a time, as when drafting: a drafter may make use of what it has read so far.
        for token, following in pairwise(text.answer):
            count += 1
            if token < session.vocab_size:
                row = session.forward([token])[0]  # (V,)
                right += sampler.argmax(row) == following
    session.rollback(0)
    return right / count


def tried(
    name: str,
    nbytes: int,
    target: Session,
    drafter: Session,
    texts: Sequence[Text],
    width: int,
    suppressed: Collection[int] = (),
    check: Callable[[], None] = lambda: None,
) -> Trial:
    """Measure one drafter; both caches are empty afterwards."""
    rate = acceptance(drafter, texts, width, suppressed)
    costs: Costs = measure(target, {_NAME: drafter}, check=check)
    step = costs.seconds(_NAME, 1, LENGTH) / costs.expected(1, LENGTH)
    return Trial(name, nbytes, step, rate, best(costs, _NAME, rate))


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Best first; of those that gain nothing, the one that is nearest to it."""
    return sorted(trials, key=lambda t: (-t.choice.gain, t.step / max(t.acceptance, 1e-9)))


def table(trials: Sequence[Trial], human_bytes: Callable[[int], str]) -> list[str]:
    """The lines to print, best first."""
    rows = [("DRAFTER", "SIZE", "STEP", "ACCEPTANCE", "LOOKAHEAD", "GAIN")]
    for trial in ranked(trials):
        pays = trial.choice.gain >= PAYS
        rows.append(
            (
                printable(trial.name),
                human_bytes(trial.nbytes),
                f"{trial.step:.2f}",
                f"{trial.acceptance:.0%}",
                str(trial.choice.lookahead) if pays else "none",
                f"{trial.choice.gain:.2f}" if pays else "-",
            )
        )
    return list(columns(rows, numbers=True))


def verdict(trials: Sequence[Trial], target: str) -> str:
    """One sentence: which drafter to use, or that none pays."""
    first = ranked(trials)[0]
    if first.choice.gain < PAYS:
        return (
            f"None of these drafters pays for {target} on this machine: the best of them, "
            f"{first.name}, costs {first.step:.2f} of a pass of the target for each draft token, "
            f"of which {first.acceptance:.0%} stand, and no lookahead gains {PAYS - 1:.0%} at that "
            "rate."
        )
    return (
        f"{first.name} pays most for {target} on this machine: {first.acceptance:.0%} of its draft "
        f"tokens stand, and a lookahead of {first.choice.lookahead} is then expected to give "
        f"{first.choice.gain:.2f} times plain decoding's tokens per second."
    )
