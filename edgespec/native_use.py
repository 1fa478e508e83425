"""Native memory that is used in blocks and freed once, behind the last of them.

Invariant: nothing is freed while it is used, and no thread waits for itself. Who closes it waits
for the blocks of other threads. In a signal handler that came into a block, it is freed when that
block ends. Ctrl+C at any point leaves no lock held, and another `close` frees what isn't freed yet.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from edgespec.errors import ModelError


class _Here(threading.local):
    """How many blocks this thread is in the middle of."""

    blocks = 0


_of_all = _Here()


def call_holding(lock: threading.RLock, call: Callable[[], object]) -> None:
    """Call it with the lock held; not at all where that would be waited for in a block.

    So a signal handler that came into a block never waits for a thread that waits for the block.
    """
    if not _of_all.blocks:
        with lock:
            call()
    elif lock.acquire(blocking=False):
        try:
            call()
        finally:
            lock.release()


class NativeUse:
    """`with use(): ...` around whatever needs the memory."""

    def __init__(
        self,
        name: str,
        free: Callable[[], object],
        *,
        shared: bool = False,
        stopping: Callable[[], AbstractContextManager[None]] = nullcontext,
        needed: Collection[object] = (),
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """`name` is for messages; `shared`: several threads may use it at a time.

        `stopping` makes another thread's block end soon, for as long as it is entered.
        It isn't freed while there is anything in `needed`, and then only by `free_closed`. `then`
        is called behind the freeing, when nobody is kept waiting any more.
        """
        self.closed = False
        self._name = name
        self._free = free
        self._shared = shared
        self._stopping = stopping
        self._needed = needed
        self._then = then
        self._here = _Here()
        # One for each thread where it is shared, else one for all. Held during a block.
        self._locks = {} if shared else {0: threading.RLock()}
        self._freeing = threading.RLock()  # who comes second waits for the first
        self._freed_by: dict[int, object] = {}
        self._process = os.getpid()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use it, one thread at a time unless it is shared; raises ModelError once it is closed."""
        key = threading.get_ident() if self._shared else 0
        before, of_all = self._here.blocks, _of_all.blocks
        try:
            self._here.blocks = before + 1  # before a lock is held: a handler must never miss it
            _of_all.blocks = of_all + 1
            with self._locks.setdefault(key, threading.RLock()):
                self.check_open()
                yield
        finally:
            self._here.blocks = before
            _of_all.blocks = of_all
            self.free_closed()

    def check_open(self) -> None:
        if self.closed:
            raise ModelError(f"{self._name} is closed")

    def close(self) -> None:
        """Free it, from any thread, at any time, any number of times."""
        self.closed = True
        self.free_closed()

    def free_closed(self) -> None:
        """Free it where it was closed, unless it is still needed.

        A forked process frees nothing of its parent's: a thread that holds a lock isn't there.
        """
        if not self.closed or self._here.blocks or self._needed or os.getpid() != self._process:
            return
        of_all = _of_all.blocks
        try:
            _of_all.blocks = of_all + 1  # others may wait for this as for a block
            for lock in list(self._locks.values()):
                self._wait_for(lock)
            with self._freeing:
                self._free_once()
        finally:
            _of_all.blocks = of_all
        self._then()

    def _wait_for(self, lock: threading.RLock) -> None:
        """Wait for the block that holds it, if any; later ones find that this is closed."""
        try:
            if not lock.acquire(blocking=False):
                with self._stopping():
                    lock.acquire()
        finally:
            try:  # noqa: SIM105 (Ctrl+C could come into `suppress`)
                lock.release()
            except RuntimeError:  # it wasn't held yet when Ctrl+C came
                pass

    def _free_once(self) -> None:
        me, begun = object(), False
        try:
            if self._freed_by.setdefault(0, me) is me:  # in one step
                begun = True
                self._free()
        except BaseException:
            if not begun and self._freed_by.get(0) is me:
                del self._freed_by[0]
            raise
