"""One answer as it streams: chunks of text, then a result.

Invariant: however it ends (on its own, cancelled, closed early or by an error), the runtime is free
again, the cache agrees with the tokens, and what was shown is what the result holds.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Self

from edgespec.decode import Round, decode
from edgespec.drafters import Drafter
from edgespec.errors import Busy, Cancelled, EdgespecError, ModelError
from edgespec.logprobs import LogprobsRequest, TokenLogprobs
from edgespec.metrics import Counters
from edgespec.native_use import call_holding
from edgespec.planner import Planner
from edgespec.sampling import Sampler, SamplingParams
from edgespec.session import CachedSession, CancelFlag, TokenBuffer
from edgespec.text import FinishReason, TextStream
from edgespec.tokenizer import Tokenizer
from edgespec.verify import Origin

DEFAULT_MAX_TOKENS = 1024
"""The longest answer where none is asked for; small models can go on forever."""


@dataclass(frozen=True)
class Chunk:
    """New text, and the tokens that made it with where each came from.

    A token whose text ends inside a character comes with the chunk that completes it; one that ends
    the answer never comes. `logprobs` has an entry for each token where they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Result:
    """A whole answer. `counters` has its figures: tokens per second, acceptance, by drafter.

    A token that ends the answer is in neither `text` nor `tokens`.
    `logprobs` has an entry for each token where they were asked for; `notes` are what went wrong on
    the way and changed no token.
    """

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason
    counters: Counters
    logprobs: tuple[TokenLogprobs, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Engine:
    """What one answer needs of a runtime; only one answer uses it at a time.

    An answer takes it and then looks at `closed`; the runtime sets `closed` and then looks who has
    it. So closing stops an answer, or the answer sees that it is too late. Whoever lets it go frees
    what was closed meanwhile.
    """

    target: CachedSession
    tokenizer: Tokenizer
    drafters: Mapping[str, Drafter]
    planner: Planner
    cancel: CancelFlag
    closed: bool = False
    on_idle: Callable[[], None] = lambda: None
    """Called when an answer has let it go."""
    _taken: dict[str, weakref.ref[Generation]] = field(default_factory=dict)

    @property
    def answer(self) -> weakref.ref[Generation] | None:
        """The answer that is under way; a dead reference where that one is being dropped."""
        return self._taken.get("answer")

    def take(self, answer: weakref.ref[Generation]) -> bool:
        """Whether nobody had it, so that it is this answer's now."""
        # In one step: no thread and no signal handler ever finds it taken by nobody.
        return self._taken.setdefault("answer", answer) is answer

    def let_go(self, answer: weakref.ref[Generation]) -> None:
        """Leave it to others, where this answer has it."""
        if self.answer is answer:
            del self._taken["answer"]


class Generation(Iterator[Chunk]):
    """Iterate it for `Chunk`s; afterwards `result` holds the whole.

    Nothing runs until the first chunk is asked for. `cancel` may be called from any thread: the
    iteration then ends within a fraction of a second with the finish reason "cancelled". One that
    is dropped in the middle is closed. One that met `Busy` hasn't begun, and may be tried again.

    Attributes:
        notes: sentences to read before it, as that turns were left out of the prompt; what goes
            wrong on the way is in `result.notes`.
        completes: the end of the text before it that its first text takes the place of: the U+FFFD
            of a character that an answer which goes on was cut in; else "".
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        logprobs: LogprobsRequest | None = None,
        planner: Planner,
        begun: int = 0,
        notes: Sequence[str] = (),
        on_begin: Callable[[], None] | None = None,
        on_finish: Callable[[Result], None] | None = None,
    ) -> None:
        self.notes = tuple(notes)
        self.completes = ""
        tokenizer = engine.tokenizer
        begins = prompt[len(prompt) - begun :]
        stream = TextStream(tokenizer, max_tokens=max_tokens, stop=stop, begun=begins)
        sampler = Sampler(
            sampling,
            tokenizer.num_tokens,
            prompt,
            ends=tokenizer.stop_ids,
            suppressed=tokenizer.suppressed_ids,
        )
        self._answer = _Answer(
            engine, prompt, stream, sampler, planner, logprobs, on_begin, on_finish
        )
        # It knows the answer but not this object: so dropping this closes it, at once.
        self._chunks = self._answer.run(weakref.ref(self))
        self._turn = threading.RLock()
        self.reader: int | None = None
        """The thread that took the last chunk; None before the first."""

    def __next__(self) -> Chunk:
        with self._turn:
            self.reader = threading.get_ident()
            try:
                return next(self._chunks)
            except EdgespecError:
                if not self._answer.begun:  # it may be tried again
                    self.reader = None
                    self._chunks = self._answer.run(weakref.ref(self))
                raise

    @property
    def counters(self) -> Counters:
        """Its figures so far."""
        return self._answer.counters

    @property
    def prompt_read(self) -> int:
        """How many of the prompt's tokens (`counters.prompt_tokens`) the target has read, those it
        had in its cache included: to be shown from another thread while the first chunk is awaited.
        """
        return self._answer.prompt_read

    @property
    def text(self) -> str:
        """What was given out so far."""
        return self._answer.text

    @property
    def result(self) -> Result:
        """The whole answer; runs to its end what hasn't run yet.

        Raises Cancelled for one that failed, or was closed before it began.
        """
        for _ in self:
            pass
        if self._answer.result is None:
            raise Cancelled("this answer failed, or was closed before it began: it has no result")
        return self._answer.result

    def cancel(self) -> None:
        """Stop soon, keeping what came; from any thread, at any time, any number of times.

        It stops in taking a chunk: where nobody takes one, `close` frees the runtime.
        """
        self._answer.cancel()

    def close(self) -> None:
        """Stop here: no further chunk comes, and what came is the result; from any thread.

        In a signal handler that came in the middle of a chunk, or of reading the vocabulary while
        another thread takes a chunk, it stops soon behind the handler.
        """
        self.cancel()
        if self._answer.cancelling:  # whoever runs it may be waiting for this thread
            return
        call_holding(self._turn, self._close_chunks)

    def _close_chunks(self) -> None:
        if inspect.getgeneratorstate(self._chunks) != inspect.GEN_RUNNING:
            self._chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Answer:
    """A generation's state and its run."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        stream: TextStream,
        sampler: Sampler,
        planner: Planner,
        request: LogprobsRequest | None,
        on_begin: Callable[[], None] | None,
        on_finish: Callable[[Result], None] | None,
    ) -> None:
        self.counters = Counters(prompt_tokens=len(prompt))
        self.result: Result | None = None
        self._engine = engine
        self._prompt = len(prompt)
        self._tokens = TokenBuffer(prompt)
        self._origins: list[Origin] = []
        self._request = request
        self._logprobs: list[TokenLogprobs] = []
        self._stream = stream
        self._sampler = sampler
        self._planner = planner
        self._failures: dict[str, str] = {}  # of drafters, in this answer
        self._texts: list[str] = []
        self._given = 0  # tokens handed out in chunks
        self._reason: FinishReason = "cancelled"  # until its text ends
        self.begun = False
        """Whether it had the runtime to itself, so that it can't be begun again."""
        self._on_begin = on_begin
        self._on_finish = on_finish
        self._cancelled = False
        self._running = False
        self._state = threading.RLock()  # a signal handler may cancel at any point
        self._cancelling: list[int] = []  # the threads that are in `cancel`

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def cancel(self) -> None:
        here = threading.get_ident()
        self._cancelling.append(here)  # before a lock is held: a handler must never miss it
        try:
            with self._state:
                self._cancelled = True
                if self._running:
                    self._engine.cancel.set()
        finally:
            self._cancelling.remove(here)

    @property
    def prompt_read(self) -> int:
        if self.counters.ttft_seconds is not None:
            return self._prompt
        return min(self._prompt, self._engine.target.length) if self._running else 0

    @property
    def cancelling(self) -> bool:
        """Whether this thread is in the middle of `cancel`, as a signal handler may find it."""
        return threading.get_ident() in self._cancelling

    def run(self, handle: weakref.ref[Generation]) -> Generator[Chunk, None, None]:
        """The answer's chunks; the engine is its own until they end, are closed or fail."""
        failed = False
        try:
            self._begin(handle)
            yield from self._chunks()
        except GeneratorExit:
            raise
        except BaseException:
            failed = True  # a failed answer is no answer
            raise
        finally:
            try:
                if not failed:
                    self._finish()  # before another answer can begin
            finally:
                try:
                    self._let_go(handle)
                except BaseException:  # Ctrl+C in the middle of it
                    self._let_go(handle)
                    raise
                finally:
                    self._engine.on_idle()

    def _begin(self, handle: weakref.ref[Generation]) -> None:
        """Take the engine. Raises Busy, or ModelError where it was closed."""
        engine = self._engine
        if not engine.take(handle):
            raise Busy(
                "this runtime is in the middle of another answer: let that one finish, close "
                "it, or open a second runtime"
            )
        if engine.closed:
            raise ModelError("this runtime is closed: open another")
        if self._on_begin is not None:
            self._on_begin()
        self.begun = True
        with self._state:
            engine.cancel.clear()
            self._running = True

    def _chunks(self) -> Iterator[Chunk]:
        """A chunk for each round that brought text, and for what was held back to the end."""
        began = perf_counter()
        try:
            for step in self._rounds():
                self._count(step, perf_counter() - began)
                if step.fed:  # else a drafter may still tell of an earlier answer
                    self._see_failures()
                self._origins += step.origins
                del self._origins[self._length :]
                self._logprobs += step.logprobs
                if step.finish_reason is not None:
                    self._reason = step.finish_reason
                    break
                if chunk := self._take():
                    yield chunk
        except Cancelled:
            pass
        self._stream.finish(self._reason)
        if chunk := self._take():
            yield chunk

    def _let_go(self, handle: weakref.ref[Generation]) -> None:
        """Leave the engine to others, where this answer has it; safe to call twice."""
        with self._state:
            self._running = False
            if self._engine.answer is handle:
                self._engine.cancel.clear()
        self._engine.let_go(handle)

    def _rounds(self) -> Iterator[Round]:
        engine = self._engine
        if self._cancelled:
            raise Cancelled("stopped before it began")
        for step in decode(
            engine.target,
            self._tokens,
            sampler=self._sampler,
            planner=self._planner,
            drafters=engine.drafters,
            cut=self._stream.cut,
            left=lambda: self._stream.left,
            logprobs=self._request,
        ):
            yield step
            if self._cancelled:
                raise Cancelled("stopped between rounds")

    @property
    def _length(self) -> int:
        """Tokens of the answer that stand."""
        return len(self._tokens) - self._prompt

    def _take(self) -> Chunk | None:
        text, count = self._stream.take()
        if not text and not count:
            return None
        begin, self._given = self._given, self._given + count
        ids = self._tokens.view[self._prompt :][begin : self._given]
        self._texts.append(text)
        origins = tuple(self._origins[begin : self._given])
        return Chunk(text, tuple(ids.tolist()), origins, tuple(self._logprobs[begin : self._given]))

    def _see_failures(self) -> None:
        for name, drafter in self._engine.drafters.items():
            if drafter.failed:
                self._failures[name] = drafter.failed

    def _count(self, step: Round, elapsed: float) -> None:
        counters = self.counters
        if counters.ttft_seconds is None:
            counters.ttft_seconds = elapsed if step.tokens else None
            counters.cached_tokens = counters.prompt_tokens - step.fed if step.fed else 0
        else:
            counters.rounds += step.fed > 0  # a context found full is no round
            counters.decode_seconds += step.total_seconds
            counters.draft_seconds += step.seconds.draft
            counters.check_seconds += step.seconds.check
            counters.sample_seconds += step.seconds.sample
            if step.drafted:
                counters.add_draft(
                    step.draft.drafter, step.drafted, step.accepted, rejected=step.rejected
                )
        counters.tokens = self._length
        counters.ended = step.finish_reason == "end"

    def _finish(self) -> None:
        # Closed early, tokens whose text was still held back are left out like the text.
        tokens = self._tokens.view[self._prompt :][: self._given].tolist()
        origins = tuple(self._origins[: self._given])
        logprobs = tuple(self._logprobs[: self._given])
        notes = tuple(
            f"{name} stopped drafting in this answer: {why}" for name, why in self._failures.items()
        )
        self.result = Result(
            self.text, tuple(tokens), origins, self._reason, self.counters, logprobs, notes
        )
        if self._on_finish is not None:
            self._on_finish(self.result)
