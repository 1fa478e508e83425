"""What a model that drafts reads of a text, and what it leaves out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from fakes import FakeSession, fake_model
from hypothesis import given
from hypothesis import strategies as st

from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.reading import FIRST, NEAR, NEWEST
from edgespec.errors import Cancelled, ContextFull
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.session import CancelFlag
from edgespec.verify import NO_DRAFT

V = 16
SAMPLER = Sampler(GREEDY, V)


def text(length: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, V, length).astype(np.int32)


def begun(
    prompt: int, reads: int = 1024, context_size: int = 4096
) -> tuple[ModelDrafter, FakeSession]:
    """A drafter at the beginning of an answer."""
    session = FakeSession(V, context_size=context_size)
    drafter = ModelDrafter(fake_model(session), reads)
    drafter.begin(prompt)
    return drafter, session


def test_of_an_answer_that_went_on_without_it_it_reads_the_newest() -> None:
    tokens = text(400)
    drafter, session = begun(100)
    drafter.propose(tokens[:110], 1, SAMPLER)
    assert drafter.owes(tokens[:300]) == NEWEST
    guess = drafter.propose(tokens[:300], 2, SAMPLER)
    assert session.cache[:-1] == [*tokens[:110], *tokens[300 - NEWEST : 300]]
    assert guess.tokens == begun(300)[0].propose(tokens[:300], 2, SAMPLER).tokens
    # It goes on from there, whether what it drew came or not.
    assert drafter.owes(tokens[:301]) <= 2
    drafter.propose(tokens[:303], 1, SAMPLER)
    assert session.cache == [*tokens[:110], *tokens[300 - NEWEST : 303]]
    # The text is taken back: to behind what was left out, to within it, and to before it.
    for end in (290, 200, 105):
        drafter.propose(tokens[:end], 1, SAMPLER)
        kept = [*tokens[:110], *tokens[300 - NEWEST : 290]] if end == 290 else tokens[:110].tolist()
        missing = tokens[200 - NEWEST : 200].tolist() if end == 200 else []
        assert session.cache == ([*kept, *missing] if end > 110 else tokens[:end].tolist())


def test_a_few_missed_tokens_are_read_all() -> None:
    tokens = text(400)
    drafter, session = begun(100)
    drafter.propose(tokens[:110], 1, SAMPLER)
    drafter.propose(tokens[: 110 + NEWEST * 3 // 2], 1, SAMPLER)
    assert session.cache == tokens[: 110 + NEWEST * 3 // 2].tolist()


def test_of_a_prompt_nothing_is_left_out_nor_of_an_earlier_answer() -> None:
    tokens = text(400)
    drafter, session = begun(300)
    drafter.propose(tokens[:360], 1, SAMPLER)
    assert session.cache == [*tokens[:300], *tokens[360 - NEWEST : 360]]
    drafter.begin(400)  # what was the answer is the next one's prompt
    drafter.propose(tokens, 1, SAMPLER)
    assert session.cache == [*tokens[:300], *tokens[360 - NEWEST :]]


def test_of_a_long_prompt_it_reads_the_start_and_the_newest() -> None:
    tokens = text(400)
    drafter, session = begun(300, reads=50)
    drafter.propose(tokens[:360], 1, SAMPLER)
    assert session.passes == [(FIRST + 50, 1)]
    assert session.cache == [*tokens[:FIRST], *tokens[262:300], *tokens[348:360]]


def test_near_it_reads_the_end_of_a_prompt_and_later_all_of_it() -> None:
    tokens = text(900)
    end = [*tokens[:FIRST], *tokens[700 - NEAR : 700]]
    drafter, session = begun(700)
    assert drafter.owes(tokens[:700]) == 700
    assert drafter.owes(tokens[:700], near=True) == FIRST + NEAR
    drafter.propose(tokens[:700], 1, SAMPLER, near=True)
    assert session.cache == end
    # It goes on from there, and leaves out of the answer what it would otherwise.
    assert drafter.owes(tokens[:710], near=True) == 10
    drafter.propose(tokens[:800], 1, SAMPLER, near=True)
    assert session.cache == [*end, *tokens[800 - NEWEST : 800]]
    # Where it is to know all, it reads all but that, and then knows the end too.
    assert drafter.owes(tokens[:800]) == 700 - FIRST + NEWEST
    drafter.propose(tokens[:800], 1, SAMPLER)
    assert session.cache == [*tokens[:700], *tokens[800 - NEWEST : 800]]
    assert drafter.owes(tokens[:801], near=True) == 1
    # What it read near an earlier answer's prompt doesn't do for a later one.
    drafter.begin(900)
    drafter.propose(tokens, 1, SAMPLER, near=True)
    assert session.cache == [*tokens[:700], *tokens[800 - NEWEST :]]


def test_what_was_left_out_near_is_read_once_all_is_wanted() -> None:
    tokens = text(4000)
    drafter, session = begun(700)
    drafter.propose(tokens[:700], 1, SAMPLER)
    drafter.begin(1300)  # a second turn, with a long question
    drafter.propose(tokens[:1301], 1, SAMPLER, near=True)
    assert session.cache == [*tokens[:700], *tokens[1301 - NEAR : 1301]]
    assert drafter.owes(tokens[:1305], near=True) == 4
    drafter.propose(tokens[:1305], 1, SAMPLER, near=True)
    assert drafter.owes(tokens[:1305]) == 605  # it knows most of the prompt, but not all
    drafter.propose(tokens[:1305], 1, SAMPLER)
    assert session.cache == tokens[:1305].tolist()
    # What is too far back to be read is no matter.
    drafter.begin(2000)
    drafter.propose(tokens[:2000], 1, SAMPLER, near=True)
    drafter.begin(3200)
    assert drafter.owes(tokens[:3200]) == 1024
    drafter.propose(tokens[:3200], 1, SAMPLER)
    drafter.begin(3300)
    assert drafter.owes(tokens[:3300]) == 100


@pytest.mark.parametrize("prompt", [3, 100, FIRST + NEAR, 2 * (FIRST + NEAR)])
def test_a_prompt_that_isnt_long_is_hardly_shorter_near(prompt: int) -> None:
    drafter, _ = begun(prompt)
    shown = text(prompt)
    assert drafter.owes(shown, near=True) == min(prompt, FIRST + NEAR)
    assert 2 * drafter.owes(shown, near=True) >= drafter.owes(shown)


def test_a_text_cut_to_where_it_knows_little_is_read_anew() -> None:
    tokens = text(400)
    drafter, session = begun(400, reads=50)
    drafter.propose(tokens, 1, SAMPLER)
    drafter.begin(355)  # of which it knows five tokens and the first few
    drafter.propose(tokens[:355], 1, SAMPLER)
    assert session.cache == [*tokens[:FIRST], *tokens[305:355]]
    assert session.passes[-1] == (50, 1)


def test_another_text_is_read_from_its_start() -> None:
    drafter, session = begun(100)
    drafter.propose(text(300), 1, SAMPLER)
    other = text(120, seed=1)
    drafter.begin(100)
    drafter.propose(other, 1, SAMPLER)
    assert session.cache == other.tolist()


def test_a_full_context_goes_on_from_the_start_and_the_newest() -> None:
    tokens = text(2000)
    drafter, session = begun(100, context_size=400)
    for end in range(101, 2000, 37):
        drafter.propose(tokens[:end], 2, SAMPLER)
        assert len(session.cache) <= 400
        assert session.cache[:FIRST] == tokens[:FIRST].tolist()
        assert session.cache[-9:-1] == tokens[end - 8 : end].tolist()


def test_a_stopped_read_is_taken_up_again() -> None:
    cancel = CancelFlag()
    session = FakeSession(V, cancel=cancel)
    drafter = ModelDrafter(fake_model(session))
    tokens = text(90)
    drafter.propose(tokens[:60], 1, SAMPLER)
    cancel.set()
    with pytest.raises(Cancelled):
        drafter.propose(tokens, 1, SAMPLER)
    cancel.clear()
    drafter.propose(tokens, 1, SAMPLER)
    assert session.cache == tokens.tolist()


def test_a_pass_that_finds_no_room_ends_the_drafting_alone() -> None:
    """llama.cpp may find no place in a cache although there are tokens enough."""

    class Full(FakeSession):
        def forward(self, tokens: object, num_logits: int = 1) -> npt.NDArray[np.float32]:
            raise ContextFull("fake has no room for 3 more tokens: raise --ctx-size")

    drafter = ModelDrafter(fake_model(Full(V)))
    drafter.begin(20)
    assert drafter.propose(text(20), 3, SAMPLER) == NO_DRAFT
    assert "no room" in drafter.failed


def test_what_it_owes_and_then_reads_is_worked_out_once() -> None:
    tokens = text(300)
    drafter, session = begun(100)
    shared, asked = drafter._cache.shared, []

    def counted(part: npt.NDArray[np.int32]) -> int:
        asked.append(len(part))
        return shared(part)

    drafter._cache.shared = counted  # type: ignore[method-assign]
    for end in (110, 111, 250):
        shown = tokens[:end]
        owed = drafter.owes(shown)
        asked.clear()
        assert len(drafter.propose(shown, 1, SAMPLER)) == 1
        assert asked == [] and session.passes[-1] == (owed, 1)
    # Where it is asked of another text, or behind another prompt, it is worked out anew.
    shown = tokens[:300]
    assert drafter.owes(shown) == NEWEST
    drafter.begin(300)
    assert drafter.owes(shown) == 50
    other = text(300, seed=1)
    drafter.propose(other, 1, SAMPLER)
    assert session.cache == other.tolist()
    assert drafter.owes(shown) > 290


steps = st.lists(
    st.tuples(
        st.booleans(),  # whether an answer begins
        st.integers(1, 90),  # tokens that stay
        st.integers(0, 90),  # new ones behind them
        st.integers(1, 6),
        st.booleans(),  # whether the end of the text is enough
    ),
    max_size=12,
)


@given(steps, st.sampled_from([6, 16, 40, 100, 4096]), st.sampled_from([1, 8, 64, 1024]))
def test_whatever_happens_the_cache_is_a_part_of_the_text(
    steps: list[tuple[bool, int, int, int, bool]], context_size: int, reads: int
) -> None:
    session = FakeSession(V, context_size=context_size)
    drafter = ModelDrafter(fake_model(session), reads)
    tokens = text(3)
    for seed, (begins, stay, new, size, near) in enumerate(steps):
        tokens = np.concatenate([tokens[: -max(1, len(tokens) - stay)], text(1 + new, seed)])
        if begins:
            drafter.begin(len(tokens))
        owed = drafter.owes(tokens, near=near)
        session.passes.clear()
        draft = drafter.propose(tokens, size, SAMPLER, near=near)
        if not draft:
            assert context_size <= FIRST + 2
            continue
        assert 1 <= owed == session.passes[0][0] <= FIRST + reads
        at = drafter._places._at.view
        assert len(at) == len(session.cache)
        assert (np.diff(at) > 0).all()
        known = np.concatenate([tokens, np.array(draft.tokens, np.int32)])
        assert session.cache == known[at].tolist()
        assert at[-len(draft) :].tolist() == list(range(len(tokens) - 1, len(known) - 1))


def test_tokens_that_only_the_target_has_are_left_out() -> None:
    """A fine-tune has a few more of them than its drafter, and its template puts them in."""
    tokens = text(40)
    tokens[[0, 7, 30]] = V + 1
    drafter, session = begun(30)
    sampler = Sampler(GREEDY, V + 2)
    guess = drafter.propose(tokens, 3, sampler)
    known = tokens[tokens < V]
    assert session.cache[:-2] == known.tolist()
    assert guess.tokens == begun(30)[0].propose(known, 3, sampler).tokens
    assert drafter.owes(tokens) == 1  # to look at its newest token again
    # Behind such a token it has nothing to say, and later it goes on.
    behind = np.append(tokens, np.int32(V))
    assert not drafter.propose(behind, 3, sampler) and drafter.owes(behind) == 0
    more = np.append(behind, np.int32(3))
    assert drafter.propose(more, 1, sampler) and session.cache == [*known, 3]


def only(token: int) -> SamplingParams:
    """A user's step that allows one token, and expects a row for each that the target has."""

    def step(row: npt.NDArray[np.float32], past: object) -> npt.NDArray[np.float32]:
        mask = np.full(V + 2, -np.inf, np.float32)
        mask[token] = 0
        return row + mask

    return SamplingParams(temperature=0.0, steps=(step,))


