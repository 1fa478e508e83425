"""Models without weights: their logits are a pure function of the tokens in the cache.

A `FakeSession` really keeps a cache and computes every row from it, so a rollback that forgets too
much or too little changes what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.errors import ContextFull, ModelError, RollbackError
from edgespec.session import CancelFlag, Logits, Model, TokenIds


class FakeSession:
    """Logits (V,) of a position: a random row keyed by `seed` and the last `order` tokens.

    `noise` mixes in rows of another seed, which makes a drafter that agrees with its target more
    or less; `scale` sharpens the distributions; `seconds` is what a token takes.
    """

    def __init__(
        self,
        vocab_size: int = 16,
        *,
        seed: int = 0,
        order: int = 2,
        scale: float = 2.0,
        noise: float = 0.0,
        noise_seed: int = 999,
        context_size: int = 4096,
        can_rollback: bool = True,
        name: str = "fake",
        cancel: CancelFlag | None = None,
        bias: Mapping[int, float] | None = None,
        padding: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size + padding
        self.context_size = context_size
        self.can_rollback = can_rollback
        self.cache: list[int] = []
        self.passes: list[tuple[int, int]] = []  # (tokens fed, rows asked)
        self.closed = False
        self._given: Logits = np.empty((0, 0), np.float32)
        self.poison: float | None = None  # put into every row from now on
        self._seeds = (seed, noise_seed)
        self._order, self._scale, self._noise = order, scale, noise
        self._cancel = cancel or CancelFlag()
        self._bias = dict(bias or {})
        self._real = vocab_size
        self._seconds = seconds
        self._rows: dict[tuple[int, ...], Logits] = {}

    @property
    def length(self) -> int:
        return len(self.cache)

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        self._check_open()
        assert 1 <= num_logits <= len(tokens), (num_logits, len(tokens))
        if self.length + len(tokens) > self.context_size:
            raise ContextFull(f"{self.name} is full")
        self.passes.append((len(tokens), num_logits))
        self._given.fill(np.nan)  # who keeps rows over a pass must see what native memory shows
        start = self.length
        try:
            for token in tokens:
                self._cancel.raise_if_set()
                if not 0 <= token < self.vocab_size:
                    raise ModelError(f"{self.name} was given an id outside its vocabulary")
                self.cache.append(int(token))
                if self._seconds:
                    time.sleep(self._seconds)
        except BaseException:
            del self.cache[start:]
            raise
        rows = [self.row(self.cache[: self.length - i]) for i in range(num_logits)]
        self._given = np.stack(rows[::-1])
        return self._given  # (num_logits, V)

    def row(self, tokens: Sequence[int]) -> Logits:
        """The logits (V,) behind `tokens`."""
        key = tuple(tokens[-self._order :]) if self._order else ()
        if key not in self._rows:
            own, other = (
                np.random.default_rng((seed, len(key), *key)).normal(size=self._real)
                for seed in self._seeds
            )
            logits = self._scale * ((1 - self._noise) * own + self._noise * other)
            for token, bias in self._bias.items():
                logits[token] += bias
            padded = np.full(self.vocab_size, 50.0, np.float32)  # padding must never be looked at
            padded[: self._real] = logits
            self._rows[key] = padded
        row = self._rows[key]
        if self.poison is not None:
            row = row.copy()
            row[0] = self.poison
        return row

    def rollback(self, length: int) -> None:
        self._check_open()
        if not 0 <= length <= self.length:
            raise RollbackError(f"can't go from {self.length} to {length}")
        if length < self.length and length and not self.can_rollback:
            raise RollbackError("recurrent")
        del self.cache[length:]

    def close(self) -> None:
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise ModelError(f"{self.name} is closed")


class ByteTokenizer:
    """Ids 0 to 255 are bytes; the control tokens follow."""

    name = "bytes"
    bos_text, eos_text = "<s>", "<end>"
    suppressed_ids: frozenset[int] = frozenset()
    lstrip_tokens: frozenset[int] = frozenset()
    rstrip_tokens: frozenset[int] = frozenset()

    def __init__(self, *, add_bos: bool = False) -> None:
        self.control_tokens = {"<s>": 256, "<end>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
        self.bos_id: int | None = 256
        self.add_bos = add_bos
        self.stop_ids = frozenset({257, 259})
        self.num_tokens = 260

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def vocabulary(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [t.encode() for t in self.control_tokens]


class PieceTokenizer(ByteTokenizer):
    """Ids are whatever pieces of bytes a test needs; `stop` are ids that end a text."""

    def __init__(self, pieces: Sequence[bytes], stop: Sequence[int] = ()) -> None:
        super().__init__()
        self._pieces = list(pieces)
        self.num_tokens = len(pieces)
        self.control_tokens = {}
        self.stop_ids = frozenset(stop)
        self.bos_id = None

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        raise AssertionError("these pieces only decode")

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]

    def vocabulary(self) -> list[bytes]:
        return list(self._pieces)


class ScriptSession(FakeSession):
    """Always continues with the next token of a script, by position."""

    def __init__(self, script: Sequence[int], prompt_length: int, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._script = list(script)
        self._prompt_length = prompt_length

    def row(self, tokens: Sequence[int]) -> Logits:
        at = len(tokens) - self._prompt_length
        logits = np.zeros(self.vocab_size, np.float32)
        logits[self._script[at] if 0 <= at < len(self._script) else 0] = 20.0
        return logits


def fake_model(session: FakeSession, tokenizer: ByteTokenizer | None = None) -> Model:
    """A model around a fake session."""
    return Model(session.name, session, tokenizer or ByteTokenizer())
