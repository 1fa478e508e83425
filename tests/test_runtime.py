"""Answers and conversations: what streams, what is kept, and who may use a runtime when."""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import ByteTokenizer, FakeSession, PieceTokenizer, ScriptSession, fake_model
from interrupting import Interrupted, at_each_bytecode, ctrl_c
from tiny_gguf import write_tiny

from edgespec import Runtime
from edgespec.bench.sides import RuntimeSide, Setting
from edgespec.chat import Message
from edgespec.conversation import Conversation
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import (
    Busy,
    Cancelled,
    ConfigError,
    ContextFull,
    EdgespecError,
    FetchError,
    HashMismatch,
    ModelError,
    NumericalError,
    RegistryError,
)
from edgespec.figures import as_json, summary
from edgespec.generation import Engine, Generation, Result, _Answer
from edgespec.metrics import Counters, DrafterCounts
from edgespec.native_use import NativeUse, call_holding
from edgespec.opening import find_files
from edgespec.planner import FixedPlanner, PlannerStatus
from edgespec.registry import ModelSpec, user_models_file
from edgespec.sampling import GREEDY, SamplingParams
from edgespec.session import CancelFlag, Model
from edgespec.tokenizer import decode

VOCAB = 260
WENT_ON = "this conversation went on after this answer was asked for: ask again"
CLOSED = "this runtime is closed: open another"
LETTERS = dict.fromkeys(range(97, 123), 20.0)  # so that text is text


def make(
    *,
    drafter: FakeSession | None = None,
    lookup: bool = False,
    lookahead: int = 3,
    seconds: float = 0.0,
    context_size: int = 4096,
    **options: object,
) -> Runtime:
    cancel = CancelFlag()
    target = FakeSession(
        VOCAB, bias=LETTERS, seconds=seconds, context_size=context_size, cancel=cancel, **options
    )  # type: ignore[arg-type]
    drafters = [LookupDrafter()] if lookup else []
    drafters += [ModelDrafter(fake_model(drafter))] if drafter else []  # type: ignore[list-item]
    planner = FixedPlanner([d.name for d in drafters], lookahead)
    return Runtime(fake_model(target), drafters, planner=planner, cancel=cancel)


def session(runtime: Runtime) -> FakeSession:
    found = runtime.target.session
    assert isinstance(found, FakeSession)
    return found


def script(text: str, prompt_length: int) -> ScriptSession:
    return ScriptSession([*text.encode(), 257], prompt_length, VOCAB)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.001)


# ------------------------------------------------------------------------------ one answer


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_chunks_make_up_the_result(noise: float) -> None:
    drafter = FakeSession(VOCAB, bias=LETTERS, noise=noise)
    runtime = make(drafter=drafter)
    generation = runtime.generate("hello", GREEDY, max_tokens=30)
    chunks = list(generation)
    result = generation.result
    assert "".join(chunk.text for chunk in chunks) == result.text == generation.text
    assert sum((chunk.tokens for chunk in chunks), ()) == result.tokens
    assert sum((chunk.origins for chunk in chunks), ()) == result.origins
    assert decode(runtime.target.tokenizer, result.tokens) == result.text
    assert (len(result.tokens), result.finish_reason) == (30, "length")
    assert result.origins[0] == "plain"
    assert result.origins.count("accepted") + result.counters.rounds == 29
    assert ("recovered" in result.origins) == (noise > 0)
    counters = result.counters
    assert (counters.prompt_tokens, counters.tokens, counters.cached_tokens) == (5, 30, 0)
    assert counters.mean_accepted_length == 29 / counters.rounds
    assert make().generate("hello", GREEDY, max_tokens=30).result.text == result.text


@pytest.mark.parametrize("limit", range(1, 12))
def test_no_draft_goes_beyond_the_limit(limit: int) -> None:
    runtime = make(drafter=FakeSession(VOCAB, bias=LETTERS))
    result = runtime.generate("hello", GREEDY, max_tokens=limit).result
    counters = result.counters
    assert len(result.tokens) == limit
    assert (counters.drafted > 0) == (limit >= 3)
    assert counters.drafted == counters.accepted == limit - 1 - counters.rounds


def test_a_result_can_be_had_without_iterating() -> None:
    runtime = make()
    generation = runtime.generate("hello", GREEDY, max_tokens=5)
    first = next(generation)
    assert generation.result.text.startswith(first.text)
    assert generation.result is generation.result
    assert list(generation) == []


def test_every_way_an_answer_ends() -> None:
    prompt = list(b"abc")
    for options, text, reason in (
        ({"max_tokens": 50}, "one two", "end"),
        ({"max_tokens": 50, "stop": [" t"]}, "one", "stop"),
        ({"max_tokens": 2}, "on", "length"),
        ({"max_tokens": 0}, "", "length"),
        ({"max_tokens": 1}, "o", "length"),
    ):
        runtime = Runtime(fake_model(script("one two", 3)), planner=FixedPlanner((), 0))
        result = runtime.generate(prompt, GREEDY, **options).result  # type: ignore[arg-type]
        assert (result.text, result.finish_reason) == (text, reason)
        if (
            result.counters.rounds and reason != "stop"
        ):  # what is cut off has its rounds all the same
            assert result.counters.mean_accepted_length == 1  # a round's end token counts too
    runtime = make(context_size=10)
    result = runtime.generate("hello", GREEDY, max_tokens=None).result
    assert (len(result.tokens), result.finish_reason) == (6, "context")


def test_what_cant_be_asked() -> None:
    runtime = make(context_size=8)
    with pytest.raises(ConfigError, match="empty"):
        runtime.generate("")
    with pytest.raises(ContextFull, match="9 tokens"):
        runtime.generate("123456789")
    for token in (-1, VOCAB, 2**40):
        with pytest.raises(ConfigError, match="vocabulary"):
            runtime.generate([97, token])
    with pytest.raises(ConfigError):
        runtime.generate("a", max_tokens=-1)
    assert runtime.generate("12345678", GREEDY).result.finish_reason == "context"


def test_a_prompt_of_plain_text_has_the_bos_a_model_wants() -> None:
    for add in (True, False):
        runtime = Runtime(fake_model(FakeSession(VOCAB), ByteTokenizer(add_bos=add)))
        assert runtime.generate("<s>", GREEDY, max_tokens=1).counters.prompt_tokens == 3 + add


