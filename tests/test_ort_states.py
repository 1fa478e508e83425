"""Hybrid ONNX models: states of a fixed size beside a cache, which can't be cut back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from interrupting import Interrupted, at_each_bytecode, ctrl_c
from tiny_onnx import write_tiny_onnx

from edgespec.backends import LoadOptions, load_model, ort_cache, ort_states
from edgespec.backends import ort as backend
from edgespec.backends.ort_memory import HostBlock
from edgespec.errors import ModelError, ModelFormatError, RollbackError
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY
from edgespec.session import CancelFlag, Model

NEAR = 0.02  # of logits over a range of ten and more: sums in another order
TEXT = [3, 4, 5, 6, 7, 8, 9, 10]
LFM2: dict[str, Any] = {"states": ["conv"], "rows": "num_logits_to_keep"}
KINDS: dict[str, dict[str, Any]] = {
    "convolution": LFM2,
    "both": {"states": ["conv", "recurrent"]},
    "in place": {"states": ["conv", "recurrent"], "attention": "gqa", "positions": False},
    "mask ignored": {"states": ["recurrent"], "ignores_mask": True},
    "merged": {"states": ["recurrent"], "merged": True},
    "no attention": {"states": ["recurrent"], "cached": False},
}


def opened(folder: Path, **options: Any) -> Model:
    return load_model(folder, LoadOptions(**{"threads": 1, **options}), CancelFlag())


def from_scratch(folder: Path, tokens: list[int]) -> np.ndarray:
    """Every row, by ONNX Runtime alone, behind states of zeros."""
    native = onnxruntime.InferenceSession(folder / "model.onnx")
    given: dict[str, Any] = {
        "input_ids": [tokens],
        "attention_mask": [[1] * len(tokens)],
        "position_ids": [range(len(tokens))],
        "num_logits_to_keep": len(tokens),
    }
    feeds = {}
    for entry in native.get_inputs():
        if entry.name.startswith("past"):
            shape = [1, *(size if isinstance(size, int) else 0 for size in entry.shape[1:])]
            feeds[entry.name] = np.zeros(shape, np.float32)
        elif entry.name == "use_cache_branch":
            feeds[entry.name] = np.array([False])
        else:
            feeds[entry.name] = np.array(given[entry.name], np.int64)
    return native.run(["logits"], feeds)[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_passes_of_any_size_give_what_one_pass_gives(kind: str, tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, **KINDS[kind])
    model = opened(folder, context_size=256)
    session = model.session
    assert not session.can_rollback and not model.only_drafts
    assert any("runs without speculation" in note for note in model.notes)
    assert model.details["cache"] == (
        "in place" if kind in ("in place", "no attention") else "grown"
    )
    rng = np.random.default_rng(3)
    text = rng.integers(3, 200, 90).tolist()
    expected = from_scratch(folder, text)
    assert np.ptp(expected) > 10  # against which NEAR is rounding
    assert np.abs(expected[-1] - from_scratch(folder, text[-20:])[-1]).max() > 0.1
    for _ in range(2):  # the second time behind states that are none of the text's
        rows: list[np.ndarray] = []
        while session.length < len(text):
            piece = text[session.length :][: int(rng.integers(1, 7))]
            rows.append(session.forward(piece, len(piece)).copy())
        assert np.allclose(np.concatenate(rows), expected, atol=NEAR)
        with pytest.raises(RollbackError, match="can't forget a part"):
            session.rollback(50)
        assert session.length == len(text)
        session.rollback(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_fails_leaves_the_states_or_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_onnx(tmp_path, **KINDS[kind])
    session: Any = opened(folder).session
    session.forward(TEXT)
    run = session._run
    left = [0]

    def some(tokens: int) -> None:
        left[0] -= 1
        run(tokens)
        if left[0] < 0:
            raise ModelError("the device was removed")

    monkeypatch.setattr(session, "_run", some)
    with pytest.raises(ModelError, match="was removed"):
        session.forward([11, 12])
    assert session.length == len(TEXT)
    left[0] = 9
    expected = from_scratch(folder, [*TEXT, 13])[-1]
    assert np.allclose(session.forward([13]), expected, atol=NEAR)
    monkeypatch.setattr(session, "_chunk", 4)
    left[0] = 1
    with pytest.raises(ModelError, match="was removed"):
        session.forward([11, 12, 14, 15, 16])  # the first of two passes was made
    assert session.length == 0
    left[0] = 9
    assert np.allclose(session.forward([*TEXT, 13]), expected, atol=NEAR)


@pytest.mark.parametrize("kind", ["both", "mask ignored", "in place"])
def test_ctrl_c_at_any_point_leaves_the_text_that_the_length_says(
    kind: str, tmp_path: Path
) -> None:
    folder = write_tiny_onnx(tmp_path, **KINDS[kind])
    session = opened(folder).session
    texts = [[], TEXT, [*TEXT, 11], [5, 6]]
    after = list(range(14, 24))
    expected = {len(held): from_scratch(folder, [*held, *after])[-10:] for held in texts}
    left = set()

    def run(interrupted: Interrupted) -> None:
        session.rollback(0)
        session.forward(TEXT)
        try:
            interrupted(ctrl_c)
            session.forward([11])
            session.rollback(0)
            session.forward([5, 6])
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        length = session.length
        left.add(length)
        assert np.allclose(session.forward(after, 10), expected[length], atol=NEAR)

    where = (backend.OrtSession.forward, backend.OrtSession._forward, backend.OrtSession._pass)
    assert at_each_bytecode(run, ort_states, ort_cache, *where, raises=True) > 10
    assert left == expected.keys()


def test_states_on_a_device_are_zeroed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FarBlock(HostBlock):
        """Memory of a device: only copies reach the host."""

        def load(self) -> Any:
            return self._data.copy()

        def blank(self) -> Any:
            return np.full(len(self._data), 255, np.uint8)  # NaN, where somebody reads it

        def store(self, data: Any) -> None:
            self._data[:] = data

    monkeypatch.setattr(ort_states, "allocate", lambda state, *_: FarBlock(state.nbytes))
    folder = write_tiny_onnx(tmp_path, **KINDS["both"])
    session = opened(folder).session
    session.forward(TEXT)
    expected = from_scratch(folder, TEXT)[-1]
    session.rollback(0)
    assert np.allclose(session.forward(TEXT), expected, atol=NEAR)
    assert np.allclose(session.forward([13]), from_scratch(folder, [*TEXT, 13])[-1], atol=NEAR)


def test_a_hybrid_model_is_a_target_without_drafters(tmp_path: Path) -> None:
    folder = write_tiny_onnx(tmp_path, **LFM2)
    tokens = []
    for drafters in ([], ["lookup"]):
        with Runtime.open(
            target=folder, drafters=drafters, lookahead=3 * len(drafters), threads=1
        ) as runtime:
            assert not runtime.drafters
            tokens.append(runtime.generate([3, 70, 80, 90], GREEDY, max_tokens=30).result.tokens)
    assert tokens[0] == tokens[1]
    text = [3, 70, 80, 90]
    for token in tokens[0]:
        assert token == int(from_scratch(folder, text)[-1].argmax())
        text.append(token)


def test_keys_of_a_fixed_size_are_no_state(tmp_path: Path) -> None:
    """As graphs for NPUs have them: there is room for so many tokens."""
    graph = write_tiny_onnx(tmp_path) / "model.onnx"
    model = onnx.load(graph)
    for value in (*model.graph.input, *model.graph.output):
        if "key" in value.name or "value" in value.name or "present" in value.name:
            value.type.tensor_type.shape.dim[2].dim_value = 64
    onnx.save(model, graph)
    with pytest.raises(ModelFormatError, match=r"can't follow: past_key_values\.0\.key has"):
        opened(tmp_path)
