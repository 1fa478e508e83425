"""A target and its draft as GGUF, in one folder.

Invariant: both or neither; and a pair whose tokens differ is refused before any work.
"""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import ExportError
from edgespec.exporters import gguf, manifest
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf import Result
from edgespec.exporters.gguf_quant import Quant
from edgespec.exporters.gguf_sentencepiece import UNUSED
from edgespec.exporters.gguf_vocabulary import Vocabulary
from edgespec.exporters.manifest import Manifest
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

    A run that was stopped after the target was done goes on with the draft.
    """
    refuse_existing(out, overwrite)
    models = (target, draft)
    vocabularies = [gguf.vocabulary(model) for model in models]  # refuses unknown families too
    require_same_tokens(models, vocabularies)
    wanted = [gguf.wanted(model, quant) for model, quant in zip(models, quants, strict=True)]
    need = sum(gguf.disk_bytes(model, quant) for model, quant in zip(models, quants, strict=True))
    results: list[Result] = []
    with stage(out, wanted={"pair": wanted}, need_bytes=need, overwrite=overwrite) as work:
        folder = work.folder / "pair"
        for name, model, quant in zip(_NAMES, models, quants, strict=True):
            path = folder / f"{name}-{model.name}-{quant.name}.gguf"
            if work.finished(name) is not None:
                results.append(_earlier(path))
                continue
            folder.mkdir(exist_ok=True)
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


def require_same_tokens(
    models: tuple[Checkpoint, Checkpoint], vocabularies: list[Vocabulary]
) -> None:
    """Raises ExportError with the first id that means another text to the draft."""
    columns = [zip(words.tokens, words.types, strict=True) for words in vocabularies]
    for token, (ours, theirs) in enumerate(zip(*columns, strict=False)):
        if ours[0] != theirs[0] and UNUSED not in (ours[1], theirs[1]):
            raise ExportError(
                f"{models[1].name} can't draft for {models[0].name}: token {token} is "
                f"{theirs[0]!r} there and {ours[0]!r} here; choose a draft of the same family."
            )


def _earlier(path: Path) -> Result:
    record = manifest.beside(path)
    found = Manifest.read(record)
    return Result(path, record, path.stat().st_size, found.parity, found.notes)
