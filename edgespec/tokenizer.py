"""Text to token ids and back.

Invariant: the pieces a `StreamingDetokenizer` gives concatenate to the decoding of all its tokens
at once, and no piece ends within a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Protocol

from edgespec.errors import IncompatiblePair


class Tokenizer(Protocol):
    """A model's vocabulary.

    Attributes:
        name: how messages call the model.
        num_tokens: ids from here on are padding and never come out.
        bos_id: the begin-of-sequence token, if there is one.
        add_bos: whether the model wants it in front of every text.
        bos_text, eos_text: how templates write those two.
        stop_ids: every id that ends a generation.
        suppressed_ids: ids that the model's maker lets come out of no generation.
        control_tokens: text -> id of the tokens that no user's text may produce.
        lstrip_tokens, rstrip_tokens: control tokens that swallow the white space beside them.
    """

    name: str
    num_tokens: int
    bos_id: int | None
    add_bos: bool
    bos_text: str
    eos_text: str
    stop_ids: frozenset[int]
    suppressed_ids: frozenset[int]
    control_tokens: Mapping[str, int]
    lstrip_tokens: frozenset[int]
    rstrip_tokens: frozenset[int]

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        """The ids of plain text: no control token is recognised, no BOS added.

        `at_start`: the prompt begins with it, before which some models read a space.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text; nothing for control tokens, save those that part it."""
        ...

    def vocabulary(self) -> list[bytes]:
        """Each id's entry as the model file writes it (num_tokens entries)."""
        ...


class StreamingDetokenizer:
    """Decodes tokens as they come, holding back only an incomplete UTF-8 tail."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that is certain now; bytes that can't be UTF-8 become U+FFFD."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What an incomplete tail comes to when nothing follows."""
        return self._decoder.decode(b"", final=True)


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """The text of all tokens at once."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "replace")


def check_same_tokens(target: Tokenizer, drafter: Tokenizer) -> None:
    """Raise `IncompatiblePair`, naming the first difference, unless ids mean the same text.

    One list may be longer: the rest are tokens the other model doesn't know, which the drafter
    can't propose or the target can't accept. Padding rows of the logits don't count.
    """
    ours, theirs = target.vocabulary(), drafter.vocabulary()
    for token, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            raise IncompatiblePair(
                f"{drafter.name} can't draft for {target.name}: token {token} is {_show(b)} there "
                f"and {_show(a)} here; choose a drafter of the same model family"
            )


def _show(entry: bytes) -> str:
    return repr(entry.decode("utf-8", "replace"))
