"""Huge pages: which memory is asked for, and that Linux then gives them."""

from __future__ import annotations

import mmap
import re
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from edgespec.platform import huge_pages as module
from edgespec.platform.huge_pages import huge_pages

SIZE = 32 << 20
ON_REQUEST = module.on_request()


@pytest.mark.parametrize(
    ("ranges", "others", "rest"),
    [
        ([(0, 9)], [], [(0, 9)]),
        ([(0, 9)], [(0, 9)], []),
        ([(0, 9)], [(3, 5)], [(0, 3), (5, 9)]),
        ([(0, 9)], [(1, 2), (4, 5)], [(0, 1), (2, 4), (5, 9)]),
        ([(2, 4), (6, 9)], [(0, 3), (8, 12)], [(3, 4), (6, 8)]),
        ([(2, 4), (4, 9)], [(3, 6)], [(2, 3), (6, 9)]),
        ([(2, 3), (5, 7)], [(0, 20)], []),
        ([(2, 3), (5, 7)], [(3, 5), (7, 8)], [(2, 3), (5, 7)]),
    ],
)
def test_what_was_there_before_is_left_out(
    ranges: list[module.Range], others: list[module.Range], rest: list[module.Range]
) -> None:
    assert list(module._without(ranges, others)) == rest


def test_the_process_s_own_memory(tmp_path: Path) -> None:
    file = tmp_path / "maps"
    file.write_bytes(
        b"1000-3000 r-xp 00000000 fd:00 17   /usr/bin/a program\n"
        b"3000-4000 rw-p 00002000 fd:00 17   /usr/bin/a program\n"
        b"5000-9000 rw-p 00000000 00:00 0    [heap]\n"
        b"a000-b000 rw-p 00000000 00:00 0 \n"
        b"b000-c000 ---p 00000000 00:00 0 \n"
        b"c000-d000 rw-s 00000000 00:01 9    /dev/zero (deleted)\n"
        b"7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0    [stack]\n"
    )
    assert module._memory(file) == [(0x5000, 0x9000), (0xA000, 0xB000)]
    assert module._memory(tmp_path / "none") == []


def test_it_is_asked_where_the_system_gives_them_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(module.SWITCH, raising=False)
    for text, asks in (
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", False),
        ("always madvise [never]\n", False),
    ):
        (tmp_path / "enabled").write_text(text)
        assert module.on_request(tmp_path / "enabled") is asks
    assert not module.on_request(tmp_path / "none")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setenv(module.SWITCH, "0")
    assert not module.on_request(tmp_path / "enabled")
    monkeypatch.delenv(module.SWITCH)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not module.on_request(tmp_path / "enabled")


@pytest.mark.skipif(not ON_REQUEST, reason="this system gives no huge pages on request")
@pytest.mark.parametrize("written", ["behind it was asked for", "before"])
def test_new_memory_lies_in_huge_pages_and_old_doesn_t(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if written == "before":
        monkeypatch.setattr(module, "_EVERY", 1e6)  # seconds: it is asked for at the end alone
        if not _can_collapse():
            pytest.skip("this Linux is older than 6.1")
    old = _memory()
    _write(old)
    lacked = _lacked()
    with huge_pages():
        new = _memory()
        end = monotonic() + 60
        while written != "before" and not _smaps(new)[1]:
            assert monotonic() < end
            sleep(0.01)
        _write(new)
    assert _smaps(old) == (0, False)
    if _lacked() > lacked:
        pytest.skip("the system has no huge pages left")
    assert _smaps(new)[0] >= SIZE // 2


@pytest.mark.skipif(not ON_REQUEST, reason="this system gives no huge pages on request")
def test_nothing_is_brought_together_for_whoever_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_EVERY", 1e6)
    with huge_pages(lambda: True):
        new = _memory()
        _write(new)
    assert _smaps(new)[0] == 0


@pytest.mark.skipif(not ON_REQUEST, reason="this system gives no huge pages on request")
def test_what_fails_within_goes_on() -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match="no model"), huge_pages():
        assert threading.active_count() == threads + 1
        raise ValueError("no model")
    assert threading.active_count() == threads


def _memory() -> mmap.mmap:
    return mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _write(memory: mmap.mmap) -> None:
    for page in range(0, SIZE, 4096):
        memory[page] = 1


def _smaps(memory: mmap.mmap) -> tuple[int, bool]:
    """Bytes of a memory's middle that lie in huge pages, and whether they were asked for."""
    import ctypes

    middle = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + SIZE // 2
    within = False
    huge = 0
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(found[1], 16) <= middle < int(found[2], 16)
        elif within and line.startswith("AnonHugePages:"):
            huge = int(line.split()[1]) * 1024
        elif within and line.startswith("VmFlags:"):
            return huge, "hg" in line.split()
    raise AssertionError("the memory isn't there")


def _lacked() -> int:
    """How often the system had no huge page for somebody."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text("utf-8").splitlines())
    return sum(
        int(counts.get(f"thp_{name}", 0)) for name in ("fault_fallback", "collapse_alloc_failed")
    )


def _can_collapse() -> bool:
    import platform

    version = [int(part) for part in re.findall(r"\d+", platform.release())[:2]]
    return version >= [6, 1]
