"""A checkpoint as a folder with an ONNX model.

Two styles. *Fused*: attention in one operator that writes into a cache which stays in place; for
the families in `onnx_fused`. *Portable*: plain operators, for any architecture optimum knows.

Invariant: what gets the final name has passed the gate and has its manifest in it; whatever ends an
export early leaves nothing behind, or what has that already and only lacks the name.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgespec.backends import ort_packages
from edgespec.backends.ort_graph import ROWS
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters import manifest
from edgespec.exporters.checkpoint import Checkpoint, Outline, refuse_quantised
from edgespec.exporters.machine import enough_memory
from edgespec.exporters.manifest import Manifest
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import has_space, refuse_existing, require_text, stage
from edgespec.units import human_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgespec.exporters.onnx_graph import Ends
    from edgespec.exporters.onnx_reference import Answers
    from edgespec.exporters.onnx_weights import Quantised

DTYPES = ("fp32", "fp16", "int8", "int4")
Style = Literal["fused", "portable"]

INSTALL = "pip install 'edgespec[export]'"
_FEW_BITS = {"int4": 4, "int8": 8}
_BITS = {"fp32": 32.0, "fp16": 16.0, "int8": 9.0, "int4": 5.0}  # with scales
_OPTIMUM = "optimum.exporters.onnx"
_PACKAGES = {
    _OPTIMUM: "optimum-onnx",
    "onnx_ir": "onnx-ir",
    "onnxruntime_genai": "onnxruntime-genai",
}
_TOOLS = ("torch", "transformers", "onnx", "onnx-ir", "onnxruntime", "tokenizers")
_CHECK_FLOATS_UP_TO = 2_000_000_000
"""Parameters up to which a graph is also checked as it is before its weights become fewer bits: of
larger models that copy would take too much of the disk, and minutes."""
_ONE_FILE = 2 << 30
"""Bytes of weights above which torch writes one file a tensor, which optimum then joins: twice the
copy, until the first are deleted."""
_ROOM = 1 << 20  # bytes a graph and the gaps between its tensors may take, beside 2%


@dataclass(frozen=True)
class Plan:
    """What an export will be, before anything is read.

    Attributes:
        size_bytes: of the folder. memory_bytes: at the work's peak.
        disk_bytes: what the work takes at its peak, the folder included, without a check of floats.
        floats_bytes: what it takes beside that to check the graph also as it is before its weights
            become fewer bits, for which there may be no room; 0 where that isn't checked.
        seconds: a rough guess, from two cores of a server.
    """

    dtype: str
    style: Style
    architecture: str
    size_bytes: int
    disk_bytes: int
    memory_bytes: int
    floats_bytes: int
    seconds: float

    @property
    def sentence(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        return (
            f"{self.style}, {self.dtype}: about {human_bytes(self.size_bytes)}, up to "
            f"{human_bytes(self.disk_bytes + self.floats_bytes)} of disk meanwhile, "
            f"{human_bytes(self.memory_bytes)} of memory and {minutes} "
            f"minute{'s' * (minutes > 1)} on two free cores"
        )


@dataclass(frozen=True)
class Result:
    """What an export left: a folder, the manifest in it, and what the person is told."""

    path: Path
    manifest: Path
    size_bytes: int
    parity: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """In one line: how large it is, and how near to its checkpoint."""
        found = self.parity["logits"]
        return (
            f"{self.path.name}: {human_bytes(self.size_bytes)}; against the checkpoint, mean KL "
            f"{found['mean_kl']:.2g}, the same likeliest token in {found['top1']:.1%} of "
            f"{found['positions']} positions"
        )


def require_extra(style: Style | None = None) -> None:
    """Raises ExportError, with the command to run, where a library of the extra is missing, and
    ModelError where ONNX Runtime is there and can't be imported.
    """
    needed = ["torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "tokenizers"]
    needed += ["onnxruntime_genai"] if style != "portable" else []
    needed += [_OPTIMUM] if style != "fused" else []
    missing = [_PACKAGES.get(name, name) for name in needed if not _found(name)]
    if missing:
        raise ExportError(f"Export to ONNX needs {', '.join(missing)}; install it: {INSTALL}")
    ort_packages.load()


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is a part of
        return False


def chosen(outline: Outline, dtype: str, style: Style | None = None) -> tuple[str, Style]:
    """A checkpoint's architecture and the style it would be exported in, by what it says of itself.

    style: None is fused where that can be had. Raises ConfigError for an unknown dtype and
    ExportError where neither style, or not this one, can be had, transformers can't be told what
    the model is, or its weights are quantised already.
    """
    from edgespec.exporters import onnx_fused, onnx_portable, onnx_reference, transformers_4

    if dtype not in DTYPES:
        raise ConfigError(f"there is no --dtype {dtype}: choose from {', '.join(DTYPES)}")
    refuse_quantised(outline)
    architecture = next(iter(outline.architectures), "a model without a name")
    refusal = onnx_fused.refusal(architecture, transformers_4.config(outline))
    if style == "fused" and refusal is not None:
        raise ExportError(f"{outline.name} {refusal}; use --portable.")
    config = onnx_reference.configuration(outline)
    style = style or ("fused" if refusal is None else "portable")
    if style == "portable":
        onnx_portable.refuse_unknown(outline.name, architecture, config.model_type)
    return architecture, style


def plan(checkpoint: Checkpoint, dtype: str, style: Style | None = None) -> Plan:
    """What an export would take. Arguments and errors as of `chosen`."""
    architecture, style = chosen(checkpoint, dtype, style)
    numbers = checkpoint.parameters
    size = int(numbers * _BITS[dtype] / 8)
    copy = numbers * (2 if dtype == "fp16" else 4) if style == "portable" else 0
    traced = 2 * copy if copy > _ONE_FILE else copy
    disk = max(size + copy, traced)
    checked = dtype in _FEW_BITS and numbers <= _CHECK_FLOATS_UP_TO
    floats = size + copy + 4 * numbers - disk if checked else 0
    # The checkpoint's file is mapped while it is copied; optimum's tracing holds its own copies.
    held = 2 * checkpoint.size_bytes if style == "fused" else checkpoint.size_bytes + 2 * copy
    return Plan(
        dtype, style, architecture, size, disk, held + (1 << 30), floats,
        20 + numbers / 1e9 * (60 if dtype in _FEW_BITS else 30),
    )  # fmt: skip


def export(
    checkpoint: Checkpoint,
    out: Path,
    *,
    dtype: str = "int4",
    style: Style | None = None,
    overwrite: bool = False,
    report: Report = silent,
) -> Result:
    """Write `checkpoint` to the folder `out`.

    Raises ExportError where it can't be exported, or where what was made isn't the same model.
    """
    refuse_existing(out, overwrite, checkpoint.shards)
    require_text(out.absolute())
    require_extra(style)
    planned = plan(checkpoint, dtype, style)
    asked, need = wanted(checkpoint, planned), planned.disk_bytes
    with (
        stage(out, wanted=asked, need_bytes=need, overwrite=overwrite) as work,
        enough_memory(planned.memory_bytes),
    ):
        folder = work.folder / "model"
        result = earlier(checkpoint, folder, report) if work.finished("model") else None
        if result is None:
            result = _whole(checkpoint, planned, folder, report)
            work.finish("model", folder)
        work.publish({folder: out})
    return replace(result, path=out, manifest=manifest.beside(out))


def wanted(checkpoint: Checkpoint, planned: Plan) -> dict[str, Any]:
    """What a folder is the result of: what an earlier run made is used only if all is the same."""
    return {
        **manifest.wanted(checkpoint, *_TOOLS, "onnxruntime-genai", "optimum-onnx"),
        "format": "onnx",
        "dtype": planned.dtype,
        "style": planned.style,
    }


def earlier(checkpoint: Checkpoint, folder: Path, report: Report) -> Result | None:
    """What an earlier run checked and left in a folder; None where it isn't whole any more."""
    record = manifest.beside(folder)
    try:
        found = Manifest.read(record)
    except ExportError:
        return None
    if not found.is_of(folder, report):
        return None
    return Result(folder, record, _size(folder), found.parity, found.notes[len(checkpoint.notes) :])


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _whole(checkpoint: Checkpoint, planned: Plan, folder: Path, report: Report) -> Result:
    """Make a folder, check it, and put its manifest into it."""
    if folder.exists():  # by an earlier run, and damaged since
        shutil.rmtree(folder)
    folder.mkdir()
    made = _make(checkpoint, planned, folder, report)
    gc.collect()  # the torch model lives in circles, and the graph is loaded next
    report("checking against the checkpoint")
    parity = _check(folder, made, planned)
    _describe(checkpoint, planned, folder, made, parity, report)
    return Result(folder, manifest.beside(folder), _size(folder), parity, made.notes)


