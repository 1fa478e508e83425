"""The acceptance rules, one position at a time."""

from __future__ import annotations

import numpy as np
import pytest
from chance import ODDS, fit, rate_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.categorical import Categorical
from edgespec.errors import ConfigError, NothingLeft
from edgespec.noise import PositionNoise
from edgespec.verify import (
    NO_DRAFT,
    Draft,
    Verdict,
    residual,
    verify_choices,
    verify_rejection,
    vet,
)

V = 6


def dense(*weights: float) -> Categorical:
    return Categorical(None, np.array(weights) / sum(weights))


def sparse(dist: Categorical) -> Categorical:
    order = np.argsort(-dist.probs, kind="stable")
    order = order[dist.probs[order] > 0]
    return Categorical(order, dist.probs[order])


def all_probs(dist: Categorical, size: int = V) -> np.ndarray:
    return np.array([dist.prob(token) for token in range(size)])


class Script:
    """A generator whose random() is a given list."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)


def decided(draft: Draft, rows: list[Categorical], *values: float) -> tuple[Verdict, list[int]]:
    asked: list[int] = []

    def target_probs(i: int) -> Categorical:
        asked.append(i)
        return rows[i]

    script = Script(*values)
    verdict = verify_rejection(draft, target_probs, script)  # type: ignore[arg-type]
    assert not script.values
    return verdict, asked


def test_acceptance_is_at_the_ratio_of_the_probabilities() -> None:
    target, drafted = dense(1, 3, 0), dense(2, 1, 1)
    rows = [target, dense(0, 0, 1)]
    for token, ratio in ((0, 0.5), (1, 1.0), (2, 0.0)):
        draft = Draft((token,), (drafted,))
        if ratio > 0:
            verdict, asked = decided(draft, rows, ratio - 1e-9, 0.5)
            assert (verdict, asked) == (Verdict(1, 2), [0, 1])
        if ratio < 1:
            verdict, asked = decided(draft, rows, ratio + 1e-9, 0.5)
            assert (verdict, asked) == (Verdict(0, 1), [0])  # all of the residual is on token 1


def test_a_deterministic_guess_stands_with_the_targets_probability() -> None:
    rows = [dense(1, 3), dense(1, 0)]
    assert decided(Draft((0,)), rows, 0.2499, 0.5)[0] == Verdict(1, 0)
    assert decided(Draft((0,)), rows, 0.2501, 0.5)[0] == Verdict(0, 1)


def test_no_draft_draws_from_the_only_row() -> None:
    assert decided(NO_DRAFT, [dense(1, 3)], 0.2)[0] == Verdict(0, 0)
    assert decided(NO_DRAFT, [dense(1, 3)], 0.3)[0] == Verdict(0, 1)


def test_no_row_behind_the_first_rejection_is_asked_for() -> None:
    same = dense(1, 1)
    draft = Draft((0, 0, 0), (same, same, same))
    _, asked = decided(draft, [same, dense(0, 1), same, same], 0.9, 0.9, 0.5)
    assert asked == [0, 1]
    asked.clear()
    chosen = iter([0, 1])
    verdict = verify_choices((0, 0, 0), lambda i: (asked.append(i), next(chosen))[1])
    assert (verdict, asked) == (Verdict(1, 1), [0, 1])


def test_nothing_is_chosen_behind_a_token_that_ends_the_text() -> None:
    sure = dense(0, 1)
    draft = Draft((1, 1, 1), (sure, sure, sure))
    asked: list[int] = []

    def row(i: int) -> Categorical:
        asked.append(i)
        return sure

    verdict = verify_rejection(draft, row, np.random.default_rng(0), {1})
    assert (verdict, asked, verdict.tokens(draft)) == (Verdict(1, None), [0], (1,))
    asked.clear()
    verdict = verify_choices((4, 1, 4), lambda i: (asked.append(i), (4, 1, 4, 4)[i])[1], {1})
    assert (verdict, asked) == (Verdict(2, None), [0, 1])
    # A rejected draft token ends nothing, and what replaces it is the last anyway.
    assert verify_choices((1, 4), lambda i: 4, {1}) == Verdict(0, 4)
    assert verify_choices((4, 4), lambda i: 1, {1}) == Verdict(0, 1)


def test_a_row_of_nothing_is_left_to_the_next_round() -> None:
    def fails(i: int) -> int:
        if i == bad:
            raise NothingLeft("nothing")
        return 4

    sure = dense(0, 0, 0, 0, 1)
    draft = Draft((4, 4), (sure, sure))
    rng = np.random.default_rng(0)
    for bad in (1, 2):
        assert verify_choices((4, 4), fails) == Verdict(bad, None)
        assert verify_rejection(draft, lambda i: (fails(i), sure)[1], rng) == Verdict(bad, None)
    bad = 0
    with pytest.raises(NothingLeft):
        verify_choices((4, 4), fails)
    with pytest.raises(NothingLeft):
        verify_rejection(draft, lambda i: (fails(i), sure)[1], rng)


@pytest.mark.parametrize("prob", [0.0, float("nan")])
def test_a_draft_token_that_its_probs_rule_out_is_refused(prob: float) -> None:
    target, drafted = dense(1, 2, 7), Categorical(None, np.array([prob, 0.5, 0.5]))
    draft = Draft((0,), (drafted,), "mine")
    with pytest.raises(ConfigError, match=r"'mine' gave probs of .* for its draft token 0"):
        verify_rejection(draft, lambda i: target, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("draft", "wrong"),
    [
        (None, "a NoneType where"),
        ([4], "a list where"),
        (Draft((4,) * 4), "4 draft tokens where at most 3"),
        (Draft((4, -1)), "outside the vocabulary"),
        (Draft((4, 6)), r"vocabulary \(0 to 5\)"),
        (Draft((4, 4), confidence=(1.0,)), "1 confidences for 2"),
        (Draft((4, 4), (Categorical.point(4),)), "one Categorical for each"),
        (Draft((4,), np.ones((1, 6))), "one Categorical for each"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_draft_is_refused_by_its_drafters_name(draft: object, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"drafter 'mine' gave .*{wrong}"):
        vet(draft, 3, V, "mine")
    with pytest.raises(ConfigError, match=f"the planner gave .*{wrong}"):
        vet(draft, 3, V)


def test_who_draws_is_not_free() -> None:
    good = Draft((4, 5), (Categorical.point(4), Categorical.point(5)))
    assert vet(good, 2, V) is good and vet(NO_DRAFT, 0, 0) is NO_DRAFT
    with pytest.raises(ConfigError, match="although it is `free`"):
        vet(good, 2, V, "mine", free=True)


def test_choices_are_accepted_while_they_agree() -> None:
    own = [4, 5, 6, 7]
    for drafted, expected in (
        ((), Verdict(0, 4)),
        ((4,), Verdict(1, 5)),
        ((4, 5, 6), Verdict(3, 7)),
        ((4, 9, 6), Verdict(1, 5)),
        ((9, 5, 6), Verdict(0, 4)),
    ):
        assert verify_choices(drafted, own.__getitem__) == expected


def test_a_zero_residual_draws_from_the_target() -> None:
    target = dense(1, 2, 3, 4)
    for a in (target, sparse(target)):
        for b in (target, sparse(target)):
            assert all_probs(residual(a, b)) == pytest.approx(all_probs(target))
    # A drafter that claims too little of what it drew: a rejection with nothing left.
    drafted = Categorical(None, np.array([1.0, 1.0, 1.0, 1.0]))
    verdict, _ = decided(Draft((0,), (drafted,)), [target], 0.99, 0.95)
    assert verdict == Verdict(0, 3)


weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=V, max_size=V).filter(
    any
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(weights, weights, st.booleans(), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_what_comes_out_is_the_target(
    target_weights: list[float],
    draft_weights: list[float],
    sparse_target: bool,
    sparse_draft: bool,
    dtype: type,
) -> None:
    """Summed over every draft token: accepted + recovered = target, for any pair."""
    target, drafted = dense(*target_weights), dense(*draft_weights)
    target = sparse(target) if sparse_target else Categorical(None, target.probs.astype(dtype))
    drafted = sparse(drafted) if sparse_draft else Categorical(None, drafted.probs.astype(dtype))
    target_probs, draft_probs = all_probs(target), all_probs(drafted)
    rest = residual(target, drafted)
    if rest.ids is not None:
        assert (np.diff(rest.probs) <= 0).all()
    accepted = np.minimum(target_probs, draft_probs)
    out = accepted + (1 - accepted.sum()) * all_probs(rest)
    np.testing.assert_allclose(out, target_probs, atol=1e-6)


def test_a_drafter_with_fewer_tokens() -> None:
    target, drafted = dense(1, 1, 1, 5), dense(3, 1)
    expected = np.array([0, 0, 1, 5]) / 6
    for a in (target, sparse(target)):
        for b in (drafted, sparse(drafted)):
            assert all_probs(residual(a, b), 4) == pytest.approx(expected)


def test_a_drafter_with_more_tokens() -> None:
    target, drafted = dense(3, 1), dense(1, 1, 1, 5)
    for a in (target, sparse(target)):
        for b in (drafted, sparse(drafted)):
            assert all_probs(residual(a, b), 2) == pytest.approx([5 / 6, 1 / 6])
            assert decided(Draft((3,), (b,)), [a], 0.0, 0.0)[0] == Verdict(0, 0)


def test_the_acceptance_rate_is_the_overlap() -> None:
    """sum(min(target, draft)); the odds of a false alarm are 1e-6 for each pair."""
    rng, n = np.random.default_rng(3), 8000
    for concentration in (0.2, 1.0, 5.0):
        target, drafted = (
            Categorical(None, rng.dirichlet(np.full(V, concentration))) for _ in range(2)
        )
        overlap = float(np.minimum(target.probs, drafted.probs).sum())
        rows = [target, target]
        verdicts = [
            verify_rejection(Draft((drafted.draw(rng),), (drafted,)), rows.__getitem__, rng)
            for _ in range(n)
        ]
        rate = sum(verdict.num_accepted for verdict in verdicts) / n
        assert abs(rate - overlap) < rate_limit(n, overlap)


# -- noise -------------------------------------------------------------------------------------


def straightforward(noise: PositionNoise, dist: Categorical, position: int) -> int:
    """The race over every id, no shortcut."""
    ids = np.arange(len(dist.probs))
    with np.errstate(divide="ignore"):
        race = noise.exponential(position, ids) / dist.probs.astype(np.float64)
    return int(ids[np.argmin(race)])


SHAPES = {
    "flat": lambda rng, n: np.ones(n),
    "gentle": lambda rng, n: rng.exponential(size=n),
    "steep": lambda rng, n: np.exp(6 * rng.normal(size=n)),
    "one heavy": lambda rng, n: np.where(np.arange(n) == n // 2, n, 1.0),
    "one barely heavy": lambda rng, n: np.where(np.arange(n) == 3, 0.0011 * n, 1.0),
    "mostly zero": lambda rng, n: (rng.random(n) < 0.001) * rng.random(n) + (np.arange(n) == 7),
    "a point": lambda rng, n: (np.arange(n) == n - 1) * 1.0,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [3, 6000])
def test_the_shortcut_chooses_what_the_whole_race_does(shape: str, size: int) -> None:
    rng = np.random.default_rng(5)
    probs = SHAPES[shape](rng, size) + (0 if size > 3 else 1e-9)
    dist = Categorical(None, (probs / probs.sum()).astype(np.float32))
    noise = PositionNoise(11, size)
    chosen = [noise.choose(dist, position) for position in range(400)]
    assert chosen == [straightforward(noise, dist, position) for position in range(400)]
    with np.errstate(divide="ignore"):
        logits = np.log(dist.probs)
    peak = float(logits.max())
    assert chosen == [noise.choose_logits(logits, peak, 1.0, at) for at in range(400)]
    halved = 2 * logits  # at twice the temperature, the same
    assert chosen == [noise.choose_logits(halved, 2 * peak, 2.0, at) for at in range(400)]
    few = Categorical(np.flatnonzero(probs), dist.probs[probs > 0])
    assert chosen[:50] == [noise.choose(few, position) for position in range(50)]


@pytest.mark.parametrize("shape", ["flat", "gentle", "steep"])
def test_chosen_tokens_are_distributed_as_asked(shape: str) -> None:
    """Sparse over positions, over seeds, and dense in bins; 1e-6 odds of a false alarm each."""
    rng = np.random.default_rng(6)
    probs = SHAPES[shape](rng, 8)
    probs /= probs.sum()
    small, cells = Categorical(np.arange(8), probs), dict(enumerate(probs.tolist()))
    noise = PositionNoise(1, 8)
    assert fit([noise.choose(small, position) for position in range(4000)], cells, ODDS).good
    seeds = [PositionNoise(seed, 8).choose(small, 5) for seed in range(1500)]
    assert fit(seeds, cells, ODDS).good
    probs = SHAPES[shape](rng, 6000)
    probs = (probs / probs.sum()).astype(np.float32)
    large, noise = Categorical(None, probs), PositionNoise(2, 6000)
    bins = np.arange(6000) % 12
    cells = dict(enumerate(np.bincount(bins, probs.astype(float)).tolist()))
    cells = {cell: prob / sum(cells.values()) for cell, prob in cells.items()}
    drawn = [int(bins[noise.choose(large, position)]) for position in range(1500)]
    assert fit(drawn, cells, ODDS).good


def test_noise_at_neighbouring_positions_and_seeds_is_independent() -> None:
    """Pairs over 16 cells; 1e-6 odds of a false alarm for each kind of neighbour."""
    dist = Categorical(np.arange(4), np.full(4, 0.25))
    cells = {(a, b): 1 / 16 for a in range(4) for b in range(4)}
    noise = PositionNoise(9, 4)
    chosen = [noise.choose(dist, position) for position in range(8001)]
    assert fit(list(zip(chosen[::2], chosen[1::2], strict=False)), cells).good
    pairs = [
        tuple(PositionNoise(seed + at, 4).choose(dist, 3) for at in (0, 1))
        for seed in range(0, 2400, 2)
    ]
    assert fit(pairs, cells).good
    # The same ids' noise at another position: rank correlation of 6000 values, 5 sigma.
    wide = PositionNoise(9, 6000)
    a, b = (wide.exponential(position, np.arange(6000)).argsort().argsort() for position in (1, 2))
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(6000)


def test_close_distributions_mostly_choose_the_same() -> None:
    """That is what makes the drafter's guesses worth anything: P(differ) <= 2 TV / (1 + TV)."""
    rng = np.random.default_rng(8)
    probs = rng.dirichlet(np.full(50, 0.5))
    other = probs * rng.uniform(0.8, 1.25, size=50)
    other /= other.sum()
    noise = PositionNoise(4, 50)
    a, b = Categorical(None, probs), Categorical(None, other)
    differ = np.mean([noise.choose(a, i) != noise.choose(b, i) for i in range(3000)])
    distance = np.abs(probs - other).sum() / 2
    bound = 2 * distance / (1 + distance)
    assert differ < bound + rate_limit(3000, bound)
