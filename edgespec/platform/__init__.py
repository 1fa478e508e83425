"""What differs between operating systems: CPUs, folders, file locks, native functions.

Invariant: every question has an answer everywhere; where a system doesn't tell, the answer is the
plain default and no error. A path that a person wrote is the one thing refused here.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edgespec.errors import ConfigError

_OWN: set[str] = set()  # environment variables that edgespec set

SPINS = "1000"
"""Turns that a thread of GNU's OpenMP waits for the others before it sleeps, on a busy machine."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that say how long OpenMP's threads wait before they sleep."""
_LOCKED_BYTE = 0x7FFF_FFFE
"""Windows keeps everybody from the bytes that are locked: one that no file of ours has."""
_PRESSED = 20.0  # per cent of the time in which something waited for a processor


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


def expanded(path: Path | str) -> Path:
    """The path with its `~` or `~name` replaced by that home folder.

    Raises ConfigError where the system knows no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} begins with a home folder that isn't known here: write the whole path"
        ) from None


def cache_dir() -> Path:
    """Where downloads and measurements are kept: EDGESPEC_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("EDGESPEC_CACHE"):
        return expanded(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgespec", appauthor=False))


def lock_file(file: IO[bytes]) -> bool:
    """Take the one lock there is on an open file; False where another process has it.

    The system frees it when the file is closed, also when its process is killed. Others may read
    and write the file all the same.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            position = file.tell()
            file.seek(_LOCKED_BYTE)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            finally:
                file.seek(position)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Windows says "permission denied" for a lock that is held; some network disks have none.
        return error.errno not in (errno.EACCES, errno.EDEADLK)
    return True


def data_dir() -> Path:
    """Where what the person wrote is kept: EDGESPEC_DATA, or the user's data folder."""
    if chosen := os.environ.get("EDGESPEC_DATA"):
        return expanded(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("edgespec", appauthor=False))


def config_dir() -> Path:
    """Where settings are kept: EDGESPEC_CONFIG, or the user's configuration folder."""
    if chosen := os.environ.get("EDGESPEC_CONFIG"):
        return expanded(chosen)
    import platformdirs

    return Path(platformdirs.user_config_dir("edgespec", appauthor=False))


def c_function(name: str) -> int:
    """The address of a function of the C library."""
    import ctypes

    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


def after_fork(call: Callable[[], None]) -> None:
    """Have it called in every child process made by forking, where a system can fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def terminal_gone(descriptor: int) -> bool:
    """Whether the terminal behind a descriptor was hung up; False where a system doesn't tell."""
    import select

    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always told
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def limit_spinning() -> None:
    """On a busy machine, have OpenMP threads that wait for each other give the processor up soon.

    GNU's OpenMP spins for milliseconds, which is fastest where the processors are free. Where
    another program has the one that the awaited thread needs, every operation then takes a time
    slice, and a model runs many times slower. Works before libgomp is loaded; whoever set the
    environment is left alone (https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html).
    """
    pressed = cpu_pressure() > _PRESSED
    if pressed and not os.environ.keys() & WAITING:
        set_spins(SPINS)


def set_spins(turns: str | None) -> None:
    """Have threads of GNU's OpenMP wait so many turns before they sleep; None: as many as it likes.

    Works before libgomp is loaded, and is for where the person set nothing.
    """
    _OWN.add("GOMP_SPINCOUNT")
    if turns is None:
        os.environ.pop("GOMP_SPINCOUNT", None)
    else:
        os.environ["GOMP_SPINCOUNT"] = turns


def cpu_pressure(file: Path = Path("/proc/pressure/cpu")) -> float:
    """Per cent of the last ten seconds in which some program waited for a processor.

    Linux tells (https://docs.kernel.org/accounting/psi.html); 0 where a system doesn't.
    """
    try:
        fields = file.read_text(encoding="ascii").split("\n", 1)[0].split()
        return float(next(f for f in fields if f.startswith("avg10=")).removeprefix("avg10="))
    except (OSError, ValueError, StopIteration):
        return 0.0


def users_environment() -> dict[str, str]:
    """The environment as it was before edgespec set anything, for other programs."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def cpu_name() -> str:
    """What the processor calls itself, or its architecture where the system doesn't tell."""
    import platform
    import subprocess

    name = ""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
        elif sys.platform != "win32":
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
            name = next(named, "")
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return name.strip() or platform.processor() or platform.machine()


def gpu_maker(root: Path = Path("/")) -> str:
    """Whose GPU this machine seems to have: "NVIDIA", "AMD" or "Apple"; "" where nothing says so.

    Told by what its driver leaves on the disk, so that no library is loaded for it.
    """
    import platform
    import shutil

    if sys.platform == "darwin":
        return "Apple" if platform.machine() == "arm64" else ""
    traces = [root / "proc/driver/nvidia/gpus"]
    if sys.platform == "win32":
        traces = [Path(os.environ.get("SYSTEMROOT", "C:/Windows"), "System32", "nvcuda.dll")]
    if any(map(_holds_anything, traces)) or shutil.which("nvidia-smi"):
        return "NVIDIA"
    return "AMD" if os.path.exists(root / "dev/kfd") else ""  # noqa: PTH110 - never raises


def _holds_anything(path: Path) -> bool:
    """Whether it is a file, or a folder with something in it."""
    try:
        return path.is_file() or any(path.iterdir())
    except OSError:
        return False


@contextmanager
def stderr_without(line: bytes) -> Iterator[None]:
    """Within, what native code prints on stderr waits for the end, and comes without `line`.

    For one thread at a time.
    """
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as waiting:
        try:
            os.dup2(waiting.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            waiting.seek(0)
            printed = waiting.read().replace(line, b"")
            while printed:
                printed = printed[os.write(kept, printed) :]
            os.close(kept)
