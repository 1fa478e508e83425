"""A checkpoint as one GGUF file.

Invariant: what gets the final name has passed the gate, has a manifest beside it, and came from a
checkpoint of a family we know, unless the person named another converter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from edgespec.errors import ExportError
from edgespec.exporters import gguf_families as families
from edgespec.exporters import gguf_tensors, manifest
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf_converter import convert_with
from edgespec.exporters.gguf_families import Family
from edgespec.exporters.gguf_gate import Gate
from edgespec.exporters.gguf_quant import Quant, file_type, quantise
from edgespec.exporters.gguf_settings import Hyperparameters
from edgespec.exporters.gguf_tensors import Plan, Type
from edgespec.exporters.gguf_tokenizer import Words, add_values, read_words
from edgespec.exporters.gguf_vocabulary import Vocabulary, read_vocabulary
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import Stage, refuse_existing, require_text, stage
from edgespec.units import human_bytes

_TOOLS = ("gguf", "numpy", "llama-cpp-python", "tokenizers", "sentencepiece", "transformers")

logging.getLogger("gguf").addHandler(logging.NullHandler())  # or its warnings land on stderr


@dataclass(frozen=True)
class Result:
    """What an export left: the file, its manifest beside it, and what the person is told."""

    path: Path
    manifest: Path
    size_bytes: int
    parity: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """In one line: how large the file is, and how near to its checkpoint."""
        said = [human_bytes(self.size_bytes)]
        ids = self.parity["ids"]
        if ids.get("equal"):
            said.append(f"the ids of {ids['texts']} texts as {ids['compared_with']} has them")
        for name, found in self.parity["logits"].items():
            if found["compared_with"]:
                said.append(
                    f"{name} logits within {found['relative']:.1e} of {found['compared_with']}"
                )
        return f"{self.path.name}: {', '.join(said)}"


def export(
    checkpoint: Checkpoint,
    out: Path,
    quant: Quant,
    *,
    overwrite: bool = False,
    converter: Path | None = None,
    report: Report = silent,
) -> Result:
    """Write `checkpoint` to `out`, and a manifest beside it.

    converter: llama.cpp's convert_hf_to_gguf.py, to use instead of our own conversion.
    Raises ExportError for a checkpoint that can't be exported faithfully, before any work where
    that can be told from its config and its tensors' names.
    """
    refuse_existing(out, overwrite, checkpoint.shards)
    require_text(out.absolute(), converter or "")
    if out.is_dir():
        raise ExportError(f"{out} is a folder; name the file to write.")
    record = manifest.beside(out)
    plain = _plain(checkpoint) if quant.plain is None else quant.plain
    source = None if converter is not None else _read(checkpoint, plain)
    need = disk_bytes(checkpoint, quant)
    asked = wanted(checkpoint, quant, converter)
    with stage(out, wanted=asked, need_bytes=need, overwrite=overwrite) as work:
        first = work.finished("converted")
        if source is not None:
            words = read_words(
                checkpoint, source.family, source.values, source.plan.embedding_rows,
                work.folder, report,
            )  # fmt: skip
            if first is None:
                first = _convert(checkpoint, source, words, plain, work, report)
        else:
            assert converter is not None
            first, words = convert_with(converter, checkpoint, plain, work, first, report)
        gate = Gate(checkpoint, words, report)
        gate.check(first, source.plan if source else None, _as_quant(plain))
        made = first
        if quant.plain is None:
            expected = _quantised_bytes(checkpoint, quant)
            made = work.finished("quantised") or _quantise(first, quant, expected, work, report)
            gate.check(made, source.plan if source else None, quant)
        told = [*(source.notes if source else ()), *words.vocabulary.notes, *words.notes]
        notes = (*told, *gate.parity.notes)
        description = manifest.describe(
            checkpoint,
            "gguf",
            {out.name: made},
            options={"quant": quant.name, "converter": str(converter) if converter else None},
            tools=_TOOLS,
            parity=gate.parity.figures,
            notes=notes,
            report=report,
        )
        written = work.folder / "manifest.json"
        description.write(written)
        work.publish({written: record, made: out})
    return Result(out, record, out.stat().st_size, gate.parity.figures, notes)


def vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """The tokens a checkpoint's file will have. Raises ExportError as `export` does."""
    return read_vocabulary(checkpoint, _read(checkpoint, _plain(checkpoint)).plan.embedding_rows)


