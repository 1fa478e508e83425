"""What the user should know of the device that an ONNX model runs on, and how that is called.

Invariant: each note is a sentence that says what is slower or other than expected, and what to do.
"""

from __future__ import annotations

import contextlib

import onnxruntime as ort

from edgespec.backends.ort_providers import CPU, Device
from edgespec.platform.cuda import cuda_gpus


def window_note(name: str, window: int, device: Device) -> list[str]:
    """A sentence, if fused attention looks back a token further than the model does, as it does
    on the CPU before ONNX Runtime 1.24.
    """
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    if device.provider != CPU or version >= (1, 24):
        return []
    return [
        f"{name} sees {window} tokens back in some layers, and ONNX Runtime {ort.__version__} lets "
        "it see one more, so its text may differ a little: install 1.24.2 or later"
    ]


def attention_note(name: str, device: Device) -> str:
    """The note where fused attention runs on the CPU beside another device."""
    return (
        f"the attention of {name} is in a type that {device.label} can't run, so the CPU does it "
        "and keeps the cache: export it with --dtype fp16"
    )


def copied_note(name: str, device: Device) -> str:
    """The note where a cache that grows lies with the CPU beside another device."""
    return (
        f"the cache of {name} is copied to {device.label} and back in each pass, since its graph "
        "returns a longer copy of it: export it with `edgespec export onnx`, or try --device cpu"
    )


def gpu_names(device: Device) -> str:
    """What a device's hardware is called, as far as it is told, to tell one GPU from another."""
    if device.memory == "cuda":
        return next(iter(cuda_gpus()), "")  # a session takes the first
    names: list[str] = []
    with contextlib.suppress(Exception):  # not there before ONNX Runtime 1.22, nor in all builds
        for found in ort.get_ep_devices():
            if found.ep_name == device.provider != CPU:
                told = found.device.metadata.get("Description") or found.device.vendor
                names.append(f"{told} {found.device.device_id:x}")
    return ", ".join(names)
