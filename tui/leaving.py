"""Running the chat until it is left, and what is left to do then.

Invariant: all that was said is on the disk at the end, or stderr says what isn't; native code that
doesn't end in a moment isn't waited for.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from edgespec.terminal import printable
from edgespec.tui.saving import StillSaving

if TYPE_CHECKING:
    from edgespec.tui.app import ChatApp

_PATIENCE = 0.5
"""Seconds that leaving waits for models that are computing or loading."""


def run(app: ChatApp) -> int:
    """Run the chat until the person leaves; returns the exit status, 1 where something isn't saved.

    Where native code is still at work, this ends the process: everything worth keeping is on the
    disk, and the terminal is as it was.
    """
    try:
        app.run()
    finally:
        failures = _keep(app)
    _tell(app.failure, app.unsaved)
    status = app.return_code or int(bool(app.unsaved or failures))
    if not app.bridge.close(_PATIENCE):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a terminal that is gone
                stream.flush()
        os._exit(status)
    return status


def _keep(app: ChatApp) -> list[str]:
    """Have all that was said on the disk, however the chat was left; a long wait is told.

    Returns what went wrong with settings, exports and copies, which is told too.
    """
    app.take_last_words()
    history = app.stores.history
    if history is not None:
        try:
            history.saving.settle()
        except StillSaving:
            _tell("the disk is still saving the last turn; waiting for it")
        history.close()
        history.saving.failures()  # raises what went wrong beside the disk
    app.stores.writing.settle(forever=True)
    failures = app.stores.writing.failures()
    _tell(*failures)
    return failures


def _tell(*sentences: str) -> None:
    """Tell on stderr what isn't empty; where it is a terminal that is gone, nobody."""
    with suppress(OSError):
        for sentence in filter(None, sentences):
            print(printable(f"edgespec: {sentence}"), file=sys.stderr)
