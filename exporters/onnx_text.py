"""The text side of an exported folder: its tokenizer, its templates and the ids of the probes.

Invariant: the folder's tokenizer.json alone gives the ids of the checkpoint's own tokenizer.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Outline
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

_EVERY = "all control tokens"  # the text that is only tokenized
_OS_ERROR = re.compile(r" \(os error (\d+)\)")  # as Rust says it
_NEWER = "TokenizersBackend"  # how transformers 5 calls the class that needs tokenizer.json alone


@dataclass(frozen=True)
class Texts:
    """What `write` found out about a checkpoint's tokenizer.

    Attributes:
        tokens: the text of each id. ids: of every probe text; see `probe_ids`.
        notes: what the person should know of it.
    """

    tokens: list[str]
    ids: Ids
    notes: list[str]


def write(checkpoint: Outline, folder: Path, rows: int) -> Texts:
    """Write tokenizer, templates and configuration into `folder`, and check that tokenizer.

    rows: how many ids the model has embeddings for. Raises ExportError where it can't be written,
    or isn't of this model.
    """
    tokenizer = load(checkpoint)
    save(checkpoint, tokenizer, folder, rows)
    ids = probe_ids(tokenizer, rows)
    check(folder, tokenizer, rows, ids)
    return Texts(tokens(tokenizer), ids, unread(checkpoint, tokenizer, ids, rows))


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


def save(checkpoint: Outline, tokenizer: Any, folder: Path, rows: int) -> None:
    """Write tokenizer, templates and configuration into `folder`, as the checkpoint has them.

    A tokenizer.json that lacks tokens which other files add, as those of fine-tunes often do, is
    written anew with them. Raises ExportError, and OSError where the disk refuses it.
    """
    if not (checkpoint.path / "tokenizer.json").is_file():
        own = folder / "tokenizer"
        with _disk_errors(checkpoint.name, folder):
            tokenizer.save_pretrained(own)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (own / name).is_file():
                (own / name).replace(folder / name)
        shutil.rmtree(own)
    for name in FILES:
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)
    if _added(_written(folder), rows) != _added(tokenizer.backend_tokenizer, rows):
        with _disk_errors(checkpoint.name, folder):
            tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


@contextlib.contextmanager
def _disk_errors(name: str, folder: Path) -> Iterator[None]:
    """As what they are: tokenizers has one class for all of its errors, which is Exception."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0]
        if (told := _OS_ERROR.search(reason)) is not None:
            number = int(told[1])  # on Windows its own, where errno is told by it
            raise OSError(number, reason[: told.start()], str(folder), number) from error
        raise ExportError(f"The tokenizer of {name} can't be written: {reason}") from error


def _written(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _added(tokenizer: Any, rows: int) -> dict[int, str]:
    """The tokens that are found before a text is split, with their flags, by id."""
    found = tokenizer.get_added_tokens_decoder()
    return {number: repr(token) for number, token in found.items() if number < rows}


def check(folder: Path, tokenizer: Any, rows: int, expected: Mapping[str, list[int]]) -> None:
    """Raises ExportError where the folder's tokenizer.json gives other ids for the same texts.

    Every control token is looked at here, also those that no probe text holds.
    """
    ours = _written(folder)
    ours.no_truncation()  # as the runtime reads it
    ours.no_padding()
    every = " and ".join(_control(tokenizer, rows))
    texts = {**_texts(tokenizer, rows), _EVERY: every}
    got = {name: ours.encode(text, add_special_tokens=False).ids for name, text in texts.items()}
    wanted = {**expected, _EVERY: tokenizer(every, add_special_tokens=False).input_ids}
    if where := differing_ids(wanted, got):
        raise ExportError(
            f"The checkpoint's tokenizer.json gives other ids than transformers ({where}): load "
            "its tokenizer with AutoTokenizer, and write it anew with `save_pretrained(folder)`."
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
    control = _control(tokenizer, rows)
    return {**PROBES, "control tokens": " and ".join(control[:12]) or "none"}


def _control(tokenizer: Any, rows: int) -> list[str]:
    added = tokenizer.added_tokens_encoder.items()
    return [str(text) for text, token in added if token < rows]
