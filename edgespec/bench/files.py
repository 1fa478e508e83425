"""Results on the disk, as JSON lines: one line for each prompt, asked of every side in turn.

Invariant: a line is a whole trial and is on the disk before the next one begins. So whatever kills
a measurement costs the trial under way, and no pair of answers ever comes from two occasions. A
torn last line of ours is dropped; a damaged one before it, or what never was ours, is an error and
stays as it is. One process writes to a file at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edgespec.bench.record import (
    Answer,
    Costs,
    Key,
    Pair,
    Record,
    Results,
    Run,
    Trial,
    as_seconds,
    machine_change,
)
from edgespec.errors import ConfigError
from edgespec.platform import lock_file

FILE = "results.jsonl"
_BEGIN = b'{"kind":"'
"""What each line begins with."""
_KINDS: dict[str, type[Record]] = {cls.kind: cls for cls in (Run, Pair, Trial, Costs)}


def read(paths: Iterable[Path]) -> Results:
    """The records of these files, or of the results in these folders.

    Files of one pair are taken together where they were measured on one machine under the same
    conditions, with the same prompts or others. What is in several files counts once; a text length
    that several measured has the repetitions of all. Raises ConfigError.
    """
    results = Results()
    first: dict[str, str] = {}  # the prompts of a pair's first trials
    known: set[bytes] = set()
    taken: set[Key] = set()
    firsts: dict[str, tuple[Path, dict[str, Any]]] = {}  # where a pair's first trials came from
    for path in paths:
        machine: dict[str, Any] = {}
        prompts: dict[str, str] = {}
        lines: set[bytes] = set()  # of this file, in which nothing stands twice by mistake
        for record in _counting(_whole_file(path), results):
            if isinstance(record, Run):
                machine = record.machine
            if isinstance(record, Pair):
                prompts[record.pair] = str(record.settings.get("prompts_sha256"))
                if record.pair not in first or not results.answered(record.pair):
                    first[record.pair] = prompts[record.pair]
            elif (line := _line(record)) in known:
                continue
            else:
                lines.add(line)
            if isinstance(record, Trial):
                file, on = firsts.setdefault(record.pair, (path, machine))
                if file != path:  # what an earlier edgespec put in one file stays readable
                    _refuse_other_machine(record.pair, on, machine)
                mine = prompts.get(record.pair)
                if record.context is None and mine != first.get(record.pair):
                    # One name may be two prompts.
                    record = replace(record, prompt=f"{record.prompt} ({mine})")
                while record.context is not None and record.key in taken:
                    record = replace(record, repeat=record.repeat + 1)
                taken.add(record.key)
            results.add(record)
        known |= lines
    return results


def _refuse_other_machine(pair: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    if (change := machine_change(one, other)) is not None:
        name, was, is_ = change
        raise ConfigError(
            f"these results of {pair} can't be taken together: they are of two machines ({name} is "
            f"{was} on one and {is_} on the other)"
        )


def _whole_file(path: Path) -> list[Record]:
    """What a file, or the results in a folder, holds; raises ConfigError."""
    file = path / FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read the results in {file}: {error.strerror}") from None
    whole = _whole(data)
    if not data[:whole].strip() or not _torn(data[whole:]):
        raise ConfigError(f"{file} holds no results of edgespec bench, or more than those")
    return list(_records(data[:whole], file))


def _counting(records: Sequence[Record], results: Results) -> Iterator[Record]:
    """The records of a file without conditions, and their costs, under which it answered nothing.

    They stay where none of the files before answered that pair: then there is nothing else of it.
    """
    now: dict[str, int] = {}  # where the conditions stand that hold
    answered: set[int | None] = set()
    for place, record in enumerate(records):
        if isinstance(record, Pair):
            now[record.pair] = place
        elif isinstance(record, Trial):
            answered.add(now.get(record.pair))
    before = {pair for pair in now if results.answered(pair)}
    now.clear()
    for place, record in enumerate(records):
        if isinstance(record, Pair):
            now[record.pair] = place
        stale = (
            isinstance(record, Pair | Costs)
            and record.pair in before
            and now.get(record.pair) not in answered
        )
        if not stale:
            yield record


class Writer:
    """Appends records to a folder's results, which may be there from before."""

    def __init__(self, folder: Path) -> None:
        """Read what is there, drop a torn last line.

        Raises ConfigError for what isn't ours, for a file that another process writes to, and for a
        disk that takes nothing.
        """
        self.file = folder / FILE
        self.results = Results()
        self._run: Run | None = None
        self._made = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = self.file.open("a+b")
            try:
                self._take_up()
            except BaseException:
                self._handle.close()
                raise
        except OSError as error:
            raise ConfigError(f"can't keep results in {folder}: {error.strerror}") from None

    def _take_up(self) -> None:
        if not lock_file(self._handle):
            raise ConfigError(
                f"another edgespec bench is writing to {self.file}: wait for it, or choose another "
                "--out"
            )
        self._handle.seek(0)
        data = self._handle.read()
        whole = _whole(data)
        for record in _records(data[:whole], self.file):
            self.results.add(record)
        if not _torn(data[whole:]):
            raise ConfigError(
                f"{self.file} ends with something that edgespec bench didn't write: remove that, "
                "or choose another --out"
            )
        self._handle.truncate(whole)
        self._sync()

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
        """Done; where nothing was written, nothing stays."""
        with suppress(OSError):
            empty = not os.fstat(self._handle.fileno()).st_size
            self._handle.close()
            if empty:
                self.file.unlink()
                if self._made:
                    self.file.parent.rmdir()  # which fails where it holds something else by now

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


def _torn(rest: bytes) -> bool:
    """Whether what follows the last whole line is nothing, or the beginning of a line of ours."""
    return rest[: len(_BEGIN)] == _BEGIN[: len(rest)]


def _records(data: bytes, file: Path) -> Iterable[Record]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line.decode("utf-8"))
            cls = _KINDS[entry.pop("kind")]
            if cls is Trial:
                entry["answers"] = [_answer(answer) for answer in entry["answers"]]
            yield _only(cls, entry)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ConfigError(
                f"{file}, line {number}, is no result of edgespec bench: remove that line"
            ) from None


def _answer(entry: dict[str, Any]) -> Answer:
    """Raises ValueError for times of which no logarithm can be taken."""
    for time in (entry["ttft_seconds"], entry["decode_seconds"]):
        if time is not None:
            as_seconds(time)
    answer: Answer = _only(Answer, entry)
    return answer


def _only(cls: type[Any], entry: dict[str, Any]) -> Any:
    """An object of what it knows; a later version's further fields are left aside."""
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in entry.items() if key in known})
