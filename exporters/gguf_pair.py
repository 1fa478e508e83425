"""A target and its draft as GGUF, in one folder.

Invariant: both or neither; and what the small files rule out, as a pair whose tokens differ, is
refused before any work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.exporters import gguf, gguf_families, manifest
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.gguf import Result
from edgespec.exporters.gguf_quant import Quant
from edgespec.exporters.gguf_sentencepiece import UNUSED
from edgespec.exporters.gguf_vocabulary import Vocabulary, read_vocabulary
from edgespec.exporters.manifest import Manifest
from edgespec.exporters.pair import kept, refuse_other_tokens
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import refuse_existing, stage

_NAMES = ("target", "draft")


def export_pair(
    target: Checkpoint,
    draft: Checkpoint,
    out: Path,
    *,
    quants: tuple[Quant, Quant],
    overwrite: bool = False,
    report: Report = silent,
) -> list[Result]:
    """Write both into the folder `out`. Raises ExportError as `gguf.export` does.

    A run that was stopped goes on from the steps that it finished, of the target and of the draft.
    """
    models = (target, draft)
    refuse_existing(out, overwrite, [*target.shards, *draft.shards])
    vocabularies = [gguf.vocabulary(model) for model in models]  # refuses unknown families too
    require_same_tokens(models, vocabularies)
    wanted = [gguf.wanted(model, quant) for model, quant in zip(models, quants, strict=True)]
    need = sum(gguf.disk_bytes(model, quant) for model, quant in zip(models, quants, strict=True))
    results: list[Result] = []
    with (
        stage(out, wanted={"pair": wanted}, need_bytes=need, overwrite=overwrite) as work,
        kept(work, work.folder / "pair") as folder,
    ):
        for name, model, quant in zip(_NAMES, models, quants, strict=True):
            path = folder / f"{name}-{model.name}-{quant.name}.gguf"
            if work.finished(name) is not None:
                results.append(_earlier(path))
                continue
            results.append(
                gguf.export(
                    model, path, quant, overwrite=True,
                    report=lambda stage, done=0, total=0, name=name: report(
                        f"{name}: {stage}", done, total
                    ),
                )
            )  # fmt: skip
            work.finish(name, path)
        work.publish({folder: out})
    return [
        Result(
            out / result.path.name,
            out / result.manifest.name,
            result.size_bytes,
            result.parity,
            result.notes,
        )
        for result in results
    ]


def require_fit(models: Sequence[Outline]) -> None:
    """Refuse what a target, alone or with its draft, shows without its weights.

    Raises what `gguf_families.read` and `read_vocabulary` do, and ExportError where a token means
    another text to the draft.
    """
    vocabularies = []
    for model in models:
        config = gguf_families.read(gguf_families.find(model), model).config
        rows = config.get("vocab_size")  # which not all write down
        vocabulary = read_vocabulary(model, rows if isinstance(rows, int) else None, padded=False)
        vocabularies.append(_used(vocabulary))
    for draft, theirs in zip(models[1:], vocabularies[1:], strict=True):
        refuse_other_tokens(models[0], draft, vocabularies[0], theirs)


def require_same_tokens(
    models: tuple[Checkpoint, Checkpoint], vocabularies: list[Vocabulary]
) -> None:
    """Raises ExportError with the first id that means another text to the draft."""
    target, draft = models
    refuse_other_tokens(target, draft, *(_used(words) for words in vocabularies))


def _used(words: Vocabulary) -> list[str]:
    """The tokens up to the last that isn't padding, which are those that the runtime compares."""
    used = [token for token, kind in enumerate(words.types) if kind != UNUSED]
    return words.tokens[: used[-1] + 1 if used else None]


def _earlier(path: Path) -> Result:
    record = manifest.beside(path)
    found = Manifest.read(record)
    return Result(path, record, path.stat().st_size, found.parity, found.notes)
