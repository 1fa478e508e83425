"""A checkpoint to GGUF: `edgespec export gguf`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.shared import print_path, tell
from edgespec.platform import expanded

if TYPE_CHECKING:
    from edgespec.exporters.checkpoint import Checkpoint

_QUANTS = "f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0 and what else llama.cpp offers"


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the kind."""
    parser = kinds.add_parser(
        "gguf", help="one GGUF file, for llama.cpp",
        description="Writes a checkpoint as one GGUF file, checks it against the checkpoint, and "
        "puts a manifest beside it.",
    )  # fmt: skip
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a folder with config.json and safetensors, or "
        "a hub id (owner/name)",
    )  # fmt: skip
    parser.add_argument(
        "out", nargs="?", metavar="OUT", type=Path, help="the file to write, or a folder for it "
        "(NAME-QUANT.gguf here)",
    )  # fmt: skip
    add_quant(parser, "--quant", "f16", "f16")
    add_export_options(parser, "CHECKPOINT")
    parser.add_argument(
        "--converter", metavar="PATH", type=Path, help="llama.cpp's convert_hf_to_gguf.py, to "
        "use instead of our own conversion: for a model family we don't know",
    )  # fmt: skip
    parser.add_argument(
        "--register", metavar="NAME", help="add it to your models.toml as the pair NAME, with "
        "lookup as its drafter",
    )  # fmt: skip
    parser.set_defaults(command=run)


def add_quant(
    parser: argparse.ArgumentParser, flag: str, default: str | None, shown: str, also: str = ""
) -> None:
    """The option for a type of quantisation; its help names the default as `shown` does.

    also: types of another format, behind those of llama.cpp's.
    """
    parser.add_argument(
        flag, default=default, metavar="TYPE", type=str.lower,
        help=f"how to store the weights: {_QUANTS}{also} ({shown})",
    )  # fmt: skip


def add_export_options(parser: argparse.ArgumentParser, model: str, *, draft: bool = False) -> None:
    """What every export takes.

    model: whose --revision is, as the usage names it. draft: whether a draft may come with it.
    """
    parser.add_argument(
        "--revision", metavar="REVISION",
        help=f"a branch, tag or commit of {model} on the hub (the newest)",
    )  # fmt: skip
    if draft:
        parser.add_argument(
            "--draft-revision", metavar="REVISION", help="the same, of the draft (the newest)"
        )
    parser.add_argument("--force", action="store_true", help="replace what is there already")


def tell_notes(*checkpoints: Checkpoint) -> None:
    """What the person should know of where they came from."""
    for checkpoint in checkpoints:
        for note in checkpoint.notes:
            tell(f"note: {checkpoint.name}: {note}")


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.commands.progress import shown
    from edgespec.exporters import extra
    from edgespec.exporters.checkpoint import Checkpoint, Outline
    from edgespec.exporters.register import Exported, pair_entry, refuse_taken, register

    extra.require("gguf", "tokenizers")
    from edgespec.exporters import gguf, gguf_converter, gguf_quant
    from edgespec.exporters.gguf_pair import require_fit
    from edgespec.exporters.staging import refuse_existing, require_place, require_text

    # Whatever can be refused is refused before a download, or before that of the weights.
    quant = gguf_quant.quant(args.quant)
    out = expanded(args.out or "")
    if out.is_dir():
        out /= f"{Checkpoint.name_of(args.checkpoint)}-{quant.name}.gguf"
    refuse_existing(out, args.force)
    require_place(out)
    require_text(out.absolute(), args.converter or "")
    if args.converter:
        gguf_converter.found(args.converter)
    if args.register:
        refuse_taken([args.register])
    with shown() as report:
        outline = Outline.open(args.checkpoint, args.revision, report)
        if not args.converter:
            require_fit([outline])
        checkpoint = Checkpoint.of(outline, report)
    tell_notes(checkpoint)
    tell(gguf.estimate(checkpoint, quant))
    with shown() as report:
        result = gguf.export(
            checkpoint, out, quant, overwrite=args.force, converter=args.converter, report=report
        )
    for note in result.notes:
        tell(f"note: {note}")
    tell(result.summary)
    if args.register:
        model = Exported(args.register, result.path, "gguf", checkpoint.licence)
        entry = pair_entry(args.register, model, [], f"{checkpoint.name}, {quant.name}")
        file = register(entry, [args.register])
        tell(f"registered as {args.register} in {file}")
    print_path(result.path)
    return 0
