"""What every session promises, asked of each kind: by what a forward pass returns afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeSession, fake_model
from tiny_gguf import write_tiny
from tiny_onnx import write_tiny_onnx

from edgespec.backends import LoadOptions, load_model
from edgespec.errors import Cancelled, ContextFull, ModelError, RollbackError
from edgespec.session import CachedSession, CancelFlag, Logits, Model, Session

CONTEXT = 2048
TEXT = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@dataclass
class Kind:
    """How to make a session of one kind, and how closely its numbers repeat."""

    open: Callable[[int, CancelFlag], Model]
    tolerance: float
    models: list[Model]

    def model(self, context_size: int = CONTEXT, cancel: CancelFlag | None = None) -> Model:
        model = self.open(context_size, cancel or CancelFlag())
        self.models.append(model)
        return model

    def session(self, context_size: int = CONTEXT, cancel: CancelFlag | None = None) -> Session:
        return self.model(context_size, cancel).session

    def same(self, a: Logits, b: Logits) -> bool:
        return a.shape == b.shape and bool(np.allclose(a, b, rtol=0, atol=self.tolerance))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", context=CONTEXT, scale=0.15)


ONNX = {
    "in place": {"attention": "gqa", "positions": False},
    "in place, float16": {"attention": "gqa", "positions": False, "cache": "float16"},
    "grown": {},
    "grown, no mask": {"mask": False},
    "grown, bfloat16, merged": {"cache": "bfloat16", "merged": True},
    "chooses rows": {"attention": "gqa", "positions": False, "rows": "logits_rows"},
    "last row alone": {"last_row": True},
    "last row alone, no mask": {"last_row": True, "mask": False},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("onnx")
    return {
        name: write_tiny_onnx(root / str(i), context=CONTEXT, **kinds)
        for i, (name, kinds) in enumerate(ONNX.items())
    }


@pytest.fixture(params=["fake", "llama", *ONNX])
def kind(request: pytest.FixtureRequest, tiny: Path, folders: dict[str, Path]) -> Iterator[Kind]:
    def fake(context_size: int, cancel: CancelFlag) -> Model:
        session = FakeSession(order=12, context_size=context_size, cancel=cancel, seconds=1e-6)
        return fake_model(session)

    def llama(context_size: int, cancel: CancelFlag) -> Model:
        return load_model(tiny, LoadOptions(context_size, threads=1), cancel)

    def onnx(context_size: int, cancel: CancelFlag) -> Model:
        return load_model(folders[request.param], LoadOptions(context_size, threads=1), cancel)

    kinds = {"fake": Kind(fake, 0.0, []), "llama": Kind(llama, 0.1, [])}
    # A float16 cache rounds at other places when rows are computed together.
    rounded = 0.05 if "float16" in request.param else 1e-3
    yield (kind := kinds.get(request.param) or Kind(onnx, rounded, []))
    for model in kind.models:
        model.close()


def long_text(length: int) -> list[int]:
    return np.random.default_rng(length).integers(3, 16, length).tolist()


def one_by_one(session: Session, tokens: list[int]) -> Logits:
    return np.concatenate([session.forward([token]).copy() for token in tokens])


def test_a_pass_over_k_tokens_equals_k_passes(kind: Kind) -> None:
    single = one_by_one(kind.session(), TEXT)
    assert np.ptp(single) > 1  # rows differ by far more than the tolerance
    session = kind.session()
    assert kind.same(session.forward(TEXT, len(TEXT)), single)
    assert session.length == len(TEXT)
    session = kind.session()
    session.forward(TEXT[:4])
    assert kind.same(session.forward(TEXT[4:], 3), single[-3:])


def test_as_many_rows_come_as_were_asked_for(kind: Kind) -> None:
    session = kind.session()
    for rows in (1, 2, 5):
        logits = session.forward(TEXT[:5], rows)
        assert (logits.shape, logits.dtype) == ((rows, session.vocab_size), np.float32)


@pytest.mark.parametrize("kind", ["fake", "llama"], indirect=True)
def test_rows_are_memory_that_the_next_pass_overwrites(kind: Kind) -> None:
    """So who keeps them copies them; sessions of some other kinds give copies anyway."""
    session = kind.session()
    rows = session.forward(TEXT[:5], 2)
    kept = rows.copy()
    session.rollback(0)
    assert np.array_equal(rows, kept)
    session.forward(TEXT[5:], 2)
    assert not np.allclose(rows, kept)


@pytest.mark.parametrize(
    ("length", "rows"),
    [(511, 1), (512, 65), (513, 2), (1024, 64), (1200, 700), (2048, 1)],
)
def test_long_passes_give_the_same_rows(kind: Kind, length: int, rows: int) -> None:
    tokens = long_text(length)
    session, reference = kind.session(), kind.session()
    logits = session.forward(tokens, rows)
    assert logits.shape[0] == rows
    assert session.length == length
    # Another way to the same rows: in pieces that each fit one native batch.
    before = length - rows
    for i in range(0, before, 300):
        reference.forward(tokens[i : min(i + 300, before)])
    parts = [
        reference.forward(part, len(part)).copy()
        for part in (tokens[i : i + 60] for i in range(before, length, 60))
    ]
    assert kind.same(logits, np.concatenate(parts))


@pytest.mark.parametrize("length", [0, 1, 4, 9, 10])
def test_after_a_rollback_it_is_as_if_nothing_had_been_there(kind: Kind, length: int) -> None:
    session, reference = kind.session(), kind.session()
    assert session.can_rollback
    session.forward(TEXT)
    session.rollback(length)
    session.rollback(length)  # absolute, hence idempotent
    assert session.length == length
    other = [13, 14, 3]
    assert kind.same(session.forward(other, 3), reference.forward([*TEXT[:length], *other], 3))


def test_a_rollback_to_more_than_there_is_is_refused(kind: Kind) -> None:
    session = kind.session()
    session.forward(TEXT)
    for length in (len(TEXT) + 1, -1):
        with pytest.raises(RollbackError):
            session.rollback(length)
    assert session.length == len(TEXT)


@pytest.mark.parametrize("size", [256, 250])
def test_a_full_context_leaves_the_cache_as_it_was(kind: Kind, size: int) -> None:
    session, reference = kind.session(size), kind.session(size)
    tokens = long_text(size)
    session.forward(tokens[: size - 6])
    with pytest.raises(ContextFull):
        session.forward(tokens[:7])
    assert session.length == size - 6
    expected = reference.forward(tokens, 1)
    assert kind.same(session.forward(tokens[size - 6 :], 1), expected)  # to the last place
    assert session.length == session.context_size == size
    with pytest.raises(ContextFull):
        session.forward([3])


def test_a_flag_set_before_a_pass_stops_it(kind: Kind) -> None:
    cancel = CancelFlag()
    session, reference = kind.session(cancel=cancel), kind.session()
    session.forward(TEXT)
    cancel.set()
    with pytest.raises(Cancelled):
        session.forward([13, 14])
    assert session.length == len(TEXT)
    cancel.clear()
    assert kind.same(session.forward([13, 14], 2), reference.forward([*TEXT, 13, 14], 2))


def test_a_flag_set_during_a_pass_stops_it(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whose middle, when a part was read: that part is forgotten."""
    cancel = CancelFlag()
    session, reference = kind.session(cancel=cancel), kind.session()
    session.forward(TEXT)
    raise_if_set, lengths = cancel.raise_if_set, []

    def set_at_the_second_look() -> None:
        lengths.append(session.length)
        if len(lengths) == 2:
            cancel.set()
        raise_if_set()

    monkeypatch.setattr(cancel, "raise_if_set", set_at_the_second_look)
    with pytest.raises(Cancelled):
        session.forward(long_text(2000))
    assert lengths[0] == len(TEXT) < lengths[1]
    assert session.length == len(TEXT)
    cancel.clear()
    assert kind.same(session.forward([13, 14], 2), reference.forward([*TEXT, 13, 14], 2))


