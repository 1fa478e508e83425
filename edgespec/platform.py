"""What differs between operating systems: CPUs this process may use, memory, native functions.

Invariant: every question has an answer everywhere; where a system doesn't tell, the answer is the
plain default and no error.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def usable_cpus() -> int:
    """CPUs this process may use: its affinity, and a container's share where one is set."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_cpus(Path("/"))
    return max(1, min(count, int(quota))) if quota is not None else max(1, count)


def _cgroup_cpus(root: Path) -> float | None:
    """The CPU quota of this process's control group, in CPUs (Linux, versions 2 and 1)."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return None
    quotas: list[float] = []
    for line in groups:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _quotas_upwards(root / "sys/fs/cgroup", path, "cpu.max", None)
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            quotas += _quotas_upwards(base, path, "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min(quotas, default=None)


def _quotas_upwards(base: Path, path: str, quota_file: str, period_file: str | None) -> list[float]:
    """Every limit from the group itself up to the root; each one binds."""
    found = []
    group = base / path.strip("/")
    for folder in [group, *group.parents]:
        try:
            words = (folder / quota_file).read_text().split()
            if period_file is not None:
                words += (folder / period_file).read_text().split()
            if len(words) == 2 and words[0] not in ("max", "-1"):
                found.append(int(words[0]) / int(words[1]))
        except (OSError, ValueError, ZeroDivisionError):
            pass
        if folder == base:
            break
    return found


def total_memory() -> int | None:
    """Bytes of physical memory, where the system tells."""
    try:
        if sys.platform == "win32":
            return _windows_memory()
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _windows_memory() -> int | None:
    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        ]

    status = Status(length=ctypes.sizeof(Status))
    kernel32 = ctypes.CDLL("kernel32")
    return int(status.total) if kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def cache_dir() -> Path:
    """Where downloads and measurements are kept: EDGESPEC_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("EDGESPEC_CACHE"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgespec", appauthor=False))


def c_function(name: str) -> int:
    """The address of a function of the C library."""
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
