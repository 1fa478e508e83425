"""What a GGUF model runs on. llama.cpp was built for one kind of GPU or none, so that the name of a
device comes down to how many layers go there.

Invariant: a device that was named and that llama.cpp can't use is an error, unless the CPU may
stand in, and then the user is told, as where nothing was named and a GPU isn't used.
"""

from __future__ import annotations

from contextlib import suppress
from ctypes import c_char_p, c_size_t, c_void_p

import llama_cpp.llama_cpp as lib

from edgespec import platform
from edgespec.backends import LoadOptions
from edgespec.errors import ConfigError

_ALL_LAYERS = 999
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
_FLAGS = {"NVIDIA": "-DGGML_CUDA=on", "AMD": "-DGGML_VULKAN=on", "Apple": "-DGGML_METAL=on"}
_NO_GPU = "this llama.cpp was built without GPU support"


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
                f"{_NO_GPU}, so no layers can go there: leave --gpu-layers out, or "
                f"{_rebuild(platform.gpu_maker())}"
            )
        return options.gpu_layers, []
    if options.device == "cpu":
        return 0, []
    if options.device == "auto" or (options.device == "cuda" and gpu):
        return (_ALL_LAYERS, []) if gpu else (0, _unused())
    if options.device == "cuda":
        reason, advice = _NO_GPU, _rebuild("NVIDIA")
    else:
        reason = f"llama.cpp has no device {options.device}, which is for ONNX models alone"
        advice = "say with --gpu-layers where the GGUF model of the pair goes"
    if options.allow_cpu:
        return 0, [f"{name} runs on the CPU: {reason}"]
    raise ConfigError(
        f"{name} can't run with --device {options.device}, since {reason}: choose --device cpu, "
        f"add --allow-cpu, or {advice}"
    )


def _unused() -> list[str]:
    """A note where there is a GPU that this build can't use; the same for each model."""
    maker = platform.gpu_maker()
    if not maker:
        return []
    return [
        f"GGUF models run on the CPU: {_NO_GPU}, and a GPU of {maker}'s seems to be here: "
        f"{_rebuild(maker)}, or say --device cpu"
    ]


def _rebuild(maker: str) -> str:
    """How to come by a llama.cpp for the GPU of a maker; "" is one that isn't known."""
    flags = f"CMAKE_ARGS={_FLAGS[maker]}" if maker else "the CMAKE_ARGS for your GPU"
    return f"reinstall llama-cpp-python with {flags}, as the README shows"
