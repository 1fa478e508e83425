"""A runtime that speaks from a script, at the pace that a test allows, by a clock of its own.

The bridge, its thread and the app are the real ones. So a screen is the same every time, and a test
can stop an answer at any token.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgespec.chat import Message
from edgespec.errors import Cancelled, EdgespecError
from edgespec.generation import Chunk, Result
from edgespec.logprobs import TokenLogprobs
from edgespec.metrics import Counters
from edgespec.planner import PlannerStatus
from edgespec.tui import items
from edgespec.tui.app import ChatApp
from edgespec.tui.bridge import Bridge
from edgespec.tui.messages import Choice, Preferences, Settings
from edgespec.tui.showing import Stores

DRAFTING = PlannerStatus("lookup", 4, False, "a draft of 4 pays", 1.62)
PARKED = PlannerStatus("", 0, True, "a draft of 1 should add 0.2 tokens, which is too little", 1.0)

ANSWER = """\
Speculative decoding keeps the **target's own distribution**: drafts are only *guesses*.

1. The drafter guesses a few tokens.
2. The target checks them in `one pass`.

```python
def accept(target_probs, draft_probs, u):
    # at most one
    return u < min(1.0, target_probs / draft_probs)
```

What stands is kept; the rest is drawn anew.
"""


class Clock:
    """Stands still until it is told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Words:
    """A tokenizer that learns its vocabulary from what is said."""

    def __init__(self) -> None:
        self._known: list[bytes] = []

    def ids(self, text: str) -> list[int]:
        parts = [part.encode() for part in re.findall(r"\s*\S+|\s+$", text)]
        begin = len(self._known)
        self._known += parts
        return list(range(begin, begin + len(parts)))

    def token_bytes(self, token: int) -> bytes:
        return self._known[token]


@dataclass
class Script:
    """What a fake runtime says and how."""

    answers: list[str | EdgespecError] = field(default_factory=lambda: [ANSWER])
    status: PlannerStatus = DRAFTING
    notes: Sequence[str] = ()
    lengths: Sequence[int] = (1, 3, 5, 2, 1, 4)  # tokens in each round, over and over
    seconds: float = 0.05  # of a round
    reason: str = "end"
    breaks: tuple[int, EdgespecError] | None = None  # what fails behind so many rounds
    failed: tuple[str, ...] = ()  # notes of a result
    prompt_read: int = 0  # of its tokens, before the first text comes
    prompt_tokens: int = 12


class FakeRuntime:
    """Answers from a script; `allow` lets rounds happen where they are held."""

    def __init__(self, script: Script, clock: Clock, *, held: bool = False) -> None:
        self.script, self.clock = script, clock
        self.words = Words()
        self.target = SimpleNamespace(
            name="tiny-135m.gguf", details={"device": "CPU, 2 threads"}, tokenizer=self.words
        )
        self.drafters = {"lookup": None} if script.status.drafter or script.status.parked else {}
        self.notes = list(script.notes)
        self.context_size, self.context_used = 8192, 0
        self.held = held
        self.closed = False
        self.asked: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []
        self._turns = 0
        self._permits = threading.Semaphore(0)
        self._running: FakeGeneration | None = None

    def allow(self, rounds: int) -> None:
        for _ in range(rounds):
            self._permits.release()

    def free(self) -> None:
        self.held = False
        self._permits.release()

    def wait_for_permit(self, generation: FakeGeneration) -> None:
        while self.held and not generation.cancelled.is_set():
            if self._permits.acquire(timeout=0.01):
                return

    def conversation(self, system: str | None = None) -> FakeConversation:
        return FakeConversation(self, system)

    def status(self) -> PlannerStatus:
        return self.script.status

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        self.closed = True

    def generate(self, messages: list[Message], options: dict[str, Any]) -> FakeGeneration:
        answer = self.script.answers[min(self._turns, len(self.script.answers) - 1)]
        self._turns += 1
        self.asked.append(messages)
        self.options.append(options)
        if isinstance(answer, EdgespecError):
            raise answer
        self._running = FakeGeneration(self, answer, options)
        return self._running


