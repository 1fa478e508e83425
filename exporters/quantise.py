"""Weights stored in fewer bits, by llama.cpp's own quantiser.

Invariant: a type is one that the installed llama.cpp can make of weights alone, or it is refused
before any work.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from edgespec.errors import ConfigError, ExportError
from edgespec.platform import usable_cpus

# llama.cpp refuses these when it is at work: without an importance matrix, and for whole files.
_NEED_A_MATRIX = set(
    "iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m iq3_xxs iq3_xs q2_k_s".split()
)  # fmt: skip
_NOT_ALONE = {"nvfp4"}


def file_type(name: str) -> int:
    """llama.cpp's number of a type such as `q4_0`.

    Raises ConfigError for an unknown one, and for one that needs more than the weights.
    """
    name, known = name.lower(), _file_types()
    if name in _NEED_A_MATRIX:
        raise ConfigError(
            f"{name} needs an importance matrix, which isn't made here: choose another type"
        )
    if name not in known:
        raise ConfigError(f"llama.cpp has no type {name}: choose from {', '.join(known)}")
    return known[name]


def quantise(source: Path, destination: Path, kind: str, *, threads: int | None = None) -> None:
    """Write `source` again with its weights in `kind`.

    Raises ConfigError for an unknown type and ExportError where the quantiser gives up.
    """
    from edgespec.backends.llama_lib import lib
    from edgespec.backends.llama_log import start_backend

    params: Any = lib.llama_model_quantize_default_params()
    params.nthread = threads or usable_cpus()
    params.ftype = file_type(kind)
    params.allow_requantize = True
    log = start_backend()
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(destination), params):
        raise ExportError(f"llama.cpp can't store {source.name} as {kind}: {log.last_error()}")


def _file_types() -> dict[str, int]:
    from edgespec.backends.llama_lib import lib

    named = ((re.fullmatch(r"LLAMA_FTYPE_(?:MOSTLY|ALL)_(\w+)", key), key) for key in dir(lib))
    types = {match[1].lower(): getattr(lib, key) for match, key in named if match}
    return {n: number for n, number in types.items() if n not in _NEED_A_MATRIX | _NOT_ALONE}
