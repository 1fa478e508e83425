"""The conversations there are: each a file of JSON lines that is appended turn by turn.

A file is appended by the one window that has its claim; a second window goes on in a copy. Where
a disk has no locks, a file that isn't as a window left it is someone else's, and that window goes
on in a copy too.

What reads or changes files waits for turns that are still being saved, two seconds at most, and
then raises StillSaving.

Invariant: a conversation that is opened again is what some prefix of its puts had made of it, all
of them that returned included; and no conversation's damage keeps another from being opened.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from edgespec.errors import EdgespecError
from edgespec.platform import data_dir
from edgespec.terminal import printable
from edgespec.tui.claim import Claim
from edgespec.tui.saving import Saving

if TYPE_CHECKING:
    from edgespec.tui.messages import Turn
    from edgespec.tui.replay import Replay
    from edgespec.tui.writer import Writer

_ID = re.compile(r"[0-9A-Za-z._-]+")


class HistoryError(EdgespecError):
    """A conversation that can't be read, renamed or deleted."""


@dataclass(frozen=True)
class Summary:
    """What a list shows of a conversation; `problem` is a sentence where there is little to show.

    `at` is the time of its last change, in seconds since the epoch.
    """

    id: str
    title: str
    turns: int
    pair: str
    at: float
    size_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Opened:
    """A conversation that goes on: its turns, where new ones go, and what the person should know.

    `turns[n]` is the turn with index n for `writer.put`.
    """

    turns: tuple[Turn, ...]
    writer: Writer
    notes: tuple[str, ...] = ()


