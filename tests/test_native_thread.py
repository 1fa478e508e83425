"""The native thread: nothing runs there any more when its caller goes on."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupting import Interrupted, at_each_bytecode, ctrl_c

from edgespec.backends import native_thread
from edgespec.backends.native_thread import compute


def test_ctrl_c_at_any_point_waits_for_the_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed there, and once more while it is waited for."""
    monkeypatch.setattr(native_thread, "_POLL_S", 0.0)

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

    points = at_each_bytecode(run, native_thread, ThreadPoolExecutor.submit, raises=True)
    assert points > 20


def test_what_fails_by_itself_is_not_stopped() -> None:
    stopped: list[int] = []
    with pytest.raises(ZeroDivisionError):
        compute(divmod, 1, 0, stop=lambda: stopped.append(1))
    assert not stopped
    assert compute(divmod, 7, 2) == (3, 1)
