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
from edgespec.options import add_answer_options, add_model_options, count

if TYPE_CHECKING:
    from edgespec.registry import ModelSpec
    from edgespec.runtime import Runtime
    from edgespec.sampling import SamplingParams


_SAMPLE_PROMPTS = (
    "Write a Python function that merges two sorted lists, with a docstring.",
    "Explain in a few sentences why the sky is blue.",
    "Repeat this list twice, then add a fifth fruit: apple, pear, plum, cherry.",
)


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
            print(json.dumps(as_json(generation.result, runtime.status())), flush=True)
        else:
            print(flush=True)
            say(summary(generation.result, runtime.status()))
        return 0 if completed else 130


def _verify(args: argparse.Namespace) -> int:
    from edgespec.console import say
    from edgespec.divergence import compare

    args.pair = args.name or args.pair
    lookahead = 3 if args.lookahead == "auto" else args.lookahead

    def opened(speculate: bool) -> Runtime:
        args.lookahead = lookahead if speculate else 0
        say(f"comparing: {'speculative' if speculate else 'plain'} answers...")
        return _open(args)

    report = compare(
        opened,
        _prompts(args.prompts),
        sampling=_sampling(args),
        max_tokens=args.max_tokens,
        repeats=args.repeats,
    )
    for found in report.differences:
        print(
            f"prompt {found.prompt + 1}: first difference at token {found.token + 1}, top-2 gap "
            f"{found.gap:.3g}, {'not ' * (found in report.unexplained)}explained by rounding"
        )
    print(report.verdict)
    return 0 if report.exact else 1


def _tune(args: argparse.Namespace) -> int:
    from edgespec.console import say
    from edgespec.planner import FixedPlanner
    from edgespec.sampling import GREEDY
    from edgespec.tune import report

    args.pair = args.name or args.pair
    args.lookahead = "auto"
    with _open(args, measure_again=True) as runtime:
        say(*_introduction(runtime))
        costs = runtime.costs
        if costs is None:
            raise ConfigError("there is nothing to tune: this pair has no drafter that can be used")
        acceptance: dict[str, float | None] = {}
        for name in runtime.drafters:
            say(f"answering sample prompts with {name}...")
            drafted = accepted = 0
            for prompt in _prompts(args.prompts):
                answer = runtime.conversation().send(
                    prompt, GREEDY, max_tokens=args.max_tokens, planner=FixedPlanner([name], 4)
                )
                counters = answer.result.counters
                drafted, accepted = drafted + counters.drafted, accepted + counters.accepted
            acceptance[name] = accepted / drafted if drafted else None
        free = {name for name, drafter in runtime.drafters.items() if drafter.free}
        for line in report(costs, acceptance, free):
            print(line)
    return 0


def _prompts(path: str | None) -> list[str]:
    """The first turns of a prompt file (JSON lines with `turns`), or a few of our own."""
    if path is None:
        return list(_SAMPLE_PROMPTS)
    from pathlib import Path

    try:
        lines = Path(path).expanduser().read_text("utf-8").splitlines()
        prompts = [str(json.loads(line)["turns"][0]) for line in lines if line.strip()]
    except OSError as error:
        raise ConfigError(f"can't read the prompts in {path}: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(
            f'{path} holds no prompts: each line is a JSON object like {{"turns": ["..."]}}'
        ) from None
    if not prompts:
        raise ConfigError(f"{path} holds no prompts")
    return prompts


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


def _open(args: argparse.Namespace, *, measure_again: bool = False) -> Runtime:
    from edgespec.registry import LOOKUP
    from edgespec.runtime import Runtime

    drafters: list[str] | None = args.drafter or None
    if not args.draft:
        if drafters:
            raise ConfigError("--no-draft and --drafter contradict each other: drop one")
        drafters = []
    elif drafters and args.lookup and LOOKUP not in drafters:
        drafters = [LOOKUP, *drafters]
    return Runtime.open(
        args.pair,
        target=args.target,
        drafters=drafters,
        lookahead=args.lookahead,
        context_size=args.ctx_size,
        threads=args.threads,
        gpu_layers=args.gpu_layers,
        measure_again=measure_again,
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
        typical_p=args.typical_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        penalty_window=args.penalty_window,
        seed=args.seed,
        rule=args.rule,
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
    add_model_options(chat)
    add_answer_options(chat)

    run = commands.add_parser("run", help="answer one prompt and end")
    run.add_argument("prompt", nargs="*", metavar="PROMPT", help='"-" or nothing: read stdin')
    run.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="end the answer before this text (may be given again)",
    )  # fmt: skip
    run.set_defaults(command=_run)
    add_model_options(run)
    add_answer_options(run)

    verify = commands.add_parser(
        "verify", help="compare a pair's answers with its target's: is it exact on this machine?"
    )
    verify.add_argument("name", nargs="?", metavar="PAIR", help="a pair that `models` lists")
    verify.add_argument("--prompts", metavar="FILE", help="JSON lines with `turns`")
    verify.add_argument(
        "--repeats", type=count, default=4, metavar="N",
        help="sampled answers to each prompt; 0 compares greedy ones only (4)",
    )  # fmt: skip
    verify.set_defaults(command=_verify)
    add_model_options(verify)
    add_answer_options(verify, max_tokens=64)

    tune = commands.add_parser(
        "tune", help="measure a pair on this machine: does speculation pay, and by how much?"
    )
    tune.add_argument("name", nargs="?", metavar="PAIR", help="a pair that `models` lists")
    tune.add_argument("--prompts", metavar="FILE", help="JSON lines with `turns`")
    tune.add_argument(
        "--max-tokens", type=count, default=64, metavar="N", help="of each sample answer (64)"
    )
    tune.set_defaults(command=_tune)
    add_model_options(tune)

    pull = commands.add_parser("pull", help="download a pair's models, or one model")
    pull.add_argument(
        "name", nargs="?", metavar="NAME", help="a pair or model (default: the default pair)"
    )
    pull.set_defaults(command=_pull)

    models = commands.add_parser("models", help="list the pairs there are")
    models.add_argument("--json", action="store_true", help="print a JSON list")
    models.set_defaults(command=_models)
    return parser


if __name__ == "__main__":
    sys.exit(main())
