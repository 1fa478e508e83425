"""A checkpoint's vocabulary, as GGUF's lists of tokens, types, scores and merges.

Invariant: token i of the lists is token i of the checkpoint; there are as many as the embedding
has rows, no two alike, and ids without a token hold padding that is marked as unused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Outline
from edgespec.exporters.gguf_sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_sentencepiece,
)

UNREAD = "unread"  # the kind of a vocabulary that only another program understands

_SPACE = "\u2581"  # how SentencePiece writes a space
_ADDED_SCORE, _PADDING_SCORE = -1000.0, -10000.0
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")

# Some publishers leave their control tokens unmarked; what looks like one is one.
_LOOKS_LIKE_CONTROL = re.compile(
    r"<\|.*\|>|<｜.*｜>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.S
)

# What the fast tokenizers of these classes split by, where there is no tokenizer.json to say it.
_SPLITS = {
    "GPT2Tokenizer": None,
    "Qwen2Tokenizer": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@dataclass
class Vocabulary:
    """What a GGUF file says of its tokens.

    Attributes:
        kind: "gpt2" (byte-level BPE), "llama" (SentencePiece) or `UNREAD`.
        tokens, types, scores: by id; scores is None for "gpt2".
        merges: for "gpt2", the earlier the sooner.
        adds_space: for "llama": whether the model's own tokenizer puts a space before a text.
        json: tokenizer.json, or one of the same meaning; None where there is only tokenizer.model.
        added: texts of the tokens beside the trained vocabulary.
        notes: what the person should know.
    """

    kind: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None
    merges: list[str]
    adds_space: bool | None
    json: dict[str, Any] | None
    added: list[Mapping[str, Any]]
    notes: list[str]


def read_vocabulary(
    checkpoint: Outline, rows: int | None = None, *, padded: bool = True
) -> Vocabulary:
    """The vocabulary of a checkpoint whose embedding has `rows` rows (None: one for each token).

    padded: whether rows behind the last token get one; not where `rows` is only what a config says.
    Raises ExportError where it has none, or one of a kind that llama.cpp can't reproduce.
    """
    description = checkpoint.json("tokenizer.json") or _from_parts(checkpoint)
    if description is not None:  # what training left: texts are read whole, and as they are
        description = {**description, "truncation": None, "padding": None}
    spm_file = checkpoint.path / "tokenizer.model"
    if description is None and not spm_file.is_file():
        raise ExportError(
            f"{checkpoint.source} has neither tokenizer.json nor tokenizer.model, so it can't "
            "read or write text; add its tokenizer's files."
        )
    try:
        if description is not None and _byte_level(description):
            vocabulary = _byte_level_vocabulary(description)
        elif spm_file.is_file():
            vocabulary = _sentencepiece_vocabulary(checkpoint, description)
        else:
            assert description is not None
            vocabulary = _vocabulary_of_merges(checkpoint, description)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = (
            f"The tokenizer of {checkpoint.source} is damaged ({type(error).__name__}: {error})"
        )
        raise ExportError(f"{message}; download it again.") from error
    count = len(vocabulary.tokens)
    rows = count if rows is None else rows
    _fit(vocabulary, rows if padded else min(rows, count))
    _refuse_twins(checkpoint, vocabulary)
    return vocabulary


# ------------------------------------------------------------------------------------ each kind


def _byte_level(description: Mapping[str, Any]) -> bool:
    """Whether text becomes bytes in GPT-2's letters before it is merged."""
    stages = [description.get("pre_tokenizer") or {}]
    stages += stages[0].get("pretokenizers") or []
    return any(stage.get("type") == "ByteLevel" for stage in stages)


def _byte_level_vocabulary(description: dict[str, Any]) -> Vocabulary:
    model = _bpe(description)
    words = {int(number): text for text, number in model["vocab"].items()}
    added = _added(description)
    words |= {number: entry["content"] for number, entry in added.items()}
    tokens, types = _lists(words, added)
    merges = [entry if isinstance(entry, str) else " ".join(entry) for entry in model["merges"]]
    return Vocabulary(
        "gpt2", tokens, types, None, merges, None, description, list(added.values()), []
    )


def _sentencepiece_vocabulary(
    checkpoint: Outline, description: dict[str, Any] | None
) -> Vocabulary:
    model = read_sentencepiece(checkpoint.path / "tokenizer.model")
    if model.kind != "bpe":
        raise ExportError(
            f"{checkpoint.source} splits text by a {model.kind} model, which llama.cpp doesn't "
            "for this family."
        )
    tokens, scores, types = (list(column) for column in zip(*model.pieces, strict=True))
    for number, kind in enumerate(types):
        if kind == USER_DEFINED:  # as in _added_token
            tokens[number] = tokens[number].replace(_SPACE, " ")
    added = _added(description) if description else _added_by_config(checkpoint)
    for number, entry in sorted(added.items()):
        if number >= len(tokens):
            missing = range(len(tokens), number + 1)
            tokens += [f"[PAD{i}]" for i in missing]
            scores += [_PADDING_SCORE for _ in missing]
            types += [UNUSED for _ in missing]
        tokens[number], types[number] = _added_token(entry)
        scores[number] = _ADDED_SCORE
    return Vocabulary(
        "llama", tokens, types, scores, [], model.adds_space, description, list(added.values()), []
    )


