"""Weights in blocks of a few bits each, as ONNX Runtime's MatMulNBits and GatherBlockQuantized
read them: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

A row of a matrix is cut into blocks; a block is its numbers as small integers and one float scale.
The integer in the middle, 2^(bits - 1), stands for zero, as it does for MatMulNBits where a
graph names no other: one token's pass is faster than with zeros that differ by block.

Invariant: `unpack(pack(w))` differs from w by one and a half steps of the coarsest grid at most, a
step being a block's largest number over 2^(bits - 1) - 1: half a step for rounding, the rest for
clipping and the scale's fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_TINY = 1e-30  # a block of zeros still needs something to divide by
_CHUNK = 1 << 19  # numbers worked on at a time: they stay in the processor's cache

# The levels, negated, that a block's number of largest magnitude is tried at; the scale is negative
# where that number isn't. Each number's error counts by its square: large weights that are clipped
# cost a model more than the plain error says. On normal numbers these four take 16% off the error
# at 8.0 alone, on matrices of models 24 to 32%; twice as many take off at most 1% more. Zeros of
# each block's own, fitted by the plain error, took 4% off, and on those matrices -4 to 28%.
_LEVELS = (7.1, 7.6, 8.0, 8.5)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """A matrix (rows, columns) in blocks along its columns.

    data: (rows, blocks, block * bits / 8), the lower bits first. scales: (rows, blocks) float32, of
    either sign.
    """

    data: Bytes
    scales: npt.NDArray[np.float32]
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
    step = max(1, _CHUNK // max(1, columns))
    for first in range(0, rows, step):
        # Along the columns of a stored matrix, as turned ones lie, all this takes twice as long.
        part = matrix[first : first + step].float().contiguous()
        part = torch.nn.functional.pad(part, (0, blocks * block - columns))
        quanta, scale = _nearest(part.reshape(-1, blocks, block), bits)
        there = slice(first, first + step)
        data[there] = _join(quanta, bits).numpy()
        scales[there] = scale.squeeze(-1).numpy()
        count(part.shape[0] * columns)
    return Packed(data, scales, columns, bits, block)


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """The matrix (rows, columns) that the operators compute with."""
    rows, blocks, _ = packed.data.shape
    quanta = _split(packed.data, packed.bits).reshape(rows, blocks, packed.block)
    steps = quanta.astype(np.float32) - 2 ** (packed.bits - 1)
    values = steps * packed.scales[:, :, None]
    return np.asarray(values.reshape(rows, -1)[:, : packed.columns], np.float32)


def _nearest(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers (n, blocks, block) and scales (n, blocks, 1) with the least weighted error."""
    half = 2 ** (bits - 1)
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    largest = torch.where(-low > high, low.clamp(max=-_TINY), high.clamp(min=_TINY))
    values = values / largest
    weights = values * values
    # 8 bits leave nothing to search for.
    best: tuple[torch.Tensor, ...] | None = None
    for level in (half,) if bits == 8 else _LEVELS:
        steps = (values * -level).round_().clamp_(-half, half - 1)
        # The scale that fits these integers best, by weighted least squares.
        weighted = steps * weights
        square = (weighted * steps).sum(-1, keepdim=True).clamp_(min=_TINY)
        scale = (weighted * values).sum(-1, keepdim=True) / square
        error = (steps * scale).sub_(values).square_().mul_(weights).sum(-1, keepdim=True)
        if best is None:
            best = error, steps, scale
        else:
            better = error < best[0]
            best = tuple(
                torch.where(better, new, old)
                for new, old in zip((error, steps, scale), best, strict=True)
            )
    assert best is not None
    return best[1].add_(half).to(torch.uint8), best[2] * largest


def _join(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Two 4-bit numbers a byte along the last axis, the first in the lower half."""
    if bits == 8:
        return values
    return values[..., 0::2] | (values[..., 1::2] << 4)


def _split(data: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return data
    return np.stack((data & 15, data >> 4), -1).reshape(*data.shape[:-1], -1)
