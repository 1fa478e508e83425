"""AMX, Intel's instructions for matrix tiles, which Linux grants to a process that asks for them.

Invariant: nothing here asks for it (https://docs.kernel.org/arch/x86/xstate.html).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TILES = 18  # XFEATURE_XTILEDATA
_ARCH_PRCTL = 158  # on x86-64


def present() -> bool:
    """Whether the processor has it (Linux tells)."""
    try:
        return " amx_int8" in Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except (OSError, ValueError):
        return False


def granted() -> bool:
    """Whether Linux lets this process use AMX's tiles already: something in it has asked."""
    if sys.platform != "linux":
        return False
    bits, get_permissions = ctypes.c_uint64(0), 0x1022  # ARCH_GET_XCOMP_PERM
    call = ctypes.CDLL(None).syscall
    failed = call(_ARCH_PRCTL, get_permissions, ctypes.byref(bits))
    return not failed and bool(bits.value >> _TILES & 1)


@contextmanager
def withheld() -> Iterator[None]:
    """Within, Linux refuses AMX to whatever in this process asks for it.

    It does so as long as some thread's stack for signals is too small for the state of the tiles;
    here this thread's is.
    """

    class Stack(ctypes.Structure):  # stack_t, see sigaltstack(2)
        _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    if sys.platform != "linux":
        yield
        return
    room = ctypes.create_string_buffer(8192)  # enough for a signal's frame without tiles
    before, small = Stack(), Stack(ctypes.addressof(room), 0, len(room))
    sigaltstack = ctypes.CDLL(None).sigaltstack
    sigaltstack(ctypes.byref(small), ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)
