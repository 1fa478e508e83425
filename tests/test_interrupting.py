"""The helper that interrupts at each bytecode: it tells of runs that wait for themselves alone."""

from __future__ import annotations

import threading
import time

import interrupting
import pytest
from interrupting import Interrupted, at_each_bytecode


def steps(n: int) -> int:
    for _ in range(3):
        n = n * 2 + 1
    return n


def test_every_bytecode_is_come_before() -> None:
    before: list[int] = []

    def run(interrupted: Interrupted) -> None:
        came: list[None] = []
        interrupted(lambda: came.append(None))
        assert steps(1) == 15
        before.append(len(came))

    points = at_each_bytecode(run, steps)
    assert points > 20
    assert before == [1] * points + [0]  # the last finds no bytecode any more


def test_one_that_waits_for_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupting, "_LONG_ENOUGH", 2.0)
    ends = threading.Event()

    def handler() -> None:
        ends.wait(60)

    def run(interrupted: Interrupted) -> None:
        interrupted(handler)
        steps(1)

    try:
        with pytest.raises(pytest.fail.Exception, match=r"interrupted before bytecode 1$"):
            at_each_bytecode(run, steps)
    finally:
        ends.set()


def test_runs_that_take_long_together_are_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupting, "_LONG_ENOUGH", 1.0)

    def run(interrupted: Interrupted) -> None:
        interrupted(lambda: time.sleep(0.05))
        steps(1)

    assert at_each_bytecode(run, steps) > 20
