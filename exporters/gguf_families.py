"""The model families that can become GGUF: what each one's config and tensors mean to llama.cpp.

Invariant: a family either says everything llama.cpp needs to compute the same model, or refuses
the checkpoint with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec.errors import ExportError
from edgespec.exporters import gguf_settings as settings
from edgespec.exporters.checkpoint import Outline, refuse_quantised
from edgespec.exporters.gguf_settings import Floats, Hyperparameters

Change = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        name: what to call it. classes: config.json's names for it.
        architecture: llama.cpp's name.
        defaults: transformers' values for keys that config.json leaves out.
        activation: what its feed-forward part must use, as llama.cpp computes no other.
        adjacent_pairs: rotary pairs lie side by side in llama.cpp, and half a head apart in the
            checkpoint, so rows of q and k change places.
        norms_plus_one: its norm weights are stored less one.
        transposed: ends of names of weights stored as (in, out).
        always_tied: it has no head of its own; the embedding is used.
        pre_tokenizers: llama.cpp's names for the ones it comes with, most likely first.
        settle: adds what is the family's own to the hyperparameters.
    """

    name: str
    classes: tuple[str, ...]
    architecture: str
    defaults: Mapping[str, Any]
    activation: tuple[str, ...] = ("silu", "swish")
    adjacent_pairs: bool = False
    norms_plus_one: bool = False
    transposed: tuple[str, ...] = ()
    always_tied: bool = False
    pre_tokenizers: tuple[str, ...] = ()
    settle: Callable[[Hyperparameters], None] = lambda _: None

    def change(self, name: str, hyperparameters: Hyperparameters) -> Change | None:
        """What to do to a checkpoint's tensor on its way; None: nothing, its bits can stay."""
        values = hyperparameters.values
        if self.adjacent_pairs and name.endswith((".q_proj.weight", ".q_proj.bias")):
            return lambda tensor: pair_up(tensor, values["attention.head_count"])
        if self.adjacent_pairs and name.endswith((".k_proj.weight", ".k_proj.bias")):
            return lambda tensor: pair_up(tensor, values["attention.head_count_kv"])
        if self.norms_plus_one and name.endswith("norm.weight"):
            return lambda tensor: tensor + np.float32(1)
        if name.endswith(self.transposed) and self.transposed:
            return lambda tensor: np.ascontiguousarray(tensor.T)
        return None


def pair_up(tensor: Floats, heads: int) -> Floats:
    """Rows of each head from (first halves, second halves) to pairs side by side; same shape."""
    rows = tensor.shape[0]
    halves = tensor.reshape(heads, 2, rows // heads // 2, *tensor.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))


def find(checkpoint: Outline) -> Family:
    """The family of a checkpoint. Raises ExportError with the known ones for another."""
    for family in FAMILIES:
        if set(checkpoint.architectures) & set(family.classes):
            return family
    named = ", ".join(checkpoint.architectures) or "no architecture at all"
    raise ExportError(
        f"{checkpoint.source} is of an architecture that can't be exported ({named}); the known "
        f"ones are {', '.join(family.name for family in FAMILIES)}. llama.cpp's own script may "
        "know it: --converter PATH/convert_hf_to_gguf.py uses that one."
    )


def read(family: Family, checkpoint: Outline) -> Hyperparameters:
    """What llama.cpp needs to know of a checkpoint. Raises ExportError where it can't honour it."""
    refuse_quantised(checkpoint)
    config = {**checkpoint.config, **(checkpoint.config.get("text_config") or {})}
    config = {**family.defaults, **{k: v for k, v in config.items() if v is not None}}
    activation = str(config.get("hidden_activation") or config.get("hidden_act") or "")
    activation = activation or str(config.get("activation_function", ""))
    if activation not in family.activation:
        raise ExportError(
            f"{checkpoint.source} uses the activation {activation or 'of no name'}, where "
            f"llama.cpp computes {family.activation[0]} for this family."
        )
    try:
        hyperparameters = settings.common(config)
        family.settle(hyperparameters)
    except KeyError as error:
        raise ExportError(f"The config.json of {checkpoint.source} lacks {error}.") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        message = f"The config.json of {checkpoint.source} makes no sense: {error}"
        raise ExportError(f"{message}.") from error
    return hyperparameters


_ROPE: dict[str, Any] = {"rope_theta": 10000.0}
_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

FAMILIES: Sequence[Family] = (
    Family(
        "Llama", ("LlamaForCausalLM", "LLaMAForCausalLM"), "llama",
        _ROPE | {"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
        adjacent_pairs=True, pre_tokenizers=("llama-bpe", "smollm", "smaug-bpe", "gpt-2"),
        settle=settings.llama,
    ),
    Family(
        "Mistral", ("MistralForCausalLM",), "llama",
        _ROPE | {
            "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8,
        },
        adjacent_pairs=True, pre_tokenizers=("tekken", "llama-bpe"), settle=settings.mistral,
    ),
    Family(
        "SmolLM3", ("SmolLM3ForCausalLM",), "smollm3",
        {
            "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 4, "rope_theta": 2_000_000.0, "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        adjacent_pairs=True, pre_tokenizers=("smaug-bpe", "llama-bpe"), settle=settings.smollm3,
    ),
    Family(
        "Qwen2", ("Qwen2ForCausalLM",), "qwen2",
        _ROPE | {"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6},
        pre_tokenizers=("qwen2",), settle=settings.qwen,
    ),
    Family(
        "Qwen3", ("Qwen3ForCausalLM",), "qwen3",
        _ROPE | {
            "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "head_dim": 128,
        },
        pre_tokenizers=("qwen2",), settle=settings.qwen,
    ),
    Family(
        "Gemma 2", ("Gemma2ForCausalLM",), "gemma2",
        _ROPE | {
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 256,
            "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "tie_word_embeddings": True,
        },
        activation=_GELU, norms_plus_one=True, always_tied=True, settle=settings.gemma2,
    ),
    Family(
        "Gemma 3", ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), "gemma3",
        {
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "tie_word_embeddings": True,
        },
        activation=_GELU, norms_plus_one=True, settle=settings.gemma3,
    ),
    Family(
        "Phi-3", ("Phi3ForCausalLM",), "phi3",
        _ROPE | {"hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        pre_tokenizers=("gpt-4o", "dbrx", "llama-bpe"), settle=settings.phi3,
    ),
    Family(
        "Granite", ("GraniteForCausalLM",), "granite",
        _ROPE | {
            "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
            "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        adjacent_pairs=True, pre_tokenizers=("refact", "dbrx"), settle=settings.granite,
    ),
    Family(
        "OLMo 2", ("Olmo2ForCausalLM",), "olmo2",
        _ROPE | {"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        pre_tokenizers=("dbrx", "llama-bpe"), settle=settings.olmo2,
    ),
    Family(
        "GPT-2", ("GPT2LMHeadModel",), "gpt2",
        {
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True, "tie_word_embeddings": True,
        },
        activation=_GELU, pre_tokenizers=("gpt-2",),
        transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"), settle=settings.gpt2,
    ),
)  # fmt: skip
