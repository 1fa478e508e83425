"""The one thread on which models of llama.cpp compute, and long passes of ONNX Runtime.

OpenMP keeps a team of threads for every thread that ever called it. Where the teams outnumber the
CPUs, its waiting threads go to sleep at each barrier instead of spinning, and SmolLM2 runs at half
its speed. A chat loads in one thread and answers in another, so all of llama.cpp's passes go
through this one. ONNX Runtime has a pool of its own: its long passes come here to be stopped early,
and a daemon thread's so that the program doesn't end inside them.
Invariant: a call returns, or raises, only when the native code is done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from edgespec.errors import Cancelled

_T = TypeVar("_T")
_POLL_S = 0.02

_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgespec-native")


def compute(
    function: Callable[..., _T],
    *args: Any,
    watch: Callable[[], None] | None = None,
    stop: Callable[[], None] = lambda: None,
) -> _T:
    """Call `function` on the native thread; raises `Cancelled` where the program is ending.

    `watch` is called every 20 ms meanwhile; `stop` when the wait is broken off, as by Ctrl+C, to
    make the native code return early.
    """
    try:
        future = _executor.submit(function, *args)
    except RuntimeError:  # what an executor says once the interpreter shuts down
        raise Cancelled("the program is ending") from None
    try:
        while watch is not None and not wait([future], _POLL_S).done:
            watch()
        return future.result()
    except BaseException:
        stop()
        _finish(future)
        raise


def _finish(future: Future[Any]) -> None:
    """Wait for the end, however often Ctrl+C is pressed: the caller may free what is in use."""
    while not future.done():
        try:
            wait([future])
        except KeyboardInterrupt:
            continue
