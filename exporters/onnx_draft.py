"""A drafter cut out of a model that is already an ONNX folder.

Invariant: the folder that appears is whole and drafts what it should. It was opened as the runtime
opens it, and what it said was compared with what the model itself says without those blocks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgespec import narrow
from edgespec.backends.onnx_folder import OnnxFolder, find
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters import manifest
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import refuse_existing, require_text, stage

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgespec.exporters.draft import Variant
    from edgespec.exporters.head import Counts, Ids
    from edgespec.exporters.onnx_draft_run import Ablation
    from edgespec.exporters.onnx_weights import Quantised

QUANTS = {"int4": 4, "int8": 8}
_NEEDED = {"onnx": "onnx", "onnx_ir": "onnx-ir", "onnxruntime": "onnxruntime"}

_LIKE = 0.2
"""Logits that differ by less than this share of their spread are the same up to rounding; weights
in the wrong place give about 1. 4-bit weights with activations in 8 bits gave up to 0.08."""
_TOKENS = 24


@dataclass(frozen=True)
class OnnxSource:
    """A folder to cut from; see `draft.Source`."""

    folder: OnnxFolder
    suffix: str = ""

    @property
    def path(self) -> Path:
        """The folder, or the graph's file where a folder has several."""
        return self.folder.folder if self.folder.alone else self.graph

    @property
    def graph(self) -> Path:
        return self.folder.graph

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def stem(self) -> str:
        """See `draft.Source`; a folder of the hub's cache is called after a commit."""
        return self.name.rsplit("/", 1)[-1].removesuffix(".onnx")

    @cached_property
    def blocks(self) -> int:
        from edgespec.exporters import onnx_draft_blocks

        return onnx_draft_blocks.count(self.model(), self.name)

    def model(self) -> ir.Model:
        """The graph, read anew; its weights stay in their file until they are needed."""
        from edgespec.exporters import onnx_draft_source

        return onnx_draft_source.load(self.graph, self.name)

    def check_quant(self, quant: str) -> None:
        """Raises ConfigError where the weights can't be stored so, or are stored so already."""
        if quant not in QUANTS:
            raise ConfigError(
                f"an ONNX drafter's weights can be int4 or int8, not {quant}: --quant"
            )
        if importlib.util.find_spec("torch") is None:
            raise ConfigError(
                "--quant needs torch for an ONNX folder: pip install 'edgespec[export]'"
            )
        if _float_type(self.model()) != "FLOAT":
            raise ConfigError(
                f"the weights of {self.name} have fewer than 32 bits already; make int4 ones of "
                "its checkpoint with `edgespec export onnx --dtype int4` and cut those"
            )

    def frequent(self, counts: Counts, number: int, always: Iterable[int]) -> Ids:
        """The tokens to keep in a narrow head."""
        from edgespec.exporters import onnx_draft_head

        size = onnx_draft_head.vocab_size(self.model(), self.name)
        return onnx_draft_head.frequent(self.folder, size, counts, number, always)

    def ablation(self, tokens: Sequence[int], threads: int | None) -> Ablation:
        """What leaving out blocks does to a text."""
        from edgespec.exporters.onnx_draft_run import Ablation, Switched

        return Ablation(Switched(self.graph, self.name, threads), tokens)


