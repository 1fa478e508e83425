"""The chat: `edgespec chat`."""

from __future__ import annotations

import argparse

from edgespec.commands.shared import add_pair, introduction, open_runtime, sampling_params
from edgespec.options import add_answer_options, add_model_options


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("chat", help="chat with a model in the terminal")
    add_pair(parser)
    parser.set_defaults(command=run)
    add_model_options(parser)
    add_answer_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.console import chat, say

    with open_runtime(args) as runtime:
        say(*introduction(runtime))
        return chat(runtime, sampling_params(args), system=args.system, max_tokens=args.max_tokens)
