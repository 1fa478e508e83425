"""Text on its way to a terminal, and what a terminal can.

Invariant: nothing a model, a file or a path says reaches a terminal as a control sequence; it is
shown as what it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

# Line feed and tab stay. The other C0 controls show as their Unicode pictures, C1 controls (which
# start sequences too) as the replacement character.
_SHOWN = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
)


def printable(text: str) -> str:
    """The text with every control character made visible; safe for any piece of a stream."""
    return text.translate(_SHOWN)


def columns(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """The lines of a table, its columns as wide as a terminal shows their widest cell.

    numbers: every cell but the first of a row stands at the right of its column.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = []
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            gap = " " * (width - cell_len(cell))
            padded.append(gap + cell if numbers and number else cell + gap)
        yield "  ".join(padded).rstrip()


def table_width(rows: Sequence[Sequence[str]]) -> int:
    """The terminal's columns that `columns` takes for a table."""
    return max(map(_cells, columns(rows)), default=0)


def narrowed(
    rows: Sequence[tuple[str, ...]], less: Sequence[str], room: int | None
) -> tuple[list[tuple[str, ...]], list[str]]:
    """A table without columns of `less`, named in its first row, and their names.

    The first ones go first, until what is left is as wide as `room` or they are gone; None is room
    for all.
    """
    left, gone = list(rows), []
    for name in less:
        if room is None or table_width(left) <= room:
            break
        if name in left[0]:
            gone.append(name)
            at = left[0].index(name)
            left = [(*cells[:at], *cells[at + 1 :]) for cells in left]
    return left, gone


def columns_of(stream: TextIO) -> int | None:
    """How many columns a terminal has; None where the stream is none, or nobody knows."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def line_chat_reason(
    environment: Mapping[str, str], streams: Sequence[TextIO | None] | None = None
) -> str:
    """Why a whole screen can't be drawn here, in a sentence; "" where it can.

    `streams` are input and output (None: those of this process).
    """
    streams = (sys.stdin, sys.stdout) if streams is None else streams
    if not all(stream is not None and stream.isatty() for stream in streams):
        return "this is no terminal"
    if environment.get("TERM", "" if sys.platform != "win32" else "windows") in ("", "dumb"):
        return "this terminal can't draw a screen (TERM is dumb, or not set)"
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((environment[name] for name in names if environment.get(name)), "")
    if environment.get("LC_CTYPE", "").startswith("C.") and not environment.get("LC_ALL"):
        # Python sets this by itself where LANG is C; what the person set is LANG.
        locale = environment.get("LANG") or locale
    encoding = (getattr(streams[-1], "encoding", "") or "").lower().replace("-", "")
    if locale in ("C", "POSIX") or encoding != "utf8":
        return "this terminal isn't set to UTF-8 (LANG, LC_ALL)"
    return ""
