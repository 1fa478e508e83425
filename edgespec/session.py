"""One model's forward pass over a KV cache, as the rest of edgespec sees it.

Invariant: a cache is addressed by absolute length. Whatever happens in a forward pass (an error,
an abort), `length` afterwards says how many tokens the cache truly holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from edgespec.errors import Cancelled

if TYPE_CHECKING:
    from edgespec.tokenizer import Tokenizer

Logits = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]


class Session(Protocol):
    """A model with its KV cache, on one device.

    Attributes:
        name: how messages call this model.
        length: tokens in the cache.
        context_size: tokens the cache can hold.
        vocab_size: logits in a row, padding included.
        can_rollback: whether any shorter length can be reached. A recurrent or hybrid model only
            reaches 0, so it can neither be speculated on nor draft.
    """

    name: str
    context_size: int
    vocab_size: int
    can_rollback: bool

    @property
    def length(self) -> int: ...

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        """Append `tokens` to the cache; return (num_logits, vocab_size) float32, last positions.

        The rows may be a view that the next call overwrites. Raises `Cancelled` when the cancel
        flag is set meanwhile, `ContextFull` when the cache would overflow, `ModelError` otherwise.
        """
        ...

    def rollback(self, length: int) -> None:
        """Forget everything from `length` on; raises `RollbackError` if the model can't."""
        ...

    def close(self) -> None:
        """Free the cache, from any thread; safe to call twice.

        A pass of another thread is stopped and waited for. In a signal handler that came into a
        pass, the cache is freed behind it, and the pass raises `ModelError`.
        """
        ...


class CancelFlag:
    """A flag that both Python and a native abort callback read.

    Two bytes in memory that stays put, the first 0 while running and 1 once set. As a C string
    their length is 0 or 1, so libc's own `strlen` serves as the callback: no interpreter in the
    middle of a matrix product.
    """

    def __init__(self) -> None:
        self._bytes = (ctypes.c_char * 2)()
        self._asked = False  # by the user, whatever `stopping` does meanwhile

    @property
    def address(self) -> int:
        return ctypes.addressof(self._bytes)

    def set(self) -> None:
        self._asked = True
        self._bytes[0] = b"\1"

    def clear(self) -> None:
        self._asked = False
        self._bytes[0] = b"\0"

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the pass that another thread is in; a flag that is set meanwhile stays set."""
        self.interrupt()
        try:
            yield
        finally:
            self.resume()

    def interrupt(self) -> None:
        """Stop the pass that is under way, until `resume`."""
        self._bytes[0] = b"\1"

    def resume(self) -> None:
        """Behind `interrupt`; a flag that was set stays so."""
        self._bytes[0] = b"\0"
        if self._asked:  # looked at after the reset, so that nothing is lost in between
            self._bytes[0] = b"\1"

    def is_set(self) -> bool:
        return bool(self._bytes[0] != b"\0")

    def raise_if_set(self) -> None:
        """Raise `Cancelled` if the flag is set."""
        if self.is_set():
            raise Cancelled("stopped")


class TokenBuffer:
    """A growing sequence of token ids with a numpy view, so that prefixes compare in microseconds.

    >>> ids = TokenBuffer([1, 2, 3])
    >>> ids.append(4)
    >>> ids.view[-2:]
    array([3, 4], dtype=int32)
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._data: TokenIds = np.fromiter(tokens, dtype=np.int32)
        self._length = len(self._data)

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> TokenIds:  # (length,)
        return self._data[: self._length]

    def append(self, token: int) -> None:
        self.extend((token,))

    def extend(self, tokens: Sequence[int] | TokenIds) -> None:
        end = self._length + len(tokens)
        if end > len(self._data):
            grown = np.empty(max(64, end, 2 * len(self._data)), dtype=np.int32)
            grown[: self._length] = self.view
            self._data = grown
        self._data[self._length : end] = tokens
        self._length = end

    def truncate(self, length: int) -> None:
        self._length = min(self._length, max(0, length))


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """How many tokens two sequences share from their start."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(np.argmax(differs)) if n else 0
    return n if n == 0 or not differs[first] else first


class CachedSession:
    """A session with the ids its cache holds, so that a caller can speak in whole sequences.

    Who uses the session behind its back must leave its cache empty: what is left there would be
    taken for these ids.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._ids = TokenBuffer()

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def length(self) -> int:
        return self.session.length

    @property
    def room(self) -> int:
        """How many tokens the cache can still take."""
        return self.session.context_size - self.session.length

    def align(self, tokens: TokenIds) -> None:
        """Keep of the cache what it has in common with `tokens`, less the newest of them.

        The newest is left out so that there is always something to feed, and a row to get.
        """
        self._ids.truncate(self.session.length)
        self.rollback(self.shared(tokens))

    def shared(self, tokens: TokenIds) -> int:
        """How much of `tokens` `align` would find in the cache."""
        keep = min(common_prefix(self._ids.view[: self.session.length], tokens), len(tokens) - 1)
        return keep if keep >= self.session.length or self.session.can_rollback else 0

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        """As `Session.forward`."""
        start = self.session.length
        try:
            return self.session.forward(tokens, num_logits)  # (num_logits, V)
        finally:
            self._ids.truncate(start)
            self._ids.extend(tokens[: max(0, self.session.length - start)])
            self._ids.truncate(self.session.length)

    def rollback(self, length: int) -> None:
        """As `Session.rollback`."""
        self.session.rollback(length)
        self._ids.truncate(self.session.length)

    def cut(self, length: int) -> None:
        """Forget everything from `length` on, where the model can.

        Where it can't, the cache keeps a token too many, and `align` sees whether that matters.
        """
        if length < self.session.length and self.session.can_rollback:
            self.rollback(length)


@dataclass
class Model:
    """What a backend gives for one model file: a session, its words, and what to tell the user.

    `only_drafts`: why it can't be a target, empty where it can. `rounding`: by how much its logits
    differ between a pass over several tokens and one at a time, where that was measured.
    """

    name: str
    session: Session
    tokenizer: Tokenizer
    template: str | None = None
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    only_drafts: str = ""
    rounding: float = 0.0

    def close(self) -> None:
        self.session.close()


def device_of(model: Model | None) -> str:
    """What a model runs on, to show, as in "CUDA" or "GPU (MTL0: Apple M3)"; "" if it isn't told.

    Every GPU is "GPU" to llama.cpp, which names it, and what it is used through, apart from that.
    """
    if model is None:
        return ""
    device, gpus = (str(model.details.get(key) or "") for key in ("device", "gpus"))
    return f"{device} ({gpus})" if gpus else device
