"""What there is: `edgespec models`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.registry import ModelSpec, PairSpec


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("models", help="list the pairs there are")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.fetch import human_bytes, is_here
    from edgespec.registry import load_registry

    registry = load_registry()
    here = {
        pair.name: all(is_here(spec) for spec in pair.models) for pair in registry.pairs.values()
    }
    if args.json:
        rows = [
            {
                "pair": pair.name,
                "description": pair.description,
                "download_bytes": pair.size_bytes,
                "memory_bytes": pair.memory_bytes,
                "licences": pair.licences,
                "drafters": [_name(drafter) for drafter in pair.drafters],
                "here": here[pair.name],
                "untested": pair.untested,
                "default": pair is registry.default,
            }
            for pair in registry.pairs.values()
        ]
        print(json.dumps(rows, indent=2))
        return 0
    table = [("PAIR", "DOWNLOAD", "MEMORY", "LICENCE", "DRAFTERS", "STATE")]
    for pair in registry.pairs.values():
        state = ["here" if here[pair.name] else "missing" if _lost(pair) else "to download"]
        state += ["untested"] * pair.untested + ["default"] * (pair is registry.default)
        table.append(
            (
                pair.name,
                human_bytes(pair.size_bytes),
                human_bytes(pair.memory_bytes),
                ", ".join(pair.licences),
                ", ".join(map(_name, pair.drafters)),
                ", ".join(state),
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    print("untested: taken from its publisher's page, never run by us", file=sys.stderr)
    return 0


def _lost(pair: PairSpec) -> bool:
    """Whether a file that nothing can download isn't where the models file says."""
    from edgespec.fetch import is_here
    from edgespec.registry import FileSource

    return any(isinstance(m.source, FileSource) and not is_here(m) for m in pair.models)


def _name(drafter: ModelSpec | str) -> str:
    return drafter if isinstance(drafter, str) else drafter.name
