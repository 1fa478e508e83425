"""A conversation over a runtime: messages in turn.

Invariant: `messages` changes only when an answer ends, and then it holds what was shown. An answer
begins only where the conversation is still the one that its prompt was made of.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgespec.chat import Message
from edgespec.errors import ConfigError
from edgespec.generation import DEFAULT_MAX_TOKENS, Generation, Result
from edgespec.logprobs import LogprobsRequest
from edgespec.options import check_whole
from edgespec.planner import Planner
from edgespec.sampling import SamplingParams
from edgespec.tokenizer import StreamingDetokenizer, decode

if TYPE_CHECKING:
    from edgespec.runtime import Runtime


class Conversation:
    """Messages in turn. The cache keeps what the next turn's prompt has in common with this one.

    Answers may be asked for in one thread and taken in another. What is asked before the answer
    before it has ended raises ConfigError on its first chunk: its prompt lacks that answer.

    Attributes:
        system: the system prompt, or None.
        messages: what was said, without it.
    """

    def __init__(self, runtime: Runtime, system: str | None = None) -> None:
        self._runtime = runtime
        self.system = system
        self.messages: list[Message] = []
        self._last: Callable[[], Generation | None] = lambda: None
        self._state = object()  # another one whenever an answer joins, or all is forgotten
        self._changing = threading.RLock()

    def send(
        self,
        text: str,
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        logprobs: LogprobsRequest | None = None,
        planner: Planner | None = None,
    ) -> Generation:
        """Ask, and stream the answer; both join `messages` when the answer ends.

        An answer stopped before its first word, or one that failed, leaves `messages` as before.
        One that this thread began and left in the middle ends here, with what came. Where another
        thread's joins after this, or `clear` was called, the first chunk raises ConfigError.
        Where the context is too small for all of them, the oldest turns are left out of the
        prompt, and a note says so.

        Raises ContextFull where the question alone doesn't fit, TemplateError where the chat
        template refuses, and what `Runtime.generate` raises.
        """
        self._end_last()
        state, question = self._state, Message("user", text)

        def join(result: Result) -> None:
            self.messages += [question, Message("assistant", result.text, result.tokens)]

        return self._ask(
            state,
            [*self.messages, question],
            (),
            join,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            planner=planner,
        )

    def extend(
        self,
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        logprobs: LogprobsRequest | None = None,
        planner: Planner | None = None,
    ) -> Generation:
        """Go on with the last answer where it ended; what comes joins it when it ends, unless all
        was forgotten meanwhile.

        A character in which the answer ended is completed: it comes whole, and in `messages` takes
        the place of the U+FFFD that stood for it; `Generation.completes` tells whoever shows both.
        A stop string that began before isn't recognised, since its first part was shown already.

        Raises ConfigError where there is no answer yet, and as `send` does on the first chunk.
        """
        self._end_last()
        state, messages = self._state, list(self.messages)
        if not messages or messages[-1].role != "assistant":
            raise ConfigError("there is no answer to continue: ask something first")
        before, at = messages.pop(), len(messages)
        ids = self._ids(before)
        completes = self._unfinished(ids)
        said = before.content.removesuffix(completes)

        def join(result: Result) -> None:
            if self.messages[at:] == [before]:  # nobody wrote into `messages` meanwhile
                text, tokens = said + result.text, (*ids, *result.tokens)
                self.messages[at] = Message("assistant", text, tokens)

        generation = self._ask(
            state,
            messages,
            ids,
            join,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            planner=planner,
        )
        generation.completes = completes
        return generation

    def clear(self) -> None:
        """Forget every message but the system prompt; an answer that is under way never joins."""
        self._end_last()
        with self._changing:
            self.messages.clear()  # first: who reads the new state finds no old messages
            self._state = object()

    def _ask(
        self,
        state: object,
        messages: list[Message],
        begun: Sequence[int],
        join: Callable[[Result], None],
        sampling: SamplingParams | None,
        *,
        max_tokens: int | None,
        stop: Sequence[str],
        logprobs: LogprobsRequest | None,
        planner: Planner | None,
    ) -> Generation:
        """The answer to `messages`, which begins with the tokens `begun`; `join` enters it.

        `state` is the conversation's before `messages` were read.
        """

        def begin() -> None:
            if self._state is not state:
                raise ConfigError(
                    "this conversation went on after this answer was asked for: ask again"
                )

        def finish(result: Result) -> None:
            with self._changing:
                came = result.text and result.tokens  # an unfinished character is text of no token
                if self._state is state and (came or result.finish_reason != "cancelled"):
                    join(result)
                    self._state = object()

        if max_tokens is not None:
            check_whole("max_tokens", max_tokens)
        prompt, notes = self._fit(messages, max_tokens, begun)
        generation = self._runtime.generate(
            prompt,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            planner=planner,
            begun=len(begun),
            notes=notes,
            on_begin=begin,
            on_finish=finish,
        )
        self._last = weakref.ref(generation)
        return generation

    def _end_last(self) -> None:
        """End an answer that this thread left in the middle; another thread's is its own."""
        last = self._last()
        if last is not None and last.reader == threading.get_ident():
            last.close()

    def _ids(self, answer: Message) -> Sequence[int]:
        """Its own tokens where they are known: as words, some would read otherwise."""
        tokenizer = self._runtime.target.tokenizer
        known = all(0 <= token < tokenizer.num_tokens for token in answer.tokens)
        if answer.tokens and known and decode(tokenizer, answer.tokens) == answer.content:
            return answer.tokens
        return tokenizer.encode(answer.content)

    def _unfinished(self, tokens: Sequence[int]) -> str:
        """What stands at the end of their text for a character that they only begin."""
        stream = StreamingDetokenizer(self._runtime.target.tokenizer)
        for token in tokens:
            stream.add(token)
        return stream.finish()

    def _fit(
        self, messages: list[Message], max_tokens: int | None, begun: Sequence[int] = ()
    ) -> tuple[list[int], list[str]]:
        """The prompt with the newest turns, as far as they leave room for an answer.

        Where not all do, some more than must be are left out: the prompts of the next questions
        then begin with the same turns, which are in the cache.
        `begun` are tokens of an answer that goes on.
        """
        size = self._runtime.context_size
        room = size - min(size // 4, size if max_tokens is None else max_tokens)
        head = [Message("system", self.system)] if self.system else []

        def prompt(kept: int) -> list[int]:
            """With the question and the `kept` newest turns, two messages each, before it."""
            newest = messages[max(0, len(messages) - 1 - 2 * kept) :]
            return [*self._runtime.encode_messages([*head, *newest]), *begun]

        # Twice as many at each step, then between the last two: a thousand turns cost little more
        # than those that fit.
        turns = len(messages) // 2
        low, ids, high = 0, prompt(0), 1
        while low < turns and len(ids) <= room:
            more = prompt(min(high, turns))
            if len(more) > room:
                break
            low, ids, high = min(high, turns), more, 2 * high
        high = min(high, turns + 1)
        while high - low > 1:
            middle = (low + high) // 2
            more = prompt(middle)
            if len(more) <= room:
                low, ids = middle, more
            else:
                high = middle
        notes = []
        if dropped := turns - low:
            step = 1 << max(0, low.bit_length() - 2)  # a quarter to half of those that fit
            dropped = -(-dropped // step) * step
            ids = prompt(turns - dropped) if dropped > turns - low else ids
            notes.append(
                f"the context of {size} tokens is full, so the oldest {2 * dropped} messages "
                "were left out: clearing the conversation (/clear) starts afresh, a larger context "
                "(--ctx-size) makes room"
            )
        return ids, notes
