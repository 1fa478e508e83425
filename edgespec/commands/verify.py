"""Is a pair exact on this machine? `edgespec verify`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgespec.commands.shared import (
    add_pair,
    introduction,
    open_runtime,
    pair_name,
    read_prompts,
    sampling_params,
)
from edgespec.errors import ConfigError
from edgespec.options import add_answer_options, add_model_options, count

_LOOKAHEAD = 3

if TYPE_CHECKING:
    from edgespec.runtime import Runtime


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help="compare a pair's answers with its target's: is it exact on this machine?",
        description="Answers prompts with and without drafting and compares them. A round drafts "
        f"{_LOOKAHEAD} tokens, as --lookahead says; long checks may run through other code of a "
        "backend's, so a second run with --lookahead 16 tests more. The exit status is 0 where the "
        "pair is exact on this machine, and 1 where it isn't, where nothing was drafted, or where "
        "it failed.",
    )
    add_pair(parser)
    parser.add_argument(
        "--prompts", metavar="FILE|NAME",
        help="JSON lines with `turns`, or what `bench` names (default: a few of our own)",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=count, default=4, metavar="N",
        help="sampled answers to each prompt; 0 compares greedy ones only (4)",
    )  # fmt: skip
    parser.set_defaults(command=run)
    add_model_options(parser, fixed=_LOOKAHEAD, refused=("draft",))
    add_answer_options(parser, max_tokens=64, system=False)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.console import say
    from edgespec.divergence import compare

    pair_name(args)  # says what is wrong before it says what it does
    if not args.draft or args.lookahead == 0:
        raise ConfigError(
            "verify compares drafted answers with plain ones: leave --no-draft and --lookahead 0 "
            "out"
        )
    if args.lookahead == "auto":
        raise ConfigError(
            "verify drafts as many tokens in every round, since a planner may draft none: give "
            "--lookahead a number, or leave it out"
        )
    told: list[str] = []
    lookahead: int = args.lookahead

    def opened(speculate: bool) -> Runtime:
        args.lookahead = lookahead if speculate else 0
        drafted = f"speculative answers, {lookahead} draft token{'s' * (lookahead > 1)} a round"
        say(f"comparing: {drafted if speculate else 'plain answers'}...")
        runtime = open_runtime(args)
        lines = [line for line in introduction(runtime) if line not in told]
        told.extend(lines)
        say(*lines)
        return runtime

    report = compare(
        opened,
        read_prompts(args.prompts),
        sampling=sampling_params(args),
        max_tokens=args.max_tokens,
        repeats=args.repeats,
    )
    for found in (*report.differences, *report.redrawn):
        print(
            f"prompt {found.prompt + 1}: first difference at token {found.token + 1}, gap "
            f"{found.gap:.3g}, {'not ' * (found in report.unexplained)}explained by rounding"
        )
    print(report.verdict)
    return 0 if report.exact else 1