@dataclass(frozen=True)
class _Made:
    """What `_make` leaves beside the folder.

    float_graph: where the graph lies as it was before its weights became fewer bits, if that is to
    be checked.
    """

    answers: Answers
    ids: dict[str, list[int]]
    float_graph: Path | None
    optional_inputs: list[str]
    notes: tuple[str, ...]


def _make(checkpoint: Checkpoint, planned: Plan, folder: Path, report: Report) -> _Made:
    """Write the graph and its text files; the torch model is gone when this returns."""
    from edgespec.exporters import onnx_file, onnx_fused, onnx_graph, onnx_reference, onnx_text

    float_graph = _room_for_floats(planned, folder)
    report("reading the tokenizer")
    rows = onnx_reference.rows(checkpoint)
    texts = onnx_text.write(checkpoint, folder, rows)
    notes = list(texts.notes)
    report("loading the checkpoint")
    loaded = onnx_reference.load(checkpoint)
    report("running the checkpoint on the probe texts")
    answers = onnx_reference.ask(loaded, texts.ids)
    report(f"making the {planned.style} graph")
    scratch = folder.with_name("scratch")
    model = _graph(loaded, checkpoint, planned, folder, scratch)
    del loaded  # its weights are needed no more than the graph needs them
    onnx_graph.join_transposes(model)
    ends = onnx_graph.find_ends(model, rows)
    if answers.tied:
        ends = onnx_graph.share_embedding(model, ends)
    if ends.head is not None:
        onnx_graph.select_rows(model, ends.head)
    else:
        notes.append("its head wasn't found, so a prompt computes the logits of every position")
    if planned.floats_bytes and float_graph is None:
        notes.append(
            "it wasn't checked before its weights became fewer bits, where more is seen: the disk "
            f"has no room for {human_bytes(planned.disk_bytes + planned.floats_bytes)} meanwhile"
        )
    changed = _fewer_bits(model, ends, planned, float_graph, report)
    notes += changed.notes
    tables = sum(v.const_value.nbytes for n, v in model.graph.initializers.items()
                 if n.startswith(onnx_fused.ROTATIONS))  # fmt: skip
    onnx_file.move_to(model, folder, changed.aliases, report)
    shutil.rmtree(scratch, ignore_errors=True)
    _check_size(onnx_file.sizes(folder) - tables, answers.shapes, planned.dtype, changed)
    optional = [ROWS] if ends.head is not None else []
    return _Made(answers, texts.ids, float_graph, optional, tuple(notes))


