"""Does a pair say what its target alone would say, on this machine? Measured, with a verdict.

Greedy text must be the same token for token; where it isn't, the two likeliest
tokens must have been so close that the rounding of another batch size explains it, and how much
rounding that is gets measured on the way. Under `reproducible` the same holds for answers drawn
with the same seed. Sampled text must be distributed as the target's: each
speculative token is placed in the distribution that the target, alone, gives for its position
(the probability integral transform, Rosenblatt 1952), and the places must be uniform.

Invariant: the plain side never drafts, and scores texts it did not write through the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from edgespec.chat import Message
from edgespec.errors import ModelError
from edgespec.exactness import BINS, Difference, Report, common
from edgespec.generation import Result
from edgespec.logprobs import LogprobsRequest, TokenLogprobs
from edgespec.noise import PositionNoise
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, SamplingParams

_NEAR = 16  # likeliest tokens among which rounding could decide
_TOP = 64  # tokens told apart when a place is looked up; the rest counts as one


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
            `sampling` is raised by one for each; where it selects `reproducible`, the target alone
            must draw the same text again. At temperature 0 nothing is drawn: with penalties,
            biases, bans or steps the target alone must give the same text to each prompt once
            more, and without any the greedy comparison has found all.

    Raises:
        EdgespecError: what opening and generating raise.
    """
    request = LogprobsRequest(top_n=_NEAR)
    with open_runtime(True) as runtime:
        ends = runtime.target.tokenizer.stop_ids
        given = sampling or SamplingParams()
        if given.greedy:
            repeats = min(repeats, int(given.adjusts))
        sampling = _endless(given, runtime)
        ids = [_encoded(runtime, prompt) for prompt in prompts]
        greedy = [_answer(runtime, prompt, GREEDY, max_tokens, request) for prompt in ids]
        drawn_alike = sampling.seed is not None and sampling.chosen_rule == "reproducible"
        sampled = [
            _answer(runtime, prompt, _reseeded(sampling, i), max_tokens)
            for i, prompt in enumerate(p for p in ids for _ in range(repeats))
        ]
    with open_runtime(False) as runtime:
        plain = [_answer(runtime, prompt, GREEDY, max_tokens, request) for prompt in ids]
        again = [
            _answer(runtime, answer.prompt, _reseeded(sampling, i), max_tokens)
            for i, answer in enumerate(sampled if given.greedy or drawn_alike else [])
        ]
        redrawn = [
            found
            for i, (a, b) in enumerate(zip(again, sampled, strict=False))
            if (
                found := first_redrawn(
                    runtime, i // repeats, a.prompt, a.result, b.result, _reseeded(sampling, i)
                )
            )
        ]
        alone = replace(sampling, seed=None, rule=None)
        rng = np.random.default_rng(0)
        placed = [] if given.greedy else sampled  # a near-tie would be a token of probability 0
        places = [p for answer in placed for p in _places(runtime, answer, alone, rng)]
    pairs = list(zip(plain, greedy, strict=True))
    differences = [
        found
        for i, (a, b) in enumerate(pairs)
        if (found := first_difference(i, a.result, b.result, ends)) is not None
    ]
    counters = [answer.result.counters for answer in (*greedy, *sampled)]
    return Report(
        greedy_tokens=sum(common(a.result.tokens, b.result.tokens) for a, b in pairs),
        differences=tuple(differences),
        noise=max((_noise(a.result, b.result) for a, b in pairs), default=0.0),
        repeated_tokens=sum(
            common(a.result.tokens, b.result.tokens) for a, b in zip(again, sampled, strict=False)
        ),
        redrawn=tuple(redrawn),
        sampled_tokens=len(places),
        impossible=sum(place is None for place in places),
        chi_square=unevenness([1.0 if place is None else place for place in places]),
        drafted=sum(c.drafted for c in counters),
        accepted=sum(c.accepted for c in counters),
        seeded=not given.greedy,
    )


