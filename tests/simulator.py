"""Machines and texts without models, to play planners against: a simulated clock, no weights.

What is drawn beforehand is the text: at each position, whether each drafter's guess would stand if
those before it do, how sure it is, and how sure the target is. So every planner plays the same
text, and what would have been best can be computed. Planners see noisy times; what they are charged
is the mean of the same pass, so that luck with the clock is no merit. Costs are in plain tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.costs import Costs
from edgespec.drafters import GoOn
from edgespec.drafters.lookup import LONGEST_MATCH
from edgespec.drafters.reading import left_out
from edgespec.planner import Outcome, Planner, Seconds
from edgespec.timing import POINTS, READS
from edgespec.verify import NO_DRAFT, Draft, Verdict

Array = npt.NDArray[Any]
LONGEST = 32
LOOKAHEADS = (*range(13), 16, 20, 24, LONGEST - 1)
"""What the best fixed choice is looked for among."""
SECOND = 0.1  # what a plain token takes


def curve(points: Mapping[int, float]) -> Array:  # (LONGEST + 1,)
    """Costs of passes over 0..LONGEST tokens, on straight lines between the points given."""
    known = sorted(points)
    slope = (points[known[-1]] - points[known[-2]]) / (known[-1] - known[-2])
    costs = np.interp(np.arange(LONGEST + 1), known, [points[n] for n in known])
    beyond = np.arange(known[-1] + 1, LONGEST + 1)
    costs[beyond] = points[known[-1]] + slope * (beyond - known[-1])
    return costs


def affordable(cost: Callable[[int], float]) -> dict[int, float]:
    """Costs, in plain tokens, of the passes that `measure` has the time for."""
    left, found = 31.0, {1: cost(1)}
    for n in POINTS[1:]:
        if max(c for m, c in found.items() if m < n) <= left:
            found[n] = cost(n)
            left -= found[n]
    return found


@dataclass(frozen=True)
class Machine:
    """Mean costs of passes in plain tokens, and how they are spread and change halfway."""

    check: Array
    step: float  # of the model drafter
    read: float  # its cost of one more token in a pass
    noise: float = 0.05  # standard deviation of log(seconds)
    spikes: float = 0.0  # share of passes that take three times as long
    throttled: float = 1.0  # everything's cost in the second half
    crowded: float = 1.0  # likewise, of what a batch costs over one token
    stale: float = 1.0  # what batches seemed to cost, likewise, when they were measured
    short: Array | None = None  # costs behind a short text, where they were measured, if others

    def check_cost(self, tokens: int, late: bool) -> float:
        cost = float(self.check[tokens])
        return self.throttled * (1 + self.crowded * (cost - 1)) if late else cost

    def draft_cost(self, tokens: int, owed: int, late: bool) -> float:
        cost = tokens * self.step + self.read * (max(1, owed) - 1)
        return self.throttled * cost if late else cost

    def seconds(self, cost: float, rng: np.random.Generator) -> float:
        """A noisy time whose mean is the cost."""
        factor = np.exp(self.noise * rng.normal() - self.noise**2 / 2) / (1 + 2 * self.spikes)
        return float(SECOND * cost * factor * (3 if rng.random() < self.spikes else 1))

    def measured(self, rng: np.random.Generator) -> Costs:
        """What `measure` would have found at the start: the median of a few passes each."""
        if self.short is None:
            check = affordable(lambda n: 1 + self.stale * (self.check_cost(n, False) - 1))
        else:
            short, plain = self.short, float(self.short[1])
            check = affordable(lambda n: float(short[n]) / plain)
            check = {n: plain * cost for n, cost in check.items()}
        model = {n: self.draft_cost(1, n, False) for n in READS}
        spread = self.noise / 2
        return Costs(
            {
                kind: {n: SECOND * c * float(np.exp(spread * rng.normal())) for n, c in pts.items()}
                for kind, pts in (("check", check), ("model", model))
            }
        )


_Q4_1 = curve({1: 1, 2: 1.48, 3: 2.17, 4: 2.37, 8: 4.5})
_GPU = curve({1: 1, 2: 1.02, 8: 1.08, 17: 1.2})
_F16 = Machine(curve({1: 1, 2: 1.06, 3: 1.14, 4: 1.46, 8: 2.2, 16: 3.9}), 0.16, 0.05)
MACHINES: dict[str, Machine] = {
    "q4_1": Machine(_Q4_1, 0.4, 0.12),
    "q4_k_m": Machine(curve({1: 1, 2: 1.6, 3: 2.1, 4: 2.7, 8: 7.0}), 0.4, 0.12),
    "f16": _F16,
    "gpu": Machine(_GPU, 0.22, 0.004),
    "apple": Machine(curve({1: 1, 2: 1.9, 4: 2.1, 8: 2.3, 17: 2.7}), 0.15, 0.02),
    "noisy f16": replace(_F16, noise=0.3, spikes=0.02),
    "throttled f16": replace(_F16, noise=0.1, throttled=2.0),
    "crowded f16": replace(_F16, noise=0.1, crowded=5.0),
    "stale f16": replace(_F16, noise=0.1, stale=3.0),
    # Behind 8,000 tokens five sixths of a plain token's time are attention: once for each token
    # of a batch (llama.cpp's on a CPU comes near that), or once for all of them.
    "far q4_1": Machine(_Q4_1 / 6 + 5 / 6 * np.arange(LONGEST + 1), 0.4, 0.12, short=_Q4_1 / 6),
    "far gpu": Machine(_GPU / 3 + 2 / 3, 0.22, 0.004, short=_GPU / 3),
}
FAR = {"answers": ((8000, 128),) * 12}
"""What a text on a far machine is made with."""


@dataclass(frozen=True)
class Text:
    """What each guess would be worth at each of n positions, and how the text is cut to answers."""

    right: dict[str, Array]  # drafter -> (n,) bool
    sure: dict[str, Array]  # drafter -> (n,) confidence; a match of 0 tokens is no guess
    gaps: Array  # (n,) of the target
    answers: tuple[tuple[int, int], ...]  # prompt length, tokens
    rate: Array = field(repr=False)  # (n,) the model drafter's mean acceptance
    turns: bool = False  # of one conversation: each prompt begins with all that came before


Process = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""(n,) mean acceptance of the model drafter, and (n,) whether the text copies itself there."""


