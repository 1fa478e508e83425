"""Speculative text is distributed as plain text: rules, samplers and drafters, three tokens deep.

Each comparison is of the joint distribution of three tokens, so that an error in what a token is
conditioned on shows too, with 1e-6 odds of a false alarm (see chance.py). That these tests have the
power to find mistakes is shown at the end: each planted one goes beyond the threshold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from chance import Fit, fit, rate_limit
from fakes import FakeSession, PieceTokenizer, fake_model

from edgespec import verify as verify_module
from edgespec.categorical import Categorical
from edgespec.decode import decode, verify
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.planner import FixedPlanner
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.session import CachedSession, Logits, TokenBuffer, TokenIds
from edgespec.text import TextStream
from edgespec.verify import NO_DRAFT, Draft

V, DEPTH = 5, 3
PROMPT = (0, 1, 2, 0, 1)
NEVER = -1e9
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)


def shy_of_repeats(logits: np.ndarray, tokens: TokenIds) -> np.ndarray:
    """A step that depends on the order of the newest two tokens."""
    logits[tokens[-1]] -= 1.5
    logits[(tokens[-2] + 1) % V] += 1.0
    return logits


SAMPLERS = {
    "temperature": OFF,
    "cold": replace(OFF, temperature=0.4),
    "hot": replace(OFF, temperature=100.0),
    "top_k": replace(OFF, top_k=3),
    "top_p": replace(OFF, top_p=0.7),
    "min_p": replace(OFF, min_p=0.25),
    "typical": replace(OFF, typical_p=0.7),
    "repetition": replace(OFF, repetition_penalty=2.5),
    "presence, window": replace(OFF, presence_penalty=1.5, penalty_window=2),
    "frequency, window": replace(OFF, frequency_penalty=0.8, penalty_window=4),
    "bias": replace(OFF, logit_bias={4: 2.0, 0: -1.0}),
    "banned": replace(OFF, banned_tokens=frozenset({1})),
    "own step": replace(OFF, steps=(shy_of_repeats,)),
    "all": SamplingParams(
        temperature=0.8,
        top_k=4,
        top_p=0.95,
        min_p=0.05,
        typical_p=0.98,
        repetition_penalty=1.5,
        frequency_penalty=0.3,
        penalty_window=4,
        logit_bias={2: 0.5},
        steps=(shy_of_repeats,),
    ),
}


def target_model(**options: object) -> FakeSession:
    return FakeSession(V, scale=1.2, **options)  # type: ignore[arg-type]


DRAFTERS: dict[str, Callable[[], FakeSession]] = {
    "good": lambda: target_model(noise=0.2),
    "bad": lambda: target_model(noise=1.0),
    "equal": target_model,
    "disjoint": lambda: target_model(bias={0: NEVER, 3: NEVER}),  # of a target without the rest
    "over-confident": lambda: FakeSession(V, scale=9.0, noise=0.3),
}
ONE_HOT = "one-hot"


class Quick(Categorical):
    """The same in plain Python, which is faster for five tokens."""

    @staticmethod
    def of(dist: Categorical) -> Quick:
        quick = Quick(dist.ids, dist.probs)
        tokens = range(V) if dist.ids is None else dist.ids.tolist()
        object.__setattr__(quick, "tokens", list(tokens))
        object.__setattr__(quick, "by_token", dict(zip(tokens, dist.probs.tolist(), strict=True)))
        object.__setattr__(quick, "cumulative", list(accumulate(dist.probs.tolist())))
        return quick

    def prob(self, token: int) -> float:
        return self.by_token.get(token, 0.0)  # type: ignore[attr-defined]

    def draw(self, rng: np.random.Generator) -> int:
        at = bisect_right(self.cumulative, rng.random() * self.cumulative[-1])  # type: ignore[attr-defined]
        return self.tokens[at]  # type: ignore[attr-defined]


class Remembering:
    """A sampler for many short texts: what it has computed for a row and a past, it keeps.

    The distributions are the real sampler's; the draws and the rule are never kept.
    """

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self.params = params
        self.rng = np.random.default_rng(seed)
        self.past: tuple[int, ...] = PROMPT
        self._known: dict[tuple[int, tuple[int, ...]], Categorical] = {}

    chooses = False
    ends = frozenset[int]()

    def distribution(
        self, row: Logits, ahead: Sequence[int] = (), *, model: str = ""
    ) -> Categorical:
        key = (id(row), (*self.past, *ahead))
        if key not in self._known:
            sampler = Sampler(self.params, V, self.past)
            self._known[key] = Quick.of(sampler.distribution(row, ahead))
        return self._known[key]

    def pick(self, row: Logits, ahead: Sequence[int]) -> tuple[int, Categorical]:
        dist = self.distribution(row, ahead)
        return dist.draw(self.rng), dist

    def commit(self, tokens: Sequence[int]) -> None:
        self.past += tuple(tokens)


class Speculation:
    """Texts of `DEPTH` tokens by draft and check. Rows come from the fakes, the rule from edgespec.

    Subclasses plant mistakes.
    """

    def __init__(
        self,
        target: FakeSession,
        drafter: FakeSession | None,
        params: SamplingParams,
        lookahead: int = 2,
        seed: int = 1,
    ) -> None:
        self.target, self.drafter, self.lookahead = target, drafter, lookahead
        self.sampler = Remembering(params, seed)
        self.drafted = self.accepted = 0

    def texts(self, n: int) -> list[tuple[int, ...]]:
        return [self.text() for _ in range(n)]

    def text(self) -> tuple[int, ...]:
        self.sampler.past = PROMPT
        while len(self.sampler.past) < len(PROMPT) + DEPTH:
            self.round()
        return self.sampler.past[len(PROMPT) : len(PROMPT) + DEPTH]

    def round(self) -> None:
        past = self.sampler.past
        draft = self.propose(past)
        rows = [
            self.target.row([*past, *draft.tokens[:i]]) for i in range(len(draft) + 1)
        ]  # (k+1, V)
        verdict = self.verify(rows, draft)
        self.drafted += len(draft) > 0
        self.accepted += verdict.num_accepted > 0
        self.sampler.commit(verdict.tokens(draft))

    def propose(self, past: tuple[int, ...]) -> Draft:
        if self.drafter is None:  # a guess with no distribution, wrong half of the time
            return Draft(tuple((past[-1] + 1 + i) % V for i in range(self.lookahead)))
        drafted: list[int] = []
        probs: list[Categorical] = []
        while len(drafted) < self.lookahead:
            token, dist = self.sampler.pick(self.drafter.row([*past, *drafted]), drafted)
            drafted.append(token)
            probs.append(dist)
        return Draft(tuple(drafted), tuple(probs))

    def verify(self, rows: Sequence[Logits], draft: Draft):  # type: ignore[no-untyped-def]
        return verify(rows, draft, self.sampler, len(self.sampler.past))  # type: ignore[arg-type]


def joint(target: FakeSession, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The distribution of `DEPTH` tokens of plain decoding, by going through all of them.

    That one row's distribution is right is what test_sampling.py checks.
    """

    def continuations(
        text: tuple[int, ...], prob: float
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(text) == DEPTH:
            yield text, prob
            return
        past = [*PROMPT, *text]
        dist = Sampler(params, V, past).distribution(target.row(past))
        for token in range(V):
            if dist.prob(token) > 0:
                yield from continuations((*text, token), prob * dist.prob(token))

    return dict(continuations((), 1.0))


@cache
def known_joint(sampler: str, disjoint: bool) -> dict[tuple[int, ...], float]:
    return joint(pair("disjoint" if disjoint else "good")[0], SAMPLERS[sampler])


def pair(name: str) -> tuple[FakeSession, FakeSession | None]:
    if name == "disjoint":
        target = target_model(bias={1: NEVER, 2: NEVER, 4: NEVER})
    else:
        target = target_model()
    return target, None if name == ONE_HOT else DRAFTERS[name]()


@pytest.mark.parametrize("drafter", [*DRAFTERS, ONE_HOT])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rejection_keeps_the_joint_distribution(sampler: str, drafter: str) -> None:
    params = SAMPLERS[sampler]
    target, drafting = pair(drafter)
    speculation = Speculation(target, drafting, params)
    sample = speculation.texts(700)
    assert fit(sample, known_joint(sampler, drafter == "disjoint")).good
    if drafter == "equal":
        assert speculation.accepted == speculation.drafted
    if drafter == "disjoint":
        assert speculation.accepted == 0


@pytest.mark.parametrize("lookahead", [1, 3, 5])
def test_rejection_at_other_lookaheads(lookahead: int) -> None:
    for drafter in ("good", "bad", ONE_HOT):
        target, drafting = pair(drafter)
        sample = Speculation(target, drafting, SAMPLERS["all"], lookahead).texts(1000)
        assert fit(sample, joint(target, SAMPLERS["all"])).good


def test_a_draft_may_end_after_an_unlikely_token_that_is_checked_all_the_same() -> None:
    class Cautious(Speculation):
        def propose(self, past: tuple[int, ...]) -> Draft:
            draft = super().propose(past)
            assert draft.probs is not None
            for i, token in enumerate(draft.tokens):
                if draft.probs[i].prob(token) < 0.25:
                    return Draft(draft.tokens[: i + 1], draft.probs[: i + 1])
            return draft

    for drafter in ("good", "bad"):
        target, drafting = pair(drafter)
        assert fit(Cautious(target, drafting, OFF, 3).texts(2500), joint(target, OFF)).good


@pytest.mark.parametrize("drafter", ["good", "bad", "equal", "over-confident", ONE_HOT])
@pytest.mark.parametrize("sampler", ["temperature", "top_k", "all"])
def test_acceptance_is_what_theory_says(sampler: str, drafter: str) -> None:
    """The first draft token's rate is sum(min(target, draft)); 1e-6 odds of a false alarm each."""
    params = SAMPLERS[sampler]
    target, drafting = pair(drafter)
    first = Sampler(params, V, PROMPT)
    target_probs = first.distribution(target.row(PROMPT))
    if drafting is not None:
        draft_probs = first.distribution(drafting.row(PROMPT))
    else:
        draft_probs = Categorical.point((PROMPT[-1] + 1) % V)
    overlap = sum(min(target_probs.prob(x), draft_probs.prob(x)) for x in range(V))
    n, accepted = 2500, 0
    speculation = Speculation(target, drafting, params, 1)
    for _ in range(n):
        speculation.sampler.past = PROMPT
        speculation.round()
    accepted = speculation.accepted
    assert abs(accepted / n - overlap) < rate_limit(n, overlap) + 1e-9


# -- through the whole loop --------------------------------------------------------------------


def answer(
    session: FakeSession,
    drafters: Sequence[Drafter],
    params: SamplingParams,
    *,
    lookahead: int = 2,
    prompt: Sequence[int] = PROMPT,
    max_tokens: int = DEPTH,
) -> tuple[int, ...]:
    tokens = TokenBuffer(prompt)
    width = session.vocab_size
    for _ in decode(
        CachedSession(session),
        tokens,
        sampler=Sampler(params, width, prompt),
        planner=FixedPlanner([d.name for d in drafters], lookahead),
        drafters={d.name: d for d in drafters},
        cut=TextStream(PieceTokenizer([b"a"] * width), max_tokens=max_tokens).cut,
    ):
        pass
    session.rollback(0)
    return tuple(tokens.view[len(prompt) :].tolist())


@pytest.mark.parametrize("rule", ["rejection", "reproducible"])
@pytest.mark.parametrize("kind", ["plain", "model", "lookup"])
def test_the_loop_keeps_the_joint_distribution(rule: str, kind: str) -> None:
    """Nothing remembered, nothing replaced: each text has a seed of its own."""
    params = replace(SAMPLERS["all"], rule=rule)
    target = target_model()
    drafters: dict[str, list[Drafter]] = {
        "plain": [],
        "model": [ModelDrafter(fake_model(DRAFTERS["good"]()))],
        "lookup": [LookupDrafter(min_ngram=1)],
    }
    sample = [answer(target, drafters[kind], replace(params, seed=seed)) for seed in range(500)]
    assert fit(sample, joint(target, params)).good


@pytest.mark.parametrize("sampler", [*SAMPLERS, "greedy"])
def test_reproducible_text_depends_on_target_and_seed_alone(sampler: str) -> None:
    """Drafters {none, lookup, model}, lookaheads 1 to 8: identical ids."""
    params = SAMPLERS.get(sampler, GREEDY)
    for seed in (1, 2, 2**63):
        params = replace(params, seed=seed)
        target = target_model()
        plain = answer(target, [], params, max_tokens=24)
        drafters: list[list[Drafter]] = [
            [LookupDrafter()],
            *([ModelDrafter(fake_model(make()))] for make in DRAFTERS.values()),
            [LookupDrafter(), ModelDrafter(fake_model(DRAFTERS["good"]()))],
        ]
        for lookahead in range(1, 9):
            drafter = drafters[lookahead % len(drafters)]
            got = answer(target, drafter, params, lookahead=lookahead, max_tokens=24)
            assert got == plain
        if sampler == "temperature":  # every pairing once
            for drafter in drafters:
                for lookahead in range(1, 9):
                    got = answer(target, drafter, params, lookahead=lookahead, max_tokens=24)
                    assert got == plain


def test_reproducible_in_a_large_vocabulary() -> None:
    """The shortcut for whole vocabularies, with a drafter whose rows are near the target's."""
    size = 3000
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=5)
    target = FakeSession(size, order=1)
    plain = answer(target, [], params, max_tokens=40)
    assert len(set(plain)) > 20
    for lookahead in (1, 4, 8):
        drafter = ModelDrafter(fake_model(FakeSession(size, order=1, noise=0.05)))
        assert answer(target, [drafter], params, lookahead=lookahead, max_tokens=40) == plain


