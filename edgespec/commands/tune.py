"""Does speculation pay for a pair on this machine? `edgespec tune`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.commands.shared import add_pair, introduction, open_runtime, read_prompts
from edgespec.errors import ConfigError, ModelError
from edgespec.options import add_model_options, count

if TYPE_CHECKING:
    from edgespec.metrics import Counters
    from edgespec.planner import Planner
    from edgespec.runtime import Runtime
    from edgespec.tune import Answer, Sample

_LEAST_TOKENS = 16


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "tune",
        help="measure a pair on this machine: does speculation pay, and by how much?",
        description="Measures what passes cost here and how many draft tokens of each drafter "
        "stand, answers sample prompts as `chat` would, and says whether that pays; later answers "
        "use what was measured.",
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
    from edgespec.tune import report, verdict

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
        # The planner first: afterwards a drafter's cache may hold the end of the last prompt.
        say("answering sample prompts as the planner decides...")
        sentence = verdict(planned(runtime, prompts, args.max_tokens))
        samples: dict[str, Sample | None] = {}
        for name in runtime.drafters:
            say(f"answering sample prompts with {name}...")
            samples[name] = sampled(runtime, prompts, args.max_tokens, name)
        free = {name for name, drafter in runtime.drafters.items() if drafter.free}
        for line in (*report(costs, samples, free), "", sentence):
            print(line)
    return 0


def planned(runtime: Runtime, prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """Each prompt's answer by the runtime's own planner, which learns from it."""
    from edgespec.tune import Answer

    answers = []
    for prompt in prompts:
        counters = _answered(runtime, prompt, max_tokens, None)
        gain = runtime.status().gain
        # A draft that two wrote in turn is named by both.
        drafters = dict.fromkeys(name for named in counters.drafters for name in named.split("+"))
        answers.append(Answer(counters.decoded, gain, tuple(drafters)))
    return answers


def sampled(
    runtime: Runtime, prompts: Sequence[str], max_tokens: int, drafter: str
) -> Sample | None:
    """What the prompts' answers show of one drafter, asked in every round; None: no guess."""
    from edgespec.planner import FixedPlanner
    from edgespec.tune import Sample

    accepted = rejected = drafts = rounds = 0
    for prompt in prompts:
        counters = _answered(runtime, prompt, max_tokens, FixedPlanner([drafter], 4))
        # What stands behind a rejected token says nothing of the drafter.
        accepted += counters.accepted
        rejected += sum(counts.rejections for counts in counters.drafters.values())
        drafts += sum(counts.rounds for counts in counters.drafters.values())
        rounds += counters.rounds
    judged = accepted + rejected
    return Sample(accepted / judged, drafts / rounds) if judged else None


def _answered(runtime: Runtime, prompt: str, max_tokens: int, planner: Planner | None) -> Counters:
    from edgespec.sampling import GREEDY

    chat = runtime.conversation()
    result = chat.send(prompt, GREEDY, max_tokens=max_tokens, planner=planner).result
    if result.notes:
        raise ModelError(result.notes[0])
    return result.counters
