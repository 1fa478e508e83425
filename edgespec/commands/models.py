"""What there is: `edgespec models`."""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from typing import TYPE_CHECKING

from edgespec.terminal import printable

if TYPE_CHECKING:
    from edgespec.registry import ModelSpec


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "models",
        help="list the pairs there are",
        description="Lists the pairs there are: what they take on the disk and in memory, their "
        "licences, what drafts, and whether they are here.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(command=run, if_cut=0)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.fetch import is_here, lost
    from edgespec.registry import load_registry
    from edgespec.units import human_bytes

    registry = load_registry()
    missing = {
        pair.name: [spec for spec in pair.models if not is_here(spec)]
        for pair in registry.pairs.values()
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
                "here": not missing[pair.name],
                "untested": pair.untested,
                "default": pair is registry.default,
            }
            for pair in registry.pairs.values()
        ]
        print(json.dumps(rows, indent=2))
        return 0
    table = [("PAIR", "DOWNLOAD", "MEMORY", "LICENCE", "DRAFTERS", "STATE")]
    for pair in registry.pairs.values():
        lacks = missing[pair.name]
        state = ["missing" if lost(lacks) else "to download" if lacks else "here"]
        state += ["untested"] * pair.untested + ["default"] * (pair is registry.default)
        table.append(
            (
                _plain(pair.name),
                human_bytes(pair.size_bytes),
                human_bytes(pair.memory_bytes),
                _plain(", ".join(pair.licences)),
                _plain(", ".join(map(_name, pair.drafters))),
                ", ".join(state),
            )
        )
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    for row in table:
        padded = (c + " " * (width - _cells(c)) for c, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())
    print("untested: taken from its publisher's page, never run by us", file=sys.stderr)
    print(
        "memory: with the usual context, 8192 tokens at most; a smaller --ctx-size takes less",
        file=sys.stderr,
    )
    return 0


def _name(drafter: ModelSpec | str) -> str:
    return drafter if isinstance(drafter, str) else drafter.name


def _plain(text: str) -> str:
    """What a models file says, in one line and with its control characters made visible."""
    return " ".join(printable(text).split())


def _cells(text: str) -> int:
    """Columns of a terminal that a text takes: two for a wide letter, none for a combining mark."""
    return sum(
        1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
        if unicodedata.category(letter) not in ("Mn", "Me", "Cf")
    )
