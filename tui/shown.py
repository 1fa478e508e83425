"""Text as the screen shows it: control characters visible, and every width beyond dispute.

A border stays straight only if terminal and program agree on each character's width, and they don't
on joined emoji, skin tones and variation selectors. So the screen shows the parts of such a
sequence; what is sent, kept and copied is the text as it came.

Invariant: the result holds no control character but line feeds, and none that reorders a line.
"""

from __future__ import annotations

import re

from edgespec.terminal import printable

_SKIN_TONE = re.compile("(?<=[\u2600-\u27bf\U0001f300-\U0001faff])[\U0001f3fb-\U0001f3ff]")
_DROPPED = dict.fromkeys(
    [
        0x00AD,  # soft hyphen: one cell or none
        0x061C,  # Arabic letter mark
        *range(0x200B, 0x2010),  # zero-width space, joiners, marks of direction
        *range(0x202A, 0x202F),  # embeddings and overrides of direction
        *range(0x2060, 0x2070),  # word joiner, isolates, deprecated formats
        0xFEFF,
        *range(0xFE00, 0xFE10),  # variation selectors
        *range(0xE0000, 0xE0080),  # tags
        *range(0xE0100, 0xE01F0),  # more variation selectors
    ]
) | {0x2028: "\n", 0x2029: "\n", 0x85: "\n"}


def shown(text: str) -> str:
    """The text as it may be drawn; tabs become four spaces."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    if text.isascii():
        return printable(text)
    return printable(_SKIN_TONE.sub("", text).translate(_DROPPED))


def one_line(text: str) -> str:
    """The same in one line."""
    return " ".join(shown(text).split())
