"""What an ONNX session runs on: chosen by name, and read back from the session itself.

Invariant: a device that was asked for by name and can't be had is an error that says what to
install, unless the CPU is allowed in its place; what was chosen for "auto" is always told.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec import platform
from edgespec.backends import ort_packages
from edgespec.backends.ort_errors import lacks_memory, short_reason
from edgespec.errors import ConfigError, ModelError, ModelFormatError
from edgespec.platform.huge_pages import huge_pages

CPU = "CPUExecutionProvider"
_FUSED = "GroupQueryAttention"

logger = logging.getLogger("edgespec.onnx")
logger.addHandler(logging.NullHandler())  # or Python prints what nobody asked for on stderr
# Why a provider fails to start goes to stderr otherwise, and so into the middle of a screen.
ort.set_default_logger_severity(4)


@dataclass(frozen=True)
class Device:
    """A device by its name in `--device`.

    Attributes:
        provider: ONNX Runtime's name for it.
        memory: its name for the memory a cache should lie in.
        install: what to do where the installed ONNX Runtime lacks it.
        start: what to do where it is installed and doesn't start.
    """

    label: str
    provider: str
    memory: str
    install: str
    start: str = "see to its driver and libraries"
    options: dict[str, str] = field(default_factory=dict)


_GPU = 'pip uninstall onnxruntime, then pip install "edgespec[onnx-gpu]"'
DEVICES = {
    "cuda": Device(
        "CUDA", "CUDAExecutionProvider", "cuda", _GPU,
        "see that nvidia-smi shows the GPU, and pip install 'onnxruntime-gpu[cuda,cudnn]'",
    ),
    "tensorrt": Device(
        "TensorRT-RTX", "NvTensorRTRTXExecutionProvider", "cuda",
        "pip uninstall onnxruntime, then pip install onnxruntime-trt-rtx",
    ),
    "directml": Device(
        "DirectML", "DmlExecutionProvider", "dml",
        "pip uninstall onnxruntime, then pip install onnxruntime-directml (Windows)",
    ),
    "coreml": Device(
        "CoreML", "CoreMLExecutionProvider", "cpu", "use the macOS build of onnxruntime"
    ),
    "cpu": Device("CPU", CPU, "cpu", "pip install onnxruntime"),
}  # fmt: skip

# What "auto" tries, in order. TensorRT-RTX compiles for minutes and CoreML hands a growing cache
# back to the CPU, so these two are taken only where they are asked for.
_AUTO = ("cuda", "directml", "cpu")

# How it says that a graph uses what came after it.
_NEWER = re.compile(
    r"Unrecognized attribute|\S+ is not a registered function/op|Unsupported model IR version"
    r"|ONNX Runtime only \*guarantees\* support for models"
)

_QUOTED = re.compile(r'"([^"]+)"')
# How it names a file with weights that isn't as it should be; gpu_data_transfer.cc is none.
_EXTERNAL = re.compile(r"external|[._]data(_\d+)?\b", re.IGNORECASE)

_preloading = threading.Lock()  # stdout is swapped meanwhile, for all threads


@dataclass(frozen=True)
class Opened:
    """A session, and what it really runs on.

    `label`: to show, as "CUDA" or "CPU, 4 threads"; `notes`: what the user should know.
    """

    native: Any
    device: Device
    label: str
    notes: tuple[str, ...]


def open_session(
    path: Path,
    name: str,
    device: str,
    threads: int,
    *,
    allow_cpu: bool,
    entries: dict[str, str],
    stopped: Callable[[], bool] = lambda: False,
) -> Opened:
    """Open a graph on a device ("auto" or a key of DEVICES).

    Args:
        allow_cpu: whether the CPU may stand in for a device that was named.
        entries: further settings of the session, by ONNX Runtime's names.
        stopped: whether nobody waits for it any more.

    Raises:
        ConfigError: the installed ONNX Runtime has no such device.
        ModelError: it has, and the graph can't be loaded there.
        ModelFormatError: the file is damaged, or what it refers to is missing.
    """
    if device != "auto" and device not in DEVICES:
        raise ConfigError(f"there is no device {device}: choose auto, {', '.join(DEVICES)}")
    if device != "cpu":
        _preload()  # before: newer ones know of CUDA only once its libraries are found
    available = ort.get_available_providers()
    twice = ort_packages.several()
    notes = [twice] if twice else []
    wanted = _AUTO if device == "auto" else (device, "cpu") if allow_cpu else (device,)
    reason = ""
    failed: ModelError | None = None
    for key in wanted:
        chosen = DEVICES[key]
        if chosen.provider not in available:
            if _has_plugin(chosen):
                reason = f"{chosen.label} is installed but doesn't start: {chosen.start}"
                failed = failed or ModelError(reason)
            elif device == key:
                have = ", ".join(d.label for d in DEVICES.values() if d.provider in available)
                reason = f"this ONNX Runtime can't use {chosen.label} (it has {have})"
            continue
        try:
            with huge_pages(stopped) if key == "cpu" else contextlib.nullcontext():
                native = _create(path, chosen, threads, entries)
            share = _share(native, chosen)
        except ModelError as error:
            if key == "cpu":
                raise
            reason, failed = str(error), error
            continue
        if reason:
            notes.append(on_the_cpu(name, reason))
        elif key == "cpu" and device == "auto" and twice is None:  # which says what to install
            notes += _unused()
        label = chosen.label if key != "cpu" else f"CPU, {threads} thread{'s' * (threads != 1)}"
        if share is None and key != "cpu":
            label += f" (not verified: ONNX Runtime {ort.__version__} doesn't tell)"
        elif share is not None and share[0] < share[1]:
            label += f" ({share[0]} of {share[1]} operations, the others on the CPU)"
        return Opened(native, chosen, label, tuple(notes))
    if isinstance(failed, ModelFormatError):  # the file's own fault, on the CPU too
        raise failed
    if failed is not None and twice is None:  # nothing is missing that could be installed
        raise type(failed)(f"{reason}; or choose --device cpu") from failed
    advice = twice or DEVICES[device].install
    raise ConfigError(f"{reason}: {advice}; or choose --device cpu")


def _has_plugin(device: Device) -> bool:
    """Whether a provider that isn't there comes with this build, as a plugin that didn't load."""
    return device.label == "CUDA" and "cuda-plugin-ep=" in ort.get_build_info()


def _unused() -> list[str]:
    """A note where there is a GPU that this ONNX Runtime can't use; the same for each model."""
    if platform.gpu_maker() != "NVIDIA":  # of others "auto" takes none but on Windows
        return []
    cuda = DEVICES["cuda"]
    return [
        f"ONNX models run on the CPU: this ONNX Runtime was built without {cuda.label}, and a GPU "
        f"of NVIDIA's seems to be here: {cuda.install}, or say --device cpu"
    ]


