"""The text side of an exported folder: its tokenizer, its templates and the ids of the probes.

Invariant: the folder's tokenizer.json alone gives the ids of the checkpoint's own tokenizer.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint, Outline
from edgespec.exporters.parity import PROBES, differing_ids

Ids = dict[str, list[int]]

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What may lie beside a graph, as a checkpoint has it."""

_NEWER = "TokenizersBackend"  # how transformers 5 calls the class that needs tokenizer.json alone


def load(checkpoint: Outline) -> Any:
    """The checkpoint's tokenizer. Raises ExportError where there is none, or it can't be saved."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    named = checkpoint.json("tokenizer_config.json")
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if isinstance(marks := named.get("extra_special_tokens"), list):  # transformers 5's word
        options |= {"extra_special_tokens": {}, "additional_special_tokens": marks}
    try:
        if named.get("tokenizer_class") == _NEWER:
            file = checkpoint.path / "tokenizer.json"
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
        else:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.path, **options)
    except Exception as error:  # whatever its many parts raise
        reason = str(error).strip().split("\n", 1)[0]
        raise ExportError(
            f"transformers can't load the tokenizer of {checkpoint.name}: {reason}"
        ) from error
    if not tokenizer.is_fast:
        raise ExportError(
            f"The tokenizer of {checkpoint.name} is Python code of its own and can't be written as "
            "tokenizer.json, which is what an ONNX folder is read with."
        )
    return tokenizer


def tokens(tokenizer: Any) -> list[str]:
    """The text of each id; gaps are called as GGUF files and the runtime call them."""
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    return [texts.get(number, f"[PAD{number}]") for number in range(max(texts, default=-1) + 1)]


def probe_ids(tokenizer: Any, rows: int) -> Ids:
    """The ids of every probe text, and of one made of its control tokens that have an embedding.

    rows: how many ids the model has embeddings for.
    """
    return {
        name: tokenizer(text, add_special_tokens=False).input_ids
        for name, text in _texts(tokenizer, rows).items()
    }


def save(checkpoint: Checkpoint, tokenizer: Any, folder: Path) -> None:
    """Write tokenizer, templates and configuration into `folder`, as the checkpoint has them."""
    if not (checkpoint.path / "tokenizer.json").is_file():
        own = folder / "tokenizer"
        tokenizer.save_pretrained(own)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (own / name).is_file():
                (own / name).replace(folder / name)
        shutil.rmtree(own)
    for name in FILES:
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)


def check(folder: Path, tokenizer: Any, rows: int, expected: Mapping[str, list[int]]) -> None:
    """Raises ExportError where the folder's tokenizer.json gives other ids for the same texts."""
    from tokenizers import Tokenizer

    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours.no_truncation()  # as the runtime reads it
    ours.no_padding()
    got = {
        name: ours.encode(text, add_special_tokens=False).ids
        for name, text in _texts(tokenizer, rows).items()
    }
    if where := differing_ids(expected, got):
        raise ExportError(
            f"The exported tokenizer.json gives other ids than the checkpoint's tokenizer: {where}."
        )


def unread(
    checkpoint: Outline, tokenizer: Any, ids: Mapping[str, list[int]], rows: int
) -> list[str]:
    """What to tell of tokens that the model has no embedding for; ids, rows: as of `probe_ids`.

    Raises ExportError where a usual text is written with one.
    """
    if any(token >= rows for text in ids.values() for token in text):
        raise ExportError(
            f"The tokenizer of {checkpoint.name} writes usual texts with tokens that the model has "
            "no embeddings for, so its files are of another model; download them again."
        )
    extra = len(tokens(tokenizer)) - rows
    if extra <= 0:
        return []
    return [
        f"its tokenizer has {extra} more tokens than the model has embeddings; the model can't "
        "read the last ones"
    ]


def _texts(tokenizer: Any, rows: int) -> dict[str, str]:
    added = tokenizer.added_tokens_encoder.items()
    control = [str(text) for text, token in added if token < rows]
    return {**PROBES, "control tokens": " and ".join(control[:12]) or "none"}
