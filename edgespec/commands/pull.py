"""Download: `edgespec pull`."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("pull", help="download a pair's models, or one model")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a pair or model (default: the default pair)"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.fetch import fetch
    from edgespec.registry import load_registry

    registry = load_registry()
    specs = (
        (registry.models[args.name],) if args.name in registry.models
        else registry.pair(args.name).models
    )  # fmt: skip
    for spec in specs:
        print(fetch(spec))
    return 0
