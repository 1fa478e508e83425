"""Rotary positions: the ways config.json has of writing them, and llama.cpp's keys for them.

Invariant: a kind of scaling that llama.cpp would compute otherwise than transformers is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError


@dataclass(frozen=True)
class Rope:
    """How a checkpoint turns its queries and keys.

    Attributes:
        kind: "default", "linear", "dynamic", "yarn", "longrope" or "llama3".
        base: theta. local_base: that of sliding layers, where they have their own.
        partial: the part of each head that is turned.
        settings: the rest of what the config says of it.
    """

    kind: str
    base: float
    local_base: float | None
    partial: float
    settings: Mapping[str, Any]


def read_rope(config: Mapping[str, Any], *, local: bool = False) -> Rope:
    """From either form: `rope_theta` beside `rope_scaling`, or all in `rope_parameters`.

    local: whether llama.cpp knows a theta for layers with a window alone in this family.
    """
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    local_base = None
    if "full_attention" in settings:
        sliding = settings.get("sliding_attention") or {}
        if not local and sliding and _meaning(sliding) != _meaning(settings["full_attention"]):
            raise ExportError(
                "This checkpoint turns its layers with a window otherwise than the rest, which "
                "llama.cpp doesn't do for this family."
            )
        scaling = sliding.get("rope_type") or sliding.get("type") or "default"
        if local and scaling != "default":
            raise ExportError(
                f"This checkpoint scales the positions of its layers with a window ({scaling}), "
                "which llama.cpp doesn't."
            )
        local_base = sliding.get("rope_theta")
        settings = dict(settings["full_attention"])
    kind = str(settings.get("rope_type") or settings.get("type") or "default").lower()
    partial = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return Rope(
        "longrope" if kind == "su" else kind,
        float(settings.get("rope_theta") or config["rope_theta"]),
        None if local_base is None else float(local_base),
        float(partial),
        settings,
    )


def _meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is meant, however it is spelt."""
    said = {key: value for key, value in settings.items() if value is not None}
    kinds = [said.pop(key, None) for key in ("rope_type", "type")]
    kind = str(kinds[0] or kinds[1] or "default").lower()
    if kind == "default":  # which reads no other settings
        said = {k: said[k] for k in ("rope_theta", "partial_rotary_factor") if k in said}
    return {"kind": kind, **said}


def rope_values(
    rope: Rope, head_size: int
) -> tuple[dict[str, Any], npt.NDArray[np.float32] | None]:
    """llama.cpp's keys, and the divisors of the frequencies where they are a tensor there."""
    values: dict[str, Any] = {"rope.freq_base": rope.base}
    settings = rope.settings
    if rope.kind == "linear":
        values["rope.scaling.type"] = "linear"
        values["rope.scaling.factor"] = float(settings["factor"])
    elif rope.kind == "yarn":
        values |= _yarn(settings)
    elif rope.kind == "longrope":
        values["rope.scaling.type"] = "longrope"
    elif rope.kind == "llama3":
        return values, _llama3_factors(rope, head_size)
    elif rope.kind not in ("default", "dynamic"):  # dynamic: as default up to the trained length
        raise ExportError(f"llama.cpp has no rotary scaling like this checkpoint's: {rope.kind}.")
    return values, None


def _yarn(settings: Mapping[str, Any]) -> dict[str, Any]:
    factor = float(settings["factor"])
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    odd = [key for key in ("mscale", "mscale_all_dim") if settings.get(key)]
    odd += ["truncate"] * (settings.get("truncate") is False)
    if not math.isclose(settings.get("attention_factor") or usual, usual, rel_tol=1e-6):
        odd.append("attention_factor")
    if odd:
        raise ExportError(f"llama.cpp can't scale by yarn as this checkpoint asks ({odd[0]}).")
    values = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": int(settings["original_max_position_embeddings"]),
    }
    for key in ("beta_fast", "beta_slow"):
        if settings.get(key) is not None:
            values[f"rope.scaling.yarn_{key}"] = float(settings[key])
    return values


def _llama3_factors(rope: Rope, head_size: int) -> npt.NDArray[np.float32]:
    """What Llama 3 divides each frequency by, (head_size / 2,); Meta's rule, section 3.4 of
    https://arxiv.org/abs/2407.21783: short waves stay, long ones are stretched, some lie between.
    """
    settings = rope.settings
    factor = float(settings["factor"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    original = float(settings["original_max_position_embeddings"])
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    waves = np.float32(2 * math.pi) * np.float32(rope.base) ** exponents
    turns = np.float32(original) / waves  # of the wave in the original context
    blend = (turns - np.float32(low)) / np.float32(high - low)
    between = 1 / ((1 - blend) / np.float32(factor) + blend)
    result = np.where(turns > high, 1, np.where(turns < low, factor, between))
    return result.astype(np.float32)
