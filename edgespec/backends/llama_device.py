"""What a GGUF model runs on. llama.cpp was built for one kind of GPU or none, so that the name of a
device comes down to how many layers go there.

Invariant: a device that was named and that llama.cpp can't use is an error, unless the CPU may
stand in, and then the user is told, as where nothing was named and a GPU isn't used.
"""

from __future__ import annotations

import re
from functools import cache

from edgespec import platform
from edgespec.backends import LoadOptions
from edgespec.backends import llama_ggml as ggml
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_log import start_backend
from edgespec.errors import ConfigError

_ALL_LAYERS = 999
_FLAGS = {"NVIDIA": "-DGGML_CUDA=on", "AMD": "-DGGML_VULKAN=on", "Apple": "-DGGML_METAL=on"}
_OF_MAKER = {"NVIDIA": ("CUDA", "Vulkan"), "AMD": ("ROCm", "Vulkan"), "Apple": ("Metal",)}
_SHOWN_BY = {"CUDA": "nvidia-smi", "ROCm": "rocminfo", "Vulkan": "vulkaninfo"}


def gpus() -> str:
    """The GPUs that llama.cpp sees, each with the interface it is used through; "" if it can't say.

    As in "CUDA0: NVIDIA GeForce RTX 4070".
    """
    return ", ".join(": ".join(names) for names in _gpus())


def _sees_gpu() -> bool:
    """Whether llama.cpp has a GPU to use."""
    _said()  # before anything else is logged
    return bool(lib.llama_supports_gpu_offload())


@cache
def _said() -> str:
    """What llama.cpp logged of a failure as it looked for GPUs, which it does once; or ""."""
    log = start_backend()  # or its lines go to stderr
    lib.llama_supports_gpu_offload()
    return next((line for line in log.errors if line.startswith("ggml_")), "")


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
    gpu = _sees_gpu()
    other = _instead_of_cuda() if gpu and options.device == "cuda" else ""
    if options.gpu_layers is not None:
        if options.gpu_layers and not gpu:
            reason, advice = _lacking(platform.gpu_maker())
            raise ConfigError(
                f"{reason}, so no layers can go there: leave --gpu-layers out, or {advice}"
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
        reason, advice = _lacking("NVIDIA")
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
    """A note where there is a GPU that llama.cpp can't use; the same for each model."""
    maker = platform.gpu_maker()
    if not maker:
        return []
    reason, advice = _lacking(maker)
    return [
        f"GGUF models run on the CPU: {reason}, and a GPU of {maker}'s seems to be here: {advice}, "
        "or say --device cpu"
    ]


def _lacking(maker: str) -> tuple[str, str]:
    """Why llama.cpp has no GPU to use, and what to do for one of a maker; "" is one not known."""
    flags = f"CMAKE_ARGS={_FLAGS[maker]}" if maker else "the CMAKE_ARGS for your GPU"
    rebuild = f"reinstall llama-cpp-python with {flags}, as docs/install.md shows"
    built = ggml.built_for()
    if not built:
        return "this llama.cpp was built without GPU support", rebuild
    said = f" ({_said()})" if _said() else ""
    reason = f"this llama.cpp was built for {' and '.join(built)} and finds no such GPU here{said}"
    usable = [interface for interface in built if interface in _OF_MAKER.get(maker, built)]
    if not usable:
        return reason, rebuild
    shows = _SHOWN_BY.get(usable[0], "the system")
    return reason, f"see that {shows} shows the GPU and that its driver is new enough"
