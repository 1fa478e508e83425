"""What each family's config means to llama.cpp.

Invariant: a setting that llama.cpp can't honour is refused where it would change the output, and
noted where it only does so past some length of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.exporters.gguf_rope import Rope, read_rope, rope_values

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hyperparameters:
    """A config with its defaults filled in, and what follows from it.

    Attributes:
        values: GGUF keys (without the architecture before them) -> value.
        extra: tensors that llama.cpp wants and the checkpoint has as numbers only.
        notes: what the person should know.
    """

    config: Mapping[str, Any]
    values: dict[str, Any]
    extra: dict[str, Floats] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def layers(self) -> int:
        return int(self.values["block_count"])


_ALIASES = {  # GPT-2 wrote first, and the others have agreed on other words
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}


def common(config: Mapping[str, Any]) -> Hyperparameters:
    """What all families share."""
    config = {new: config[old] for new, old in _ALIASES.items() if old in config} | dict(config)
    if "n_embd" in config:
        config.setdefault("intermediate_size", 4 * int(config["n_embd"]))
    heads = int(config["num_attention_heads"])
    values: dict[str, Any] = {
        "block_count": int(config["num_hidden_layers"]),
        "context_length": int(config["max_position_embeddings"]),
        "embedding_length": int(config["hidden_size"]),
        "feed_forward_length": int(config["intermediate_size"]),
        "attention.head_count": heads,
        "attention.head_count_kv": int(config.get("num_key_value_heads", heads)),
    }
    if "rms_norm_eps" in config:
        values["attention.layer_norm_rms_epsilon"] = float(config["rms_norm_eps"])
    if "head_dim" in config:
        values["attention.key_length"] = values["attention.value_length"] = int(config["head_dim"])
    return Hyperparameters(config, values)


def _with_rope(family: Hyperparameters, *, partial: bool = False, local: bool = False) -> Rope:
    rope = read_rope(family.config, local=local)
    if rope.partial != 1.0 and not partial:
        raise ExportError(
            f"This checkpoint turns only {rope.partial:.0%} of each head by position, which "
            "llama.cpp doesn't do for this family."
        )
    values, factors = rope_values(rope, _head_size(family.config))
    family.values.update(values)
    if factors is not None:
        family.extra["rope_freqs.weight"] = factors
    return rope


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def llama(family: Hyperparameters) -> None:
    _with_rope(family)
    family.values["vocab_size"] = int(family.config["vocab_size"])
    family.values["rope.dimension_count"] = _head_size(family.config)


def mistral(family: Hyperparameters) -> None:
    llama(family)
    _note_window(family, family.config.get("sliding_window"))


def smollm3(family: Hyperparameters) -> None:
    llama(family)
    layers = family.layers
    turned = family.config.get("no_rope_layers")
    if turned is None:
        interval = int(family.config["no_rope_layer_interval"])
        turned = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if list(turned) != [int((layer + 1) % 4 != 0) for layer in range(layers)]:
        raise ExportError(
            "This checkpoint has its layers without positions elsewhere than at each fourth one, "
            "where llama.cpp expects them."
        )
    if family.config.get("use_sliding_window"):
        _note_window(family, family.config.get("sliding_window"))


def qwen(family: Hyperparameters) -> None:
    _with_rope(family)
    if family.config.get("use_sliding_window"):
        _note_window(family, family.config.get("sliding_window"))


def gemma2(family: Hyperparameters) -> None:
    _with_rope(family)
    _same_query_scale(family, large=46)
    config = family.config
    if config["attn_logit_softcapping"]:
        family.values["attn_logit_softcapping"] = float(config["attn_logit_softcapping"])
    if config["final_logit_softcapping"]:
        family.values["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    _window(family, period=2)


def gemma3(family: Hyperparameters) -> None:
    rope = _with_rope(family, local=True)
    _same_query_scale(family, large=62)
    config = family.config
    if config.get("attn_logit_softcapping"):
        raise ExportError(
            "This checkpoint caps its attention, which llama.cpp doesn't for Gemma 3."
        )
    if config.get("use_bidirectional_attention"):
        raise ExportError("This checkpoint looks ahead in its text, so it continues none.")
    if config.get("final_logit_softcapping"):
        family.values["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    family.values["rope.freq_base_swa"] = rope.local_base or float(config["rope_local_base_freq"])
    _window(family, period=6)


def phi3(family: Hyperparameters) -> None:
    config = family.config
    rope = _with_rope(family, partial=True)
    if int(config["num_attention_heads"]) * _head_size(config) != int(config["hidden_size"]):
        raise ExportError("This checkpoint's heads don't make up its width, as llama.cpp expects.")
    trained = int(config["max_position_embeddings"])
    original = int(rope.settings.get("original_max_position_embeddings", trained))
    original = int(config.get("original_max_position_embeddings", original))
    family.values["rope.dimension_count"] = turned = int(_head_size(config) * rope.partial)
    family.values["rope.scaling.original_context_length"] = original
    window = config.get("sliding_window")
    family.values["attention.sliding_window"] = int(window or 0)
    _note_window(family, window)
    if rope.kind != "longrope":
        return
    for name in ("long", "short"):
        factors = np.asarray(rope.settings[f"{name}_factor"], np.float32)
        if factors.shape != (turned // 2,):
            raise ValueError(f"{len(factors)} {name} factors for {turned // 2} rotary pairs")
        family.extra[f"rope_factors_{name}.weight"] = factors
    scale = trained / original
    grown = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    family.values["rope.scaling.attn_factor"] = float(
        rope.settings.get("attention_factor") or grown
    )
    if scale > 1:
        family.notes.append(
            f"llama.cpp uses this model's long or its short rotary factors by the size of the "
            f"context, not of the text: with --ctx-size above {original} always the long ones"
        )


def granite(family: Hyperparameters) -> None:
    config = family.config
    for key in ("attention.key_length", "attention.value_length"):
        family.values.pop(key, None)
    if _head_size(config) * int(config["num_attention_heads"]) != int(config["hidden_size"]):
        raise ExportError("This checkpoint's heads don't make up its width, as llama.cpp expects.")
    llama(family)
    scales = {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }
    family.values.update(scales)
    zero = [key for key, value in scales.items() if not value]
    if zero:
        raise ExportError(f"This checkpoint's {zero[0]} is 0, which llama.cpp takes as not given.")


def olmo2(family: Hyperparameters) -> None:
    _with_rope(family)
    if family.config.get("layer_types") and family.config.get("sliding_window"):
        kinds = family.config["layer_types"]
        family.values["attention.sliding_window"] = int(family.config["sliding_window"])
        family.values["attention.sliding_window_pattern"] = [
            kind == "sliding_attention" for kind in kinds
        ]


def gpt2(family: Hyperparameters) -> None:
    config = family.config
    if config.get("scale_attn_by_inverse_layer_idx") or not config["scale_attn_weights"]:
        raise ExportError("This checkpoint scales its attention in a way llama.cpp doesn't know.")
    if config.get("add_cross_attention"):
        raise ExportError("This checkpoint attends to another model's text, as llama.cpp doesn't.")
    family.values["attention.layer_norm_epsilon"] = float(config["layer_norm_epsilon"])
    del family.values["attention.head_count_kv"]


def _same_query_scale(family: Hyperparameters, large: int) -> None:
    """llama.cpp derives the scale from the number of layers; whether it finds the config's."""
    config = family.config
    size = _head_size(config)
    if family.layers == large:
        size = int(config["hidden_size"]) // int(config["num_attention_heads"])
    if float(config["query_pre_attn_scalar"]) != size:
        raise ExportError(
            f"This checkpoint scales its queries by {config['query_pre_attn_scalar']}, where "
            f"llama.cpp takes {size} for a model of its shape."
        )


def _window(family: Hyperparameters, period: int) -> None:
    """The sliding window, and which layers have it: all but each `period`-th."""
    config, layers = family.config, family.layers
    kinds = config.get("layer_types")
    usual = [(layer + 1) % period != 0 for layer in range(layers)]
    if kinds is None and config.get("sliding_window_pattern", period) != period:
        step = int(config["sliding_window_pattern"])
        slides = [step == 0 or (layer + 1) % step != 0 for layer in range(layers)]
    else:
        slides = usual if kinds is None else [kind == "sliding_attention" for kind in kinds]
    if any(slides):
        family.values["attention.sliding_window"] = int(config["sliding_window"])
        if slides != usual:
            family.values["attention.sliding_window_pattern"] = slides
    else:
        family.values["attention.sliding_window"] = 0


def _note_window(family: Hyperparameters, window: int | None) -> None:
    if window and window < int(family.config["max_position_embeddings"]):
        family.notes.append(
            f"the checkpoint looks back {window} tokens in its attention, and llama.cpp looks at "
            "all of them for this family: past that length its text may differ"
        )
