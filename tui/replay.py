"""What a conversation's file says, whole or damaged.

Invariant: whatever bytes a file holds, reading it raises nothing but OSError, every turn that can
be read is there, and what can't be read is told in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from edgespec.terminal import printable
from edgespec.tui.messages import Turn
from edgespec.tui.records import VERSION, Mark, Mended, Placed, Record, Start, decode, encode

_FIRST_LOOK = 4096
"""Bytes of a file's end that hold its mark, unless a crash tore what follows it."""

_MENDED = encode(Mended())


@dataclass(frozen=True)
class Replay:
    """A conversation as it is on the disk.

    Attributes:
        turns: those that stand, in order.
        places: the index that each has in the file; they have gaps where lines are damaged.
        mark: the last one.
        created: seconds since the epoch, where the first line tells.
        notes: sentences on what couldn't be read.
        problem: a sentence where nothing can be read.
        length: bytes of the file.
        torn: what the file's last line lacks: nothing, its line break, or more; "mark" where it is
            damaged and ends, so that only a `Mended` is missing behind it.
    """

    turns: tuple[Turn, ...] = ()
    places: tuple[int, ...] = ()
    mark: Mark | None = None
    created: float | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    length: int = 0
    torn: str = ""  # "" | "line break" | "more" | "mark"


@dataclass
class _Reading:
    slots: dict[int, Turn] = field(default_factory=dict)
    mark: Mark | None = None
    start: Start | None = None
    damaged: list[int] = field(default_factory=list)
    half_mended: set[int] = field(default_factory=set)  # those that a crash left of a `Mended`
    unknown: int = 0
    last: Record | None = None

    def take(self, record: Record, number: int) -> None:
        if isinstance(record, Start):
            self.start = record
        elif isinstance(record, Mark):
            self.mark = record
        elif isinstance(record, Placed):
            for later in [place for place in self.slots if place >= record.index]:
                del self.slots[later]
            self.slots[record.index] = record.turn
        elif isinstance(record, Mended):
            # Told when it was mended, which a crash may have cut short some times.
            while self.damaged and self.damaged[-1] == number - 1:
                number = self.damaged.pop()
                if number not in self.half_mended:
                    break
        else:
            self.unknown += 1
        self.last = record


def replay(file: BinaryIO, path: Path) -> Replay:
    """Read a conversation's file from its beginning; `path` is for the sentences."""
    reading, length, torn, number = _Reading(), 0, "", 0
    name = printable(str(path))
    cut_turn = False
    for number, line in enumerate(file, 1):
        length += len(line)
        try:
            reading.take(decode(line), number)
            torn = "" if line.endswith(b"\n") else "line break"
        except ValueError:
            if line.endswith(b"\n"):
                reading.damaged.append(number)
                torn = "mark"
                if _MENDED.startswith(line[:-1]):
                    reading.half_mended.add(number)
            else:
                torn = "more"
                cut_turn = not isinstance(reading.last, Placed)  # or it was only the turn's mark
        if reading.start is not None and reading.start.version > VERSION:
            problem = f"{name} was written by a newer edgespec: open it with that."
            return Replay(problem=problem, length=length)
    notes = []
    if reading.damaged:
        count = len(reading.damaged)
        what = "1 line" if count == 1 else f"{count} lines"
        notes.append(
            f"{what} of {name} can't be read (line {reading.damaged[0]}"
            f"{' is the first' if count > 1 else ''}); the rest is here, and the file is kept."
        )
    if cut_turn:
        notes.append("The last turn was being saved when the program ended, and is lost.")
    if reading.unknown:
        notes.append(f"{name} holds lines of a newer edgespec, which were left alone.")
    problem = ""
    if not reading.slots and (reading.damaged or reading.start is None):
        problem = f"No turn of {name} can be read; the file is kept as it is."
    places = tuple(sorted(reading.slots))
    return Replay(
        turns=tuple(reading.slots[place] for place in places),
        places=places,
        mark=reading.mark,
        created=reading.start.created if reading.start else None,
        notes=tuple(notes),
        problem=problem,
        length=length,
        torn=torn,
    )


def last_mark(file: BinaryIO) -> Mark | None:
    """The last mark of a conversation's file, found from its end."""
    end = file.seek(0, 2)
    window = _FIRST_LOOK
    while True:
        start = max(0, end - window)
        file.seek(start)
        lines = file.read(end - start).split(b"\n")
        for line in reversed(lines if start == 0 else lines[1:]):
            if line.startswith(b'{"kind": "mark"'):
                try:
                    record = decode(line)
                except ValueError:
                    continue
                if isinstance(record, Mark):
                    return record
        if start == 0:
            return None
        window *= 16
