"""What NVIDIA's driver calls its GPUs.

Invariant: where no driver says so there are none, and asking takes no memory on a GPU.
"""

from __future__ import annotations

import ctypes
import sys

_NAME_BYTES = 256


def cuda_gpus() -> list[str]:
    """The names of the GPUs that this process may use through CUDA, in CUDA's own order.

    So CUDA_VISIBLE_DEVICES holds (https://docs.nvidia.com/cuda/cuda-driver-api/).
    """
    count, device = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    names = []
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return []
        for at in range(count.value):
            if driver.cuDeviceGet(ctypes.byref(device), at):
                return []
            if driver.cuDeviceGetName(name, _NAME_BYTES, device):
                return []
            names.append(name.value.decode("utf-8", "replace"))
    except (OSError, AttributeError):
        return []
    return names
