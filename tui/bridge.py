"""Between the screen and the models: alone in the chat, it opens runtimes and fetches models.

One thread loads and answers, others download. They put frozen events into a queue and never call
the screen; the screen takes the events when it draws (`drain`) and never waits for a thread.
Invariant: events of a turn carry its number, so none can land in another; and each turn that was
asked ends with one `Finished` or `Failed`, unless the bridge is closed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from edgespec.errors import Cancelled, EdgespecError
from edgespec.tui.messages import (
    Ask,
    Choice,
    DownloadEnded,
    Downloading,
    Event,
    Failed,
    Finished,
    Loaded,
    LoadFailed,
    Loading,
    Measured,
    Settings,
    Started,
    Streamed,
)
from edgespec.tui.shown import one_line

if TYPE_CHECKING:
    from edgespec.chat import Message
    from edgespec.generation import Generation
    from edgespec.registry import ModelSpec
    from edgespec.runtime import Runtime
    from edgespec.session import Model

Opener = Callable[..., "Runtime"]
"""Opens a runtime as `Runtime.open` does."""
Fetcher = Callable[[str | None, Callable[[str, int, "int | None"], None]], None]
"""Brings a pair's models here, telling model, bytes done and bytes in all; what that raises stops
it. None: the default pair."""

_FIGURES_EVERY = 0.1  # seconds


class Bridge:
    """What the chat asks of the models, and the events that come of it."""

    def __init__(
        self,
        opener: Opener | None = None,
        fetcher: Fetcher | None = None,
        clock: Callable[[], float] = perf_counter,
        **machine: Any,
    ) -> None:
        """`opener`, `fetcher` and `clock` can be fakes; what they stand for is imported late.

        `machine`: what else every runtime is opened with, `device` and `allow_cpu`.
        """
        self._machine = machine
        self._opener = opener or _open
        self._fetcher = fetcher or _fetch
        self._clock = clock
        self._events: deque[Event] = deque()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._runtime: Runtime | None = None
        self._answered: list[Message] = []  # the last answer, which knows its tokens
        self._awaited: Generation | None = None  # the answer of which no text has come
        self._load = 0
        self._dropped_load = 0  # loads up to this one are of no interest any more
        self._stopped_turn = -1
        self._turn = -1
        self._closing = False
        self._downloads: dict[str, tuple[threading.Event, threading.Thread]] = {}
        self._ending: list[threading.Thread] = []  # downloads that were given up and begun anew
        self._counting = threading.Lock()  # held while a download is entered or taken out
        self._fetches: dict[str, threading.Lock] = {}  # held while a pair's models are brought here
        self._fetched_to_load = ""  # the pair that the load under way is bringing here

    # ------------------------------------------------------------- for the screen; none of it waits

    def drain(self) -> list[Event]:
        """What happened since the last call, in order; text of one turn comes in one piece."""
        found: list[Event] = []
        while self._events:
            event = self._events.popleft()
            last = found[-1] if found else None
            match (last, event):
                case (Streamed(turn, before, old, end), Streamed(same, more, new)) if turn == same:
                    found[-1] = Streamed(turn, before + more, (*old, *new), end)
                case _:
                    found.append(event)
        return found

    @property
    def prompt_read(self) -> tuple[int, int]:
        """Tokens of the prompt under way that were read, and its tokens; of none 0 and 0."""
        if (awaited := self._awaited) is None:
            return 0, 0
        return awaited.prompt_read, awaited.counters.prompt_tokens

    def open(self, choice: Choice, settings: Settings) -> int:
        """Load a pair in place of the one that is loaded; returns the load's number."""
        self.cancel_load()
        self.stop()
        self._load += 1
        load = self._load
        self._events.append(Loading(load, "getting ready"))
        self._do(lambda: self._open(load, choice, settings))
        return load

    def cancel_load(self) -> None:
        """Drop the load that is under way, if one is."""
        self._dropped_load = self._load

    def goes_on(self, load: int) -> bool:
        """Whether nobody dropped a load."""
        return load > self._dropped_load

    def ask(self, ask: Ask) -> None:
        """Answer a question; its turn number must be higher than all before."""
        self._turn = ask.turn
        self._do(lambda: self._answer(ask))

    def stop(self) -> None:
        """End the answer that is under way, keeping what came."""
        self._stopped_turn = self._turn
        runtime = self._runtime
        if runtime is not None:
            runtime.cancel()

    def download(self, pair: str) -> None:
        """Bring a pair's models here; other things go on meanwhile.

        Where the load under way is bringing them already, this waits for it, and tells of it.
        """
        stop = threading.Event()
        thread = threading.Thread(
            target=self._download, args=(pair, stop), name="edgespec-download", daemon=True
        )
        with self._counting:
            found = self._downloads.get(pair)
            if found is not None and not found[0].is_set():
                return
            if found is not None:  # given up: it ends behind the scenes, and the new one waits
                self._ending = [t for t in self._ending if t.is_alive()] + [found[1]]
            self._downloads[pair] = stop, thread
        thread.start()

    def cancel_download(self, pair: str) -> None:
        """Give up a download, and a load that waits for it; nothing partial stays behind."""
        if (found := self._downloads.get(pair)) is not None:
            found[0].set()
            if pair == self._fetched_to_load:
                self.cancel_load()

    def close(self, timeout: float) -> bool:
        """Stop everything and free the models; False where a thread didn't end in time."""
        self._closing = True
        self.cancel_load()
        self.stop()
        downloads = list(self._downloads.values())  # threads take theirs out as they end
        for stop, _ in downloads:
            stop.set()
        threads = [*self._ending, *(thread for _, thread in downloads)]
        if self._worker is not None:
            self._jobs.put(None)
            threads.append(self._worker)
        end = monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))
        return not any(thread.is_alive() for thread in threads)

    # ------------------------------------------------------------------------ on the worker thread

    def _do(self, job: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="edgespec-chat", daemon=True)
            self._worker.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing:
            job()
        self._close_runtime()

    def _close_runtime(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def _open(self, load: int, choice: Choice, settings: Settings) -> None:
        def check() -> None:
            if load <= self._dropped_load:
                raise Cancelled("another pair was chosen")

        def fetched(model: str, done: int, total: int | None) -> None:
            check()
            self._events.append(Downloading(choice.pair or "", model, done, total))

        def measured(kind: str, tokens: int, seconds: float) -> None:
            check()
            self._events.append(Measured(load, kind, tokens, seconds))

        def read(model: str, part: float) -> None:
            report(f"loading {one_line(model)}, {part:.0%}")

        def report(what: str) -> None:
            check()
            self._events.append(Loading(load, what))

        try:
            self._close_runtime()  # also where the load was dropped: nobody knows of it any more
            check()
            if choice.target is None:
                report("looking for the models")
                self._fetched_to_load = choice.pair or ""
                try:
                    self._bring(choice.pair, fetched, check)
                finally:
                    self._fetched_to_load = ""
            report("loading")
            runtime = self._opener(
                choice.pair,
                target=choice.target,
                drafters=None if settings.drafters is None else list(settings.drafters),
                lookahead=settings.lookahead,
                context_size=settings.context_size,
                threads=settings.threads,
                gpu_layers=settings.gpu_layers,
                fetch=False,
                report=report,
                on_pass=measured,
                on_load=read,
                **self._machine,
            )
        except Cancelled:
            self._events.append(LoadFailed(load, choice, ""))
            return
        except Exception as error:
            self._events.append(LoadFailed(load, choice, _sentence(error)))
            return
        if load <= self._dropped_load:
            runtime.close()
            self._events.append(LoadFailed(load, choice, ""))
            return
        self._runtime = runtime
        self._events.append(
            Loaded(
                load,
                choice,
                runtime.target.name,
                _device(runtime.target),
                _drafters(runtime),
                runtime.context_size,
                tuple(runtime.notes),
            )
        )

    def _answer(self, ask: Ask) -> None:
        if self._runtime is None:
            self._events.append(Failed(ask.turn, "no model is loaded: choose a pair first"))
            return
        try:
            self._stream(self._runtime, ask)
        except Exception as error:
            self._events.append(Failed(ask.turn, _sentence(error)))
        finally:
            self._awaited = None

    def _stream(self, runtime: Runtime, ask: Ask) -> None:
        from edgespec.chat import Message
        from edgespec.logprobs import LogprobsRequest
        from edgespec.tui.meter import Meter, Pieces
        from edgespec.tui.settings import sampling

        turn = ask.turn
        conversation = runtime.conversation(ask.settings.system or None)
        for question, answer in ask.history:
            conversation.messages += [Message("user", question), Message("assistant", answer)]
        options: dict[str, Any] = {
            "max_tokens": ask.settings.max_tokens,
            "logprobs": LogprobsRequest() if ask.probabilities else None,
        }
        params = sampling(ask.settings)
        if ask.answer:
            known = [message for message in self._answered if message.content == ask.answer]
            conversation.messages += [
                Message("user", ask.question),
                *(known or [Message("assistant", ask.answer)]),
            ]
            generation = conversation.extend(params, **options)
        else:
            generation = conversation.send(ask.question, params, **options)
        self._events.append(Started(turn, generation.notes))
        self._awaited = generation
        meter = Meter(turn, runtime)
        pieces = Pieces(runtime.target.tokenizer)
        completes = generation.completes
        due = self._clock()
        if self._stopped_turn >= turn:
            generation.cancel()
        for chunk in generation:
            self._awaited = None
            meter.count(chunk.origins)
            stopped = self._stopped_turn >= turn
            if stopped:
                generation.cancel()  # asked for between its start and the first round
            self._events.append(Streamed(turn, chunk.text, pieces.of(chunk), completes))
            completes = ""
            now = self._clock()
            if now >= due:
                due = now + _FIGURES_EVERY
                self._events.append(meter.figures(generation.counters))
        result = generation.result
        self._answered = conversation.messages[-1:]
        figures = meter.figures(result.counters, rounds_over=True)
        # What goes on may complete a character that the answer ended in.
        text = conversation.messages[-1].content if ask.answer else result.text
        end = Finished(turn, text, result.finish_reason, figures, result.notes)
        self._events.append(end)

    # --------------------------------------------------------------------- on a thread of its own

    def _download(self, pair: str, stop: threading.Event) -> None:
        def check() -> None:
            if stop.is_set():
                raise Cancelled("the download was cancelled")

        def told(model: str, done: int, total: int | None) -> None:
            check()
            self._events.append(Downloading(pair, model, done, total))

        ended = DownloadEnded(pair)
        try:
            self._bring(pair, told, check)
        except Cancelled:
            ended = ended._replace(cancelled=True)
        except Exception as error:
            ended = ended._replace(error=_sentence(error))
        with self._counting:
            found = self._downloads.get(pair)
            if found is not None and found[0] is stop:  # else it was given up and asked for again
                del self._downloads[pair]
                self._events.append(ended)

    def _bring(
        self,
        pair: str | None,
        told: Callable[[str, int, int | None], None],
        check: Callable[[], None],
    ) -> None:
        """Fetch a pair's models, after another thread that does so: what it brought is here then.

        check: raises to stop waiting.
        """
        lock = self._fetches.setdefault(pair or "", threading.Lock())
        while not lock.acquire(timeout=0.05):
            check()
        try:
            check()
            self._fetcher(pair, told)
        finally:
            lock.release()


def _device(model: Model | None) -> str:
    from edgespec.session import device_of

    return device_of(model)


def _drafters(runtime: Runtime) -> tuple[str, ...]:
    """What drafts, and on what where that isn't what the target runs on."""
    usual = ("", _device(runtime.target))
    devices = {
        name: _device(getattr(drafter, "model", None)) for name, drafter in runtime.drafters.items()
    }
    return tuple(
        name if device in usual else f"{name} (on {device})" for name, device in devices.items()
    )


def _sentence(error: Exception) -> str:
    """What to tell a person. What edgespec foresees is a sentence already."""
    if isinstance(error, EdgespecError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there isn't enough memory for this: choose a smaller pair or a smaller context"
    return f"something unforeseen went wrong ({type(error).__name__}: {error})"


def _open(*args: Any, **options: Any) -> Runtime:
    from edgespec.runtime import Runtime

    return Runtime.open(*args, **options)


def _fetch(pair: str | None, told: Callable[[str, int, int | None], None]) -> None:
    from edgespec.fetch import fetch, local_path
    from edgespec.registry import load_registry

    def bring(spec: ModelSpec) -> None:
        fetch(spec, progress=lambda done, total: told(spec.name, done, total or spec.size_bytes))

    for spec in load_registry().pair(pair).models:
        if local_path(spec) is None:
            bring(spec)
