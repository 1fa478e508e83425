"""What a person can set of a pair: the fields, presets of them, and how they are written as text.

Invariant: settings that went through `checked`, `with_text` or `with_preset` can be sampled with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from edgespec.errors import ConfigError
from edgespec.options import check_lookahead
from edgespec.terminal import printable
from edgespec.tui.messages import Settings

if TYPE_CHECKING:
    from edgespec.sampling import SamplingParams

SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "penalty_window", "seed", "rule",
)  # fmt: skip
"""The settings that decide how a token is chosen; a preset sets these and no other."""

PRESETS: Mapping[str, Settings] = MappingProxyType(
    {
        "balanced": Settings(),
        "precise": Settings(temperature=0.0),
        "creative": Settings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05),
        "reproducible": Settings(seed=0, rule="reproducible"),
    }
)

PRESET_HELP: Mapping[str, str] = MappingProxyType(
    {
        "balanced": "some variety; what edgespec starts with",
        "precise": "always the likeliest token",
        "creative": "every token at least 5% as likely as the likeliest",
        "reproducible": "varied, and the same text again, up to rounding",
    }
)


class Field(NamedTuple):
    """A setting as people see it: `kind` is what it holds, and `optional` may be left open."""

    key: str
    label: str
    help: str
    kind: type
    optional: bool = False


FIELDS = (
    Field("temperature", "Temperature", "0 takes the likeliest token, more is more varied", float),
    Field("top_k", "Top-k", "of the K likeliest tokens; 0: all", int),
    Field("top_p", "Top-p", "of the likeliest tokens up to this sum; 1: all", float),
    Field("min_p", "Min-p", "of tokens this share as likely as the likeliest; 0: all", float),
    Field("typical_p", "Typical-p", "of the tokens of most typical surprise; 1: all", float),
    Field("repetition_penalty", "Repetition penalty", "on tokens that occurred; 1: off", float),
    Field("presence_penalty", "Presence penalty", "off the logits of tokens that occurred", float),
    Field("frequency_penalty", "Frequency penalty", "off them for each time it occurred", float),
    Field("penalty_window", "Penalty window", "newest tokens the penalties count; 0: all", int),
    Field("seed", "Seed", "the same text again, up to rounding; empty: none", int, True),
    Field("rule", "Rule", "rejection or reproducible; empty: by the seed", str, True),
    Field("max_tokens", "Max tokens", "the longest answer", int),
    Field("system", "System prompt", "what the model is told before the first question", str),
    Field("lookahead", "Lookahead", "draft tokens a round; auto measures and plans", object),
    Field("drafters", "Drafters", "lookup, model, files or none; empty: all", tuple, True),
    Field("context_size", "Context", "tokens; empty: the model's own, at most 8192", int, True),
    Field("threads", "Threads", "CPU threads; empty: the usable CPUs", int, True),
    Field("gpu_layers", "GPU layers", "layers on the GPU; empty: all, if it can", int, True),
)
"""Every setting, in the order of a form."""

BY_KEY = {field.key: field for field in FIELDS}
_LEAST = {"max_tokens": 1, "context_size": 1, "threads": 1, "gpu_layers": 0}


def sampling(settings: Settings) -> SamplingParams:
    """How tokens are chosen. Raises ConfigError."""
    from edgespec.sampling import SamplingParams

    return SamplingParams(**{key: getattr(settings, key) for key in SAMPLING})


def checked(settings: Settings) -> Settings:
    """The settings, if a pair can be run with them. Raises ConfigError: one sentence."""
    for key, least in _LEAST.items():
        value = getattr(settings, key)
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{key} must be {least} or more, not {value}")
    if isinstance(settings.lookahead, int):
        check_lookahead(settings.lookahead)
    for text in (settings.system, *(settings.drafters or ())):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ConfigError("the system prompt and drafters must be whole Unicode text")
    sampling(settings)
    return settings


def with_text(settings: Settings, key: str, text: str) -> Settings:
    """The settings with one changed, as a person writes it. Raises ConfigError: one sentence."""
    key = key.strip().replace("-", "_")
    if key not in BY_KEY:
        from edgespec.tomlfile import near

        meant = near(key, BY_KEY) or f": there are {', '.join(BY_KEY)}"
        raise ConfigError(f'there is no setting "{printable(key)}"{meant}')
    return checked(replace(settings, **{key: _from_text(BY_KEY[key], text)}))


def told(settings: Settings, key: str, given: str) -> str:
    """What a setting is after a person gave it this value; "" for the usual one."""
    if given:
        return f"{key} is {given} now"
    value = as_text(settings, key.strip().replace("-", "_"))
    return f"{key} is {value} now, as usual" if value else f"{key} is as usual now: none"


def as_text(settings: Settings, key: str) -> str:
    """A setting as `with_text` reads it."""
    value = getattr(settings, key)
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"  # 1, not 1.0
    return str(value)


def with_preset(settings: Settings, name: str) -> Settings:
    """The settings with a preset's sampling. Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f'there is no preset "{printable(name)}": {", ".join(PRESETS)}')
    preset = PRESETS[name]
    return replace(settings, **{key: getattr(preset, key) for key in SAMPLING})


def preset_of(settings: Settings) -> str | None:
    """The preset whose sampling this is."""
    return next((name for name in PRESETS if with_preset(settings, name) == settings), None)


def _from_text(field: Field, text: str) -> Any:
    if field.key == "system":
        return text
    text = text.strip()
    if not text:
        return getattr(Settings(), field.key)
    if field.kind is tuple:
        names = [name.strip() for name in text.split(",")]
        return () if names == ["none"] else tuple(name for name in names if name)
    if field.kind is str or (field.key, text) == ("lookahead", "auto"):
        return text
    read: Callable[[str], object] = float if field.kind is float else int
    try:
        return read(text)
    except ValueError:
        what = {float: "a number", int: "a whole number"}.get(field.kind, "a whole number or auto")
        raise ConfigError(f"{field.key} must be {what}, not {printable(text)!r}") from None
