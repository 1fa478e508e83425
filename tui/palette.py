"""Names of styles that lines carry, as the stylesheet has them.

Invariant: a name means what the CSS says of the widget's component class `WIDGET--NAME`, laid over
the widget's own style; any other style comes from a highlighter and may use the theme's variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.strip import Strip
from textual.style import Style

if TYPE_CHECKING:
    from textual.widget import Widget


class Palette(dict[str | Style, Style]):
    """Style by name or names ("strong code"); made when first asked for, cleared with the theme."""

    def __init__(self, widget: Widget, prefix: str, names: frozenset[str]) -> None:
        super().__init__()
        self._widget = widget
        self._prefix = prefix
        self._names = names

    def __missing__(self, names: str | Style) -> Style:
        if isinstance(names, Style):
            return names
        words = names.split()
        style = Style()
        if words and self._names.issuperset(words):
            for word in words:
                style += self._named(word)
        elif words:
            style = Style.parse(names, self._widget.app.theme_variables)
        self[names] = style
        return style

    def _named(self, name: str) -> Style:
        """What a class of the stylesheet sets, and nothing it doesn't."""
        set_here = self._widget.get_component_styles(self._prefix + name)
        full = self._widget.get_visual_style(self._prefix + name)
        text = set_here.text_style
        coloured = set_here.has_rule("color") or set_here.has_rule("auto_color")
        return Style(
            background=full.background if set_here.has_rule("background") else None,
            foreground=full.foreground if coloured else None,
            bold=text.bold,
            dim=text.dim,
            italic=text.italic,
            underline=text.underline,
            underline2=text.underline2,
            reverse=text.reverse,
            strike=text.strike,
        )


def restyled(strip: Strip, begin: int, end: int, style: RichStyle) -> Strip:
    """The strip with a style over some of its cells."""
    end = min(end, strip.cell_length)
    if begin >= end:
        return strip
    left, middle, right = strip.divide([begin, end, strip.cell_length])
    over = Segment.apply_style(list(middle), post_style=style)
    return Strip.join([left, Strip(over, middle.cell_length), right])
