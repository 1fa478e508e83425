"""What the machine lacks, told apart from what is wrong with a model.

Invariant: neither memory that isn't there nor a disk that is full is blamed on the model.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from edgespec.backends.ort_errors import lacks_memory
from edgespec.errors import EdgespecError, ModelError
from edgespec.exporters.staging import Stopped
from edgespec.units import human_bytes

_TORCH = re.compile(r"DefaultCPUAllocator")  # its own allocator, in an error of no class of its own
_DISK = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def no_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory; of a backend's own, what it came of."""
    if isinstance(error, ModelError) and error.__cause__ is not None:
        return no_memory(error.__cause__)
    if isinstance(error, EdgespecError):
        return False
    return lacks_memory(error) or _TORCH.search(str(error)) is not None


def lacking(error: BaseException) -> bool:
    """Whether an error is about memory or the disk. Libraries also raise OSErrors of their own."""
    return no_memory(error) or (isinstance(error, OSError) and error.errno in _DISK)


@contextlib.contextmanager
def enough_memory(need_bytes: int) -> Iterator[None]:
    """A sentence where there wasn't; need_bytes: what the work takes about."""
    try:
        yield
    except Exception as error:
        if not no_memory(error):
            raise
        raise Stopped(
            f"There wasn't the memory for this export, which takes about "
            f"{human_bytes(need_bytes)}; close other programs, or use a larger machine."
        ) from error
