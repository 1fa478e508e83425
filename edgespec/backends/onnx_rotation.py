"""At how many tokens an ONNX graph starts to rotate positions otherwise (LongRoPE), from its bytes.

onnxruntime-genai's builder puts two tables of rotations into the graph and a comparison in front of
them; no file beside the graph tells of it. Invariant: a graph that wasn't built so gives None,
whatever its bytes are, and of its file no more than the start is looked at.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

_MOST_BYTES = 1 << 25  # nodes come before weights, and a thousand take less than one of these MB

# Protobuf keeps a message's fields in order: here a node's second input, then its output (tag 2 and
# a length). The second name is of graphs for devices that can't branch (DirectML).
_COMPARED = re.compile(
    rb"/model/constants/[\w./]{1,40}/(\d{1,9})\x12."
    rb"(?:/model/rotemb_caches_subgraph/Greater|/model/pos_ids_reformat/GreaterOrEqual)/output_0",
    re.DOTALL,
)
# Or the table for short texts: its name, its type, and the first number of its shape.
_TABLE = re.compile(
    rb"\x0a\x0fcos_cache_small\x12.\x0a.\x08.\x12.\x0a.\x08([\x80-\xff]{0,4}[\x00-\x7f])", re.DOTALL
)


def switch(graph: Path) -> int | None:
    """The most tokens of a text whose positions are rotated as those of short ones."""
    with graph.open("rb") as file:
        size = min(graph.stat().st_size, _MOST_BYTES)
        if size == 0:  # which can't be mapped
            return None
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            if (compared := _COMPARED.search(data)) is not None:
                return int(compared[1]) or None
            if (table := _TABLE.search(data)) is not None:
                return _varint(table[1]) or None
    return None


def _varint(data: bytes) -> int:
    """Seven bits of each byte, the lowest first."""
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(data))
