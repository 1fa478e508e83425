"""What was measured: runs, pairs, trials, answers, costs, and what may be taken together.

Invariant: figures of one pair stand beside each other only where they were measured under the same
conditions; the prompts and the sides may differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from edgespec.errors import ConfigError

PROMPTS = ("prompts", "prompts_sha256")

MEMORY_TOLERANCE = 0.05
"""A system keeps some of a machine's memory for itself, one version more than another."""

Key = tuple[str, str, int, int, int | None]
"""A trial's pair, prompt, turn, repetition and text length: there is one trial of each."""


def one_line(words: str) -> str:
    """A name as it can be kept and shown: on one line, without half a surrogate pair.

    A path that isn't UTF-8 and a JSON text can hold such a half, which no UTF-8 file can.
    """
    return " ".join(words.encode("utf-8", "replace").decode("utf-8").split())


def as_seconds(value: Any) -> float:
    """How long something took; raises ValueError for less than 0, NaN and infinity."""
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("no time that anything takes")
    return seconds


@dataclass(frozen=True)
class Run:
    """A start of the benchmark: when, by which command, with what."""

    kind: ClassVar[str] = "run"
    began: str
    command: list[str]
    machine: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True)
class Pair:
    """What a pair was measured under; a measurement goes on only under the same."""

    kind: ClassVar[str] = "pair"
    pair: str
    target: dict[str, Any]
    drafters: list[dict[str, Any]]
    settings: dict[str, Any]
    sides: list[str]
    peers: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """One side's answer to a prompt; times in seconds.

    `side` is "plain", a setting such as "lookup+model:auto", or "PEER/SETTING". `ttft_seconds` is
    None where the prompt was kept from the answer before. `decode_seconds` pass from the first
    token to the end, text included. `arrivals` are (seconds since the request, tokens), one for
    each time that text came. `difference` says where a text isn't plain's and, of our own sides,
    whether rounding explains it; None where it is the same, or where texts can't be compared.
    `first_tokens` came with the first: a program that drafts behind the prompt at once gives
    several.
    """

    side: str
    tokens: list[int]
    text: str
    finish_reason: str
    ttft_seconds: float | None
    decode_seconds: float | None
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    draft_seconds: float | None = None
    check_seconds: float | None = None
    sample_seconds: float | None = None
    drafters: dict[str, dict[str, int]] = field(default_factory=dict)
    joules: float | None = None
    difference: dict[str, Any] | None = None
    first_tokens: int = 1

    @property
    def decoded(self) -> int:
        """Tokens behind the first; an end token was decoded too, though no answer shows it."""
        return max(0, len(self.tokens) - self.first_tokens + (self.finish_reason == "end"))

    @property
    def seconds_per_token(self) -> float | None:
        """Of decoding alone; None where nothing came behind the first token."""
        return self.decode_seconds / self.decoded if self.decoded and self.decode_seconds else None


@dataclass(frozen=True)
class Trial:
    """One prompt, asked of every side in turn, in the order of `answers`.

    `context` is the prompt's intended length where that is what was measured, else None.
    `unanswered` says of other programs that gave no answer why, by side.
    """

    kind: ClassVar[str] = "trial"
    pair: str
    prompt: str
    category: str
    turn: int
    repeat: int
    prompt_tokens: int
    ended: str
    answers: list[Answer]
    context: int | None = None
    unanswered: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return (self.pair, self.prompt, self.turn, self.repeat, self.context)

    def answer(self, side: str) -> Answer | None:
        return next((answer for answer in self.answers if answer.side == side), None)


@dataclass(frozen=True)
class Costs:
    """Seconds of passes over n tokens behind `behind` others; `role` is target or drafter."""

    kind: ClassVar[str] = "costs"
    pair: str
    model: str
    role: str
    behind: int
    seconds: dict[str, list[float]]


Record = Run | Pair | Trial | Costs


