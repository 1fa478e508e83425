"""The one thread on which models of llama.cpp compute, and long passes of ONNX Runtime; and another
on which they are loaded.

OpenMP keeps a team of threads for every thread that ever called it. Where the teams outnumber the
CPUs, its waiting threads go to sleep at each barrier instead of spinning, and SmolLM2 runs at half
its speed. A chat loads in one thread and answers in another, so all of llama.cpp's passes go
through this one. ONNX Runtime has a pool of its own: its long passes come here to be stopped early,
and a daemon thread's so that the program doesn't end inside them.
Invariant: a call returns, or raises, only when the native code is done.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from edgespec.errors import Cancelled, EdgespecError
from edgespec.platform import after_fork

_T = TypeVar("_T")
_LOOK_S = 0.1  # between looks for Ctrl+C, which breaks off no wait on Windows before Python 3.14
_POLL_S = 0.02  # between stops at the program's end


def compute(
    function: Callable[..., _T],
    *args: Any,
    watch: Callable[[], None] = lambda: None,
    stop: Callable[[], None] = lambda: None,
) -> _T:
    """Call `function` on the native thread; raises `Cancelled` where the program is ending.

    `watch` is called every 0.1 s meanwhile, also while other calls have their turn before this one,
    and what it raises breaks the wait off, as Ctrl+C does; `stop` is called then, or when the
    program ends, to make native code that has begun return early.
    """
    return _call(_native, function, args, watch, stop)


def load(
    function: Callable[..., _T],
    *args: Any,
    watch: Callable[[], None] = lambda: None,
    stop: Callable[[], None] = lambda: None,
) -> _T:
    """As `compute`, on the thread that loads, for which no pass of another model has to wait."""
    return _call(_loading, function, args, watch, stop)


def _call(
    thread: _NativeThread,
    function: Callable[..., _T],
    args: tuple[Any, ...],
    watch: Callable[[], None],
    stop: Callable[[], None],
) -> _T:
    job = _Job(function, args, stop)  # before it is handed over: Ctrl+C must not lose it
    try:
        thread.put(job)
        while not job.wait(_LOOK_S):
            watch()
    except BaseException:
        while True:  # however often Ctrl+C is pressed: the caller may free what is in use
            try:
                job.give_up()
                break
            except KeyboardInterrupt:
                continue
        raise
    return job.result()


class _Job(Generic[_T]):
    """A call on its way to the native thread, which runs it unless it is given up before.

    It is no `Future`, whose lock is taken in Python: after Ctrl+C in there it stays held.
    """

    def __init__(
        self,
        function: Callable[..., _T],
        args: tuple[Any, ...] = (),
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.stop = stop
        self._function = function
        self._args = args
        self._results: list[_T] = []
        self._error: BaseException | None = None
        self._taken: dict[str, str] = {}  # who came first, found out in one step
        self.done = False
        self._over = threading.Lock()  # let go once it is done
        self._over.acquire()

    def run(self, refused: Cancelled | None = None) -> None:
        """Run it, unless it was given up; or have it fail, where it is `refused`."""
        if self._taken.setdefault("by", "thread") != "thread":
            return
        try:
            if refused is not None:
                raise refused
            self._results.append(self._function(*self._args))
        except BaseException as error:
            self._error = error
        self.done = True
        self._over.release()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, no longer than `seconds`; whether it came."""
        return self._over.acquire(timeout=seconds)

    def give_up(self) -> None:
        """See that it doesn't begin, or stop it and wait for its end; safe to call again."""
        if self._taken.setdefault("by", "caller") == "caller" or self.done:
            return
        self.stop()
        while not self.done:
            self.wait(_LOOK_S)

    def result(self) -> _T:
        """What it returned or raised; only once."""
        error, self._error = self._error, None
        if error is None:
            return self._results[0]
        try:
            raise error
        finally:
            del error  # which would keep alive, in a circle, what this call was given


class _NativeThread:
    """A thread that runs the jobs put to it, until the program ends.

    A pass is handed over in less time than `ThreadPoolExecutor` takes, and Ctrl+C can't come while
    a lock is held: `SimpleQueue` is C.
    """

    def __init__(self, name: str = "edgespec-native") -> None:
        self._ended = False
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._running: _Job[Any] | None = None
        self._last: _Job[None] | None = None
        self._last_ran = False
        self._starting = threading.RLock()  # a signal handler may come into it
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, job: _Job[Any]) -> None:
        if self._ended:
            raise Cancelled("the program is ending")
        if self._thread.ident is None:
            self._start()
        self._jobs.put(job)

    def end(self) -> None:
        """Stop what runs, and take no more: Python must not end inside of native code."""
        self._ended = True
        if self._thread.ident is None:
            return
        self._last = last = _Job(lambda: None)
        self._jobs.put(last)
        while not last.done:
            try:
                if (job := self._running) is not None:
                    job.stop()
                last.wait(_POLL_S)
            except KeyboardInterrupt:  # of somebody in a hurry; it is stopping
                continue

    def _start(self) -> None:
        with self._starting:
            try:
                if self._thread.ident is None:
                    self._thread.start()
            except RuntimeError as error:  # a handler started it meanwhile, or nobody can
                if self._thread.ident is None:
                    raise EdgespecError(f"no thread can be started: {error}") from None

    def _run(self) -> None:
        while True:
            job = self._running = self._jobs.get()
            # What is put behind the last one, by a thread that looked just before the end, fails.
            job.run(Cancelled("the program is ending") if self._last_ran else None)
            self._running = None
            self._last_ran |= job is self._last
            del job  # or what it holds would live until the next one comes


_native = _NativeThread()
_loading = _NativeThread("edgespec-loading")


def _begin() -> None:
    """Have threads in a child process, which has none of its parent's."""
    global _native, _loading
    _native, _loading = _NativeThread(), _NativeThread("edgespec-loading")


def _end() -> None:
    _native.end()
    _loading.end()


atexit.register(_end)
after_fork(_begin)
