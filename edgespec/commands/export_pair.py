"""A target and its draft, as two files that fit: `edgespec export pair`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.export_gguf import add_export_options, add_quant
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.exporters.checkpoint import Checkpoint
    from edgespec.exporters.progress import Report

_ONNX_TYPES = {"f32": "fp32", "f16": "fp16", "q8_0": "int8", "q4_0": "int4"}


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the kind."""
    parser = kinds.add_parser(
        "pair", help="a target and its draft, checked to fit, and the entry that registers them",
        description="Exports a target and its draft into one folder, checks that they share "
        "their tokens, and registers them as a pair.",
    )  # fmt: skip
    parser.add_argument("target", metavar="TARGET", help="a checkpoint's folder or hub id")
    parser.add_argument("draft", metavar="DRAFT", help="a smaller one of the same family")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument(
        "--format", choices=("gguf", "onnx"), default="gguf", help="what to make of them (gguf)"
    )
    add_quant(parser, "--quant", None, "q4_k_m; ONNX: int4")
    add_quant(parser, "--draft-quant", None, "as --quant")
    add_export_options(parser)
    parser.add_argument("--draft-revision", metavar="REVISION", help="as --revision, of the draft")
    parser.add_argument(
        "--name", metavar="NAME", help="what to call the pair (default: OUT's last part)"
    )
    parser.add_argument(
        "--register", action=argparse.BooleanOptionalAction, default=True,
        help="add the pair to your models.toml; --no-register shows the entry instead",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.commands.progress import shown
    from edgespec.exporters.checkpoint import Checkpoint
    from edgespec.exporters.register import Exported, pair_entry, refuse_taken, register

    name = args.name or args.out.absolute().name
    names = [f"{name}-target", f"{name}-draft"]
    if args.register:  # before hours of work
        refuse_taken([*names, name])
    quants = _quants(args)
    with shown() as report:
        target = Checkpoint.open(args.target, args.revision, report)
        draft = Checkpoint.open(args.draft, args.draft_revision, report)
        make = _gguf if args.format == "gguf" else _onnx
        files, notes = make(target, draft, args.out, quants, args.force, report)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    models = [
        Exported(model, file, args.format, checkpoint.licence)
        for model, file, checkpoint in zip(names, files, (target, draft), strict=True)
    ]
    said = f"{target.name} with {draft.name}, exported to {args.format.upper()}"
    entry = pair_entry(name, models[0], models[1:], said)
    if args.register:
        file = register(entry, [*names, name])
        print(f"registered as {name} in {file}: edgespec chat {name}", file=sys.stderr)
    else:
        print(f"for your models.toml:\n\n{entry}", file=sys.stderr)
    print(args.out)
    return 0


def _quants(args: argparse.Namespace) -> tuple[str, str]:
    usual = "q4_k_m" if args.format == "gguf" else "int4"
    quant = args.quant or usual
    return quant, args.draft_quant or quant


def _gguf(
    target: Checkpoint,
    draft: Checkpoint,
    out: Path,
    quants: tuple[str, str],
    force: bool,
    report: Report,
) -> tuple[list[Path], Sequence[str]]:
    from edgespec.exporters import extra

    extra.require("gguf", "tokenizers")
    from edgespec.exporters.gguf_pair import export_pair
    from edgespec.exporters.gguf_quant import quant

    results = export_pair(
        target, draft, out, quants=(quant(quants[0]), quant(quants[1])), overwrite=force,
        report=report,
    )  # fmt: skip
    notes = [f"{result.path.name}: {note}" for result in results for note in result.notes]
    return [result.path for result in results], [*notes, *(r.summary for r in results)]


def _onnx(
    target: Checkpoint,
    draft: Checkpoint,
    out: Path,
    quants: tuple[str, str],
    force: bool,
    report: Report,
) -> tuple[list[Path], Sequence[str]]:
    from edgespec.exporters.onnx_file import MODEL
    from edgespec.exporters.onnx_pair import export_pair

    dtypes = [_ONNX_TYPES.get(name, name) for name in quants]
    for dtype in dtypes:
        if dtype not in _ONNX_TYPES.values():
            raise ConfigError(f"ONNX has no type {dtype}: choose fp32, fp16, int8 or int4")
    results = export_pair(
        target, draft, out, dtypes=(dtypes[0], dtypes[1]), overwrite=force, report=report
    )
    notes = [f"{result.path.name}: {note}" for result in results for note in result.notes]
    return [result.path / MODEL for result in results], [*notes, *(r.summary for r in results)]
