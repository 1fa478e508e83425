"""Text on its way to a terminal.

Invariant: nothing a model, a file or a path says reaches a terminal as a control sequence; it is
shown as what it is.
"""

from __future__ import annotations

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
