"""The bridge: what it reports, in which order, and that it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import ByteTokenizer, FakeSession, ScriptSession, fake_model
from tui_fakes import ANSWER, Clock, FakeRuntime, Script

from edgespec.chat import Message
from edgespec.errors import Cancelled, FetchError, ModelError
from edgespec.runtime import Runtime
from edgespec.tui import items
from edgespec.tui.bridge import Bridge
from edgespec.tui.messages import (
    Ask,
    Choice,
    DownloadEnded,
    Downloading,
    Event,
    Failed,
    Figures,
    Finished,
    Loaded,
    LoadFailed,
    Loading,
    Settings,
    Streamed,
)

PAIR = Choice("tiny")


class Rig:
    """A bridge on fake runtimes, and all that it said."""

    def __init__(self, script: Script | None = None, *, held: bool = False, **fakes: Any) -> None:
        self.clock = Clock()
        self.runtimes: list[FakeRuntime] = []
        self.options: list[dict[str, Any]] = []
        self.events: list[Event] = []

        def opener(pair: str | None, **options: Any) -> FakeRuntime:
            self.options.append(options)
            self.runtimes.append(FakeRuntime(script or Script(), self.clock, held=held))
            return self.runtimes[-1]

        fakes.setdefault("fetcher", lambda pair, told: None)
        self.bridge = Bridge(fakes.pop("opener", opener), clock=self.clock, **fakes)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            self.events += self.bridge.drain()
            if condition():
                return
            time.sleep(0.005)
        raise AssertionError(self.events)

    def last(self, kind: type) -> Any:
        return next((e for e in reversed(self.events) if isinstance(e, kind)), None)

    def loaded(self) -> Rig:
        self.bridge.open(PAIR, Settings())
        self.until(lambda: self.last(Loaded) is not None)
        return self


def test_an_answer_is_streamed_whole_with_figures_ten_times_a_second() -> None:
    rig = Rig().loaded()
    rig.bridge.ask(Ask(1, (), "hi", Settings()))
    rig.until(lambda: rig.last(Finished) is not None)
    streamed = [e for e in rig.events if isinstance(e, Streamed)]
    assert "".join(e.text for e in streamed) == ANSWER == rig.last(Finished).text
    assert "".join(p.text for e in streamed for p in e.pieces) == ANSWER
    figures = [e for e in rig.events if isinstance(e, Figures)]
    rounds = rig.last(Finished).figures.rounds + 1
    assert rounds * Script().seconds / 0.2 < len(figures) <= rounds * Script().seconds / 0.1 + 2
    assert rig.bridge.close(5) and rig.runtimes[0].closed


def test_probabilities_are_kept_only_when_asked_for() -> None:
    rig = Rig().loaded()
    for turn, wanted in ((1, False), (2, True)):
        rig.bridge.ask(Ask(turn, (), "hi", Settings(), probabilities=wanted))
        rig.until(lambda turn=turn: getattr(rig.last(Finished), "turn", 0) == turn)
        pieces = [p for e in rig.events if isinstance(e, Streamed) and e.turn == turn
                  for p in e.pieces]  # fmt: skip
        assert all((p.probability is not None) == wanted for p in pieces)
    rig.bridge.close(5)


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_stop_ends_the_turn_with_what_came(rounds: int) -> None:
    rig = Rig(held=True).loaded()
    rig.bridge.ask(Ask(1, (), "hi", Settings()))
    rig.runtimes[0].allow(rounds)
    if rounds:
        rig.until(lambda: sum(len(e.text) for e in rig.events if isinstance(e, Streamed)) > 9)
    rig.bridge.stop()
    rig.until(lambda: rig.last(Finished) is not None)
    end = rig.last(Finished)
    assert (
        end.reason == "cancelled" and ANSWER.startswith(end.text) and bool(end.text) == (rounds > 0)
    )
    rig.bridge.ask(Ask(2, (), "next", Settings()))
    rig.runtimes[0].free()
    rig.until(lambda: rig.last(Finished).turn == 2)
    assert rig.last(Finished).text == ANSWER
    rig.bridge.close(5)


def test_history_and_continuation_reach_the_runtime() -> None:
    rig = Rig(Script(answers=["more"])).loaded()
    asked = Ask(1, (("q1", "a1"),), "q2", Settings(system="s"), answer="begun ")
    rig.bridge.ask(asked)
    rig.until(lambda: rig.last(Finished) is not None)
    assert [m.content for m in rig.runtimes[0].asked[0]] == ["s", "q1", "a1", "q2", "begun "]
    assert rig.last(Finished).text == "begun more"
    rig.bridge.close(5)


def test_an_answer_goes_on_from_the_tokens_it_was_made_of() -> None:
    """Read as words, they would be others: half a character, a control token that is shown."""
    session = FakeSession(260, order=3, bias={257: -50, 259: -50})
    runtime = Runtime(fake_model(session, ByteTokenizer()))
    rig = Rig(opener=lambda pair, **options: runtime).loaded()
    settings = Settings(temperature=0.0, max_tokens=20)
    rig.bridge.ask(Ask(1, (), "hi", settings))
    rig.until(lambda: rig.last(Finished) is not None)
    text, read = rig.last(Finished).text, list(session.cache)
    assert "\ufffd" in text
    rig.bridge.ask(Ask(2, (), "hi", settings, answer=text))
    rig.until(lambda: rig.last(Finished).turn == 2)
    assert session.cache[: len(read)] == read
    rig.bridge.ask(Ask(3, (), "hi", settings, answer="other"))
    rig.until(lambda: rig.last(Finished).turn == 3)
    assert bytes(session.cache[len(read) - 19 :][:5]) == b"other"
    assert rig.bridge.close(5)


def test_a_character_cut_in_two_is_whole_when_the_answer_goes_on() -> None:
    session = ScriptSession([*"a😀 b😀".encode(), 257], 0, 260)
    runtime = Runtime(fake_model(session, ByteTokenizer()))
    session._prompt_length = len(runtime.encode_messages([Message("user", "hi")]))
    rig = Rig(opener=lambda pair, **options: runtime).loaded()
    text, parts = "", ["a\ufffd", "a😀 b\ufffd", "a😀 b😀"]
    for turn, (limit, whole) in enumerate(zip((3, 5, 9), parts, strict=True), 1):
        read = list(session.cache)
        settings = Settings(temperature=0.0, max_tokens=limit)
        rig.bridge.ask(Ask(turn, (), "hi", settings, answer=text))
        rig.until(lambda turn=turn: getattr(rig.last(Finished), "turn", 0) == turn)
        shown = items.Answer(text)
        for event in rig.events:
            if isinstance(event, Streamed) and event.turn == turn:
                shown.take_back(event.completes)
                shown.append(event.text, event.pieces)
        text = rig.last(Finished).text
        assert text == whole == shown.text and session.cache[: len(read)] == read
    assert rig.bridge.close(5)


def test_an_error_is_a_sentence_and_anything_unforeseen_too() -> None:
    rig = Rig(Script(answers=[ModelError("a sentence")])).loaded()
    rig.bridge.ask(Ask(1, (), "q", Settings()))
    rig.until(lambda: rig.last(Failed) is not None)
    assert rig.last(Failed).error == "a sentence"
    rig.runtimes[0].conversation = None  # type: ignore[assignment, method-assign]
    rig.bridge.ask(Ask(2, (), "q", Settings()))
    rig.until(lambda: rig.last(Failed).turn == 2)
    assert "TypeError" in rig.last(Failed).error
    rig.bridge.close(5)


def test_settings_reach_the_opener() -> None:
    rig = Rig()
    settings = Settings(lookahead=3, drafters=("lookup",), context_size=99, threads=1)
    rig.bridge.open(PAIR, settings)
    rig.until(lambda: rig.last(Loaded) is not None)
    options = rig.options[0]
    assert (options["lookahead"], options["drafters"], options["context_size"]) == (
        3, ["lookup"], 99,
    )  # fmt: skip
    assert options["fetch"] is False
    rig.bridge.close(5)


@pytest.mark.parametrize(
    ("device", "said"),
    [("CPU, 2 threads", "model"), ("GPU", "model (on GPU (CUDA0: a card))"), (None, "model")],
)
def test_where_a_drafter_runs_is_told_unless_it_is_where_the_target_does(
    device: str | None, said: str
) -> None:
    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        runtime = FakeRuntime(Script(), Clock())
        gpus = {"gpus": "CUDA0: a card"} if device == "GPU" else {}
        model = SimpleNamespace(details={} if device is None else {"device": device, **gpus})
        runtime.drafters = {"lookup": object(), "model": SimpleNamespace(model=model)}
        return runtime

    rig = Rig(opener=opener).loaded()
    assert rig.last(Loaded).drafters == ("lookup", said)
    assert rig.bridge.close(5)


def test_a_load_that_another_replaced_is_closed_and_not_reported() -> None:
    go = threading.Event()
    opened: list[FakeRuntime] = []

    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        assert go.wait(5)
        opened.append(FakeRuntime(Script(), Clock()))
        return opened[-1]

    rig = Rig(opener=opener)
    first = rig.bridge.open(PAIR, Settings())
    second = rig.bridge.open(PAIR, Settings())
    go.set()
    rig.until(lambda: rig.last(Loaded) is not None)
    assert rig.last(Loaded).load == second
    assert [e.error for e in rig.events if isinstance(e, LoadFailed) and e.load == first] == [""]
    assert len(opened) == 1 or opened[0].closed
    rig.bridge.close(5)


def test_a_load_that_was_dropped_at_once_leaves_nothing_loaded() -> None:
    """As the event says: the screen knows of no pair then."""
    go = threading.Event()

    def hold() -> None:
        assert go.wait(5)

    rig = Rig().loaded()
    rig.bridge._do(hold)
    rig.bridge.open(PAIR, Settings())
    rig.bridge.cancel_load()
    go.set()
    rig.until(lambda: rig.last(LoadFailed) is not None)
    assert rig.last(LoadFailed).error == "" and rig.runtimes[0].closed
    assert rig.bridge.close(5)


def test_a_fetch_is_told_and_cancelled() -> None:
    started = threading.Event()

    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        for done in range(10_000):
            told("model", done, 10_000)
            started.set()
            time.sleep(0.001)

    rig = Rig(fetcher=fetcher)
    rig.bridge.open(PAIR, Settings())
    rig.until(started.is_set)
    rig.bridge.cancel_load()
    rig.until(lambda: rig.last(LoadFailed) is not None)
    assert rig.last(LoadFailed).error == "" and not rig.runtimes
    started.clear()
    rig.bridge.download("other")
    rig.until(lambda: started.is_set() and rig.last(Downloading).pair == "other")
    rig.bridge.cancel_download("other")
    rig.until(lambda: rig.last(DownloadEnded) is not None)
    assert rig.last(DownloadEnded) == DownloadEnded("other", cancelled=True)
    assert rig.bridge.close(5)


def fetching_once(go: threading.Event, at_once: list[int]) -> Callable[..., None]:
    """A fetcher that holds until `go`; notes how many fetch at a time, and finds what is here."""
    running: list[str | None] = []
    here: set[str | None] = set()

    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        if pair in here:
            return
        running.append(pair)
        at_once.append(len(running))
        try:
            while not go.is_set():
                told("model", 1, 2)
                time.sleep(0.001)
            here.add(pair)
        finally:
            running.remove(pair)

    return fetcher


def test_a_download_of_what_is_being_fetched_joins_it() -> None:
    go, at_once = threading.Event(), list[int]()
    rig = Rig(fetcher=fetching_once(go, at_once))
    rig.bridge.open(PAIR, Settings())
    rig.until(lambda: rig.last(Downloading) is not None)
    rig.bridge.download("tiny")
    time.sleep(0.1)
    rig.events.clear()
    rig.until(lambda: rig.last(Downloading) is not None)
    go.set()
    rig.until(lambda: rig.last(DownloadEnded) is not None and rig.last(Loaded) is not None)
    assert rig.last(DownloadEnded) == DownloadEnded("tiny") and at_once == [1]
    assert rig.bridge.close(5)


def test_stopping_a_download_that_joined_stops_the_fetch() -> None:
    go, at_once = threading.Event(), list[int]()
    rig = Rig(fetcher=fetching_once(go, at_once))
    rig.bridge.open(PAIR, Settings())
    rig.until(lambda: rig.last(Downloading) is not None)
    rig.bridge.download("tiny")
    time.sleep(0.1)
    rig.bridge.cancel_download("tiny")
    rig.until(lambda: rig.last(DownloadEnded) is not None and rig.last(LoadFailed) is not None)
    assert rig.last(DownloadEnded).cancelled and rig.last(LoadFailed).error == ""
    assert at_once == [1] and not rig.runtimes
    rig.bridge.open(PAIR, Settings())
    go.set()
    rig.until(lambda: rig.last(Loaded) is not None)
    assert rig.bridge.close(5)


def test_a_download_that_was_given_up_and_is_asked_for_again_begins_anew() -> None:
    hangs, lets_go, again = threading.Event(), threading.Event(), threading.Event()

    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        if hangs.is_set():
            again.set()
            return
        hangs.set()
        assert lets_go.wait(10)  # a connection that hangs: nothing is told, so nothing can stop it
        told("model", 1, 2)

    rig = Rig(fetcher=fetcher)
    rig.bridge.download("tiny")
    assert hangs.wait(10)
    rig.bridge.download("tiny")  # pressed twice
    rig.bridge.cancel_download("tiny")
    rig.bridge.download("tiny")
    lets_go.set()
    rig.until(lambda: rig.last(DownloadEnded) is not None)
    ended = [event for event in rig.events if isinstance(event, DownloadEnded)]
    assert ended == [DownloadEnded("tiny")] and again.is_set()
    assert rig.bridge.close(5)


def test_a_download_that_is_given_up_twice_ends_in_peace() -> None:
    hangs, lets_go = threading.Event(), threading.Event()

    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        hangs.set()
        assert lets_go.wait(10)
        told("model", 1, 2)

    rig = Rig(fetcher=fetcher)
    before = threading.active_count()
    rig.bridge.download("tiny")
    assert hangs.wait(10)
    rig.bridge.cancel_download("tiny")
    rig.bridge.download("tiny")
    rig.bridge.cancel_download("tiny")
    rig.until(lambda: rig.last(DownloadEnded) is not None)  # the second, which never began
    lets_go.set()
    rig.until(lambda: threading.active_count() <= before)
    ended = [event for event in rig.events if isinstance(event, DownloadEnded)]
    assert ended == [DownloadEnded("tiny", cancelled=True)]
    assert rig.bridge.close(5)


def test_closing_ends_downloads_and_waits_for_them() -> None:
    began: set[str] = set()
    undone: list[str] = []

    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        try:
            while True:
                began.add(str(pair))
                told("model", 1, 2)
                time.sleep(0.001)
        finally:
            time.sleep(0.05)
            undone.append(str(pair))  # what was there in part is taken away

    rig = Rig(fetcher=fetcher)
    for pair in ("a", "b", "c"):
        rig.bridge.download(pair)
    rig.until(lambda: began == {"a", "b", "c"})
    assert rig.bridge.close(20)
    assert sorted(undone) == ["a", "b", "c"]


def test_a_download_that_fails_says_why() -> None:
    def fetcher(pair: str | None, told: Callable[..., None]) -> None:
        raise FetchError("the disk is full")

    rig = Rig(fetcher=fetcher)
    rig.bridge.download("p")
    rig.until(lambda: rig.last(DownloadEnded) is not None)
    assert rig.last(DownloadEnded).error == "the disk is full"


def test_measured_passes_are_told_and_stop_the_load() -> None:
    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        for n in range(1000):
            options["on_pass"]("check", n, 0.01)
            time.sleep(0.002)
        raise AssertionError("it should have been stopped")

    rig = Rig(opener=opener)
    rig.bridge.open(PAIR, Settings())
    rig.until(lambda: any(type(e).__name__ == "Measured" for e in rig.events))
    rig.bridge.cancel_load()
    rig.until(lambda: rig.last(LoadFailed) is not None)
    assert rig.last(LoadFailed).error == ""
    assert rig.bridge.close(5)


def test_reading_weights_is_told_and_can_be_stopped() -> None:
    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        for _ in range(1000):
            options["on_load"]("a\nb.gguf", 0.25)
            time.sleep(0.002)
        raise AssertionError("it should have been stopped")

    rig = Rig(opener=opener)
    load = rig.bridge.open(PAIR, Settings())
    rig.until(lambda: rig.last(Loading) == Loading(load, "loading a b.gguf, 25%"))
    rig.bridge.cancel_load()
    rig.until(lambda: rig.last(LoadFailed) is not None)
    assert rig.last(LoadFailed).error == ""
    assert rig.bridge.close(5)


def test_closing_does_not_wait_for_native_work() -> None:
    stuck, loading = threading.Event(), threading.Event()

    def opener(pair: str | None, **options: Any) -> FakeRuntime:
        loading.set()
        stuck.wait(20)
        raise Cancelled("late")

    rig = Rig(opener=opener)
    rig.bridge.open(PAIR, Settings())
    assert loading.wait(10)
    assert rig.bridge.close(0.05) is False
    stuck.set()
    assert rig.bridge.close(5) is True
