"""Opening a GGUF model in llama.cpp: on which device, in which memory, and what is to be told.

Invariant: no native call is made on a file that wasn't checked; where opening fails nothing stays
open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from platform import machine
from typing import Any

from edgespec import narrow
from edgespec.backends import LoadOptions, OnLoad, fingerprint, llama_params
from edgespec.backends.llama import LlamaSession, NativeModel
from edgespec.backends.llama_device import choose_layers, gpus
from edgespec.backends.llama_lib import lib
from edgespec.backends.llama_log import lacks_memory
from edgespec.backends.llama_narrow import NarrowSession, VocabularyOnly
from edgespec.backends.llama_tokenizer import LlamaTokenizer, entries, no_such_tokens
from edgespec.errors import ConfigError, ModelError, ModelFormatError
from edgespec.gguf import GGUFHeader
from edgespec.gguf_parts import read_model
from edgespec.platform.huge_pages import huge_pages
from edgespec.session import CancelFlag, Model
from edgespec.tokenizer import Tokenizer

_MAX_CONTEXT = 2**31 - 1  # a position is an int32
_DRAFT_HEADS = frozenset({"gemma4-assistant", "eagle3", "dflash"})
_REPACKED = frozenset(
    {lib.GGML_TYPE_Q4_0, lib.GGML_TYPE_Q4_K, lib.GGML_TYPE_IQ4_NL, lib.GGML_TYPE_MXFP4}
)
_REPACKED_ON_ARM = frozenset(
    {lib.GGML_TYPE_Q5_K, lib.GGML_TYPE_Q6_K, lib.GGML_TYPE_Q8_0, lib.GGML_TYPE_Q1_0}
)


def load(path: Path, options: LoadOptions, cancel: CancelFlag, on_load: OnLoad) -> Model:
    """Check and open a GGUF file; where the CPU may stand in for a GPU that is too small, there."""

    def watch(part: float) -> None:
        cancel.raise_if_set()
        on_load(path.name, part)

    parts = read_model(path)
    header = parts[0]
    name = path.name
    if header.architecture in _DRAFT_HEADS:
        raise ModelFormatError(
            f"{name} is a draft head: it reads its target's inner states, which edgespec can't "
            "give it; choose lookup, or a small whole model of the target's family, as drafter"
        )
    tokens = entries(header)
    template = header.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise ModelFormatError(
            f"{name} is damaged: its chat template is no text: download or convert it again"
        )
    notes = no_such_tokens(header, len(tokens))
    if options.context_size is not None and not 0 < options.context_size <= _MAX_CONTEXT:
        raise ConfigError(f"no context can hold {options.context_size} tokens: --ctx-size")
    gpu_layers, told = choose_layers(name, options)
    notes += told
    try:
        native, tokenizer, session = _open(parts, options, gpu_layers, cancel, watch)
    except ModelFormatError:
        raise
    except ModelError as error:
        if not gpu_layers:
            raise
        named = options.device != "auto" and not options.allow_cpu
        if named or options.gpu_layers is not None:
            hint = "; fewer layers there (--gpu-layers N) need less of the GPU's memory"
            raise ModelError(f"{error}{hint * lacks_memory(str(error))}") from error
        gpu_layers = 0
        native, tokenizer, session = _open(parts, options, gpu_layers, cancel, watch)
        notes.append(
            f"{name} runs on the CPU, since on the GPU it failed ({error}): --gpu-layers N puts N "
            "layers there"
        )
    if not gpu_layers:
        notes += llama_params.notes()
    trained = int(lib.llama_model_n_ctx_train(native.handle))
    if session.context_size > trained:
        notes.append(f"{name} was trained on {trained} tokens; past them its answers may get worse")
    if not session.can_rollback:
        notes.append(f"{name} can't forget a part of its text, so it runs without speculation")
    threads = options.cpu_threads
    where = "GPU" if gpu_layers else f"CPU, {threads} thread{'s' * (threads != 1)}"
    details = {
        "device": where,
        "gpu_layers": str(gpu_layers),
        "threads": str(threads),
        "architecture": header.architecture,
        "fingerprint": fingerprint(part.path for part in parts),
        "llama_cpp": version("llama-cpp-python"),
        **({"gpus": gpus()} if gpu_layers else {}),
        **({"layout": layout} if (layout := llama_params.layout()) else {}),
    }
    only_drafts = (
        "its head holds a part of its vocabulary" if narrow.read(header) is not None else ""
    )
    return LlamaModel(
        name, session, tokenizer, template or None, notes, details, only_drafts, native
    )


def _open(
    parts: Sequence[GGUFHeader],
    options: LoadOptions,
    gpu_layers: int,
    cancel: CancelFlag,
    watch: Callable[[float], None],
) -> tuple[NativeModel, Tokenizer, LlamaSession]:
    """The weights, with as many layers on the GPU, their words and a context."""
    header = parts[0]
    path, name = header.path, header.path.name
    head = narrow.read(header)
    mapped = bool(gpu_layers) or llama_params.layout() == "plain" or not _repacked(parts)
    with nullcontext() if mapped else huge_pages(cancel.is_set):
        native = NativeModel(path, gpu_layers, mapped=mapped, watch=watch)
    try:
        if lib.llama_model_has_encoder(native.handle):
            raise ModelFormatError(f"{name} is an encoder, not a model that continues text")
        if lib.llama_model_is_diffusion(native.handle):
            raise ModelFormatError(
                f"{name} writes its text by diffusion, not token by token: choose another model"
            )
        trained = int(lib.llama_model_n_ctx_train(native.handle))
        if trained < 1:
            raise ModelFormatError(f"{name} is damaged: it says it was trained on no tokens")
        context_size = options.context_size or min(trained, options.context_cap)
        threads = options.cpu_threads
        tokenizer: Tokenizer
        if head is None:
            tokenizer = LlamaTokenizer(native, header, name)
            session = LlamaSession(native, name, context_size, threads, cancel)
        else:
            tokenizer = VocabularyOnly(header)
            session = NarrowSession(native, header, head, context_size, threads, cancel)
        session.probe()
        return native, tokenizer, session
    except BaseException:
        native.close()
        raise


class LlamaModel(Model):
    """A model whose weights are freed with it."""

    def __init__(self, *fields: Any) -> None:
        *rest, self._native = fields
        super().__init__(*rest)

    def close(self) -> None:
        self._native.close()


def _repacked(parts: Sequence[GGUFHeader]) -> bool:
    """Whether llama.cpp will lay a good part of the weights out anew for the CPU's instructions.

    It copies them for that, so a mapped file would stay in memory beside the copy.
    """
    types = _repacked_types(machine(), lib.llama_print_system_info())
    tensors = [tensor for part in parts for tensor in part.tensors]
    copied = sum(t.nbytes for t in tensors if t.type in types)
    return copied > 0.2 * sum(t.nbytes for t in tensors)


def _repacked_types(cpu: str, features: bytes) -> frozenset[int]:
    """The types that are laid out anew (ggml_repack_get_optimal_repack_type)."""
    types = _REPACKED
    if cpu.lower() in ("arm64", "aarch64"):
        types |= _REPACKED_ON_ARM
    if b"AVX512 = 1" in features:
        types |= {lib.GGML_TYPE_Q2_K}
    return types
