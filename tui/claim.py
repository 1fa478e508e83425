"""A claim on a name: one process at a time has it, and it ends with that process at the latest.

Invariant: of all who take a claim, one gets it, also while claims are given back and their files
vanish. Where a disk has no locks everyone gets it; who writes must then look before appending.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from edgespec.platform import lock_file


class Claim:
    """A lock file that is there while someone has it (or after a crash: the lock is gone then)."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file

    @classmethod
    def take(cls, path: Path, wait_s: float = 0.0) -> Claim | None:
        """The claim, or None where someone has it still after `wait_s` seconds. Raises OSError."""
        until = time.monotonic() + wait_s
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = path.open("ab")
            except FileNotFoundError:  # a folder that goes away right now
                file = None
            except PermissionError:  # Windows: a lock file that is just being deleted
                if not path.exists():
                    raise
                file = None
            if file is not None:
                if lock_file(file) and _is_at(file, path):
                    return cls(path, file)
                file.close()
            if time.monotonic() >= until:
                return None
            time.sleep(0.02)

    def give_back(self) -> None:
        """Let others have it; once is enough."""
        if self._file.closed:
            return
        # Unlinked while it is locked: who opened it before finds that it isn't there any more.
        with suppress(OSError):
            self._path.unlink()
        self._file.close()
        if os.name == "nt":  # which keeps open files
            with suppress(OSError):
                self._path.unlink()

    def __del__(self) -> None:
        self.give_back()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is the one that the path names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
