"""Weights in huge pages (Linux), where the system gives them to memory that asks for them.

Each token reads all weights. In pages of 4 KiB the processor keeps looking up where the next one
lies, and a pass over 4-bit weights can take a fifth longer (docs/performance.md). The native
libraries don't ask, so it is asked for the memory that they take while they load.

Invariant: only memory that came while `huge_pages` was on is asked for; what the system refuses
stays as it is, and nothing here raises.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

Range = tuple[int, int]  # from an address, to before another

SWITCH = "EDGESPEC_HUGE_PAGES"
"""The environment variable that, set to 0, leaves memory as the system gives it."""

_HUGE = 2 << 20  # bytes; where huge pages are larger than this, it is asked in vain
_EVERY = 0.01  # seconds between two looks: memory that is filled before the next has small pages
_LONGEST = 4.0  # seconds that may go into bringing those together
_ADVISE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE, see madvise(2)


@contextmanager
def huge_pages(stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Within, memory that this process takes is asked to lie in huge pages.

    What is asked for before it is written to costs nothing. What was written already is copied at
    the end, in some seconds at most and until `stopped`, where Linux can (6.1 or later). Nothing is
    done where the system gives huge pages to all memory or to none.
    """
    before = _memory() if on_request() else []
    if not before:
        yield
        return
    stop = threading.Event()

    def look() -> None:
        asked: set[Range] = set()
        pause = _EVERY
        while not stop.wait(pause):
            began = perf_counter()
            for part in _new(before):
                if part not in asked:
                    asked.add(part)
                    _advise(part, _ADVISE)
            pause = max(_EVERY, 10 * (perf_counter() - began))

    looking = threading.Thread(target=look, name="edgespec-huge-pages", daemon=True)
    try:
        with suppress(RuntimeError):  # no thread is to be had
            looking.start()
        yield
    finally:
        stop.set()
        if looking.ident is not None:
            looking.join()
    _collapse(before, stopped)


def on_request(file: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> bool:
    """Whether Linux gives huge pages to memory that asks, and to no other.

    (https://docs.kernel.org/admin-guide/mm/transhuge.html)
    """
    if sys.platform != "linux" or os.environ.get(SWITCH) == "0":
        return False
    try:
        return "[madvise]" in file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False


def _collapse(before: Sequence[Range], stopped: Callable[[], bool]) -> None:
    """Bring what was written in small pages together, while there is time."""
    began = perf_counter()
    for begin, end in _new(before):
        _advise((begin, end), _ADVISE)
        for page in range(begin, end, _HUGE):
            if stopped() or perf_counter() - began > _LONGEST:
                return
            _advise((page, page + _HUGE), _COLLAPSE)


def _new(before: Sequence[Range]) -> Iterator[Range]:
    """Whole huge pages of the process's memory that weren't there `before`, by address."""
    for begin, end in _without(_memory(), before):
        first, last = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if first < last:
            yield first, last


def _memory(file: Path = Path("/proc/self/maps")) -> list[Range]:
    """The process's private memory that is no file's, by address (proc_pid_maps(5))."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == b"rw-p" and inode == b"0" and not (name and name[0].startswith(b"[stack")):
            begin, _, end = place.partition(b"-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """What of `ranges` lies in none of the `others`; both in order, and so is what comes."""
    at = 0
    for begin, end in ranges:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        look = at
        while look < len(others) and others[look][0] < end:
            if others[look][0] > begin:
                yield begin, others[look][0]
            begin = max(begin, others[look][1])
            look += 1
        if begin < end:
            yield begin, end


def _advise(part: Range, advice: int) -> None:
    """Give the system an advice on whole pages; what it can't follow it leaves."""
    begin, end = part
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
