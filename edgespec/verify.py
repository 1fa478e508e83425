"""The acceptance rules: which draft tokens stand, and the token that follows them.

Invariant: whatever was drafted, the tokens that come out are distributed as if each had been drawn
from the target alone. Pure numpy, no session, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgespec.categorical import Categorical
from edgespec.errors import ConfigError, NumericalError

Origin = Literal["accepted", "recovered", "bonus", "plain"]
"""Where a token came from: an accepted draft token, the replacement of a rejected one, the extra
token behind a fully accepted draft, or a round in which nothing was drafted."""


@dataclass(frozen=True)
class Draft:
    """Draft tokens (k,), each with the distribution it was drawn from.

    `probs` is None for a deterministic guess: each token then counts as drawn from a point mass.
    `confidence` says how sure the drafter was of each token, and a planner learns what that is
    worth: of a `free` drafter the number of tokens that matched (levels from 1.5 to 32.5), of any
    other the gap between its two largest logits (from 0.25 to 9). Where none is given it is 0 for
    each, the least sure. The last `copied` tokens are another drafter's, which went on where the
    first stopped.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[Categorical, ...] | None = None
    drafter: str = ""
    confidence: tuple[float, ...] = ()
    copied: int = 0

    def __post_init__(self) -> None:
        if not self.confidence and self.tokens:
            object.__setattr__(self, "confidence", (0.0,) * len(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def as_guess(self, size: int) -> Draft:
        """The first `size` tokens without distributions: of a guess that drew none, or to judge."""
        return Draft(self.tokens[:size], None, self.drafter, self.confidence[:size])

    def followed_by(self, guess: Draft) -> Draft:
        """The same draft with a guess of another drafter behind it, made without a draw."""
        assert guess.probs is None and not guess.copied
        points = tuple(map(Categorical.point, guess.tokens))
        return Draft(
            self.tokens + guess.tokens,
            None if self.probs is None else self.probs + points,
            f"{self.drafter}+{guess.drafter}",
            self.confidence + guess.confidence,
            copied=len(guess),
        )


NO_DRAFT = Draft()


def vet(draft: object, most: int, width: int, drafter: str = "", *, free: bool = False) -> Draft:
    """The draft itself, where it is one of at most `most` ids below `width` that may be verified.

    Raises ConfigError, naming the drafter (none: the planner), for anything else. `free` drafters
    draw nothing, or to take a part of their guesses would bias what comes out.
    """
    if not isinstance(draft, Draft):
        wrong = f"a {type(draft).__name__} where a Draft was asked for"
    elif not (tokens := draft.tokens):
        return draft
    elif len(tokens) > most:
        wrong = f"{len(tokens)} draft tokens where at most {most} were asked for"
    elif min(tokens) < 0 or max(tokens) >= width:
        wrong = f"an id outside the vocabulary (0 to {width - 1}) in a draft"
    elif len(draft.confidence) != len(tokens):
        wrong = f"{len(draft.confidence)} confidences for {len(tokens)} draft tokens"
    elif draft.probs is None:
        return draft
    elif free:
        wrong = "probs although it is `free`: who draws tokens isn't"
    elif len(draft.probs) != len(tokens) or not all(
        isinstance(p, Categorical) for p in draft.probs
    ):
        wrong = "probs that aren't one Categorical for each draft token"
    else:
        return draft
    raise ConfigError(f"{f'drafter {drafter!r}' if drafter else 'the planner'} gave {wrong}")


@dataclass(frozen=True)
class Verdict:
    """The first `num_accepted` draft tokens stand; `next_token` follows them.

    It is the *bonus* when every draft token was accepted, else the *recovered* token. It is None
    where nothing was chosen: behind an accepted token that ends the text, or before a row that has
    nothing to choose from.
    """

    num_accepted: int
    next_token: int | None

    def tokens(self, draft: Draft) -> tuple[int, ...]:
        """What a round brings: the draft tokens that stand, and what follows them."""
        follows = () if self.next_token is None else (self.next_token,)
        return (*draft.tokens[: self.num_accepted], *follows)

    def origins(self, draft: Draft) -> tuple[Origin, ...]:
        """The origin of each of these tokens."""
        if not draft:
            return ("plain",)
        origins: list[Origin] = ["accepted"] * self.num_accepted
        if self.next_token is not None:
            origins.append("bonus" if self.num_accepted == len(draft) else "recovered")
        return tuple(origins)


NOTHING = Verdict(0, None)
"""Of a round that wasn't made."""


def verify_choices(
    draft_tokens: Sequence[int], choose: Callable[[int], int], ends: Collection[int] = ()
) -> Verdict:
    """Accept draft tokens while they are what the target itself chooses.

    `choose(i)` is the target's own token at row i, given the draft tokens before i: its argmax, or
    a draw whose noise depends on the position alone. It is asked for no row behind the first
    disagreement, nor behind one of `ends`, which end the text. A row behind an accepted token that
    raises `NumericalError` is left to the next round: the text may end before it.
    """
    stood = 0
    try:
        for token in draft_tokens:
            chosen = choose(stood)
            if chosen != token:
                return Verdict(stood, chosen)
            stood += 1
            if token in ends:
                return Verdict(stood, None)
        return Verdict(stood, choose(stood))
    except NumericalError:
        if not stood:  # plain decoding asks this row as well
            raise
        return Verdict(stood, None)


def verify_rejection(
    draft: Draft,
    target_probs: Callable[[int], Categorical],
    rng: np.random.Generator,
    ends: Collection[int] = (),
) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318).

    Draft token x stands with probability min(1, target_probs[x] / draft_probs[x]). At the first
    that doesn't, the recovered token comes from max(0, target_probs - draft_probs), normalised.
    `target_probs(i)` is row i of (k+1, V); rows behind the first rejection, or behind one of
    `ends`, which end the text, are never asked for. A row behind an accepted token that raises
    `NumericalError`, for which nothing was drawn yet, is left to the next round: the text may end
    before it. Raises ConfigError where a draft token can't have been drawn from its `probs`.
    """
    stood = 0
    try:
        for token in draft.tokens:
            target = target_probs(stood)
            drafted = draft.probs[stood] if draft.probs is not None else Categorical.point(token)
            draft_prob = drafted.prob(token)
            if not draft_prob > 0:  # it would always stand
                raise ConfigError(
                    f"drafter {draft.drafter!r} gave probs of {draft_prob:g} for its draft token "
                    f"{token}: give the distribution that it was drawn from"
                )
            if rng.random() * draft_prob >= target.prob(token):
                return Verdict(stood, residual(target, drafted).draw(rng))
            stood += 1
            if token in ends:
                return Verdict(stood, None)
        return Verdict(stood, target_probs(stood).draw(rng))
    except NumericalError:
        if not stood:  # plain decoding asks this row as well
            raise
        return Verdict(stood, None)


def residual(target: Categorical, drafted: Categorical) -> Categorical:
    """max(0, target_probs - draft_probs), normalised; the target where nothing is left of it."""
    if target.ids is None and drafted.ids is not None:
        rest = target.probs.copy()  # (V,)
        fits = drafted.ids < len(rest)
        ids = drafted.ids[fits]
        rest[ids] = np.maximum(rest[ids] - drafted.probs[fits], 0)
    else:
        rest = target.probs - drafted.probs_at(target.ids, len(target.probs))
        np.maximum(rest, 0, out=rest)
    total = float(rest.sum(dtype=np.float64))
    if total <= 0.0:
        return target
    rest /= total
    if target.ids is None:
        return Categorical(None, rest)
    order = np.argsort(-rest, kind="stable")
    return Categorical(target.ids[order], rest[order])
