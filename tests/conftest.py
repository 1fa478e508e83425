"""What tests share: the path to the fakes, the same conditions everywhere, and the real model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# In front of llama.cpp, as in the program: it says how that one's threads wait.
import edgespec.backends  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))

# A crowded machine fails no example, and what failed once fails again; other examples, with a
# deadline each, come with `pytest --hypothesis-profile=default`.
settings.register_profile("edgespec", deadline=None, derandomize=True)
settings.load_profile("edgespec")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the person's settings, models file, conversations or measurements."""
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the person's cache, token or settings of the hub, or asks a proxy for them."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    theirs = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    direct = ",".join(filter(None, [theirs, "127.0.0.1,localhost"]))
    monkeypatch.setenv("no_proxy", direct)
    monkeypatch.setenv("NO_PROXY", direct)


@pytest.fixture(autouse=True)
def in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of the screen are compared in colour, whatever the person likes."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(scope="session", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """Whatever llama.cpp was built for, as for Metal on a Mac."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_cpp.llama_cpp.llama_supports_gpu_offload", lambda: False)
        yield


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, for which llama.cpp wasn't built, has no note of its own in tests.

    Neither has one with AMX.
    """
    monkeypatch.setattr("edgespec.platform.gpu_maker", lambda: "")
    monkeypatch.setattr("edgespec.platform.amx.present", lambda: False)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded default model, fetched once by the product's own code."""
    from edgespec.fetch import fetch
    from edgespec.registry import load_registry

    nothing = tmp_path_factory.mktemp("models") / "models.toml"
    nothing.touch()  # in place of a file of the person's
    return fetch(load_registry(nothing).model("smollm2-135m"))
