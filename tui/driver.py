"""How the screen reaches a terminal, and the keys the chat.

Invariant: the screen is drawn on stdout, which `line_chat_reason` looked at, wherever stderr leads;
neither a write to a terminal that is gone nor a byte that isn't UTF-8 is a failure.
"""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from textual.driver import Driver


class Drawing:
    """The file that a driver draws on, without a buffer; what it doesn't take is dropped.

    Textual's thread that writes would end with the first failure, and the screen then wait for it.
    """

    def __init__(self, file: TextIO) -> None:
        self._descriptor = file.fileno()

    def write(self, text: str) -> None:
        """Draw."""
        left = memoryview(text.encode("utf-8", "replace"))
        with suppress(OSError):
            while left:
                left = left[os.write(self._descriptor, left) :]

    def flush(self) -> None:
        """Nothing waits."""

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor


def on_stdout(driver: type[Driver]) -> type[Driver]:
    """A driver like Textual's for this system, that keeps to this module's invariant.

    Other drivers (Windows' draws on stdout by itself, and tests have one without a terminal) stay.
    """
    if sys.platform == "win32":
        return driver
    from textual.drivers import linux_driver

    if driver is not linux_driver.LinuxDriver:
        return driver
    # Its thread that reads keys decodes strictly, and any failure there ends the app.
    vars(linux_driver)["getincrementaldecoder"] = _lenient

    class StdoutDriver(linux_driver.LinuxDriver):
        """Draws on stdout."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if sys.__stdout__ is not None:
                self._file: Any = Drawing(sys.__stdout__)

    return StdoutDriver


def _lenient(encoding: str) -> partial[codecs.IncrementalDecoder]:
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")
