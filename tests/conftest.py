"""What tests share: the path to the fakes, and the real model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, for which llama.cpp wasn't built, has no note of its own in tests.

    Neither has one with AMX.
    """
    monkeypatch.setattr("edgespec.platform.gpu_maker", lambda: "")
    monkeypatch.setattr("edgespec.platform.amx.present", lambda: False)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model, fetched once by the product's own code."""
    from edgespec.fetch import fetch
    from edgespec.registry import load_registry

    return fetch(load_registry().default.target)
