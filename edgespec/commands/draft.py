"""A drafter cut out of a model, where there is none: `edgespec draft`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.draft_sample import Choice, Sample
from edgespec.commands.shared import print_path, tell
from edgespec.errors import ConfigError
from edgespec.options import count, positive
from edgespec.platform import expanded
from edgespec.terminal import printable

if TYPE_CHECKING:
    from edgespec.exporters.draft import Source


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "draft",
        help="cut a drafter out of a model that has none, and measure whether it pays",
        description="Makes a drafter for TARGET by leaving out blocks, rows of the output head or "
        "bits, and measures on this machine what it costs, how many of its draft tokens stand and "
        "what that gains. Options that are given several times make every combination, and OUT is "
        "then a folder. The output stays the target's own: what a drafter can't say, it never "
        "drafts.",
    )
    parser.add_argument(
        "target", metavar="TARGET", type=Path,
        help="the model to draft for: a GGUF file, or a folder with an ONNX model",
    )  # fmt: skip
    parser.add_argument("out", metavar="OUT", type=Path, help="the file, or folder, to write")
    parser.add_argument(
        "--from", dest="source", metavar="PATH", type=Path,
        help="cut this model, which has the target's tokens (default: TARGET itself)",
    )  # fmt: skip
    parser.add_argument(
        "--layers", action="append", default=[], metavar="BLOCKS",
        help="the blocks to keep: first:8, last:4, 0-5,20 or parts of these with commas; auto:12 "
        "leaves out those that matter least (all)",
    )  # fmt: skip
    parser.add_argument(
        "--vocab", action="append", default=[], type=count, metavar="N",
        help="keep the N most frequent tokens in the output head (all)",
    )  # fmt: skip
    parser.add_argument(
        "--quant", action="append", default=[], type=str.lower, metavar="TYPE",
        help="store the weights as llama.cpp's q4_0, q8_0, ..., or of an ONNX model with floats as "
        "int4 or int8 (as they are)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", action="append", default=[], metavar="PATH", type=Path,
        help="a text like what the target will write, or a folder of such (your code, your "
        "notes), to choose tokens by beside its own answers; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", metavar="FILE|NAME",
        help="JSON lines with `turns`, or what `bench` names: drafters are judged by the answers "
        "to every other one, and the rest serve as the sample (default: a few of our own)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=count, default=96, metavar="N",
        help="of each sample answer, at least 2 (96)",
    )  # fmt: skip
    parser.add_argument(
        "--measure", action=argparse.BooleanOptionalAction, default=True,
        help="measure what was made (--no-measure only writes it)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (the usable CPUs)"
    )
    parser.add_argument(
        "--register", metavar="NAME", help="add the target with the drafter that pays most to "
        "your models.toml, as the pair NAME",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace what is there already")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.commands import draft_register
    from edgespec.commands.progress import shown
    from edgespec.exporters import extra

    extra.require("gguf")
    from edgespec.exporters.draft import make, open_source
    from edgespec.exporters.staging import refuse_existing
    from edgespec.trial import table, verdict
    from edgespec.units import human_bytes

    if args.measure and args.max_tokens < 2:  # an answer's first token is never drafted
        raise ConfigError("an answer of one token leaves nothing to draft: --max-tokens 2, or more")
    args.target, args.out = expanded(args.target), expanded(args.out)
    args.source = args.source and expanded(args.source)
    source: Path = args.source or args.target
    opened = open_source(source)
    asked = _combinations(args, opened)
    paths = _destinations(args.out, opened, asked)
    for path in paths:
        refuse_existing(path, args.force, [source, args.target])
    if args.register:
        draft_register.refuse(args.register, [args.target, source, *paths], measured=args.measure)
    with _folder(paths[0].parent), Sample(args, opened) as sample:
        sample.prepare(asked)
        for path, choice in zip(paths, asked, strict=True):
            variant = sample.decide(choice)
            notes: list[str] = []
            with shown() as report:
                make(
                    source, path, variant, report=report, threads=args.threads,
                    overwrite=args.force, tell=notes.append,
                )  # fmt: skip
            for note in notes:
                tell(f"note: {path.name}: {note}")
            print_path(path)
        if not args.measure:
            return 0
        trials = [sample.tried(path) for path in paths]
        if args.source:
            trials.append(sample.tried(source, "(uncut)"))
            paths.append(source)
    for line in table(trials, human_bytes):
        print(line)
    print()
    print(printable(verdict(trials, args.target.name)))
    if args.register:
        tried = list(zip(trials, paths, strict=True))
        done = draft_register.best(args.register, args.target, tried, uncut=source)
        tell(done)
    return 0


def _combinations(args: argparse.Namespace, source: Source) -> list[Choice]:
    """What to make; whatever can't be made is refused here, or by `Sample.prepare`."""
    from edgespec.exporters import layers

    if not (args.layers or args.vocab or args.quant):
        raise ConfigError("nothing is to be cut: name --layers, --vocab or --quant")
    parsed = [layers.parse(text, source.blocks) for text in args.layers]
    chooses = args.vocab or any(isinstance(one, layers.Automatic) for one in parsed)
    if args.sample and not chooses:
        raise ConfigError(
            "--sample says which tokens and blocks matter, and nothing here depends on that: leave "
            "it out, or name --vocab or --layers auto:N"
        )
    for quant in args.quant:
        source.check_quant(quant)
    every = product(args.layers or [None], args.vocab or [None], args.quant or [None])
    return [Choice(*each) for each in dict.fromkeys(every)]


def _destinations(out: Path, source: Source, asked: Sequence[Choice]) -> list[Path]:
    from edgespec.backends.onnx_folder import find

    if len(asked) == 1 and (not out.is_dir() or find(out) is not None):
        return [out]  # where an ONNX model is already, it is meant to be replaced
    if len(asked) > 1 and out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: {len(asked)} drafters need a folder, so name another")
    return [out / f"{source.stem}-{choice.label}{source.suffix}" for choice in asked]


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """A folder that is there while the block lasts; if it was made for nothing, it goes again."""
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make the folder {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        if made and not any(path.iterdir()):
            path.rmdir()