def on_the_cpu(name: str, reason: str) -> str:
    """The note where the CPU stands in for another device."""
    return f"{name} runs on the CPU: {reason}"


def _create(path: Path, device: Device, threads: int, entries: dict[str, str]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised; stderr is the user's
    # A pattern is kept for each new shape, and with a growing text every pass has a new one.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    providers: list[Any] = [(device.provider, device.options)]
    if device.provider != CPU:
        providers.append(CPU)
    try:
        native = ort.InferenceSession(
            str(path), options, providers=providers, enable_fallback=False
        )
    except Exception as error:  # its exceptions share no class of their own
        raise _load_error(path, device, error) from error
    if device.provider not in native.get_providers():
        raise ModelError(f"{device.label} is installed but doesn't start: {device.start}")
    return native


def _preload() -> None:
    """Load CUDA's libraries. What it prints goes to the log, for stdout is the answer's."""
    said = io.StringIO()
    with _preloading, contextlib.redirect_stdout(said), contextlib.suppress(Exception):
        ort.preload_dlls()  # a failure isn't the end: they may be found another way
    for line in filter(str.strip, said.getvalue().splitlines()):
        logger.info("%s", line)


def _share(native: Any, device: Device) -> tuple[int, int] | None:
    """How many of the graph's operations run on the device, of how many; None where not told.

    Raises ModelError where none does: the provider is there, and the CPU does the work.
    """
    ask = getattr(native, "get_provider_graph_assignment_info", None)
    if ask is None or device.provider == CPU:  # before ONNX Runtime 1.24 it can't be asked
        return None
    counts: Counter[str] = Counter()
    with contextlib.suppress(Exception):
        for part in ask():
            counts[part.ep_name] += len(part.get_nodes())
    if not counts:
        return None
    if not counts[device.provider]:
        raise ModelError(f"{device.label} takes none of this graph's operations")
    return counts[device.provider], counts.total()


def attends_on_cpu(native: Any, device: Device) -> bool | None:
    """Whether fused attention runs on the CPU beside another device: ONNX Runtime has it for CUDA
    in 16 bits alone. None where that isn't told.
    """
    if device.memory == "cpu":
        return False
    with contextlib.suppress(Exception):
        parts = native.get_provider_graph_assignment_info()
        of_cpu = [node for part in parts if part.ep_name == CPU for node in part.get_nodes()]
        return any(node.op_type == _FUSED for node in of_cpu)
    return None


def _weights_fault(graph: Path, said: str) -> str:
    """The file with a graph's weights and what is wrong with it, as far as that can be told."""
    if (quoted := _QUOTED.search(said)) is not None:  # where it was looked for
        place = Path(quoted[1])
        is_there = any((graph.parent / path).is_file() for path in (place, place.name))
        fault = "cut short or not allowed there" if is_there else "missing"
        return f"{place.name}, which is {fault}"
    for name in (f"{graph.name}.data", f"{graph.name}_data"):
        if (graph.parent / name).is_file():
            return f"{name}, which is cut short or not allowed there"
    return "another file, which is missing, cut short or not allowed there"


def _load_error(path: Path, device: Device, error: Exception) -> ModelError:
    text = " ".join(str(error).split())
    if (newer := _NEWER.search(text)) is not None:
        return ModelFormatError(
            f"{path.name} needs a newer ONNX Runtime than {ort.__version__} "
            f"({text[newer.start() :][:150]}): pip install --upgrade "
            f"{next(iter(ort_packages.installed()), 'onnxruntime')}"
        )
    said = text  # without its own place, whose folders are called as people like
    for place in (path, path.absolute(), path.absolute().parent, path.resolve().parent):
        said = said.replace(str(place), "")
    if lacks_memory(error, said):
        where = "there is" if device.provider == CPU else f"{device.label} has"
        return ModelError(
            f"{where} no memory for the weights of {path.name}: close other programs or choose a "
            "model of fewer bits"
        )
    if _EXTERNAL.search(said) is not None:
        return ModelFormatError(
            f"{path.name} keeps its weights in {_weights_fault(path, text)}: fetch the whole folder"
        )
    # What reads a graph for a device has a parser of its own, and that may fail for other reasons.
    words = ("Protobuf", "INVALID_PROTOBUF", "INVALID_GRAPH")
    if any(word in text for word in (*words, *("parse",) * (device.provider == CPU))):
        return ModelFormatError(
            f"{path.name} is damaged or no ONNX model ({short_reason(error, 200)})"
        )
    if device.provider != CPU:
        return ModelError(f"{device.label} can't load {path.name} ({short_reason(error, 200)})")
    return ModelError(f"ONNX Runtime can't load {path.name} ({short_reason(error, 300)})")
