"""What a GGUF model runs on. llama.cpp was built for one kind of GPU or none, so that the name of a
device comes down to how many layers go there.

Invariant: a device that was named and that llama.cpp can't use is an error, unless the CPU may
stand in, and then the user is told.
"""

from __future__ import annotations

from contextlib import suppress
from ctypes import c_char_p, c_size_t, c_void_p

import llama_cpp.llama_cpp as lib

from edgespec.backends import LoadOptions
from edgespec.errors import ConfigError

_ALL_LAYERS = 999
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
_REINSTALL = "reinstall llama-cpp-python with its CMAKE_ARGS for your GPU"


def gpus() -> str:
    """The GPUs that llama.cpp sees, each with the interface it is used through; "" if it can't say.

    As in "CUDA0: NVIDIA GeForce RTX 4070". (ggml-backend.h)
    """
    with suppress(ImportError, AttributeError):
        from llama_cpp._ggml import libggml

        found = []
        for function, result in (("get", c_void_p), ("name", c_char_p), ("description", c_char_p)):
            getattr(libggml, f"ggml_backend_dev_{function}").restype = result
        libggml.ggml_backend_dev_count.restype = c_size_t
        for at in range(libggml.ggml_backend_dev_count()):
            device = c_void_p(libggml.ggml_backend_dev_get(c_size_t(at)))
            if libggml.ggml_backend_dev_type(device) in _GPU_TYPES:
                name = libggml.ggml_backend_dev_name(device)
                about = libggml.ggml_backend_dev_description(device)
                found.append(b": ".join((name, about)).decode("utf-8", "replace"))
        return ", ".join(found)
    return ""


def choose_layers(name: str, options: LoadOptions) -> tuple[int, list[str]]:
    """How many layers go to the GPU, and what the user should know. Raises ConfigError."""
    gpu = bool(lib.llama_supports_gpu_offload())
    if options.gpu_layers is not None:
        if options.gpu_layers and not gpu:
            raise ConfigError(
                "this llama.cpp was built without GPU support, so no layers can go there: leave "
                f"--gpu-layers out, or {_REINSTALL}"
            )
        return options.gpu_layers, []
    if options.device == "cpu":
        return 0, []
    if options.device == "auto" or (options.device == "cuda" and gpu):
        return _ALL_LAYERS if gpu else 0, []
    if options.device == "cuda":
        reason, advice = "this llama.cpp was built without GPU support", _REINSTALL
    else:
        reason = f"llama.cpp has no device {options.device}, which is for ONNX models alone"
        advice = "say with --gpu-layers where the GGUF model of the pair goes"
    if options.allow_cpu:
        return 0, [f"{name} runs on the CPU: {reason}"]
    raise ConfigError(
        f"{name} can't run with --device {options.device}, since {reason}: choose --device cpu, "
        f"add --allow-cpu, or {advice}"
    )
