"""Each sampling step against a slow, obvious reference; what a step may see; what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeSession, fake_model
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.categorical import Categorical, top_ids
from edgespec.confidence import top2_gap
from edgespec.decode import verify
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError, NumericalError
from edgespec.penalties import TokenCounts
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.session import TokenIds
from edgespec.verify import Draft

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)


def reference(
    row: Sequence[float], params: SamplingParams, past: Sequence[int] = ()
) -> dict[int, float]:
    """The distribution over tokens, in plain Python: every step as its definition reads."""
    logits = [float(x) for x in row]
    window = list(past)[-params.penalty_window :] if params.penalty_window else list(past)
    for token, count in Counter(window).items():
        if token < len(logits):
            x, factor = logits[token], params.repetition_penalty
            x = x / factor if x > 0 else x * factor
            logits[token] = x - params.presence_penalty - params.frequency_penalty * count
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in params.banned_tokens:
        logits[token] = -math.inf
    for step in params.steps:
        logits = step(np.array(logits, np.float32), np.array(past, np.int32)).tolist()
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.temperature == 0:
        return {order[0]: 1.0}
    if params.top_k:
        order = order[: params.top_k]
    weights = {i: math.exp((logits[i] - logits[order[0]]) / params.temperature) for i in order}
    probs = normalised(weights)
    if params.typical_p < 1:
        entropy = -sum(p * math.log(p) for p in probs.values() if p > 0)
        typical = sorted(
            (i for i in probs if probs[i] > 0), key=lambda i: abs(-math.log(probs[i]) - entropy)
        )
        probs = normalised({i: probs[i] for i in first_to_reach(typical, probs, params.typical_p)})
        order = sorted(probs, key=lambda i: (-probs[i], i))
    if params.top_p < 1:
        probs = normalised({i: probs[i] for i in first_to_reach(order, probs, params.top_p)})
    if params.min_p > 0:
        least = params.min_p * max(probs.values())
        probs = normalised({i: p for i, p in probs.items() if p >= least})
    return probs


def first_to_reach(order: Sequence[int], probs: Mapping[int, float], mass: float) -> list[int]:
    total, kept = 0.0, []
    for i in order:
        kept.append(i)
        total += probs[i]
        if total >= mass:
            break
    return kept


def normalised(weights: Mapping[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


def as_dict(dist: Categorical) -> dict[int, float]:
    ids = range(len(dist.probs)) if dist.ids is None else dist.ids.tolist()
    return {i: float(p) for i, p in zip(ids, dist.probs.tolist(), strict=True) if p > 0}


def check(row: Sequence[float], params: SamplingParams, past: Sequence[int] = ()) -> None:
    sampler = Sampler(params, len(row), past)
    dist = sampler.distribution(np.asarray(row, np.float32))
    if dist.ids is not None:  # the invariants of a Categorical
        assert (np.diff(dist.probs) <= 0).all()
        assert len(set(dist.ids.tolist())) == len(dist.ids)
    assert float(dist.probs.sum(dtype=np.float64)) == pytest.approx(1, abs=1e-5)
    got, expected = as_dict(dist), reference(row, params, past)
    for probs in (got, expected):  # what float32 can't hold doesn't count
        for token in [token for token, prob in probs.items() if prob < 1e-30]:
            del probs[token]
    assert set(got) == set(expected)
    tokens = list(expected)
    np.testing.assert_allclose(
        [got[t] for t in tokens], [expected[t] for t in tokens], rtol=1e-4, atol=1e-7
    )


def some_row(size: int, seed: int = 0, scale: float = 3.0) -> list[float]:
    """Logits that are float32 already, so that the reference sees the same."""
    rng = np.random.default_rng(seed)
    return rng.normal(scale=scale, size=size).astype(np.float32).tolist()


PAST = [1, 2, 3, 2, 2, 9, 1, 5]

STEPS = {
    "off": OFF,
    "temperature": replace(OFF, temperature=0.7),
    "hot": replace(OFF, temperature=100.0),
    "top_k": replace(OFF, top_k=5),
    "top_k of one": replace(OFF, top_k=1),
    "top_k above the vocabulary": replace(OFF, top_k=10**9),
    "top_p": replace(OFF, top_p=0.803),
    "top_p 0": replace(OFF, top_p=0.0),
    "min_p": replace(OFF, min_p=0.1),
    "min_p hot": replace(OFF, temperature=3.0, min_p=0.1),
    "min_p 1": replace(OFF, min_p=1.0),
    "typical": replace(OFF, typical_p=0.6),
    "repetition": replace(OFF, repetition_penalty=1.7),
    "presence": replace(OFF, presence_penalty=0.9),
    "frequency": replace(OFF, frequency_penalty=0.4),
    "window": replace(OFF, repetition_penalty=1.7, frequency_penalty=0.4, penalty_window=3),
    "bias": replace(OFF, logit_bias={3: 5.0, 4: -5.0, 5: -math.inf}),
    "banned": replace(OFF, banned_tokens=frozenset({0, 7})),
    "usual": SamplingParams(),
    "all": SamplingParams(
        temperature=1.3,
        top_k=30,
        top_p=0.9,
        min_p=0.02,
        typical_p=0.95,
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        penalty_window=6,
        logit_bias={2: 1.0},
        banned_tokens=frozenset({4}),
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("size", [12, 2500])
def test_each_step_is_what_its_definition_says(name: str, size: int) -> None:
    for seed, scale in enumerate((0.3, 1.0, 3.0, 30.0)):
        check(some_row(size, seed, scale), STEPS[name], PAST)


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "usual", "all"])
@pytest.mark.parametrize("size", [12, 2500])
def test_ties_go_to_the_lowest_id(name: str, size: int) -> None:
    rng = np.random.default_rng(4)
    for row in (np.zeros(size), rng.integers(3, size=size), np.arange(size) // 7):
        check(row.astype(float).tolist(), STEPS[name], PAST)


@pytest.mark.parametrize(
    "params",
    [
        replace(OFF, top_p=0.9),
        replace(OFF, top_k=3000),
        replace(OFF, min_p=0.97),
        replace(OFF, typical_p=0.7),
        replace(OFF, top_k=4000, top_p=0.9, min_p=0.96),
    ],
)
def test_a_large_support_is_cut_in_the_same_place(params: SamplingParams) -> None:
    """Thousands of tokens stay, so that none of the shortcuts for small supports applies."""
    row = some_row(9000, 5, 0.01)
    dist = Sampler(params, 9000).distribution(np.array(row, np.float32))
    expected = reference(row, params)
    # Nearly equal probabilities: rounding may move the cut by a few tokens, which weigh nothing.
    assert len(set(as_dict(dist)) ^ set(expected)) <= 0.002 * len(expected)
    assert len(expected) > 1100


def test_the_order_of_steps_shows() -> None:
    """A bias lifts a token into the top k; the temperature decides what top-p keeps."""
    row = [3.0, 2.0, 1.0, 0.0]
    dist = Sampler(replace(OFF, top_k=1, logit_bias={3: 9.0}), 4).distribution(np.float32(row))
    assert as_dict(dist) == {3: 1.0}
    cold = Sampler(replace(OFF, temperature=0.2, top_p=0.9), 4).distribution(np.float32(row))
    hot = Sampler(replace(OFF, temperature=9.0, top_p=0.9), 4).distribution(np.float32(row))
    assert len(as_dict(cold)) == 1
    assert len(as_dict(hot)) == 4
    # The penalty comes first: without it, the bias alone would leave 0 in front.
    params = replace(OFF, repetition_penalty=10.0, logit_bias={0: -0.5}, top_k=1)
    assert as_dict(Sampler(params, 4, [0]).distribution(np.float32(row))) == {1: 1.0}
    # A ban holds whatever the bias, and the user's step has the last word on the logits.
    params = replace(OFF, logit_bias={0: 50.0}, banned_tokens=frozenset({0}), top_k=1)
    assert as_dict(Sampler(params, 4).distribution(np.float32(row))) == {1: 1.0}


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-6])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_tiny_temperature_is_the_argmax(temperature: float, top_k: int) -> None:
    for size in (8, 9000):
        row = np.float32(some_row(size, scale=1e4))
        params = replace(OFF, temperature=temperature, top_k=top_k)
        sampler = Sampler(params, size)
        assert as_dict(sampler.distribution(row)) == {int(row.argmax()): pytest.approx(1)}
        tied = np.zeros(size, np.float32)  # even here, equal logits are equally likely
        assert len(as_dict(sampler.distribution(tied))) == (top_k or size)


def test_greedy_computes_no_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpy.exp", None)
    row = np.float32(some_row(50))
    sampler = Sampler(replace(GREEDY, repetition_penalty=1.1), 50, PAST)
    assert sampler.argmax(row) in range(50)
    assert sampler.distribution(row).probs.tolist() == [1.0]


def test_all_tokens_banned_is_a_clear_error() -> None:
    for params in (OFF, GREEDY, replace(OFF, seed=1), replace(OFF, top_k=3)):
        sampler = Sampler(replace(params, banned_tokens=frozenset(range(6))), 6)
        with pytest.raises(NumericalError, match=r"no token is left .* every one is banned"):
            sampler.distribution(np.zeros(6, np.float32))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [OFF, GREEDY, SamplingParams(), replace(OFF, seed=3)])
def test_bad_logits_are_an_error_that_names_the_model(bad: float, params: SamplingParams) -> None:
    row = np.float32(some_row(9000))
    row[4321] = bad
    for extra in ({}, {"banned_tokens": frozenset({4321})}, {"frequency_penalty": 0.5}):
        sampler = Sampler(replace(params, **extra), 9000, [4321])
        with pytest.raises(NumericalError, match=r"tiny\.gguf returned (nan|inf)"):
            sampler.named("tiny.gguf").distribution(row)
        with pytest.raises(NumericalError, match=r"tiny\.gguf returned (nan|inf)"):
            sampler.named("tiny.gguf").argmax(row)


def test_minus_infinity_is_a_token_that_never_comes() -> None:
    row = np.full(6, -np.inf, np.float32)
    row[2] = -3.0
    for params in (OFF, GREEDY, SamplingParams(), replace(OFF, seed=3)):
        assert as_dict(Sampler(params, 6).distribution(row)) == {2: 1.0}


def test_a_setting_that_overflows_is_not_blamed_on_the_model() -> None:
    row = np.full(4, 3e38, np.float32)
    sampler = Sampler(replace(OFF, repetition_penalty=1e-6), 4, [1])
    with np.errstate(over="ignore"), pytest.raises(NumericalError, match="use smaller numbers"):
        sampler.distribution(row)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, "0.7", None]),
        ("top_k", [-1, 40.0, "40", None]),
        ("top_p", [-0.1, 1.1, math.nan, "1"]),
        ("min_p", [-0.1, 1.1]),
        ("typical_p", [0.0, 1.1]),
        ("repetition_penalty", [0.0, -1.0, math.inf]),
        ("presence_penalty", [math.nan]),
        ("frequency_penalty", [math.inf]),
        ("penalty_window", [-1, 64.0]),
        ("seed", [-1, 42.5, "42"]),
        ("logit_bias", [{"123": -5}, {1.0: -5}, {1: "-5"}]),
        ("banned_tokens", [frozenset({"123"})]),
        ("rule", ["maybe"]),
    ],
)
def test_settings_are_checked_when_made(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {"temperature": 0.5, "top_k": 2, "seed": 1}
    plain = SamplingParams(**given, logit_bias={1: 2.0})
    typed = {name: np.asarray(value)[()] for name, value in given.items()}
    params = SamplingParams(**typed, logit_bias={np.int32(1): np.float32(2)})  # type: ignore[dict-item]
    row = np.zeros(6, np.float32)
    for position in range(9):
        choices = [Sampler(each, 6).choose(row, (), position) for each in (params, plain)]
        assert choices[0] == choices[1]


def test_biased_and_banned_tokens_must_exist() -> None:
    for extra in ({"logit_bias": {6: 1.0}}, {"banned_tokens": frozenset({-1})}):
        with pytest.raises(ConfigError, match=r"not in the vocabulary \(0 to 5\)"):
            Sampler(replace(OFF, **extra), 6)
    for bias in (math.nan, math.inf, 1e39):
        with pytest.raises(ConfigError, match="logit_bias of token 3"):
            replace(OFF, logit_bias={3: bias})


def test_a_seed_alone_selects_reproducible() -> None:
    for seed, rule, expected in (
        (None, None, "rejection"),
        (5, None, "reproducible"),
        (5, "rejection", "rejection"),
        (None, "reproducible", "reproducible"),
    ):
        assert Sampler(replace(OFF, seed=seed, rule=rule), 6).rule == expected


# -- penalties ---------------------------------------------------------------------------------


def test_the_prompt_counts() -> None:
    row = [2.0, 1.0, 0.5, -1.0]
    check(row, replace(OFF, repetition_penalty=1.5), [0, 0, 3])
    row32 = np.float32(row)
    assert Sampler(replace(GREEDY, presence_penalty=1.5), 4, [0]).argmax(row32) == 1
    assert Sampler(replace(GREEDY, frequency_penalty=0.6), 4, [0]).argmax(row32) == 0
    assert Sampler(replace(GREEDY, frequency_penalty=0.6), 4, [0, 0]).argmax(row32) == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 11), max_size=9), max_size=8),
    st.lists(st.lists(st.integers(0, 11), max_size=9), max_size=8),
    st.integers(0, 7),
)
def test_counting_forth_and_back_is_counting_afresh(
    pushes: list[list[int]], aheads: list[list[int]], window: int
) -> None:
    width = 9  # ids 9 to 11 are padding
    counted = TokenCounts(width, window)
    past: list[int] = []
    for tokens in [[], *pushes]:
        counted.push(tokens)
        past += tokens
        for ahead in [[], *aheads, []]:
            ids, counts = counted.counts(ahead)
            seen = [*past, *ahead]
            expected = Counter(t for t in (seen[-window:] if window else seen) if t < width)
            assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == dict(expected)
            assert counted.tokens(ahead).tolist() == seen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 7), max_size=12),
    st.lists(st.integers(0, 7), max_size=4),
    st.integers(0, 5),
    st.floats(0.5, 2.0),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_penalties_with_a_draft_ahead_are_those_of_the_whole(
    past: list[int],
    ahead: list[int],
    window: int,
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    params = replace(
        OFF,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        penalty_window=window,
    )
    row = np.float32(some_row(8))
    before = row.copy()
    drafted = Sampler(params, 8, past).adjusted(row, ahead)
    committed = Sampler(params, 8, [*past, *ahead]).adjusted(row)
    assert drafted.tolist() == committed.tolist()
    assert row.tolist() == before.tolist()  # the session's own memory is left alone


# -- the user's own steps ----------------------------------------------------------------------


class Watcher:
    """A step that writes down what it saw."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, logits: np.ndarray, tokens: TokenIds) -> np.ndarray:
        self.seen.append(tokens.tolist())
        return logits


