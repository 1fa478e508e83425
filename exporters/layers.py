"""Keeping some of a model's blocks: a drafter that is shallower than its target.

Invariant: the blocks that are kept stay in their order and each keeps what it was (its own number
of heads, its own attention window); only their numbers change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ConfigError, ExportError
from edgespec.exporters.cut import Kind, Rewrite
from edgespec.gguf import GGUFHeader
from edgespec.narrow import BLOCKS

_TRIED = 4  # blocks tried before one of them is left out

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")

# Architectures whose blocks take turns between a sliding window and the whole text, by their number
# unless the file says which: the last of every so many sees the whole text.
_TURNS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "llama4": 4}

# Whose every fourth block isn't rotated by position, by its number alone: no key says which.
_UNTURNED = {"smollm3", "llama4", "afmoe"}

# Of exactly so many blocks llama.cpp scales the attention otherwise.
_SCALED = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True)
class Automatic:
    """Keep this many, chosen by what removing each does to the output."""

    number: int


def parse(text: str, blocks: int) -> tuple[int, ...] | Automatic:
    """Which of the `blocks` to keep: parts as in `first:8,last:4`, `0-5,20`, or `auto:12`.

    Raises ConfigError, in one sentence.
    """
    kept: set[int] = set()
    for part in text.split(","):
        named = re.fullmatch(r"(first|last|auto):(\d+)", part.strip())
        listed = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if named:
            number = int(named[2])
            if not 1 <= number <= blocks:
                raise ConfigError(f"{part} asks for {number} of {blocks} blocks: --layers")
            if named[1] == "auto":
                if "," in text:
                    raise ConfigError(f"{part} chooses all the blocks: name no others beside it")
                return Automatic(number)
            kept |= set(range(number) if named[1] == "first" else range(blocks - number, blocks))
        elif listed:
            first, last = int(listed[1]), int(listed[2] or listed[1])
            if not first <= last < blocks:
                raise ConfigError(f"there is no block {part}: the blocks are 0 to {blocks - 1}")
            kept |= set(range(first, last + 1))
        else:
            raise ConfigError(
                f"--layers doesn't know {part!r}: write first:8, last:4, auto:12, 0-5,20 or parts "
                "of these with commas"
            )
    return tuple(sorted(kept))


def count(header: GGUFHeader) -> int:
    """How many blocks a model has."""
    blocks = header.metadata.get(f"{header.architecture}.block_count")
    if not isinstance(blocks, int) or blocks < 1:
        raise ExportError(f"{header.path.name} doesn't say how many blocks it has.")
    return blocks


def least_missed(
    change: Callable[[frozenset[int]], float], blocks: int, number: int
) -> tuple[int, ...]:
    """The `number` of `blocks` to keep: the others are left out one by one, the least missed first.

    `change` says how much the output differs without some blocks. What a block matters depends on
    which others are gone, so the few that matter least alone are tried again each time. The first
    block is always kept: it makes of embeddings what all others work on.
    """
    alone = {block: change(frozenset((block,))) for block in range(1, blocks)}
    without: frozenset[int] = frozenset()
    while blocks - len(without) > number:
        left = sorted(alone.keys() - without, key=lambda block: alone[block])[:_TRIED]
        scores = {b: change(without | {b}) for b in left} if without else alone
        without |= {min(left, key=lambda block: scores[block])}
    return tuple(block for block in range(blocks) if block not in without)


def tries(blocks: int, number: int) -> int:
    """How often `least_missed` asks for a change."""
    if number >= blocks:
        return blocks - 1
    return blocks - 1 + sum(min(_TRIED, left) for left in range(number, blocks - 1))


def keep(draft: Rewrite, kept: Sequence[int]) -> None:
    """Leave out every block but the `kept`, ascending."""
    header = draft.header
    name, architecture, blocks = header.path.name, header.architecture, count(header)
    if tuple(kept) == tuple(range(blocks)):
        return
    if header.metadata.get(f"{architecture}.nextn_predict_layers", 0):
        raise ExportError(f"{name} has blocks that predict further tokens: they can't be cut.")
    if any(t.name.startswith("per_layer") for t in header.tensors):
        raise ExportError(f"{name} has tensors that serve all blocks at once: they can't be cut.")
    refuse_others(header, kept)
    number = {old: new for new, old in enumerate(kept)}
    for tensor in header.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if block:
            new = number.get(int(block[1]))
            draft.renamed[tensor.name] = None if new is None else f"blk.{new}.{block[2]}"
    draft.set_number(f"{architecture}.block_count", len(kept))
    draft.set_ids(BLOCKS, list(kept))
    for key, value in header.metadata.items():
        each = isinstance(value, np.ndarray) and len(value) == blocks
        if each and key.startswith(f"{architecture}.") and ".rope." not in key:
            assert isinstance(value, np.ndarray)
            draft.metadata[key] = (value[list(kept)].tolist(), Kind.ARRAY, _kind(value))
    turns = f"{architecture}.attention.sliding_window_pattern"
    if architecture in _TURNS and turns not in draft.metadata:
        every = header.metadata.get(turns, _TURNS[architecture])
        assert isinstance(every, int)
        windowed = [every == 0 or block % every < every - 1 for block in kept]
        draft.metadata[turns] = (windowed, Kind.ARRAY, Kind.BOOL)


def refuse_others(header: GGUFHeader, kept: Sequence[int] | None) -> None:
    """Raises ExportError where a block with a new number would be another one to llama.cpp.

    kept: None is whatever blocks are least missed.
    """
    name, architecture, blocks = header.path.name, header.architecture, count(header)
    if _SCALED.get(architecture) == blocks:
        raise ExportError(
            f"The blocks of {name} can't be cut: llama.cpp scales the attention of {architecture} "
            f"with {blocks} blocks as of no other number."
        )
    if architecture in _UNTURNED and (
        kept is None or any((new % 4 == 3) != (old % 4 == 3) for new, old in enumerate(kept))
    ):
        raise ExportError(
            f"llama.cpp leaves every fourth block of {architecture} without rotation, by its "
            "number, so these would be other blocks: keep the first ones (first:N) or whole groups "
            "of four (0-3,8-11)."
        )


def _kind(value: npt.NDArray[Any]) -> Kind:
    """The type that such an array has in a file."""
    if value.dtype.kind == "b":
        return Kind.BOOL
    name = {"i": "INT", "u": "UINT", "f": "FLOAT"}[value.dtype.kind]
    kind: Kind = getattr(Kind, f"{name}{8 * value.dtype.itemsize}")
    return kind
