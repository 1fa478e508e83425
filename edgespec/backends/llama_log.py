"""What llama.cpp says, and its start.

Invariant: nothing that it says reaches stdout or stderr by itself; it goes to `logging`, and the
first lines of a failure stay here for the message about it.
"""

from __future__ import annotations

import ctypes
import logging
import re
import weakref
from typing import Any

from edgespec import platform
from edgespec.backends.llama_lib import lib

logger = logging.getLogger("edgespec.llama")
logger.addHandler(logging.NullHandler())  # or Python prints what nobody asked for on stderr

_LEVELS = {3: logging.INFO, 4: logging.WARNING}  # llama.cpp's warnings are mostly chatter
_CONTINUED = 5


class _NativeLog:
    """Native log lines, as they come in pieces, to `logging`."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.gpu_errors: list[str] = []  # of passes, which clear it on their thread
        self._line = ""
        self._level = logging.DEBUG
        self.callback = lib.llama_log_callback(self._add)  # must outlive every native call

    def last_error(self) -> str:
        return self.errors[0] if self.errors else "it gave no reason"  # the rest follow from it

    def gpu_error(self) -> str:
        """What a GPU said that failed in a pass; "" where none did.

        Metal only queues a pass. That it failed is logged when its rows are waited for, behind a
        return code that says it went well (`ggml_metal_synchronize`).
        """
        return ", ".join(self.gpu_errors[:2])

    def _add(self, level: int, text: bytes, _: Any) -> None:
        if level != _CONTINUED:
            self._level = _LEVELS.get(level, logging.DEBUG)
        self._line += text.decode("utf-8", "replace")
        *lines, self._line = self._line.split("\n")
        for line in filter(str.strip, lines):
            if self._level >= logging.WARNING:
                self.errors = [*self.errors[:8], line.strip()]
                if self.gpu_errors or line.startswith("ggml_metal"):
                    self.gpu_errors = [*self.gpu_errors[:8], line.strip()]
            logger.log(self._level, "%s", line.rstrip())


def lacks_memory(said: str) -> bool:
    """Whether that is what llama.cpp says of a failure."""
    return bool(re.search("alloc|memory", said, re.IGNORECASE))


log = _NativeLog()
_started = False


def start_backend() -> _NativeLog:
    """Make llama.cpp ready, once; the log that its messages go to."""
    global _started
    if not _started:
        lib.llama_log_set(log.callback, ctypes.c_void_p(0))
        lib.llama_backend_init()
        # The interpreter is gone before the native libraries are: whatever they still say then
        # goes to `abs`, which takes the level and ignores the rest.
        silent = lib.llama_log_callback(platform.c_function("abs"))
        weakref.finalize(log, lib.llama_log_set, silent, ctypes.c_void_p(0))
        _started = True
    return log
