"""A checkpoint, or a target and its draft, to ONNX: `edgespec export onnx`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.export_gguf import add_export_options, tell_notes
from edgespec.commands.shared import print_path, tell
from edgespec.errors import ConfigError
from edgespec.platform import expanded

if TYPE_CHECKING:
    from edgespec.exporters.checkpoint import Checkpoint
    from edgespec.exporters.onnx import Result

DTYPES = ("fp32", "fp16", "int8", "int4")


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the kind."""
    parser = kinds.add_parser(
        "onnx", help="a folder with an ONNX model, for ONNX Runtime",
        description="Writes a checkpoint as a folder with model.onnx, its tokenizer and a "
        "manifest, and checks it against the checkpoint.",
    )  # fmt: skip
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a folder with config.json and safetensors, or "
        "a hub id (owner/name)",
    )  # fmt: skip
    parser.add_argument(
        "out", nargs="?", metavar="OUT", type=Path, help="the folder to write (NAME-DTYPE here)"
    )
    parser.add_argument(
        "--draft", metavar="CHECKPOINT", help="a smaller model of the same family to export with "
        "it; OUT then holds the folders `target` and `draft`",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=DTYPES, default="int4",
        help="how to store the weights: floats, or blocks of 8 or 4 bits (int4)",
    )  # fmt: skip
    parser.add_argument(
        "--draft-dtype", choices=DTYPES, help="how to store the draft's weights (as --dtype)"
    )
    add_style(parser)
    add_export_options(parser, "CHECKPOINT", draft=True)
    parser.add_argument(
        "--register", metavar="NAME", help="add it to your models.toml as the pair NAME, with "
        "lookup, and the draft where there is one, as its drafters",
    )  # fmt: skip
    parser.set_defaults(command=run)


def add_style(parser: argparse.ArgumentParser, only: str = "") -> None:
    """The options for a graph's style; `only`: what their help begins with."""
    style = parser.add_mutually_exclusive_group()
    style.add_argument(
        "--fused", dest="style", action="store_const", const="fused", help=f"{only}fused "
        "attention and a cache that stays in place (where the family is known)",
    )  # fmt: skip
    style.add_argument(
        "--portable", dest="style", action="store_const", const="portable", help=f"{only}plain "
        "operators, slower, for any architecture that optimum knows",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.commands.progress import shown
    from edgespec.exporters import onnx
    from edgespec.exporters.checkpoint import Checkpoint, Outline
    from edgespec.exporters.onnx_pair import export_pair, require_fit
    from edgespec.exporters.register import refuse_taken
    from edgespec.exporters.staging import refuse_existing, require_place, require_text

    for option in ("draft_dtype", "draft_revision"):
        if getattr(args, option) and not args.draft:
            named = option.replace("_", "-")
            raise ConfigError(f"--{named} is of a draft: name one with --draft")
    # Whatever can be refused is refused before a download, or before that of the weights.
    onnx.require_extra(args.style)
    out = expanded(args.out or f"{Checkpoint.name_of(args.checkpoint)}-{args.dtype}")
    refuse_existing(out, args.force)
    require_place(out)
    require_text(out.absolute())
    if args.register:
        refuse_taken([*_names(args.register, pair=bool(args.draft)), args.register])
    with shown() as report:
        outlines, dtypes = [Outline.open(args.checkpoint, args.revision, report)], [args.dtype]
        if args.draft:
            outlines.append(Outline.open(args.draft, args.draft_revision, report))
            dtypes.append(args.draft_dtype or args.dtype)
        require_fit(outlines, dtypes, args.style)
        checkpoints = [Checkpoint.of(outline, report) for outline in outlines]
    tell_notes(*checkpoints)
    for checkpoint, dtype in zip(checkpoints, dtypes, strict=True):
        tell(onnx.plan(checkpoint, dtype, args.style).sentence)
    with shown() as report:
        if args.draft:
            target, draft = checkpoints
            results = export_pair(
                target, draft, out, dtypes=(dtypes[0], dtypes[1]), style=args.style,
                overwrite=args.force, report=report,
            )  # fmt: skip
        else:
            results = [
                onnx.export(
                    checkpoints[0], out, dtype=args.dtype, style=args.style, overwrite=args.force,
                    report=report,
                )
            ]  # fmt: skip
    for result in results:
        for note in result.notes:
            tell(f"note: {result.path.name}: {note}")
        tell(result.summary)
    _tell_entry(args.register, out, checkpoints, results)
    print_path(out)
    return 0


def _names(registered: str, *, pair: bool) -> list[str]:
    """What to call the models of a pair of that name."""
    from edgespec.exporters.register import model_names

    return model_names(registered) if pair else [registered]


def _tell_entry(
    registered: str | None, out: Path, checkpoints: list[Checkpoint], results: list[Result]
) -> None:
    """Add the pair to the user's models.toml, or show what would be added."""
    from edgespec.exporters.onnx_file import MODEL
    from edgespec.exporters.register import Exported, pair_entry, register

    if registered is None and len(results) == 1:
        return
    name = registered or out.absolute().name
    names = _names(name, pair=len(results) > 1)
    models = [
        Exported(model, result.path / MODEL, "onnx", checkpoint.licence)
        for model, result, checkpoint in zip(names, results, checkpoints, strict=True)
    ]
    said = " with ".join(checkpoint.name for checkpoint in checkpoints)
    entry = pair_entry(name, models[0], models[1:], f"{said}, ONNX")
    if registered is None:
        tell(f"for your models.toml (--register NAME adds it):\n\n{entry}")
        return
    file = register(entry, [*names, name])
    tell(f"registered as {name} in {file}")
