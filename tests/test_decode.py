"""The loop on models without weights: what comes out, and its invariants after every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes import FakeSession, PieceTokenizer, ScriptSession, fake_model

from edgespec.adaptive import AdaptivePlanner
from edgespec.costs import Costs
from edgespec.decode import Round, decode
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.reading import FIRST
from edgespec.errors import ConfigError, ModelError, NothingLeft, NumericalError, RollbackError
from edgespec.options import LONGEST_LOOKAHEAD
from edgespec.planner import FixedPlanner, Outcome
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.session import CachedSession, Logits, TokenBuffer, TokenIds
from edgespec.text import TextStream
from edgespec.verify import Draft

VOCAB = 16
LETTERS = [bytes([97 + i]) for i in range(VOCAB)]
PROMPT = [1, 2, 3, 4, 2, 3]


def run(
    session: FakeSession,
    drafters: Sequence[Drafter] = (),
    lookahead: int = 0,
    *,
    prompt: Sequence[int] = PROMPT,
    params: SamplingParams = GREEDY,
    max_tokens: int = 40,
    stop: Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    pieces: Sequence[bytes] = LETTERS,
) -> tuple[list[int], str, list[Round]]:
    """Decode and check the loop's invariants after every round."""
    target = CachedSession(session)
    tokens = TokenBuffer(prompt)
    stream = TextStream(PieceTokenizer(pieces, stop_ids), max_tokens=max_tokens, stop=stop)
    rounds, text = [], ""
    for step in decode(
        target,
        tokens,
        sampler=Sampler(params, len(pieces), prompt, ends=stop_ids),
        planner=FixedPlanner([d.name for d in drafters], lookahead),
        drafters={d.name: d for d in drafters},
        cut=stream.cut,
    ):
        if step.finish_reason != "length" or step.tokens:
            assert session.length == len(tokens) - 1 or step.finish_reason == "context"
        assert session.cache == tokens.view[: session.length].tolist()
        assert len(step.tokens) == len(step.origins)
        rounds.append(step)
        text += stream.take()[0]
    return tokens.view[len(prompt) :].tolist(), text, rounds


