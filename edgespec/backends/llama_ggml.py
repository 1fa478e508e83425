"""ggml's own functions, for what llama.cpp's interface says nothing of: devices, tensors, layouts.

Invariant: each is looked for in that one of llama.cpp's libraries that has it, since Windows looks
into no other, and is given its types (ggml.h, ggml-backend.h).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import CDLL, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from edgespec.backends.llama_lib import lib, load_shared_library

FUNCTIONS: dict[str, dict[str, tuple[type | None, Sequence[type]]]] = {
    "ggml": {
        "ggml_backend_dev_count": (c_size_t, ()),
        "ggml_backend_dev_get": (c_void_p, (c_size_t,)),
        "ggml_backend_dev_by_type": (c_void_p, (c_int,)),
    },
    "ggml-base": {
        "ggml_backend_dev_type": (c_int, (c_void_p,)),
        "ggml_backend_dev_name": (c_char_p, (c_void_p,)),
        "ggml_backend_dev_description": (c_char_p, (c_void_p,)),
        "ggml_backend_dev_backend_reg": (c_void_p, (c_void_p,)),
        "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
        "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
        "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
        "ggml_get_name": (c_char_p, (c_void_p,)),
        "ggml_nbytes": (c_size_t, (c_void_p,)),
    },
}
"""The functions in each library: what one returns, and what it takes."""

# Where llama_cpp loaded its own from: LLAMA_CPP_LIB_PATH may name another than it brings.
_FOLDER = Path(getattr(lib, "_base_path", Path(lib.__file__).parent / "lib"))
_INTERFACES = {
    "cuda": "CUDA", "hip": "ROCm", "metal": "Metal", "vulkan": "Vulkan", "sycl": "SYCL",
}  # fmt: skip

CPU = 0  # ggml_backend_dev_type
GPUS = (1, 2)  # one of its own, and one that shares the CPU's memory


@functools.cache
def function(name: str) -> Any:
    """A function by its name in C. AttributeError, OSError or RuntimeError where there is none."""
    library = next(library for library, functions in FUNCTIONS.items() if name in functions)
    found = getattr(_library(library), name)
    found.restype, found.argtypes = FUNCTIONS[library][name]
    return found


@functools.cache  # each loading of a library makes Windows' PATH longer
def _library(name: str) -> CDLL:
    library: CDLL = load_shared_library(name, _FOLDER)
    return library


def built_for(folder: Path = _FOLDER) -> list[str]:
    """What this llama.cpp can use GPUs through, whether there is one or not, as in "CUDA".

    Told by its libraries: with no GPU, Vulkan registers nothing that could be asked.
    """
    libraries = {path.name.split(".")[0].removeprefix("lib") for path in folder.glob("*ggml-*")}
    return [name for library, name in _INTERFACES.items() if f"ggml-{library}" in libraries]
