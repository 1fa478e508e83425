"""A pair's entry for models.toml: to paste, or put into the user's own file.

Invariant: the user's file is either as it was or holds the whole new entry and was read back by
the registry; nothing else in it changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.errors import ConfigError
from edgespec.exporters.staging import require_text
from edgespec.fetch.sources import atomic
from edgespec.registry import (
    LOOKUP,
    MODEL,
    load_registry,
    packaged_models_file,
    user_models_file,
)
from edgespec.tomlfile import Document


@dataclass(frozen=True)
class Exported:
    """A model that was exported: its file (of an ONNX folder, the .onnx file) and what it is."""

    name: str
    path: Path
    format: Literal["gguf", "onnx"]
    licence: str


def model_names(pair: str) -> list[str]:
    """What the target and the draft of a pair are called in models.toml."""
    return [f"{pair}-target", f"{pair}-draft"]


def pair_entry(name: str, target: Exported, drafters: Sequence[Exported], description: str) -> str:
    """The TOML text of a pair and its models; lookup drafts first, as it costs nothing."""
    blocks = [_model(model) for model in (target, *drafters)]
    names = [LOOKUP, *(model.name for model in drafters)]
    blocks.append(
        f"[pairs.{_key(name)}]\n"
        f"description = {_text(description)}\n"
        f"target = {_text(target.name)}\n"
        f"drafters = [{', '.join(map(_text, names))}]\n"
    )
    return "\n".join(blocks)


def register(entry: str, names: Sequence[str], file: Path | None = None) -> Path:
    """Append an entry to the user's models.toml and return that file.

    names: of the models and pairs in the entry. file: instead of the user's own.
    Raises ConfigError where one of them is there already, or where the file can't be used; it ends
    with the entry, which may have taken hours to make.
    """
    file = file or user_models_file()
    part = file
    try:
        refuse_taken(names, file)
        before = Document(file).text if file.is_file() else ""
        separator = "" if not before else "\n" if before.endswith("\n") else "\n\n"
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file.resolve()) as part:  # a link stays one
            part.write_text(before + separator + entry, encoding="utf-8")
            load_registry(part)  # or the next start would complain
    except (ConfigError, OSError, UnicodeEncodeError) as error:
        reason = str(error) if isinstance(error, ConfigError) else f"can't write {file}: {error}"
        reason = reason.replace(str(part), str(file)).rstrip(".")
        raise ConfigError(
            f"What was made is whole, but it wasn't registered: {reason}. The entry for {file}:"
            f"\n\n{entry}"
        ) from error
    return file


def refuse_taken(names: Sequence[str], file: Path | None = None) -> None:
    """Raises ConfigError where a name can't be given, since edgespec comes with it, or the user's
    models.toml can't be added to: it has the name already, or is wrong as it is.
    """
    require_text(*names)
    for name in (LOOKUP, MODEL):
        if name in names:
            raise ConfigError(f'"{name}" is what chooses drafters; choose another name.')
    if (taken := _taken(names, packaged_models_file())) is not None:
        raise ConfigError(f'edgespec comes with an entry "{taken}"; choose another name.')
    file = file or user_models_file()
    if not file.is_file():
        return
    load_registry(file)
    if (taken := _taken(names, file)) is not None:
        raise ConfigError(
            f'{file} has an entry "{taken}" already; choose another name, or take that entry out.'
        )


def _taken(names: Sequence[str], file: Path) -> str | None:
    """The first of the names that a models file has."""
    document = Document(file)
    every = [name for section in ("models", "pairs") for name, _ in document.tables(section)]
    return next((name for name in every if name in names), None)


def _model(model: Exported) -> str:
    path = _text(str(model.path.absolute()))
    return (
        f"[models.{_key(model.name)}]\n"
        f'source = {{ kind = "file", path = {path} }}\n'
        f"licence = {_text(model.licence)}\n"
        f'format = "{model.format}"\n'
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A TOML string. JSON's escapes are TOML's too, but for DEL, which JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
