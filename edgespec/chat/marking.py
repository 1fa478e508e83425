"""Marks in people's words, so that no control token can be read out of them.

A marker is one character that occurs nowhere else in a conversation or its template. It is put
after each character that begins a control token and before each one that ends it, wherever people
wrote them. A control token found in the rendered text without a marker in it therefore has a
first and a last character of the template's own. The rule looks at one character at a time, so it
holds however a template cuts, trims, joins or changes the case of the words.

One case is left: words that fit wholly between the two ends (`'<|' + name + '|>'`). They are short
and get a marker behind them: a whole text beforehand (`mark`), what a template cuts out of a longer
one when it does (`fit`). Only a template that puts people's letters together one by one, in a loop,
is not seen through.

Invariant: `clean(mark(text)) == text`, and no control token occurs in `before + mark(text) + after`
with a character of `text` in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edgespec.errors import ConfigError

# Alchemical symbols, then private use: no case, no white space. The first are printable too, so
# that repr() (a template that prints a list) shows them as they are and clean() finds them.
_CANDIDATES = tuple(map(chr, (*range(0x1F700, 0x1F774), *range(0xE000, 0xF900))))


class Marker:
    """Marks and cleans text for one conversation.

    `control_texts`: the control tokens' texts; with none, `mark` changes nothing.
    `avoid`: every text the marker must not occur in (all messages, the template's own text).
    Raises ConfigError when every candidate occurs in them.
    """

    def __init__(self, control_texts: Iterable[str], avoid: Iterable[str]) -> None:
        texts = [text for text in control_texts if text]
        taken = set().union(*avoid, *texts)
        char = next((c for c in _CANDIDATES if c not in taken), None)
        if char is None:
            raise ConfigError("The conversation uses every character edgespec could mark it with.")
        self.char: str = char
        firsts = _any_case(text[0] for text in texts)
        lasts = _any_case(text[-1] for text in texts)
        self._spelt = {
            c: (char if c in lasts else "") + c + (char if c in firsts else "")
            for c in firsts | lasts
        }
        ends = re.escape("".join(sorted(self._spelt)))
        self._ends = re.compile(f"[{ends}]" if ends else "(?!)")
        # Between the ends of control tokens; NUL keeps them apart.
        self._insides = "\0".join(text[1:-1] for text in texts).lower()
        self._longest = max(map(len, texts), default=0)
        self._texts = [text.lower() for text in texts]

    def mark(self, text: str) -> str:
        """`text` with the marker inside everything that could be part of a control token."""
        marked = self._spell(text)
        return self._with_end(marked) if self._fits(text) else marked

    def fit(self, part: str) -> str:
        """A part of marked text, with a marker where none is in it and it fits between two ends."""
        return part if self.char in part or not self._fits(part) else self._with_end(part)

    def spells(self, text: str) -> bool:
        """Whether a whole control token stands in it, in any case."""
        return any(token in text.lower() for token in self._texts)

    def clean(self, text: str) -> str:
        """`text` as people wrote it."""
        return text.replace(self.char, "")

    def align(self, text: str, needle: str) -> tuple[str, str]:
        """`text` and `needle` respelt so that str methods find the needle, marked or not.

        A template that splits an answer at `'</think>'` means the words as people see them.
        """
        needle = self.clean(needle)
        if self.char not in text or not self._ends.search(needle):
            return text, needle
        spelt = self._spell(needle)
        pattern = "".join(
            re.escape(c)
            if c not in self._spelt
            else re.escape(self._spelt[c]).replace(self.char, self.char + "?")
            for c in needle
        )
        return re.sub(pattern, lambda _: spelt, text), spelt

    def _fits(self, text: str) -> bool:
        core = text.strip() or text
        return bool(core) and len(core) <= self._longest and core.lower() in self._insides

    def _with_end(self, text: str) -> str:
        stop = len(text.rstrip())
        return text[:stop] + self.char + text[stop:]

    def _spell(self, text: str) -> str:
        return self._ends.sub(lambda match: self._spelt[match[0]], text)


def _any_case(chars: Iterable[str]) -> set[str]:
    # A template may change the case, and with it turn another character into a token's end.
    return {v for c in chars for v in (c, c.lower(), c.upper()) if len(v) == 1}
