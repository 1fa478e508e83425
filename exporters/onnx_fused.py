"""A graph with fused attention and a cache that stays in place, by onnxruntime-genai's builder.

The builder writes the graph: GroupQueryAttention with the rotation inside, and layer norms joined
with their residual sums. The weights it is handed are those of a model that is loaded already, and
they stay where they are until they are written, so nothing is in memory twice. What the builder
would do with the weights (4 bits without a search, an embedding beside its head) isn't used.

Invariant: the graph is float; `onnx_weights` makes fewer bits of it. Each layer looks back as far
as the model's own configuration says, each position is rotated as its own code does it, or not at
all, and norms and embeddings are computed with its own numbers, where the builder's classes have
rules of their own.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgespec.errors import ExportError
from edgespec.exporters import transformers_4
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.machine import lacking
from edgespec.exporters.onnx_graph import attribute, shape_of

# Text models the builder has a class for; those for pictures and sound are left out, and so are
# mixtures of experts, whose weights it stores as one tensor a layer, and OLMo, whose norms take the
# mean away and which it builds with others. Its class for SmolLM3 rotates in nodes apart.
FAMILIES: Mapping[str, str] = {
    "Gemma2ForCausalLM": "Gemma2Model",
    "Gemma3ForCausalLM": "Gemma3Model",
    "GemmaForCausalLM": "GemmaModel",
    "GraniteForCausalLM": "GraniteModel",
    "LlamaForCausalLM": "LlamaModel",
    "MistralForCausalLM": "MistralModel",
    "NemotronForCausalLM": "NemotronModel",
    "Phi3ForCausalLM": "Phi3MiniModel",
    "PhiForCausalLM": "PhiModel",
    "Qwen2ForCausalLM": "QwenModel",
    "Qwen3ForCausalLM": "Qwen3Model",
    "SmolLM3ForCausalLM": "LlamaModel",
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

# Which of transformers' rules for `rope_scaling` rotate a position alike in every text.
_FIXED = frozenset({"default", "linear", "llama3", "yarn"})
ROTATIONS = ("cos_cache", "sin_cache")
"""What the names of the tables of rotations start with; Gemma 3 has two of each."""


def refusal(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Why a model can't be built so, as what follows its name; None where it can.

    config: in transformers 4's words.
    """
    if architecture not in FAMILIES:
        return f"is a {architecture}, which can't be exported with fused attention"
    if architecture == "PhiForCausalLM" and config.get("qk_layernorm"):
        return "has norms inside its attention, which onnxruntime-genai leaves out"
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping):
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if str(kind) not in _FIXED or "long_factor" in scaling:
            return (
                "changes its positions with the length of the text, which a cache in place can't "
                "follow"
            )
    return None


def build(loaded: Any, architecture: str, folder: Path, *, half: bool) -> tuple[ir.Model, Any]:
    """The graph of a torch model, and the builder, which `write_config` needs.

    half: activations and cache in float16. Raises ExportError where the builder fails.
    """
    with _as_sentence(architecture):
        from onnxruntime_genai.models import builders

    config = copy.deepcopy(loaded.config)
    config.rope_scaling = None  # of which the builder knows a part
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
        if architecture.startswith("Gemma"):  # which it rounds to two decimals
            made.embed_attrs["scale"] = float(config.hidden_size**0.5)
        made.layernorm_attrs["epsilon"] = _epsilon(loaded)
        made.make_model("")
        made.model.graph.sort()
    _check_windows(made.model, seen)
    if architecture == "SmolLM3ForCausalLM":
        _rotate_only(made.model, config.no_rope_layers)
    _rotate_as(loaded, made.model)
    return made.model, made


def _epsilon(loaded: Any) -> float:
    """What the model's norms add before the root; the builder knows one configuration's name of it.

    Their weights become float32, for it adds 1 to some of them in the type they have. Raises
    ExportError where norms differ.
    """
    found: set[Any] = set()
    for module in loaded.modules():
        if "Norm" in type(module).__name__:
            module.float()
            found.add(getattr(module, "eps", getattr(module, "variance_epsilon", None)))
    if len(found) != 1 or None in found:
        raise ExportError(
            f"onnxruntime-genai has one epsilon for all norms, and {type(loaded).__name__} "
            "hasn't; use --portable."
        )
    return float(found.pop())


def _attentions(model: ir.Model) -> Iterator[tuple[int, ir.Node]]:
    """Each attention with its layer."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            past = node.inputs[3]
            assert past is not None and past.name is not None
            yield int(past.name.split(".")[1]), node  # past_key_values.7.key


def _rotate_only(model: ir.Model, rotated: Sequence[int]) -> None:
    """Take the rotation out of layers that have none. rotated: by layer; 0 where there is none."""
    for layer, node in _attentions(model):
        if not rotated[layer]:
            node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 0)
            for table in (7, 8):
                node.replace_input_with(table, None)


def _rotate_as(loaded: Any, model: ir.Model) -> None:
    """Put the rotations of the model's own code into the graph's tables (positions, numbers).

    Raises ExportError where a table isn't of their shape.
    """
    from edgespec.exporters.onnx_reference import rotations

    for name, value in model.graph.initializers.items():
        if name.startswith(ROTATIONS):
            count, width = shape_of(value)
            pair = rotations(loaded, count, local=name.endswith("_local"))
            own = pair[name.startswith("sin")]
            if own.shape[1] != 2 * width:
                raise ExportError(
                    f"onnxruntime-genai rotates {2 * width} numbers of each head where the model "
                    f"rotates {own.shape[1]}; use --portable."
                )
            kind = value.const_value.dtype.numpy()
            value.const_value = ir.tensor(np.array(own[:, :width], kind), name=name)


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
    found = {
        layer: attribute(node, "local_window_size", _NO_WINDOW)
        for layer, node in _attentions(model)
    }
    if wrong := [i for i, size in enumerate(expected) if found.get(i) != size]:
        raise ExportError(
            f"onnxruntime-genai gave layer {wrong[0]} a window of {found.get(wrong[0])} tokens "
            f"where the model has {expected[wrong[0]]}; use --portable."
        )


def write_config(made: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """genai_config.json, by which onnxruntime-genai knows the folder."""
    with transformers_4.staged(checkpoint) as source, _as_sentence(checkpoint.name), _quiet():
        made.ep = "cpu"  # the provider is the reader's choice
        made.make_genai_config(str(source), {}, str(folder))


@contextlib.contextmanager
def _as_sentence(what: str) -> Iterator[None]:
    """The builder's errors are of any type."""
    try:
        yield
    except Exception as error:
        if lacking(error):
            raise
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0].rstrip(".")
        raise ExportError(
            f"onnxruntime-genai can't build {what}: {reason}; use --portable."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The builder tells about its every layer on stdout."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
