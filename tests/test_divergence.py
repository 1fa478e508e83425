"""The comparison of a pair with its target finds what is there to find, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import ByteTokenizer, FakeSession, PieceTokenizer, fake_model

from edgespec import verify as verify_module
from edgespec.chat import Message
from edgespec.divergence import compare, first_difference, first_redrawn, unevenness
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ModelError
from edgespec.exactness import CHI_SQUARE_LIMIT, NEAR_TIE, Report
from edgespec.generation import Result
from edgespec.logprobs import TokenLogprobs
from edgespec.metrics import Counters
from edgespec.planner import FixedPlanner
from edgespec.runtime import Runtime
from edgespec.sampling import Sampler, SamplingParams
from edgespec.session import Logits, TokenIds

V = 30
PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
FULL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)


class Rounding(FakeSession):
    """A pass over several tokens gives slightly other logits than one at a time."""

    amount = 0.0

    def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
        rows = super().forward(tokens, num_logits)
        if num_logits == 1:
            return rows
        rng = np.random.default_rng(self.length)
        return rows + rng.uniform(-self.amount, self.amount, rows.shape).astype(np.float32)


class Tied(Rounding):
    """Its two likeliest tokens are always closer than the rounding."""

    amount = 1e-3

    def row(self, tokens: Sequence[int]) -> Logits:
        row = super().row(tokens).copy()
        first, second = np.argsort(-row)[:2]
        row[second] = row[first] - np.float32(1e-4)
        return row


class WrongWhenChecking(Rounding):
    """What a cache that disagrees with its text would do."""

    amount = 3.0


def opener(
    target: Callable[[], FakeSession] = lambda: FakeSession(V), lookahead: int = 3
) -> Callable[[bool], Runtime]:
    def open_runtime(speculate: bool) -> Runtime:
        tokenizer = PieceTokenizer([b"a"] * V, [0])
        drafters = (
            [ModelDrafter(fake_model(FakeSession(V, noise=0.5), tokenizer))] if speculate else []
        )
        model = fake_model(target(), tokenizer)
        return Runtime(model, drafters, planner=FixedPlanner(["model"][: len(drafters)], lookahead))

    return open_runtime


def test_a_drafter_that_fails_shows_nothing() -> None:
    def open_runtime(speculate: bool) -> Runtime:
        runtime = opener()(speculate)
        for drafter in runtime.drafters.values():
            assert isinstance(drafter, ModelDrafter)
            drafter.model.session.poison = float("nan")  # type: ignore[attr-defined]
        return runtime

    with pytest.raises(ModelError, match="model stopped drafting in this answer: "):
        compare(open_runtime, PROMPTS, sampling=FULL, max_tokens=20, repeats=2)


def test_an_exact_pair() -> None:
    for sampling in (FULL, SamplingParams(), SamplingParams(seed=5), SamplingParams(top_p=0.5)):
        report = compare(opener(), PROMPTS, sampling=sampling, max_tokens=20, repeats=2)
        assert report.exact
        assert report.differences == ()
        assert report.noise < 1e-5
        assert report.sampled_tokens == 4 * 2 * 20  # end tokens don't cut it short
        assert report.impossible == 0
        assert 0 < report.accepted < report.drafted
        assert report.verdict.startswith("this pair is exact on this machine: ")
        assert "greedy tokens are the target's own" in report.verdict
        assert "160 sampled ones are distributed as the target's" in report.verdict
        repeated = 160 if sampling.seed is not None else 0
        assert (report.repeated_tokens, report.redrawn) == (repeated, ())
        assert ("come again with the same seed" in report.verdict) == bool(repeated)


@pytest.mark.parametrize("seed", range(3))
def test_a_sure_model_is_exact_too(seed: int) -> None:
    """Its answers to one prompt begin alike, and each token still counts once."""
    sure = opener(lambda: FakeSession(V, scale=8.0, seed=seed))
    report = compare(sure, PROMPTS, sampling=SamplingParams(), max_tokens=20, repeats=8)
    assert report.exact, report.verdict


def test_rounding_is_measured_and_explains_near_ties() -> None:
    report = compare(opener(lambda: Tied(V)), PROMPTS, max_tokens=20, repeats=0)
    assert report.differences
    assert report.unexplained == ()
    assert 1e-5 < report.noise < 1e-2
    assert report.near_tie == NEAR_TIE
    assert report.exact
    assert f"up to {len(report.differences)} near-ties" in report.verdict


@pytest.mark.parametrize("seed", [None, 1])
def test_at_temperature_0_a_near_tie_is_explained_as_in_greedy_answers(seed: int | None) -> None:
    greedy = SamplingParams(temperature=0.0, seed=seed)
    report = compare(opener(lambda: Tied(V)), PROMPTS, sampling=greedy, max_tokens=20)
    assert report.differences
    assert report.exact and report.verdict.endswith("; sampling is untested")


def test_at_temperature_0_penalties_are_compared_too() -> None:
    penalised = SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=0.5)
    report = compare(opener(), PROMPTS, sampling=penalised, max_tokens=20)
    assert report.exact and report.repeated_tokens == 4 * 20
    said = "and 80 come again with the penalties, biases, bans or steps that were given; sampling"
    assert said in report.verdict
    report = compare(opener(lambda: Tied(V)), PROMPTS, sampling=penalised, max_tokens=40)
    assert report.redrawn and report.exact
    assert all(d.gap < 1e-2 for d in report.redrawn)


def test_at_temperature_0_a_penalty_that_forgets_the_draft_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy answers without penalties are the target's own all the same."""
    real = Sampler.adjusted
    monkeypatch.setattr(Sampler, "adjusted", lambda self, row, ahead=(): real(self, row))
    penalised = SamplingParams(temperature=0.0, presence_penalty=3.0)
    report = compare(opener(), PROMPTS, sampling=penalised, max_tokens=20)
    assert report.differences == ()
    assert report.unexplained and "the answer with the penalties, biases" in report.verdict


