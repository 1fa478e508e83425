"""Memory for the tensors of a cache, on the device that computes.

Invariant: a tensor's memory has one address for as long as its block lives; it is bound there at
any length that fits, and its bytes come to the host only when they are asked for.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgespec.backends.ort_errors import lacks_memory, short_reason
from edgespec.backends.ort_graph import CacheTensor
from edgespec.errors import ModelError

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64  # bytes; a cache line, and what wide vector loads like


class Block(Protocol):
    """Memory for one cache tensor."""

    def bind_input(self, binding: Any, tensor: CacheTensor, tokens: int) -> None: ...

    def bind_output(self, binding: Any, tensor: CacheTensor, tokens: int) -> None: ...

    def load(self) -> Bytes:
        """Its bytes on the host: themselves where it lies there, else a copy."""
        ...

    def blank(self) -> Bytes:
        """As `load` for whoever overwrites what counts: nothing is copied from the device."""
        ...

    def store(self, data: Bytes) -> None:
        """Make the bytes that `load` or `blank` gave, changed meanwhile, its contents."""
        ...


class HostBlock:
    """Memory of this process, zeroed lazily by the system."""

    device = "cpu"

    def __init__(self, nbytes: int) -> None:
        self._all = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        first = -self._all.ctypes.data % _ALIGNMENT
        self._data = self._all[first : first + nbytes]
        self._address = self._data.ctypes.data

    def bind_input(self, binding: Any, tensor: CacheTensor, tokens: int) -> None:
        shape = tensor.shape(tokens)
        binding.bind_input(tensor.past, self.device, 0, tensor.element, shape, self._address)

    def bind_output(self, binding: Any, tensor: CacheTensor, tokens: int) -> None:
        shape = tensor.shape(tokens)
        binding.bind_output(tensor.present, self.device, 0, tensor.element, shape, self._address)

    def load(self) -> Bytes:
        return self._data

    def blank(self) -> Bytes:
        return self._data

    def store(self, data: Bytes) -> None:
        pass


class CudaBlock(HostBlock):
    """Memory of the GPU that is addressed by pointer."""

    device = "cuda"

    def __init__(self, nbytes: int) -> None:
        self._value = ort.OrtValue.ortvalue_from_numpy(np.zeros(nbytes, np.uint8), "cuda", 0)
        self._address = self._value.data_ptr()
        self._nbytes = nbytes

    def load(self) -> Bytes:
        return np.array(self._value.numpy())

    def blank(self) -> Bytes:
        return np.empty(self._nbytes, np.uint8)

    def store(self, data: Bytes) -> None:
        self._value.update_inplace(data)


class ValueBlock:
    """Memory of a device without plain pointers (DirectML), so of one shape for good."""

    def __init__(self, tensor: CacheTensor, tokens: int, device: str) -> None:
        self._value = ort.OrtValue.ortvalue_from_shape_and_type(
            list(tensor.shape(tokens)), tensor.element, device, 0
        )
        self._nbytes = tensor.token_bytes * tokens

    def bind_input(self, binding: Any, tensor: CacheTensor, tokens: int) -> None:  # noqa: ARG002
        binding.bind_ortvalue_input(tensor.past, self._value)

    def bind_output(self, binding: Any, tensor: CacheTensor, tokens: int) -> None:  # noqa: ARG002
        binding.bind_ortvalue_output(tensor.present, self._value)

    def load(self) -> Bytes:
        return np.array(self._value.numpy()).view(np.uint8).reshape(-1)

    def blank(self) -> Bytes:
        return np.empty(self._nbytes, np.uint8)

    def store(self, data: Bytes) -> None:
        value = self._value
        value.update_inplace(data.view(value.numpy().dtype).reshape(value.shape()))


def allocate(tensor: CacheTensor, tokens: int, device: str) -> Block:
    """Memory for `tokens` tokens of a cache tensor, on a device by ONNX Runtime's name.

    Raises ModelError where there isn't as much, or where the device gives none.
    """
    nbytes = tensor.token_bytes * tokens
    try:
        if device == "cpu":
            return HostBlock(nbytes)
        if device == "cuda":
            return CudaBlock(nbytes)
        return ValueBlock(tensor, tokens, device)
    except Exception as error:  # MemoryError, or ONNX Runtime's own, which share no class
        if not lacks_memory(error):
            raise ModelError(
                f"no cache can be made on the device {device} ({short_reason(error, 200)})"
            ) from error
        raise ModelError(
            f"there is no memory for a cache of {tokens} tokens ({nbytes / 1e6:.0f} MB for each "
            "of its tensors): choose a smaller --ctx-size"
        ) from error
