"""Log-probabilities of the tokens that were emitted, and of those that might have been.

Invariant: they are the target's and belong to the row that decided the token, so speculation
changes them by no more than rounding: a check of several tokens adds numbers in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgespec.categorical import top_ids
from edgespec.errors import ConfigError
from edgespec.sampling import Sampler
from edgespec.session import Logits

Stage = Literal["model", "sampling"]


@dataclass(frozen=True)
class LogprobsRequest:
    """Which log-probabilities to keep with each token.

    Attributes:
        top_n: how many of the likeliest tokens to name as well; the chosen one may be among them.
        stage: `model` takes the logits as they are (temperature 1, no step), `sampling` what the
            token was drawn from, after every step: the chosen token of a greedy text then has 0.
    """

    top_n: int = 0
    stage: Stage = "model"

    def __post_init__(self) -> None:
        if self.top_n < 0:
            raise ConfigError(f"top_n must be 0 or more, not {self.top_n}")
        if self.stage not in ("model", "sampling"):
            raise ConfigError(f"stage must be model or sampling, not {self.stage!r}")


@dataclass(frozen=True)
class TokenLogprobs:
    """One token's natural log-probability, and the likeliest tokens' with theirs.

    `top` is likeliest first, ties by id; it is shorter where fewer tokens were possible.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(
    rows: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    request: LogprobsRequest,
) -> tuple[TokenLogprobs, ...]:
    """What was asked for about `tokens` (n,), decided by the target's first n `rows` (k+1, V).

    To be had before the sampler commits the tokens.
    """
    if request.stage == "model":
        return tuple(
            _of_logits(row[: sampler.width], token, request.top_n)
            for row, token in zip(rows, tokens, strict=False)
        )
    return tuple(_of_sampling(rows, tokens, i, sampler, request.top_n) for i in range(len(tokens)))


def _of_logits(row: Logits, token: int, top_n: int) -> TokenLogprobs:
    peak = row.max()
    total = float(peak) + math.log(float(np.exp(row - peak).sum(dtype=np.float64)))
    top = top_ids(row, top_n).tolist() if top_n else []
    return TokenLogprobs(
        token, float(row[token]) - total, tuple((i, float(row[i]) - total) for i in top)
    )


def _of_sampling(
    rows: Logits, tokens: Sequence[int], at: int, sampler: Sampler, top_n: int
) -> TokenLogprobs:
    dist = sampler.distribution(rows[at], tokens[:at])
    likeliest = top_ids(dist.probs, top_n).tolist() if top_n else []
    top = [
        (i if dist.ids is None else int(dist.ids[i]), math.log(float(dist.probs[i])))
        for i in likeliest
        if dist.probs[i] > 0
    ]
    prob = dist.prob(tokens[at])
    return TokenLogprobs(tokens[at], math.log(prob) if prob > 0 else -math.inf, tuple(top))
