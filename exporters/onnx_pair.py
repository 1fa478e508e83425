"""A target and its draft as ONNX, in one folder.

Invariant: both or neither; and what the small files rule out, as a pair whose tokens differ, is
refused before any work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.exporters import manifest, onnx
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.onnx import Result, Style
from edgespec.exporters.pair import kept, refuse_other_tokens
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import refuse_existing, stage

NAMES = ("target", "draft")


def export_pair(
    target: Checkpoint,
    draft: Checkpoint,
    out: Path,
    *,
    dtypes: tuple[str, str],
    style: Style | None = None,
    overwrite: bool = False,
    report: Report = silent,
) -> list[Result]:
    """Write both to `out`/target and `out`/draft. Raises ExportError as `onnx.export` does.

    A run that was stopped goes on from the target, where that was finished.
    """
    models = (target, draft)
    refuse_existing(out, overwrite, [*target.shards, *draft.shards])
    onnx.require_extra(style)
    require_fit(models, dtypes, style)
    plans = [onnx.plan(model, dtype, style) for model, dtype in zip(models, dtypes, strict=True)]
    wanted = [onnx.wanted(model, planned) for model, planned in zip(models, plans, strict=True)]
    # What the first takes beside its folder is gone when the second begins.
    beside = max(planned.disk_bytes - planned.size_bytes for planned in plans)
    need = sum(planned.size_bytes for planned in plans) + beside
    made: list[Result] = []
    with (
        stage(out, wanted={"pair": wanted}, need_bytes=need, overwrite=overwrite) as work,
        kept(work, work.folder / "pair") as pair,
    ):
        for checkpoint, name, dtype in zip(models, NAMES, dtypes, strict=True):

            def tell(stage: str, done: int = 0, total: int | None = 0, /, name: str = name) -> None:
                report(f"{name}: {stage}", done, total)

            folder = pair / name
            result = onnx.earlier(checkpoint, folder, tell) if work.finished(name) else None
            made.append(
                result
                or onnx.export(
                    checkpoint, folder, dtype=dtype, style=style, overwrite=True, report=tell
                )
            )
            work.finish(name, folder)
        work.publish({pair: out})
    return [
        replace(result, path=out / name, manifest=manifest.beside(out / name))
        for result, name in zip(made, NAMES, strict=True)
    ]


def require_fit(
    models: Sequence[Outline], dtypes: Sequence[str], style: Style | None = None
) -> None:
    """Refuse what a target, alone or with its draft, shows without its weights.

    Raises what `onnx.chosen` and `onnx_text.write` do, and ExportError where a token means another
    text to the draft.
    """
    from edgespec.exporters import onnx_reference, onnx_text

    for model, dtype in zip(models, dtypes, strict=True):
        onnx.chosen(model, dtype, style)
    vocabularies = []
    for model in models:
        with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
            texts = onnx_text.write(model, Path(folder), onnx_reference.rows(model))
        vocabularies.append(texts.tokens)
    for draft, theirs in zip(models[1:], vocabularies[1:], strict=True):
        refuse_other_tokens(models[0], draft, vocabularies[0], theirs)
