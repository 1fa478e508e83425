"""Native memory that is used in blocks and freed once, behind the last of them.

Invariant: nothing is freed while it is used, and no thread waits for itself. Who closes it waits
for the blocks of other threads. In a signal handler that came into a block, it is freed when that
block ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from edgespec.errors import ModelError


class _Here(threading.local):
    """What this thread is in the middle of."""

    blocks = 0


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
        # One for each thread where it is shared, else one for all. Held during a block, and all of
        # them while it is freed.
        self._locks = {} if shared else {0: threading.RLock()}
        self._first = threading.Lock()  # taken for good by whoever frees it

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use it, one thread at a time unless it is shared; raises ModelError once it is closed."""
        key = threading.get_ident() if self._shared else 0
        before = self._here.blocks
        try:
            self._here.blocks = before + 1  # before a lock is held: a handler must never miss it
            with self._locks.setdefault(key, threading.RLock()):
                self.check_open()
                yield
        finally:
            self._here.blocks = before
            self.free_closed()

    def check_open(self) -> None:
        if self.closed:
            raise ModelError(f"{self._name} is closed")

    def close(self) -> None:
        """Free it, from any thread, at any time, any number of times."""
        self.closed = True
        self.free_closed()

    def free_closed(self) -> None:
        """Free it where it was closed, unless it is still needed."""
        if not self.closed or self._here.blocks or self._needed:
            return
        with ExitStack() as held:
            for lock in list(self._locks.values()):
                if not lock.acquire(blocking=False):
                    with self._stopping():
                        lock.acquire()
                held.callback(lock.release)
            if self._first.acquire(blocking=False):
                self._free()
        self._then()