def open_source(folder: OnnxFolder) -> OnnxSource:
    """A folder to cut from. Raises ConfigError, ExportError."""
    require_text(folder.folder)
    missing = [package for module, package in _NEEDED.items() if _lacks(module)]
    if missing:
        raise ConfigError(
            f"cutting an ONNX model needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    source = OnnxSource(folder)
    if narrow.KEPT in source.model().metadata_props:
        raise ExportError(f"{source.name} is a drafter with a narrow head: start from its model.")
    assert source.blocks
    return source


def make(
    source: OnnxSource,
    destination: Path,
    variant: Variant,
    *,
    report: Report = silent,
    threads: int | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write one drafter to the folder `destination`; see `draft.make`."""
    from edgespec.exporters import (
        onnx_draft_blocks,
        onnx_draft_files,
        onnx_draft_head,
        onnx_draft_source,
        onnx_file,
    )

    if destination.exists() and destination.samefile(source.folder.folder):
        raise ConfigError(f"{destination} is the model itself: write the drafter somewhere else")
    refuse_existing(destination, overwrite)
    name, total = source.name, source.blocks
    blocks = variant.blocks if variant.blocks != tuple(range(total)) else None
    if blocks is None and variant.kept is None and variant.quant is None:
        raise ConfigError("nothing is to be cut: name --layers, --vocab or --quant")
    model = source.model()
    if blocks is not None:
        onnx_draft_blocks.keep(model, name, blocks)
        model.metadata_props[narrow.BLOCKS] = ",".join(map(str, blocks))
    if variant.kept is not None:
        onnx_draft_head.narrow_head(model, name, variant.kept)
    model.metadata_props[narrow.SOURCE] = source.folder.fingerprint()
    aliases: dict[str, str] = {}
    notes: list[str] = []
    if variant.quant is not None:
        source.check_quant(variant.quant)
        changed = _quantise(model, name, QUANTS[variant.quant], report)
        aliases |= changed.aliases
        notes += changed.notes
    aliases |= onnx_draft_source.same_bytes(model, aliases)
    need = sum(
        value.const_value.nbytes
        for key, value in model.graph.initializers.items()
        if value.const_value is not None and key not in aliases
    )
    wanted = {
        "source": source.folder.fingerprint(),
        "blocks": blocks,
        "kept": None if variant.kept is None else variant.kept.tolist(),
        "quant": variant.quant,
    }
    with stage(destination, wanted=wanted, need_bytes=need, overwrite=overwrite) as work:
        made = work.folder / "model"
        made.mkdir()
        report("cutting")
        onnx_file.move_to(model, made, aliases, report)
        onnx_draft_files.write(
            source.folder, made, blocks, total, narrow_head=variant.kept is not None
        )
        report("comparing what was made with the model")
        _try(source, made, variant, destination.name, threads)
        options = {key: value for key, value in wanted.items() if key != "source"}
        record = manifest.describe_drafter(
            source.path, "onnx", made, options=options, notes=tuple(notes)
        )
        record.write(manifest.beside(made))
        work.publish({made: destination})
    for note in notes:
        tell(note)
    return destination


def _lacks(module: str) -> bool:
    return importlib.util.find_spec(module) is None


def _float_type(model: ir.Model) -> str:
    """The type of a graph's weights: that of the matrices its products read."""
    from edgespec.exporters.onnx_graph import weight_of

    kinds = {w.const_value.dtype.name for n in model.graph if (w := weight_of(n)) is not None
             and w.const_value is not None}  # fmt: skip
    packed = any(node.op_type.startswith(("MatMulNBits", "MatMulInteger")) for node in model.graph)
    return kinds.pop() if len(kinds) == 1 and not packed else "mixed"


def _quantise(model: ir.Model, name: str, bits: int, report: Report) -> Quantised:
    from edgespec.exporters import onnx_graph, onnx_weights
    from edgespec.exporters.onnx_graph import Ends

    tables = (
        node for node in model.graph
        if node.op_type == "Gather" and _is_ids(node.inputs[1]) and node.inputs[0] is not None
        and node.inputs[0].is_initializer()
    )  # fmt: skip
    embedding = next(tables, None)
    if embedding is None:
        raise ExportError(f"The embeddings of {name} weren't found, so it can't be quantised.")
    ends = Ends(embedding, None)
    changed = onnx_weights.quantise(model, ends, bits, report=report)
    model.graph.opset_imports.setdefault(onnx_graph.CONTRIB, 1)
    return changed


def _is_ids(value: ir.Value | None) -> bool:
    return value is not None and value.name == "input_ids"


def _try(source: OnnxSource, made: Path, variant: Variant, name: str, threads: int | None) -> None:
    """The gate: the runtime opens it, and it says what the model says without those blocks."""
    from edgespec.backends import LoadOptions, load_model
    from edgespec.backends.ort_probe import distance
    from edgespec.exporters.onnx_draft_run import Switched
    from edgespec.session import CancelFlag

    options = LoadOptions(context_size=2 * _TOKENS, threads=threads, device="cpu")
    model = load_model(made, options, CancelFlag())
    try:
        tokens = model.tokenizer.encode("def merge(a, b):\n    return sorted(a + b)  # both")
        tokens = tokens[:_TOKENS]
        got = np.concatenate([model.session.forward([token]).copy() for token in tokens])
    finally:
        model.close()
    whole = range(source.blocks)
    left_out = set(whole) - set(whole if variant.blocks is None else variant.blocks)
    switched = Switched(source.graph, source.name, threads)
    try:
        wanted = switched.logits(tokens, left_out)  # (n, V), or the last row alone
    finally:
        switched.close()
    if variant.kept is not None:
        if not np.isneginf(np.delete(got, variant.kept, axis=1)).all():
            raise ExportError(f"{name} would draft tokens that its head doesn't hold.")
        got, wanted = got[:, variant.kept], wanted[:, variant.kept]
    off = distance(got[-len(wanted) :], wanted)
    # Weights in fewer bits are meant to say something else; not something unlike.
    limit = _LIKE if variant.quant is None else 1.0
    if not off < limit:
        raise ExportError(
            f"{name} failed its check: it doesn't say what {source.name} says without the blocks "
            f"that were left out ({off:.0%} off). Nothing was kept."
        )


def source_at(path: Path) -> OnnxSource | None:
    """The ONNX model at a path, to cut from; None where there is none."""
    folder = find(path)
    return None if folder is None else open_source(folder)
