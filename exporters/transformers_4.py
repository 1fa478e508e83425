"""A configuration as transformers 5 writes it, in the words of transformers 4, which exports use.

transformers 5 writes theta, scaling and the turned part of each head into `rope_parameters`, one
set for all layers or one for each kind of layer. transformers 4 passes over that key without a word
and takes its own classes' theta instead.

Invariant: what transformers 4 is told of a model's positions is all that the checkpoint says of
them, or the checkpoint is refused. `lacking` tells of weights that it makes up without a word.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint, Outline

_ORIGINAL = "original_max_position_embeddings"
_KINDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor", _ORIGINAL}),
    "yarn": frozenset(
        {
            "factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim", "truncate",
        }
    ),
    "longrope": frozenset({"factor", _ORIGINAL, "attention_factor", "short_factor", "long_factor"}),
    "llama3": frozenset({"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"}),
}  # fmt: skip
"""The kinds of scaling that both know, and what each reads; it passes over the rest of these."""
_KNOWN = frozenset[str]().union(*_KINDS.values())

# Model types whose classes in transformers 4 count the entries of `rope_scaling`, and call its kind
# `type` alone.
_FACTORS = frozenset({"short_factor", "long_factor"})
_COUNTED = {
    "phi3": _FACTORS,
    "phi4_multimodal": _FACTORS,
    "olmo": frozenset({"factor"}),
    "olmo2": frozenset({"factor"}),
}
# Those whose layers with a window have a theta of their own there, and no scaling.
_LOCAL = frozenset({"gemma3_text", "gemma3n_text"})

_NUMBERS = ("rope_theta", "partial_rotary_factor", "rope_local_base_freq")


def config(checkpoint: Outline) -> dict[str, Any]:
    """config.json with `rope_theta` and `rope_scaling` in the place of `rope_parameters`.

    Raises ExportError where those can't say it.
    """
    try:
        return _in_old_words(checkpoint.name, checkpoint.config)
    except (TypeError, ValueError) as error:
        raise ExportError(
            f"The config.json of {checkpoint.name} makes no sense: {error}."
        ) from error


def positions(checkpoint: Checkpoint) -> tuple[dict[str, Any], str] | None:
    """The numbers named, by their old words, and the kind of scaling; None where nothing is new.

    Raises ExportError as `config` does.
    """
    written = checkpoint.config.get("text_config") or checkpoint.config
    if not written.get("rope_parameters"):
        return None
    values = config(checkpoint)
    values = values.get("text_config") or values
    scaling = values["rope_scaling"] or {}
    numbers = {key: values[key] for key in _NUMBERS if values.get(key) is not None}
    return numbers, str(scaling.get("rope_type", scaling.get("type", "default")))


def lacking(found: Mapping[str, Any]) -> str | None:
    """What transformers made up for want of it in a checkpoint: "no NAME" or "no fitting NAME".

    found: what `from_pretrained` tells with `output_loading_info`. None where nothing is made up.
    """
    unfit = [entry if isinstance(entry, str) else entry[0] for entry in found["mismatched_keys"]]
    for names, what in ((found["missing_keys"], "no"), (unfit, "no fitting")):
        if names:
            return f"{what} {min(names)}"
    return None


@contextlib.contextmanager
def staged(checkpoint: Outline) -> Iterator[Path]:
    """A folder whose config.json transformers 4 understands: the checkpoint's own where it does.

    Raises ExportError as `config` does.
    """
    values = config(checkpoint)
    if values == checkpoint.config:
        yield checkpoint.path
        return
    with tempfile.TemporaryDirectory(prefix="edgespec-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        generation = checkpoint.path / "generation_config.json"
        if generation.is_file():
            shutil.copyfile(generation, folder / generation.name)
        yield folder


def _in_old_words(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(config)
    if isinstance(text := values.get("text_config"), Mapping):
        values["text_config"] = _in_old_words(name, text)
    found = values.pop("rope_parameters", None)
    if not found:
        return values
    model_type = str(values.get("model_type"))
    if not isinstance(found, Mapping):
        raise _refusal(name, found)
    if any(isinstance(value, Mapping) for value in found.values()):
        found = _of_layers(name, found, model_type, values)
    scaling = {key: value for key, value in found.items() if value is not None}
    kinds = [scaling.pop(key, None) for key in ("rope_type", "type")]
    kind = str(kinds[0] or kinds[1] or "default")
    kind = "longrope" if kind == "su" else kind
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in scaling:
            values[key] = scaling.pop(key)
    if kind not in _KINDS:
        raise _refusal(name, kind)
    if unknown := sorted(scaling.keys() - _KNOWN):
        raise _refusal(name, unknown[0])
    scaling = {key: value for key, value in scaling.items() if key in _KINDS[kind]}
    if kind == "longrope":
        _place_original(name, scaling, values)
    if model_type in _COUNTED:
        if kind != "default" and (more := sorted(scaling.keys() - _COUNTED[model_type])):
            raise _refusal(name, more[0])
        spelt = {"type": kind}
    else:
        spelt = {"rope_type": kind}
    values["rope_scaling"] = None if kind == "default" else spelt | scaling
    if model_type in ("gpt_neox", "gpt_neox_japanese"):  # which have older words yet
        older = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
        values |= {older[key]: values[key] for key in older if key in values}
    return values


def _of_layers(
    name: str, found: Mapping[str, Any], model_type: str, values: dict[str, Any]
) -> Mapping[str, Any]:
    """The set for layers that see all, where there is one for each kind of layer.

    That of layers with a window goes into `values`, if it isn't the same.
    """
    full, sliding = found.get("full_attention"), found.get("sliding_attention")
    if found.keys() - {"full_attention", "sliding_attention"} or not isinstance(full, Mapping):
        raise _refusal(name, "positions for " + " and ".join(sorted(map(str, found))))
    if sliding is None:
        return full
    if model_type in _LOCAL and isinstance(sliding, Mapping):
        plain = {key: value for key, value in sliding.items() if value is not None}
        theta = plain.pop("rope_theta", None)
        kind = plain.pop("rope_type", plain.pop("type", "default"))
        if theta is not None and kind == "default" and not plain:
            values["rope_local_base_freq"] = theta
            return full
    elif sliding == full:
        return full
    raise _refusal(name, "other positions for sliding_attention")


def _place_original(name: str, scaling: dict[str, Any], values: dict[str, Any]) -> None:
    """The original length lies beside `rope_scaling` in transformers 4, which makes `factor` of it.

    A factor of another size, which only the attention's would follow from, can't be said.
    """
    original = values.get(_ORIGINAL) or scaling.get(_ORIGINAL)
    scaling.pop(_ORIGINAL, None)
    if not original:
        return
    values[_ORIGINAL] = original
    factor = scaling.pop("factor", None)
    if factor is not None and scaling.get("attention_factor") is None:
        meant = values.get("max_position_embeddings")
        if not meant or not math.isclose(factor, meant / original, rel_tol=1e-6):
            raise _refusal(name, f"factor {factor}")


def _refusal(name: str, what: object) -> ExportError:
    return ExportError(
        f"{name} was saved by a newer transformers, and its rope_parameters hold {what}, which "
        "transformers 4, by which it is read here, can't be told."
    )
