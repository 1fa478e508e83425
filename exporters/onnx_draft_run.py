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

from edgespec.errors import ExportError, ModelError
from edgespec.exporters import onnx_draft_blocks
from edgespec.exporters.onnx_draft_blocks import LEFT_OUT
from edgespec.exporters.parity import Floats

WINDOW = 128
"""Tokens read at a time; the output behind the later half of them is compared."""

_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32,
}  # fmt: skip


class Switched:
    """A model of which any blocks can be left out."""

    def __init__(self, graph: Path, name: str, threads: int | None = None) -> None:
        """Raises ExportError where its blocks can't be told, or it can't be run."""
        model = ir.load(graph)
        self.blocks = onnx_draft_blocks.add_switches(model, name).blocks
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.parent.absolute())
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
            made = self._session.run(["logits"], self._feeds(tokens, without))[0]
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"A pass through {self._name} failed: {reason[:300]}") from error
        return np.asarray(made[0], np.float32)

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._session = None

    def _feeds(self, tokens: Sequence[int], without: Collection[int]) -> dict[str, Any]:
        count = len(tokens)
        known: dict[str, Any] = {
            "input_ids": [list(tokens)],
            "attention_mask": [[1] * count],
            "position_ids": [list(range(count))],
            "cache_position": list(range(count)),
            "logits_rows": list(range(count)),
            "num_logits_to_keep": count,
            "use_cache_branch": [False],
        }
        feeds = {}
        for value in self._session.get_inputs():
            kind = _TYPES.get(value.type)
            if kind is None:
                raise ExportError(f"{self._name} has an input of type {value.type}: {value.name}.")
            fed: Any
            if value.name.startswith(LEFT_OUT):
                fed = [int(value.name.removeprefix(LEFT_OUT)) in without]
            elif value.name.startswith("past"):
                # The one open dimension besides the batch counts tokens, and there are none yet.
                sizes = (1, *(s if isinstance(s, int) else 0 for s in value.shape[1:]))
                feeds[value.name] = np.zeros(sizes, kind)
                continue
            elif value.name in known:
                fed = known[value.name]
            else:
                raise ExportError(f"{self._name} wants an input {value.name} that nobody knows.")
            array = np.array(fed, kind)
            feeds[value.name] = array.reshape(-1) if len(value.shape) == 1 else array
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