def model_drafter(**options: object) -> ModelDrafter:
    return ModelDrafter(fake_model(FakeSession(VOCAB, **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("lookahead", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_greedy_equals_plain_with_a_model(lookahead: int, noise: float) -> None:
    plain, _, _ = run(FakeSession(VOCAB))
    got, _, rounds = run(FakeSession(VOCAB), [model_drafter(noise=noise)], lookahead)
    assert got == plain
    if noise == 0.0:  # a drafter equal to the target is never wrong
        assert all(step.accepted == step.drafted for step in rounds)


@pytest.mark.parametrize("lookahead", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_equals_plain_with_lookup(lookahead: int, seed: int) -> None:
    session = FakeSession(VOCAB, seed=seed, order=1)
    plain, _, _ = run(FakeSession(VOCAB, seed=seed, order=1))
    got, _, rounds = run(session, [LookupDrafter()], lookahead)
    assert got == plain
    assert sum(step.accepted for step in rounds) > 0  # order 1 falls into a cycle: lookup sees it


def test_the_first_token_never_waits_for_the_drafter() -> None:
    drafter = FakeSession(VOCAB)
    target = FakeSession(VOCAB)
    rounds = decode(
        CachedSession(target),
        TokenBuffer(PROMPT),
        sampler=Sampler(GREEDY, VOCAB),
        planner=FixedPlanner(["model"], 3),
        drafters={"model": ModelDrafter(fake_model(drafter))},
        cut=TextStream(PieceTokenizer(LETTERS), max_tokens=9).cut,
    )
    assert next(rounds).origins == ("plain",)
    assert drafter.passes == []
    next(rounds)
    assert drafter.passes[0] == (len(PROMPT) + 1, 1)  # catches up in one batch


def test_a_pass_asks_for_the_rows_it_needs() -> None:
    session = FakeSession(VOCAB)
    run(session, [model_drafter(noise=0.3)], 3)
    assert session.passes[0] == (len(PROMPT), 1)
    assert all(fed == rows <= 4 for fed, rows in session.passes[1:])


def test_the_drafter_keeps_its_cache_between_rounds() -> None:
    drafter = FakeSession(VOCAB, noise=0.3)
    run(FakeSession(VOCAB), [ModelDrafter(fake_model(drafter))], 4)
    assert all(fed <= 2 for fed, _ in drafter.passes[1:])


def test_an_end_token_in_an_accepted_draft_cuts_the_round() -> None:
    plain, _, _ = run(FakeSession(VOCAB))
    end = plain[6]
    until = plain[: plain.index(end)]
    for lookahead in range(1, 9):
        session = FakeSession(VOCAB)
        got, text, rounds = run(session, [model_drafter()], lookahead, stop_ids=[end])
        assert (got, rounds[-1].finish_reason) == (until, "end")
        assert text == b"".join(LETTERS[t] for t in until).decode()
        assert session.cache == [*PROMPT, *until][:-1]


@pytest.mark.parametrize("rule", ["greedy", "rejection", "reproducible"])
@pytest.mark.parametrize("by", ["model", "lookup"])
def test_nothing_is_asked_of_the_text_behind_its_end(rule: str, by: str) -> None:
    """As of a grammar: it allows nothing there, and in plain decoding it is never asked."""
    end = 9

    def grammar(row: Logits, past: TokenIds) -> Logits:
        assert end not in past[len(prompt) :].tolist()
        written = len(past) - len(prompt)
        mask = np.full(VOCAB, -np.inf, np.float32)
        mask[[5, 6, end][min(written, 2)]] = 0
        return np.where(mask == 0, row, mask)

    prompt = [1, 5, 6, end, 3, 7, 5, 6, end, 4]
    params = SamplingParams(
        temperature=0.0 if rule == "greedy" else 1.0,
        rule=None if rule == "greedy" else rule,  # type: ignore[arg-type]
        seed=1,
        steps=(grammar,),
    )
    drafter: Drafter = model_drafter() if by == "model" else LookupDrafter(1, 2)
    got, _, rounds = run(
        FakeSession(VOCAB), [drafter], 6, prompt=prompt, params=params, stop_ids=[end]
    )
    assert got == [5, 6] and rounds[-1].finish_reason == "end"
    last = rounds[-1]
    assert (last.drafted, last.accepted, last.rejected) == (2, 2, False)
    assert last.origins == ("accepted",)  # the end itself is no text


@pytest.mark.parametrize("rule", ["greedy", "rejection", "reproducible"])
@pytest.mark.parametrize("by", ["plain", "model", "lookup"])
@pytest.mark.parametrize("lookahead", [1, 2, 3, 6])
def test_a_step_may_leave_nothing_behind_a_stop_string(rule: str, by: str, lookahead: int) -> None:
    """As of a choice of answers; the text ends before the row that has nothing to choose from."""

    def choice(row: Logits, past: TokenIds) -> Logits:
        written = len(past) - len(prompt)
        only = np.full(VOCAB, -np.inf, np.float32)
        if written < 3:
            only[[5, 6, 9][written]] = row[[5, 6, 9][written]]
        return only

    prompt = [1, 5, 6, 9, 3, 7, 5, 6, 9, 4]
    params = SamplingParams(
        temperature=0.0 if rule == "greedy" else 1.0,
        rule=None if rule == "greedy" else rule,  # type: ignore[arg-type]
        seed=1,
        steps=(choice,),
    )
    drafters: list[Drafter] = {
        "plain": [],
        "model": [model_drafter()],
        "lookup": [LookupDrafter(1, 2)],
    }[by]  # type: ignore[assignment]
    options = {"prompt": prompt, "params": params}
    got, text, rounds = run(FakeSession(VOCAB), drafters, lookahead, **options, stop=["j"])  # type: ignore[arg-type]
    assert (got[:2], text, rounds[-1].finish_reason) == ([5, 6], "fg", "stop")
    assert any(step.accepted for step in rounds) == (by != "plain")
    assert not any(step.rejected for step in rounds)
    with pytest.raises(NothingLeft):  # plain decoding has nothing to choose from either
        run(FakeSession(VOCAB), drafters, lookahead, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["plain", "model"])
def test_what_stood_before_a_row_of_no_numbers_is_shown(by: str) -> None:
    class Late(FakeSession):
        def row(self, tokens: Sequence[int]) -> Logits:
            row = super().row(tokens)
            return row + np.float32("nan") if len(tokens) >= len(PROMPT) + 3 else row

    target = CachedSession(Late(VOCAB))
    tokens = TokenBuffer(PROMPT)
    drafter = model_drafter()
    rounds = decode(
        target,
        tokens,
        sampler=Sampler(GREEDY, VOCAB),
        planner=FixedPlanner(["model"] if by == "model" else (), 3),
        drafters={"model": drafter},
        cut=TextStream(PieceTokenizer(LETTERS), max_tokens=40).cut,
    )
    with pytest.raises(NumericalError):
        list(rounds)
    assert tokens.view[len(PROMPT) :].tolist() == run(FakeSession(VOCAB))[0][:3]


def test_what_was_drafted_behind_the_end_was_not_rejected() -> None:
    class Beyond(LookupDrafter):
        def propose(self, *args: object, **kwargs: object) -> Draft:
            return Draft((6, 9, 7, 8), None, "lookup")

    target = ScriptSession([5, 6, 9, 1], len(PROMPT), VOCAB)
    _, _, rounds = run(target, [Beyond()], 4, stop_ids=[9])
    assert (rounds[-1].drafted, rounds[-1].accepted, rounds[-1].rejected) == (4, 2, False)


def test_a_drafter_that_fails_leaves_the_answer_to_the_target() -> None:
    plain, _, _ = run(FakeSession(VOCAB))
    for params in (GREEDY, SamplingParams(temperature=1.0, seed=3)):
        session = FakeSession(VOCAB, name="small")
        drafter = ModelDrafter(fake_model(session))
        session.poison = float("nan")
        got, _, rounds = run(FakeSession(VOCAB), [drafter], 3, params=params)
        assert not sum(step.drafted for step in rounds) and "small" in drafter.failed
        assert len(session.passes) == 1  # it isn't asked again in this answer
        assert params != GREEDY or got == plain
        session.poison = None
        got, _, rounds = run(FakeSession(VOCAB), [drafter], 3, params=params)
        assert sum(step.drafted for step in rounds) and not drafter.failed


def test_a_drafter_that_cant_go_back_leaves_the_answer_to_the_target() -> None:
    class Stuck(FakeSession):
        def rollback(self, length: int) -> None:
            if length < self.length:
                raise RollbackError("small can't go back")

    drafter = ModelDrafter(fake_model(Stuck(VOCAB, noise=0.9)))
    got, _, rounds = run(FakeSession(VOCAB), [drafter], 3)
    assert got == run(FakeSession(VOCAB))[0] and any(step.drafted for step in rounds)
    assert drafter.failed == "small can't go back"


def test_what_a_drafter_drew_before_it_failed_is_checked() -> None:
    class Fails(FakeSession):
        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            if len(self.passes) == 2:
                raise ModelError("the small one failed")
            return super().forward(tokens, num_logits)

    drafter = ModelDrafter(fake_model(Fails(VOCAB)))
    got, _, rounds = run(FakeSession(VOCAB), [drafter], 3)
    assert got == run(FakeSession(VOCAB))[0]
    assert [step.drafted for step in rounds[:3]] == [0, 2, 0]
    assert drafter.failed == "the small one failed"


def test_a_stop_string_over_accepted_and_bonus_tokens() -> None:
    script = [5, 6, 7, 8, 9, 10, 11]
    pieces = [b"?"] * 5 + [b"one ", b"two ST", b"O", b"P three", b" four", b"five", b"six"]
    for lookahead in range(9):
        target = ScriptSession(script, len(PROMPT), 12)
        drafter = ModelDrafter(fake_model(ScriptSession(script, len(PROMPT), 12)))
        got, text, rounds = run(target, [drafter], lookahead, stop=["STOP"], pieces=pieces)
        assert text == "one two "
        assert got == [5, 6]  # token 6 holds text before the stop string
        assert rounds[-1].finish_reason == "stop"
        assert target.cache == [*PROMPT, 5]


def test_end_comes_before_stop_string_before_limit() -> None:
    pieces = [b"?"] * 5 + [b"a", b"b", b"c"]
    for max_tokens, stop, stop_ids, reason in (
        (2, ["b"], [6], "end"),
        (2, ["b"], [], "stop"),
        (2, [], [], "length"),
    ):
        target = ScriptSession([5, 6, 7], len(PROMPT), 8)
        drafter = ModelDrafter(fake_model(ScriptSession([5, 6, 7], len(PROMPT), 8)))
        _, _, rounds = run(
            target, [drafter], 3, max_tokens=max_tokens, stop=stop, stop_ids=stop_ids, pieces=pieces
        )
        assert rounds[-1].finish_reason == reason


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7])
def test_the_token_limit_is_exact(limit: int) -> None:
    got, text, rounds = run(FakeSession(VOCAB), [model_drafter()], 4, max_tokens=limit)
    assert len(got) == len(text) == limit
    assert rounds[-1].finish_reason == "length"


@pytest.mark.parametrize("lookahead", [0, 1, 5])
def test_the_context_fills_to_its_last_place(lookahead: int) -> None:
    session = FakeSession(VOCAB, context_size=len(PROMPT) + 2)
    got, _, rounds = run(session, [model_drafter()], lookahead)
    plain, _, _ = run(FakeSession(VOCAB))
    # Two more tokens fit into the cache; the newest needs no place.
    assert got == plain[:3]
    assert rounds[-1].finish_reason == "context"


def test_a_drafter_with_a_smaller_context_goes_on_from_the_newest_part() -> None:
    """Order 2 needs no more, so its guesses stay right to the end."""
    plain, _, _ = run(FakeSession(VOCAB))
    got, _, rounds = run(FakeSession(VOCAB), [model_drafter(context_size=24)], 3)
    assert got == plain
    assert all(step.drafted and step.accepted == step.drafted for step in rounds[1:-1])


def test_a_drafter_far_behind_reads_the_start_and_the_newest_part() -> None:
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, VOCAB, 200)]
    drafter = FakeSession(VOCAB)
    run(FakeSession(VOCAB), [ModelDrafter(fake_model(drafter), reads=50)], 3, prompt=prompt)
    assert drafter.passes[0] == (FIRST + 50, 1)
    assert drafter.cache[:FIRST] == prompt[:FIRST]
    assert drafter.cache[FIRST : FIRST + 49] == prompt[-49:]
    assert all(fed <= 2 for fed, _ in drafter.passes[1:])  # and keeps it


def test_after_a_long_text_a_drafter_reads_a_short_one_whole() -> None:
    drafter = FakeSession(VOCAB)
    model = ModelDrafter(fake_model(drafter), reads=50)
    run(FakeSession(VOCAB), [model], 3, prompt=[t % 7 for t in range(200)])
    plain, _, _ = run(FakeSession(VOCAB))
    got, _, _ = run(FakeSession(VOCAB), [model], 3)
    assert got == plain
    assert drafter.cache[: len(PROMPT)] == PROMPT


def test_padding_rows_never_come_out() -> None:
    """Both fakes put 50.0 on every padding logit, so one look at them would show."""
    for target_padding, drafter_padding in ((8, 3), (0, 5), (5, 0)):
        plain, _, _ = run(FakeSession(VOCAB))
        for params in (GREEDY, SamplingParams(top_k=0, top_p=1.0, seed=1)):
            got, _, rounds = run(
                FakeSession(VOCAB, padding=target_padding),
                [model_drafter(padding=drafter_padding)],
                3,
                params=params,
            )
            assert max(got) < VOCAB
            assert sum(step.accepted for step in rounds) == sum(step.drafted for step in rounds)
            if params is GREEDY:
                assert got == plain


def test_a_failed_check_leaves_everything_as_before() -> None:
    from edgespec.errors import NumericalError

    session = FakeSession(VOCAB, name="broken.gguf")
    target, tokens = CachedSession(session), TokenBuffer(PROMPT)
    rounds = decode(
        target,
        tokens,
        sampler=Sampler(GREEDY, VOCAB),
        planner=FixedPlanner([], 0),
        drafters={},
        cut=TextStream(PieceTokenizer(LETTERS), max_tokens=9).cut,
    )
    next(rounds)
    session.poison = float("nan")
    before = tokens.view.tolist()
    with pytest.raises(NumericalError, match=r"broken\.gguf"):
        next(rounds)
    assert tokens.view.tolist() == before


def test_the_cache_is_reused_up_to_the_common_prefix() -> None:
    session = FakeSession(VOCAB)
    first, _, _ = run(session)
    again = [*PROMPT, *first[:10], 7, 7]
    session.passes.clear()
    expected, _, _ = run(FakeSession(VOCAB), prompt=again)
    target = CachedSession(session)
    target._ids.extend(session.cache)  # what a runtime keeps between turns
    tokens = TokenBuffer(again)
    for _ in decode(
        target,
        tokens,
        sampler=Sampler(GREEDY, VOCAB),
        planner=FixedPlanner([], 0),
        drafters={},
        cut=TextStream(PieceTokenizer(LETTERS), max_tokens=40).cut,
    ):
        pass
    assert tokens.view[len(again) :].tolist() == expected
    assert session.passes[0] == (2, 1)


def test_sampling_with_a_seed_is_repeatable() -> None:
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=7)
    runs = [run(FakeSession(VOCAB), [model_drafter(noise=0.2)], 3, params=params) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert len(set(runs[0][0])) > 3
    assert np.mean([step.accepted for step in runs[0][2]]) > 0


def test_a_fixed_plan_leaves_an_unsure_free_guess_to_the_model() -> None:
    planner = FixedPlanner(["lookup", "model"], 2)
    drafters = {"lookup": LookupDrafter(), "model": model_drafter()}
    sampler = Sampler(GREEDY, VOCAB)
    for text, drafter in (([1, 2, 9, 1, 2], "model"), ([1, 2, 3, 4, 9, 1, 2, 3, 4], "lookup")):
        tokens = TokenBuffer(text)
        assert planner.draft(drafters, tokens.view, 5, sampler).drafter == drafter


def test_an_unsure_free_guess_is_better_than_none() -> None:
    planner, model = FixedPlanner(["lookup", "model"], 2), model_drafter()
    model.failed = "no memory"
    tokens = TokenBuffer([1, 2, 9, 1, 2])
    draft = planner.draft(
        {"lookup": LookupDrafter(), "model": model}, tokens.view, 5, Sampler(GREEDY, VOCAB)
    )
    assert draft.tokens == (9, 1)


def test_a_fixed_plan_names_a_drafter_that_is_not_there() -> None:
    tokens = TokenBuffer(PROMPT)
    with pytest.raises(ConfigError, match=r"no drafter 'model' \(it has: lookup\)"):
        planner = FixedPlanner(["model"], 2)
        planner.draft({"lookup": LookupDrafter()}, tokens.view, 5, Sampler(GREEDY, VOCAB))


def test_a_lookahead_too_long_for_its_rows_is_refused() -> None:
    assert FixedPlanner(["lookup"], LONGEST_LOOKAHEAD)
    with pytest.raises(ConfigError, match="at most 64, not 65"):
        FixedPlanner(["lookup"], LONGEST_LOOKAHEAD + 1)


def test_planners_see_no_padding() -> None:
    seen: list[Logits] = []

    class Sees(FixedPlanner):
        def observe(self, outcome: Outcome) -> None:
            seen.append(outcome.rows.copy())

    target = CachedSession(FakeSession(VOCAB, padding=3))
    rounds = decode(
        target,
        TokenBuffer(PROMPT),
        sampler=Sampler(GREEDY, VOCAB),
        planner=Sees(["model"], 2),
        drafters={"model": model_drafter()},
        cut=TextStream(PieceTokenizer(LETTERS), max_tokens=9).cut,
    )
    assert len(list(rounds)) > 1
    assert all(rows.shape[1] == VOCAB for rows in seen) and seen


class Own(LookupDrafter):
    """A drafter of a user's, which returns what it is told to."""

    name = "mine"

    def __init__(self, draft: object, *, free: bool) -> None:
        super().__init__()
        self.draft, self.free = draft, free

    def propose(self, *args: object, **kwargs: object) -> Draft:
        return self.draft  # type: ignore[return-value]


@pytest.mark.parametrize("planned", ["fixed", "adaptive"])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    "draft", [None, Draft((1,) * 64), Draft((260,)), Draft((1,), np.ones((1, 260)))]
)
def test_what_a_drafter_gives_is_looked_at(planned: str, free: bool, draft: object) -> None:
    seconds = {1: 0.01, 2: 0.0101, 32: 0.0102}
    costs = Costs({"check": seconds, "mine": {1: 1e-4, 32: 1e-4}})
    planner = AdaptivePlanner(costs) if planned == "adaptive" else FixedPlanner(["mine"], 3)
    runtime = Runtime(fake_model(FakeSession(260)), [Own(draft, free=free)], planner=planner)
    with pytest.raises(ConfigError, match="drafter 'mine' gave"):
        list(runtime.generate([1, 2, 3], SamplingParams(temperature=1.0), max_tokens=30))


