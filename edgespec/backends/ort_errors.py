"""What the errors of ONNX Runtime and of its devices say, which share no class of their own.

Invariant: memory that isn't there is told from everything else, wherever in the text it is said.
"""

from __future__ import annotations

import re

# How devices say it: CUDA, ONNX Runtime's own allocators, C++, Direct3D.
_NO_MEMORY = re.compile(
    r"out.?of.?(?:device.)?memory|not enough memory|memory of \d+ is smaller|bad.?alloc"
    r"|fail\w* to allocate",
    re.IGNORECASE,
)

# What stands before the reason: its own number and name for it, and the place in its source with
# the function there, which compilers spell with its arguments or without.
_NUMBER = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(
    r"\S+\.(?:cc|cpp|cu|h):\d+ "
    r"(?:[^()]{0,200}?::~?\w+\([^()]*\)(?: const)?(?: \[with [^\]]*\])? |[^() ]*::~?\w+ )?"
)


def lacks_memory(error: BaseException, said: str | None = None) -> bool:
    """Whether an error says that there was no memory; `said`: its text, where less of it counts."""
    text = str(error) if said is None else said
    return isinstance(error, MemoryError) or _NO_MEMORY.search(text) is not None


def short_reason(error: BaseException, most: int) -> str:
    """What an error says, on one line and in at most so many characters."""
    text = " ".join(str(error).split())
    return _PLACE.sub("", _NUMBER.sub("", text, count=1))[:most]
