"""What an export, or a drafter in the making, needs besides edgespec itself.

Invariant: what is missing is told in one sentence, before any work and before anything is imported
that would fail.
"""

from __future__ import annotations

import importlib.util

from edgespec.errors import ConfigError


def require(*modules: str) -> None:
    """Raises ConfigError, with what to install, where one of the modules isn't there."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"making GGUF files and drafters needs {' and '.join(missing)}: run `pip install "
            "'edgespec[gguf]'`"
        )
