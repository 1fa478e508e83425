"""Widgets that are a few lines of styled text, drawn line by line.

Invariant: new contents repaint the widget alone; no layout, whatever changes.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from rich.segment import Segment
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from edgespec.tui import panel
from edgespec.tui.messages import Figures, Piece
from edgespec.tui.palette import Palette
from edgespec.tui.shown import shown

STYLES = frozenset(
    ("label value heading graph token-accepted token-recovered token-bonus token-plain").split()
)
_SNAPSHOTS = 3000

ORIGINS = {
    "accepted": "a draft token that stood",
    "recovered": "drawn in place of a rejected one",
    "bonus": "the extra one behind a draft that stood whole",
    "plain": "nothing was drafted",
}
"""Where a token comes from, in words."""


class Board(Widget):
    """Draws what `contents` gives for its size."""

    # Each costs time at every start, so a board has those alone that its lines name.
    COMPONENT_CLASSES: ClassVar[set[str]] = {"board--label", "board--value"}

    def __init__(self) -> None:
        super().__init__()
        self._palette = Palette(self, "board--", STYLES)
        self._strips: list[Strip] | None = None

    def contents(self, width: int, height: int) -> list[Content]:
        """The lines to draw; those that don't fit are left out."""
        raise NotImplementedError

    def changed(self) -> None:
        """Draw it anew."""
        self._strips = None
        self.refresh()

    def on_resize(self) -> None:
        """A new size, new lines."""
        self._strips = None

    def notify_style_update(self) -> None:
        """The theme changed."""
        super().notify_style_update()
        self._palette.clear()
        self._strips = None

    def render_line(self, y: int) -> Strip:
        """A line of it."""
        width = self.size.width
        if self._strips is None:
            self._strips = [self._draw(line) for line in self.contents(width, self.size.height)]
        if y >= len(self._strips):
            return Strip.blank(width, self.rich_style)
        return self._strips[y].adjust_cell_length(width, self.rich_style)

    def _draw(self, line: Content) -> Strip:
        parts = line.render(self.visual_style, "", parse_style=self._palette.__getitem__)
        return Strip(Segment(text, style.rich_style) for text, style in parts)


class FiguresLine(Board):
    """What is going on (`status`), else what keys do now (`mode`), else the answer's figures."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: Figures | None = None
        self.status = self.mode = ""

    def forget(self) -> None:
        """No figures any more."""
        self.figures = None
        self.changed()

    def contents(self, width: int, height: int) -> list[Content]:  # noqa: ARG002
        """See `Board.contents`."""
        if words := self.status or self.mode:
            return [Content.styled(words, "label").truncate(width, ellipsis=True)]
        return [panel.short(self.figures, width) if self.figures is not None else Content()]


class FiguresPanel(Board):
    """All figures of the answer, with charts."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"board--heading", "board--graph"}

    def __init__(self) -> None:
        super().__init__()
        self._figures: Figures | None = None
        self._speeds: deque[float] = deque(maxlen=_SNAPSHOTS)
        self._page, self._pages = 0, 1

    def take(self, figures: Figures) -> None:
        """The newest figures; those of another answer begin a new graph."""
        if self._figures is None or figures.turn != self._figures.turn:
            self._speeds.clear()
        self._figures = figures
        if figures.recent_tokens_per_second is not None:
            self._speeds.append(figures.recent_tokens_per_second)
        if self.display:
            self.changed()

    def forget(self) -> None:
        """No figures any more."""
        self._figures = None
        self._speeds.clear()
        self._page, self._pages = 0, 1
        self.changed()

    def turn_page(self) -> bool:
        """Show the next page; False, and the first again, behind the last."""
        self._page = (self._page + 1) % self._pages
        self.changed()
        return self._page > 0

    def on_click(self) -> None:
        """A click turns the page."""
        self.turn_page()

    def contents(self, width: int, height: int) -> list[Content]:
        """See `Board.contents`."""
        if self._figures is None:
            return [Content.styled("Figures appear with the next answer.", "label")]
        pages = panel.long(self._figures, tuple(self._speeds), width, height)
        self._pages = len(pages)
        self._page = min(self._page, len(pages) - 1)
        return pages[self._page]


class TextLine(Board):
    """A line in two parts, the second at the right end."""

    def __init__(self, left: str = "", right: str = "") -> None:
        super().__init__()
        self._left, self._right = left, right

    def say(self, left: str, right: str = "") -> None:
        """Show these."""
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.changed()

    def contents(self, width: int, height: int) -> list[Content]:  # noqa: ARG002
        """See `Board.contents`."""
        right = Content.styled(self._right, "label").truncate(max(0, width // 2), ellipsis=True)
        room = max(0, width - right.cell_length - (2 if right else 0))
        left = Content.styled(self._left, "value").truncate(room, ellipsis=True)
        return [left.pad_right(max(0, width - left.cell_length - right.cell_length)) + right]


class TokenLine(Board):
    """What is known of the token that is pointed at; else what the looks of tokens mean."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"board--token-{name}" for name in ORIGINS}

    def __init__(self) -> None:
        super().__init__()
        self._piece: Piece | None = None

    def show(self, piece: Piece | None) -> None:
        """Tell of one token, or of all kinds of them."""
        self._piece = piece
        self.changed()

    def contents(self, width: int, height: int) -> list[Content]:  # noqa: ARG002
        """See `Board.contents`."""
        piece = self._piece
        if piece is None:
            parts = [(name, f"token-{name}") for name in ORIGINS]
            key = Content("  ").join(Content.styled(*part) for part in parts)
            more = Content.styled("  point at a token, or use Tab and the arrows", "label")
            return [(key + more).truncate(width, ellipsis=True)]
        known = "probability not kept: it is while tokens are shown"
        if piece.probability is not None:
            known = f"probability {piece.probability:.1%}"
        text = shown(piece.text).replace("\n", "↵")
        return [
            Content.assemble(
                (f"“{text}”", "value"), ("  ", ""), (piece.origin, f"token-{piece.origin}"),
                (f"  {ORIGINS[piece.origin]} · {known}", "label"),
            ).truncate(width, ellipsis=True)
        ]  # fmt: skip
