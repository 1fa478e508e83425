"""A graph with fused attention and a cache that stays in place, by onnxruntime-genai's builder.

The builder writes the graph: GroupQueryAttention with the rotation inside, and layer norms joined
with their residual sums. The weights it is handed are those of a model that is loaded already, and
they stay where they are until they are written, so nothing is in memory twice. What the builder
would do with the weights (4 bits without a search, an embedding beside its head) isn't used.

Invariant: the graph is float; `onnx_weights` makes fewer bits of it. Each layer looks back as far
as the model's own configuration says, where the builder's classes have rules of their own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.onnx_graph import attribute

# Text models the builder has a class for; those for pictures and sound are left out, and so are
# mixtures of experts, whose weights it stores as one tensor a layer.
FAMILIES: Mapping[str, str] = {
    "Ernie4_5_ForCausalLM": "ErnieModel",
    "Gemma2ForCausalLM": "Gemma2Model",
    "Gemma3ForCausalLM": "Gemma3Model",
    "GemmaForCausalLM": "GemmaModel",
    "GraniteForCausalLM": "GraniteModel",
    "LlamaForCausalLM": "LlamaModel",
    "MistralForCausalLM": "MistralModel",
    "NemotronForCausalLM": "NemotronModel",
    "OlmoForCausalLM": "OLMoModel",
    "Phi3ForCausalLM": "Phi3MiniModel",
    "PhiForCausalLM": "PhiModel",
    "Qwen2ForCausalLM": "QwenModel",
    "Qwen3ForCausalLM": "Qwen3Model",
    "SmolLM3ForCausalLM": "SmolLM3Model",
}


# Whose every layer has config.sliding_window, and whose layers are told apart by layer_types; in
# the other families transformers uses no window, whatever a configuration says.
_ALL_SLIDE = frozenset({"MistralForCausalLM", "Phi3ForCausalLM"})
_SOME_SLIDE = frozenset(
    {
        "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
    }
)  # fmt: skip
_NO_WINDOW = -1  # GroupQueryAttention's local_window_size where a layer sees the whole text


def knows(architecture: str) -> bool:
    """Whether the builder has a class for it."""
    return architecture in FAMILIES


def build(loaded: Any, architecture: str, folder: Path, *, half: bool) -> tuple[ir.Model, Any]:
    """The graph of a torch model, and the builder, which `write_config` needs.

    half: activations and cache in float16. Raises ExportError where the builder fails.
    """
    from onnxruntime_genai.models import builders

    config = loaded.config
    if architecture == "Phi3ForCausalLM" and getattr(config, "rope_scaling", None):
        raise ExportError(
            "This Phi-3 changes its positions with the length of the text, which a cache in place "
            "can't follow; use --portable."
        )
    family: Any = getattr(builders, FAMILIES[architecture])
    seen = windows(config, architecture)
    # Attention in float16 is fused for GPUs alone, but ONNX Runtime's CPU has it as well.
    provider, number = ("cuda", ir.DataType.FLOAT16) if half else ("cpu", ir.DataType.FLOAT)

    class Builder(family):  # type: ignore[misc]
        def load_weights(self, _input_path: str) -> Any:
            return loaded

        def is_local(self, layer_id: int) -> bool:
            return seen[layer_id] != _NO_WINDOW

        def make_attention(self, layer_id: int, *args: Any, **kwargs: Any) -> None:
            self.window_size = seen[layer_id]
            super().make_attention(layer_id, *args, **kwargs)

    # The builder shares an embedding by turning it round each time the model is loaded.
    options = {"shared_embeddings": False, "hf_token": "false", "hf_remote": False}
    with _as_sentence(architecture), _quiet():
        made = Builder(config, number, number, provider, str(folder), options)
        if architecture == "Gemma3ForCausalLM":
            made.model_type = "gemma3_text"
        made.make_model("")
        made.model.graph.sort()
    _check_windows(made.model, seen)
    return made.model, made


def windows(config: Any, architecture: str) -> tuple[int, ...]:
    """How many tokens each layer sees, its own included; -1 where it sees all."""
    count: int = config.num_hidden_layers
    size: int | None = getattr(config, "sliding_window", None)
    if not size or getattr(config, "use_sliding_window", True) is False:
        return (_NO_WINDOW,) * count
    if architecture in _ALL_SLIDE:
        return (size,) * count
    types = config.layer_types if architecture in _SOME_SLIDE else [""] * count
    return tuple(size if kind == "sliding_attention" else _NO_WINDOW for kind in types)


def _check_windows(model: ir.Model, expected: tuple[int, ...]) -> None:
    """Raises ExportError where an attention doesn't look back as far as its layer should."""
    found = {}
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            past = node.inputs[3]
            assert past is not None and past.name is not None
            layer = int(past.name.split(".")[1])  # past_key_values.7.key
            found[layer] = attribute(node, "local_window_size", _NO_WINDOW)
    if wrong := [i for i, size in enumerate(expected) if found.get(i) != size]:
        raise ExportError(
            f"onnxruntime-genai gave layer {wrong[0]} a window of {found.get(wrong[0])} tokens "
            f"where the model has {expected[wrong[0]]}; use --portable."
        )


def write_config(made: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """genai_config.json, by which onnxruntime-genai knows the folder."""
    with _as_sentence(checkpoint.name), _quiet():
        made.ep = "cpu"  # the provider is the reader's choice
        made.make_genai_config(str(checkpoint.path), {}, str(folder))


@contextlib.contextmanager
def _as_sentence(what: str) -> Iterator[None]:
    """The builder's errors are of any type."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0].rstrip(".")
        raise ExportError(
            f"onnxruntime-genai can't build {what}: {reason}; use --portable."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The builder tells about its every layer on stdout."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
