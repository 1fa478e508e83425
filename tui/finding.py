"""Where a text is seen in the conversation.

Invariant: what is found is what is seen: not the marks of Markdown, and also where a line was
wrapped in the middle of it. Items that can't have it aren't laid out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from edgespec.tui.items import Answer, Item
from edgespec.tui.lines import Line

_BEFORE = "▌▎• "
"""What stands before the lines of a question, a quote or a list."""


def lines_with(item: Item, width: int, text: str) -> list[int]:
    """The lines of an item, laid out for `width` cells, in which the text begins."""
    source = f"{item.text} {item.caption}" if isinstance(item, Answer) else item.text
    if not text.strip() or _letters(text) not in _letters(source):
        return []
    return places(item.lines(width), text)


def places(lines: Sequence[Line], text: str) -> list[int]:
    """The numbers of the lines in which the text begins, whatever its case and spaces."""
    needle = " ".join(text.casefold().split())
    parts = [" ".join(line.text.plain.casefold().lstrip(_BEFORE).split()) for line in lines]
    begins = [0]
    for part in parts:
        begins.append(begins[-1] + len(part) + 1)
    found: list[int] = []
    for match in re.finditer(re.escape(needle), " ".join(parts)) if needle else ():
        line = bisect_right(begins, match.start()) - 1
        if line not in found[-1:]:
            found.append(line)
    return found


def _letters(text: str) -> str:
    """What no layout changes: letters and digits, with nothing between them."""
    return re.sub(r"[\W_]+", "", text.casefold())