class Plans(FixedPlanner):
    """A planner of a user's, which has a draft of its own."""

    def draft(self, *args: object, **kwargs: object) -> Draft:
        return Draft((5, 6))


def test_a_plan_beyond_the_room_or_where_nothing_can_be_taken_back_is_refused() -> None:
    for session, wrong in (
        (FakeSession(VOCAB, context_size=9), "the planner gave 2 draft tokens where at most 1"),
        (FakeSession(VOCAB, can_rollback=False), "fake can't take back a draft"),
    ):
        rounds = decode(
            CachedSession(session),
            TokenBuffer(PROMPT),
            sampler=Sampler(GREEDY, VOCAB),
            planner=Plans((), 0),
            drafters={},
            cut=TextStream(PieceTokenizer(LETTERS), max_tokens=9).cut,
        )
        with pytest.raises(ConfigError, match=wrong):
            list(rounds)


def test_a_drafter_that_was_not_measured_is_named() -> None:
    planner = AdaptivePlanner(Costs({"check": {1: 0.01, 2: 0.011}}))
    own = Own(Draft((5,)), free=False)
    runtime = Runtime(fake_model(FakeSession(260)), [own], planner=planner)
    with pytest.raises(ConfigError, match="what drafter 'mine' costs wasn't measured"):
        runtime.generate([1, 2, 3], GREEDY, max_tokens=30)  # before anything runs
