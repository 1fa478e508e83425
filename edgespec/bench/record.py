"""What was measured, as JSON lines: one line for each prompt that every side answered in turn.

Invariant: a line is a whole trial and is on the disk before the next one begins. So whatever kills
a measurement costs the trial under way, and no pair of answers ever comes from two occasions. A
torn last line is dropped; a damaged one before it is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from edgespec.errors import ConfigError

SCHEMA = 1
FILE = "results.jsonl"


@dataclass(frozen=True)
class Run:
    """A start of the benchmark: when, by which command, with what."""

    kind: ClassVar[str] = "run"
    began: str
    command: list[str]
    machine: dict[str, Any]
    versions: dict[str, str]
    schema: int = SCHEMA


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

    `side` is "plain", a setting such as "lookup+model:auto", or "PEER/SETTING". `decode_seconds`
    leave out the first token, which is the prompt's. `arrivals` are (seconds since the request,
    tokens), one for each time that text came. `difference` says where a text isn't plain's, and
    whether rounding explains it; None where it is the same. `first_tokens` came with the first:
    a program that drafts behind the prompt at once gives several.
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
    """One prompt, answered by every side in turn, in the order of `answers`.

    `context` is the prompt's intended length where that is what was measured, else None.
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

    @property
    def key(self) -> tuple[str, str, int, int]:
        return (self.pair, self.prompt, self.turn, self.repeat)

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
_KINDS: dict[str, type[Record]] = {cls.kind: cls for cls in (Run, Pair, Trial, Costs)}


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
            known = self.pairs.get(record.pair)
            self.pairs[record.pair] = record if known is None else _merged(known, record)
        elif isinstance(record, Trial):
            self.trials.append(record)
        else:
            self.costs.append(record)

    def sides(self, pair: str) -> list[str]:
        """Every side that answered, plain first."""
        named = self.pairs[pair].sides if pair in self.pairs else []
        seen = dict.fromkeys(
            [*named, *(a.side for t in self.trials if t.pair == pair for a in t.answers)]
        )
        return sorted(seen, key=lambda side: side != "plain")


def _merged(first: Pair, other: Pair) -> Pair:
    """Two files' words on one pair: the first's, with the sides and peers of both."""
    sides = list(dict.fromkeys([*first.sides, *other.sides]))
    return Pair(
        first.pair, first.target, first.drafters, first.settings, sides, first.peers | other.peers
    )


def read(paths: Iterable[Path]) -> Results:
    """The records of these files, or of the results in these folders; raises ConfigError."""
    results = Results()
    for path in paths:
        file = path / FILE if path.is_dir() else path
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"can't read the results in {file}: {error.strerror}") from None
        for record in _records(data[: _whole(data)], file):
            results.add(record)
    return results


class Writer:
    """Appends records to a folder's results, which may be there from before."""

    def __init__(self, folder: Path) -> None:
        """Read what is there, drop a torn last line; raises ConfigError, also for a full disk."""
        self.file = folder / FILE
        self.results = Results()
        self._run: Run | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = self.file.open("a+b")
            self._handle.seek(0)
            data = self._handle.read()
            whole = _whole(data)
            for record in _records(data[:whole], self.file):
                self.results.add(record)
            self._handle.truncate(whole)
            self._sync()
        except OSError as error:
            raise ConfigError(f"can't keep results in {folder}: {error.strerror}") from None

    def begin(self, run: Run) -> None:
        """Note a start of the benchmark, once it has something to write."""
        self._run = run

    def append(self, record: Record) -> None:
        """Write a record and wait until the disk has it."""
        if self._run is not None:
            run, self._run = self._run, None
            self.append(run)
        try:
            self._handle.write(_line(record))
            self._sync()
        except OSError as error:
            raise ConfigError(f"can't write {self.file}: {error.strerror}") from None
        self.results.add(record)

    def _sync(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        with suppress(OSError):
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _line(record: Record) -> bytes:
    data = {"kind": record.kind, **asdict(record)}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    # A model's text may hold half a surrogate pair, which UTF-8 can't.
    return text.encode("utf-8", "replace") + b"\n"


def _whole(data: bytes) -> int:
    """How many bytes are whole lines: what follows the last line's end was torn."""
    return data.rfind(b"\n") + 1


def _records(data: bytes, file: Path) -> Iterable[Record]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line.decode("utf-8"))
            cls = _KINDS[entry.pop("kind")]
            if cls is Trial:
                entry["answers"] = [_only(Answer, answer) for answer in entry["answers"]]
            yield _only(cls, entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"{file}, line {number}, is no result of edgespec bench: remove that line"
            ) from None


def _only(cls: type[Any], entry: dict[str, Any]) -> Any:
    """An object of what it knows; a later version's further fields are left aside."""
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in entry.items() if key in known})
