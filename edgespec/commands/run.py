"""One prompt, one answer: `edgespec run`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from edgespec.commands.shared import introduction, open_runtime, sampling_params, tell
from edgespec.errors import ConfigError, EdgespecError
from edgespec.options import add_answer_options, add_model_options


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "run",
        help="answer one prompt and end",
        description="Answers one prompt: the answer goes to stdout, and how fast it came and what "
        "drafting gained to stderr.",
    )
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help='"-" or nothing: read stdin')
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="end the answer before this text (may be given again)",
    )  # fmt: skip
    parser.set_defaults(command=run, if_cut=0)
    add_model_options(parser)
    add_answer_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.console import say, stream
    from edgespec.figures import as_json, summary

    prompt = " ".join(_words(args.prompt))
    if not prompt.strip():
        raise ConfigError('the prompt is empty: edgespec run "your question"')
    sampling = sampling_params(args)
    _tell_of_a_pair(args)
    with open_runtime(args) as runtime:
        say(*introduction(runtime))
        conversation = runtime.conversation(args.system)
        generation = conversation.send(prompt, sampling, max_tokens=args.max_tokens, stop=args.stop)
        say(*(f"note: {note}" for note in generation.notes))
        try:
            completed = stream(generation, silent=args.json)
        except EdgespecError as error:  # what came of the answer isn't lost with its end
            if args.json:
                print(json.dumps({"text": generation.text, "error": str(error)}), flush=True)
            elif generation.text:
                print(flush=True)
            raise
        if args.json:
            print(json.dumps(as_json(generation.result, runtime.status())), flush=True)
        else:
            print(flush=True)
            say(summary(generation.result, runtime.status()))
        return 0 if completed else 130


def _tell_of_a_pair(args: argparse.Namespace) -> None:
    """A pair's name stands behind the prompt, where other commands have it."""
    from edgespec.registry import load_registry

    if len(args.prompt) > 1 and not (args.pair or args.target):
        name = args.prompt[-1]
        if name in load_registry().pairs:
            tell(f"note: {name} is read as a part of the prompt; --pair {name} chooses that pair")


def _words(words: Sequence[str]) -> list[str]:
    """The prompt's words; "-" is what stdin holds, as is a prompt that wasn't given.

    Among other words at a terminal it is a minus: nobody who types a sum waits for more.
    """
    if not words and sys.stdin.isatty():
        raise ConfigError('no prompt: edgespec run "your question", or pipe one in')
    words = words or ["-"]
    reads = len(words) == 1 or not sys.stdin.isatty()
    return [sys.stdin.read() if word == "-" and reads else word for word in words]