def test_a_seed_gives_the_same_text_whatever_drafts() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    texts = {
        runtime.generate("hello", params, max_tokens=30).result.text
        for runtime in (
            make(),
            make(lookup=True),
            make(drafter=FakeSession(VOCAB, bias=LETTERS, noise=0.2), lookahead=5),
        )
    }
    assert len(texts) == 1


# ------------------------------------------------------------------------------ stopping


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(seed=3), SamplingParams(temperature=2, top_k=0, logit_bias={98: 99})],
)
def test_what_the_models_maker_suppresses_is_neither_drafted_nor_chosen(
    sampling: SamplingParams,
) -> None:
    runtime = make(drafter=FakeSession(VOCAB, bias=LETTERS))
    suppressed = frozenset(range(97, 120))
    runtime.target.tokenizer.suppressed_ids = suppressed
    result = runtime.generate("hello", sampling, max_tokens=60).result
    assert result.tokens and not suppressed & set(result.tokens)
    assert result.counters.drafted == result.counters.accepted > 20  # the drafter knows too


def test_cancelled_before_it_begins() -> None:
    runtime = make()
    generation = runtime.generate("hello", GREEDY)
    generation.cancel()
    assert list(generation) == []
    assert (generation.result.text, generation.result.finish_reason) == ("", "cancelled")
    assert session(runtime).passes == []
    assert len(runtime.generate("hello", GREEDY, max_tokens=3).result.tokens) == 3


def test_another_thread_sees_how_far_a_prompt_is_read() -> None:
    runtime = make(seconds=0.002)
    generation = runtime.generate("x" * 500, GREEDY, max_tokens=1)
    assert generation.prompt_read == 0
    reader = in_thread(lambda: list(generation))
    wait_for(lambda: 0 < generation.prompt_read < 500)
    reader.join(20)
    assert generation.prompt_read == generation.counters.prompt_tokens == 500


def test_cancelled_in_the_middle_of_the_prompt() -> None:
    runtime = make(seconds=0.002)
    generation = runtime.generate("x" * 4000, GREEDY)
    stopper = in_thread(lambda: (wait_for(lambda: session(runtime).length > 3), runtime.cancel()))
    began = time.monotonic()
    assert generation.result.finish_reason == "cancelled"
    assert time.monotonic() - began < 4  # the whole prompt takes 8 seconds
    stopper.join()
    assert session(runtime).length == 0
    assert runtime.generate("hello", GREEDY, max_tokens=3).result.finish_reason == "length"


def test_cancelled_between_rounds_from_another_thread() -> None:
    runtime = make(seconds=0.001)
    generation = runtime.generate("hello", GREEDY, max_tokens=3000)
    texts: list[str] = []
    reader = in_thread(lambda: texts.extend(chunk.text for chunk in generation))
    wait_for(lambda: len(texts) > 5 or generation.text.count("") > 6)
    generation.cancel()
    generation.cancel()
    reader.join(20)
    result = generation.result
    assert result.finish_reason == "cancelled"
    assert 5 <= len(result.tokens) < 3000
    assert result.text == "".join(texts)
    expected = make().generate("hello", GREEDY, max_tokens=len(result.tokens)).result
    assert result.tokens == expected.tokens
    again = runtime.generate([*b"hello", *result.tokens], GREEDY, max_tokens=5).result
    assert again.counters.cached_tokens >= 5 + len(result.tokens) - 1
    whole = make().generate("hello", GREEDY, max_tokens=len(result.tokens) + 5).result
    assert (*result.tokens, *again.tokens) == whole.tokens


def test_cancelling_a_runtime_stops_the_answer_that_runs() -> None:
    runtime = make(seconds=0.001)
    running = runtime.generate("hello", GREEDY, max_tokens=3000)
    next(running)
    waiting = runtime.generate("other", GREEDY, max_tokens=3)
    runtime.cancel()
    assert running.result.finish_reason == "cancelled"
    assert waiting.result.finish_reason == "length"
    runtime.cancel()  # nothing runs: nothing happens
    assert runtime.generate("again", GREEDY, max_tokens=3).result.finish_reason == "length"


def test_a_second_answer_at_the_same_time_is_refused() -> None:
    runtime = make(seconds=0.001)
    first = runtime.generate("hello", GREEDY, max_tokens=40)
    next(first)
    caught: list[BaseException] = []

    def second() -> None:
        try:
            next(runtime.generate("other", GREEDY))
        except Busy as error:
            caught.append(error)

    in_thread(second).join(20)
    assert len(caught) == 1 and "close it" in str(caught[0])
    assert first.result.tokens == make().generate("hello", GREEDY, max_tokens=40).result.tokens
    assert runtime.generate("other", GREEDY, max_tokens=2).result.finish_reason == "length"


def test_an_answer_that_was_refused_may_be_tried_again() -> None:
    runtime = make()
    chat = runtime.conversation()
    first = runtime.generate("hello", GREEDY, max_tokens=40)
    next(first)
    second = chat.send("other", GREEDY, max_tokens=9)
    for _ in range(2):
        with pytest.raises(Busy):
            next(second)
    with pytest.raises(Busy):
        _ = second.result
    assert second.reader is None
    first.cancel()  # which nobody takes notice of
    with pytest.raises(Busy, match="close it"):
        list(second)
    first.close()
    assert len(second.result.tokens) == 9
    assert history(chat) == [("user", "other"), ("assistant", second.text)]
    runtime.close()
    assert list(second) == []


def test_an_abandoned_answer_frees_the_runtime() -> None:
    runtime = make()
    for _ in runtime.generate("hello", GREEDY, max_tokens=40):
        break
    assert runtime.generate("other", GREEDY, max_tokens=2).result.finish_reason == "length"
    with runtime.generate("hello", GREEDY, max_tokens=40) as generation:
        shown = next(generation).text
    result = generation.result
    assert (result.text, result.finish_reason) == (shown, "cancelled")
    assert decode(runtime.target.tokenizer, result.tokens) == shown
    assert list(generation) == []
    never = runtime.generate("hello", GREEDY)
    never.close()
    with pytest.raises(Cancelled):
        _ = never.result


def test_what_was_held_back_is_no_part_of_an_answer_closed_early() -> None:
    """One round brings `b ST`: the first two are shown, the others could begin a stop string."""
    drafter = ModelDrafter(fake_model(script("ab STORY", 1)))
    runtime = Runtime(fake_model(script("ab STORY", 1)), [drafter])
    runtime._engine.planner = FixedPlanner(["model"], 3)
    generation = runtime.generate("x", GREEDY, stop=["STOP"])
    assert [next(generation).text, next(generation).text] == ["a", "b "]
    assert session(runtime).length > len("xab ")  # more stands than was shown
    generation.close()
    assert generation.result.text == "ab "
    assert bytes(generation.result.tokens) == b"ab "
    assert len(generation.result.origins) == 3


