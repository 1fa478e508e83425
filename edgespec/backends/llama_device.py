"""What a GGUF model runs on. llama.cpp was built for one kind of GPU or none, so that the name of a
device comes down to how many layers go there.

Invariant: a device that was named and that llama.cpp can't use is an error, unless the CPU may
stand in, and then the user is told, as where nothing was named and a GPU isn't used.
"""

from __future__ import annotations

import re

import llama_cpp.llama_cpp as lib

from edgespec import platform
from edgespec.backends import LoadOptions
from edgespec.backends import llama_ggml as ggml
from edgespec.errors import ConfigError

_ALL_LAYERS = 999
_FLAGS = {"NVIDIA": "-DGGML_CUDA=on", "AMD": "-DGGML_VULKAN=on", "Apple": "-DGGML_METAL=on"}
_NO_GPU = "this llama.cpp was built without GPU support"


def gpus() -> str:
    """The GPUs that llama.cpp sees, each with the interface it is used through; "" if it can't say.

    As in "CUDA0: NVIDIA GeForce RTX 4070".
    """
    return ", ".join(": ".join(names) for names in _gpus())


def _gpus() -> list[tuple[str, str]]:
    """The name and the description of each."""
    try:
        get, kind = ggml.function("ggml_backend_dev_get"), ggml.function("ggml_backend_dev_type")
        texts = [ggml.function(f"ggml_backend_dev_{text}") for text in ("name", "description")]
        devices = [get(at) for at in range(ggml.function("ggml_backend_dev_count")())]
    except (AttributeError, OSError, RuntimeError):
        return []
    return [
        tuple(text(device).decode("utf-8", "replace") for text in texts)
        for device in devices
        if kind(device) in ggml.GPUS
    ]


def _instead_of_cuda() -> str:
    """What the GPU is used through where that isn't CUDA, as in "Vulkan"; "" where not told."""
    used = [re.sub(r"\d+$", "", name) for name, _ in _gpus()]
    if not used or "CUDA" in used:
        return ""
    return "Metal" if used[0] == "MTL" else used[0]


def choose_layers(name: str, options: LoadOptions) -> tuple[int, list[str]]:
    """How many layers go to the GPU, and what the user should know. Raises ConfigError."""
    gpu = bool(lib.llama_supports_gpu_offload())
    other = _instead_of_cuda() if gpu and options.device == "cuda" else ""
    if options.gpu_layers is not None:
        if options.gpu_layers and not gpu:
            raise ConfigError(
                f"{_NO_GPU}, so no layers can go there: leave --gpu-layers out, or "
                f"{_rebuild(platform.gpu_maker())}"
            )
        if not (options.gpu_layers and other):
            return options.gpu_layers, []
    if options.device == "cpu":
        return 0, []
    if options.device == "auto" or (options.device == "cuda" and gpu and not other):
        return (_ALL_LAYERS, []) if gpu else (0, _unused())
    if other:
        reason = f"this llama.cpp uses the GPU through {other} and not through CUDA"
        advice = f"leave --device out, which takes {other}"
    elif options.device == "cuda":
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
