"""One window's end of a conversation's file: appends, and remembers what the disk didn't take.

Invariant: bytes that were saved are never changed. What an append leaves half-written is cut off
again, and what isn't saved yet stays in memory and goes with the next append.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edgespec.terminal import printable
from edgespec.tui.claim import Claim
from edgespec.tui.messages import Turn
from edgespec.tui.records import (
    VERSION,
    Mark,
    Mended,
    Placed,
    Start,
    encode,
    one_line,
    title_of,
)
from edgespec.tui.replay import Replay


class NotSaved(OSError):
    """What was put is in memory alone; `str()` is a sentence with the reason and what to do."""


class Writer:
    """Where a conversation's turns go; safe to call from several threads.

    `problem` is a sentence on why something isn't saved, "" where all is. `notice` is a sentence
    where the conversation went on in a copy.
    """

    def __init__(
        self,
        folder: Path,
        conversation_id: str,
        found: Replay | None = None,
        claim: Claim | None = None,
        *,
        clock: Callable[[], float] = time.time,
        on_move: Callable[[Writer, str, str | None], None] = lambda *_: None,
    ) -> None:
        """Go on with what was found under that id; None: a new conversation.

        on_move: told the id before and the id now (None: closed).
        """
        self.id = conversation_id
        self.problem = self.notice = ""
        self._folder, self._clock, self._on_move = folder, clock, on_move
        self._claim = claim
        self._lock = threading.RLock()
        found = found or Replay()
        self._turns = list(found.turns)
        self._places = list(found.places)
        self._named = found.mark.title if found.mark and found.mark.named else ""
        self._created = clock() if found.created is None else found.created
        self._length = found.length
        self._torn = found.torn
        self._unsaved: list[bytes] = []
        self._whole = found.length == 0  # the next append writes a new file
        self._forgotten = False

    @property
    def path(self) -> Path:
        """Its file; not there before the first turn."""
        return self._folder / f"{self.id}.jsonl"

    @property
    def title(self) -> str:
        """The name it was given, or the beginning of its first question."""
        with self._lock:
            return self._named or (title_of(self._turns[0].question) if self._turns else "")

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Those that stand."""
        with self._lock:
            return tuple(self._turns)

    @property
    def forgotten(self) -> bool:
        """Whether its file was deleted on purpose."""
        return self._forgotten

    def put(self, index: int, turn: Turn) -> None:
        """Turn `index` (at most the number of turns) is this one now, and none follows it.

        It is on the disk when this returns. Raises NotSaved, a sentence, where the disk doesn't
        take it; then the conversation goes on in memory, and the next put saves all of it.
        """
        with self._lock:
            if not 0 <= index <= len(self._turns):
                raise ValueError(f"turn {index} of {len(self._turns)}")
            place = self._places[index] if index < len(self._places) else self._next_place()
            self._turns[index:] = [turn]
            self._places[index:] = [place]
            self._unsaved.append(encode(Placed(place, turn)))
            self._save()

    def save_rest(self) -> None:
        """Try once more to save what the disk didn't take. Raises NotSaved as `put` does."""
        with self._lock:
            if self.problem and not self._forgotten:
                self._save()

    def rename(self, title: str) -> None:
        """Give it a name; an empty one stands for the beginning of its first question."""
        with self._lock:
            self._named = one_line(title)
            if self._turns:  # before the first turn there is no file
                self._save()

    def become_copy(self) -> None:
        """Go on under another id; the file there begins with all turns, at the next put."""
        with self._lock:
            self._named = one_line(f"{self.title[:100]} (copy)")
            self._created = self._clock()
            self._move()

    def forget(self) -> None:
        """The file was deleted on purpose: put nothing there any more."""
        with self._lock:
            self._forgotten = True
            self.close()

    def close(self) -> None:
        """Let other windows have it. A put after that takes it again."""
        with self._lock:
            self._give_back()
            self._on_move(self, self.id, None)

    # --------------------------------------------------------------------------------- the disk

    def _move(self) -> None:
        """Take a new id; the next append writes a new file."""
        before = self.id
        self._give_back()
        self.id = new_id(self._clock())
        self._whole = True
        self._on_move(self, before, self.id)

    def _next_place(self) -> int:
        return self._places[-1] + 1 if self._places else 0

    def _save(self) -> None:
        try:
            if self._forgotten:
                raise NotSaved("This conversation was deleted, so it isn't saved any more.")
            self._append()
        except NotSaved as error:
            self.problem = str(error)
            raise
        except OSError as error:
            self.problem = (
                f"This conversation can't be saved in {printable(str(self._folder))}: "
                f"{error.strerror or error}."
            )
            raise NotSaved(
                f"{self.problem} It goes on in memory, and the next turn saves all of it if it can."
            ) from error
        self.problem = ""

    def _append(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_claim()
        descriptor = None if self._whole else self._open_as_left()
        if descriptor is None:
            descriptor = self._create()
        saved = False
        try:
            data = self._data()
            _write(descriptor, data)
            saved = True
        finally:
            if not saved and not self._whole:
                self._cut_off(descriptor)
            os.close(descriptor)
            if not saved and self._whole:
                with suppress(OSError):
                    self.path.unlink()
        if self._whole:
            _sync_folder(self._folder)
        self._length += len(data)
        self._whole, self._torn = False, ""
        self._unsaved.clear()

    def _take_claim(self) -> None:
        if self._claim is None:
            self._claim = Claim.take(self._folder / "open" / self.id)
        if self._claim is None:
            self._leave("is open in another window")

    def _create(self) -> int:
        self._length, self._torn, self._whole = 0, "", True
        # Exclusively: a file that is there already is never written into.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        try:
            return os.open(self.path, flags, 0o600)
        except FileExistsError:  # the rest of a failed append, which couldn't be removed
            self._move()
            self._take_claim()
            return os.open(self.path, flags, 0o600)

    def _open_as_left(self) -> int | None:
        """The file, open for appending; None where a new one is to be written."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | _BINARY)
        except FileNotFoundError:  # deleted outside: what is in memory makes a new one
            return None
        if os.fstat(descriptor).st_size == self._length:
            return descriptor
        os.close(descriptor)
        self._leave("was changed by another program")
        return None

    def _leave(self, why: str) -> None:
        self.become_copy()
        self._claim = Claim.take(self._folder / "open" / self.id)
        self.notice = f"This conversation {why}, so it goes on in a copy."

    def _data(self) -> bytes:
        """What is to be appended: what isn't saved yet, or everything for a new file."""
        mark = Mark(
            title=self.title,
            turns=len(self._turns),
            pair=self._turns[-1].pair if self._turns else "",
            at=self._clock(),
            named=bool(self._named),
        )
        if self._whole:
            self._places = list(range(len(self._turns)))
            lines = [encode(Start(VERSION, self._created))]
            lines += [encode(Placed(place, turn)) for place, turn in enumerate(self._turns)]
        else:
            mended = encode(Mended())
            mend = {"": [], "line break": [b"\n"], "more": [b"\n", mended], "mark": [mended]}
            lines = [*mend[self._torn], *self._unsaved]
        return b"".join([*lines, encode(mark)])

    def _cut_off(self, descriptor: int) -> None:
        """Undo what a failed append has written."""
        try:
            os.ftruncate(descriptor, self._length)
        except OSError:
            self._length, self._torn = os.fstat(descriptor).st_size, "more"

    def _give_back(self) -> None:
        if self._claim is not None:
            self._claim.give_back()
            self._claim = None


def new_id(now: float) -> str:
    """An id that sorts by its time (UTC) and that nothing else has."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(4)}"


_BINARY = getattr(os, "O_BINARY", 0)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make a new file's name last through a power cut, where a folder can be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