@pytest.mark.parametrize("params", [FULL, SamplingParams(temperature=0.5, top_k=4, top_p=1.0)])
def test_the_same_seed_up_to_near_ties_of_the_draw(params: SamplingParams) -> None:
    """Rounding may turn a draw, or a cut; how near either was is told, and bigger faults show."""
    seeded = replace(params, seed=11)

    def found(session: type[Rounding]) -> Report:
        return compare(
            opener(lambda: session(V)), PROMPTS, sampling=seeded, max_tokens=40, repeats=2
        )

    class Little(Rounding):
        amount = 2e-2

    report = found(Little)
    assert report.redrawn  # of 320 tokens some were that near
    assert all(0 <= d.gap <= 2 * Little.amount for d in report.redrawn)
    assert report.unexplained == ()
    assert "near-ties" in report.verdict.split("come again with the same seed")[1]

    report = found(WrongWhenChecking)
    wrong = [d for d in report.unexplained if d in report.redrawn]
    assert wrong and not report.exact


def test_a_difference_that_rounding_does_not_explain() -> None:
    report = compare(opener(lambda: WrongWhenChecking(V)), PROMPTS, max_tokens=20, repeats=0)
    assert not report.exact
    assert report.unexplained[0].gap > report.near_tie
    difference = report.unexplained[0]
    assert f"prompt {difference.prompt + 1} differs at token {difference.token + 1}" in (
        report.verdict
    )


def test_changed_log_probabilities_behind_the_same_text() -> None:
    class Flatter(FakeSession):
        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            rows = super().forward(tokens, num_logits)
            return rows if num_logits == 1 else rows * np.float32(0.3)

    report = compare(opener(lambda: Flatter(V)), PROMPTS, max_tokens=20, repeats=0)
    assert report.differences == ()
    assert not report.exact
    assert "that is more than rounding" in report.verdict


