"""The settings of a pair as a form, with presets.

Invariant: it is dismissed with settings a pair can be run with, or with None; a value that can't be
used is told beside its field as it is typed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Button, Footer, Static

from edgespec.errors import ConfigError
from edgespec.tui.messages import LOADED_WITH, Settings
from edgespec.tui.screens.sheet import Heading, Sheet, plain
from edgespec.tui.settings import (
    BY_KEY,
    FIELDS,
    PRESET_HELP,
    PRESETS,
    Field,
    as_text,
    preset_of,
    with_preset,
    with_text,
)
from edgespec.tui.shown import one_line
from edgespec.tui.widgets.fields import TextBox, TextField

_SUGGESTED = {
    "rule": ["rejection", "reproducible"],
    "lookahead": ["auto"],
    "drafters": ["lookup", "lookup, model", "model", "none"],
}


class FieldRow(Horizontal):
    """A setting's label, its value, and what it does (or what is wrong with the value)."""

    def __init__(self, field: Field, value: str) -> None:
        super().__init__(classes="field")
        self.field = field
        self.problem = ""
        suggested = _SUGGESTED.get(field.key)
        self.input = TextField(
            value,
            compact=True,
            id=field.key,
            suggester=SuggestFromList(suggested, case_sensitive=False) if suggested else None,
        )
        self._help = plain(field.help, classes="help")

    def compose(self) -> ComposeResult:
        """From left to right."""
        yield plain(self.field.label, classes="label")
        yield self.input
        yield self._help

    def tell(self, problem: str) -> None:
        """Say what is wrong, or, with "", what it does."""
        if problem == self.problem:
            return
        self.problem = problem
        self.set_class(bool(problem), "-wrong")
        text = f"! {problem}" if problem else self.field.help
        self._help.update(Content(one_line(text)))


