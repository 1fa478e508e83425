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
    # A pair and its target may have one name: the pair is meant, with all that it needs.
    alone = args.name in registry.models and args.name not in registry.pairs
    specs = (registry.models[args.name],) if alone else registry.pair(args.name).models
    for spec in specs:
        print(fetch(spec), flush=True)
    return 0
