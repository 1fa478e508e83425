"""A target and its draft as ONNX, in one folder.

Invariant: both or neither; and a pair whose tokens differ is refused before any work.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgespec.exporters import manifest, onnx
from edgespec.exporters.checkpoint import Checkpoint, Outline, refuse_other_tokens
from edgespec.exporters.onnx import Result, Style
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
    """Write both to `out`/target and `out`/draft. Raises ExportError as `onnx.export` does."""
    models = (target, draft)
    refuse_existing(out, overwrite, [*target.shards, *draft.shards])
    onnx.require_extra(style)
    plans = [onnx.plan(model, dtype, style) for model, dtype in zip(models, dtypes, strict=True)]
    require_same_tokens(target, draft)
    wanted = {"format": "onnx pair"}
    # What the first takes beside its folder is gone when the second begins.
    beside = max(planned.disk_bytes - planned.size_bytes for planned in plans)
    need = sum(planned.size_bytes for planned in plans) + beside
    with stage(out, wanted=wanted, need_bytes=need, overwrite=overwrite) as work:
        pair = work.folder / "pair"
        made = [
            onnx.export(
                checkpoint, pair / name, dtype=dtype, style=style,
                report=lambda stage, done=0, total=0, name=name: report(
                    f"{name}: {stage}", done, total
                ),
            )
            for checkpoint, name, dtype in zip(models, NAMES, dtypes, strict=True)
        ]  # fmt: skip
        work.publish({pair: out})
    return [
        replace(result, path=out / name, manifest=manifest.beside(out / name))
        for result, name in zip(made, NAMES, strict=True)
    ]


def require_same_tokens(target: Outline, draft: Outline) -> None:
    """Raises ExportError where a token means another text to the draft."""
    from edgespec.exporters import onnx_text

    vocabularies = [onnx_text.tokens(onnx_text.load(model)) for model in (target, draft)]
    refuse_other_tokens(target, draft, *vocabularies)