class History:
    """The conversations in a folder (None: the user's own); `saving` is where turns go."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since the epoch. Nothing is written before the first turn."""
        self.folder = folder or data_dir() / "conversations"
        self.saving = Saving()
        self._clock = clock
        # Weakly: a writer that nobody has any more gives its claim back by itself.
        self._writers: WeakValueDictionary[str, Writer] = WeakValueDictionary()

    def begin(self) -> Writer:
        """A new conversation; its file begins with its first turn."""
        from edgespec.tui.writer import new_id

        return self._writer(new_id(self._clock()))

    def list(self) -> list[Summary]:
        """All conversations, the newest first; only the end of each file is read."""
        self.saving.settle()
        try:
            with os.scandir(self.folder) as entries:
                paths = [Path(entry.path) for entry in entries if entry.name.endswith(".jsonl")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _error("Can't read the conversations in", self.folder, error) from error
        found = [summary for path in paths if (summary := _summary(path)) is not None]
        return sorted(found, key=lambda summary: (-summary.at, summary.id))

    def read(self, conversation_id: str) -> Replay:
        """A conversation as it is saved, to be shown or exported. Raises HistoryError.

        Of one that is open in this window, with the turns that the disk didn't take.
        """
        from edgespec.tui.replay import Replay

        self.saving.settle()
        if (mine := self._writers.get(conversation_id)) is not None and mine.problem:
            return Replay(mine.turns)
        return self._read(conversation_id)

    def _read(self, conversation_id: str) -> Replay:
        from edgespec.tui.replay import replay

        path = self.path(conversation_id)
        try:
            with path.open("rb") as file:
                found = replay(file, path)
        except FileNotFoundError as error:
            raise HistoryError(f"There is no {printable(str(path))} any more.") from error
        except OSError as error:
            raise _error("Can't read", path, error) from error
        if found.problem:
            raise HistoryError(found.problem)
        return found

    def resume(self, conversation_id: str) -> Opened:
        """Go on with a conversation, in a copy where another window has it. Raises HistoryError."""
        self.saving.settle()
        if (mine := self._writers.get(conversation_id)) is not None:
            return Opened(mine.turns, mine)
        claim, elsewhere = None, False
        try:
            claim = self._claim(conversation_id)
            elsewhere = claim is None
        except OSError:
            pass  # a full or write-protected disk: reading works, and the first put says so
        try:
            found = self._read(conversation_id)
        except BaseException:
            if claim is not None:
                claim.give_back()
            raise
        writer = self._writer(conversation_id, found, claim)
        notes = found.notes
        if elsewhere:
            writer.become_copy()
            if found.torn:  # not by a crash: it is being written
                notes = ()
            notes += ("This conversation is open in another window, so it goes on in a copy.",)
        return Opened(found.turns, writer, notes)

    def rename(self, conversation_id: str, title: str) -> None:
        """Raises HistoryError, also where another window has it open."""
        self.saving.do(lambda: self._rename(conversation_id, title))

    def _rename(self, conversation_id: str, title: str) -> None:
        mine = self._writers.get(conversation_id)
        writer = mine or self._only_here(conversation_id)
        try:
            writer.rename(title)
        except OSError as error:
            raise HistoryError(str(error)) from error
        finally:
            if mine is None:
                writer.close()

    def delete(self, conversation_id: str) -> None:
        """Delete its file for good. Raises HistoryError, also where another window has it open."""
        self.saving.do(lambda: self._delete(conversation_id))

    def _delete(self, conversation_id: str) -> None:
        path = self.path(conversation_id)
        mine = self._writers.get(conversation_id)
        claim = None
        try:
            if mine is None and (claim := self._claim(conversation_id)) is None:
                raise HistoryError(
                    "This conversation is open in another window; close it there first."
                )
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _error("Can't delete", path, error) from error
        finally:
            if claim is not None:
                claim.give_back()
        if mine is not None:
            mine.forget()

    def is_open(self, conversation_id: str) -> bool:
        """Whether this window goes on with it."""
        return conversation_id in self._writers

    def path(self, conversation_id: str) -> Path:
        """The file of a conversation. Raises HistoryError for what is no id."""
        if not _ID.fullmatch(conversation_id):
            raise HistoryError(f"{conversation_id!r} is not the id of a conversation.")
        return self.folder / f"{conversation_id}.jsonl"

    def close(self) -> None:
        """Give back every conversation, at the end of the program, once all is saved.

        What the disk didn't take is tried once more; if that fails, a writer's `problem` says so.
        """
        self.saving.settle(forever=True)
        for writer in list(self._writers.values()):
            with suppress(OSError):
                writer.save_rest()
            writer.close()

    # ------------------------------------------------------------------------------- its writers

    def _writer(
        self, conversation_id: str, found: Replay | None = None, claim: Claim | None = None
    ) -> Writer:
        from edgespec.tui.writer import Writer

        writer = Writer(
            self.folder,
            conversation_id,
            found,
            claim,
            clock=self._clock,
            on_move=self._moved,
        )
        self._writers[conversation_id] = writer
        return writer

    def _moved(self, writer: Writer, before: str, now: str | None) -> None:
        """A writer goes on under another id, or is closed."""
        if self._writers.get(before) is writer:
            del self._writers[before]
        if now is not None:
            self._writers[now] = writer

    def _claim(self, conversation_id: str) -> Claim | None:
        return Claim.take(self.folder / "open" / conversation_id)

    def _only_here(self, conversation_id: str) -> Writer:
        """A writer for one change. Raises HistoryError where another window has it."""
        try:
            claim = self._claim(conversation_id)
        except OSError as error:
            raise _error("Can't write in", self.folder, error) from error
        if claim is None:
            raise HistoryError("This conversation is open in another window; rename it there.")
        try:
            return self._writer(conversation_id, self._read(conversation_id), claim)
        except BaseException:
            claim.give_back()
            raise


def _summary(path: Path) -> Summary | None:
    """None for a file that holds nothing, or went away."""
    from edgespec.tui.replay import last_mark

    try:
        stat = path.stat()
        if stat.st_size == 0:
            return None
        with path.open("rb") as file:
            mark = last_mark(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = str(_error("Can't read", path, error))
        return Summary(path.stem, "", 0, "", 0.0, 0, problem)
    if mark is None:
        problem = f"No turn of {printable(str(path))} was saved whole, or the file is damaged."
        return Summary(path.stem, "", 0, "", stat.st_mtime, stat.st_size, problem)
    return Summary(path.stem, mark.title, mark.turns, mark.pair, mark.at, stat.st_size)


def _error(what: str, path: Path, error: OSError) -> HistoryError:
    return HistoryError(f"{what} {printable(str(path))}: {error.strerror or error}.")
