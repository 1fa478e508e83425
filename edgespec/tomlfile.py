"""TOML files read strictly: every complaint names the file, the line, the table and the key.

Invariant: a value that comes out of a Table has the asked kind; a RegistryError says otherwise.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from edgespec.errors import RegistryError

_T = TypeVar("_T")

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
BACKSLASHES = "put a path with backslashes in single quotes, as in 'C:\\models\\m.gguf'"
"""In double quotes a backslash begins another character."""
_MULTILINE = re.compile(r'"""|' + "'''")


class Document:
    """One models file; knows the line each key is on, which tomllib doesn't tell."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.text = file.read_text(encoding="utf-8-sig")
            self.data = tomllib.loads(self.text)
        except OSError as error:
            raise RegistryError(f"Can't read {file}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise RegistryError(f"{file} is not UTF-8 text; save it as UTF-8.") from error
        except tomllib.TOMLDecodeError as error:
            hint = self._about_backslashes(str(error))
            raise RegistryError(f"{file} is not valid TOML: {error}{hint}.") from error
        self.top = Table(self, self.data, ())

    def _about_backslashes(self, error: str) -> str:
        """What to say behind an error of tomllib's where its line has a backslash, or nothing."""
        place = re.search(r"at line (\d+)", error)
        lines = self.text.split("\n")
        wrong = place is not None and "\\" in lines[min(int(place[1]), len(lines)) - 1]
        return f"; {BACKSLASHES}" if wrong else ""

    def tables(self, section: str) -> Iterable[tuple[str, Table]]:
        """The tables under `[section]` and their names; none where the section is absent."""
        if section in self.data:
            entries = self.top.sub(section)
            yield from ((name, entries.sub(name)) for name in entries.data)

    def line(self, path: tuple[str, ...]) -> int:
        """The line of a key, or of the nearest table around it (an inline table is one line)."""
        header: tuple[str, ...] = ()
        best, best_depth, quotes = 1, 0, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if not quotes:
                if match := _HEADER.match(line):
                    here = header = _split(match[1])
                elif match := _KEY.match(line):
                    here = header + _split(match[1])
                else:
                    here = ()
                depth = min(len(here), len(path))  # here: around the key, the key, or inside it
                if depth > best_depth and here[:depth] == path[:depth]:
                    best, best_depth = number, depth
            for mark in _MULTILINE.findall(line):  # what looks like a key in a long string isn't
                quotes = mark if not quotes else "" if mark == quotes else quotes
        return best


@dataclass(frozen=True)
class Table:
    """A table of a document, and its path from the top, for errors that point at a line."""

    document: Document
    data: dict[str, Any]
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of its header."""
        return self.path[-1]

    def error(self, message: str, key: str | None = None) -> RegistryError:
        """`message` (no full stop) with the file, the line of `key` and the table before it."""
        line = self.document.line(self.path if key is None else (*self.path, key))
        where = ".".join(self.path[:2])
        prefix = f"[{where}] " if where else ""
        return RegistryError(f"{self.document.file}, line {line}: {prefix}{message}.")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raises RegistryError for the first key that isn't in `known`."""
        for key in self.data:
            if key not in known:
                raise self.error(f'"{key}" is not a known key' + near(key, known), key)

    def get(self, key: str, kind: type[_T], default: Any = ...) -> _T:
        """The value of `key`; an ellipsis as default means that it must be there."""
        if key not in self.data:
            if default is ...:
                raise self.error(f'the key "{key}" is missing')
            return cast(_T, default)
        value = self.data[key]
        if type(value) is not kind or value == "":  # `type`, as True is an int to isinstance
            kinds = {str: "text in quotes", int: "a whole number", bool: "true or false"}
            raise self.error(f'"{key}" must be {kinds.get(kind, f"a {kind.__name__}")}', key)
        return value

    def positive(self, key: str) -> int:
        """Like `get`, for a whole number above 0."""
        value = self.get(key, int)
        if value <= 0:
            raise self.error(f'"{key}" must be more than 0', key)
        return value

    def sub(self, key: str) -> Table:
        """The table under `key`."""
        if key in self.data and not isinstance(self.data[key], dict):
            raise self.error(f'"{key}" must be a table', key)
        return Table(self.document, self.get(key, dict), (*self.path, key))


def near(word: str, known: Iterable[str]) -> str:
    """A hint to put after `word`, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _split(dotted: str) -> tuple[str, ...]:
    """`a."b.c"` -> ("a", "b.c"); tomllib itself undoes the quoting."""
    parts: list[str] = []
    value: Any = tomllib.loads(f"{dotted} = 0")
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        parts.append(key)
    return tuple(parts)