def test_a_step_sees_the_tokens_before_its_row_and_nothing_after() -> None:
    for params in (GREEDY, OFF, replace(OFF, seed=1)):
        watcher = Watcher()
        sampler = Sampler(replace(params, steps=(watcher,)), 8, [5, 6])
        draft = ModelDrafter(fake_model(FakeSession(8))).propose(np.array([5, 6]), 4, sampler)
        tokens = list(draft.tokens)
        assert watcher.seen == [[5, 6, *tokens[:i]] for i in range(4)]
        watcher.seen.clear()
        target = FakeSession(8)
        rows = target.forward([5, 6, *tokens], 5)
        verdict = verify(rows, draft, sampler, 2)
        assert verdict.num_accepted == 4  # the drafter is the target
        assert watcher.seen == [[5, 6, *tokens[:i]] for i in range(5)]
        watcher.seen.clear()
        sampler.commit([*tokens, verdict.next_token])
        sampler.distribution(rows[0])
        assert watcher.seen == [[5, 6, *tokens, verdict.next_token]]


def test_a_step_can_change_its_arguments_without_harm() -> None:
    def spoil(logits: np.ndarray, tokens: TokenIds) -> np.ndarray:
        tokens[:] = 0
        logits[:] = 0
        logits[3] = 9
        return logits

    sampler = Sampler(replace(GREEDY, steps=(spoil,), repetition_penalty=1.5), 8, [5, 6])
    row = np.float32(some_row(8))
    assert sampler.argmax(row) == 3
    assert row.tolist() == some_row(8)
    assert sampler.adjusted(row).tolist() == sampler.adjusted(row).tolist()


