"""Weights in blocks of a few bits each, as ONNX Runtime's MatMulNBits and GatherBlockQuantized
read them: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

A row of a matrix is cut into blocks; a block is its numbers as small integers, one float scale,
and one integer that stands for zero.

Invariant: `unpack(pack(w))` differs from w by half a step of each block's scale or less, but for
numbers at a block's edge, where the search for a better scale may clip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_TINY = 1e-30  # a block of zeros still needs something to divide by
_CHUNK = 1 << 19  # numbers worked on at a time: they stay in the processor's cache

# Widths of the grid that are tried around (largest - smallest) / (2^bits - 1), as numbers added to
# that divisor. On normal numbers these four take 2.8% off the error; twice as many, each with the
# zero moved both ways as well, take 3.8% off and six times as long.
_WIDTHS = (-1.0, 0.0, 0.75, 1.5)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """A matrix (rows, columns) in blocks along its columns.

    data: (rows, blocks, block * bits / 8), the lower bits first. scales: (rows, blocks) float32.
    zeros: (rows, ceil(blocks * bits / 8)).
    """

    data: Bytes
    scales: npt.NDArray[np.float32]
    zeros: Bytes
    columns: int
    bits: int
    block: int


def pack(
    matrix: torch.Tensor,
    bits: int,
    block: int,
    count: Callable[[int], None] = lambda _: None,
) -> Packed:
    """Quantise a matrix (rows, columns) to 4 or 8 bits; `count` is told the numbers done."""
    rows, columns = matrix.shape
    blocks = -(-columns // block)
    data = np.empty((rows, blocks, block * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zeros = np.empty((rows, -(-blocks * bits // 8)), np.uint8)
    step = max(1, _CHUNK // max(1, columns))
    for first in range(0, rows, step):
        part = matrix[first : first + step].float()
        part = torch.nn.functional.pad(part, (0, blocks * block - columns))
        quanta, scale, zero = _nearest(part.reshape(-1, blocks, block), bits)
        there = slice(first, first + step)
        data[there] = _join(quanta, bits).numpy()
        scales[there] = scale.squeeze(-1).numpy()
        zeros[there] = _join(zero.squeeze(-1), bits).numpy()
        count(part.shape[0] * columns)
    return Packed(data, scales, zeros, columns, bits, block)


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """The matrix (rows, columns) that the operators compute with."""
    rows, blocks, _ = packed.data.shape
    quanta = _split(packed.data, packed.bits).reshape(rows, blocks, packed.block)
    zeros = _split(packed.zeros, packed.bits)[:, :blocks, None]
    values = (quanta.astype(np.float32) - zeros) * packed.scales[:, :, None]
    return np.asarray(values.reshape(rows, -1)[:, : packed.columns], np.float32)


def _nearest(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers (n, blocks, block), scales and zeros (n, blocks, 1) with the least squared error."""
    top = float(2**bits - 1)
    low = values.amin(-1, keepdim=True).clamp_(max=0)
    span = values.amax(-1, keepdim=True).clamp_(min=0) - low
    # 8 bits leave nothing to search for.
    best: tuple[torch.Tensor, ...] | None = None
    for width in (0.0,) if bits == 8 else _WIDTHS:
        grid = (span / (top + width)).clamp_(min=_TINY)
        zero = (-low / grid).round_().clamp_(0, top)
        quanta = (values / grid).round_().add_(zero).clamp_(0, top)
        steps = quanta - zero
        # The scale that fits these integers best, by least squares.
        square = (steps * steps).sum(-1, keepdim=True).clamp_(min=1)
        scale = (steps * values).sum(-1, keepdim=True) / square
        error = steps.mul_(scale).sub_(values).square_().sum(-1, keepdim=True)
        if best is None:
            best = error, quanta, scale, zero
        else:
            better = error < best[0]
            best = tuple(
                torch.where(better, new, old)
                for new, old in zip((error, quanta, scale, zero), best, strict=True)
            )
    assert best is not None
    return best[1].to(torch.uint8), best[2], best[3].to(torch.uint8)


def _join(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Two 4-bit numbers a byte along the last axis, the first in the lower half."""
    if bits == 8:
        return values
    if values.shape[-1] % 2:
        values = torch.nn.functional.pad(values, (0, 1))
    return values[..., 0::2] | (values[..., 1::2] << 4)


def _split(data: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return data
    return np.stack((data & 15, data >> 4), -1).reshape(*data.shape[:-1], -1)