def test_a_failed_answer_frees_the_runtime_and_is_no_answer() -> None:
    runtime = make()
    chat = runtime.conversation()
    generation = chat.send("hello", GREEDY, max_tokens=40)
    next(generation)
    session(runtime).poison = float("nan")
    with pytest.raises(NumericalError):
        list(generation)
    with pytest.raises(Cancelled, match="failed"):
        _ = generation.result
    assert chat.messages == []
    session(runtime).poison = None
    assert chat.send("hello", GREEDY, max_tokens=5).result.finish_reason == "length"
    assert len(chat.messages) == 2


# ------------------------------------------------------------------------------ closing


def test_two_drafters_of_one_name_are_refused() -> None:
    drafters = [ModelDrafter(fake_model(FakeSession(VOCAB))) for _ in range(2)]
    with pytest.raises(ConfigError, match="two drafters have the same name"):
        Runtime(fake_model(FakeSession(VOCAB)), drafters)


def test_models_that_cant_work_together_are_refused() -> None:
    class Other(ByteTokenizer):
        def vocabulary(self) -> list[bytes]:
            return [bytes([255 - i]) for i in range(256)]

    narrow = fake_model(FakeSession(VOCAB, name="narrow"))
    narrow.only_drafts = "its head holds a part of its vocabulary"
    with pytest.raises(ConfigError, match="narrow can only draft, since its head"):
        Runtime(narrow)
    for small, wrong in (
        (fake_model(FakeSession(VOCAB), Other()), "can't draft for"),
        (fake_model(FakeSession(VOCAB, can_rollback=False)), "can't take back a guess"),
    ):
        with pytest.raises(ModelError, match=wrong):
            Runtime(fake_model(FakeSession(VOCAB)), [ModelDrafter(small)])


def test_what_fails_to_close_keeps_nothing_else() -> None:
    class Stuck(LookupDrafter):
        name = "stuck"

        def close(self) -> None:
            raise OSError("gone")

    small = FakeSession(VOCAB)
    drafters = [Stuck(), ModelDrafter(fake_model(small))]
    runtime = Runtime(fake_model(FakeSession(VOCAB)), drafters)
    with pytest.raises(OSError, match="gone"):
        runtime.close()
    assert small.closed and session(runtime).closed


def test_closing() -> None:
    drafter = FakeSession(VOCAB)
    with make(drafter=drafter) as runtime:
        late = runtime.generate("hello", GREEDY)
        chat = runtime.conversation()
    assert session(runtime).closed and drafter.closed
    runtime.close()
    for use in (lambda: runtime.generate("a"), lambda: chat.send("a"), lambda: next(late)):
        with pytest.raises(ModelError, match="this runtime is closed"):
            use()


def test_closing_with_an_answer_in_the_middle() -> None:
    runtime = make()
    generation = runtime.generate("hello", GREEDY, max_tokens=40)
    next(generation)
    closer = in_thread(runtime.close)
    closer.join(20)
    assert not closer.is_alive()
    assert list(generation) == []
    assert generation.result.finish_reason == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="sends itself a POSIX signal")
