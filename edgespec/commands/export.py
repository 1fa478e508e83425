"""Turn checkpoints into model files: `edgespec export gguf|onnx|pair`."""

from __future__ import annotations

import argparse

from edgespec.commands import export_gguf, export_onnx, export_pair


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and what it exports to."""
    parser = commands.add_parser(
        "export",
        help="turn a Hugging Face checkpoint, or a pair of them, into GGUF or ONNX",
        description="Writes a Hugging Face checkpoint as a GGUF file or an ONNX folder, or a "
        "target and its draft as a pair. What is written is compared with the checkpoint before "
        "it gets its name.",
    )
    kinds = parser.add_subparsers(title="what to make", metavar="KIND", required=True)
    for kind in (export_gguf, export_onnx, export_pair):
        kind.add(kinds)