@pytest.mark.parametrize("token", [3, V + 1])
def test_a_drafter_without_the_only_token_left_drafts_nothing(token: int) -> None:
    drafter, _ = begun(30)
    guess = drafter.propose(text(30), 3, Sampler(only(token), V + 2))
    assert guess.tokens == ((token,) * 3 if token < V else ())


def test_nothing_is_drawn_behind_a_token_that_ends_the_text() -> None:
    drafter, session = begun(30)
    drawn = drafter.propose(text(30), 6, SAMPLER).tokens
    passes = len(session.passes)
    at = next(i for i, token in enumerate(drawn) if token not in drawn[:i] and i)
    again = drafter.propose(text(30), 6, Sampler(GREEDY, V, ends={drawn[at]}))
    assert again.tokens == drawn[: at + 1]
    assert len(session.passes) == passes + at + 1


def test_a_step_may_bring_back_a_token_that_the_drafter_lacks() -> None:
    """It is a guess like any other, behind which the drafter can't go on."""

    def step(row: npt.NDArray[np.float32], past: object) -> npt.NDArray[np.float32]:
        row[V + 1] = row.max() + 1
        return row

    drafter, session = begun(30)
    params = SamplingParams(temperature=0.0, steps=(step,))
    assert drafter.propose(text(30), 3, Sampler(params, V + 2)).tokens == (V + 1,)
    assert session.cache == text(30).tolist()
