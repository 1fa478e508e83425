"""What a checkpoint's own code says: its model in torch, and that model's logits.

Invariant: the logits are those of the stored weights computed in float32, whatever type they are
stored in, and the weights are as they were afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edgespec.errors import ExportError
from edgespec.exporters import transformers_4
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.machine import no_memory
from edgespec.exporters.parity import Floats
from edgespec.platform import usable_cpus

_BEHIND = 32  # positions whose logits are looked at where a layer sees a window alone
_HERE = {"trust_remote_code": False, "local_files_only": True}
_LONGEST_WINDOW = 1024  # tokens; a longer one would take minutes to fill


def configuration(checkpoint: Outline) -> Any:
    """config.json as transformers reads it. Runs no code of the checkpoint's own.

    Raises ExportError where transformers doesn't know such a model, or it is no causal language
    model.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, __version__

    named = checkpoint.config.get("model_type")  # without it, transformers goes by the path
    if named is not None and str(named) not in CONFIG_MAPPING:
        raise ExportError(
            f"{checkpoint.name} is of model_type {named}, which transformers {__version__} can't "
            "load without code of the checkpoint's own, so it can't be exported to ONNX; "
            "`edgespec export gguf --converter` may do."
        )
    with _as_sentence(checkpoint), transformers_4.staged(checkpoint) as folder:
        config = AutoConfig.from_pretrained(folder, **_HERE)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        kind = next(iter(checkpoint.architectures), config.model_type)
        raise ExportError(
            f"{checkpoint.name} is a {kind}, which is no causal language model (ForCausalLM); "
            "choose a checkpoint that is one."
        )
    return config


def rows(checkpoint: Outline) -> int:
    """How many ids the model has embeddings for. Raises ExportError as `configuration` does."""
    return int(configuration(checkpoint).get_text_config().vocab_size)


@contextmanager
def _as_sentence(checkpoint: Outline) -> Iterator[None]:
    """The many parts of transformers raise errors of any type."""
    try:
        yield
    except Exception as error:
        if no_memory(error) or isinstance(error, ExportError):
            raise
        reason = str(error).strip().split("\n", 1)[0]
        raise ExportError(f"transformers can't load {checkpoint.name}: {reason}") from error


def load(checkpoint: Checkpoint) -> Any:
    """The model, its weights as they are stored. Runs no code of the checkpoint's own.

    Raises ExportError as `configuration` does, and where transformers can't load it, finds no value
    for one of its weights, or doesn't take its positions as they are meant.
    """
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(usable_cpus())
    # Its other ways of computing attention leave out the cap on the scores.
    capped = checkpoint.config.get("attn_logit_softcapping") is not None
    config = configuration(checkpoint)
    with _as_sentence(checkpoint):
        loaded, found = AutoModelForCausalLM.from_pretrained(
            checkpoint.path, config=config, dtype=_stored_type(checkpoint),
            output_loading_info=True, **_HERE,
            **({"attn_implementation": "eager"} if capped else {}),
        )  # fmt: skip
    # It makes up what it doesn't find, and both sides of the gate would be made up alike.
    if lack := transformers_4.lacking(found):
        raise ExportError(f"{checkpoint.name} isn't whole: it holds {lack}; download it again.")
    _check_positions(loaded, checkpoint)
    _unround(loaded)
    return loaded.eval()


def _unround(loaded: Any) -> None:
    """Gemma 3's code rounds what embeddings are multiplied by to the type it is loaded in."""
    embedding = loaded.get_input_embeddings()
    scale = getattr(embedding, "embed_scale", None)
    exact = torch.tensor(embedding.weight.shape[1] ** 0.5, dtype=torch.float32)
    if isinstance(scale, torch.Tensor) and torch.equal(scale, exact.to(scale.dtype)):
        embedding.embed_scale = exact


def _check_positions(loaded: Any, checkpoint: Checkpoint) -> None:
    """Raises ExportError where the model's code has no use for what a newer release has written.

    Both sides of the gate would be misread alike.
    """
    meant = transformers_4.positions(checkpoint)
    if meant is None:
        return
    numbers, kind = meant
    kinds = {module.rope_type for module in loaded.modules() if hasattr(module, "rope_type")}
    config = loaded.config.get_text_config()
    other = [key for key, number in numbers.items() if getattr(config, key, None) != number]
    if kind not in kinds or other:
        said = ", ".join(f"{key} {value}" for key, value in {"kind": kind, **numbers}.items())
        raise ExportError(
            f"transformers 4 doesn't turn the positions of {checkpoint.name} as its "
            f"rope_parameters say ({said}), so it would be another model."
        )