@pytest.mark.parametrize(
    "wrong", [None, np.zeros(7), np.zeros((8, 1)), np.zeros(8, int), [0.0] * 8]
)
def test_a_step_must_return_a_row(wrong: object) -> None:
    def broken(logits: np.ndarray, tokens: TokenIds) -> object:
        return wrong

    sampler = Sampler(replace(OFF, steps=(broken,)), 8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="broken must return an array of 8 logits"):
        sampler.distribution(np.zeros(8, np.float32))


def test_a_step_that_makes_nan_is_named_as_the_cause() -> None:
    def broken(logits: np.ndarray, tokens: TokenIds) -> np.ndarray:
        return logits * np.nan

    sampler = Sampler(replace(OFF, steps=(broken,)), 8)
    with pytest.raises(NumericalError, match="the penalties, biases or steps made nan"):
        sampler.distribution(np.zeros(8, np.float32))


# -- drawing and choosing ----------------------------------------------------------------------


def test_a_token_the_drafter_never_guesses_can_be_forced() -> None:
    for params in (GREEDY, OFF, replace(OFF, seed=1)):
        sampler = Sampler(replace(params, logit_bias={7: 1000.0}), 8)
        draft = Draft((1, 2))  # a lookup's guess: no bias reaches it
        rows = FakeSession(8).forward([5, 6, 1, 2], 3)
        verdict = verify(rows, draft, sampler, 2)
        assert (verdict.num_accepted, verdict.next_token) == (0, 7)


