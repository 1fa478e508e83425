"""What the transcript is made of: questions, answers and notes, each as lines of a given width.

Invariant: an item's text is what it was given; only `lines` knows how it looks. Estimates of
heights cost no layout, so a conversation of thousands of messages opens at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content

from edgespec.tui.lines import EMPTY, Line, wrapped
from edgespec.tui.markdown import MarkdownText
from edgespec.tui.messages import Piece
from edgespec.tui.shown import shown

INDENT = 2
"""Cells before an answer, where a question has its bar."""


class Item:
    """Something said. `turn` is the turn it belongs to; -1: none."""

    def __init__(self, text: str, turn: int = -1) -> None:
        self.text = text
        self.turn = turn
        self._kept: tuple[int, list[Line]] | None = None

    def lines(self, width: int) -> list[Line]:
        """Its lines; kept until the width changes or the item does."""
        if self._kept is None or self._kept[0] != width:
            self._kept = (width, self._lay_out(width))
        return self._kept[1]

    def changed(self) -> None:
        """Lay it out again when it is next asked for."""
        self._kept = None

    def restyle(self) -> None:
        """Draw its lines anew, as the colours changed."""
        for line in self._kept[1] if self._kept is not None else ():
            line.strip = None

    def estimate(self, width: int) -> int:
        """About how many lines it has, in no time."""
        if self._kept is not None and self._kept[0] == width:
            return len(self._kept[1])
        return 2 + self.text.count("\n") + len(self.text) // max(1, width)

    def _lay_out(self, width: int) -> list[Line]:
        raise NotImplementedError


class Question(Item):
    """What the person asked, as it was written: no Markdown. `waiting`: it isn't asked yet."""

    waiting = ""

    def _lay_out(self, width: int) -> list[Line]:
        bar = Content.styled("▌ ", "you-bar")
        text = Content(shown(self.text).strip("\n")).stylize("you")
        lines = [
            line
            for part in text.split("\n", allow_blank=True)
            for line in wrapped(part, width, bar, bar)
        ]
        if self.waiting:
            lines += wrapped(Content.styled(self.waiting, "muted"), width, bar, bar)
        return [Line(EMPTY), *lines, Line(EMPTY)]


class Note(Item):
    """A sentence of the program's: `style` is "note" or "error"."""

    def __init__(self, text: str, style: str = "note", turn: int = -1) -> None:
        super().__init__(text, turn)
        self.style = style

    def _lay_out(self, width: int) -> list[Line]:
        mark = {"note": "  ", "error": "✗ "}[self.style]
        lines: list[Line] = []
        for part in shown(self.text).split("\n"):
            first = Content.styled(mark, self.style) if not lines else Content("  ")
            text = Content.styled(part, self.style) if part else EMPTY
            lines += wrapped(text, width, first, Content("  "))
        return [*lines, Line(EMPTY)]


class Answer(Item):
    """An answer as Markdown, or as its tokens; it may still grow.

    `caption` is a line below it: figures, or why it ended.
    """

    def __init__(self, text: str = "", turn: int = -1) -> None:
        super().__init__(text, turn)
        self.pieces: list[Piece] = []
        self.tokens_shown = False
        self.streaming = False
        self.caption = ""
        self._markdown: MarkdownText | None = None
        self._flow: TokenFlow | None = None

    def append(self, text: str, pieces: Sequence[Piece]) -> None:
        """More of it."""
        if self._markdown is not None:
            self._markdown.append(text)
        self.text += text
        self.pieces += pieces
        self.changed()

    def take_back(self, end: str) -> None:
        """Its end, which is text of its last token, gives way to what is appended next."""
        if end and self.text.endswith(end):
            self.text, self._markdown, self._flow = self.text.removesuffix(end), None, None
            if self.pieces:
                last = self.pieces[-1]
                self.pieces[-1] = last._replace(text=last.text.removesuffix(end))
            self.changed()

    def end(self, text: str) -> None:
        """It is over and reads so."""
        self.streaming = False
        if text != self.text:
            self.text, self._markdown = text, None
            self.changed()

    def restyle(self) -> None:
        """See `Item.restyle`; what is kept for the other view is drawn anew too."""
        super().restyle()
        if self._markdown is not None:
            self._markdown.restyle()
        if self._flow is not None:
            self._flow.restyle()

    @property
    def codes(self) -> list[str]:
        """Its code blocks."""
        return self._source.codes

    @property
    def _source(self) -> MarkdownText:
        if self._markdown is None:
            self._markdown = MarkdownText(self.text)
        return self._markdown

    def _lay_out(self, width: int) -> list[Line]:
        inner = max(1, width - INDENT)
        if self.tokens_shown and self.pieces:
            found = list(self._token_lines(inner))
        else:
            found = self._source.lines(inner)
            if self.streaming and not found:
                found = [Line(Content.styled("…", "muted"))]
        for line in found:
            line.indent = INDENT
        if self.caption:
            caption = Content.styled(shown(self.caption), "caption")
            indent = Content(" " * INDENT)
            found += [Line(EMPTY), *wrapped(caption, width, indent, indent)]
        return [*found, Line(EMPTY)]

    def _token_lines(self, width: int) -> list[Line]:
        flow = self._flow
        if flow is None or flow.width != width:
            known = sum(len(piece.text) for piece in self.pieces)
            flow = self._flow = TokenFlow(width, self.text[: len(self.text) - known])
        for piece in self.pieces[flow.count :]:
            flow.add(piece)
        return flow.lines


class TokenFlow:
    """Tokens one after another, each in the style of its origin and with its place.

    A line is broken before a token that doesn't fit; a token longer than a line is cut. `before` is
    text whose tokens aren't known: the beginning of an answer that was continued.
    """

    def __init__(self, width: int, before: str = "") -> None:
        self.width = max(2, width)
        self.count = 0
        self._done = wrapped(Content(shown(before)), self.width) if before else []
        self._open: Line | None = None
        self._parts: list[tuple[str, str]] = []
        self._places: list[tuple[int, int, int]] = []
        self._column = 0

    @property
    def lines(self) -> list[Line]:
        """All lines so far."""
        if self._parts and self._open is None:
            self._open = Line(Content.assemble(*self._parts), tokens=tuple(self._places))
        return [*self._done, self._open] if self._open is not None else list(self._done)

    def restyle(self) -> None:
        """Draw its lines anew, as the colours changed."""
        for line in self.lines:
            line.strip = None

    def add(self, piece: Piece) -> None:
        """The next token."""
        style = f"token-{piece.origin}"
        for place, text in enumerate(shown(piece.text).split("\n")):
            if place:
                self._put(
                    "↵", 1, style
                )  # the end of a line is a token's work, and may be all of it
                self._end_line()
            for part in _cut(text, self.width):
                cells = cell_len(part)
                if self._column and self._column + cells > self.width:
                    self._end_line()
                self._put(part, cells, style)
        self.count += 1

    def _put(self, text: str, cells: int, style: str) -> None:
        self._parts.append((text, style))
        self._places.append((self._column, self._column + cells, self.count))
        self._column += cells
        self._open = None

    def _end_line(self) -> None:
        self._done += self.lines[len(self._done) :]
        self._parts, self._places, self._open = [], [], None
        self._column = 0


def _cut(text: str, width: int) -> list[str]:
    """The text in parts that fit a line."""
    if cell_len(text) <= width:
        return [text] if text else []
    return [line.plain for line in Content(text).fold(width)]