@pytest.mark.parametrize("at", ["chunk", "end"])
def test_closing_in_a_signal_handler(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an answer of the same thread: it ends as if cancelled, and all is freed."""
    runtime = make(drafter=(drafter := FakeSession(VOCAB, bias=LETTERS)))
    target = session(runtime)
    forward, calls = target.forward, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(len(calls))
        if len(calls) == 4:
            signal.raise_signal(signal.SIGUSR1)
        return forward(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "forward", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: runtime.close())
    try:
        if at == "chunk":
            generation = runtime.generate("hello", GREEDY, max_tokens=40)
        else:
            generation = runtime.generate(
                "hello", GREEDY, max_tokens=3,
                on_finish=lambda _: signal.raise_signal(signal.SIGUSR1),
            )  # fmt: skip
        result = generation.result
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result.finish_reason == ("cancelled" if at == "chunk" else "length")
    assert target.closed and drafter.closed
    with pytest.raises(ModelError, match="this runtime is closed"):
        runtime.generate("a")


CLOSING = (Runtime.close, Runtime._free_idle, Runtime._free, call_holding)


def answered(runtime: Runtime) -> None:
    list(runtime.generate("a", GREEDY, max_tokens=2))


def left_in_the_middle(runtime: Runtime) -> None:
    next(runtime.generate("a", GREEDY, max_tokens=9), None)


def closed_in_the_middle(runtime: Runtime) -> None:
    generation = runtime.generate("a", GREEDY, max_tokens=9)
    next(generation, None)
    generation.close()


def closed_by_another_thread(runtime: Runtime) -> None:
    generation = runtime.generate("a", GREEDY, max_tokens=9)
    in_thread(lambda: next(generation, None)).join(20)
    generation.close()


def closed_with_its_runtime(runtime: Runtime) -> None:
    generation = runtime.generate("a", GREEDY, max_tokens=9)
    next(generation, None)
    runtime.close()


def cancelled_by_another_thread(runtime: Runtime) -> None:
    generation = runtime.generate("a", GREEDY, max_tokens=None)  # however late it is cancelled
    reader = in_thread(lambda: list(generation))
    assert runtime.passed.wait(20)  # type: ignore[attr-defined]
    generation.cancel()
    reader.join(20)
    assert generation.result.finish_reason == "cancelled"


def refused(runtime: Runtime) -> None:
    generation = runtime.generate("a", GREEDY, max_tokens=9)
    next(generation, None)
    with pytest.raises(Busy):
        next(runtime.generate("a", GREEDY), None)


@pytest.mark.parametrize(
    "use",
    [
        *(answered, left_in_the_middle, closed_in_the_middle, closed_by_another_thread),
        *(closed_with_its_runtime, refused, cancelled_by_another_thread),
    ],
)
def test_closing_in_a_signal_handler_at_any_bytecode(
    use: Callable[[Runtime], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "_chat_template", lambda _: None)  # takes most of the time

    def run(interrupted: Interrupted) -> None:
        finished: list[int] = []
        says = ""
        model = fake_model(FakeSession(VOCAB, bias=LETTERS, context_size=2**30))
        runtime = Runtime(model, on_close=lambda: finished.append(1))
        target = session(runtime)
        forward = target.forward

        def open_at_every_pass(*args: Any) -> Any:
            rows = forward(*args)
            target._check_open()
            runtime.passed.set()  # type: ignore[attr-defined]
            return rows

        target.forward = open_at_every_pass  # type: ignore[method-assign]
        runtime.passed = threading.Event()  # type: ignore[attr-defined]
        interrupted(runtime.close)
        try:
            use(runtime)
        except ModelError as error:
            says = str(error)
        sys.settrace(None)
        runtime.close()
        assert target.closed and finished == [1] and says in ("", CLOSED)

    where = (Generation.__next__, Generation.cancel, Engine.take, Engine.let_go)
    answer = (_Answer.run, _Answer.cancel, _Answer._let_go, _Answer._finish)
    left = (Generation.close, Generation._close_chunks)
    assert at_each_bytecode(run, *where, *answer, *left, *CLOSING) > 50


def test_ctrl_c_at_any_point_of_an_answer_leaves_the_runtime_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Runtime, "_chat_template", lambda _: None)

    def run(interrupted: Interrupted) -> None:
        runtime = Runtime(fake_model(FakeSession(VOCAB, bias=LETTERS)))
        try:
            interrupted(ctrl_c)
            answered(runtime)
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        answered(runtime)
        runtime.close()
        assert session(runtime).closed

    engine = (Engine.take, Engine.let_go, Engine.answer.fget)  # type: ignore[attr-defined]
    answer = (Generation.__next__, _Answer.run, _Answer._let_go)
    assert at_each_bytecode(run, *engine, *answer, raises=True) > 20


def test_ctrl_c_at_any_point_of_closing_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Runtime, "_chat_template", lambda _: None)

    def run(interrupted: Interrupted) -> None:
        kept: list[int] = []
        drafter = FakeSession(VOCAB)
        runtime = Runtime(
            fake_model(FakeSession(VOCAB)),
            [ModelDrafter(fake_model(drafter))],
            on_close=lambda: kept.append(1),
        )
        try:
            interrupted(ctrl_c)
            runtime.close()
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        closer = in_thread(runtime.close)
        closer.join(20)
        assert not closer.is_alive() and len(kept) <= 1
        assert session(runtime).closed and drafter.closed

    assert at_each_bytecode(run, *CLOSING, raises=True) > 5


class NativeWords(ByteTokenizer):
    """Encodes in a block of native memory, as llama.cpp's vocabulary; `handler` comes into it."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []
        self.waited_for = threading.Event()  # set once another thread waits for a block
        self.handler: Callable[[], object] = lambda: None
        self.use = NativeUse(
            "words", lambda: self.freed.append(1), shared=True, stopping=self._waiting
        )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waited_for.set()
        yield

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        with self.use():
            self.handler()
            return super().encode(text, at_start=at_start)


@pytest.mark.parametrize("other", ["closes", "answers"])
def test_closing_in_a_handler_while_another_thread_waits_for_what_it_interrupted(
    other: str,
) -> None:
    words, cancel = NativeWords(), CancelFlag()
    target = FakeSession(VOCAB, cancel=cancel)
    runtime = Runtime(fake_model(target, words), cancel=cancel)
    computing, cancelled = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def forward(*_: object) -> None:
        computing.set()
        assert cancelled.wait(20)
        cancel.raise_if_set()

    target.close = words.use.close  # type: ignore[method-assign]
    target.forward = forward  # type: ignore[assignment, method-assign]
    cancel.set = lambda: (CancelFlag.set(cancel), cancelled.set())  # type: ignore[assignment]

    def handler() -> None:
        if other == "closes":
            threads.append(in_thread(runtime.close))
        else:
            generation = runtime.generate([97], GREEDY)
            threads.append(in_thread(lambda: list(generation)))
            assert computing.wait(20)
            runtime.close()
        assert words.waited_for.wait(20)
        runtime.close()

    words.handler = handler
    reader = in_thread(lambda: runtime.generate("text"))
    reader.join(20)
    assert not reader.is_alive()
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert words.freed == [1]


def test_closing_in_a_handler_that_came_into_the_freeing() -> None:
    words = NativeWords()
    runtime = Runtime(fake_model(FakeSession(VOCAB), words))
    closing = threading.Event()
    threads: list[threading.Thread] = []

    def close() -> None:
        closing.set()
        words.use.close()

    def free() -> None:
        words.freed.append(1)
        threads.append(in_thread(runtime.close))
        assert closing.wait(20)
        runtime.close()

    session(runtime).close = close  # type: ignore[method-assign]
    words.use._free = free
    threads.append(in_thread(words.use.close))
    threads[0].join(20)
    threads[-1].join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert len(threads) == 2 and words.freed == [1]


def test_closing_while_another_thread_computes() -> None:
    runtime = make(seconds=0.002)
    generation = runtime.generate("x" * 4000, GREEDY)
    reader = in_thread(lambda: list(generation))
    wait_for(lambda: session(runtime).length > 3)
    began = time.monotonic()
    runtime.close()
    assert time.monotonic() - began < 4
    reader.join(20)
    assert generation.result.finish_reason == "cancelled"
    assert session(runtime).closed


def test_closing_while_answers_come_and_go() -> None:
    runtime = make(seconds=0.0005)
    ends: list[type[BaseException]] = []

    def answer() -> None:
        try:
            while True:
                try:
                    for _ in runtime.generate("hello", GREEDY, max_tokens=3):
                        pass
                except Busy:
                    time.sleep(0.0005)
        except BaseException as error:
            ends.append(type(error))

    readers = [in_thread(answer) for _ in range(3)]
    time.sleep(0.05)
    closers = [in_thread(runtime.close) for _ in range(2)]
    for thread in (*readers, *closers):
        thread.join(20)
        assert not thread.is_alive()
    assert ends == [ModelError] * 3


# ------------------------------------------------------------------------------ conversations


def history(chat: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.messages]


def test_messages_join_when_the_answer_ends() -> None:
    runtime = make()
    chat = runtime.conversation("be brief")
    generation = chat.send("hello", GREEDY, max_tokens=5)
    assert chat.messages == []
    text = generation.result.text
    assert history(chat) == [("user", "hello"), ("assistant", text)]
    chat.clear()
    assert chat.messages == [] and chat.system == "be brief"


def test_what_a_stopped_answer_leaves() -> None:
    runtime = make()
    chat = runtime.conversation()
    before_it_began = chat.send("one", GREEDY)
    before_it_began.cancel()
    assert list(before_it_began) == []
    assert chat.messages == []
    later = chat.send("two", GREEDY, max_tokens=30)
    shown = next(later).text
    later.cancel()
    rest = "".join(chunk.text for chunk in later)
    assert history(chat) == [("user", "two"), ("assistant", shown + rest)]
    abandoned = chat.send("three", GREEDY, max_tokens=30)
    shown = next(abandoned).text
    abandoned.close()
    assert history(chat)[2:] == [("user", "three"), ("assistant", shown)]


@pytest.mark.parametrize("then", ["send", "extend", "clear"])
def test_an_answer_left_in_the_middle_ends_before_the_next_prompt(then: str) -> None:
    runtime = make()
    chat = runtime.conversation()
    left = chat.send("one", GREEDY, max_tokens=30)
    for _ in left:
        break
    kept = [("user", "one"), ("assistant", left.text)]
    if then == "clear":
        chat.clear()
        assert left.result.finish_reason == "cancelled" and chat.messages == []
        return
    more = chat.send("two", GREEDY, max_tokens=5) if then == "send" else chat.extend(GREEDY)
    assert history(chat) == kept
    other = runtime.conversation()
    other.messages = list(chat.messages)
    same = other.send("two", GREEDY) if then == "send" else other.extend(GREEDY)
    assert more.counters.prompt_tokens == same.counters.prompt_tokens
    if then == "send":
        assert more.result.finish_reason == "length"
        assert history(chat) == [*kept, ("user", "two"), ("assistant", more.text)]


def test_another_threads_answer_is_not_ended() -> None:
    chat = make().conversation()
    first = chat.send("one", GREEDY, max_tokens=30)
    in_thread(lambda: next(first)).join(20)
    with pytest.raises(Busy):
        next(chat.send("two", GREEDY))
    assert first.result.finish_reason == "length"


def test_what_goes_on_joins_only_the_answer_it_goes_on_with() -> None:
    chat = make().conversation()
    list(chat.send("a", GREEDY, max_tokens=5))
    more = chat.extend(GREEDY, max_tokens=5)
    list(chat.send("b", GREEDY, max_tokens=5))
    before = list(chat.messages)
    with pytest.raises(ConfigError, match=WENT_ON):
        list(more)
    assert chat.messages == before
    for by_hand in (False, True):
        more = chat.extend(GREEDY, max_tokens=5)
        next(more)
        if by_hand:
            chat.messages.clear()
        else:
            in_thread(chat.clear).join(20)
        list(more)
        assert chat.messages == []
        list(chat.send("a", GREEDY, max_tokens=5))
    chat.clear()
    list(chat.send("a", GREEDY, max_tokens=5))
    text = chat.messages[-1].content + chat.extend(GREEDY, max_tokens=5).result.text
    assert chat.messages[-1].content == text


@pytest.mark.parametrize("sizes", [(3, 1, 1, 9), (2, 3, 30), (4, 0, 30), (3, 30)])
def test_an_answer_cut_inside_a_character_goes_on_with_the_rest_of_it(sizes: Sequence[int]) -> None:
    """Its text is that of its tokens, and the next prompt begins with them."""
    said = "a😀😀 語!"
    length = len(make().encode_messages([Message("user", "hi")]))
    runtime = Runtime(fake_model(script(said, length)))
    chat = runtime.conversation()
    first = chat.send("hi", GREEDY, max_tokens=sizes[0]).result
    assert chat.messages[-1].content == first.text == "a\ufffd"
    for size in sizes[1:]:
        before = chat.messages[-1]
        more = chat.extend(GREEDY, max_tokens=size)
        assert "".join(chunk.text for chunk in more) == more.result.text
        after = chat.messages[-1]
        assert more.completes == "\ufffd" * before.content.endswith("\ufffd")
        assert after.content == before.content.removesuffix(more.completes) + more.result.text
        assert after.tokens == before.tokens + more.result.tokens
        assert after.content == decode(runtime.target.tokenizer, after.tokens)
        cache = tuple(session(runtime).cache)
        begun = (*cache[:length], *before.tokens)
        assert cache[: len(begun)] == begun[: len(cache)]
    whole = said.encode()[: sum(sizes)]
    assert after.content == whole.decode(errors="replace")


def test_nothing_that_follows_a_character_cut_in_two_leaves_the_answer_as_it_is() -> None:
    length = len(make().encode_messages([Message("user", "hi")]))
    chat = Runtime(fake_model(script("a😀", length))).conversation()
    list(chat.send("hi", GREEDY, max_tokens=3))
    before = list(chat.messages)
    more, other = chat.extend(GREEDY), chat.send("more", GREEDY, max_tokens=2)
    more.cancel()
    assert more.result.text == "\ufffd" and chat.messages == before
    assert other.result.tokens  # nothing joined, so it is still the conversation that was asked


def test_more_than_the_prompt_is_no_begun_answer() -> None:
    with pytest.raises(ConfigError, match="has 3 tokens, so 4 of them can't be an answer's"):
        make().generate([1, 2, 3], GREEDY, begun=4)


@pytest.mark.parametrize("first", ["waits", "streams", "cancelled"])
def test_no_answer_is_given_to_a_prompt_that_lacks_the_answer_before(first: str) -> None:
    """One thread asks, and another takes all answers in turn."""
    runtime = make(seconds=0.001)
    chat = runtime.conversation()
    questions: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
    caught: list[EdgespecError] = []

    def work() -> None:
        while (answer := questions.get()) is not None:
            try:
                list(answer)
            except EdgespecError as error:
                caught.append(error)

    one = chat.send("one", GREEDY, max_tokens=30 if first == "waits" else 3000)
    if first == "waits":
        two = chat.send("two", GREEDY, max_tokens=5)
    questions.put(one)
    worker = in_thread(work)
    if first != "waits":
        wait_for(lambda: one.text)
        if first == "cancelled":
            one.cancel()
        two = chat.send("two", GREEDY, max_tokens=5)
        one.cancel()
    questions.put(two)
    wait_for(lambda: caught)
    assert history(chat) == [("user", "one"), ("assistant", one.text)]
    with pytest.raises(ConfigError, match=WENT_ON):  # it says so as often as it is asked
        _ = two.result
    questions.put(chat.send("two", GREEDY, max_tokens=5))
    questions.put(None)
    worker.join(20)
    assert [type(error) for error in caught] == [ConfigError]
    assert "one" in bytes(t for t in session(runtime).cache if t < 256).decode()
    assert [text for _, text in history(chat)][::2] == ["one", "two"]


def test_an_answer_cancelled_before_its_first_word_leaves_the_next_as_it_is() -> None:
    chat = make().conversation()
    one, two = chat.send("one", GREEDY), chat.send("two", GREEDY, max_tokens=5)
    one.cancel()
    assert list(one) == [] and two.result.text
    assert history(chat) == [("user", "two"), ("assistant", two.text)]


def test_what_was_forgotten_stays_forgotten() -> None:
    chat = make().conversation()
    for then in (chat.clear, lambda: in_thread(chat.clear).join(20)):
        one = chat.send("one", GREEDY, max_tokens=30)
        in_thread(lambda: next(one)).join(20)  # noqa: B023 (joined here)
        then()
        assert one.result.text
        assert chat.messages == []
    late = chat.send("one", GREEDY)
    chat.clear()
    with pytest.raises(ConfigError, match=WENT_ON):
        next(late)


def test_a_limit_that_is_no_whole_number_is_refused_at_once() -> None:
    runtime = make()
    for ask in (runtime.conversation().send, runtime.generate):
        for wrong in ("5", 5.0):
            with pytest.raises(ConfigError, match="max_tokens must be a whole number"):
                ask("hi", GREEDY, max_tokens=wrong)  # type: ignore[operator]


def test_what_is_asked_while_all_is_forgotten_is_not_of_what_was() -> None:
    chat, asked = make().conversation(), []

    class Slow(list[Message]):
        def clear(self) -> None:
            asked.append(chat.send("two", GREEDY, max_tokens=5))
            super().clear()

    list(chat.send("one", GREEDY, max_tokens=5))
    chat.messages = Slow(chat.messages)
    chat.clear()
    with pytest.raises(ConfigError, match=WENT_ON):
        next(asked[0])


def test_a_context_found_full_is_no_round() -> None:
    result = make(lookahead=0, context_size=12).generate("hello", GREEDY, max_tokens=30).result
    assert result.finish_reason == "context"
    assert result.counters.mean_accepted_length == 1
    full = make(context_size=5).generate("hello", GREEDY, max_tokens=30).result
    assert full.counters.mean_accepted_length is None


def test_the_next_turn_feeds_only_what_is_new() -> None:
    runtime = make()
    chat = runtime.conversation()
    first = chat.send("hello " * 50, GREEDY, max_tokens=20).result
    session(runtime).passes.clear()
    second = chat.send("again", GREEDY, max_tokens=5).result
    fed = session(runtime).passes[0][0]
    assert fed == second.counters.prompt_tokens - second.counters.cached_tokens
    assert second.counters.cached_tokens == first.counters.prompt_tokens + 20 - 1
    assert fed < 60 < first.counters.prompt_tokens
    fresh = make().generate(
        runtime.encode_messages([*chat.messages[:2], chat.messages[2]]), GREEDY, max_tokens=5
    )
    assert fresh.result.tokens == second.tokens


def test_two_conversations_on_one_runtime() -> None:
    def talk(a: Conversation, b: Conversation) -> tuple[list[str], list[str]]:
        one, two = [], []
        for question in ("first", "second", "third"):
            one.append(a.send(question, GREEDY, max_tokens=8).result.text)
            two.append(b.send(f"other {question}", GREEDY, max_tokens=8).result.text)
        return one, two

    drafter = FakeSession(VOCAB, bias=LETTERS, noise=0.2)
    shared = make(drafter=drafter, lookup=True)
    got = talk(shared.conversation(), shared.conversation("you are a pirate"))
    assert got == talk(make().conversation(), make().conversation("you are a pirate"))


def test_the_oldest_turns_are_left_out_with_a_note() -> None:
    runtime = make(context_size=400)
    chat = runtime.conversation("remember the system prompt")
    noted: list[Generation] = []
    for turn in range(8):
        generation = chat.send(f"question {turn} " + "x" * 40, GREEDY, max_tokens=20)
        assert generation.result.finish_reason == "length"
        noted += [generation] if generation.notes else []
    assert len(chat.messages) == 16  # nothing is forgotten, only left out
    assert noted and "oldest" in noted[0].notes[0]
    prompt = decode(ByteTokenizer(), session(runtime).cache)
    assert "remember the system prompt" in prompt
    assert "question 7" in prompt and "question 0" not in prompt
    assert len(session(runtime).cache) <= 400


def test_an_answer_of_no_tokens_needs_no_room() -> None:
    runtime = make(context_size=400)
    chat = runtime.conversation()
    chat.send("a" * 200, GREEDY, max_tokens=40).result  # noqa: B018
    answer = chat.send("b" * 60, GREEDY, max_tokens=0)
    assert answer.result.finish_reason == "length" and not answer.notes


@pytest.mark.parametrize("planner", [FixedPlanner(["lookup"], 4), FixedPlanner(["model"], 3)])
def test_a_planner_of_ones_own_ends_no_answer_where_nothing_can_be_taken_back(
    planner: FixedPlanner,
) -> None:
    target = FakeSession(VOCAB, order=0, bias=LETTERS, can_rollback=False)
    runtime = Runtime(fake_model(target), [LookupDrafter()])
    chat = runtime.conversation()
    asks = (
        lambda **options: runtime.generate("ab" * 20, GREEDY, **options),
        lambda **options: chat.send("ab" * 20, GREEDY, **options),
        lambda **options: chat.extend(GREEDY, **options),
    )
    for ask in asks:
        answer = ask(max_tokens=9, planner=planner)
        assert len(answer.result.tokens) == 9 and not answer.counters.drafted


def test_a_plan_with_a_drafter_that_isnt_there_is_refused_before_the_first_chunk() -> None:
    runtime = make(lookup=True)
    with pytest.raises(ConfigError, match=r"no drafter 'model' \(it has: lookup\): plan with"):
        runtime.generate("hello", planner=FixedPlanner(["lookup", "model"], 3))
    plain = runtime.generate("hello", GREEDY, max_tokens=5, planner=FixedPlanner(["model"], 0))
    assert len(plain.result.tokens) == 5


def test_what_its_models_note_is_told_once() -> None:
    target, small = fake_model(FakeSession(VOCAB)), fake_model(FakeSession(VOCAB))
    target.notes, small.notes = ["of both", "of the target"], ["of both", "of the drafter"]
    runtime = Runtime(target, [ModelDrafter(small)], notes=["of both", "given"])
    told = ["of both", "of the target", "of the drafter", "given"]
    assert [note for note in runtime.notes if note in told] == told


@pytest.mark.parametrize("drafters", [[], ["y" * 5000]])
def test_a_path_that_no_system_can_look_at(drafters: list[str]) -> None:
    with pytest.raises(EdgespecError, match="y" if drafters else "x"):
        Runtime.open(target="x" * 5000, drafters=drafters)


def test_one_question_too_long_for_the_context() -> None:
    chat = make(context_size=100).conversation()
    chat.send("hi", GREEDY, max_tokens=5).result  # noqa: B018
    with pytest.raises(ContextFull):
        chat.send("x" * 200, GREEDY)
    assert len(chat.messages) == 2


# ------------------------------------------------------------------------------ real sessions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("runtime") / "tiny.gguf", context=1024)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "config"))


def test_files_instead_of_a_pair(tiny: Path) -> None:
    answers = []
    for drafters in ([], ["lookup"], [str(tiny)], ["lookup", str(tiny)]):
        with Runtime.open(target=tiny, drafters=drafters, lookahead=2, threads=1) as runtime:
            assert list(runtime.drafters) == [
                "lookup" if name == "lookup" else "model" for name in drafters
            ]
            answers.append(runtime.generate("abc", GREEDY, max_tokens=10).result.tokens)
    assert answers.count(answers[0]) == 4
    with Runtime.open(target=tiny, lookahead=0, threads=1) as runtime:
        assert runtime.drafters == {}
        assert any("no chat template" in note for note in runtime.notes)


def test_what_cant_be_opened(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="not both"):
        Runtime.open("smollm2", target=tiny)
    with pytest.raises(RegistryError):
        Runtime.open("no-such-pair")
    with pytest.raises(ModelError):
        Runtime.open(target=tiny.with_name("none.gguf"))
    with pytest.raises(ConfigError, match=r"no drafter none\.gguf"):
        Runtime.open(target=tiny, drafters=["none.gguf"], lookahead=2)
    with pytest.raises(ConfigError, match="twice"):
        Runtime.open(target=tiny, drafters=["lookup", "lookup"], lookahead=2)
    with pytest.raises(ConfigError, match=r"only one model can draft.*none\.gguf.*never\.gguf"):
        Runtime.open(target=tiny, drafters=["none.gguf", "lookup", "never.gguf"])
    with pytest.raises(ConfigError):
        Runtime.open(target=tiny, drafters=[], lookahead=-1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": 0}, "--threads must be 1 or more, not 0"),
        ({"context_size": -1}, "--ctx-size must be 1 or more, not -1"),
        ({"device": "gpu"}, "there is no device gpu: choose auto, cpu, cuda"),
    ],
)
def test_a_wrong_option_is_told_as_what_it_is(
    tiny: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Runtime.open(target=tiny, **options)


def test_one_string_is_one_item(tiny: Path) -> None:
    assert find_files(None, tiny, "lookup", fetch=False) == (tiny, ["lookup"])
    runtime = Runtime(fake_model(script("one two", 3)), planner=FixedPlanner((), 0))
    result = runtime.generate(list(b"abc"), GREEDY, max_tokens=50, stop=" two").result
    assert (result.text, result.finish_reason) == ("one", "stop")


def test_a_download_is_told_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def offline(spec: ModelSpec, **_: object) -> Path:
        raise FetchError(f"{spec.name}, told: {told}")

    monkeypatch.setattr("edgespec.fetch.fetch", offline)
    with pytest.raises(FetchError, match=r"told: \['downloading smollm2-135m, 98 MB'\]"):
        Runtime.open("smollm2", report=told.append)


def test_a_file_is_compared_with_its_hash_before_it_runs(tiny: Path) -> None:
    folder = user_models_file().parent
    folder.mkdir(parents=True)
    user_models_file().write_text(
        f"""
        [models.mine]
        source = {{ kind = "file", path = '{tiny}' }}
        sha256 = "{"0" * 64}"
        format = "gguf"
        [pairs.mine]
        target = "mine"
        drafters = []
        description = "One whose file was replaced"
        """,
        encoding="utf-8",
    )
    with pytest.raises(ModelError, match="wasn't compared with its SHA-256"):
        Runtime.open("mine", fetch=False)
    told: list[str] = []
    with pytest.raises(HashMismatch):
        Runtime.open("mine", report=told.append)
    assert told == ["comparing mine with its SHA-256"]
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    text = user_models_file().read_text("utf-8").replace("0" * 64, digest)
    user_models_file().write_text(text, "utf-8")
    for times in (1, 0):
        told.clear()
        Runtime.open("mine", threads=1, report=told.append).close()
        assert told == ["comparing mine with its SHA-256"] * times


def test_a_model_not_here_and_not_to_be_fetched() -> None:
    with pytest.raises(ModelError, match="edgespec pull smollm2-135m"):
        Runtime.open("smollm2", fetch=False)


def test_plain_decoding_needs_no_drafter_on_the_disk(tiny: Path) -> None:
    with Runtime.open(target=tiny, drafters=["none.gguf"], lookahead=0, threads=1) as runtime:
        assert runtime.drafters == {}


def test_measuring_again_keeps_what_drafters_proved_to_be_worth(tiny: Path, tmp_path: Path) -> None:
    def kept(measure_again: bool) -> dict[str, object]:
        with Runtime.open(target=tiny, threads=1, measure_again=measure_again) as runtime:
            if not measure_again:
                list(runtime.generate([5, 6, 7] * 9, GREEDY, max_tokens=60))
        (file,) = (tmp_path / "cache" / "costs").glob("*.json")
        return dict(json.loads(file.read_text())["drafters"])

    learnt = kept(False)
    assert learnt["matches"]
    assert kept(True) == learnt


@pytest.mark.parametrize("what", ["target", "check", "drafter", "tokens", "recurrent"])
def test_what_was_loaded_is_freed_where_opening_ends_early(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small.gguf"
    small.touch()
    opened: list[FakeSession] = []

    def load(path: Path, *_: object) -> Model:
        other = path == small and what == "tokens"
        session = FakeSession(VOCAB, name=path.stem, context_size=4096)
        session.can_rollback = path != small or what != "recurrent"
        opened.append(session)
        model = fake_model(session, PieceTokenizer([b"z"] * VOCAB) if other else None)
        model.only_drafts = "its head is narrow" if what == "target" else ""
        return model

    def stop(kind: str, tokens: int, seconds: float) -> None:
        if kind == {"check": "check", "drafter": "model"}.get(what):
            raise Cancelled("enough")

    monkeypatch.setattr("edgespec.runtime.load_model", load)
    monkeypatch.setattr("edgespec.opening.load_model", load)
    with pytest.raises(EdgespecError):
        Runtime.open(target="big.gguf", drafters=["lookup", str(small)], on_pass=stop)
    assert [session.closed for session in opened] == [True] * (1 if what == "target" else 2)


def test_a_program_follows_the_loading_and_stops_it(tiny: Path) -> None:
    told: list[tuple[str, float]] = []
    drafter = tiny.with_name("drafter.gguf")
    shutil.copy(tiny, drafter)

    def follow(name: str, part: float) -> None:
        told.append((name, part))
        if name in stops:
            raise Cancelled("enough")

    stops: list[str] = []
    names = [str(drafter)]
    Runtime.open(target=tiny, drafters=names, lookahead=2, threads=1, on_load=follow).close()
    ends = [at for at in told if at[1] in (0, 1)]
    assert ends == [(file.name, part) for file in (tiny, drafter) for part in (0, 1)]
    for name in (drafter.name, tiny.name):
        stops.append(name)
        with pytest.raises(Cancelled, match="enough"):
            Runtime.open(target=tiny, drafters=names, lookahead=2, threads=1, on_load=follow)
        assert told[-1][0] == name


def test_a_chat_in_which_nothing_was_asked_undoes_no_measurement(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Runtime.open(target=tiny, threads=1).close()
    chat = Runtime.open(target=tiny, threads=1)
    monkeypatch.setattr(time, "time", lambda: 1.0)  # the clock is put back
    with Runtime.open(target=tiny, threads=1, measure_again=True) as other:
        list(other.generate([5, 6, 7] * 9, GREEDY, max_tokens=60))
    (file,) = (tmp_path / "cache" / "costs").glob("*.json")
    text = file.read_bytes()
    chat.close()
    assert file.read_bytes() == text
    assert chat.costs and other.costs and other.costs.taken > chat.costs.taken


def test_native_answers_stop_and_go_on(tiny: Path) -> None:
    with Runtime.open(target=tiny, drafters=["lookup"], lookahead=3, threads=1) as runtime:
        chat = runtime.conversation()
        generation = chat.send("abc " * 20, GREEDY, max_tokens=900)
        while runtime.context_used <= 100:
            next(generation)
        in_thread(generation.cancel).join(20)
        assert generation.result.finish_reason == "cancelled"
        second = chat.send("more", GREEDY, max_tokens=5).result
        assert second.counters.prompt_tokens > 80
    generation = Runtime.open(target=tiny, drafters=[], threads=1).generate("a", max_tokens=20)
    assert len(generation.result.tokens) > 0  # its runtime lives as long as it does


def test_costs_are_measured_once_and_what_was_learnt_is_kept(tiny: Path, tmp_path: Path) -> None:
    said: list[str] = []
    kept = []
    for _ in range(2):
        with Runtime.open(target=tiny, report=said.append) as runtime:
            assert runtime.conversation().send("hi", GREEDY, max_tokens=9).result.tokens
            learnt = runtime.costs
        (file,) = (tmp_path / "cache" / "costs").glob("*.json")
        kept.append(file.read_text())
    assert len(said) == 1
    assert learnt is not None
    assert kept[0] != kept[1]  # the second answer's passes went in too


def test_a_planner_for_one_answer(tiny: Path) -> None:
    with Runtime.open(target=tiny, drafters=[str(tiny)], lookahead=1) as runtime:
        rates = []
        for planner in (None, FixedPlanner(["model"], 3), None):
            answer = runtime.generate([5, 6, 7], GREEDY, max_tokens=13, planner=planner)
            counters = answer.result.counters
            rates.append(counters.drafted / counters.rounds)
        assert rates == [1, 3, 1]


def test_a_drafter_that_failed_is_told_with_the_answer() -> None:
    session = FakeSession(VOCAB, bias=LETTERS, name="small")
    with make(drafter=session) as runtime:
        plain = runtime.generate([5, 6, 7], GREEDY, max_tokens=9, planner=FixedPlanner((), 0))
        assert plain.result.tokens
        session.poison = float("inf")
        result = runtime.generate([5, 6, 7], GREEDY, max_tokens=9).result
        assert result.tokens == plain.result.tokens
        (note,) = result.notes
        assert note.startswith("model stopped drafting in this answer: small ")
        with pytest.raises(ModelError, match="model stopped drafting"):  # no measurement
            RuntimeSide(runtime, Setting(("model",), 3)).answer([5, 6, 7], 9, GREEDY)
        assert not runtime.generate([5, 6, 7], GREEDY, max_tokens=0).result.notes  # it ran nothing
        session.poison = None
        assert not runtime.generate([5, 6, 7], GREEDY, max_tokens=9).result.notes


def test_a_lookahead_that_cant_be_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF, but no more")
    with pytest.raises(ConfigError, match=r"lookahead must be a whole number, not 4\.0"):
        FixedPlanner([], 4.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at most 64, not 65"):
        Runtime.open(target=path, lookahead=65)


def test_figures_can_be_read_while_an_answer_counts() -> None:
    counters = Counters()

    class Counting(DrafterCounts):
        """While it is read, the answer drafts with one more drafter."""

        def __getattribute__(self, name: str) -> Any:
            if name in ("drafted", "accepted"):
                counters.add_draft(f"later {len(counters.drafters)}", 1, 1)
            return super().__getattribute__(name)

    counters.drafters["model"] = Counting(1, 4, 2)
    assert (counters.drafted, counters.accepted) == (4, 2 + 1)
    result = Result("", (), (), "end", counters)
    assert as_json(result)["drafters"]["model"]["drafted"] == 4
    assert "model: 2 of 4" in summary(result)


def test_figures_name_the_lookahead_and_what_failed() -> None:
    counters = Counters(prompt_tokens=9, rounds=2, decode_seconds=0.5, ttft_seconds=0.1)
    counters.add_draft("model", 3, 2, rejected=True)
    result = Result("a", (1,), ("plain",), "end", counters, (), ("model stopped drafting: NaN",))
    status = PlannerStatus("model", 3, False, "it pays", 1.2)
    assert " · lookahead 3 of late\nnote: model stopped drafting: NaN" in summary(result, status)
    assert "lookahead" not in summary(result, replace(status, parked=True))
    undrafted = replace(result, counters=Counters(prompt_tokens=9, rounds=2, decode_seconds=0.5))
    told = summary(undrafted, replace(status, drafter="", lookahead=0))
    assert "nothing drafted" in told and "lookahead" not in told
    assert as_json(result)["notes"] == ["model stopped drafting: NaN"]