class Fixed(np.random.Generator):
    """Always the same number in [0, 1)."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, *args: object, **kwargs: object) -> float:  # type: ignore[override]
        return self.value


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    for size in (1, 5, 5000):
        for at in (0, size // 2, size - 1):
            probs = np.zeros(size, np.float32)
            probs[at] = 1
            for u in (0.0, 0.5, np.nextafter(1.0, 0), 1.0):
                assert Categorical(None, probs).draw(Fixed(u)) == at


def test_drawing_inverts_the_cumulative_sum() -> None:
    rng = np.random.default_rng(0)
    for size in (3, 5000):
        probs = rng.dirichlet(np.full(size, 0.05))
        cumulative = np.cumsum(probs)
        for u in rng.random(300):
            drawn = Categorical(None, probs).draw(Fixed(u))
            assert cumulative[drawn] >= u * cumulative[-1] - 1e-9
            assert (cumulative[drawn - 1] if drawn else 0) <= u * cumulative[-1] + 1e-9


def test_top_ids_and_gap_are_those_of_a_sort() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 2, 63, 64, 200, 5000):
        for row in (rng.normal(size=size), rng.integers(4, size=size) * 1.0, np.arange(size) * 1.0):
            order = sorted(range(size), key=lambda i: (-row[i], i))
            for k in (1, 2, 40, 100, size):
                assert top_ids(row, k).tolist() == order[:k]
            gap = row[order[0]] - row[order[1]] if size > 1 else 0.0
            assert top2_gap(row) == pytest.approx(gap)
