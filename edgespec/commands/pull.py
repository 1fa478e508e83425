"""Download: `edgespec pull`."""

from __future__ import annotations

import argparse
from functools import partial

from edgespec.commands.shared import print_path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pull",
        help="download a pair's models, or one model",
        description="Downloads what isn't here yet, verifies it, and prints where each file lies.",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a pair or model (default: the default pair)"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.fetch import bars, fetch
    from edgespec.registry import load_registry

    registry = load_registry()
    # A pair and its target may have one name: the pair is meant, with all that it needs.
    paired = args.name is None or args.name in registry.pairs
    specs = registry.pair(args.name).models if paired else (registry.model(args.name),)
    for spec in specs:
        with bars() as on_fetch:
            path = fetch(spec, progress=partial(on_fetch, spec.name))
        print_path(path)
    return 0
