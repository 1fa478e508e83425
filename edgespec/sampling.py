"""From a row of logits to a token: the sampling steps, in one order, for target and drafter alike.

The order: penalties, logit bias, banned tokens, the user's own steps, temperature, top-k,
typical-p, top-p, min-p. Invariant: what a step sees for a row is the committed tokens plus the
draft tokens before that row, and nothing after. Temperature 0 is argmax and computes no softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from edgespec.categorical import Categorical, from_logits, largest
from edgespec.errors import ConfigError, NothingLeft, NumericalError
from edgespec.noise import PositionNoise
from edgespec.options import check_whole
from edgespec.penalties import TokenCounts
from edgespec.session import TokenIds

Floats = npt.NDArray[np.floating[Any]]
Rule = Literal["rejection", "reproducible"]

Step = Callable[[Floats, TokenIds], Floats]
"""A step of the user's own: logits (V,) float32, its to change, and the tokens so far -> logits.

It must depend on nothing else, since it also runs on draft tokens that may not stand, and behind
stop strings, which end the text: where nothing may follow it returns -inf and raises nothing.
"""


_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty")  # fmt: skip


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen from the model's logits.

    Attributes:
        temperature: 0 always takes the likeliest token.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the fewest tokens whose probabilities reach this sum; 1 keeps all
            (Holtzman et al. 2020, arXiv 1904.09751).
        min_p: drop tokens less likely than this share of the likeliest (arXiv 2407.01082).
        typical_p: keep the tokens closest to the expected surprise, up to this sum; 1 keeps all
            (Meister et al. 2023, arXiv 2202.00666).
        repetition_penalty: divides positive and multiplies negative logits of tokens that occurred
            (Keskar et al. 2019, arXiv 1909.05858); 1 is off.
        presence_penalty: subtracted from the logits of tokens that occurred.
        frequency_penalty: subtracted once for each time that a token occurred.
        penalty_window: how many of the newest tokens, prompt included, the penalties count;
            0 counts all.
        logit_bias: token id -> number added to its logit.
        banned_tokens: token ids that never come out.
        seed: makes a run repeatable, up to rounding: drafted or not, the text is the same until a
            near-tie that a pass of another size decides otherwise. A seed alone selects the rule
            `reproducible`, since under `rejection` the draws depend on how much was drafted.
        rule: `rejection` or `reproducible`; None chooses by the seed.
        steps: the user's own, applied in order before the temperature.

    Raises ConfigError for a number that is out of range or of the wrong kind, or a rule that there
    isn't.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: frozenset[int] = frozenset()
    seed: int | None = None
    rule: Rule | None = None
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, what: str) -> None:
            if not ok:
                raise ConfigError(f"{name} must be {what}, not {getattr(self, name)!r}")

        for name in ("top_k", "penalty_window", *(["seed"] if self.seed is not None else [])):
            check_whole(name, getattr(self, name))
        for name in _NUMBERS:
            need(isinstance(getattr(self, name), Real), name, "a number")
        for token in (*self.logit_bias, *self.banned_tokens):
            check_whole("a token of logit_bias or banned_tokens", token)
        need(0 <= self.temperature < np.inf, "temperature", "0 or more")
        need(self.top_k >= 0, "top_k", "0 (off) or more")
        need(0 <= self.top_p <= 1, "top_p", "between 0 and 1")
        need(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        need(0 < self.typical_p <= 1, "typical_p", "above 0 and at most 1")
        need(0 < self.repetition_penalty < np.inf, "repetition_penalty", "above 0")
        need(bool(np.isfinite(self.presence_penalty)), "presence_penalty", "a finite number")
        need(bool(np.isfinite(self.frequency_penalty)), "frequency_penalty", "a finite number")
        need(self.penalty_window >= 0, "penalty_window", "0 (all) or more")
        need(self.seed is None or self.seed >= 0, "seed", "0 or more")
        need(self.rule in (None, "rejection", "reproducible"), "rule", "rejection or reproducible")
        for token, bias in self.logit_bias.items():
            # At most what float32 holds; -inf bans, NaN is refused.
            if not (isinstance(bias, Real) and bias <= 3e38):
                raise ConfigError(f"logit_bias of token {token} must be a number, not {bias!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def chosen_rule(self) -> Rule:
        """The rule that was named, or the one that the seed selects."""
        return self.rule or ("rejection" if self.seed is None else "reproducible")

    @property
    def uncut(self) -> bool:
        """Whether every token stays possible: temperature alone shapes the distribution."""
        whole = self.top_p == 1 and self.typical_p == 1
        return whole and self.top_k == 0 and self.min_p == 0

    @property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def adjusts(self) -> bool:
        """Whether a row's logits are changed before a token is chosen from them."""
        return self.penalised or bool(self.logit_bias or self.banned_tokens or self.steps)