def first_difference(
    prompt: int, plain: Result, speculative: Result, ends: AbstractSet[int] = frozenset()
) -> Difference | None:
    """Where two greedy answers, each with its likeliest tokens, part; None where they don't.

    `ends` are the tokens that end an answer.
    """
    at = common(plain.tokens, speculative.tokens)
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
        _gap(decided.logprobs[at], set(ours) or ends, set(theirs) or ends),
    )


def first_redrawn(
    runtime: Runtime,
    prompt: int,
    text: tuple[int, ...],
    plain: Result,
    speculative: Result,
    sampling: SamplingParams,
) -> Difference | None:
    """Where two answers to `text`, drawn with the same seed or greedy, part; None where they don't.

    `runtime` decodes plainly; neither answer may have met an end token.
    """
    at = common(plain.tokens, speculative.tokens)
    if at == len(plain.tokens) == len(speculative.tokens):
        return None
    ours, theirs = plain.tokens[at], speculative.tokens[at]
    behind = (*text, *plain.tokens[:at])
    gap = _draw_gap(runtime, behind, sampling, ours, theirs)
    return Difference(prompt, at, ours, theirs, gap)


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
    if generation.result.notes:  # what a drafter that failed shows is plain decoding
        raise ModelError(generation.result.notes[0])
    return _Answer(prompt, generation.result)


def _endless(sampling: SamplingParams, runtime: Runtime) -> SamplingParams:
    """Without end tokens: an answer doesn't hold its own, so their share would seem missing."""
    ends = runtime.target.tokenizer.stop_ids
    return replace(sampling, banned_tokens=sampling.banned_tokens | ends)


def _reseeded(sampling: SamplingParams, number: int) -> SamplingParams:
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + number)


def _places(
    runtime: Runtime, answer: _Answer, sampling: SamplingParams, rng: np.random.Generator
) -> list[float | None]:
    """Each token's place in [0, 1] in the plain distribution behind the tokens before it.

    Likeliest first; uniform within its own probability: a draw of its own for each token, or
    answers that begin alike would count several times. None for a token of probability 0.
    """
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


def _draw_gap(
    runtime: Runtime, text: tuple[int, ...], sampling: SamplingParams, ours: int, theirs: int
) -> float:
    """How much the logits behind `text` would have to change to draw `theirs` instead of `ours`.

    That is to win the race of the position's noise, or to get past the cut of top-k and the like;
    at temperature 0, to be the likeliest after penalties, biases, bans and steps.
    """
    width = runtime.target.tokenizer.num_tokens
    every = LogprobsRequest(width, "sampling")
    uncut = replace(
        sampling,
        temperature=sampling.temperature or 1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        typical_p=1.0,
    )
    drawn, whole = (
        dict(_answer(runtime, text, params, 1, every).result.logprobs[0].top)
        for params in (sampling, uncut)
    )
    if sampling.greedy:
        taken = [whole.get(token, -math.inf) for token in (ours, theirs)]
        return max(whole.values()) - min(taken)
    if ours not in drawn or theirs not in whole:
        return math.inf
    if theirs not in drawn:
        return sampling.temperature * (min(whole[token] for token in drawn) - whole[theirs])
    assert sampling.seed is not None
    noise = PositionNoise(sampling.seed, width).exponential(len(text), np.array([ours, theirs]))
    arrivals = np.log(noise) - (drawn[ours], drawn[theirs])
    return sampling.temperature * abs(float(arrivals[0] - arrivals[1]))


def _noise(plain: Result, speculative: Result) -> float:
    pairs = zip(plain.logprobs, speculative.logprobs, strict=False)
    same = list(pairs)[: common(plain.tokens, speculative.tokens)]
    return max((abs(a.logprob - b.logprob) for a, b in same), default=0.0)


def _gap(row: TokenLogprobs, ours: AbstractSet[int], theirs: AbstractSet[int]) -> float:
    """How far the likeliest token is above the two that were taken; infinite if one isn't near."""
    taken = [
        max((logprob for token, logprob in row.top if token in side), default=-math.inf)
        for side in (ours, theirs)
    ]
    return row.top[0][1] - min(taken)
