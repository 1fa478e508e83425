"""A checkpoint's tensors on their way into a GGUF file.

Invariant: tensors are read, changed and written one at a time, so memory holds one of them and its
conversion; every tensor of the checkpoint is either planned for, left out for a named reason, or
the export is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf_families import Change, Family
from edgespec.exporters.gguf_settings import Hyperparameters
from edgespec.exporters.weights import FLOATS, StoredTensor

Type = gguf.GGMLQuantizationType

_OTHER_SENSES = re.compile(r".*(vision_tower|vision_model|multi_modal_projector|audio_tower)\..*")
_STORED = {"F32": Type.F32, "F16": Type.F16, "BF16": Type.BF16}
_ITEM_BYTES = {Type.F32: 4, Type.F16: 2, Type.BF16: 2}


@dataclass(frozen=True)
class Planned:
    """One tensor of the file to be.

    Attributes:
        name: in GGUF. type: how it will be stored. shape: as numpy has it, rows first.
        source: where it comes from; None where `values` holds it already.
        change: what is done to it on the way.
        rows: how many rows of the source are taken; None is all.
    """

    name: str
    type: Type
    shape: tuple[int, ...]
    source: StoredTensor | None = None
    values: npt.NDArray[np.float32] | None = None
    change: Change | None = None
    rows: int | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * _ITEM_BYTES[self.type]

    def floats(self) -> npt.NDArray[np.float32]:
        """Its values before they are stored, `shape`."""
        if self.source is None:
            assert self.values is not None
            return self.values
        values = self.source.floats()[: self.rows]
        return values if self.change is None else self.change(values)

    def stored(self) -> npt.NDArray[Any]:
        """Its bytes as the file has them. Raises ExportError where a value doesn't fit."""
        source = self.source
        if source is not None and self.change is None and _STORED.get(source.dtype) == self.type:
            return source.raw()[: self.rows]
        values = self.floats()
        if self.type == Type.F32:
            return values
        if self.type == Type.BF16:
            return gguf.quants.quantize(values, Type.BF16)
        with np.errstate(over="ignore"):
            short = values.astype(np.float16)
        if not np.isfinite(short).all() and np.isfinite(values).all():
            raise ExportError(
                f"{self.name} holds values that f16 can't ({np.abs(values).max():.3g}); export "
                "with --quant bf16 or f32."
            )
        return short


