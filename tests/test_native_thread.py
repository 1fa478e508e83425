"""The native thread: nothing runs there any more when its caller goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupting import Interrupted, at_each_bytecode, ctrl_c
from tiny_gguf import write_tiny
from tiny_onnx import write_tiny_onnx

from edgespec.backends import LoadOptions, load_model, native_thread
from edgespec.backends.native_thread import compute
from edgespec.errors import Cancelled, EdgespecError
from edgespec.session import CancelFlag


def test_ctrl_c_at_any_point_waits_for_the_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed there, and once more while it is waited for."""
    monkeypatch.setattr(native_thread, "_LOOK_S", 0.001)

    def run(interrupted: Interrupted) -> None:
        running, stop = threading.Event(), threading.Event()
        steps: list[str] = []

        def native() -> None:
            steps.append("begins")
            running.set()
            assert stop.wait(20)
            steps.append("ends")

        def watch() -> None:
            assert running.wait(20)
            raise KeyboardInterrupt

        try:
            interrupted(ctrl_c)
            compute(native, watch=watch, stop=stop.set)
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        seen = list(steps)
        stop.set()
        compute(list)  # what was left behind runs before it
        assert seen == steps and steps in ([], ["begins", "ends"])

    points = at_each_bytecode(run, native_thread, raises=True)
    assert points > 15


@pytest.mark.parametrize("given_up", [False, True])
def test_no_wait_is_without_limit(monkeypatch: pytest.MonkeyPatch, given_up: bool) -> None:
    """On Windows, Ctrl+C is seen only between waits."""
    waits: list[float] = []
    seen, stop = threading.Event(), threading.Event()
    wait = native_thread._Job.wait

    def watched(job: Any, *seconds: float) -> bool:
        waits.extend(seconds or [-1])
        if len(waits) > 3:
            seen.set()
        return wait(job, *seconds)

    def interrupt() -> None:
        raise KeyboardInterrupt

    def native() -> None:
        if given_up:
            assert stop.wait(20)
        seen.wait(3)  # the test fails where that is in vain

    monkeypatch.setattr(native_thread._Job, "wait", watched)
    monkeypatch.setattr(native_thread, "_LOOK_S", 0.001)
    if given_up:
        with pytest.raises(KeyboardInterrupt):
            compute(native, watch=interrupt, stop=stop.set)
    else:
        compute(native)
    assert seen.is_set() and min(waits) > 0


@pytest.fixture(params=["GGUF", "ONNX"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, CancelFlag]]:
    cancel = CancelFlag()
    path = (
        write_tiny(tmp_path / "tiny.gguf")
        if request.param == "GGUF"
        else write_tiny_onnx(tmp_path / "tiny")
    )
    model = load_model(path, LoadOptions(threads=1), cancel)
    yield model.session, cancel
    model.close()


@pytest.mark.parametrize("closed", [False, True])
def test_a_pass_that_waits_for_its_turn_can_be_left(
    session: tuple[Any, CancelFlag], closed: bool
) -> None:
    """As of a second runtime, while the first one reads a long prompt."""
    waiting, cancel = session
    running, over, left = threading.Event(), threading.Event(), threading.Event()
    failed: list[Exception] = []

    def first() -> None:
        compute(lambda: (running.set(), over.wait(20)))

    def second() -> None:
        try:
            waiting.forward([5] * 40)
        except Exception as error:
            failed.append(error)
        left.set()

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert running.wait(20)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    while native_thread._native._jobs.empty():
        time.sleep(0.001)
    if closed:
        threads.append(threading.Thread(target=waiting.close))
        threads[2].start()
    else:
        cancel.set()
    try:
        assert left.wait(10)  # the first one still runs
        if closed:
            threads[2].join(10)
            assert not threads[2].is_alive()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [type(error) for error in failed] == [Cancelled]
    if not closed:
        cancel.clear()
        assert waiting.length == 0
        assert waiting.forward([5] * 40).shape == (1, waiting.vocab_size)


def test_what_fails_by_itself_is_not_stopped() -> None:
    stopped: list[int] = []
    with pytest.raises(ZeroDivisionError):
        compute(divmod, 1, 0, stop=lambda: stopped.append(1))
    assert not stopped
    assert compute(divmod, 7, 2) == (3, 1)


def test_a_model_is_loaded_while_another_computes() -> None:
    running, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=compute, args=(lambda: (running.set(), over.wait(20)),))
    thread.start()
    assert running.wait(20)
    assert native_thread.load(int) == 0
    assert thread.is_alive()
    over.set()
    thread.join()


@pytest.mark.parametrize("call", ["compute", "load"])
def test_a_program_does_not_end_inside_of_native_code(call: str) -> None:
    """Though nothing waits for a daemon thread; and what comes later is refused."""
    code = """
import atexit, threading, time
from edgespec.errors import Cancelled

def refused():  # registered first, so it is called behind the thread's own end
    try:
        call(print, "never")
    except Cancelled as error:
        print(error)

atexit.register(refused)
from edgespec.backends.native_thread import CALL as call

running = threading.Event()

def native():
    running.set()
    time.sleep(0.5)
    print("done")

threading.Thread(target=call, args=(native,), daemon=True).start()
running.wait()
"""
    assert _output(code.replace("CALL", call)) == ["done", "the program is ending"]


def test_the_end_stops_what_runs_however_often_ctrl_c_is_pressed() -> None:
    thread = native_thread._NativeThread()
    running, over = threading.Event(), threading.Event()
    pressed: list[int] = []

    def native() -> None:
        running.set()
        assert over.wait(20)

    def stop() -> None:
        pressed.append(1)
        if len(pressed) == 1:
            raise KeyboardInterrupt
        over.set()

    job: native_thread._Job[None] = native_thread._Job(native, (), stop)
    thread.put(job)
    assert running.wait(20)
    thread.end()
    assert job.done and len(pressed) >= 2
    with pytest.raises(Cancelled, match="ending"):
        thread.put(native_thread._Job(native))
    late: native_thread._Job[None] = native_thread._Job(native)
    thread._jobs.put(late)  # by a thread that looked whether it had ended just before it did
    assert late.wait(20)
    with pytest.raises(Cancelled, match="ending"):
        late.result()


def test_a_thread_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(EdgespecError, match="no thread can be started: can't start new thread"):
        native_thread._NativeThread().put(native_thread._Job(list))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_a_forked_process_has_a_native_thread_of_its_own() -> None:
    code = """
import os
from edgespec.backends.native_thread import compute

assert compute(os.getpid) == os.getpid()
child = os.fork()
if not child:
    print(compute(os.getpid) == os.getpid(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert _output(code) == ["True"]


def _output(code: str) -> list[str]:
    run = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
