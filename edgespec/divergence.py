"""Does a pair say what its target alone would say, on this machine? Measured, with a verdict.

Two comparisons. Greedy text must be the same token for token; where it isn't, the two likeliest
tokens must have been so close that the rounding of another batch size explains it, and how much
rounding that is gets measured on the way. Sampled text must be distributed as the target's: each
speculative token is placed in the distribution that the target, alone, gives for its position
(the probability integral transform, Rosenblatt 1952), and the places must be uniform.

Invariant: the plain side never drafts, and scores texts it did not write through the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.chat import Message
from edgespec.generation import Result
from edgespec.logprobs import LogprobsRequest, TokenLogprobs
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, SamplingParams

NEAR_TIE = 0.02
"""A top-2 gap in logits that rounding explains even where no rounding was measured."""

NOISE_SHARE = 4.0
"""Elsewhere it explains a gap of this many times the largest difference that was measured."""

MOST_NOISE = 0.25
"""Differences and gaps above this, in logits, are not rounding: something else is wrong."""

BINS = 10
CHI_SQUARE_LIMIT = 33.72
"""What chi-square with 9 degrees of freedom exceeds once in 10,000 exact pairs."""

_TOP = 64  # tokens told apart when a place is looked up; the rest counts as one


@dataclass(frozen=True)
class Difference:
    """The first token of a prompt's greedy answer that isn't the target's.

    `gap` is the difference of the two largest logits there, `token` counts from 0.
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
        sampled_tokens: sampled tokens placed in the target's distribution.
        impossible: those of them that the target alone would never draw.
        chi_square: how unevenly they lie over 10 bins; None where there are too few to tell.
        drafted, accepted: draft tokens of all speculative answers.
    """

    greedy_tokens: int
    differences: tuple[Difference, ...]
    noise: float
    sampled_tokens: int
    impossible: int
    chi_square: float | None
    drafted: int
    accepted: int

    @property
    def near_tie(self) -> float:
        return min(max(NEAR_TIE, NOISE_SHARE * self.noise), MOST_NOISE)

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences with a gap that rounding doesn't explain."""
        return tuple(d for d in self.differences if not d.gap <= self.near_tie)

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
            return (
                f"the greedy answer to prompt {d.prompt + 1} differs at token {d.token + 1}, where "
                f"the two likeliest are {d.gap:.3g} apart: rounding explains {self.near_tie:.2g}"
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
        parts = [f"{self.greedy_tokens} greedy tokens are the target's own"]
        if self.differences:
            widest = max(d.gap for d in self.differences)
            parts[0] += (
                f" up to {len(self.differences)} near-ties (gaps up to {widest:.2g}; rounding "
                f"explains {self.near_tie:.2g})"
            )
        if self.chi_square is not None:
            parts.append(
                f"{self.sampled_tokens} sampled ones are distributed as the target's (chi-square "
                f"{self.chi_square:.1f}, limit {CHI_SQUARE_LIMIT:.1f})"
            )
        return f"this pair is exact on this machine: {' and '.join(parts)}"


@dataclass(frozen=True)
class _Answer:
    prompt: tuple[int, ...]
    result: Result


def compare(
    open_runtime: Callable[[bool], Runtime],
    prompts: Sequence[str | Sequence[int]],
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 64,
    repeats: int = 4,
) -> Report:
    """Compare a pair's answers with its target's.

    Args:
        open_runtime: gives a runtime that speculates (True) or decodes plainly (False). Each is
            closed before the other is opened. A fixed lookahead tests more than one that parks.
        prompts: questions for the model's chat template, or token ids.
        sampling: for the sampled comparison; None takes the defaults.
        max_tokens: of each answer.
        repeats: sampled answers to each prompt; 0 leaves the sampled comparison out. A seed in
            `sampling` is raised by one for each.

    Raises:
        EdgespecError: what opening and generating raise.
    """
    request = LogprobsRequest(top_n=2)
    with open_runtime(True) as runtime:
        sampling = _endless(sampling or SamplingParams(), runtime)
        ids = [_encoded(runtime, prompt) for prompt in prompts]
        greedy = [_answer(runtime, prompt, GREEDY, max_tokens, request) for prompt in ids]
        sampled = [
            _answer(runtime, prompt, _reseeded(sampling, i), max_tokens)
            for i, prompt in enumerate(p for p in ids for _ in range(repeats))
        ]
    with open_runtime(False) as runtime:
        plain = [_answer(runtime, prompt, GREEDY, max_tokens, request) for prompt in ids]
        places = [
            place
            for answer in sampled
            for place in _places(runtime, answer, replace(sampling, seed=None, rule=None))
        ]
    pairs = list(zip(plain, greedy, strict=True))
    differences = [
        found
        for i, (a, b) in enumerate(pairs)
        if (found := first_difference(i, a.result, b.result)) is not None
    ]
    counters = [answer.result.counters for answer in (*greedy, *sampled)]
    return Report(
        greedy_tokens=sum(_common(a.result, b.result) for a, b in pairs),
        differences=tuple(differences),
        noise=max((_noise(a.result, b.result) for a, b in pairs), default=0.0),
        sampled_tokens=len(places),
        impossible=sum(place is None for place in places),
        chi_square=unevenness([1.0 if place is None else place for place in places]),
        drafted=sum(c.drafted for c in counters),
        accepted=sum(c.accepted for c in counters),
    )


def first_difference(prompt: int, plain: Result, speculative: Result) -> Difference | None:
    """Where two greedy answers, each with its two likeliest tokens, part; None where they don't."""
    at = _common(plain, speculative)
    ours, theirs = plain.tokens[at : at + 1], speculative.tokens[at : at + 1]
    if not ours and not theirs:
        return None
    # One that ended here has no token, but the other has the row that would decide it.
    decided = plain if ours else speculative
    return Difference(
        prompt,
        at,
        ours[0] if ours else None,
        theirs[0] if theirs else None,
        _gap(decided.logprobs[at]),
    )


def unevenness(places: Sequence[float]) -> float | None:
    """Chi-square of places in [0, 1] over 10 equal bins; None with fewer than 5 to a bin."""
    if len(places) < 5 * BINS:
        return None
    counts, _ = np.histogram(places, BINS, (0.0, 1.0))
    expected = len(places) / BINS
    return float(((counts - expected) ** 2 / expected).sum())


def _encoded(runtime: Runtime, prompt: str | Sequence[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(runtime.encode_messages([Message("user", prompt)]))
    return tuple(prompt)


def _answer(
    runtime: Runtime,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    max_tokens: int,
    request: LogprobsRequest | None = None,
) -> _Answer:
    generation = runtime.generate(prompt, sampling, max_tokens=max_tokens, logprobs=request)
    return _Answer(prompt, generation.result)


def _endless(sampling: SamplingParams, runtime: Runtime) -> SamplingParams:
    """Without end tokens: an answer doesn't hold its own, so their share would seem missing."""
    ends = runtime.target.tokenizer.stop_ids
    return replace(sampling, banned_tokens=sampling.banned_tokens | ends)


def _reseeded(sampling: SamplingParams, number: int) -> SamplingParams:
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + number)


def _places(runtime: Runtime, answer: _Answer, sampling: SamplingParams) -> list[float | None]:
    """Each token's place in [0, 1] in the plain distribution behind the tokens before it.

    Likeliest first; uniform within its own probability. None for a token of probability 0.
    """
    rng = np.random.default_rng(len(answer.prompt))
    request = LogprobsRequest(_TOP, "sampling")
    places: list[float | None] = []
    for at, token in enumerate(answer.result.tokens):
        text = (*answer.prompt, *answer.result.tokens[:at])
        result = _answer(runtime, text, sampling, 1, request).result
        places.append(_place(result.logprobs[0], token, float(rng.random())))
    return places


def _place(row: TokenLogprobs, token: int, u: float) -> float | None:
    below = 0.0
    for other, logprob in row.top:
        if other == token:
            return min(1.0, below + u * math.exp(logprob))
        below += math.exp(logprob)
    return below + u * (1.0 - below) if len(row.top) == _TOP and below < 1.0 else None


def _common(plain: Result, speculative: Result) -> int:
    """Tokens that are the same from the start."""
    pairs = zip(plain.tokens, speculative.tokens, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(plain.tokens), len(speculative.tokens)),
    )


def _noise(plain: Result, speculative: Result) -> float:
    pairs = zip(plain.logprobs, speculative.logprobs, strict=False)
    same = list(pairs)[: _common(plain, speculative)]
    return max((abs(a.logprob - b.logprob) for a, b in same), default=0.0)


def _gap(row: TokenLogprobs) -> float:
    return row.top[0][1] - row.top[1][1] if len(row.top) > 1 else math.inf