GREEDY = SamplingParams(temperature=0.0)


class Sampler:
    """The sampling steps over one text as it grows.

    `width` is how many token ids may come out: logits behind it are a vocabulary's padding. `ends`
    are ids that end a text: nothing is drafted or chosen behind one. `suppressed` are ids that the
    model's maker bans.
    `ahead` in its methods are the draft tokens before the row in question. `model`, in whose logits
    it chooses, is for errors to name.
    """

    def __init__(
        self,
        params: SamplingParams,
        width: int,
        tokens: Sequence[int] | TokenIds = (),
        *,
        ends: Collection[int] = (),
        suppressed: Collection[int] = (),
    ) -> None:
        self.params = params
        self.model = "the model"
        self.width = width
        self.ends = frozenset(ends)
        # Another length, another stream: a seed that is used for each turn repeats no turn's draws.
        self.rng = np.random.default_rng(
            None if params.seed is None else (params.seed, len(tokens))
        )
        self.rule = params.chosen_rule
        seed = params.seed if params.seed is not None else int(self.rng.integers(2**63))
        self._noise = PositionNoise(seed, width)
        for what in (*params.logit_bias, *params.banned_tokens):
            if not 0 <= what < width:
                raise ConfigError(f"token {what} is not in the vocabulary (0 to {width - 1})")
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._banned = np.fromiter({*params.banned_tokens, *suppressed}, np.int64)
        self._past = TokenCounts(width, params.penalty_window, counting=params.penalised)
        self._tracks_past = params.penalised or bool(params.steps)
        self._adjusts = params.adjusts or bool(suppressed)
        self.commit(tokens)

    @property
    def chooses(self) -> bool:
        """Whether a row has one right token: greedy, or noise that depends on position alone."""
        return self.params.greedy or self.rule == "reproducible"

    def named(self, model: str) -> Self:
        """The same sampler, its past and its draws included, for this model's logits."""
        named = copy(self)
        named.model = model
        return named

    def commit(self, tokens: Sequence[int] | TokenIds) -> None:
        """Count tokens that now stand."""
        if self._tracks_past:
            self._past.push(tokens)

    def adjusted(self, row: Floats, ahead: Sequence[int] = ()) -> Floats:
        """The logits (V,) after penalties, bias, bans and the user's steps."""
        row = row[: self.width]
        if not self._adjusts:
            return row
        _check_logits(float(row.max()), self.model)  # now, since a ban would hide a NaN
        row = row.copy()  # what a session returns is its own memory
        params = self.params
        if params.penalised:
            ids, counts = self._past.counts(ahead)
            fits = ids < len(row)  # a drafter may have fewer tokens than its target
            ids, counts = ids[fits], counts[fits]
            logits = row[ids]
            factor = params.repetition_penalty
            logits = np.where(logits > 0, logits / factor, logits * factor)
            row[ids] = logits - params.presence_penalty - params.frequency_penalty * counts
        fits = self._bias_ids < len(row)
        row[self._bias_ids[fits]] += self._bias[fits]
        row[self._banned[self._banned < len(row)]] = -np.inf
        if params.steps:
            if len(row) < self.width:  # a step is given as many logits by whichever model
                row = np.pad(row, (0, self.width - len(row)), constant_values=-np.inf)
            past = self._past.tokens(ahead)
            for step in params.steps:
                row = _checked(step(row, past), len(row), step)
        return row

    def argmax(self, row: Floats, ahead: Sequence[int] = ()) -> int:
        """The likeliest token of a row; ties go to the lowest id."""
        row = self.adjusted(row, ahead)
        token = int(row.argmax())  # the first NaN, where there is one
        self._check_peak(float(row[token]))
        return token

    def distribution(self, row: Floats, ahead: Sequence[int] = ()) -> Categorical:
        """What the next token is drawn from, after every step; a point mass at temperature 0.

        Raises `NumericalError`, naming the model, on NaN or +inf; `NothingLeft` where no token is
        left.
        """
        params = self.params
        if params.greedy:
            return Categorical.point(self.argmax(row, ahead))
        row = self.adjusted(row, ahead)
        peak = float(row.max())
        self._check_peak(peak)
        if 0 < params.top_k < len(row):
            ids = largest(row, params.top_k)
        elif params.min_p > 0 and params.top_p == 1 and params.typical_p == 1:
            # Nothing needs the sum of all: cut before exponentiating.
            ids = np.flatnonzero(row >= peak + params.temperature * math.log(params.min_p))
        else:
            ids = None
        dist = from_logits(row, ids, peak, params.temperature)
        if params.typical_p < 1:
            dist = dist.typical(params.typical_p)
        if params.top_p < 1:
            dist = dist.nucleus(params.top_p)
        if params.min_p > 0:
            dist = dist.at_least(params.min_p)
        return dist

    def _check_peak(self, peak: float) -> None:
        """Of the logits that a token is chosen from."""
        if math.isfinite(peak):
            return
        if peak == -np.inf:
            raise NothingLeft(
                f"no token is left to choose from in the logits of {self.model}: every one is "
                "banned or -inf; allow some"
            )
        if not self._adjusts:
            _check_logits(peak, self.model)
        raise NumericalError(
            f"the penalties, biases or steps made {peak} of the logits of {self.model}: "
            "use smaller numbers"
        )

    def choose(self, row: Floats, ahead: Sequence[int], position: int) -> int:
        """The one right token of a row at an absolute position; only where `chooses`."""
        if self.params.greedy:
            return self.argmax(row, ahead)
        if self.params.uncut:
            row = self.adjusted(row, ahead)
            peak = float(row.max())
            self._check_peak(peak)
            return self._noise.choose_logits(row, peak, self.params.temperature, position)
        return self._noise.choose(self.distribution(row, ahead), position)

    def pick(
        self, row: Floats, ahead: Sequence[int], position: int
    ) -> tuple[int, Categorical | None]:
        """A drafter's token, and the distribution it was drawn from (None where `chooses`)."""
        if self.chooses:
            return self.choose(row, ahead, position), None
        dist = self.distribution(row, ahead)
        return dist.draw(self.rng), dist


def _checked(row: Floats, width: int, step: Step) -> Floats:
    """What a step of the user's own returned, if it is a row."""
    if not isinstance(row, np.ndarray) or row.shape != (width,) or row.dtype.kind != "f":
        name = getattr(step, "__name__", repr(step))
        raise ConfigError(f"the sampling step {name} must return an array of {width} logits")
    return row


def _check_logits(peak: float, model: str) -> None:
    """`peak` is the largest logit, NaN if any is."""
    if not peak < np.inf:
        raise NumericalError(
            f"{model} returned {peak} in its logits: the file may be damaged or its numbers "
            "overflow on this device; try another quantisation or --device cpu"
        )