def test_a_seed_that_is_used_again_gives_other_draws_in_the_next_turn() -> None:
    flat = FakeSession(200, scale=0.0)
    for rule in ("rejection", "reproducible"):
        params = replace(OFF, seed=3, rule=rule)
        first = answer(flat, [], params, max_tokens=20)
        again = answer(flat, [], params, max_tokens=20)
        turn = answer(flat, [], params, prompt=[*PROMPT, *first, 7], max_tokens=20)
        assert first == again
        assert sum(a == b for a, b in zip(first, turn, strict=True)) < 4  # 20 chances of 1 in 200


# -- planted mistakes --------------------------------------------------------------------------


class Unnormalised(Categorical):
    """Draws as if the probabilities summed to 1."""

    def draw(self, rng: np.random.Generator) -> int:
        at = int(np.searchsorted(np.cumsum(self.probs), rng.random(), side="right"))
        at = min(at, len(self.probs) - 1)
        return at if self.ids is None else int(self.ids[at])


class ArgmaxDrafts(Speculation):
    def propose(self, past: tuple[int, ...]) -> Draft:
        drafted: list[int] = []
        probs: list[Categorical] = []
        assert self.drafter is not None
        while len(drafted) < self.lookahead:
            dist = self.sampler.distribution(self.drafter.row([*past, *drafted]), drafted)
            drafted.append(max(range(V), key=dist.prob))
            probs.append(dist)
        return Draft(tuple(drafted), tuple(probs))


