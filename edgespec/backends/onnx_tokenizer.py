"""The vocabulary of an ONNX model's folder, through the `tokenizers` library.

Invariant: `encode` never yields a control or stop token, whatever the text says, and
`token_bytes` gives a token's bytes as they are, so that pieces join to the text they came from.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from edgespec.backends.onnx_folder import OnnxFolder
from edgespec.errors import ModelFormatError

# Control tokens that end an answer under these names, whatever the folder says: configurations
# often list the end of a text alone, and forget the end of a turn.
_ENDS = frozenset(
    (
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>",
        "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>",
        "<|endofturn|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "[EOT]", "</s>",
    )
)  # fmt: skip
# Beside these `<|end|>` ends the part of an answer with the thoughts (gpt-oss, Solar Open).
_PARTS = "<|end|>"
_WHOLE = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|calls|>", "<|flush|>")))
# Where an answer has such parts, these tell which is the answer; llama.cpp shows them too.
_SHOWN = frozenset(("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", _PARTS))
_TAG = "</s>"  # also a tag of HTML, which some vocabularies (Gemma's) list as plain text


class OnnxTokenizer:
    """See `Tokenizer`."""

    def __init__(self, folder: OnnxFolder, vocab_size: int) -> None:
        """`vocab_size`: numbers in a row of logits; ids beyond them can't come out.

        Raises ModelFormatError where a file of the folder is missing or damaged.
        """
        self.name = folder.name
        try:
            self._read(folder, vocab_size)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ModelFormatError(
                f"the tokenizer files of {self.name} are damaged ({type(error).__name__}: {error})"
            ) from error

    def _read(self, folder: OnnxFolder, vocab_size: int) -> None:
        written = folder.read("tokenizer.json")
        if not written:
            raise ModelFormatError(
                f"{self.name} has no tokenizer.json, so it can't read or write text: fetch the "
                "whole folder"
            )
        settings = folder.read("tokenizer_config.json")
        added = {entry["id"]: entry for entry in written.get("added_tokens") or ()}
        self.stop_ids = frozenset(_stop_ids(folder, settings, added))
        for token, entry in added.items():
            # What ends a text is a control token, however it is listed; control tokens are never
            # found in plain text (`encode_special_tokens`).
            entry["special"] = bool(entry.get("special")) or token in self.stop_ids
        self._added = {token: str(entry["content"]) for token, entry in added.items()}
        unfound = {token for token, entry in added.items() if entry["special"]} | self.stop_ids
        hidden = _hide(written, added, unfound)
        self._native = self._native_at_start = self._opened(written)
        if spaces := _spaces_at_start(written):
            for part in spaces:
                part["prepend_scheme"] = "never"
            self._native = self._opened(written)
            self._native_at_start.model = self._native.model  # one copy of the vocabulary
        entries = self._native.get_vocab(with_added_tokens=True)
        self._texts = {i: text for text, i in entries.items()} | hidden
        highest = max((i for i in self._texts if i < vocab_size), default=-1)
        if highest < 0 or any(i >= vocab_size and i not in added for i in self._texts):
            raise ModelFormatError(
                f"tokenizer.json of {self.name} is of another model: it has {len(self._texts)} "
                f"tokens and the graph {vocab_size}"
            )
        self.num_tokens = highest + 1
        suppressed = set(folder.read("generation_config.json").get("suppress_tokens") or ())
        self.suppressed_ids = frozenset(suppressed & set(range(highest + 1)) - self.stop_ids)
        special = {i for i, entry in added.items() if entry["special"] and i < vocab_size}
        self.control_tokens: Mapping[str, int] = {self._added[i]: i for i in sorted(special)}
        self.lstrip_tokens = frozenset(i for i in special if added[i].get("lstrip"))
        self.rstrip_tokens = frozenset(i for i in special if added[i].get("rstrip"))
        shown = _SHOWN if _has_parts(set(self._added.values())) else frozenset()
        self._unshown = {i for i in special if self._added[i] not in shown}
        self._byte_level, self._metaspace = _decoding(self.name, written)
        if self._metaspace:  # plain text among the added tokens, as Gemma's indentations
            self._added |= {
                i: text.replace("▁", " ") for i, text in self._added.items() if i not in special
            }
        self._byte_fallback = bool(written["model"].get("byte_fallback"))
        self.eos_text = _text(settings.get("eos_token"))
        self.bos_text = _text(settings.get("bos_token"))
        ids = self._native.encode("", add_special_tokens=True).ids
        named = {text: i for i, text in self._texts.items()}
        bos = named.get(self.bos_text) if self.bos_text else None
        self.bos_id = bos if bos is not None else ids[0] if len(ids) == 1 else None
        self.add_bos = self.bos_id is not None and ids[:1] == [self.bos_id]
        if isinstance(asked := settings.get("add_bos_token"), bool):
            self.add_bos = asked and self.bos_id is not None
        self.template = _template(folder, settings)
        self._pieces: dict[int, bytes] = {}

    def _opened(self, written: Mapping[str, Any]) -> Tokenizer:
        try:
            native = Tokenizer.from_str(json.dumps(written))
        except Exception as error:  # the library raises plain Exception
            raise ModelFormatError(f"tokenizer.json of {self.name} is damaged: {error}") from error
        native.encode_special_tokens = True
        native.no_truncation()
        native.no_padding()
        return native

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        clean = text.encode("utf-8", "replace").decode("utf-8")  # no lone surrogates
        native = self._native_at_start if at_start else self._native
        try:
            ids: list[int] = native.encode(clean, add_special_tokens=False).ids
        except Exception as error:  # the library raises plain Exception
            raise ModelFormatError(f"tokenizer.json of {self.name} is damaged: {error}") from error
        return ids

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def vocabulary(self) -> list[bytes]:
        """See `Tokenizer.vocabulary`; gaps are called as GGUF files call them."""
        names = self._texts | self._added
        return [names.get(i, f"[PAD{i}]").encode() for i in range(self.num_tokens)]

    def _piece(self, token: int) -> bytes:
        text = self._texts.get(token)
        if text is None or token in self._unshown:
            return b""
        if token in self._added:
            return bytes(self._added[token].encode())
        if self._byte_fallback and (byte := _fallback_byte(text)) is not None:
            return byte
        if self._byte_level:
            return b"".join(_BYTES[c] if c in _BYTES else c.encode() for c in text)
        return bytes(text.replace("▁", " ").encode() if self._metaspace else text.encode())


def _stop_ids(
    folder: OnnxFolder, settings: Mapping[str, Any], added: Mapping[int, Mapping[str, Any]]
) -> Iterator[int]:
    named: set[int] = set()
    for source in (folder.read("generation_config.json"), folder.genai, folder.config):
        ids = source.get("eos_token_id")
        named |= {i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int)}
    yield from named
    ends = _ENDS if named else _ENDS | {_text(settings.get("eos_token"))}
    texts = {entry["content"] for entry in added.values()}
    if _has_parts(texts):
        ends -= {_PARTS}
    for i, entry in added.items():
        tag = entry["content"] == _TAG and named and not entry.get("special")
        if entry["content"] in ends and not tag:
            yield i


def _has_parts(texts: set[str]) -> bool:
    """Whether answers come in parts that `_PARTS` ends, thoughts among them."""
    return any(whole <= texts for whole in _WHOLE)


def _hide(
    written: Mapping[str, Any], added: Mapping[int, dict[str, Any]], tokens: Collection[int]
) -> dict[int, str]:
    """Rename `tokens` where plain text would be searched for them; what they were called, by id.

    A Unigram model looks for all its entries. SentencePiece leaves control tokens out, for which
    tokenizer.json has no word, so they are called what nobody can have written.
    """
    entries = written["model"]["vocab"]
    texts: dict[int, str] = {}
    if isinstance(entries, list):  # a Unigram model's
        secret = secrets.token_hex()
        for token in tokens:
            if 0 <= token < len(entries):
                texts[token] = str(entries[token][0])
                entries[token][0] = f"{secret} {token}"
                if token in added:
                    added[token]["content"] = entries[token][0]
    return texts


def _spaces_at_start(written: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What puts a space before the text that begins a prompt, and before no other stretch of it."""
    whole = written.get("pre_tokenizer") or {}
    parts = whole.get("pretokenizers") or [whole]
    return [part for part in parts if part.get("prepend_scheme") == "first"]