@dataclass
class FakeConversation:
    runtime: FakeRuntime
    system: str | None
    messages: list[Message] = field(default_factory=list)

    def _generate(self, question: str | None, options: dict[str, Any]) -> FakeGeneration:
        asked = [*([Message("system", self.system)] if self.system else []), *self.messages]
        asked += [Message("user", question)] if question is not None else []
        return self.runtime.generate(asked, options)

    def send(self, text: str, sampling: object, **options: Any) -> FakeGeneration:
        return self._generate(text, {**options, "sampling": sampling})

    def extend(self, sampling: object, **options: Any) -> FakeGeneration:
        generation = self._generate(None, {**options, "sampling": sampling})
        generation.joins = self.messages
        generation.completes = "\ufffd" * self.messages[-1].content.endswith("\ufffd")
        return generation


class FakeGeneration:
    def __init__(self, runtime: FakeRuntime, text: str, options: dict[str, Any]) -> None:
        self.notes: tuple[str, ...] = ()
        self.completes = ""
        self.counters = Counters(prompt_tokens=runtime.script.prompt_tokens)
        self.cancelled = threading.Event()
        self._runtime, self._text, self._options = runtime, text, options
        self._result: Result | None = None
        self.text = ""
        self.prompt_read = runtime.script.prompt_read
        self.joins: list[Message] = []  # their last one goes on

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[Chunk]:
        runtime, counters = self._runtime, self.counters
        ids = runtime.words.ids(self._text)[: self._options["max_tokens"]]
        said: list[str] = []
        at = number = 0
        breaks = runtime.script.breaks
        while at < len(ids):
            runtime.wait_for_permit(self)
            if self.cancelled.is_set():
                break
            if breaks is not None and number == breaks[0]:
                raise breaks[1]
            lengths, status = runtime.script.lengths, runtime.script.status
            size = 1 if status.parked or not at else lengths[number % len(lengths)]
            tokens = ids[at : at + size]
            origins: Any = ("plain",)
            if len(tokens) > 1 or (at and not status.parked):
                last = "bonus" if size >= 5 else "recovered"
                origins = (*["accepted"] * (len(tokens) - 1), last)
                counters.add_draft("lookup", 4, len(tokens) - 1)
            runtime.clock.now += runtime.script.seconds
            if at:
                counters.rounds += 1
                counters.decode_seconds += runtime.script.seconds
            else:
                counters.ttft_seconds = runtime.script.seconds * 4
            at, number = at + len(tokens), number + 1
            counters.tokens = at
            runtime.context_used = counters.prompt_tokens + at
            text = b"".join(map(runtime.words.token_bytes, tokens)).decode()
            said.append(text)
            self.text = "".join(said)
            probs = ()
            if self._options.get("logprobs") is not None:
                probs = tuple(TokenLogprobs(token, -0.1 * (token % 9)) for token in tokens)
            yield Chunk(text, tuple(tokens), origins, probs)
        reason: Any = "cancelled" if at < len(ids) else runtime.script.reason
        text, notes = "".join(said), runtime.script.failed
        self._result = Result(text, tuple(ids[:at]), (), reason, counters, (), notes)
        if self.joins and text:
            begun = self.joins[-1].content.removesuffix(self.completes)
            self.joins[-1] = Message("assistant", begun + text)

    @property
    def result(self) -> Result:
        if self._result is None:
            raise Cancelled("no result")
        return self._result


@dataclass
class Stage:
    """An app on a fake runtime, and what a test says to both."""

    app: ChatApp
    clock: Clock
    runtimes: list[FakeRuntime]
    opening: threading.Event  # loading ends when this is set
    fail: list[EdgespecError]  # what the next loads raise
    reading: threading.Event  # the saved settings are read when this is set

    @property
    def runtime(self) -> FakeRuntime:
        return self.runtimes[-1]


