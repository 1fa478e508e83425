"""A conversation as Markdown or JSON.

Invariant: each message stays within its own section, whatever fences, comments or tags it leaves
open; and no file that is there is replaced unless that was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError
from edgespec.terminal import printable
from edgespec.tui.files import write_new, write_whole
from edgespec.tui.messages import Turn
from edgespec.tui.records import json_text, turn_as_json

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

FORMATS = (".md", ".json")


class ExportFailed(EdgespecError):
    """A conversation that can't be written where it was asked for."""


class AlreadyThere(ExportFailed):
    """The file at `path` exists; it may be replaced if the person says so."""

    def __init__(self, path: Path, instead: str = "") -> None:
        """`instead`: what else than another name there is to do, as the end of a sentence."""
        self.path = path
        super().__init__(
            f"{printable(str(path))} is there already: write another name behind /export{instead}."
        )


def export(
    path: Path,
    turns: Sequence[Turn],
    *,
    title: str = "",
    system: str = "",
    form: str = "",
    replace: bool = False,
) -> Path:
    """Write a conversation; the name's ending chooses Markdown or JSON, or `form` ("md", "json").

    With neither it is Markdown. Returns the path written. Raises AlreadyThere where the file exists
    and `replace` is false, and ExportFailed for what else goes wrong, also where ending and `form`
    disagree; what was there before is then still there.
    """
    try:
        path = _file(path, form)
        written = as_json if path.suffix.lower() == ".json" else as_markdown
        data = written(turns, title=title, system=system).encode("utf-8", "replace")
        if replace:
            write_whole(path, data)
        else:
            write_new(path, data)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise AlreadyThere(path) from error
        raise _failed(path, error) from error
    return path


def destination(path: Path, form: str = "") -> Path:
    """The file that `export` would write, which isn't there yet; raises as that does."""
    try:
        path = _file(path, form)
        there = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise _failed(path, error) from error
    if there:
        raise AlreadyThere(path)
    return path


def _failed(path: Path, error: Exception) -> ExportFailed:
    """What to tell of an OSError, a ValueError, or a RuntimeError: no home folder for "~"."""
    why = getattr(error, "strerror", None) or error
    return ExportFailed(f"Can't write {printable(str(path))}: {why}.")


def _file(path: Path, form: str) -> Path:
    """The file that a person means, with its ending; raises ExportFailed for what can't be one."""
    path = path.expanduser().absolute()
    if path.is_dir():  # also "", "." and ".."
        raise ExportFailed(f"{printable(str(path))} is a folder: write a file's name behind it.")
    if not path.suffix:
        path = path.with_name(f"{path.name}.{form or 'md'}")
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise ExportFailed(f"{printable(path.name)} must end in .md or .json.")
    if form and ending != f".{form}":
        raise ExportFailed(f"{printable(path.name)} is no name for .{form}: change one of the two.")
    if not path.parent.exists():  # rather a mistyped name than a wish for folders
        raise ExportFailed(f"There is no folder {printable(str(path.parent))}: make it first.")
    return path


def file_name(title: str) -> str:
    """A name for a conversation's file, without its ending, that every system takes."""
    words = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:60].rstrip("-._")
    reserved = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", words, re.IGNORECASE)
    return words if words and not reserved else f"conversation-{words}".rstrip("-")


def as_json(turns: Sequence[Turn], *, title: str = "", system: str = "") -> str:
    """One object: title, system prompt, and the turns with their figures."""
    document = {
        "title": title,
        "system": system,
        "turns": [turn_as_json(turn) | {"asked_at": _when(turn) or None} for turn in turns],
    }
    return json_text(document, indent=2) + "\n"


def as_markdown(turns: Sequence[Turn], *, title: str = "", system: str = "") -> str:
    """Headings for who speaks, and what they said as they wrote it."""
    parts = [f"# {_heading(title) or 'Conversation'}"]
    if system:
        parts += ["## System prompt", contained(system)]
    for turn in turns:
        when = _when(turn)
        parts += [f"## You{f' · {when}' if when else ''}", contained(turn.question)]
        parts.append(f"## {_heading(turn.pair) or 'Answer'}")
        if turn.answer:
            parts.append(contained(turn.answer))
        if turn.error:
            parts.append(contained(f"(no answer: {turn.error})"))
        elif turn.reason == "cancelled":
            parts.append("(stopped)")
        if line := _figures(turn):
            parts.append(f"*{line}*")
    return "\n\n".join(parts) + "\n"


def contained(text: str) -> str:
    """The text such that Markdown that follows it isn't taken for a part of it.

    As it is where that works, or with the fence closed that it leaves open, else in a fence.
    """
    text = printable(text.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")
    if not text or _ends_by_itself(text):
        return text
    for line in reversed(text.splitlines()):
        if (fence := re.match(r" {0,3}(`{3,}|~{3,})", line)) is not None:
            closed = f"{text}\n{fence[1]}"
            if _ends_by_itself(closed):
                return closed
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence_mark = "`" * max(3, longest + 1)
    return f"{fence_mark}text\n{text}\n{fence_mark}"


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _ends_by_itself(text: str) -> bool:
    """Whether a heading behind the text is read as a heading, in no list, fence or comment."""
    tokens = _parser().parse(f"{text}\n\n## The next one\n")
    ends = tokens[-3:]
    return (
        [token.type for token in ends] == ["heading_open", "inline", "heading_close"]
        and ends[0].level == 0
        and ends[1].content == "The next one"
    )


def _heading(text: str) -> str:
    """One line in which nothing is Markdown."""
    line = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_\[\]<>#&~|])", r"\\\1", line)


def _when(turn: Turn) -> str:
    try:
        asked = datetime.fromtimestamp(turn.asked_at, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{asked:%Y-%m-%d %H:%M} UTC" if turn.asked_at else ""


def _figures(turn: Turn) -> str:
    figures = turn.figures
    if figures is None:
        return ""
    parts = [f"{figures.tokens} {'more ' if figures.continued else ''}tokens"]
    if figures.tokens_per_second is not None:
        gain = f" ({figures.gain:.1f}x plain)" if figures.gain is not None else ""
        parts.append(f"{figures.tokens_per_second:.1f} tok/s{gain}")
    if figures.acceptance_rate is not None:
        parts.append(f"{figures.acceptance_rate:.0%} of draft tokens accepted")
    return " · ".join(parts)
