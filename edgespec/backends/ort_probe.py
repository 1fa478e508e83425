"""What a graph can do, asked of the graph itself when it is loaded.

A few passes over four tokens, and some that are taken back. Invariant: a graph that returns NaN is
refused, and one that can't check drafts (it returns the last row alone, ignores its past, or gives
something else for several tokens at once than one at a time) says why; such a one may still draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec.backends.ort_cache import MIN_HOLES, Cache, GrownCache
from edgespec.backends.ort_errors import lacks_memory, short_reason
from edgespec.backends.ort_feeds import Feeds
from edgespec.backends.ort_graph import Graph
from edgespec.backends.ort_memory import HostBlock
from edgespec.errors import ModelError, ModelFormatError, NumericalError
from edgespec.session import Logits, TokenIds
from edgespec.tokenizer import Tokenizer

SAME = 0.2
"""Rows that differ by less than this share of their spread are the same up to rounding.

Activations rounded to 8 bits (4-bit weights, accuracy level 4) give up to 0.06 in SmolLM2, since
each layer makes more of a difference in the last digit; a lost past gives about 1.
"""

_TRACE = 0.005
"""What a token that was taken back may leave behind, in the same measure: rounding of float16."""


@dataclass(frozen=True)
class Findings:
    """See `Model` for the first two.

    doubted: whether numbers are why it only drafts; these may be the device's fault, not the
    graph's.
    """

    only_drafts: str
    rounding: float = 0.0
    doubted: bool = False


class Probed(Protocol):
    """The session, as far as it is asked here."""

    name: str
    context_size: int
    can_rollback: bool
    cache: Cache
    only_last_row: bool

    def forward(self, tokens: Sequence[int], num_logits: int = 1) -> Logits: ...

    def rollback(self, length: int) -> None: ...


class RowShape(NamedTuple):
    """What a pass over two tokens returns, asked for the last row alone where it can be.

    rows: 1 or 2; width: numbers in a row, which is the vocabulary or, of a narrow head, a part.
    """

    rows: int
    width: int


def first_pass(name: str, native: Any, graph: Graph) -> RowShape:
    """Run two tokens. Raises ModelFormatError, ModelError."""
    binding = native.io_binding()
    nothing = HostBlock(0)
    cache = GrownCache(graph.cache, 2, "cpu", graph.integers.get("attention_mask", np.int64))
    binding.bind_output(graph.logits)  # the first bound is the first returned
    for tensor in graph.cache:
        nothing.bind_input(binding, tensor, 0)
        binding.bind_output(tensor.present)
    zeros = [HostBlock(state.nbytes) for state in graph.states]
    for state, block in zip(graph.states, zeros, strict=True):
        block.bind_input(binding, state, state.size)
        binding.bind_output(state.present)
    Feeds(binding, graph, cache.mask, 2, "cpu").bind(np.zeros(2, np.int64), cache, 1)
    try:
        native.run_with_iobinding(binding)
        shape = binding.get_outputs()[0].shape()
    except Exception as error:
        if lacks_memory(error):
            raise ModelError(
                f"there is no memory for a pass of {name} beside its weights: close other programs "
                "or choose a model of fewer bits"
            ) from error
        raise ModelError(f"{name} can't run two tokens: {short_reason(error, 300)}") from error
    if len(shape) != 3 or shape[0] != 1 or shape[1] not in (1, 2):
        raise ModelFormatError(f"{name} returns logits of the shape {list(shape)} for two tokens")
    return RowShape(shape[1], shape[2])


def examine(
    session: Probed, tokenizer: Tokenizer, columns: slice | TokenIds = slice(None)
) -> Findings:
    """Find out what the session can do, set it up for that, and leave it empty.

    `columns`: the tokens that its head has; the others' logits are -inf.
    """

    def forward(tokens: Sequence[int], num_logits: int = 1) -> Logits:
        return session.forward(tokens, num_logits)[:, columns].copy()

    tokens = _tokens(tokenizer)
    single = np.concatenate([forward([token]) for token in tokens])  # (4, N)
    if not np.isfinite(single).all():
        raise NumericalError(f"{session.name} returns NaN: its weights or its export are damaged")
    session.rollback(0)
    forward(tokens[-1:] * 3)
    if distance(forward(tokens[-1:]), single[-1:]) == 0:  # behind another text
        reason = "it ignores the text before the newest tokens: its graph doesn't use its cache"
        return _done(session, reason, doubted=True)
    if session.only_last_row:
        reason = "its graph returns the logits of the last position alone"
        return _done(session, reason, doubted=False)
    session.rollback(0)
    forward(tokens[:1])
    together = forward(tokens[1:], 3)
    if not np.isfinite(together).all():
        raise NumericalError(f"{session.name} returns NaN: its weights or its export are damaged")
    if (off := distance(together, single[1:])) > SAME:
        reason = f"a pass over three tokens gives something else than three passes ({off:.0%} off)"
        return _done(session, reason, doubted=True)
    if session.can_rollback:
        _examine_rollback(session, forward, tokens, max(_TRACE, min(3 * off, SAME)))
    session.rollback(0)
    return Findings("", float(np.abs(together - single[1:]).max()))


def _done(session: Probed, reason: str, *, doubted: bool) -> Findings:
    """A graph that can't be asked whether it hides what was taken back: no holes, then."""
    session.rollback(0)
    if isinstance(session.cache, GrownCache):
        session.cache.holes = False
    return Findings(reason, doubted=doubted)


def _examine_rollback(
    session: Probed, forward: Callable[..., Logits], tokens: list[int], rounding: float
) -> None:
    """See that what was taken back leaves no trace; where holes do, gaps are closed at once.

    What lies in a hole may change nothing at all. That there are holes moves sums to other places,
    which may change as much as `rounding`.
    """
    taken = max(2, min(MIN_HOLES, session.context_size - len(tokens)))

    def rows_behind(wrong: list[int]) -> Logits:
        """The last two rows of the text (2, N), after wrong tokens were taken out of its middle."""
        session.rollback(0)
        forward(tokens[:2])
        if wrong:
            forward((wrong * taken)[:taken])
            session.rollback(2)
        return forward(tokens[2:], 2)

    expected = rows_behind([])

    def leaves_a_trace() -> bool:
        one = rows_behind(tokens[:2])
        other = one if session.cache.in_place else rows_behind(tokens[2:])
        by_content, by_place = distance(one, other), distance(one, expected)
        # In place nothing has moved: another content would be no excuse either.
        if by_content <= _TRACE and by_place <= (_TRACE if session.cache.in_place else rounding):
            return False
        # A device may add in another order each time. (NaN is a trace.)
        return not max(by_content, by_place) <= 2 * distance(rows_behind([]), expected)

    if not leaves_a_trace():
        return
    if isinstance(session.cache, GrownCache):
        session.cache.holes = False
        if not leaves_a_trace():
            return
    session.can_rollback = False


def _tokens(tokenizer: Tokenizer) -> list[int]:
    """Four different ids, of plain text where the vocabulary allows."""
    ids = dict.fromkeys(tokenizer.encode("The quick brown fox, it jumps.")[:6])
    return [*ids, *(i for i in range(3, 9) if i not in ids)][:4]


def distance(a: Logits, b: Logits) -> float:
    """The root mean square of the difference, in standard deviations of a row."""
    spread = float(b.std(axis=-1).mean()) or 1.0
    return float(np.sqrt(np.mean((a - b) ** 2))) / spread
