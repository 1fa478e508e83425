"""Colours for code, by Pygments through Textual; imported with the first code block.

Invariant: the text comes back as it went in; a language that isn't known has no colours.
"""

from __future__ import annotations

from pygments.token import Token
from textual.content import Content
from textual.highlight import HighlightTheme, highlight


class _Restrained(HighlightTheme):
    """Few colours: words of the language, texts, numbers, comments."""

    STYLES = {  # noqa: RUF012 - as its base class has it
        Token.Comment: "$foreground 60% italic",
        Token.Keyword: "$text-accent",
        Token.Keyword.Constant: "$text-warning",
        Token.Literal.Number: "$text-warning",
        Token.Literal.String: "$text-success",
        Token.Number: "$text-warning",
        Token.String: "$text-success",
        Token.Name.Function: "$text-primary",
        Token.Name.Class: "$text-primary bold",
        Token.Name.Decorator: "$text-primary",
        Token.Name.Tag: "$text-primary",
        Token.Operator.Word: "$text-accent",
        Token.Generic.Heading: "bold",
        Token.Generic.Strong: "bold",
        Token.Generic.Emph: "italic",
        Token.Generic.Inserted: "$text-success",
        Token.Generic.Deleted: "$text-error",
    }


def highlighted(code: str, language: str) -> Content:
    """The code with spans of styles."""
    content = highlight(code, language=language, theme=_Restrained)
    if content.plain != code:
        return Content(code)
    # "$text" would be pure black or white; what has no colour of its own has the conversation's.
    return Content(code, [span for span in content.spans if span.style != "$text"])
