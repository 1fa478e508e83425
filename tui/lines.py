"""Lines of the transcript: styled text that fits its width.

Invariant: no line is wider than asked for, whatever it holds, and a line's text is all there is to
it: what is selected and searched is what is seen. Of code, selecting leaves out what is no code.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.strip import Strip

EMPTY = Content()


@dataclass(slots=True)
class Line:
    """A line as it is drawn.

    Attributes:
        text: spans carry names of styles ("strong", "code", ...), which the widget knows.
        base: the style behind the whole line.
        indent: cells to leave free before it.
        code: the number of the code block that it belongs to, within its message.
        head: whether it is the line above a code block.
        prefix: characters at its beginning that are no code: what the block is in, and its pad.
        behind: what the code has between this line and the next: a line break, or what was left out
            where a long line was broken.
        tokens: where tokens lie, as (first cell, cell behind the last, number of the token).
        strip: how it was drawn last.
    """

    text: Content
    base: str = ""
    indent: int = 0
    code: int | None = None
    head: bool = False
    prefix: int = 0
    behind: str = "\n"
    tokens: tuple[tuple[int, int, int], ...] = ()
    strip: Strip | None = None


def wrapped(
    text: Content, width: int, first: Content = EMPTY, rest: Content = EMPTY, base: str = ""
) -> list[Line]:
    """The text in lines behind `first` and, from the second on, `rest`."""
    room = max(1, width - max(first.cell_length, rest.cell_length))
    lines = text.wrap(room) if text else [text]
    return [
        Line((rest if number else first) + line.rstrip(), base) for number, line in enumerate(lines)
    ]