def test_closing_twice_and_using_it_afterwards(kind: Kind) -> None:
    model = kind.model()
    session = model.session
    session.forward(TEXT)
    session.close()
    session.close()
    for use in (
        lambda: session.forward([3]),
        lambda: session.rollback(0),
        lambda: session.rollback(len(TEXT)),
    ):
        with pytest.raises(ModelError):
            use()
    model.close()
    model.close()


def test_closing_the_model_first(kind: Kind) -> None:
    model = kind.model()
    model.session.forward(TEXT)
    model.close()
    with pytest.raises(ModelError):
        model.session.forward([3])
    model.session.close()


def test_a_failed_pass_is_seen_by_a_cached_session(kind: Kind) -> None:
    cancel = CancelFlag()
    cached, reference = CachedSession(kind.session(256, cancel)), kind.session(256)
    tokens = np.array([*TEXT, 13], np.int32)
    cached.forward(TEXT)
    cancel.set()
    with pytest.raises(Cancelled):
        cached.forward([14, 15])
    cancel.clear()
    with pytest.raises(ContextFull):
        cached.forward(long_text(250))
    cached.align(tokens)
    assert cached.length == len(TEXT)
    assert kind.same(cached.forward([13]), reference.forward(tokens.tolist()))


# What only the native session can get wrong.


@pytest.fixture
def llama(tiny: Path) -> Iterator[Callable[..., Model]]:
    models = []

    def make(cancel: CancelFlag | None = None) -> Model:
        models.append(load_model(tiny, LoadOptions(threads=1), cancel or CancelFlag()))
        return models[-1]

    yield make
    for model in models:
        model.close()


