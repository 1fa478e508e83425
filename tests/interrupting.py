"""Runs something once for each of its bytecodes, each time with a signal handler in front of it."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

import pytest

_LONG_ENOUGH = 60.0  # seconds in which one run ends, unless it waits for itself

Interrupted = Callable[[Callable[[], None]], None]
"""Called with the handler, from when on it may come."""


def ctrl_c() -> NoReturn:
    """Python's own handler of Ctrl+C."""
    raise KeyboardInterrupt


def at_each_bytecode(
    run: Callable[[Interrupted], None],
    *where: ModuleType | FunctionType | CodeType,
    raises: bool = False,
) -> int:
    """At how many bytecodes of `where` (modules, functions) the handler came.

    `run` is a test of one such moment: it names the handler, does what is interrupted, and looks at
    what came of it. As real handlers, ours runs between two bytecodes, on top of the code's own
    frame; unlike them it can come before every single one. Fails where a run waits forever.
    With `raises`, what the handler raises goes on from there, and it only comes where Python looks
    for signals: code can't be made safe elsewhere.
    """
    files = {one.__file__ for one in where if isinstance(one, ModuleType)}
    codes = {one.__code__ for one in where if isinstance(one, FunctionType)}
    point = 0
    errors: list[BaseException] = []

    def once(at: int) -> bool:
        """Whether there was an `at`-th bytecode."""
        handler: Callable[[], None] | None = None
        seen = 0
        looks: dict[int, bool] = {}  # by frame: whether Python looks for signals now

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in files and frame.f_code not in codes:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event != "opcode":
                looks[id(frame)] = event == "call"
            else:
                comes = not raises or looks[id(frame)]
                looks[id(frame)] = _looks_behind(dis.opname[frame.f_code.co_code[frame.f_lasti]])
                seen += comes
                if comes and seen == at and handler is not None:
                    try:
                        handler()
                    except BaseException as error:
                        if raises:
                            raise
                        errors.append(error)
            return trace

        def interrupted(by: Callable[[], None]) -> None:
            nonlocal handler
            handler = by
            # Else 3.12 tells of no bytecode (https://github.com/python/cpython/issues/114480).
            sys._getframe().f_trace_opcodes = True
            sys.settrace(trace)

        try:
            run(interrupted)
        finally:
            sys.settrace(None)
        return seen >= at

    def every() -> None:
        nonlocal point
        try:
            while once(point + 1) and not errors:
                point += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=every, daemon=True)
    thread.start()
    while thread.is_alive():
        before = point
        thread.join(_LONG_ENOUGH)
        if thread.is_alive() and point == before:
            pytest.fail(f"waits for itself when interrupted before bytecode {point + 1}")
    if errors:
        raise errors[0]
    return point


def _looks_behind(opcode: str) -> bool:
    """Whether Python looks for signals behind it: behind calls, jumps back and at a start."""
    if opcode.startswith("CALL_INTRINSIC"):
        return False
    return opcode.startswith(("CALL", "RESUME", "YIELD")) or "JUMP_BACKWARD" in opcode
