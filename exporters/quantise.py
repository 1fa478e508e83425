"""Weights stored in fewer bits, by llama.cpp's own quantiser.

Invariant: a type is known to the llama.cpp that is installed, or refused before any work.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from edgespec.errors import ConfigError, ExportError


def file_type(name: str) -> int:
    """llama.cpp's number of a type such as `q4_0`. Raises ConfigError for an unknown one."""
    known = _file_types()
    if name.lower() not in known:
        raise ConfigError(f"llama.cpp has no type {name}: choose from {', '.join(known)}")
    return known[name.lower()]


def quantise(source: Path, destination: Path, kind: str, *, threads: int | None = None) -> None:
    """Write `source` again with its weights in `kind`.

    Raises ConfigError for an unknown type and ExportError where the quantiser gives up.
    """
    import llama_cpp.llama_cpp as lib

    from edgespec.backends.llama import start_backend

    params: Any = lib.llama_model_quantize_default_params()
    params.nthread = threads or os.cpu_count() or 1
    params.ftype = file_type(kind)
    params.allow_requantize = True
    log = start_backend()
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(destination), params):
        raise ExportError(f"llama.cpp can't store {source.name} as {kind}: {log.last_error()}")


def _file_types() -> dict[str, int]:
    import llama_cpp.llama_cpp as lib

    named = ((re.fullmatch(r"LLAMA_FTYPE_(?:MOSTLY|ALL)_(\w+)", key), key) for key in dir(lib))
    return {match[1].lower(): getattr(lib, key) for match, key in named if match}
