"""An answer's figures while it runs: counters and planner read off into frozen snapshots.

Invariant: a meter is used by the thread that answers alone, between rounds; what it gives away
never changes.
"""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.platform import memory
from edgespec.tui.messages import DrafterFigures, Figures, Origin, Piece

if TYPE_CHECKING:
    from edgespec.generation import Chunk
    from edgespec.metrics import Counters
    from edgespec.runtime import Runtime
    from edgespec.tokenizer import Tokenizer

RECENT_ROUNDS = 120
_RECENT_SECONDS = 1.0
_MEMORY_EVERY = 20  # snapshots


class Meter:
    """Reads one answer's figures."""

    def __init__(self, turn: int, runtime: Runtime) -> None:
        self._turn = turn
        self._runtime = runtime
        self._accepted: deque[int] = deque(maxlen=RECENT_ROUNDS)
        self._lengths: list[int] = [0]
        self._run = 0  # accepted tokens of the round that isn't over yet
        self._first = True
        self._marks: deque[tuple[float, int]] = deque()  # decode seconds and tokens, of late
        self._memory = memory.resident_memory()
        self._snapshots = 0

    def count(self, origins: Sequence[Origin]) -> None:
        """Take in tokens: a round ends with the one token in it that wasn't drafted."""
        for origin in origins:
            if self._first:
                self._first = False  # the prompt's own round, in which nothing can be drafted
            elif origin == "accepted":
                self._run += 1
            else:
                self._end_round(1)

    def figures(self, counters: Counters, *, rounds_over: bool = False) -> Figures:
        """The figures now; `rounds_over` counts a last round that the end of the text cut."""
        if rounds_over and self._run:
            self._end_round(0)
        runtime = self._runtime
        status = runtime.status()
        self._snapshots += 1
        if self._snapshots % _MEMORY_EVERY == 0 or rounds_over:
            self._memory = memory.resident_memory()
        return Figures(
            turn=self._turn,
            tokens=counters.tokens,
            rounds=counters.rounds,
            tokens_per_second=counters.tokens_per_second,
            recent_tokens_per_second=self._recent(counters),
            gain=status.gain if counters.drafted else None,
            ttft_seconds=counters.ttft_seconds,
            acceptance_rate=counters.acceptance_rate,
            mean_accepted_length=counters.mean_accepted_length,
            drafter=status.drafter,
            lookahead=status.lookahead,
            parked=status.parked,
            reason=status.reason,
            drafters=tuple(
                DrafterFigures(name, counts.rounds, counts.drafted, counts.accepted)
                for name, counts in counters.drafters.items()
            ),
            recent_accepted=tuple(self._accepted),
            lengths=tuple(self._lengths),
            context_used=runtime.context_used,
            context_size=runtime.context_size,
            memory_bytes=self._memory,
        )

    def _end_round(self, more: int) -> None:
        length = self._run + more
        self._lengths += [0] * (length + 1 - len(self._lengths))
        self._lengths[length] += 1
        self._accepted.append(self._run)
        self._run = 0

    def _recent(self, counters: Counters) -> float | None:
        """Tokens per second over about the last second of decoding."""
        now = counters.decode_seconds
        self._marks.append((now, counters.tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _RECENT_SECONDS:
            self._marks.popleft()
        then, tokens = self._marks[0]
        return (counters.tokens - tokens) / (now - then) if now > then else None


class Pieces:
    """Splits the text of chunks into that of their tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, chunk: Chunk) -> tuple[Piece, ...]:
        """A piece for each token; together they say what the chunk says."""
        texts = [self._decoder.decode(self._tokenizer.token_bytes(t)) for t in chunk.tokens]
        if "".join(texts) != chunk.text and texts:
            # A stop string cut it, or a character stayed incomplete: what is shown counts.
            self._decoder.reset()
            texts = _fit(texts, chunk.text)
        probs: list[float | None] = [math.exp(entry.logprob) for entry in chunk.logprobs]
        probs += [None] * (len(texts) - len(probs))
        return tuple(map(Piece, texts, chunk.origins, probs))


def _fit(texts: list[str], whole: str) -> list[str]:
    """As much of the texts as agrees with the whole, and the rest of it with the last."""
    fitted, at = [], 0
    for text in texts[:-1]:
        part = text if whole.startswith(text, at) else ""
        fitted.append(part)
        at += len(part)
    return [*fitted, whole[at:]]
