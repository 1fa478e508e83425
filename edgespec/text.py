"""The text of an answer as its tokens come: what may be shown, and where it ends.

Invariant: text that was released never changes or shrinks. So what could be the start of a stop
string is held back, and with it the tokens that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgespec.errors import ConfigError
from edgespec.options import check_whole
from edgespec.tokenizer import StreamingDetokenizer, Tokenizer

FinishReason = Literal["end", "stop", "length", "context", "cancelled"]
"""Why an answer ended: the model's own end-of-generation token, a stop string, the token limit, a
full context, or the caller."""


@dataclass(frozen=True)
class Cut:
    """Where a round's tokens are cut: `keep` of them stand, negative to take older ones back."""

    keep: int
    reason: FinishReason | None = None


class TextStream:
    """Turns committed tokens into text and says when the text is over.

    A round's tokens are examined one by one: end-of-generation first, then stop strings, then the
    limit.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        begun: Sequence[int] = (),
    ) -> None:
        """`begun`: tokens before, whose text is known; what they leave unfinished of a character is
        completed.
        """
        check_whole("max_tokens", max_tokens)
        if max_tokens < 0:
            raise ConfigError(f"max_tokens must be 0 or more, not {max_tokens}")
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if any(not text for text in stop):
            raise ConfigError("a stop string must not be empty")
        self._stop_ids = tokenizer.stop_ids
        self._detokenizer = StreamingDetokenizer(tokenizer)
        for token in begun:
            self._detokenizer.add(token)
        self._max_tokens = max_tokens
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._tail = ""  # decoded, not released
        self._released = 0  # characters given out by `take`
        self._starts: list[int] = []  # where each kept token's text starts
        self._taken = 0  # tokens given out by `take`
        self._finished = False

    @property
    def num_tokens(self) -> int:
        return len(self._starts)

    @property
    def left(self) -> int:
        """How many tokens the limit still allows."""
        return self._max_tokens - len(self._starts)

    def cut(self, tokens: Sequence[int]) -> Cut:
        """Take in a round's tokens; says how many stand and whether the text is over."""
        before = len(self._starts)
        reason = self._limit()
        for token in tokens:
            if reason is not None:
                break
            if token in self._stop_ids:
                reason = "end"
                break
            self._starts.append(self._released + len(self._tail))
            added = self._detokenizer.add(token)
            self._tail += added
            reason = self._stop_string(len(added)) or self._limit()
        if reason is not None:
            self.finish(reason)
        return Cut(len(self._starts) - before, reason)

    def finish(self, reason: FinishReason) -> None:
        """Nothing follows: an incomplete character shows as U+FFFD, held text is released."""
        if not self._finished and reason != "stop":
            self._tail += self._detokenizer.finish()
        self._finished = True

    def take(self) -> tuple[str, int]:
        """Text that is certain since the last call, and how many tokens it took."""
        certain = len(self._tail) if self._finished else len(self._tail) - self._held()
        text, self._tail = self._tail[:certain], self._tail[certain:]
        self._released += certain
        upto = self._taken
        while upto < len(self._starts) and (self._finished or self._starts[upto] < self._released):
            upto += 1
        count, self._taken = upto - self._taken, upto
        return text, count

    def _limit(self) -> FinishReason | None:
        return "length" if self.left <= 0 else None

    def _stop_string(self, added: int) -> FinishReason | None:
        """Cut text and tokens before the earliest stop string, if the newest text completes one."""
        first = max(0, len(self._tail) - added - self._longest + 1)
        found = [at for text in self._stop if (at := self._tail.find(text, first)) >= 0]
        if not found:
            return None
        self._tail = self._tail[: min(found)]
        end = self._released + len(self._tail)
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
        return "stop"

    def _held(self) -> int:
        """How long a suffix of the tail could still become a stop string."""
        return max(
            (
                n
                for text in self._stop
                for n in range(1, min(len(text), len(self._tail) + 1))
                if self._tail.endswith(text[:n])
            ),
            default=0,
        )
