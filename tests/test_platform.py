"""How many CPUs this process may use, in trees that stand for a machine's files."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec import platform
from edgespec.errors import ConfigError
from edgespec.platform import gpu_maker as GPU_MAKER  # noqa: N812 - tests stand for no GPU
from edgespec.platform.amx import present as HAS_AMX  # noqa: N812 - and for no AMX
from edgespec.platform.cuda import cuda_gpus
from edgespec.platform.memory import total_memory


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:cpu,cpuacct:/user/app\n3:memory:/user/app\n"
CASES = {
    "nothing": ({}, None),
    "no quota": (
        {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "max 100000"},
        None,
    ),
    "v2": ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "150000 100000\n"}, 1.5),
    "v2 parent": (
        {
            "proc/self/cgroup": "0::/slice/app\n",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/slice/app/cpu.max": "800000 100000",
        },
        2.0,
    ),
    "v2 root of a container": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000"},
        3.0,
    ),
    "v2 folder missing": ({"proc/self/cgroup": "0::/gone\n"}, None),
    "v2 damaged": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "x y"}, None),
    "v2 period 0": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "1 0"}, None),
    "v1": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/user/app/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/user/app/cpu.cfs_period_us": "100000\n",
        },
        2.5,
    ),
    "v1 no quota": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/user/app/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/user/app/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "v1 seen from inside": (  # the path is the host's, the mount the container's own
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n0::/docker/0123\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        4.0,
    ),
    "both": (
        {
            "proc/self/cgroup": V1 + "0::/app\n",
            "sys/fs/cgroup/app/cpu.max": "700000 100000",
            "sys/fs/cgroup/cpu,cpuacct/user/cpu.cfs_quota_us": "600000\n",
            "sys/fs/cgroup/cpu,cpuacct/user/cpu.cfs_period_us": "100000\n",
        },
        6.0,
    ),
    "not a list of groups": ({"proc/self/cgroup": "garbage\n\n1:cpu\n"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_containers_share(tmp_path: Path, case: str) -> None:
    files, share = CASES[case]
    assert platform._cgroup_cpus(machine(tmp_path, files)) == share


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"\xff\xfe")
    assert platform._cgroup_cpus(tmp_path) is None


@pytest.mark.parametrize(
    ("cpus", "share", "usable"),
    [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (8, 0.5, 1), (0, None, 1)],
)
def test_the_smaller_of_affinity_and_share(
    monkeypatch: pytest.MonkeyPatch, cpus: int, share: float | None, usable: int
) -> None:
    monkeypatch.setattr(platform, "_cgroup_cpus", lambda root: share)
    monkeypatch.setattr(os, "process_cpu_count", lambda: cpus, raising=False)
    assert platform.usable_cpus() == usable
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    assert platform.usable_cpus() == usable
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus or None)
    assert platform.usable_cpus() == usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_pinned_process_counts_its_own_cpus() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert platform.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_memory_and_functions_of_the_c_library() -> None:
    memory = total_memory()
    assert memory is None or memory > 1 << 28
    assert platform.c_function("strlen") != platform.c_function("abs") != 0


@pytest.mark.parametrize(
    ("text", "per_cent"),
    [
        ("some avg10=23.50 avg60=1.00 avg300=0.50 total=1\nfull avg10=0.00 total=0\n", 23.5),
        ("", 0.0),
        ("some avg60=1.00\n", 0.0),
        ("some avg10=much\n", 0.0),
    ],
)
def test_cpu_pressure_is_read_where_the_system_tells(
    tmp_path: Path, text: str, per_cent: float
) -> None:
    assert platform.cpu_pressure(tmp_path / "none") == 0.0
    (tmp_path / "cpu").write_text(text, encoding="ascii")
    assert platform.cpu_pressure(tmp_path / "cpu") == per_cent


def test_spinning_is_limited_on_a_busy_machine_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is as before, afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(platform, "_OWN", set())
    monkeypatch.setattr(platform, "cpu_pressure", lambda: 3.0)
    platform.limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setattr(platform, "cpu_pressure", lambda: 60.0)
    platform.limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == platform.SPINS
    assert "GOMP_SPINCOUNT" not in platform.users_environment()
    monkeypatch.setattr(platform, "_OWN", set())
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    platform.limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == platform.users_environment()["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    platform.limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_a_home_folder_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    assert platform.expanded("~/a") == Path("/home/me/a")
    assert platform.expanded("a/~b") == Path("a/~b")
    monkeypatch.setenv("EDGESPEC_CACHE", "~/c")
    assert platform.cache_dir() == Path("/home/me/c")


@pytest.mark.skipif(sys.platform == "win32", reason="any name has a home folder there")
def test_an_unknown_home_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^~no-such-user/a begins with a home folder"):
        platform.expanded("~no-such-user/a")
    monkeypatch.setenv("EDGESPEC_CACHE", "~no-such-user/c")
    with pytest.raises(ConfigError, match="isn't known here"):
        platform.cache_dir()


@pytest.mark.parametrize(
    ("system", "files", "maker"),
    [
        ("linux", [], ""),
        ("linux", ["proc/driver/nvidia/gpus/0000:01:00.0/information"], "NVIDIA"),
        ("linux", ["proc/driver/nvidia/version"], ""),  # a driver without a GPU
        ("linux", ["bin/nvidia-smi"], "NVIDIA"),  # as in Windows' Linux
        ("linux", ["dev/kfd"], "AMD"),
        ("win32", ["System32/nvcuda.dll"], "NVIDIA"),
        ("win32", ["dev/other"], ""),
        ("darwin", [], "Apple"),
        ("darwin x86_64", [], ""),
    ],
)
def test_whose_gpu_this_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, files: list[str], maker: str
) -> None:
    import platform as python_platform

    for name in [*files, "bin/other"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    name, _, architecture = system.partition(" ")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path))
    monkeypatch.setattr(python_platform, "machine", lambda: architecture or "arm64")
    monkeypatch.setattr(sys, "platform", name)
    assert GPU_MAKER(tmp_path) == maker


@pytest.mark.parametrize("held", [False, True])
def test_windows_locks_a_byte_that_nobody_reads(
    held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []

    def locking(descriptor: int, mode: int, nbytes: int) -> None:
        locked.extend(range(begin := os.lseek(descriptor, 0, os.SEEK_CUR), begin + nbytes))
        if held:
            raise PermissionError(errno.EACCES, "Permission denied")

    fake = SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", fake)  # type: ignore[arg-type]
    file = tmp_path / "results"
    file.write_bytes(b"a line\n")
    with file.open("a+b") as opened, monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        assert platform.lock_file(opened) is not held
        assert opened.tell() == 7
        opened.write(b"another\n")
    assert file.read_bytes() == b"a line\nanother\n"
    assert len(locked) == 1 and file.stat().st_size <= locked[0] < 1 << 31  # a long, there


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_terminal_that_is_gone() -> None:
    import pty

    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"typed, and not read yet")
        assert not platform.terminal_gone(theirs)
        os.close(ours)
        assert platform.terminal_gone(theirs)
    finally:
        os.close(theirs)


def test_a_native_line_is_left_out_of_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with platform.stderr_without(b"not this\n"):
        os.write(2, b"one, not this\nbut this, ")
        assert capfd.readouterr().err == ""
    os.write(2, b"two")
    assert capfd.readouterr().err == "one, but this, two"


_AMX = """
import ctypes
from edgespec.platform import amx

def asks():
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0  # ARCH_REQ_XCOMP_PERM, the tiles

with amx.withheld():
    print(asks(), amx.granted())
print(amx.granted(), asks() is amx.granted())
"""


@pytest.mark.skipif(not HAS_AMX(), reason="the processor has no AMX")
def test_amx_is_withheld_and_afterwards_granted() -> None:
    done = subprocess.run([sys.executable, "-c", _AMX], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "False", "True"], done.stderr


def test_gpus_are_called_as_nvidias_driver_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that this process may use, in its order; none where the driver fails."""
    names, fails = [b"NVIDIA A2", b"NVIDIA A10"], [0]

    class Driver:
        def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's own name
            return fails[0]

        def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
            count._obj.value = len(names)
            return 0

        def cuDeviceGet(self, device: Any, at: int) -> int:  # noqa: N802
            device._obj.value = at + 7
            return 0

        def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
            name.value = names[device.value - 7][: size - 1]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert cuda_gpus() == ["NVIDIA A2", "NVIDIA A10"]
    fails[0] = 100  # CUDA_ERROR_NO_DEVICE
    assert cuda_gpus() == []

    def missing(name: str) -> Driver:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_gpus() == []
