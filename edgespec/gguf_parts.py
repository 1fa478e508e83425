"""GGUF models that lie in several files.

Invariant: whoever has a model's headers from here has those of all its parts, each of them checked.
"""

from __future__ import annotations

import re
from pathlib import Path

from edgespec.errors import ModelFormatError
from edgespec.gguf import GGUFHeader, read_header

_NAME = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})\.gguf", re.DOTALL)  # as llama.cpp wants it


def part_files(path: Path) -> list[Path]:
    """The files that a model's name tells of, in order; the one itself where it isn't split."""
    named = _NAME.fullmatch(path.name)
    if named is None or not 0 < int(named[2]) <= int(named[3]) <= 0xFFFF:
        return [path]
    return [_part(path, named[1], number, int(named[3])) for number in range(int(named[3]))]


def read_model(path: Path) -> list[GGUFHeader]:
    """The headers of all parts of the model that begins at `path`; mostly one.

    Raises ModelFormatError where a part is damaged or missing, or `path` is a later part.
    """
    first = read_header(path)
    count, number = _number(first, "split.count"), _number(first, "split.no")
    if count < 2:
        return [first]
    named = _NAME.fullmatch(path.name)
    if named is None or (int(named[2]), int(named[3])) != (number + 1, count):
        raise ModelFormatError(
            f"{path.name} is part {number + 1} of {count} of a model, and must have a name that "
            f"ends in {_ending(number, count)}: give it its own name again"
        )
    files = part_files(path)
    if number:
        raise ModelFormatError(
            f"{path.name} is part {number + 1} of {count} of a model: name the first one, "
            f"{files[0].name}"
        )
    later = [read_header(file) for file in files[1:]]
    for number, part in enumerate(later, start=1):
        if part.metadata.get("split.no") != number:
            raise ModelFormatError(
                f"{part.path.name} is damaged: it isn't part {number + 1} of a model, as its name "
                "says: download or convert it again"
            )
    return [first, *later]


def _number(header: GGUFHeader, key: str) -> int:
    value = header.metadata.get(key, 0)
    return value if isinstance(value, int) else 0


def _part(path: Path, prefix: str, number: int, count: int) -> Path:
    return path.with_name(prefix + _ending(number, count))


def _ending(number: int, count: int) -> str:
    return f"-{number + 1:05d}-of-{count:05d}.gguf"