@pytest.mark.parametrize("fault", ["residual", "bonus"])
def test_sampled_text_of_another_distribution(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy text is untouched by both; a thousand sampled tokens show them."""
    if fault == "residual":
        monkeypatch.setattr(verify_module, "residual", lambda target, drafted: drafted)
    else:
        real = verify_module.verify_rejection
        monkeypatch.setattr(
            "edgespec.decode.verify_rejection",
            lambda draft, rows, rng, ends: real(
                draft, lambda i: rows(max(0, i - (i == len(draft)))), rng, ends
            ),
        )
    report = compare(opener(lookahead=1), PROMPTS, sampling=FULL, max_tokens=32, repeats=8)
    assert report.differences == ()
    assert report.chi_square is not None
    assert report.chi_square > 1.5 * CHI_SQUARE_LIMIT
    assert "not distributed as the target's" in report.verdict


def test_tokens_that_the_target_would_never_draw() -> None:
    class Shifted(FakeSession):
        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            rows = super().forward(tokens, num_logits)
            return rows if num_logits == 1 else np.roll(rows, 3, axis=1)

    params = SamplingParams(top_k=3, top_p=1.0)
    report = compare(opener(lambda: Shifted(V)), PROMPTS, sampling=params, max_tokens=10)
    assert report.impossible > 20
    assert not report.exact
    rare = Report(10, (), 0.0, 0, (), 200, 5, None, 5, 5)
    assert "5 of 200 sampled tokens are ones the target alone would never draw" in rare.verdict
    assert replace(rare, impossible=2).exact  # at the edge of a cut, rounding can do that


def test_a_pair_that_drafts_nothing_is_not_called_exact() -> None:
    report = compare(opener(lookahead=0), PROMPTS, max_tokens=5, repeats=1)
    assert "nothing was drafted" in report.verdict
    assert not report.exact


def test_an_early_end_is_a_difference() -> None:
    class EndsWhenChecking(FakeSession):
        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            rows = super().forward(tokens, num_logits)
            if num_logits > 1 and self.length > 12:
                rows[:, 0] += 30
            return rows

    report = compare(opener(lambda: EndsWhenChecking(V)), [[1, 2, 3]], max_tokens=30, repeats=0)
    (difference,) = report.differences
    assert difference.speculative is None
    assert difference.plain is not None
    assert not report.exact


def test_a_near_tie_excuses_none_but_its_tokens() -> None:
    """Two tokens are all but equal; the gap is that of the tokens that were taken."""
    top = ((1, -0.7), (2, -0.701), (3, -3.0), (9, -4.0))
    row = TokenLogprobs(1, -0.7, top)

    def answer(*tokens: int) -> Result:
        return Result("", tokens, (), "end", Counters(), (row,) * len(tokens))

    def gap(plain: Result, other: Result) -> float:
        found = first_difference(0, plain, other, {8, 9})
        assert found
        return found.gap

    assert gap(answer(1), answer(2)) == pytest.approx(0.001)
    assert gap(answer(1), answer(3)) == pytest.approx(2.3)
    assert gap(answer(3), answer(1)) == pytest.approx(2.3)
    assert gap(answer(1), answer(5)) == np.inf  # far from being taken
    assert gap(answer(1), answer()) == gap(answer(), answer(2)) == pytest.approx(3.3)  # the end
    assert first_difference(0, answer(1), answer(1)) is None


def test_a_third_token_beside_a_near_tie_is_a_difference() -> None:
    class ThirdWhenChecking(Tied):
        amount = 0.0

        def forward(self, tokens: Sequence[int] | TokenIds, num_logits: int = 1) -> Logits:
            rows = super().forward(tokens, num_logits)
            if num_logits > 1 and self.length > 12:
                third = np.argsort(-rows, axis=1)[:, 2:3]
                np.put_along_axis(rows, third, rows.max(axis=1, keepdims=True) + 1, 1)
            return rows

    report = compare(opener(lambda: ThirdWhenChecking(V)), [[1, 2, 3]], max_tokens=30, repeats=0)
    assert report.differences and report.differences[0].gap > NEAR_TIE
    assert not report.exact


def test_questions_go_through_the_chat_template() -> None:
    prompts = []

    def open_runtime(speculate: bool) -> Runtime:
        session = FakeSession(260)
        forward = session.forward
        session.forward = lambda tokens, n=1: (  # type: ignore[method-assign]
            prompts.append(list(tokens)) if len(tokens) > 20 else None,
            forward(tokens, n),
        )[1]
        return Runtime(fake_model(session, ByteTokenizer()))

    compare(open_runtime, ["Why is the sky blue?"], max_tokens=2, repeats=0)
    assert b"Why is the sky blue?" in bytes(t for t in prompts[0] if t < 256)


def test_places_of_an_exact_sample_are_even() -> None:
    rng = np.random.default_rng(0)
    assert unevenness([0.5] * 49) is None
    over = sum((unevenness(list(rng.random(200))) or 0) > CHI_SQUARE_LIMIT for _ in range(2000))
    assert over <= 3  # 0.2 expected
    assert (unevenness(list(rng.random(1000) ** 1.5)) or 0) > CHI_SQUARE_LIMIT


def test_a_report_states_its_threshold() -> None:
    report = Report(10, (), 0.02, 0, (), 0, 0, None, 5, 5)
    assert report.near_tie == pytest.approx(0.08)
    assert (
        report.verdict
        == "this pair is exact on this machine: 10 greedy tokens are the target's own"
        "; sampling is untested"
    )


@pytest.mark.real
def test_the_embedded_model_repeats_itself(smollm2: Path) -> None:
    """One seed, one text, whatever drafts and how far; up to near-ties, which are printed."""
    params = SamplingParams(temperature=0.3, top_k=0, top_p=1.0, seed=3)
    with Runtime.open(
        target=smollm2, drafters=["lookup", str(smollm2)], lookahead=1, context_size=256, threads=1
    ) as runtime:
        params = replace(params, banned_tokens=runtime.target.tokenizer.stop_ids)
        prompt = Message("user", "Repeat this list: red, green, blue, red, green, blue, red.")
        text = tuple(runtime.encode_messages([prompt]))
        nothing = FixedPlanner([], 0)
        plain = runtime.generate(text, params, max_tokens=24, planner=nothing).result
        accepted = 0
        for drafter in runtime.drafters:
            for lookahead in range(1, 9):
                planner = FixedPlanner([drafter], lookahead)
                drafted = runtime.generate(text, params, max_tokens=24, planner=planner).result
                accepted += drafted.counters.accepted
                found = first_redrawn(runtime, 0, text, plain, drafted, params)
                if found is not None:
                    print(f"{drafter} at {lookahead}: token {found.token}, gap {found.gap:.3g}")
                    assert found.gap <= NEAR_TIE
        assert accepted > 100


@pytest.mark.real
def test_the_embedded_model_is_exact(smollm2: Path) -> None:
    """Through lookup, which drafts on a text that repeats itself; prints what was measured."""

    def open_runtime(speculate: bool) -> Runtime:
        drafters = ["lookup"] if speculate else []
        lookahead = 4 if speculate else 0
        return Runtime.open(
            target=smollm2, drafters=drafters, lookahead=lookahead, context_size=512, threads=1
        )

    prompts = [
        "Repeat this list three times: red, green, blue, red, green.",
        "Count from one to twenty, then again from one to twenty.",
    ]
    report = compare(open_runtime, prompts, max_tokens=32, repeats=1)
    print(report.verdict)
    assert report.exact
