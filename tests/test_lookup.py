"""The lookup drafter against a search through the whole text."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupting import Interrupted, at_each_bytecode, ctrl_c

from edgespec.drafters.lookup import LONGEST_MATCH, LookupDrafter
from edgespec.errors import ConfigError
from edgespec.sampling import GREEDY, Sampler
from edgespec.session import TokenIds
from edgespec.verify import Draft

SAMPLER = Sampler(GREEDY, 1000)


def propose(drafter: LookupDrafter, tokens: list[int], max_tokens: int = 5) -> list[int]:
    return list(drafter.propose(np.array(tokens, np.int32), max_tokens, SAMPLER).tokens)


def search(tokens: list[int], max_tokens: int, smallest: int, largest: int) -> list[int]:
    """What followed the longest, then the most recent, earlier occurrence of the newest tokens."""
    n = len(tokens)
    for size in range(largest, smallest - 1, -1):
        for end in range(n - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[n - size :]:
                text = list(tokens)
                for i in range(max_tokens):
                    text.append(text[end + i])
                return text[n:]
    return []


# Each step: how many of the newest tokens go, and what comes.
STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=12)), min_size=1, max_size=12
)


@given(STEPS, st.integers(1, 7), st.integers(1, 3), st.integers(0, 4))
def test_it_finds_what_a_search_finds(
    steps: list[tuple[int, list[int]]], max_tokens: int, smallest: int, more: int
) -> None:
    drafter = LookupDrafter(smallest, smallest + more)
    tokens = [0]
    for back, new in steps:
        del tokens[max(1, len(tokens) - back) :]
        tokens += new
        expected = search(tokens, max_tokens, smallest, smallest + more)
        ids = np.array(tokens, np.int32)
        guess = drafter.propose(ids, max_tokens, SAMPLER)
        assert list(guess.tokens) == expected
        # However the text came to be what it is.
        anew = LookupDrafter(smallest, smallest + more).propose(ids, max_tokens, SAMPLER)
        assert guess.confidence == anew.confidence


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.data())
def test_rounds_left_out_make_no_difference(tokens: list[int], data: st.DataObject) -> None:
    """Indexed token by token, in one go, or both: the same guesses, as sure of themselves."""

    def propose(drafter: LookupDrafter, tokens: list[int]) -> Draft:
        return drafter.propose(np.array(tokens, np.int32), 5, SAMPLER)

    often, seldom = LookupDrafter(), LookupDrafter()
    at = sorted(data.draw(st.lists(st.integers(1, len(tokens)), max_size=4)))
    for length in at:
        propose(seldom, tokens[:length])
    for length in range(1, len(tokens) + 1):
        propose(often, tokens[:length])
    assert propose(often, tokens) == propose(seldom, tokens) == propose(LookupDrafter(), tokens)


def test_the_longest_match_wins_over_a_newer_one() -> None:
    assert propose(LookupDrafter(), [1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3], 1) == [7]


def test_of_two_as_long_the_newer_one_wins() -> None:
    assert propose(LookupDrafter(), [1, 2, 7, 9, 1, 2, 8, 9, 1, 2], 2) == [8, 9]


def test_a_repeat_goes_on_repeating() -> None:
    assert propose(LookupDrafter(), [5, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert propose(LookupDrafter(), [4, 4, 4], 5) == [4] * 5


def test_a_long_match_counts_its_whole_length() -> None:
    def confidence(matched: int, before: int = 0) -> float:
        text = [*range(100, 100 + before), *range(matched), 98, *range(200, 210), *range(matched)]
        return LookupDrafter().propose(np.array(text, np.int32), 1, SAMPLER).confidence[0]

    assert [confidence(n) for n in (2, 7, 8, 9, 20)] == [2.0, 7.0, 8.0, 9.0, 20.0]
    assert confidence(20, before=5) == 20.0
    assert confidence(60) == LONGEST_MATCH
    again = LookupDrafter().propose(np.array([7] * 30, np.int32), 2, SAMPLER)
    assert again.confidence == (29.0, 30.0)  # it may run into what it copies


def test_a_guess_ends_with_the_token_that_ends_the_text() -> None:
    text = np.array([1, 2, 3, 9, 4, 1, 2], np.int32)
    guess = LookupDrafter().propose(text, 5, Sampler(GREEDY, 1000, ends={9}))
    assert (guess.tokens, guess.confidence) == ((3, 9), (2.0, 3.0))


def test_nothing_to_go_by() -> None:
    drafter = LookupDrafter()
    assert propose(drafter, [1]) == []
    assert propose(drafter, [1, 2, 3]) == []
    assert propose(drafter, [1, 2, 1, 2], 0) == []


def test_the_first_token_can_be_replaced() -> None:
    drafter = LookupDrafter(1, 2)
    assert propose(drafter, [1, 2, 1], 1) == [2]
    assert propose(drafter, [2, 1, 2], 1) == [1]
    assert propose(drafter, [3, 1, 2], 1) == []


@pytest.mark.parametrize("sizes", [(0, 3), (3, 2), (-1, -1)])
def test_sizes_that_make_no_sense(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        LookupDrafter(*sizes)


class Counting(dict[int, int]):
    """Counts what is asked of it."""

    operations = 0

    def get(self, *args: Any) -> Any:
        self.operations += 1
        return super().get(*args)

    def __setitem__(self, key: int, value: int) -> None:
        self.operations += 1
        super().__setitem__(key, value)

    def __delitem__(self, key: int) -> None:
        self.operations += 1
        super().__delitem__(key)

    def __iter__(self) -> Any:
        raise AssertionError("the index must never be walked")


def test_a_token_costs_the_same_however_long_the_text() -> None:
    drafter = LookupDrafter()
    index = drafter._last = Counting()
    tokens = np.random.default_rng(0).integers(0, 30, 3000).tolist()
    costs = []
    for length in range(100, len(tokens), 100):
        propose(drafter, tokens[:length])
        before = index.operations
        propose(drafter, tokens[: length + 1])
        costs.append(index.operations - before)
    assert max(costs) <= 3 * 7  # seven sizes: each looked up, replaced, and asked for
    assert min(costs) >= 14


def test_a_guess_that_was_otherwise_before_is_unsure() -> None:
    """The confidence of the first token alone falls to 1: once it stands, the rest is a copy."""

    def letters(text: str) -> TokenIds:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def confidence(text: str) -> tuple[float, ...]:
        return LookupDrafter().propose(letters(text), 3, SAMPLER).confidence

    assert confidence("ab1xyab1xyab") == (7.0, 8.0, 9.0)  # never otherwise
    assert confidence("ab1cab2dab") == (1.0, 3.0, 4.0)
    assert confidence("ab1cab2dab2eab") == (2.0, 3.0, 4.0)  # the same twice: sure again
    # Taken back and read anew, the index is what it would have been.
    drafter = LookupDrafter()
    for end in range(1, 15):
        drafter.propose(letters("ab1cab2dab1eab"[:end]), 3, SAMPLER)
    assert drafter.propose(letters("ab1cab1dab"), 3, SAMPLER).confidence == confidence("ab1cab1dab")


def test_ctrl_c_in_the_middle_of_a_token_leaves_a_lookup_that_works() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]

    def run(interrupted: Interrupted) -> None:
        drafter = LookupDrafter()
        propose(drafter, text[:3])
        propose(drafter, text[:5])
        try:
            interrupted(ctrl_c)
            propose(drafter, [*text[:4], 9])
            propose(drafter, [*text[:2], 9])
        except KeyboardInterrupt:
            pass
        sys.settrace(None)
        for tokens in (text, [*text[:6], 1]):
            assert propose(drafter, tokens) == propose(LookupDrafter(), tokens)

    steps = LookupDrafter._index, LookupDrafter._forget, LookupDrafter._build
    where = (LookupDrafter._sync, *steps)
    assert at_each_bytecode(run, *where, raises=True) > 20
