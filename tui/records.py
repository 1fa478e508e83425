"""A conversation's lines: what is kept of each turn, one JSON object a line.

    {"kind": "conversation", "version": 1, "created": 1796000000.0}
    {"kind": "turn", "index": 0, "question": "...", "answer": "...", ...}
    {"kind": "mark", "title": "...", "turns": 1, "pair": "...", "at": 1796000001.0}

A turn line says: turn `index` is this one now, and none follows it. So a question asked again, an
answer made again or continued are lines like any other, and what they replace stays in the file. A
mark follows every turn and says what a list shows, so that a list reads the ends of files alone.

Invariant: a line is read back as it was written or not at all, and no line holds a raw line break.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast, get_args

from edgespec.tui.messages import DrafterFigures, Figures, FinishReason, Turn

VERSION = 1
"""Of the format; a file of a later one is left alone."""

TITLE_LIMIT = 120
"""Characters of a title; it bounds a mark."""

# What JSON leaves as it is and a line must not hold: other line breaks, C1 controls (a terminal
# that shows the file would obey them), halves of surrogate pairs, which UTF-8 doesn't have.
_TO_ESCAPE = re.compile("[\u2028\u2029\x7f-\x9f\ud800-\udfff]")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Start:
    """The first line."""

    version: int
    created: float  # seconds since the epoch, as all times here


@dataclass(frozen=True)
class Placed:
    """A turn and its place."""

    index: int
    turn: Turn


@dataclass(frozen=True)
class Mark:
    """What a list shows. `named`: the person chose the title."""

    title: str
    turns: int
    pair: str
    at: float
    named: bool = False


@dataclass(frozen=True)
class Mended:
    """The line before this one was torn by a crash, which was told; what follows is whole."""


@dataclass(frozen=True)
class Unknown:
    """A line of a kind that this version doesn't know."""


Record = Start | Placed | Mark | Mended | Unknown


def json_text(value: object, indent: int | None = None) -> str:
    """JSON for people to read: letters of every script stay, controls and the like are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encode(record: Record) -> bytes:
    """The record's line, its line break included."""
    return json_text(_as_json(record)).encode() + b"\n"


def decode(line: bytes) -> Record:
    """The record of a line, with or without its line break. Raises ValueError where it is none."""
    try:
        # A torn object is never a whole one: its last brace is missing.
        data = json.loads(line, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("not an object")
    kind = _get(data, "kind", str)
    if kind == "conversation":
        return Start(_get(data, "version", int), _get(data, "created", float))
    if kind == "turn":
        index = _get(data, "index", int)
        if index < 0:
            raise ValueError("a place below 0")
        return Placed(index, _turn(data))
    if kind == "mark":
        return Mark(
            title=_get(data, "title", str),
            turns=_get(data, "turns", int),
            pair=_get(data, "pair", str, ""),
            at=_get(data, "at", float),
            named=_get(data, "named", bool, False),
        )
    return Mended() if kind == "mended" else Unknown()


def turn_as_json(turn: Turn) -> dict[str, Any]:
    """A turn's keys; what is as always is left out."""
    data = _without_defaults(turn)
    if turn.figures is not None:
        data["figures"] = _without_defaults(turn.figures)
        data["figures"].pop("turn", None)  # it numbers answers of one window only
        if turn.figures.drafters:
            data["figures"]["drafters"] = [drafter._asdict() for drafter in turn.figures.drafters]
    return data


def title_of(question: str) -> str:
    """The title of a conversation that nobody named: the beginning of its first question."""
    words = one_line(question[: 4 * TITLE_LIMIT])
    return words if len(words) <= 60 else words[:59].rstrip() + "…"


def one_line(title: str) -> str:
    """A title as it is kept: no line breaks, not longer than a mark may be."""
    return " ".join(title.split())[:TITLE_LIMIT]


# ------------------------------------------------------------------------------------ the pieces


def _as_json(record: Record) -> dict[str, Any]:
    if isinstance(record, Start):
        return {"kind": "conversation", **vars(record)}
    if isinstance(record, Placed):
        return {"kind": "turn", "index": record.index, **turn_as_json(record.turn)}
    if isinstance(record, Mark):
        return {"kind": "mark", **_without_defaults(record)}
    return {"kind": "mended"}


def _without_defaults(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default
    }


def _turn(data: Mapping[str, Any]) -> Turn:
    reason = _get(data, "reason", str, "")
    if reason and reason not in get_args(FinishReason):
        raise ValueError("an unknown reason")
    return Turn(
        question=_get(data, "question", str),
        answer=_get(data, "answer", str, ""),
        reason=cast(FinishReason, reason) if reason else None,
        error=_get(data, "error", str, ""),
        pair=_get(data, "pair", str, ""),
        asked_at=_get(data, "asked_at", float, 0.0),
        figures=_figures(data.get("figures")),
    )


def _figures(data: object) -> Figures | None:
    """The figures, or None where they aren't whole: the words are worth more."""
    if not isinstance(data, dict):
        return None
    readers: dict[str, Callable[[str], object]] = {
        "parked": lambda key: _get(data, key, bool),
        "continued": lambda key: _get(data, key, bool),
        "drafter": lambda key: _get(data, key, str),
        "reason": lambda key: _get(data, key, str),
        "drafters": lambda key: tuple(map(_drafter, _get(data, key, list))),
        "recent_accepted": lambda key: tuple(map(_count, _get(data, key, list))),
        "lengths": lambda key: tuple(map(_count, _get(data, key, list))),
    }
    counts = ("tokens", "rounds", "lookahead", "context_used", "context_size", "memory_bytes")
    try:
        found: dict[str, Any] = {}
        for field in fields(Figures):
            key = field.name
            if data.get(key) is None or key == "turn":
                continue
            if key in readers:
                found[key] = readers[key](key)
            else:
                found[key] = _get(data, key, int if key in counts else float)
        return Figures(turn=0, **found)
    except ValueError:
        return None


def _drafter(data: object) -> DrafterFigures:
    if not isinstance(data, dict):
        raise ValueError("not a drafter")
    counts = (_get(data, key, int) for key in ("rounds", "drafted", "accepted"))
    return DrafterFigures(_get(data, "name", str), *counts)


def _count(value: object) -> int:
    if type(value) is not int:
        raise ValueError("not a count")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _get(data: Mapping[str, Any], key: str, kind: type[_T], default: _T | None = None) -> _T:
    """A value of exactly that kind; a whole number is a float too."""
    value = data.get(key, default)
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError as error:
            raise ValueError(f"{key} is beyond any float") from error
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{key} is missing or of another kind")
    return value
