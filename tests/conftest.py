"""What tests share: the path to the fakes, and the real model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model, fetched once by the product's own code."""
    from edgespec.fetch import fetch
    from edgespec.registry import load_registry

    return fetch(load_registry().default.target)
