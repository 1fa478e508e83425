"""Does speculation pay for a pair on this machine? `edgespec tune`."""

from __future__ import annotations

import argparse

from edgespec.commands.shared import add_pair, introduction, open_runtime, read_prompts
from edgespec.errors import ConfigError, ModelError
from edgespec.options import add_model_options, count

_LEAST_TOKENS = 16


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "tune",
        help="measure a pair on this machine: does speculation pay, and by how much?",
        description="Measures what passes cost here and how many draft tokens of each drafter "
        "stand, and says whether that pays; later answers use what was measured.",
    )
    add_pair(parser)
    parser.add_argument(
        "--prompts", metavar="FILE|NAME",
        help="JSON lines with `turns`, or what `bench` names (default: a few of our own)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens",
        type=count,
        default=64,
        metavar="N",
        help="of each sample answer, drawn at temperature 0 (64)",
    )
    parser.set_defaults(command=run)
    add_model_options(parser, refused=("draft", "lookahead"))


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.console import say
    from edgespec.planner import FixedPlanner
    from edgespec.sampling import GREEDY
    from edgespec.tune import Sample, report

    if args.lookahead != "auto":
        raise ConfigError("tune compares all lookaheads: leave --lookahead out")
    if not args.draft:
        raise ConfigError("tune measures drafters: leave --no-draft out")
    if args.max_tokens < _LEAST_TOKENS:
        raise ConfigError(
            f"answers of {args.max_tokens} tokens show too little of a drafter: "
            f"--max-tokens {_LEAST_TOKENS} or more"
        )
    prompts = read_prompts(args.prompts)
    with open_runtime(args, measure_again=True) as runtime:
        say(*introduction(runtime))
        costs = runtime.costs
        if costs is None:
            raise ConfigError("there is nothing to tune: this pair has no drafter that can be used")
        samples: dict[str, Sample | None] = {}
        for name in runtime.drafters:
            say(f"answering sample prompts with {name}...")
            accepted = rejected = drafts = rounds = 0
            for prompt in prompts:
                answer = runtime.conversation().send(
                    prompt, GREEDY, max_tokens=args.max_tokens, planner=FixedPlanner([name], 4)
                )
                if answer.result.notes:
                    raise ModelError(answer.result.notes[0])
                counters = answer.result.counters
                # What stands behind a rejected token says nothing of the drafter.
                accepted += counters.accepted
                rejected += sum(counts.rejections for counts in counters.drafters.values())
                drafts += sum(counts.rounds for counts in counters.drafters.values())
                rounds += counters.rounds
            judged = accepted + rejected
            samples[name] = Sample(accepted / judged, drafts / rounds) if judged else None
        free = {name for name, drafter in runtime.drafters.items() if drafter.free}
        for line in report(costs, samples, free):
            print(line)
    return 0