class ShiftedRows(Speculation):
    def verify(self, rows: Sequence[Logits], draft: Draft):  # type: ignore[no-untyped-def]
        return super().verify([*rows[1:], rows[-1]], draft)


class BonusFromTheWrongRow(Speculation):
    def verify(self, rows: Sequence[Logits], draft: Draft):  # type: ignore[no-untyped-def]
        return super().verify([*rows[:-1], rows[-2]], draft)


class PenaltiesSeeTheFuture(Speculation):
    def verify(self, rows: Sequence[Logits], draft: Draft):  # type: ignore[no-untyped-def]
        sampler = self.sampler
        real = sampler.distribution
        sampler.distribution = lambda row, ahead=(): real(row, draft.tokens)  # type: ignore[method-assign]
        try:
            return super().verify(rows, draft)
        finally:
            sampler.distribution = real  # type: ignore[method-assign]


class DropsUnlikelyTokens(Speculation):
    def propose(self, past: tuple[int, ...]) -> Draft:
        draft = super().propose(past)
        assert draft.probs is not None
        for i, token in enumerate(draft.tokens):
            if draft.probs[i].prob(token) < 0.25:
                return Draft(draft.tokens[:i], draft.probs[:i]) if i else NO_DRAFT
        return draft


PLANTED = {
    "argmax drafts with softmax probabilities": (ArgmaxDrafts, OFF),
    "verification shifted by one row": (ShiftedRows, OFF),
    "bonus from the wrong row": (BonusFromTheWrongRow, OFF),
    "penalties see the future": (PenaltiesSeeTheFuture, SAMPLERS["repetition"]),
    "a drawn token dropped for its low probability": (DropsUnlikelyTokens, OFF),
}