def _template(folder: OnnxFolder, settings: Mapping[str, Any]) -> str | None:
    """From its own file, the tokenizer's settings, or the file that models with images have."""
    if (beside := folder.text("chat_template.jinja")) is not None:
        return beside
    for source in (settings, folder.read("chat_template.json")):
        template = source.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None


def _text(token: Any) -> str:
    """A token as a configuration writes it: a text, or an object with one."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _decoding(name: str, written: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether entries are bytes in GPT-2's letters, and whether ▁ is a space in them."""
    decoder = written.get("decoder") or {}
    parts = decoder.get("decoders") or [decoder]
    kinds = {part.get("type") for part in parts}
    replaced = any(part.get("pattern") == {"String": "▁"} for part in parts)
    if unknown := kinds - {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace"}:
        raise ModelFormatError(
            f"tokenizer.json of {name} decodes in a way edgespec doesn't know: "
            f"{', '.join(sorted(map(str, unknown)))}"
        )
    return "ByteLevel" in kinds, replaced or "Metaspace" in kinds


def _fallback_byte(text: str) -> bytes | None:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes.fromhex(text[3:5])
    return None


def _byte_letters() -> dict[str, bytes]:
    """The letter that stands for each byte in byte-level vocabularies (Radford et al. 2019).

    Printable Latin-1 stands for itself, the other bytes are numbered from U+0100 on.
    """
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in own)
    letters = {chr(byte): bytes([byte]) for byte in own}
    return letters | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES = _byte_letters()
