"""How much memory the machine has, and how much of it this process holds.

Invariant: None where a system doesn't tell, and no error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def total_memory() -> int | None:
    """Bytes of physical memory, where the system tells."""
    try:
        if sys.platform == "win32":
            return _windows_memory()
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _windows_memory() -> int | None:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        ]

    status = Status(length=ctypes.sizeof(Status))
    kernel32 = ctypes.CDLL("kernel32")
    return int(status.total) if kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def resident_memory() -> int | None:
    """Bytes of memory that this process holds now, where the system tells."""
    try:
        if sys.platform == "win32":
            return _windows_working_set()
        if sys.platform == "darwin":
            return _mac_resident()
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, IndexError, OSError):
        return None


def _windows_working_set() -> int | None:
    import ctypes

    class Counters(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_ulong),
            ("faults", ctypes.c_ulong),
            *((name, ctypes.c_size_t) for name in ("peak", "now", *"abcdef")),
        ]

    counters = Counters(size=ctypes.sizeof(Counters))
    kernel32 = ctypes.CDLL("kernel32")
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    told = kernel32.K32GetProcessMemoryInfo(
        ctypes.c_void_p(kernel32.GetCurrentProcess()), ctypes.byref(counters), counters.size
    )
    return int(counters.now) if told else None


def _mac_resident() -> int | None:
    """By `proc_pidinfo` with PROC_PIDTASKINFO (4), whose second field is the resident size."""
    import ctypes

    info = (ctypes.c_uint64 * 12)()
    size = ctypes.CDLL(None).proc_pidinfo(os.getpid(), 4, ctypes.c_uint64(0), info, 96)
    return int(info[1]) if size == 96 else None