def misfit(kind: type[Speculation], params: SamplingParams, drafter: str = "good") -> Fit:
    target, drafting = pair(drafter)
    return fit(kind(target, drafting, params).texts(1500), joint(target, params))


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    kind, params = PLANTED[mistake]
    assert misfit(Speculation, params).good  # the same without the mistake
    found = misfit(kind, params)
    assert found.chi_square > 1.5
    assert not found.good


def test_a_planted_residual_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verify_module.residual

    def unnormalised(target: Categorical, drafted: Categorical) -> Categorical:
        rest = np.maximum(target.probs - drafted.probs_at(target.ids, len(target.probs)), 0)
        return Unnormalised(target.ids, rest)

    for planted in (unnormalised, lambda target, drafted: target, lambda target, drafted: drafted):
        monkeypatch.setattr(verify_module, "residual", planted)
        for drafter in ("bad", "over-confident"):
            assert misfit(Speculation, OFF, drafter).chi_square > 1.5
    monkeypatch.setattr(verify_module, "residual", real)
    assert misfit(Speculation, OFF, "bad").good


def test_reproducible_with_noise_by_row_is_found() -> None:
    """Noise keyed by the row in a round instead of the position: the text would depend on how it
    was drafted, and its tokens on one another."""
    params = replace(OFF, seed=1)
    target = FakeSession(V, scale=0.3)
    plain = answer(target, [], params, max_tokens=24)

    class ByRow(Sampler):
        def choose(self, row: Logits, ahead: Sequence[int], position: int, **named: str) -> int:
            return super().choose(row, ahead, len(ahead), **named)

    assert len({plain[i : i + 3] for i in range(21)}) > 15
    texts = []
    for lookahead in (0, 2):
        tokens = TokenBuffer(PROMPT)
        for _ in decode(
            CachedSession(target),
            tokens,
            sampler=ByRow(params, V, PROMPT),
            planner=FixedPlanner(["lookup"], lookahead),
            drafters={"lookup": LookupDrafter(min_ngram=1)},
            cut=TextStream(PieceTokenizer([b"a"] * V), max_tokens=24).cut,
        ):
            pass
        target.rollback(0)
        texts.append(tokens.view.tolist())
    assert texts[0] != texts[1]
