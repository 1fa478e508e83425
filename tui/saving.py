"""Changes on the disk, one after another on a thread of their own.

The screen's thread would stand still for as long as a slow disk takes to say that it has a turn.

Invariant: changes happen in the order in which they were asked for, each of them once, unless
whoever asked was told that it won't; what reads files after `settle` finds all that was put
before; and what became of a change that nobody waited for is told once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec.errors import EdgespecError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from edgespec.tui.messages import Turn
    from edgespec.tui.writer import Writer

_T = TypeVar("_T")


class StillSaving(EdgespecError):
    """The disk takes its time; the sentence says what is waited for."""


class Saving:
    """The queue; safe to call from several threads, but not from a change itself.

    Its thread begins with the first change. The interpreter doesn't end before all is done.
    """

    patience = 2.0
    """Seconds that whoever isn't leaving waits for the disk."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._unwatched: deque[Future[Any]] = deque()  # changes that nobody waits for

    def put(self, writer: Writer, index: int, turn: Turn) -> None:
        """Have `writer.put(index, turn)` called soon; `failures` says what came of it."""
        self.later(lambda: writer.put(index, turn))

    def later(self, change: Callable[[], str | None]) -> None:
        """Have a change made soon; `outcomes` gives the sentence that it returns, or its error."""
        self._unwatched.append(self._submit(change))

    def do(self, change: Callable[[], _T], *, forever: bool = False) -> _T:
        """What a change returns, or raises, behind all that was asked for before.

        Raises StillSaving after `patience` seconds, unless it may take `forever`: the change won't
        happen, or, as another sentence says, it is under way, and `outcomes` says if it fails.
        """
        future = self._submit(change)
        try:
            if not wait([future], None if forever else self.patience).done:
                if future.cancel():
                    raise StillSaving(
                        "The disk is still saving the last turn: try again in a moment."
                    )
                if not future.done():  # it may have ended just now
                    self._unwatched.append(future)
                    raise StillSaving("The disk takes its time: this change is still under way.")
            return future.result()
        finally:
            del future  # an error's traceback would keep this frame, and so the writer's claim

    def settle(self, *, forever: bool = False) -> None:
        """Wait for all that was asked for before, as `do` does. Raises StillSaving."""
        if self._thread is not None:
            self.do(lambda: None, forever=forever)

    def outcomes(self) -> list[tuple[str, bool]]:
        """What became of changes that nobody waited for and that ended since the last call.

        Each a sentence, and whether the change failed. One thread alone may ask. Raises what went
        wrong beside the disk.
        """
        found = []
        while self._unwatched and self._unwatched[0].done():
            future = self._unwatched.popleft()
            error = future.exception()
            if isinstance(error, OSError | EdgespecError):
                found.append((str(error), True))
            elif error is not None:
                raise error
            elif isinstance(said := future.result(), str):
                found.append((said, False))
        return found

    def failures(self) -> list[str]:
        """Those of the `outcomes` that are failures."""
        return [sentence for sentence, failed in self.outcomes() if failed]

    @property
    def pending(self) -> bool:
        """Whether such a change is under way, or what became of it wasn't asked for yet."""
        return bool(self._unwatched)

    def _submit(self, change: Callable[[], _T]) -> Future[_T]:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
            return self._thread.submit(change)
