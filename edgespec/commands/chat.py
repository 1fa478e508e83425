"""The chat: `edgespec chat`, on the whole screen or line by line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgespec.commands.shared import add_pair, drafters, introduction, pair_name
from edgespec.options import add_answer_options, add_model_options

if TYPE_CHECKING:
    from edgespec.tui.messages import Choice, Preferences, Settings

_PAIR = "the pair used last"
_SETTINGS = {"ctx_size": "context_size"}  # options whose setting has another name


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "chat",
        help="chat with a model in the terminal",
        description="Chats with a model, on the whole screen or line by line. What is saved for "
        "a pair comes before the defaults told here, and what is said on the command line before "
        "both.",
    )
    add_pair(parser, default=_PAIR)
    parser.add_argument(
        "--lines", action="store_true",
        help="chat line by line; otherwise on the whole screen, where the terminal can",
    )  # fmt: skip
    add_model_options(parser, default_pair=_PAIR)
    add_answer_options(parser)
    # What was said on the command line comes before what is saved, and that before the defaults.
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(**dict.fromkeys(defaults), command=partial(run, defaults))


def run(defaults: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.terminal import line_chat_reason

    given = {name: value for name, value in vars(args).items() if value is not None}
    args = argparse.Namespace(**{**defaults, **given})
    reason = "" if args.lines else line_chat_reason(os.environ)
    if args.lines or reason:
        return _lines(args, given, reason)
    return _screen(args, given)


def _lines(args: argparse.Namespace, given: Mapping[str, Any], reason: str) -> int:
    import sys
    from dataclasses import replace

    from edgespec.console import chat, say
    from edgespec.errors import ConfigError
    from edgespec.fetch import bars
    from edgespec.runtime import Runtime
    from edgespec.tui.settings_file import SettingsFile

    file = SettingsFile()
    preferences = file.preferences()
    choice = _choice(args, preferences)
    saved = file.settings(choice.key)
    settings = _settings(args, given, saved)
    if reason and sys.stdin.isatty():
        say(f"note: the chat is line by line, since {reason}")
    with bars() as on_fetch:
        opened = Runtime.open(
            choice.pair,
            target=choice.target,
            drafters=None if settings.drafters is None else list(settings.drafters),
            lookahead=settings.lookahead,
            context_size=settings.context_size,
            threads=settings.threads,
            gpu_layers=settings.gpu_layers,
            device=args.device,
            allow_cpu=args.allow_cpu,
            report=lambda what: say(f"{what}..."),
            on_fetch=on_fetch,
        )
    with opened as runtime:
        say(*introduction(runtime))
        if named := _newly_named(args, preferences):
            try:
                file.save_preferences(replace(preferences, last_pair=named))
            except ConfigError as error:
                say(f"note: {error}")
        if saved != type(saved)():
            say(f"note: the settings saved for {choice.label} are used; /set lists them")
        return chat(runtime, settings, choice.label)


def _screen(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    from edgespec.tui.app import ChatApp
    from edgespec.tui.bridge import Bridge
    from edgespec.tui.history import History
    from edgespec.tui.leaving import run
    from edgespec.tui.settings_file import SettingsFile
    from edgespec.tui.showing import Stores

    file = SettingsFile()
    stores = Stores(History(), file)
    preferences = file.preferences()
    choice = _choice(args, preferences)

    def settings(choice: Choice) -> Settings:
        """Saved ones are for the pair they were saved for; the command line is for all."""
        return _settings(args, given, file.settings(choice.key))

    bridge = Bridge(device=args.device, allow_cpu=args.allow_cpu)
    remember = _newly_named(args, preferences)
    return run(ChatApp(bridge, choice, settings, stores, preferences, remember=remember))


def _newly_named(args: argparse.Namespace, preferences: Preferences) -> str:
    """The pair that was named, unless it is the one used last; else ""."""
    named = pair_name(args)
    return named if named is not None and named != preferences.last_pair else ""


def _choice(args: argparse.Namespace, preferences: Preferences) -> Choice:
    """What was named; else the pair that was chosen last, or the default one."""
    from edgespec.tui.messages import Choice

    choice = Choice(pair_name(args), args.target)
    if choice.pair is not None or choice.target is not None:
        return choice
    from edgespec.registry import load_registry

    registry = load_registry()
    last = preferences.last_pair
    return Choice(last if last in registry.pairs else registry.default.name)


def _settings(args: argparse.Namespace, given: Mapping[str, Any], saved: Settings) -> Settings:
    """What is saved for the pair, with what was said on the command line in its place."""
    from dataclasses import fields, replace

    from edgespec.tui.settings import checked

    known = {field.name for field in fields(saved)}
    named = {_SETTINGS.get(name, name): value for name, value in given.items()}
    changes = {name: value for name, value in named.items() if name in known - {"drafters"}}
    if {"draft", "drafter", "drafters"} & given.keys():
        chosen = drafters(args)
        changes["drafters"] = None if chosen is None else tuple(chosen)
    layers = saved.gpu_layers
    if layers is not None and given.get("device") == ("cpu" if layers else "cuda"):
        changes.setdefault("gpu_layers", None)  # what is saved would contradict it
    return checked(replace(saved, **changes))
