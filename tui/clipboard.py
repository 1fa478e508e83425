"""Copying through the terminal (OSC 52), with a file beside it.

A terminal doesn't say whether it took what it was sent, and over ssh there is no other way to a
clipboard. So the text goes into a file too, and the person is told where.

Invariant: the sentence that comes of copying says of no place that the text is there unless it is.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path

from edgespec.platform import cache_dir
from edgespec.terminal import printable
from edgespec.tui.files import write_whole

LIMIT_BYTES = 74_994
"""What common terminals take: 100,000 characters of base64, with room for the sequence itself."""


def copy(
    text: str,
    write: Callable[[str], object],
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
) -> Callable[[], str]:
    """Send the text to the terminal; returns what is left to do, which may take its time.

    That writes the file, on any thread, and returns a sentence that says where the text went.

    write: takes a control sequence to the terminal.
    environment: the process's variables, which tell the terminal.
    folder: for the file; None: edgespec's cache.
    """
    # Not what would be obeyed where it is pasted: control characters go as what they show as.
    data = printable(text.replace("\r\n", "\n")).encode("utf-8", "replace")
    sequence = osc52(data, environment)
    if sequence:
        write(sequence)
    size = f"{len(text):,} character{'s' * (len(text) != 1)}"
    path = (folder or cache_dir()) / "copied.txt"
    return lambda: _keep(data, path, size, sent=bool(sequence))


def _keep(data: bytes, path: Path, size: str, *, sent: bool) -> str:
    """Write the file; the sentence says what was copied and where to."""
    try:
        write_whole(path, data, private=True)
        kept = printable(str(path))
    except OSError as error:
        kept, reason = "", error.strerror or error
    if sent and kept:
        return f"Copied {size}; if your terminal doesn't paste them, they are in {kept}."
    if sent:
        return f"Copied {size} to the terminal's clipboard, if it takes them."
    why = (
        "too long for a terminal's clipboard"
        if len(data) > LIMIT_BYTES
        else "this terminal has no way to the clipboard"
    )
    if kept:
        return f"Copied {size} to {kept} ({why})."
    return f"Nothing was copied ({why}), and writing {printable(str(path))} failed: {reason}."


def osc52(data: bytes, environment: Mapping[str, str]) -> str:
    """The sequence that sets the clipboard; "" where it is too long, or the terminal has none."""
    terminal = environment.get("TERM", "")
    if len(data) > LIMIT_BYTES or terminal in ("dumb", "linux"):
        return ""
    if environment.get("TERM_PROGRAM") == "Apple_Terminal" or "STY" in environment:
        return ""  # they print or drop it
    plain = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if "TMUX" not in environment:
        return plain
    # tmux takes the plain one where `set-clipboard` is on, and hands the wrapped one through to the
    # terminal outside where `allow-passthrough` is; which of them is set can't be asked.
    doubled = plain.replace("\x1b", "\x1b\x1b")
    return f"\x1bPtmux;{doubled}\x1b\\{plain}"
