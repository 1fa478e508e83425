"""Where settings are kept: one TOML file, each pair's own and what holds for all.

Invariant: a file that can't be used is told with its line and key and is left as it is; a save
writes the file whole, keeps what another window saved meanwhile, and never saves what a pair
couldn't be run with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import ConfigError
from edgespec.platform import config_dir
from edgespec.terminal import printable
from edgespec.tui.claim import Claim
from edgespec.tui.files import write_whole
from edgespec.tui.messages import Preferences, Settings
from edgespec.tui.settings import BY_KEY, FIELDS, Field, checked

if TYPE_CHECKING:
    from edgespec.tomlfile import Document, Table

_HEAD = "# edgespec writes this file: change values as you like; comments of yours aren't kept.\n\n"


class SettingsFile:
    """The file (None: the user's own); it is read anew at each call, so two windows agree."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_dir() / "settings.toml"
        self._seen = Preferences()

    def settings(self, pair: str) -> Settings:
        """A pair's settings, or a model file's by its path; the usual ones where none were saved.

        Raises ConfigError.
        """
        pairs = self._read().pairs
        return pairs.get(pair, pairs.get(_earlier_name(pair), Settings()))

    def preferences(self) -> Preferences:
        """What holds for every pair; what is saved for pairs isn't checked. Raises ConfigError."""
        document = self._document()
        self._seen = Preferences() if document is None else _preferences(document)
        return self._seen

    def files(self) -> tuple[str, ...]:
        """Paths of the model files that the person added. Raises ConfigError."""
        return self._read().files

    def save_settings(self, pair: str, settings: Settings) -> None:
        """Save a pair's settings; the others stay. Raises ConfigError."""
        checked(settings)
        _refuse_unwritable(pair)
        with self._changing() as contents:
            contents.pairs[pair] = settings

    def save_preferences(self, preferences: Preferences) -> None:
        """Save those that changed since they were read here. Raises ConfigError."""
        with self._changing() as contents:
            changed = {
                field.name: getattr(preferences, field.name)
                for field in fields(Preferences)
                if getattr(preferences, field.name) != getattr(self._seen, field.name)
            }
            contents.preferences = replace(contents.preferences, **changed)
        self._seen = preferences

    def add_file(self, path: str) -> None:
        """Remember a model file of the person's. Raises ConfigError."""
        _refuse_unwritable(path)
        with self._changing() as contents:
            contents.files = tuple(dict.fromkeys([*contents.files, path]))

    def remove_file(self, path: str) -> None:
        """Forget it; the file stays where it is. Raises ConfigError."""
        with self._changing() as contents:
            contents.files = tuple(known for known in contents.files if known != path)

    # ----------------------------------------------------------------------------------- the file

    def _read(self) -> _Contents:
        document = self._document()
        return _Contents({}, Preferences(), ()) if document is None else _contents(document)

    def _document(self) -> Document | None:
        with suppress(OSError):  # where it can't even be looked at, reading it says why
            if not self.path.exists():
                return None
        from edgespec.tomlfile import Document

        return Document(self.path)

    @contextmanager
    def _changing(self) -> Iterator[_Contents]:
        """The contents, to be changed; one window at a time, from reading to writing."""
        try:
            claim = Claim.take(self.path.with_name(self.path.name + ".lock"), wait_s=2.0)
            if claim is None:
                raise ConfigError("Another window is saving its settings: try again.")
            try:
                contents = self._read()
                yield contents
                write_whole(self.path, _as_toml(contents))
            finally:
                claim.give_back()
        except OSError as error:
            raise ConfigError(
                f"Can't save the settings in {printable(str(self.path))}: "
                f"{error.strerror or error}."
            ) from error


def _earlier_name(pair: str) -> str:
    """The name under which edgespec once kept a file's settings: its own, without its folder."""
    path = Path(pair)
    return path.name if path.is_absolute() else pair


def _refuse_unwritable(name: str) -> None:
    """Raises ConfigError for a file's name that TOML, which is UTF-8, can't hold."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        readable = printable(name.encode("utf-8", "replace").decode())
        raise ConfigError(
            f"The name {readable} isn't UTF-8, so the settings file can't hold it: rename it."
        ) from error


@dataclass
class _Contents:
    pairs: dict[str, Settings]
    preferences: Preferences
    files: tuple[str, ...]


def _preferences(document: Document) -> Preferences:
    top = document.top
    kept = [field.name for field in fields(Preferences)]
    top.refuse_unknown((*kept, "files", "pairs"))
    values: dict[str, Any] = {}
    for field in fields(Preferences):
        values[field.name] = top.get(field.name, type(field.default), field.default)
    return Preferences(**values)


def _contents(document: Document) -> _Contents:
    top, preferences = document.top, _preferences(document)
    files = _texts(top, "files") if "files" in top.data else ()
    pairs = {name: _settings(table) for name, table in document.tables("pairs")}
    return _Contents(pairs, preferences, files)


def _settings(table: Table) -> Settings:
    table.refuse_unknown(BY_KEY)
    settings = Settings()
    for key in table.data:
        value = _from_toml(table, BY_KEY[key])
        try:
            settings = checked(replace(settings, **{key: value}))
        except ConfigError as error:
            raise table.error(str(error), key) from error
    return settings


def _from_toml(table: Table, field: Field) -> Any:
    value = table.data[field.key]
    if field.kind is float and type(value) in (int, float):
        return float(value)
    if field.kind is float:
        raise table.error(f'"{field.key}" must be a number', field.key)
    if field.key == "lookahead":
        if value == "auto" or type(value) is int:
            return value
        raise table.error('"lookahead" must be a whole number or "auto"', field.key)
    if field.kind is tuple:
        return _texts(table, field.key)
    if value == "":
        return getattr(Settings(), field.key)
    return table.get(field.key, field.kind)


def _texts(table: Table, key: str) -> tuple[str, ...]:
    value = table.data[key]
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise table.error(f'"{key}" must be a list of texts in quotes', key)
    return tuple(value)


def _hides(name: str, pairs: Mapping[str, object]) -> bool:
    """Whether a file's empty table says something: the usual settings hold, and no earlier ones."""
    earlier = _earlier_name(name)
    return earlier != name and earlier in pairs


def _as_toml(contents: _Contents) -> bytes:
    import tomli_w

    usual, unset = Settings(), Preferences()
    data: dict[str, Any] = {
        field.name: value
        for field in fields(Preferences)
        if (value := getattr(contents.preferences, field.name)) != getattr(unset, field.name)
    }
    if contents.files:
        data["files"] = list(contents.files)
    pairs = {
        name: {
            field.key: list(value) if isinstance(value, tuple) else value
            for field in FIELDS
            if (value := getattr(settings, field.key)) != getattr(usual, field.key)
        }
        for name, settings in contents.pairs.items()
    }
    if kept := {name: table for name, table in pairs.items() if table or _hides(name, pairs)}:
        data["pairs"] = kept
    return (_HEAD + tomli_w.dumps(data)).encode()