def _room_for_floats(planned: Plan, folder: Path) -> Path | None:
    """Where to keep the graph as it is before its weights become fewer bits.

    None where that isn't checked, or the disk has no room for it; asked before anything is written.
    """
    if planned.floats_bytes and has_space(folder, planned.disk_bytes + planned.floats_bytes):
        return folder.with_name("floats")
    return None


def _graph(
    loaded: Any, checkpoint: Checkpoint, planned: Plan, folder: Path, scratch: Path
) -> ir.Model:
    """The graph of a torch model, in floats. scratch: a folder that must stay until it is moved."""
    from edgespec.exporters import onnx_fused, onnx_portable

    half = planned.dtype == "fp16"
    if planned.style == "portable":
        return onnx_portable.build(loaded, scratch, half=half)
    model, builder = onnx_fused.build(loaded, planned.architecture, scratch, half=half)
    onnx_fused.write_config(builder, checkpoint, folder)
    return model


def _fewer_bits(
    model: ir.Model, ends: Ends, planned: Plan, float_graph: Path | None, report: Report
) -> Quantised:
    """Quantise a graph's weights where that was asked for; what it was goes to `float_graph`."""
    from edgespec.exporters import onnx_file, onnx_weights

    if planned.dtype not in _FEW_BITS:
        return onnx_weights.Quantised()
    if float_graph is not None:
        float_graph.mkdir()
        onnx_file.move_to(model, float_graph, {}, report)  # which stays until it is checked
    return onnx_weights.quantise(model, ends, _FEW_BITS[planned.dtype], report=report)


def _check(folder: Path, made: _Made, planned: Plan) -> dict[str, Any]:
    """The figures of what was made. Raises ExportError where it isn't the checkpoint's model."""
    from edgespec.exporters import onnx_gate

    reference, fused, before = made.answers.logits, planned.style == "fused", None
    with onnx_gate.advice(fused=fused):
        if made.float_graph is not None:
            before = onnx_gate.check_floats(made.float_graph, reference, made.ids, in_place=fused)
            shutil.rmtree(made.float_graph, ignore_errors=True)
        parity = onnx_gate.check(
            folder, reference, made.ids, planned.dtype, in_place=fused, behind=made.answers.behind
        )
    onnx_gate.check_folder(folder)
    if before is not None:
        parity["before_quantising"] = before
    return {**parity, "ids": {"equal": True, "texts": len(made.ids)}}


def _describe(
    checkpoint: Checkpoint,
    planned: Plan,
    folder: Path,
    made: _Made,
    parity: Mapping[str, Any],
    report: Report,
) -> None:
    """Write the manifest into the folder."""
    tool = "onnxruntime-genai" if planned.style == "fused" else "optimum-onnx"
    description = manifest.describe(
        checkpoint,
        "onnx",
        {path.name: path for path in folder.iterdir()},
        options={
            "dtype": planned.dtype, "style": planned.style, "optional_inputs": made.optional_inputs,
        },
        tools=(*_TOOLS, tool),
        parity=parity,
        notes=made.notes,
        report=report,
    )  # fmt: skip
    description.write(manifest.beside(folder))


def _check_size(
    size: int, parameters: list[tuple[int, ...]], dtype: str, changed: Quantised
) -> None:
    """Raises ExportError for a file that holds more than its parameters.

    changed: what was quantised; other matrices (a table of positions) are floats then.
    """
    matrices = sum(math.prod(shape) for shape in parameters if len(shape) > 1)
    others = sum(math.prod(shape) for shape in parameters if len(shape) <= 1)
    # One that was quantised twice is no reason to expect it twice.
    small = matrices if dtype in ("fp32", "fp16") else min(changed.numbers, matrices)
    in_blocks = (small + changed.padding) * _BITS[dtype] / 8 + changed.zeros
    expected = in_blocks + (matrices - small + others) * 4
    if size > 1.02 * expected + _ROOM:
        raise ExportError(
            f"The exported file has {human_bytes(size)} where its parameters need "
            f"{human_bytes(int(expected))}, so something lies in it twice."
        )