def estimate(checkpoint: Checkpoint, quant: Quant) -> str:
    """What an export will come to, in half a sentence."""
    need = disk_bytes(checkpoint, quant)
    size = need if quant.plain is not None else _quantised_bytes(checkpoint, quant)
    return (
        f"{checkpoint.name} as {quant.name}: about {human_bytes(size)}, and {human_bytes(need)} of "
        "disk while it is made"
    )


def disk_bytes(checkpoint: Checkpoint, quant: Quant) -> int:
    """About what an export takes on the disk while it lasts."""
    if quant.plain is not None:
        return checkpoint.parameters * (4 if quant.plain == Type.F32 else 2)
    plain = checkpoint.parameters * (4 if _plain(checkpoint) == Type.F32 else 2)
    return plain + int(1.2 * _quantised_bytes(checkpoint, quant))


def wanted(checkpoint: Checkpoint, quant: Quant, converter: Path | None = None) -> dict[str, Any]:
    """What a file is the result of: an earlier run's steps are used only if all is the same."""
    return {
        **manifest.wanted(checkpoint, "gguf", "llama-cpp-python", "tokenizers"),
        "format": "gguf",
        "quant": quant.name,
        "converter": str(converter) if converter else None,
    }


@dataclass(frozen=True)
class _Source:
    """A checkpoint that was understood, before anything of it is read."""

    family: Family
    values: Hyperparameters
    plan: Plan

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.values.notes, *self.plan.notes)


def _read(checkpoint: Checkpoint, plain: Type) -> _Source:
    family = families.find(checkpoint)
    values = families.read(family, checkpoint)
    return _Source(family, values, gguf_tensors.plan(checkpoint, family, values, plain))


def _convert(
    checkpoint: Checkpoint,
    source: _Source,
    words: Words,
    plain: Type,
    work: Stage,
    report: Report,
) -> Path:
    path = work.folder / f"{plain.name.lower()}.gguf"
    writer = gguf.GGUFWriter(path, source.family.architecture)
    total, done = source.plan.nbytes, 0

    def written(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        report("writing tensors", done, total)

    try:
        gguf_tensors.announce(writer, source.plan.tensors)
        _add_general(writer, checkpoint, plain)
        add_values(writer, source.family.architecture, source.values)
        words.add_to(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        gguf_tensors.write(writer, source.plan.tensors, written)
    finally:
        writer.close()
    work.finish("converted", path)
    return path


def _add_general(writer: gguf.GGUFWriter, checkpoint: Checkpoint, plain: Type) -> None:
    """What the file says of itself: name, size, licence and authors, from the model card."""
    count, shared, experts, each = writer.get_total_parameter_count()
    name = checkpoint.name if checkpoint.revision else None
    try:
        about = gguf.Metadata.load(None, checkpoint.path, name, count)
    except Exception as error:  # a model card may hold anything, and only names are at stake
        logging.getLogger("edgespec.export").info("the model card was not used: %s", error)
        about = gguf.Metadata(name=name)
    about.name = about.name or checkpoint.name
    about.size_label = about.size_label or gguf.size_label(count, shared, experts, each)
    writer.add_type(gguf.GGUFType.MODEL)
    about.set_gguf_meta_model(writer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(file_type(plain))


def _quantise(first: Path, quant: Quant, expected: int, work: Stage, report: Report) -> Path:
    path = work.folder / f"{quant.name}.gguf"
    quantise(first, path, quant, expected, report)
    work.finish("quantised", path)
    return path


def _plain(checkpoint: Checkpoint) -> Type:
    """The float type that holds every value of the checkpoint as it is, to quantise from."""
    kinds = gguf_tensors.stored_types(checkpoint)
    if kinds <= {"BF16"}:
        return Type.BF16
    return Type.F16 if kinds <= {"F16"} else Type.F32


def _quantised_bytes(checkpoint: Checkpoint, quant: Quant) -> int:
    return int(checkpoint.parameters * quant.bits / 8)


def _as_quant(plain: Type) -> Quant:
    return Quant(plain.name.lower(), plain, 32 if plain == Type.F32 else 16)
