"""An ONNX model run without some of its blocks, with no such model written anywhere.

Each block's output goes through a switch that gives, where it is left out, what went into it.
Invariant: with nothing left out, a pass gives what the model gives; the weights stay in the
model's own files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from edgespec.backends.ort_graph import ROWS
from edgespec.errors import ExportError, ModelError
from edgespec.exporters import onnx_draft_blocks, onnx_draft_source, onnx_run
from edgespec.exporters.onnx_draft_blocks import LEFT_OUT
from edgespec.exporters.parity import Floats

WINDOW = 128
"""Tokens read at a time; the output behind the later half of them is compared."""


class Switched:
    """A model of which any blocks can be left out."""

    def __init__(self, graph: Path, name: str, threads: int | None = None) -> None:
        """Raises ExportError where its blocks can't be told, or it can't be run."""
        model = ir.load(graph)
        folder = onnx_draft_source.real_places(model, graph.parent, name)
        self.blocks = onnx_draft_blocks.add_switches(model, name).blocks
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        self._name = name
        try:
            self._session: Any = onnxruntime.InferenceSession(
                ir.serde.serialize_model(model).SerializeToString(), options,
                providers=["CPUExecutionProvider"],
            )  # fmt: skip
        except Exception as error:  # its errors, and protobuf's, have no common class
            reason = " ".join(str(error).split())
            raise ExportError(f"{name} can't be run with switches: {reason[:300]}") from error

    def logits(self, tokens: Sequence[int], without: Collection[int] = ()) -> Floats:
        """The logits (n, V) behind each of the tokens (n,), without some blocks."""
        try:
            run = self._session.run_with_ort_values
            made = run(["logits"], self._feeds(tokens, without))[0].numpy()
        except ExportError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"A pass through {self._name} failed: {reason[:300]}") from error
        return np.asarray(made[0], np.float32)

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._session = None

    def _feeds(self, tokens: Sequence[int], without: Collection[int]) -> dict[str, Any]:
        known = {**onnx_run.inputs(tokens, 0), ROWS: list(range(len(tokens)))}
        known |= {f"{LEFT_OUT}{block}": [block in without] for block in range(self.blocks)}
        feeds = {}
        for value in self._session.get_inputs():
            if value.name.startswith("past"):
                feeds[value.name] = onnx_run.zeros(value, 0)
            elif value.name in known:
                array = onnx_run.as_declared(value, known[value.name])
                feeds[value.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            else:
                raise ExportError(f"{self._name} wants an input {value.name} that nobody knows.")
        return feeds


class Ablation:
    """How much each block matters to a sample text."""

    def __init__(self, switched: Switched, tokens: Sequence[int]) -> None:
        """`tokens`: a text as ids; as many whole windows of it are read as there are."""
        if len(tokens) < WINDOW:
            raise ModelError(f"{WINDOW} tokens of text are needed to tell what a block does")
        self._switched = switched
        self._windows = [
            list(tokens[begin : begin + WINDOW])
            for begin in range(0, len(tokens) - WINDOW + 1, WINDOW)
        ]
        self._whole = [self._log_probs(window, ()) for window in self._windows]

    def change(self, without: Collection[int]) -> float:
        """How much leaving these blocks out changes the output: mean KL divergence, in nats."""
        total = 0.0
        for window, whole in zip(self._windows, self._whole, strict=True):
            rest = self._log_probs(window, without)
            total += float((np.exp(whole) * (whole - rest)).sum(dtype=np.float64))
        return total / sum(map(len, self._whole))

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._switched.close()

    def _log_probs(self, window: Sequence[int], without: Collection[int]) -> Floats:
        logits = self._switched.logits(window, without)[-WINDOW // 2 :]  # (rows, V)
        logits = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), np.float32)
