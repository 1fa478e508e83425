"""The one thread on which models compute.

OpenMP keeps a team of threads for every thread that ever called it. Where the teams outnumber the
CPUs, its waiting threads go to sleep at each barrier instead of spinning, and SmolLM2 runs at half
its speed. A chat loads in one thread and answers in another, so all passes go through this one.
Invariant: a call returns, or raises, only when the native code is done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from edgespec.errors import Cancelled

_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgespec-native")


def compute(function: Callable[..., int], *args: Any) -> int:
    """Call `function` on the native thread; raises `Cancelled` where the program is ending."""
    try:
        future = _executor.submit(function, *args)
    except RuntimeError:  # what an executor says once the interpreter shuts down
        raise Cancelled("the program is ending") from None
    try:
        return future.result()
    except BaseException:
        _finish(future)
        raise


def _finish(future: Future[int]) -> None:
    """Wait for the end, however often Ctrl+C is pressed: the caller may free what is in use."""
    while not future.done():
        try:
            wait([future])
        except KeyboardInterrupt:
            continue
