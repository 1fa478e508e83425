"""The sums of `edgespec tune` against ones done by hand."""

from __future__ import annotations

import pytest

from edgespec.costs import Costs
from edgespec.tune import Sample, best, break_even, gain, verdict

# A check of n tokens costs 1 + 0.1 (n - 1), a draft step 0.2; free drafts cost nothing.
FLAT = Costs({"check": {n: 1 + 0.1 * (n - 1) for n in range(1, 18)}, "model": {1: 0.2, 17: 3.4}})
STEEP = Costs({"check": {n: float(n) for n in range(1, 18)}})


def test_gain_is_tokens_over_time() -> None:
    assert gain(FLAT, "model", 0, 0.5) == pytest.approx(1)
    # Two tokens read at first, as after a fully accepted draft: 0.4 + 0.2 + the check of three.
    assert gain(FLAT, "model", 2, 0.5) == pytest.approx(1.75 / (0.6 + 1.2), rel=0.01)
    assert gain(FLAT, None, 2, 0.5) == pytest.approx(1.75 / 1.2, rel=0.01)


def test_a_lookahead_breaks_even_where_its_gain_is_one() -> None:
    rate = break_even(FLAT, "model", 3)
    assert rate is not None
    assert gain(FLAT, "model", 3, rate) == pytest.approx(1, abs=1e-6)
    assert break_even(STEEP, None, 1) is None


def test_the_best_lookahead_grows_with_acceptance_and_may_be_none() -> None:
    looks = [best(FLAT, "model", rate).lookahead for rate in (0.1, 0.5, 0.9)]
    assert looks == sorted(looks)
    assert looks[0] == 0 < looks[-1]
    assert best(STEEP, None, 0.9).lookahead == 0


def test_the_verdict_names_what_pays_or_says_that_nothing_does() -> None:
    assert "Speculation pays" in verdict(
        FLAT, {"lookup": Sample(0.8), "model": Sample(0.1)}, {"lookup"}
    )
    assert "does not pay" in verdict(STEEP, {"lookup": Sample(0.9)}, {"lookup"})
    assert "No drafter had a guess" in verdict(FLAT, {"lookup": None}, {"lookup"})


def test_where_nothing_pays_the_one_that_loses_least_is_named() -> None:
    steep = Costs({"check": {n: float(n) for n in range(1, 18)}, "model": {1: 0.1, 17: 1.7}})
    said = verdict(steep, {"lookup": Sample(0.2), "model": Sample(0.7)}, {"lookup"})
    assert "does not pay" in said and "the best drafter, model," in said
    assert "would give 0.77" in said  # 1.7 tokens in the time of 2 + 0.2


def test_a_drafter_that_seldom_has_a_guess_gains_little() -> None:
    # Half of the rounds as above, half of them plain.
    assert gain(FLAT, None, 2, 0.5, 0.5) == pytest.approx(1.375 / 1.1, rel=0.01)
    seldom = {"lookup": Sample(0.9, 0.05), "model": Sample(0.8)}
    assert "model had its next" in verdict(FLAT, seldom, {"lookup"})
    assert "a guess in 60% of the rounds" in verdict(FLAT, {"lookup": Sample(0.9, 0.6)}, {"lookup"})
    # 1 + 0.16 tokens in 1.1 plain ones, which is the most that a lookup of this rate gives.
    assert "does not pay" in verdict(FLAT, {"lookup": Sample(0.15)}, {"lookup"})
