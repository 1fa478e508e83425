"""A drafter cut out of a model: a GGUF file here, an ONNX folder in `onnx_draft`.

Invariant: the file that appears is whole and drafts what it should: it was opened by llama.cpp, and
where its head is narrow, its rows and its table were found to mean the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgespec.backends import fingerprint
from edgespec.errors import ConfigError, ExportError
from edgespec.exporters import gguf_quant, head, layers, onnx_draft
from edgespec.exporters.cut import Rewrite, write
from edgespec.exporters.head import Counts, Ids
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.quantise import file_type
from edgespec.exporters.staging import stage
from edgespec.gguf import GGUFHeader, read_header

_ALIKE = 0.9
"""Correlation of logits got from rows and from ids. The rows may have more bits than the file's own
embeddings, which costs a few hundredths; fed wrongly, they have little in common."""


@dataclass(frozen=True)
class Variant:
    """What to cut and how to store it; None leaves that as it is.

    Attributes:
        blocks: which blocks to keep, ascending.
        kept: which tokens the head keeps, ascending.
        quant: a type of llama.cpp's quantiser, as in `q4_0`; of an ONNX model int4 or int8.
    """

    blocks: tuple[int, ...] | None = None
    kept: Ids | None = None
    quant: str | None = None


class Ablation(Protocol):
    """A model read without some of its blocks."""

    def change(self, without: frozenset[int]) -> float: ...

    def close(self) -> None: ...


class Source(Protocol):
    """A model to cut from.

    Attributes:
        blocks: how many it has.
        stem: what the names of drafters made from it begin with.
        suffix: what they end in.
    """

    @property
    def path(self) -> Path: ...

    @property
    def stem(self) -> str: ...

    @property
    def blocks(self) -> int: ...

    @property
    def suffix(self) -> str: ...

    def check_quant(self, quant: str) -> None:
        """Raises ConfigError where the weights can't be stored so."""
        ...

    def frequent(self, counts: Counts, number: int, always: Iterable[int]) -> Ids:
        """The tokens to keep in a narrow head; see `head.frequent`."""
        ...

    def ablation(self, tokens: Sequence[int], threads: int | None) -> Ablation:
        """What leaving out blocks does to a text."""
        ...


@dataclass(frozen=True)
class GGUFSource:
    """See `Source`."""

    header: GGUFHeader
    suffix: str = ".gguf"

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def blocks(self) -> int:
        return layers.count(self.header)

    def check_quant(self, quant: str) -> None:
        """See `Source`."""
        file_type(quant)

    def frequent(self, counts: Counts, number: int, always: Iterable[int]) -> Ids:
        """See `Source`."""
        return head.frequent(self.header, counts, number, always)

    def ablation(self, tokens: Sequence[int], threads: int | None) -> Ablation:
        """See `Source`."""
        from edgespec.backends import LoadOptions
        from edgespec.backends.llama_blocks import Ablation
        from edgespec.session import CancelFlag

        layers.refuse_others(self.header, None)
        return Ablation(self.path, tokens, LoadOptions(threads=threads), CancelFlag())


def open_source(path: Path) -> Source:
    """A model to cut from: a GGUF file, or a folder or file with an ONNX model.

    Raises ConfigError, ExportError for one that can't be cut.
    """
    onnx = onnx_draft.source_at(path)
    if onnx is not None:
        return onnx
    if path.is_dir() and any(path.glob("*.safetensors")):
        raise ConfigError(
            f"{path} is a checkpoint: make a model of it with `edgespec export gguf` or `edgespec "
            "export onnx`, and cut that"
        )
    header = read_header(path)
    if int(str(header.metadata.get("split.count", 0))) > 1:
        raise ExportError(f"{path.name} is a part of a model: merge its parts into one file first.")
    layers.count(header)
    return GGUFSource(header)


def make(
    source: Path,
    destination: Path,
    variant: Variant,
    *,
    report: Report = silent,
    threads: int | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write one drafter to `destination`; `tell` is called with what the user should know of it.

    Raises ConfigError where nothing is to be changed, ExportError where it can't be done.
    """
    opened = open_source(source)
    if not isinstance(opened, GGUFSource):
        assert isinstance(opened, onnx_draft.OnnxSource)
        return onnx_draft.make(
            opened, destination, variant, report=report, threads=threads, overwrite=overwrite,
            tell=tell,
        )  # fmt: skip
    header = opened.header
    if destination.exists() and destination.samefile(source):
        raise ConfigError(f"{destination} is the model itself: write the drafter somewhere else")
    rewrite = Rewrite(header)
    quant = None if variant.quant is None else gguf_quant.quant(variant.quant)
    quantised = quant is not None
    need = 0
    if variant.blocks is not None:
        layers.keep(rewrite, variant.blocks)
    if variant.kept is not None:
        head.narrow_head(rewrite, variant.kept, small_table=quantised)
        need += head.table_bytes(header, small_table=quantised)
    if not (rewrite.changes or quantised):
        raise ConfigError("nothing is to be cut: name --layers, --vocab or --quant")
    need += rewrite.nbytes * (2 if quantised and rewrite.changes else 1)
    wanted = {
        "source": fingerprint([source]),
        "blocks": variant.blocks,
        "kept": None if variant.kept is None else variant.kept.tolist(),
        "quant": variant.quant,
    }
    with stage(destination, wanted=wanted, need_bytes=need, overwrite=overwrite) as work:
        made = source
        if rewrite.changes:
            report("cutting")
            made = work.folder / "cut.gguf"
            write(rewrite, made)
        if quant is not None:
            plain, made = made, work.folder / "quantised.gguf"
            weights = sum(math.prod(t.shape) for t in read_header(plain).tensors)
            expected = int(weights * quant.bits / 8)
            gguf_quant.quantise(plain, made, quant, expected, report, threads)
        if variant.kept is not None:
            report("storing what the whole vocabulary needs")
            head.append_tables(made, header)
        report("opening what was made")
        _try(made, destination.name, narrow=variant.kept is not None, threads=threads)
        work.publish({made: destination})
    return destination


def _try(path: Path, name: str, *, narrow: bool, threads: int | None) -> None:
    """The gate: llama.cpp opens it, and a narrow head drafts what it should."""
    from edgespec.backends import LoadOptions, load_model
    from edgespec.session import CancelFlag

    options = LoadOptions(context_size=64, threads=threads)
    if narrow:
        from edgespec.backends.llama_narrow import agreement

        alike = agreement(path, options)
        if not alike >= _ALIKE:
            raise ExportError(
                f"{name} would draft nonsense: fed its embeddings, the model says something else "
                f"than fed its ids (correlation {alike:.2f}), so its architecture doesn't take "
                "them as they are; leave --vocab out."
            )
    load_model(path, options, CancelFlag()).close()


def describe(blocks: Sequence[int], total: int) -> str:
    """Blocks as a person writes them: `0-7,20 of 28`."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    parts = (str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"{','.join(parts)} of {total}"