def _stored_type(checkpoint: Checkpoint) -> torch.dtype:
    """The type that holds every weight as it is stored, whatever the configuration says."""
    kinds = {tensor.dtype for tensor in checkpoint.weights}
    if kinds == {"BF16"}:
        return torch.bfloat16
    return torch.float16 if kinds == {"F16"} else torch.float32


def is_tied(loaded: Any) -> bool:
    """Whether the head multiplies by the embedding's own matrix."""
    head, embedding = loaded.get_output_embeddings(), loaded.get_input_embeddings()
    return head is not None and head.weight.data_ptr() == embedding.weight.data_ptr()


@dataclass(frozen=True)
class Answers:
    """What a loaded model is, and says to texts, for those who go on without it.

    Attributes:
        logits: of each text; see `logits`. behind: see `behind_window`.
        shapes: of its parameters; a tied one comes once. tied: see `is_tied`.
    """

    logits: dict[str, Floats]
    behind: Behind | None
    shapes: list[tuple[int, ...]]
    tied: bool


def ask(loaded: Any, texts: Mapping[str, Sequence[int]]) -> Answers:
    """Run it on the ids of texts, and look at its parameters."""
    shapes = [tuple(parameter.shape) for parameter in loaded.parameters()]
    return Answers(logits(loaded, texts), behind_window(loaded, texts), shapes, is_tied(loaded))


def logits(loaded: Any, texts: Mapping[str, Sequence[int]]) -> dict[str, Floats]:
    """The logits (n, V) of each text's ids, float32."""
    found = {}
    with torch.inference_mode(False), torch.no_grad(), _as_float32(loaded):
        for name, ids in texts.items():
            output = loaded(input_ids=torch.tensor([list(ids)]), use_cache=False)
            found[name] = np.asarray(output.logits[0].float().numpy())
    return found


@dataclass(frozen=True)
class Behind:
    """A text that is longer than what a layer sees, and the logits (n, V) of its last tokens."""

    tokens: list[int]
    logits: Floats


def behind_window(loaded: Any, texts: Mapping[str, Sequence[int]]) -> Behind | None:
    """A text for layers that see a window alone, of the tokens of `texts`, again and again.

    None where there are no such layers, or where their window is too long to try.
    """
    config = loaded.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return None
    count = window + min(window, 256) + _BEHIND
    if window > _LONGEST_WINDOW or count > getattr(config, "max_position_embeddings", count):
        return None
    tokens = [token for text in texts.values() for token in text]
    tokens = (tokens * (count // len(tokens) + 1))[:count]
    with torch.inference_mode(False), torch.no_grad(), _as_float32(loaded):
        output = loaded(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=_BEHIND)
    return Behind(tokens, np.asarray(output.logits[0].float().numpy()))


def rotations(loaded: Any, count: int, *, local: bool = False) -> tuple[Floats, Floats]:
    """Cosines and sines (count, numbers) that the model rotates heads by at each position.

    The second half of a row is its first half again. local: in Gemma 3's layers with a window.
    """
    decoder = loaded.get_decoder()
    rotate = decoder.rotary_emb_local if local else decoder.rotary_emb
    cos, sin = rotate(torch.zeros(1), torch.arange(count)[None])
    return cos[0].numpy(), sin[0].numpy()


@contextmanager
def _as_float32(loaded: Any) -> Iterator[None]:
    """Each module's own weights are float32 while it computes, and only then.

    Sixteen bits and back is exact, and the whole model in float32 would need twice the memory.
    """
    kept: dict[Any, torch.dtype] = {}

    def widen(module: Any, _inputs: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                kept[parameter] = parameter.dtype
                parameter.data = parameter.data.float()

    def narrow(module: Any, _inputs: Any, _output: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter in kept:
                parameter.data = parameter.data.to(kept.pop(parameter))

    handles = []
    for module in loaded.modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles.append(module.register_forward_pre_hook(widen))
            handles.append(module.register_forward_hook(narrow))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
