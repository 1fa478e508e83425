"""The command line: parse, call, print.

Invariant: an expected failure is one sentence on stderr and a non-zero exit, never a traceback;
nothing heavy is imported before the arguments are known to make sense.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec import __version__
from edgespec.errors import ConfigError, EdgespecError

if TYPE_CHECKING:
    from edgespec.registry import ModelSpec
    from edgespec.runtime import Runtime
    from edgespec.sampling import SamplingParams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # what can't be read or shown becomes "?"
    args = _parser().parse_args(argv)
    try:
        return int(args.command(args))
    except EdgespecError as error:
        from edgespec.terminal import printable

        print(printable(f"edgespec: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("edgespec: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): what it wanted it has. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _chat(args: argparse.Namespace) -> int:
    from edgespec.console import chat, say

    if args.name is not None and args.pair is not None:
        raise ConfigError("name the pair once: edgespec chat NAME")
    args.pair = args.name or args.pair
    with _open(args) as runtime:
        say(*_introduction(runtime))
        return chat(runtime, _sampling(args), system=args.system, max_tokens=args.max_tokens)


def _run(args: argparse.Namespace) -> int:
    from edgespec.console import say, stream
    from edgespec.figures import as_json, summary

    prompt = " ".join(_words(args.prompt))
    if not prompt.strip():
        raise ConfigError('the prompt is empty: edgespec run "your question"')
    sampling = _sampling(args)
    with _open(args) as runtime:
        say(*_introduction(runtime))
        conversation = runtime.conversation(args.system)
        generation = conversation.send(prompt, sampling, max_tokens=args.max_tokens, stop=args.stop)
        say(*(f"note: {note}" for note in generation.notes))
        completed = stream(generation, silent=args.json)
        if args.json:
            print(json.dumps(as_json(generation.result)), flush=True)
        else:
            print(flush=True)
            say(summary(generation.result))
        return 0 if completed else 130


def _pull(args: argparse.Namespace) -> int:
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


def _models(args: argparse.Namespace) -> int:
    from edgespec.fetch import local_path
    from edgespec.fetch.sources import human_bytes
    from edgespec.registry import load_registry

    registry = load_registry()
    here = {
        pair.name: all(local_path(spec) is not None for spec in pair.models)
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
        state = ["here" if here[pair.name] else "to download"]
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


def _name(drafter: ModelSpec | str) -> str:
    return drafter if isinstance(drafter, str) else drafter.name


def _open(args: argparse.Namespace) -> Runtime:
    from edgespec.runtime import Runtime

    drafters: list[str] | None = args.drafter or None
    if not args.draft:
        if drafters:
            raise ConfigError("--no-draft and --drafter contradict each other: drop one")
        drafters = []
    return Runtime.open(
        args.pair,
        target=args.target,
        drafters=drafters,
        lookahead=args.lookahead,
        context_size=args.ctx_size,
        threads=args.threads,
        gpu_layers=args.gpu_layers,
        report=lambda what: print(f"{what}...", file=sys.stderr, flush=True),
    )


def _introduction(runtime: Runtime) -> list[str]:
    """What runs where, and what the person should know about it."""
    target = runtime.target
    drafts = ", ".join(runtime.drafters) or "none"
    where = target.details.get("device", "unknown device")
    return [
        f"{target.name} on {where}, drafters: {drafts}, context {runtime.context_size} tokens",
        *(f"note: {note}" for note in runtime.notes),
    ]


def _sampling(args: argparse.Namespace) -> SamplingParams:
    from edgespec.sampling import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
    )


def _words(words: Sequence[str]) -> list[str]:
    """The prompt's words; "-" is what stdin holds, as is a prompt that wasn't given."""
    if not words and sys.stdin.isatty():
        raise ConfigError('no prompt: edgespec run "your question", or pipe one in')
    return [sys.stdin.read() if word == "-" else word for word in words or ["-"]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgespec",
        description="Run language models faster, with the same output, by speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"edgespec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    chat = commands.add_parser("chat", help="chat with a model in the terminal")
    chat.add_argument("name", nargs="?", metavar="PAIR", help="a pair that `models` lists")
    chat.set_defaults(command=_chat)
    _add_model_options(chat)
    _add_answer_options(chat)

    run = commands.add_parser("run", help="answer one prompt and end")
    run.add_argument("prompt", nargs="*", metavar="PROMPT", help='"-" or nothing: read stdin')
    run.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="end the answer before this text (may be given again)",
    )  # fmt: skip
    run.set_defaults(command=_run)
    _add_model_options(run)
    _add_answer_options(run)

    pull = commands.add_parser("pull", help="download a pair's models, or one model")
    pull.add_argument(
        "name", nargs="?", metavar="NAME", help="a pair or model (default: the default pair)"
    )
    pull.set_defaults(command=_pull)

    models = commands.add_parser("models", help="list the pairs there are")
    models.add_argument("--json", action="store_true", help="print a JSON list")
    models.set_defaults(command=_models)
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--pair", metavar="NAME", help="a pair that `models` lists")
    group.add_argument("--target", metavar="PATH", help="a GGUF file instead of a pair")
    group.add_argument(
        "--drafter", action="append", metavar="PATH",
        help="a GGUF file that drafts, or `lookup`; may be given again, the first that has a "
        "guess drafts",
    )  # fmt: skip
    group.add_argument(
        "--draft", action=argparse.BooleanOptionalAction, default=True,
        help="draft at all (--no-draft is plain decoding)",
    )  # fmt: skip
    group.add_argument(
        "--lookahead", type=_lookahead, default="auto", metavar="N|auto",
        help="draft tokens a round; auto measures and plans (auto)",
    )  # fmt: skip
    group.add_argument(
        "--ctx-size", type=_positive, metavar="N",
        help="tokens the context holds (default: the model's own, at most 8192)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=_positive, metavar="N", help="CPU threads (default: the usable CPUs)"
    )
    group.add_argument(
        "--gpu-layers", type=_count, metavar="N", help="layers on the GPU (default: all, if it can)"
    )


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    group.add_argument("--system", metavar="TEXT", help="the system prompt")
    group.add_argument(
        "--max-tokens", type=_count, default=1024, metavar="N", help="the longest answer (1024)"
    )
    group.add_argument(
        "--temperature", type=float, default=0.7, metavar="T",
        help="0 takes the likeliest token, more is more varied (0.7)",
    )  # fmt: skip
    group.add_argument(
        "--top-k", type=_count, default=40, metavar="K",
        help="of the K likeliest tokens; 0: all (40)",
    )  # fmt: skip
    group.add_argument(
        "--top-p", type=float, default=0.95, metavar="P",
        help="of the likeliest tokens up to this sum; 1: all (0.95)",
    )  # fmt: skip
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P",
        help="of tokens at least this share as likely as the likeliest; 0: all (0)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=_count, metavar="N",
        help="the same text again for the same seed, drafted or not: selects the rule "
        "`reproducible`",
    )  # fmt: skip


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def _lookahead(text: str) -> int | str:
    return text if text == "auto" else _count(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