def _vocabulary_of_merges(checkpoint: Outline, description: dict[str, Any]) -> Vocabulary:
    """SentencePiece's scores from the order of merges: a piece is as likely as it is made early."""
    model = _bpe(description)
    words = {int(number): text for text, number in model["vocab"].items()}
    if not any(_BYTE_PIECE.fullmatch(text) for text in words.values()):
        raise ExportError(
            f"{checkpoint.source} neither works on bytes nor falls back to them, so llama.cpp "
            "can't split text as its tokenizer does."
        )
    ranks: dict[str, int] = {}
    for entry in model["merges"]:
        pair = entry.split(" ") if isinstance(entry, str) else entry
        ranks.setdefault("".join(pair), len(ranks))
    added = _added(description)
    words |= {number: entry["content"] for number, entry in added.items()}
    tokens, types = _lists(words, added)
    unknown = model.get("unk_token")
    scores = []
    for number, text in enumerate(tokens):
        if types[number] == NORMAL and _BYTE_PIECE.fullmatch(text):
            types[number] = BYTE
        if text == unknown:
            types[number] = UNKNOWN
        usual = -float(ranks.get(text, len(ranks)))
        scores.append(usual if types[number] == NORMAL else _ADDED_SCORE)
    return Vocabulary(
        "llama", tokens, types, scores, [], True, description, list(added.values()), []
    )


def _bpe(description: Mapping[str, Any]) -> Mapping[str, Any]:
    model: Mapping[str, Any] = description["model"]
    if model["type"] != "BPE":
        raise ExportError(
            f"This checkpoint's tokenizer is of the kind {model['type']}, where llama.cpp has BPE "
            "and SentencePiece for this family."
        )
    return model


# ---------------------------------------------------------------------------------- added tokens


def _added(description: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {int(entry["id"]): entry for entry in description.get("added_tokens") or ()}


def _added_by_config(checkpoint: Outline) -> dict[int, Mapping[str, Any]]:
    """The same from the older files, where there is no tokenizer.json."""
    added: dict[int, Mapping[str, Any]] = {
        int(number): {"id": int(number), "content": text, "special": False}
        for text, number in checkpoint.json("added_tokens.json").items()
    }
    known = checkpoint.json("tokenizer_config.json").get("added_tokens_decoder") or {}
    added |= {int(number): {**entry, "id": int(number)} for number, entry in known.items()}
    return added


def _added_token(entry: Mapping[str, Any]) -> tuple[str, int]:
    """Its text and type as GGUF has them."""
    text = str(entry["content"])
    if entry.get("special") or _LOOKS_LIKE_CONTROL.fullmatch(text):
        return text, CONTROL
    # llama.cpp looks for these in the text before it writes spaces as SentencePiece does.
    return text.replace(_SPACE, " "), USER_DEFINED


def _lists(
    words: Mapping[int, str], added: Mapping[int, Mapping[str, Any]]
) -> tuple[list[str], list[int]]:
    tokens, types = [], []
    for number in range(max(words, default=-1) + 1):
        if number in added:
            text, kind = _added_token(added[number])
        elif number in words:
            text, kind = words[number], NORMAL
        else:
            text, kind = f"[PAD{number}]", UNUSED
        tokens.append(text)
        types.append(kind)
    return tokens, types


# ------------------------------------------------------------------------------------- the rest


def _fit(vocabulary: Vocabulary, rows: int) -> None:
    """As many tokens as the embedding has rows."""
    extra = len(vocabulary.tokens) - rows
    if extra > 0:
        vocabulary.notes.append(
            f"its tokenizer has {extra} more tokens than the model has embeddings; the last were "
            "left out, as the model can't read them"
        )
        del vocabulary.tokens[rows:], vocabulary.types[rows:]
        vocabulary.added = [entry for entry in vocabulary.added if int(entry["id"]) < rows]
    for number in range(len(vocabulary.tokens), rows):
        vocabulary.tokens.append(f"[PAD{number}]")
        vocabulary.types.append(UNUSED)
    if vocabulary.scores is not None:
        del vocabulary.scores[rows:]
        missing = rows - len(vocabulary.scores)
        vocabulary.scores += [_PADDING_SCORE] * missing


def _refuse_twins(checkpoint: Outline, vocabulary: Vocabulary) -> None:
    """llama.cpp ends the program over a vocabulary that holds a token twice."""
    seen: dict[str, int] = {}
    for number, text in enumerate(vocabulary.tokens):
        if not text or text in seen:
            if vocabulary.types[number] == UNUSED or not text:
                vocabulary.tokens[number] = text = f"[PAD{number}]"
                vocabulary.types[number] = UNUSED
            if text in seen:
                raise ExportError(
                    f"{checkpoint.source} has the token {text!r} twice, as {seen[text]} and "
                    f"{number}, which llama.cpp can't hold."
                )
        seen[text] = number


def _from_parts(checkpoint: Outline) -> dict[str, Any] | None:
    """A tokenizer.json of vocab.json and merges.txt, for the classes whose rule is known."""
    words, merges = checkpoint.json("vocab.json"), checkpoint.text("merges.txt")
    if not words or merges is None:
        return None
    named = str(checkpoint.json("tokenizer_config.json").get("tokenizer_class") or "")
    if not named and "GPT2LMHeadModel" in checkpoint.architectures:
        named = "GPT2Tokenizer"
    named = named.removesuffix("Fast")
    if named not in _SPLITS:
        raise ExportError(
            f"{checkpoint.source} has vocab.json and merges.txt and no tokenizer.json, and the "
            f"rule of its tokenizer ({named or 'of no name'}) isn't known; save it with "
            "transformers' fast tokenizer to get a tokenizer.json."
        )
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    added = _added_by_config(checkpoint)
    split = _SPLITS[named]
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": split is None,
    }  # fmt: skip
    stages: list[dict[str, Any]] = [byte_level]
    if split is not None:
        pattern = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated"}
        stages.insert(0, {**pattern, "invert": False})
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**flags, **added[number]} for number in sorted(added)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": json.loads(json.dumps({"type": "BPE", "vocab": words, "merges": lines})),
    }
