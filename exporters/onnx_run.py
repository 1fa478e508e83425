"""A model's graph run as it is stored, for the checks after an export; the runtime has its own way.

Invariant: the graph is fed what it declares and nothing else. A cache that stays in place is one
buffer, past and present; any other is what the last pass returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from edgespec.backends.ort_graph import ROWS, present_names
from edgespec.errors import ExportError
from edgespec.exporters.machine import no_memory

_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32,
}  # fmt: skip
_BFLOAT16 = 16  # ONNX's number of the type that numpy hasn't got


def inputs(tokens: Sequence[int], past: int) -> dict[str, Any]:
    """What a pass over tokens (n,) behind `past` others is given, by the inputs' names; a graph
    declares some of them.
    """
    total = past + len(tokens)
    places = list(range(past, total))
    return {
        "input_ids": [list(tokens)],
        "attention_mask": [[1] * total],
        "position_ids": [places],
        "cache_position": places,
        "num_logits_to_keep": len(tokens),
        "use_cache_branch": [past > 0],
    }


def as_declared(value: Any, given: Any) -> npt.NDArray[Any]:
    """What is given for an input, in the type and the rank that the graph declares.

    Raises ExportError for a type that no input of a language model has.
    """
    if value.type not in _TYPES:
        raise ExportError(f"The graph has an input of type {value.type}: {value.name}.")
    array = np.asarray(given, _TYPES[value.type])
    return array.reshape(-1) if len(value.shape) == 1 else array


def zeros(value: Any, tokens: int) -> Any:
    """An OrtValue for one tensor of the cache, with room for `tokens`."""
    # The one open dimension besides the batch counts them.
    shape = (1, *(size if isinstance(size, int) else tokens for size in value.shape[1:]))
    make = onnxruntime.OrtValue
    if value.type == "tensor(bfloat16)":
        return make.ortvalue_from_numpy_with_onnx_type(np.zeros(shape, np.uint16), _BFLOAT16)
    return make.ortvalue_from_numpy(as_declared(value, np.zeros(shape, _TYPES.get(value.type))))


class Graph:
    """One text going through a graph.

    Attributes:
        length: tokens in the cache; in place, set it back to forget some.
        in_place: see `__init__`.
    """

    def __init__(
        self,
        path: Path,
        *,
        in_place: bool,
        room: int = 0,
        threads: int | None = None,
        mapped: bool = False,
    ) -> None:
        """Open model.onnx on the CPU.

        in_place: the graph's attention writes behind what is in the cache, which has `room`
        positions. mapped: weights stay in their file, in no memory but the system's own copy of
        it. Raises ExportError where ONNX Runtime can't load it.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if mapped:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session: Any = onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common class of their own
            if no_memory(error):
                raise
            reason = str(error).split("\n", 1)[0]
            raise ExportError(f"ONNX Runtime can't load what was exported: {reason}") from error
        declared = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        self._inputs = {value.name: value for value in declared}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._caches = [name for name in self._inputs if name.startswith("past")]
        self._past_of = {
            name: past
            for past in self._caches
            for name in present_names(past)
            if name in self._outputs
        }
        self.in_place = in_place
        self._room = room
        self.length = 0
        self._binding = self._session.io_binding()
        self._past = self._empty(room if in_place else 0)

    def forward(
        self, tokens: Sequence[int], rows: Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """Append tokens (n,); the logits (len(rows), V) of these positions within the pass, or all.

        Raises ExportError where the pass fails.
        """
        count = len(tokens)
        if self.in_place and self.length + count > self._room:
            raise ValueError("the cache is full")
        fed = inputs(tokens, self.length)
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for name in self._inputs.keys() - set(self._caches) - {ROWS}:
            if name not in fed:
                raise ExportError(f"The exported graph wants an input {name} that nobody knows.")
            binding.bind_cpu_input(name, as_declared(self._inputs[name], fed[name]))
        if ROWS in self._inputs and rows is not None:
            # The other way of binding looks for inputs without a default only.
            named = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(rows, np.int64))
            binding.bind_ortvalue_input(ROWS, named)
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            past = self._past_of.get(name)
            if self.in_place and past is not None:
                binding.bind_ortvalue_output(name, self._past[past])
            else:
                binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            if no_memory(error):
                raise
            reason = str(error).split("\n", 1)[0]
            raise ExportError(f"A pass through what was exported failed: {reason}") from error
        made = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        if not self.in_place:
            self._past = {past: made[name] for name, past in self._past_of.items()}
        self.length += count
        logits = made["logits"].numpy()[0].astype(np.float32)
        if rows is not None and ROWS not in self._inputs:
            logits = logits[list(rows)]
        return np.asarray(logits, np.float32)

    def clear(self) -> None:
        """Start a new text."""
        self.length = 0
        if not self.in_place:
            self._past = self._empty(0)

    def _empty(self, tokens: int) -> dict[str, Any]:
        return {name: zeros(self._inputs[name], tokens) for name in self._caches}

    @property
    def selects_rows(self) -> bool:
        """Whether the graph can be asked for some positions' logits alone."""
        return ROWS in self._inputs
