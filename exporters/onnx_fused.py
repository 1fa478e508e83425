"""A graph with fused attention and a cache that stays in place, by onnxruntime-genai's builder.

The builder writes the graph: GroupQueryAttention with the rotation inside, and layer norms joined
with their residual sums. The weights it is handed are those of a model that is loaded already, and
they stay where they are until they are written, so nothing is in memory twice. What the builder
would do with the weights (4 bits without a search, an embedding beside its head) isn't used.

Invariant: the graph is float; `onnx_weights` makes fewer bits of it.
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
    # Attention in float16 is fused for GPUs alone, but ONNX Runtime's CPU has it as well.
    provider, number = ("cuda", ir.DataType.FLOAT16) if half else ("cpu", ir.DataType.FLOAT)

    class Builder(family):  # type: ignore[misc]
        def load_weights(self, _input_path: str) -> Any:
            return loaded

    # The builder shares an embedding by turning it round each time the model is loaded.
    options = {"shared_embeddings": False, "hf_token": "false", "hf_remote": False}
    with _as_sentence(architecture), _quiet():
        made = Builder(config, number, number, provider, str(folder), options)
        if architecture == "Gemma3ForCausalLM":
            made.model_type = "gemma3_text"
        made.make_model("")
        made.model.graph.sort()
    return made.model, made


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
