"""A graph of plain operators, by optimum: slower, but for any architecture optimum knows.

Each pass returns a grown copy of the cache. Invariant: the graph is float; `onnx_weights` makes
fewer bits of it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from edgespec.errors import ExportError
from edgespec.exporters.machine import lacking

TASK = "text-generation-with-past"


def refuse_unknown(name: str, architecture: str, model_type: str) -> None:
    """Raises ExportError where optimum can't export models of this type with their cache."""
    from optimum.exporters.onnx import model_configs  # noqa: F401 - fills it
    from optimum.exporters.tasks import TasksManager

    try:
        known = TasksManager.get_supported_tasks_for_model_type(
            model_type, "onnx", library_name="transformers"
        )
    except KeyError:
        known = {}
    if TASK not in known:
        raise ExportError(
            f"{name} is a {architecture}, which neither onnxruntime-genai nor optimum can export; "
            "`edgespec export gguf --converter` may do."
        )


def build(loaded: Any, folder: Path, *, half: bool) -> ir.Model:
    """The graph of a torch model, whose weights become float32 or float16 for it.

    Its tensors are read from files in `folder`, which must stay until it was written elsewhere.
    Raises ExportError where optimum can't export it.
    """
    from optimum.exporters.onnx import onnx_export_from_model

    folder.mkdir()
    loaded = loaded.half() if half else loaded.float()
    try:
        with _quiet():
            onnx_export_from_model(
                loaded, folder, task=TASK, do_validation=False, use_subprocess=False
            )
    except Exception as error:  # whatever torch, transformers and optimum raise between them
        if lacking(error):
            raise
        reason = str(error).strip().split("\n", 1)[0]
        raise ExportError(f"optimum can't export {type(loaded).__name__}: {reason}") from error
    graphs = sorted(folder.glob("*.onnx"))
    if [path.name for path in graphs] != ["model.onnx"]:
        names = ", ".join(path.name for path in graphs) or "nothing"
        raise ExportError(f"optimum made {names} of {type(loaded).__name__}, not one decoder.")
    return ir.load(graphs[0])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns of every branch that depends on the input, and there are hundreds."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with torch.no_grad():
                yield
    finally:
        logging.disable(level)
