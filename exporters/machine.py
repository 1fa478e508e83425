"""What the machine lacks, told apart from what is wrong with a model.

Invariant: neither memory that isn't there nor a disk that is full is blamed on the model.
"""

from __future__ import annotations

import errno
import re

from edgespec.errors import EdgespecError

# As torch and ONNX Runtime say it, in errors that are of no class of their own.
_NO_MEMORY = re.compile(r"DefaultCPUAllocator|bad_alloc|bad allocation|Failed to allocate memory")
_DISK = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def no_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    if isinstance(error, EdgespecError):
        return False
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def lacking(error: BaseException) -> bool:
    """Whether an error is about memory or the disk. Libraries also raise OSErrors of their own."""
    return no_memory(error) or (isinstance(error, OSError) and error.errno in _DISK)
