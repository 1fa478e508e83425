"""Searching the conversation: which match is in view, and the way to the next.

Invariant: keys are obeyed while it searches, and it goes to a match only while that is in the
conversation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgespec.tui.finding import lines_with

if TYPE_CHECKING:
    from edgespec.tui.items import Item
    from edgespec.tui.widgets.search import SearchBar
    from edgespec.tui.widgets.transcript import Transcript


class Search:
    """Goes from match to match, from the newest backwards."""

    def __init__(self, transcript: Transcript, bar: SearchBar) -> None:
        self._transcript = transcript
        self._bar = bar
        self._match = 0

    async def go(self, text: str, step: int) -> None:
        """Bring a match into view; `step` as in `SearchBar.Wanted`.

        All that has the text must be laid out for it.
        """
        document = self._transcript.document
        matches: list[tuple[Item, int]] = []
        for item in tuple(document.items):
            found = lines_with(item, document.width, text)
            matches += [(item, line) for line in found]
            if found:
                await asyncio.sleep(0)
        if step == 0 or self._match >= len(matches):
            self._match = len(matches) - 1
        elif matches:
            self._match = (self._match + step) % len(matches)
        if matches:
            item, line = matches[self._match]
            if item in document.items:
                self._transcript.go_to(document.items.index(item), line)
        self._bar.tell(self._match + 1, len(matches))
