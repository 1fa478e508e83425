"""The files beside the graph of a drafter that was cut out of an ONNX folder.

Invariant: what they say of the model's blocks is true of those that were kept, and everything else
in them is as it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.backends.onnx_folder import OnnxFolder
from edgespec.exporters.onnx_text import FILES

_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def write(
    folder: OnnxFolder, made: Path, blocks: Sequence[int] | None, total: int, *, narrow_head: bool
) -> None:
    """The files beside the graph, with what they say of its blocks put right."""
    for name in (*FILES, "genai_config.json"):
        path = folder.folder / name
        if not path.is_file() or (name == "genai_config.json" and narrow_head):
            # onnxruntime-genai knows nothing of narrow heads: its ids would be wrong.
            continue
        data = folder.read(name) if name in ("config.json", "genai_config.json") else {}
        if not data:
            shutil.copyfile(path, made / name)
            continue
        if name == "genai_config.json":
            decoder = data.get("model", {}).get("decoder", {})
            decoder["filename"] = "model.onnx"
            if blocks is not None:
                _cut_genai(decoder, blocks)
        elif blocks is not None:
            for part in (data, data.get("text_config")):
                if isinstance(part, dict):
                    cut_config(part, blocks, total)
        _write_json(made / name, data)
    if narrow_head and not (made / "config.json").exists():  # then all of it stood in the other
        said = {
            "model_type": folder.architecture,
            "max_position_embeddings": folder.context_size,
            "eos_token_id": folder.genai.get("eos_token_id"),
        }
        _write_json(made / "config.json", {k: v for k, v in said.items() if v is not None})


def _cut_genai(decoder: dict[str, Any], blocks: Sequence[int]) -> None:
    decoder["num_hidden_layers"] = len(blocks)
    windows = decoder.get("sliding_window")
    if isinstance(windows, dict) and isinstance(windows.get("layers"), list):
        windows["layers"] = [i for i, old in enumerate(blocks) if old in windows["layers"]]


def cut_config(part: dict[str, Any], blocks: Sequence[int], total: int) -> None:
    for key, value in part.items():
        if key in _COUNTS and value == total:
            part[key] = len(blocks)
        elif "layer" in key and isinstance(value, list) and len(value) == total:
            part[key] = [value[block] for block in blocks]  # what each of them is


def _write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