class Fields(VerticalScroll):
    """The fields; down and up go from one to the next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]


class SettingsScreen(Sheet[Settings | None]):
    """Change a pair's settings; dismissed with the new ones."""

    DEFAULT_CSS = """
    SettingsScreen {
        .presets { height: 1; margin-bottom: 1; }
        &.-low .presets { margin-bottom: 0; }
        .presets Button.-style-default.-textual-compact {
            width: auto;
            min-width: 4;
            margin: 0 1 0 0;
            &.-on { text-style: bold; }
            &:last-child { margin: 0; }
        }
        VerticalScroll {
            height: 1fr;
            scrollbar-size-vertical: 1;
            scrollbar-background: $surface;
            scrollbar-color: $foreground 25%;
        }
        .section { color: $primary; margin: 1 0 0 0; }
        .section.-first { margin: 0; }
        .field { height: 1; }
        .field .label, .system .label { width: 22; }
        .field Input { width: 1fr; max-width: 44; }
        .field .help { display: none; width: 54; padding-left: 2; color: $text-muted; }
        &.-wide .field .help { display: block; }
        .field.-wrong .label { color: $text-error; text-style: bold; }
        .field.-wrong .help { color: $text-error; }
        .system { height: auto; }
        .system TextArea { height: 4; width: 1fr; border: none; }
        .system TextArea:focus { border: none; }
        .told { height: 2; margin-top: 1; color: $text-muted; }
        &.-low .told { height: 1; margin-top: 0; text-wrap: nowrap; text-overflow: ellipsis; }
        .told.-wrong { color: $text-error; }
        .buttons { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f10", "use", "Use them", key_display="enter"),
        Binding("f5", "reset", "As at first"),
        Binding("escape", "dismiss(None)", "Cancel"),
    ]

    def __init__(self, settings: Settings, name: str) -> None:
        """`name` is the pair's."""
        super().__init__()
        self._settings, self._pair = settings, name  # those that the fields were filled with
        values = {field.key: as_text(settings, field.key) for field in FIELDS}
        self._rows = {
            field.key: FieldRow(field, values[field.key])
            for field in FIELDS
            if field.key != "system"
        }
        self._system = TextBox(settings.system, compact=True, id="system")
        self._filled()
        self._told = Static(classes="told")
        self._problems: dict[str, str] = {}
        self._preset: str | None = None

    def compose(self) -> ComposeResult:
        """Presets, the fields in two groups, and two buttons."""
        with Vertical(classes="sheet"):
            yield Heading("Settings", self._pair)
            with Horizontal(classes="presets"):
                for name in PRESETS:
                    yield Button(f"  {name.capitalize()}", id=f"preset-{name}", compact=True)
            with Fields(can_focus=False):
                yield plain("From the next answer on", classes="section -first")
                for key, field_row in self._rows.items():
                    if key == LOADED_WITH[0]:
                        with Horizontal(classes="system"):
                            yield plain(BY_KEY["system"].label, classes="label")
                            yield self._system
                        yield plain("These load the pair again", classes="section")
                    yield field_row
            yield self._told
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Use them", id="use", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin in the first field."""
        self._rows[FIELDS[0].key].input.focus()
        self._check()

    # ---------------------------------------------------------------------------------- the values

    def _value(self, key: str) -> str:
        return self._system.text if key == "system" else self._rows[key].input.value

    def _filled(self) -> None:
        """Note what the fields say now: one that says it still stands for the value it had."""
        self._texts = {field.key: self._value(field.key) for field in FIELDS}

    def _read(self) -> tuple[Settings, dict[str, str]]:
        """The settings of all fields that can be used, and what is wrong with the others."""
        settings, problems = self._settings, {}
        for field in FIELDS:
            text = self._value(field.key)
            if text == self._texts[field.key]:
                continue
            try:
                settings = with_text(settings, field.key, text)
            except ConfigError as error:
                problems[field.key] = str(error)
        return settings, problems

    def _write(self, settings: Settings) -> None:
        self._settings = settings
        for key, field_row in self._rows.items():
            field_row.input.value = as_text(settings, key)
        if self._system.text != settings.system:
            self._system.text = settings.system
        self._filled()

    def _check(self) -> None:
        """Mark what can't be used, and the preset that this is."""
        settings, self._problems = self._read()
        for key, field_row in self._rows.items():
            field_row.tell(self._problems.get(key, ""))
        chosen = None if self._problems else preset_of(settings)
        if chosen != self._preset:
            self._preset = chosen
            for name in PRESETS:
                button = self.query_one(f"#preset-{name}", Button)
                button.set_class(name == chosen, "-on")
                mark = "● " if name == chosen else "  "
                button.label = Content(f"{mark}{name.capitalize()}")
        self._explain()

    def _explain(self) -> None:
        """Say what the field under the cursor does, or what is wrong with it."""
        key = (self.focused.id or "") if self.focused is not None else ""
        name = key.removeprefix("preset-")
        beside = self.has_class("-wide") and key != "system"  # the field's help is beside it
        known = key in BY_KEY and not beside
        text = PRESET_HELP[name] if name in PRESETS else BY_KEY[key].help if known else ""
        problem = "" if beside else self._problems.get(key, "")
        self._told.set_class(bool(problem), "-wrong")
        self._told.update(Content(one_line(f"! {problem}" if problem else text)), layout=False)

    # ------------------------------------------------------------------------------------- the keys

    def on_descendant_focus(self) -> None:
        """Explain the field that is come to."""
        self._explain()

    def on_input_changed(self) -> None:
        """Check as it is typed."""
        self._check()

    def on_text_area_changed(self) -> None:
        """The system prompt too."""
        self._check()

    def on_input_submitted(self) -> None:
        """Enter in a field."""
        self.action_use()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Presets and the two buttons."""
        name = event.button.id or ""
        if name == "use":
            self.action_use()
        elif name == "cancel":
            self.dismiss(None)
        else:
            settings, _ = self._read()
            self._write(with_preset(settings, name.removeprefix("preset-")))

    def action_reset(self) -> None:
        """The settings that edgespec starts with; the system prompt stays."""
        self._write(replace(Settings(), system=self._system.text))

    def action_use(self) -> None:
        """Answer with the settings, or go to the first field that can't be used."""
        settings, problems = self._read()
        if not problems:
            self.dismiss(settings)
            return
        key, problem = next(iter(problems.items()))
        (self._system if key == "system" else self._rows[key].input).focus()
        self.notify(one_line(problem), severity="error", markup=False)
