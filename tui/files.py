"""Files written whole: what reads one finds the old contents or the new, never a part.

Invariant: whatever fails, the file that was there is still there.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write or replace a file, through links to where it lies. `private`: its owner's alone.

    Raises OSError.
    """
    import secrets

    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(
            part,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0),
            0o600 if private else 0o666,
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            with suppress(OSError):
                shutil.copymode(path, part)
        _replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that isn't there yet. Raises FileExistsError, or OSError."""
    path.open("xb").close()  # the name is ours from here on
    try:
        write_whole(path, data)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _replace(part: Path, path: Path) -> None:
    for _ in range(10):
        try:
            part.replace(path)
            return
        except PermissionError:  # Windows, while another program has the file open
            time.sleep(0.05)
    part.replace(path)
