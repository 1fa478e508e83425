"""A target and its draft, as two files that fit: `edgespec export pair`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.export_gguf import add_export_options, add_quant, tell_notes
from edgespec.commands.export_onnx import DTYPES, add_style
from edgespec.commands.shared import print_path, tell
from edgespec.errors import ConfigError
from edgespec.platform import expanded

if TYPE_CHECKING:
    from edgespec.exporters.checkpoint import Checkpoint, Outline
    from edgespec.exporters.onnx import Style
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
    also = f"; ONNX: {', '.join(DTYPES)}"
    add_quant(parser, "--quant", None, "q4_k_m; ONNX: int4", also)
    add_quant(parser, "--draft-quant", None, "as --quant", also)
    add_style(parser, "ONNX: ")
    add_export_options(parser, "TARGET", draft=True)
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
    from edgespec.exporters.checkpoint import Checkpoint, Outline
    from edgespec.exporters.register import (
        Exported,
        model_names,
        pair_entry,
        refuse_taken,
        register,
    )
    from edgespec.exporters.staging import refuse_existing, require_place, require_text

    # Whatever can be refused is refused before a download, or before that of the weights.
    if args.style and args.format == "gguf":
        raise ConfigError(f"--{args.style} is of ONNX models: add --format onnx, or leave it out")
    quants = _quants(args)
    exporter = _Gguf(quants) if args.format == "gguf" else _Onnx(quants, args.style)
    args.out = expanded(args.out)
    refuse_existing(args.out, args.force)
    require_place(args.out)
    require_text(args.out.absolute())
    name = args.name or args.out.absolute().name
    names = model_names(name)
    if args.register:
        refuse_taken([*names, name])
    with shown() as report:
        outlines = (
            Outline.open(args.target, args.revision, report),
            Outline.open(args.draft, args.draft_revision, report),
        )
        exporter.refuse(outlines)
        target, draft = (Checkpoint.of(outline, report) for outline in outlines)
    tell_notes(target, draft)
    for sentence in exporter.estimates((target, draft)):
        tell(sentence)
    with shown() as report:
        files, notes = exporter.export((target, draft), args.out, args.force, report)
    for note in notes:
        tell(f"note: {note}")
    models = [
        Exported(model, file, args.format, checkpoint.licence)
        for model, file, checkpoint in zip(names, files, (target, draft), strict=True)
    ]
    said = f"{target.name} with {draft.name}, exported to {args.format.upper()}"
    entry = pair_entry(name, models[0], models[1:], said)
    if args.register:
        file = register(entry, [*names, name])
        tell(f"registered as {name} in {file}: edgespec chat {name}")
    else:
        tell(f"for your models.toml:\n\n{entry}")
    print_path(args.out)
    return 0


def _quants(args: argparse.Namespace) -> tuple[str, str]:
    usual = "q4_k_m" if args.format == "gguf" else "int4"
    quant = args.quant or usual
    return quant, args.draft_quant or quant


class _Gguf:
    """Both as GGUF files; what can't be made is refused when this is made."""

    def __init__(self, quants: tuple[str, str]) -> None:
        from edgespec.exporters import extra

        extra.require("gguf", "tokenizers")
        from edgespec.exporters.gguf_quant import quant

        self._quants = quant(quants[0]), quant(quants[1])

    def refuse(self, models: tuple[Outline, Outline]) -> None:
        from edgespec.exporters.gguf_pair import require_fit

        require_fit(models)

    def estimates(self, models: tuple[Checkpoint, Checkpoint]) -> list[str]:
        from edgespec.exporters import gguf

        return [gguf.estimate(*each) for each in zip(models, self._quants, strict=True)]

    def export(
        self, models: tuple[Checkpoint, Checkpoint], out: Path, force: bool, report: Report
    ) -> tuple[list[Path], list[str]]:
        from edgespec.exporters.gguf_pair import export_pair

        results = export_pair(*models, out, quants=self._quants, overwrite=force, report=report)
        notes = [f"{result.path.name}: {note}" for result in results for note in result.notes]
        return [result.path for result in results], [*notes, *(r.summary for r in results)]


class _Onnx:
    """Both as ONNX folders; what can't be made is refused when this is made."""

    def __init__(self, quants: tuple[str, str], style: Style | None) -> None:
        from edgespec.exporters import onnx

        first, second = (_ONNX_TYPES.get(name, name) for name in quants)
        for dtype in (first, second):
            if dtype not in DTYPES:
                raise ConfigError(f"ONNX has no type {dtype}: choose from {', '.join(DTYPES)}")
        onnx.require_extra(style)
        self._dtypes = first, second
        self._style = style

    def refuse(self, models: tuple[Outline, Outline]) -> None:
        from edgespec.exporters.onnx_pair import require_fit

        require_fit(models, self._dtypes, self._style)

    def estimates(self, models: tuple[Checkpoint, Checkpoint]) -> list[str]:
        from edgespec.exporters import onnx

        return [
            f"{model.name}, {onnx.plan(model, dtype, self._style).sentence}"
            for model, dtype in zip(models, self._dtypes, strict=True)
        ]

    def export(
        self, models: tuple[Checkpoint, Checkpoint], out: Path, force: bool, report: Report
    ) -> tuple[list[Path], list[str]]:
        from edgespec.exporters.onnx_file import MODEL
        from edgespec.exporters.onnx_pair import export_pair

        results = export_pair(
            *models, out, dtypes=self._dtypes, style=self._style, overwrite=force, report=report
        )
        notes = [f"{result.path.name}: {note}" for result in results for note in result.notes]
        return [result.path / MODEL for result in results], [*notes, *(r.summary for r in results)]