@dataclass(frozen=True)
class Plan:
    """Every tensor to write, in the order they are read, and what to tell the person.

    Attributes:
        embedding_rows: rows of the embedding, which llama.cpp needs to have as many tokens.
    """

    tensors: tuple[Planned, ...]
    embedding_rows: int
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Their bytes in the file."""
        return sum(tensor.nbytes for tensor in self.tensors)


def plan(
    checkpoint: Checkpoint, family: Family, hyperparameters: Hyperparameters, base: Type
) -> Plan:
    """Which tensors go where; `base` is the type of the matrices.

    Raises ExportError for a tensor that has no place in llama.cpp's model, and for a missing head.
    """
    architecture = gguf.MODEL_ARCH[_KEYS[family.architecture]]
    names = gguf.get_tensor_name_map(architecture, hyperparameters.layers)
    tied = family.always_tied or bool(hyperparameters.config.get("tie_word_embeddings"))
    planned = [
        Planned(name, Type.F32, values.shape, values=values)
        for name, values in hyperparameters.extra.items()
    ]
    notes: list[str] = []
    senses = 0
    for tensor in checkpoint.weights:
        if _OTHER_SENSES.fullmatch(tensor.name):
            senses += 1
            continue
        plain = tensor.name.replace("language_model.", "")
        if plain == "lm_head.weight" and tied:
            continue
        name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if name is None or tensor.dtype not in FLOATS:
            tensor.dtype in FLOATS or tensor.floats()  # says that it is quantised
            raise ExportError(
                f"{checkpoint.source} holds {tensor.name}, which has no place in llama.cpp's "
                f"{family.name}; it isn't a plain checkpoint of that family."
            )
        change = family.change(plain, hyperparameters)
        shape = (
            tensor.shape[::-1]
            if change is not None and _transposes(family, plain)
            else (tensor.shape)
        )
        planned.append(Planned(name, _type(name, shape, base), shape, tensor, change=change))
    if senses:
        notes.append(f"{senses} tensors for pictures or sound were left out: this is its text part")
    rows = _embedding_rows(checkpoint, planned)
    if not tied and not any(tensor.name == "output.weight" for tensor in planned):
        raise ExportError(
            f"{checkpoint.source} holds no lm_head.weight, and its config doesn't say that the "
            "embedding is used instead; it isn't a whole checkpoint of a model that writes text."
        )
    if tied and family.architecture == "olmo2":  # the one that asks for a head in any case
        embedding = next(tensor for tensor in planned if tensor.name == "token_embd.weight")
        planned.append(Planned("output.weight", embedding.type, embedding.shape, embedding.source))
    _refuse_gaps(checkpoint, planned, hyperparameters.layers)
    return Plan(tuple(planned), rows, tuple(notes))


def stored_types(checkpoint: Checkpoint) -> set[str]:
    """The types of the tensors that have a place in a file, as the checkpoint stores them."""
    return {t.dtype for t in checkpoint.weights if not _OTHER_SENSES.fullmatch(t.name)}


def write(writer: gguf.GGUFWriter, tensors: Iterable[Planned], written: Any) -> None:
    """Write each tensor into a writer that has their names; calls `written(bytes)` after each."""
    for tensor in tensors:
        data = np.ascontiguousarray(tensor.stored())
        writer.write_tensor_data(data)
        written(data.nbytes)


def announce(writer: gguf.GGUFWriter, tensors: Iterable[Planned]) -> None:
    """Tell a writer what is to come, so that the header can be written first."""
    for tensor in tensors:
        dtype = np.dtype(np.float32 if tensor.type == Type.F32 else np.float16)
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.nbytes, tensor.type)


_KEYS = {name: architecture.name for architecture, name in gguf.MODEL_ARCH_NAMES.items()}


def _transposes(family: Family, name: str) -> bool:
    return bool(family.transposed) and name.endswith(family.transposed)


def _type(name: str, shape: tuple[int, ...], base: Type) -> Type:
    """Vectors, norms and learnt positions stay in 32 bits: llama.cpp computes with no other."""
    if len(shape) < 2 or name.endswith("_norm.weight") or name == "position_embd.weight":
        return Type.F32
    return base


def _embedding_rows(checkpoint: Checkpoint, planned: list[Planned]) -> int:
    rows = {
        tensor.name: tensor.shape[0]
        for tensor in planned
        if tensor.name in ("token_embd.weight", "output.weight")
    }
    if "token_embd.weight" not in rows:
        raise ExportError(f"{checkpoint.source} holds no token embedding; it isn't a whole model.")
    if len(set(rows.values())) > 1:
        raise ExportError(
            f"{checkpoint.source} has {rows['token_embd.weight']} rows of embeddings and "
            f"{rows['output.weight']} in its head, which llama.cpp needs to be as many."
        )
    return rows["token_embd.weight"]


def _refuse_gaps(checkpoint: Checkpoint, planned: list[Planned], layers: int) -> None:
    """Every layer must hold what the others hold: a file cut at a shard would load otherwise."""
    found: dict[str, set[int]] = {}
    for tensor in planned:
        if match := re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name):
            found.setdefault(match[2], set()).add(int(match[1]))
    for name, layers_with in found.items():
        missing = sorted(set(range(layers)) - layers_with)
        if missing:
            raise ExportError(
                f"{checkpoint.source} lacks the {name} of layer {missing[0]}, which its other "
                "layers have; download it again."
            )
    if not found:
        raise ExportError(f"{checkpoint.source} holds no layers; it isn't a whole model.")
