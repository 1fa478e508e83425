"""What several commands do with the same options: open a runtime, read prompts, sample.

Invariant: whatever contradicts itself on the command line is refused before a model is opened.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ConfigError
from edgespec.terminal import printable

if TYPE_CHECKING:
    from edgespec.runtime import Runtime
    from edgespec.sampling import SamplingParams

_SAMPLE_PROMPTS = (
    "Write a Python function that merges two sorted lists, with a docstring.",
    "Explain in a few sentences why the sky is blue.",
    "Repeat this list twice, then add a fifth fruit: apple, pear, plum, cherry.",
)


def tell(text: str) -> None:
    """Say something beside the result: on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def print_path(path: Path) -> None:
    """A path as the result: safe on a terminal, and as it is for another program."""
    print(printable(str(path)) if sys.stdout.isatty() else path, flush=True)


def add_pair(parser: argparse.ArgumentParser, *, default: str = "the default pair") -> None:
    """The pair as a command's one positional argument; `default`: the one where none is named."""
    parser.add_argument(
        "name", nargs="?", metavar="PAIR", help=f"a pair that `models` lists (default: {default})"
    )


def pair_name(args: argparse.Namespace) -> str | None:
    """The pair that was named, as PAIR or with --pair; None for the default one."""
    name: str | None = getattr(args, "name", None)
    pair: str | None = args.pair
    if name is not None and pair is not None:
        raise ConfigError("the pair is named twice: drop --pair")
    return name or pair


def open_runtime(args: argparse.Namespace, *, measure_again: bool = False) -> Runtime:
    """The runtime that the options describe."""
    from edgespec.fetch import bars
    from edgespec.runtime import Runtime

    with bars() as on_fetch:
        return Runtime.open(
            pair_name(args),
            target=args.target,
            drafters=drafters(args),
            lookahead=args.lookahead,
            context_size=args.ctx_size,
            threads=args.threads,
            gpu_layers=args.gpu_layers,
            device=args.device,
            allow_cpu=args.allow_cpu,
            measure_again=measure_again,
            report=lambda what: tell(f"{what}..."),
            on_fetch=on_fetch,
        )


def drafters(args: argparse.Namespace) -> list[str] | None:
    """What drafts, as `Runtime.open` takes it; None for all that the pair has.

    Lookup costs nothing, so it comes with a drafter model unless --drafters leaves it out.
    """
    from edgespec.registry import LOOKUP, MODEL

    files: list[str] = args.drafter or []
    named: list[str] | None = args.drafters
    if not args.draft:
        if files or named:
            raise ConfigError("--no-draft and a choice of drafters contradict each other: drop one")
        return []
    if named is None:
        return [LOOKUP, *files] if files and LOOKUP not in files else files or None
    if not files:
        return named
    chosen = [file for name in named for file in (files if name == MODEL else [name])]
    unused = [file for file in files if file not in chosen]
    if unused:
        raise ConfigError(
            f"--drafters leaves out {unused[0]}: add `model` to it, or drop --drafter"
        )
    return chosen


def introduction(runtime: Runtime) -> list[str]:
    """What runs where, and what the person should know about it."""
    from edgespec.session import device_of

    target = runtime.target
    where = device_of(target) or "unknown device"
    drafts = ", ".join(_with_device(runtime, name, where) for name in runtime.drafters) or "none"
    return [
        f"{target.name} on {where}, drafters: {drafts}, context {runtime.context_size} tokens",
        *(f"note: {note}" for note in runtime.notes),
    ]


def _with_device(runtime: Runtime, drafter: str, usual: str) -> str:
    """A drafter's name, and what it runs on where that isn't the target's device."""
    from edgespec.session import device_of

    where = device_of(getattr(runtime.drafters[drafter], "model", None)) or usual
    return drafter if where == usual else f"{drafter} (on {where})"


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling that the options describe."""
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


def read_prompts(path: str | None) -> list[str]:
    """The first turns of what `bench --prompts` takes, in order, or a few of our own."""
    if path is None:
        return list(_SAMPLE_PROMPTS)
    from edgespec.bench.prompts import load

    return [prompt.turns[0] for prompt in load(path).prompts]
