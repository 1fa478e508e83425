"""Items one below the other: which line is whose, with layout only for what is looked at.

Invariant: what the reader sees stays where it is. When an estimate turns out wrong, `settle` says
by how many lines the view must move to show the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from edgespec.tui.items import Item
from edgespec.tui.lines import Line


class Document:
    """The transcript's items at one width."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.width = 80
        self._tops = [0]  # of each item, and of what follows the last
        self._known = 0  # items whose tops are right

    def set_width(self, width: int) -> None:
        """Lay everything out anew, when it is looked at."""
        self.width = width
        self._known = 0

    def add(self, item: Item) -> None:
        """Put an item at the end."""
        self.items.append(item)

    def touch(self, item: Item) -> None:
        """An item changed, so where the later ones begin has too."""
        item.changed()
        # What changes is nearly always the last.
        for index in range(len(self.items) - 1, -1, -1):
            if self.items[index] is item:
                self._known = min(self._known, index)
                return

    def cut(self, index: int) -> None:
        """Drop the items from `index` on."""
        del self.items[index:]
        self._known = min(self._known, index)

    @property
    def height(self) -> int:
        """Lines of all items, some of them estimated."""
        return self._all_tops()[-1]

    def top(self, index: int) -> int:
        """The line on which an item begins."""
        return self._all_tops()[index]

    def at(self, line: int) -> int:
        """The item to which a line belongs; the last one behind the end, -1 where none is."""
        return min(bisect_right(self._all_tops(), line), len(self.items)) - 1

    def line(self, number: int) -> Line | None:
        """A line, laid out now if need be; None where there is none."""
        index = self.at(number)
        if index < 0:
            return None
        lines = self.items[index].lines(self.width)
        inside = number - self.top(index)
        return lines[inside] if 0 <= inside < len(lines) else None

    def lines(self, first: int, last: int | None = None) -> Iterator[tuple[int, Line]]:
        """Lines `first` to `last` (None: to the end) with the numbers by which they are found.

        All lines of the items in between, also those that an estimate has no number for: they have
        the number of the last one of their item that has.
        """
        end = len(self.items) - 1 if last is None else self.at(last)
        for index in range(max(0, self.at(first)), end + 1):
            top, behind = self.top(index), self.top(index + 1)
            for inside, line in enumerate(self.items[index].lines(self.width)):
                number = min(top + inside, max(top, behind - 1))
                if number >= first and (last is None or number <= last):
                    yield number, line

    def settle(self, first: int, height: int) -> int:
        """Lay out what lies in a view of `height` lines from `first` on.

        Returns by how many lines the view's content has moved down, for the view to follow.
        """
        moved = 0
        index = max(0, self.at(first))
        while index < len(self.items) and self.top(index) < first + moved + height:
            top, item = self.top(index), self.items[index]
            guess = self.top(index + 1) - top
            real = len(item.lines(self.width))
            if real != guess:
                self._known = min(self._known, index)
                if top < first + moved and index + 1 < len(self.items):
                    moved += real - guess
            index += 1
        return moved

    def _all_tops(self) -> list[int]:
        if self._known < len(self.items):
            tops, width = self._tops, self.width
            del tops[self._known + 1 :]
            for item in self.items[self._known :]:
                tops.append(tops[-1] + item.estimate(width))
            self._known = len(self.items)
        elif len(self._tops) > len(self.items) + 1:
            del self._tops[len(self.items) + 1 :]
        return self._tops