def test_native_code_looks_at_the_flag_itself(
    llama: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = CancelFlag()
    session, reference = llama(cancel).session, llama().session
    session.forward(TEXT)
    monkeypatch.setattr(cancel, "raise_if_set", lambda: None)
    cancel.set()
    with pytest.raises(Cancelled):
        session.forward(long_text(600))
    assert session.length == len(TEXT)
    cancel.clear()
    assert np.allclose(session.forward([13]), reference.forward([*TEXT, 13]), atol=0.1)


@pytest.fixture(params=["llama", "in place", "grown"])
def native(
    request: pytest.FixtureRequest, tiny: Path, folders: dict[str, Path]
) -> Iterator[Callable[..., Model]]:
    path = folders.get(request.param, tiny)
    models = []

    def make(cancel: CancelFlag | None = None) -> Model:
        models.append(load_model(path, LoadOptions(threads=1), cancel or CancelFlag()))
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.mark.parametrize("token", [-1, 100_000, 2**40, -(2**40)])
def test_an_id_outside_the_vocabulary(native: Callable[..., Model], token: int) -> None:
    session, reference = native().session, native().session
    session.forward(TEXT)
    with pytest.raises(ModelError):
        session.forward([3, token])
    assert session.length == len(TEXT)
    assert np.allclose(session.forward([13]), reference.forward([*TEXT, 13]), atol=0.1)


def test_closing_from_another_thread_in_the_middle_of_a_pass(native: Callable[..., Model]) -> None:
    cancel = CancelFlag()
    model = native(cancel)
    session = model.session

    def close_in_the_middle() -> None:
        while session.length == 0:
            time.sleep(0)
        model.close()

    thread = threading.Thread(target=close_in_the_middle, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    with pytest.raises((ModelError, Cancelled)):
        while time.monotonic() < end:
            session.forward(long_text(2000))
            session.rollback(0)
    thread.join(60)
    assert not thread.is_alive()
    assert not cancel.is_set()  # other sessions go on
    with pytest.raises(ModelError):
        session.forward([3])


def test_closing_in_a_signal_handler_in_the_middle_of_a_pass(native: Callable[..., Model]) -> None:
    """The pass ends as one of a closed session does, and only then is its memory freed."""
    model = native()
    session: Any = model.session
    forward, ended = session._forward, []

    def interrupted(*args: Any) -> Logits:
        rows: Logits = forward(*args)
        model.close()
        assert np.isfinite(rows).all()
        return rows

    def use() -> None:
        with pytest.raises(ModelError, match="is closed"):
            session.forward(TEXT)
        with pytest.raises(ModelError, match="is closed"):
            session.rollback(0)
        ended.append(True)

    session._forward = interrupted
    thread = threading.Thread(target=use, daemon=True)  # would wait for itself forever
    thread.start()
    thread.join(60)
    assert ended


@pytest.mark.parametrize("name", ["llama", "in place", "grown"])
def test_what_is_dropped_is_freed(name: str, tiny: Path, folders: dict[str, Path]) -> None:
    path = folders.get(name, tiny)
    model = load_model(path, LoadOptions(threads=1), CancelFlag())
    session: Any = model.session
    session.forward(TEXT)
    weights = session._model if name == "llama" else session._native
    gone = [weakref.ref(session), weakref.ref(weights)]
    del model, weights
    session.forward(TEXT)  # the context keeps its weights
    del session
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


EXIT = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from edgespec.backends import LoadOptions, load_model
from edgespec.errors import Cancelled, ModelError
from edgespec.runtime import Runtime
from edgespec.session import CancelFlag

path = Path({tiny!r})
models = [load_model(path, LoadOptions(threads=1), CancelFlag()) for _ in range(2)]
models[0].session.forward([3, 4, 5])
bare = load_model(path, LoadOptions(threads=1), CancelFlag()).session
runtime = Runtime.open(target=path, drafters=[str(path)], lookahead=2, threads=1)
answer = runtime.generate("abc", max_tokens=50)
next(answer)
busy = load_model(path, LoadOptions(threads=1), CancelFlag()).session
begun = threading.Event()

def forever():
    try:
        while True:
            busy.rollback(0)
            begun.set()
            busy.forward([3] * 2000)
    except (Cancelled, ModelError):
        pass  # closed at the end of the program

if {thread}:
    threading.Thread(target=forever, daemon=True).start()
    begun.wait()
print("end of the program")
"""


@pytest.mark.parametrize("thread", [False, True])
def test_leaving_with_everything_open(tiny: Path, thread: bool) -> None:
    script = EXIT.format(tests=str(Path(__file__).parents[1]), tiny=str(tiny), thread=thread)
    for _ in range(3 if thread else 1):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (0, "end of the program\n")
        assert done.stderr == ""
