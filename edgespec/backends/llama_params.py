"""How llama.cpp loads weights: by its defaults, less AMX, Intel's instructions for matrix tiles.

llama.cpp lays weights out anew for AMX where the build and the processor have it. GCC leaves most
of the tiles' configuration out of that build, since its `_tile_loadconfig` says that it reads 8 of
the 64 bytes, and the processor then ends the process at the first pass
(https://github.com/ggml-org/llama.cpp/issues/20824). Nothing tells from outside whether a build has
this fault. Linux grants AMX to a process that asks, so llama.cpp asks once, here, at a time at
which the answer is no; the layouts for other instructions stay.

Invariant: no weights are laid out for AMX on Linux, unless `EDGESPEC_AMX=1` asks for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from edgespec.backends import llama_ggml as ggml
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_log import start_backend
from edgespec.platform import amx, stderr_without

_WANTED = "EDGESPEC_AMX"
_settling = threading.Lock()
_NO_DEVICES = (ctypes.c_void_p * 1)()  # a list of devices that ends at once; it has to stay


def model_params(gpu_layers: int) -> Any:
    """llama.cpp's default `llama_model_params`, with all layouts that don't end the process.

    Without layers on the GPU the model sees no GPU. By default llama.cpp takes memory on each that
    there is all the same, runs passes of 32 tokens or more there, and leaves the weights of the CPU
    as they lie in the file.
    """
    settle()
    params = lib.llama_model_default_params()
    params.use_extra_bufts = not _plain_layout()
    params.n_gpu_layers = gpu_layers
    if not gpu_layers:
        params.devices = ctypes.addressof(_NO_DEVICES)
    return params


def settle() -> None:
    """Have llama.cpp find its layouts, once; here before anything else is granted AMX."""
    start_backend()
    _plain_layout()


def notes() -> list[str]:
    """What a person whose models run on the CPU should know of it."""
    if not (_withheld() and amx.present()):
        return []
    cost = ""
    if _plain_layout():
        cost = (
            ", and its other layouts of 4-bit weights, which go with it, are slower to do without: "
            "open the GGUF model before anything that uses AMX, as ONNX Runtime does"
        )
    return [
        "llama.cpp runs without this processor's AMX, with which a build of it by GCC would crash"
        f"{cost} ({_WANTED}=1 uses it all the same)"
    ]


@cache
def _withheld() -> bool:
    """Whether this build has AMX and nobody asked for it."""
    return _built_for_amx() and os.environ.get(_WANTED) != "1"


def _built_for_amx() -> bool:
    return sys.platform == "linux" and b"AMX_INT8 = 1" in lib.llama_print_system_info()


def _plain_layout() -> bool:
    """Whether weights have to stay as they lie in their file."""
    with _settling:
        return _settled()


@cache
def _settled() -> bool:
    """Have llama.cpp find its layouts without AMX; True where that comes too late.

    Something else in this process was granted AMX before then: llama.cpp is, too.
    """
    if not _withheld():
        return False
    if amx.granted():
        return True
    find_layouts = _layouts()
    # llama.cpp prints that AMX isn't ready; what others print meanwhile comes late.
    with amx.withheld(), stderr_without(b"AMX is not ready to be used!\n"):
        find_layouts()
    return False


def _layouts() -> Callable[[], object]:
    """A call in which llama.cpp sees which layouts the CPU can use, as it does once."""
    device = ggml.function("ggml_backend_dev_by_type")(ggml.CPU)
    registry = ggml.function("ggml_backend_dev_backend_reg")(device)
    name = b"ggml_backend_dev_get_extra_bufts"
    address = ggml.function("ggml_backend_reg_get_proc_address")(registry, name)
    if not address:  # this llama.cpp has none
        return lambda: None
    return partial(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address), device)


def layout() -> str:
    """How weights lie where that isn't as usual: "plain", "amx" or ""."""
    if _plain_layout():
        return "plain"
    return "amx" if _built_for_amx() and not _withheld() else ""
