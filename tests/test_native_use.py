"""Who frees native memory, and when: other threads are waited for, one's own code never."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest
from interrupting import Interrupted, at_each_bytecode, ctrl_c

from edgespec import native_use
from edgespec.errors import ModelError
from edgespec.native_use import NativeUse


class Memory:
    """Says when it was freed, and whether somebody was using it then."""

    def __init__(self, **options: bool) -> None:
        self.users = self.freed = 0
        self.use = NativeUse("it", self.free, **options)  # type: ignore[arg-type]

    def read(self) -> None:
        with self.use():
            self.users += 1
            assert not self.freed
            self.users -= 1

    def free(self) -> None:
        assert not self.users
        self.freed += 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("then", ["read", "close"])
def test_closing_at_any_point_frees_once_and_behind_the_use(shared: bool, then: str) -> None:
    def run(interrupted: Callable[[Callable[[], None]], None]) -> None:
        memory, says = Memory(shared=shared), ""
        try:
            interrupted(memory.use.close)
            memory.read()
            if then == "close":
                memory.use.close()
        except ModelError as error:
            says = str(error)
        memory.use.close()
        assert memory.freed == 1 and says in ("", "it is closed")
        with pytest.raises(ModelError):
            memory.read()

    points = at_each_bytecode(run, native_use, Memory.read)
    assert points > 50


@pytest.mark.parametrize("shared", [False, True])
def test_ctrl_c_at_any_point_leaves_nothing_held(shared: bool) -> None:
    def run(interrupted: Interrupted) -> None:
        memory = Memory(shared=shared)
        try:
            interrupted(ctrl_c)
            with memory.use():
                memory.use.close()
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        closer = threading.Thread(target=memory.use.close, daemon=True)
        closer.start()
        closer.join(20)
        assert not closer.is_alive() and memory.freed == 1

    assert at_each_bytecode(run, native_use, raises=True) > 10


def test_what_is_needed_is_freed_behind_what_needs_it() -> None:
    needed, order = {"part"}, []
    whole = NativeUse("whole", lambda: order.append("whole"), shared=True, needed=needed)

    def free() -> None:
        order.append("part")
        needed.clear()

    part = NativeUse("part", free, then=whole.free_closed)
    with part():
        part.close()
        whole.close()
        assert order == []
    assert order == ["part", "whole"]


@pytest.mark.parametrize("shared", [False, True])
def test_another_threads_use_is_waited_for(shared: bool) -> None:
    memory = Memory(shared=shared)
    begun, stop = threading.Event(), threading.Event()
    seen: list[int] = []

    class Stopping:
        def __enter__(self) -> None:
            stop.set()

        def __exit__(self, *_: object) -> None:
            pass

    memory.use._stopping = Stopping

    def reader() -> None:
        with memory.use():
            begun.set()
            assert stop.wait(20)
            seen.append(memory.freed)

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    assert begun.wait(20)
    memory.use.close()
    assert memory.freed == 1 and seen == [0]
    thread.join(20)


def test_what_is_shared_is_used_at_the_same_time() -> None:
    memory = Memory(shared=True)
    done: list[int] = []
    with memory.use():
        thread = threading.Thread(target=lambda: (memory.read(), done.append(1)), daemon=True)
        thread.start()
        thread.join(20)
    assert done == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_neither_waits_nor_frees() -> None:
    """The thread that uses the memory isn't there to end, and the memory is its parent's."""
    memory = Memory()
    used, over = threading.Event(), threading.Event()

    def use() -> None:
        with memory.use():
            used.set()
            assert over.wait(20)

    thread = threading.Thread(target=use)
    thread.start()
    assert used.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it where it waits
        memory.use.close()
        os._exit(10 + memory.freed)
    _, status = os.waitpid(child, 0)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 10
    memory.use.close()
    assert memory.freed == 1