def steady(rate: float) -> Process:
    return lambda rng, n: (np.full(n, rate), np.zeros(n, bool))


def alternating(
    one: float, other: float, dwell: Sequence[int], *, copies: bool = False, fixed: bool = False
) -> Process:
    """Two kinds of text in turn; `dwell` is how long each lasts in the mean, or exactly."""

    def process(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        rate, copying, at, kind = np.empty(n), np.zeros(n, bool), 0, 0
        while at < n:
            mean = dwell[kind]
            end = at + (mean if fixed else 1 + int(rng.exponential(mean)))
            rate[at:end] = (one, other)[kind]
            copying[at:end] = copies and kind == 1
            at, kind = end, 1 - kind
        return rate, copying

    return process


PROCESSES: dict[str, Process] = {
    **{f"steady {rate}": steady(rate) for rate in (0.2, 0.4, 0.6, 0.8, 0.95)},
    "bursty": alternating(0.3, 0.92, (15, 15)),
    "code/prose": alternating(0.88, 0.35, (300, 300), fixed=True),
    "prose/code": alternating(0.25, 0.9, (400, 400), fixed=True),
    "copying": alternating(0.5, 0.7, (120, 60), copies=True),
    "useless": steady(0.03),
}


def make_text(
    process: Process,
    rng: np.random.Generator,
    *,
    answers: Sequence[tuple[int, int]] = ((90, 128),) * 12,
    informed: float = 0.7,
    certain: float = 0.7,
    turns: bool = False,
) -> Text:
    """Draw a text; `informed` and `certain` say how much the drafter's and the target's certainty
    tell about acceptance, 0 for nothing. With `turns` the answers are those of one conversation.
    """
    ends = [0, *(prompt + tokens for prompt, tokens in answers)]
    if turns and any(prompt < end for (prompt, _), end in zip(answers, ends, strict=False)):
        raise ValueError("a turn's prompt is longer than all that came before")
    n = sum(tokens for _, tokens in answers) + LONGEST + 1
    rate, copying = process(rng, n)
    chance = rng.beta(1.5 * rate, 1.5 * (1 - rate))  # of each token, around the mean
    model = rng.random(n) < chance
    anything = rng.permutation(chance)

    def gap(share: float) -> Array:
        sure = share * chance + (1 - share) * anything
        return np.asarray(10 * sure**2 + rng.exponential(0.3, n))

    lookup, match, run = np.empty(n, bool), np.zeros(n), 0
    for t in range(n):
        lookup[t] = rng.random() < (0.97 if copying[t] else 0.15)
        # A match is as long as what was copied before it; elsewhere there are short ones by chance.
        match[t] = (
            min(LONGEST_MATCH, run) if run >= 2 else (rng.random() < 0.4) * rng.integers(2, 4)
        )
        run = run + 1 if lookup[t] else 0
    return Text(
        {"model": model, "lookup": lookup},
        {"model": gap(informed), "lookup": match},
        gap(certain),
        tuple(answers),
        rate,
        turns,
    )


class FakeDrafter:
    """Guesses 0, which is always right, or 1, as the text has it; takes the machine's time."""

    def __init__(self, name: str, game: Game) -> None:
        self.name, self.free, self.failed, self._game = name, name == "lookup", "", game
        self.cached = 0
        self.asked = self._prompt = 0

    def begin(self, length: int) -> None:
        self._prompt = length

    def propose(
        self,
        tokens: Array,
        max_tokens: int,
        sampler: Any,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        game = self._game
        at = game.at + len(tokens) - game.length  # another may have drafted some already
        right, sure = game.text.right[self.name], game.text.sure[self.name]
        if self.free:
            if not sure[at]:
                return NO_DRAFT
            confidence = tuple(float(sure[at] + i) for i in range(max_tokens))
        else:
            size, more = 1, True
            while more and size < max_tokens:
                last = at + size - 1
                more = go_on is None or go_on(int(not right[last]), float(sure[last]))
                size += more
            confidence = tuple(sure[at : at + size].tolist())
            game.spend(game.machine.draft_cost(size, self.owes(tokens), game.late))
            self.cached = len(tokens) + size - 1
            self.asked += 1
        return Draft(
            tuple(int(not x) for x in right[at : at + len(confidence)]), None, self.name, confidence
        )

    def owes(self, tokens: Array, *, near: bool = False) -> int:
        """As a `ModelDrafter` reads; it always wants all of a prompt."""
        missed = len(tokens) - max(self.cached, self._prompt)
        return max(0, len(tokens) - self.cached - left_out(missed))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Played:
    """A round as it went: its drafter and size, what stood, its mean cost and that of drafting."""

    at: int
    drafter: str
    drafted: int
    stood: int
    cost: float
    draft_cost: float


class Game:
    """A machine and a text to play a planner on."""

    def __init__(self, machine: Machine, text: Text, seed: int = 0) -> None:
        self.machine, self.text = machine, text
        self.rng = np.random.default_rng(seed)
        self.at = self.length = 0  # tokens of all texts that are done, and of this one so far
        self._cost = self._clock = 0.0

    @property
    def late(self) -> bool:
        return self.at >= (len(self.text.gaps) - LONGEST) // 2

    def spend(self, cost: float) -> float:
        """Let time pass; the noisy seconds it took."""
        self._cost += cost
        self._clock += (seconds := self.machine.seconds(cost, self.rng))
        return seconds

    def play(
        self,
        planner: Planner,
        names: Sequence[str],
        after: Callable[[], None] = lambda: None,
    ) -> list[Played]:
        """All answers, the prompt's own round of each left out; `after` is called behind each."""
        drafters = {name: FakeDrafter(name, self) for name in names}
        rounds = []
        zeros = np.zeros(1 << 14, np.int32)
        sampler: Any = SimpleNamespace(width=1 << 31)  # any id will do
        for prompt, tokens in self.text.answers:
            for drafter in drafters.values():
                drafter.begin(prompt)
                drafter.cached = min(drafter.cached, self.length) if self.text.turns else 0
            end, self.length = self.at + tokens, prompt
            planner.begin(prompt)
            while self.at < end:
                self._cost, began = 0.0, self._clock
                draft = planner.draft(drafters, zeros[: self.length], len(zeros), sampler)
                drafted, cost = self._clock - began, self._cost
                k, at = len(draft), self.at
                seconds = self.spend(self.machine.check_cost(k + 1, self.late))
                stood = (*draft.tokens, 1).index(1)
                rows = np.zeros((k + 1, 2), np.float32)
                rows[:, 0] = self.text.gaps[at : at + k + 1]
                planner.observe(
                    Outcome(draft, Verdict(stood, 0), Seconds(drafted, seconds), self.length, rows)
                )
                for drafter in drafters.values():  # what was rejected it forgets
                    drafter.cached = min(drafter.cached, self.length + stood)
                self.at = min(at + stood + 1, end)
                self.length += self.at - at
                rounds.append(Played(at, draft.drafter, k, stood, self._cost, cost))
            after()
        return rounds


def fixed_cost(machine: Machine, text: Text, name: str, lookahead: int) -> float:
    """The whole text with the same choice in every round."""
    return float(sum(fixed_rounds(machine, text, name, lookahead).values()))


def fixed_rounds(machine: Machine, text: Text, name: str, lookahead: int) -> dict[int, float]:
    """The cost of each round by its position."""
    right, sure = text.right[name], text.sure[name]
    runs = _runs(right)
    half = (len(right) - LONGEST) // 2
    check = [[machine.check_cost(k + 1, late) for k in range(LONGEST)] for late in (False, True)]
    costs, at, owed, length = {}, 0, 0, 0
    for prompt, tokens in text.answers:
        end, owed = at + tokens, owed + prompt - length if text.turns else prompt
        length = prompt + tokens
        while at < end:
            late, k = at >= half, lookahead
            if name == "lookup" and not sure[at]:
                k = 0
            cost = check[late][k]
            if k and name != "lookup":
                cost += machine.draft_cost(k, owed, late)
            stood = min(k, runs[at])
            owed = 1 + (stood == k)
            costs[at] = cost
            at = min(at + stood + 1, end)
    return costs


def oracle_cost(machine: Machine, text: Text, names: Sequence[str]) -> float:
    """The least cost for one who knows which guesses stand; a drafter's reading comes free."""
    runs = {name: _runs(text.right[name]) for name in names}
    half = (len(text.gaps) - LONGEST) // 2
    begin = sum(tokens for _, tokens in text.answers)
    total = 0.0
    for _, tokens in reversed(text.answers):
        rest = np.zeros(tokens + LONGEST + 1)  # cost from each position to the answer's end
        for i in range(tokens - 1, -1, -1):
            at = begin - tokens + i
            late = at >= half
            best = machine.check_cost(1, late) + rest[min(i + 1, tokens)]
            for name in names:
                if name == "lookup" and not text.sure[name][at]:
                    continue
                for k in range(1, min(int(runs[name][at]), LONGEST - 1) + 1):
                    cost = machine.check_cost(k + 1, late)
                    if name != "lookup":
                        cost += machine.draft_cost(k, 1, late)
                    best = min(best, cost + rest[min(i + k + 1, tokens)])
            rest[i] = best
        total += rest[0]
        begin -= tokens
    return float(total)


def _runs(right: Array) -> list[int]:
    """At each position, how many guesses in a row stand."""
    runs, run = [], 0
    for stands in right[::-1].tolist():
        run = run + 1 if stands else 0
        runs.append(run)
    return runs[::-1]
