"""The files of a checkpoint's folder: its config, its index, and the headers of its weights.

Invariant: what is returned was looked at and is whole; anything else is an ExportError that says
what to do. No weights are loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.weights import StoredTensor, read_index

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NUMBERED = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")

SMALL = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens"
    r"|vocab|chat_template|preprocessor_config|params)\.json|merges\.txt|[\w.-]+\.model"
    r"|[\w-]+\.jinja|[\w.-]+\.py|README\.md|LICEN[CS]E[\w.]*|" + re.escape(INDEX)
)
"""What a checkpoint holds besides its weights, and an export may need."""

_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError where it can't be read, or holds another."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"Can't read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{file} is damaged ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise ExportError(f"{file} is damaged: it holds no object; download it again.")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """config.json of the folder `path`. Raises ExportError, also where that is no checkpoint."""
    if not (path / _CONFIG).is_file():
        raise no_config(path, sorted(file.name for file in path.iterdir()), "check the path")
    return read_json(path / _CONFIG)


def no_config(place: Path | str, names: Collection[str], hint: str) -> ExportError:
    """Of a folder or repository without config.json, which has files of these names.

    hint: what to do where they don't show what it is.
    """
    if _ADAPTER in names:
        return _adapter(place)
    gguf = [name for name in names if name.endswith(".gguf")]
    hint = f"it holds {min(gguf)}, which needs no export" if gguf else hint
    return ExportError(f"{place} has no {_CONFIG}, so it is no checkpoint; {hint}.")


def _adapter(place: Path | str) -> ExportError:
    return ExportError(
        f"{place} is an adapter, not a whole model; merge it into its base model first "
        "(`merge_and_unload` in peft) and save that."
    )


def refuse_misnamed(place: Path | str, names: Iterable[str]) -> None:
    """Raises ExportError where one of these is a safetensors file, all with names of others.

    For a folder or repository in which none of the known names was found.
    """
    found = sorted(name for name in names if re.fullmatch(r"[^/]+\.safetensors", name))
    if "adapter_model.safetensors" in found:
        raise _adapter(place)
    if found:
        raise ExportError(
            f"{place} holds its weights as {found[0]}, a layout that transformers doesn't read: "
            f"take a checkpoint with {SINGLE}, or save this one again with "
            "`save_pretrained(folder)`."
        )


def weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file name, as the index has it; {} where there is none.

    Beside a single file it is of what lay there before: that file goes first, as in transformers.
    """
    if (path / SINGLE).is_file() or not (path / INDEX).is_file():
        return {}
    named = read_json(path / INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in named.values()
    ):
        raise ExportError(f"{path / INDEX} is damaged; download it again.")
    return named


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files with the weights: the single one, what the index names, or numbered ones.

    Raises ExportError where there are none, or not all.
    """
    named = [SINGLE] if (path / SINGLE).is_file() else sorted(set(weight_map(path).values()))
    named = named or _numbered(path)
    missing = [name for name in named if not (path / name).is_file()]
    if missing:
        raise ExportError(
            f"{path} lacks {missing[0]}, one of {len(named)} files of weights "
            f"({len(missing)} missing); download the checkpoint again."
        )
    if named:
        return tuple(path / name for name in named)
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
    if others:
        raise ExportError(
            f"{path} holds its weights as {others[0]}, a format that can run code when it is "
            "opened; convert it to safetensors first: load it with transformers, and save it "
            "again with `save_pretrained(folder)`."
        )
    refuse_misnamed(path, (file.name for file in path.iterdir()))
    raise ExportError(f"{path} holds no safetensors files, so no weights; download it again.")


def _numbered(path: Path) -> list[str]:
    """model-00001-of-00003.safetensors and so on, where there is no index: all of them."""
    counts = {m[2] for p in path.iterdir() if (m := NUMBERED.fullmatch(p.name))}
    if len(counts) > 1:
        raise ExportError(f"{path} holds the files of more than one checkpoint; keep one of them.")
    return [
        f"model-{i:05}-of-{count}.safetensors" for count in counts for i in range(1, int(count) + 1)
    ]


def look_through(path: Path) -> tuple[tuple[Path, ...], dict[str, StoredTensor]]:
    """The files with the weights, and every tensor in them by name.

    Raises ExportError where one is missing or damaged, or index and files don't agree.
    """
    files = weight_files(path)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_index(file).items():
            if name in tensors:
                first = tensors[name].file.name
                raise ExportError(f"{path} holds {name} twice, in {first} and {file.name}.")
            tensors[name] = tensor
    named = weight_map(path)
    for name, said in named.items():
        if name not in tensors:
            raise ExportError(f"{INDEX} in {path} says {said} holds {name}, but it doesn't.")
    if named:  # a tensor the index doesn't name is not part of the model
        tensors = {name: tensor for name, tensor in tensors.items() if name in named}
    if not tensors:
        raise ExportError(f"{path} holds no tensors; download it again.")
    return files, tensors