def stage(
    script: Script | None = None,
    *,
    held: bool = False,
    loading: bool = False,
    unread: bool = False,
    stores: Stores | None = None,
    preferences: Preferences | None = None,
    settings: Settings | None = None,
    choice: Choice | None = None,
    fetcher: Callable[..., None] = lambda pair, told: None,
    remember: str = "",
    tick: float = 0.1,
) -> Stage:
    """An app that isn't running yet.

    `held`: rounds wait for `allow`; `loading`: the load waits for `opening`; `unread`: the settings
    wait for `reading`, and what waits for them goes on at last; `tick`: seconds from
    one look at the events to the next, whatever drawing takes.
    """
    clock = Clock()
    opening = threading.Event()
    if not loading:
        opening.set()
    reading = threading.Event()
    if not unread:
        reading.set()
    found: list[FakeRuntime] = []
    fail: list[EdgespecError] = []

    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        while not opening.wait(0.01):
            options["report"]("loading")  # raises where the load was dropped
        if fail:
            raise fail.pop(0)
        found.append(FakeRuntime(script or Script(), clock, held=held))
        return found[-1]

    def settings_of(choice: Choice) -> Settings:
        reading.wait(5)  # a screen that waits for it goes on at last, and the test fails
        return settings or Settings()

    app = ChatApp(
        Bridge(opener, fetcher, clock),  # type: ignore[arg-type]
        choice or Choice("tiny"),
        settings_of,
        stores or Stores(),
        preferences or Preferences(),
        remember=remember,
        tick=tick,
        spent=lambda: 0.0,
        clock=clock,
        wall_clock=clock,
    )
    return Stage(app, clock, found, opening, fail, reading)


Body = Callable[[Any, Stage], Awaitable[None]]


def drive(
    the_stage: Stage, body: Body, size: tuple[int, int] = (100, 30), *, settles: bool = True
) -> None:
    """Run an app and what a test does with it; the bridge's thread must end too.

    `settles`: all is saved then.
    """

    async def run() -> None:
        async with the_stage.app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await body(pilot, the_stage)
        assert the_stage.app.bridge.close(5)
        the_stage.app.stores.writing.settle(forever=True)
        if settles and (history := the_stage.app.stores.history) is not None:
            history.saving.settle(forever=True)

    asyncio.run(run())


def answers(app: ChatApp) -> list[items.Answer]:
    """Those on the screen and above it."""
    return [item for item in app.transcript.document.items if isinstance(item, items.Answer)]


def notices(app: ChatApp) -> str:
    """What the person was told in passing."""
    return "\n".join(notification.message for notification in app._notifications)


def noting(copied: list[str]) -> Callable[..., Callable[[], str]]:
    """A `clipboard.copy` that notes what it is given."""

    def copy(text: str, *_: Any) -> Callable[[], str]:
        copied.append(text)
        return lambda: "ok"

    return copy


async def until(condition: Callable[[], bool], pilot: Any, what: str = "") -> None:
    """Let the app go on until something is so."""
    for _ in range(1000):
        if condition():
            await pilot.pause()
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came to that: {what or condition}")


async def settled(pilot: Any) -> None:
    """Until the pair is loaded, no answer is under way, and all turns are saved."""
    app: ChatApp = pilot.app

    def over() -> bool:
        history = app.stores.history
        saving = app.stores.writing.pending or (history is not None and history.saving.pending)
        return not app.busy and not app.talk.waiting and not saving

    await until(over, pilot, "settled")
    await pilot.pause()


async def say(pilot: Any, text: str) -> None:
    """Write a message and send it."""
    pilot.app.composer.put(text)
    await pilot.press("enter")
    await pilot.pause()


def screen_text(app: Any) -> str:
    """What the screen shows, as plain text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.size)
    assert len(lines) == height and width
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def store(folder: Path) -> Stores:
    """Real stores in a folder."""
    from edgespec.tui.history import History
    from edgespec.tui.settings_file import SettingsFile

    return Stores(History(folder / "conversations"), SettingsFile(folder / "settings.toml"))
