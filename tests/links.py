"""Whether tests may make links: Windows wants a right or its developer mode for them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


def _can() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            Path(folder, "link").symlink_to(folder)
        except OSError:
            return False
    return True


needs_links = pytest.mark.skipif(not _can(), reason="no links may be made here")