@dataclass
class Results:
    """Everything that result files hold, in order."""

    runs: list[Run] = field(default_factory=list)
    pairs: dict[str, Pair] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    costs: list[Costs] = field(default_factory=list)

    def add(self, record: Record) -> None:
        if isinstance(record, Run):
            self.runs.append(record)
        elif isinstance(record, Pair):
            self._add_pair(record)
        elif isinstance(record, Trial):
            self.trials.append(record)
        else:
            self._add_costs(record)

    def answered(self, pair: str) -> bool:
        """Whether there is a trial of it."""
        return any(trial.pair == pair for trial in self.trials)

    def _add_pair(self, new: Pair) -> None:
        """Conditions under which nothing was answered give way to others, and their costs too."""
        known = self.pairs.get(new.pair)
        if known is not None and self.answered(new.pair):
            new = _merged(known, new)
        elif known is not None and _clash(known, new) is not None:
            self.costs = [costs for costs in self.costs if costs.pair != new.pair]
        self.pairs[new.pair] = new

    def _add_costs(self, new: Costs) -> None:
        """Another measurement of the same passes adds to the first."""
        for known in self.costs:
            if (known.pair, known.model, known.role, known.behind) == (
                new.pair, new.model, new.role, new.behind,
            ):  # fmt: skip
                for size, seconds in new.seconds.items():
                    known.seconds.setdefault(size, []).extend(seconds)
                return
        self.costs.append(new)

    def sides(self, pair: str) -> list[str]:
        """Every side that answered, plain first."""
        named = self.pairs[pair].sides if pair in self.pairs else []
        seen = dict.fromkeys(
            [*named, *(a.side for t in self.trials if t.pair == pair for a in t.answers)]
        )
        return sorted(seen, key=lambda side: side != "plain")


def first_change(one: Pair, other: Pair) -> tuple[str, Any, Any] | None:
    """The first condition that isn't the same, and what it is in each; the sides may differ.

    Of peers those count that both have. Prompts are the same where their SHA-256 is, whatever path
    led to them.
    """
    names = dict.fromkeys([*one.settings, *other.settings])
    if "prompts_sha256" in names:
        names.pop("prompts", None)
    peers = [name for name in one.peers if name in other.peers]
    changes: list[tuple[str, Any, Any]] = [
        ("the target", one.target.get("sha256"), other.target.get("sha256")),
        (
            "a drafter",
            [drafter.get("sha256") for drafter in one.drafters],
            [drafter.get("sha256") for drafter in other.drafters],
        ),
        *((name, one.settings.get(name), other.settings.get(name)) for name in names),
        *((name, one.peers[name], other.peers[name]) for name in peers),
    ]
    return next((change for change in changes if change[1] != change[2]), None)


def machine_change(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first of what both runs tell of their machine that differs, and what it is in each."""

    def same(key: str, was: Any, is_: Any) -> bool:
        if key == "memory_bytes" and was and is_:
            return math.isclose(was, is_, rel_tol=MEMORY_TOLERANCE)
        return bool(was == is_)

    told = ((key, was, other[key]) for key, was in one.items() if key in other)
    return next((change for change in told if not same(*change)), None)


def _clash(one: Pair, other: Pair) -> tuple[str, Any, Any] | None:
    """The first condition, apart from the prompts, that isn't the same, and what it is in each."""
    same_prompts = {key: one.settings[key] for key in PROMPTS if key in one.settings}
    settings = {k: v for k, v in other.settings.items() if k not in PROMPTS} | same_prompts
    return first_change(one, replace(other, settings=settings))


def _merged(first: Pair, other: Pair) -> Pair:
    """Two files' words on one pair, with the prompts, sides and peers of both."""
    change = _clash(first, other)
    if change is not None:
        name, was, is_ = change
        raise ConfigError(
            f"these results of {first.pair} can't be taken together: {name} is {was} in one file "
            f"and {is_} in another"
        )
    prompts = {
        key: " + ".join(dict.fromkeys([*str(was).split(" + "), str(other.settings.get(key))]))
        for key, was in first.settings.items()
        if key in PROMPTS
    }
    sides = list(dict.fromkeys([*first.sides, *other.sides]))
    return replace(
        first, settings=first.settings | prompts, sides=sides, peers=first.peers | other.peers
    )
