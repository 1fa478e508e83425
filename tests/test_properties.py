"""Random models, drafters and endings: what comes out equals a reference that decodes one by one.

The reference is written out here and shares nothing with the loop: it decodes a token at a time,
looks through the whole text after each, and knows no cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from fakes import FakeSession, PieceTokenizer, fake_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sampling import reference

from edgespec.adaptive import MAX_LOOKAHEAD, AdaptivePlanner
from edgespec.costs import Costs
from edgespec.decode import decode
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.logprobs import LogprobsRequest
from edgespec.noise import PositionNoise
from edgespec.planner import FixedPlanner, Planner
from edgespec.runtime import Runtime
from edgespec.sampling import Sampler, SamplingParams
from edgespec.session import CachedSession, TokenBuffer, TokenIds
from edgespec.text import TextStream
from edgespec.verify import Draft

# Pieces that make stop strings overlap, span tokens, and split characters.
PIECES = [b"a", b"b", b"ab", b"ba", b"", "é".encode()[:1], "é".encode()[1:], b" a", b"b ", b"c"]
V = len(PIECES)
STOPS = ["ab", "aba", "bab", "b a", "ca", "é", "aa", "abab a", "\ufffd", " "]


def decoded(tokens: Sequence[int], final: bool) -> str:
    """The text of all tokens; unless final, without the bytes that could still change."""
    data = b"".join(PIECES[t] for t in tokens)
    if not final and data.endswith(PIECES[5]):
        data = data[:-1]
    return data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Case:
    """Everything that decides a text."""

    model: dict[str, object]
    params: SamplingParams
    prompt: list[int]
    max_tokens: int
    stops: list[str]
    stop_ids: frozenset[int]
    context_size: int

    def target(self) -> FakeSession:
        return FakeSession(V, context_size=self.context_size, **self.model)  # type: ignore[arg-type]

    def tokenizer(self) -> PieceTokenizer:
        return PieceTokenizer(PIECES, tuple(self.stop_ids))


def one_by_one(case: Case) -> tuple[list[int], str, str]:
    """The ids, the text and why it ended."""
    model, params = case.target(), case.params
    noise = PositionNoise(params.seed or 0, V)
    tokens: list[int] = []
    while len(tokens) < case.max_tokens:
        if len(case.prompt) + len(tokens) > case.context_size:
            return tokens, decoded(tokens, True), "context"
        past = [*case.prompt, *tokens]
        probs = reference(model.row(past)[:V].tolist(), params, past)
        # At temperature 0 there is one token and nothing to race against.
        ids = np.array(sorted(token for token, prob in probs.items() if prob > 0))
        race = noise.exponential(len(past), ids) / np.array([probs[i] for i in ids])
        token = int(ids[np.argmin(race)])
        if token in case.stop_ids:
            return tokens, decoded(tokens, True), "end"
        tokens.append(token)
        text = decoded(tokens, False)
        found = [at for stop in case.stops if (at := text.find(stop)) >= 0]
        if found:
            end = min(found)
            kept = [t for i, t in enumerate(tokens) if len(decoded(tokens[:i], False)) < end]
            return kept, text[:end], "stop"
    return tokens, decoded(tokens, True), "length"


class Guesses:
    """A drafter whose guesses, and how many, depend on the text in no sensible way."""

    name = "guesses"
    free = False
    failed = ""

    def __init__(self, salt: int) -> None:
        self._salt = salt

    def begin(self, length: int) -> None:
        pass

    def propose(
        self,
        tokens: TokenIds,
        max_tokens: int,
        sampler: Sampler,
        go_on: object = None,
        *,
        near: bool = False,
    ) -> Draft:
        rng = np.random.default_rng((self._salt, len(tokens), int(tokens[-1])))
        size = int(rng.integers(0, max_tokens + 1))
        return Draft(tuple(rng.integers(0, V, size=size).tolist()), None, self.name)

    def owes(self, tokens: TokenIds, *, near: bool = False) -> int:
        return 0

    def close(self) -> None:
        pass


models = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 50),
        "order": st.integers(0, 3),
        "scale": st.sampled_from([0.5, 2.0, 8.0]),
        "padding": st.sampled_from([0, 3]),
    }
)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 4, 100]),
    top_p=st.sampled_from([1.0, 1.0, 0.83]),
    min_p=st.sampled_from([0.0, 0.0, 0.11]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.7]),
    frequency_penalty=st.sampled_from([0.0, 0.6]),
    penalty_window=st.sampled_from([0, 1, 5]),
    logit_bias=st.sampled_from([{}, {4: 1.5}]),
    banned_tokens=st.sampled_from([frozenset(), frozenset({0})]),
    seed=st.integers(0, 2**32),
)
cases = st.builds(
    Case,
    model=models,
    params=samplings,
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=8),
    max_tokens=st.sampled_from([30, 7, 30, 2, 1, 0]),
    stops=st.lists(st.sampled_from(STOPS), max_size=3),
    stop_ids=st.sampled_from([frozenset(), frozenset(), frozenset({9}), frozenset({1, 4})]),
    context_size=st.sampled_from([8, 9, 13, 20, 200]),
)


@st.composite
def drafter_lists(draw: st.DrawFn, case: Case) -> list[Drafter]:
    drafters: list[Drafter] = []
    for kind in draw(st.lists(st.sampled_from(["lookup", "model", "guesses"]), unique=True)):
        if kind == "lookup":
            drafters.append(LookupDrafter(draw(st.integers(1, 2)), 3))
        elif kind == "guesses":
            drafters.append(Guesses(draw(st.integers(0, 9))))
        else:
            options = {
                **case.model,
                "padding": draw(st.sampled_from([0, 2])),
                "noise": draw(st.sampled_from([0.0, 0.2, 1.0])),
                "context_size": draw(st.sampled_from([4, 12, 200])),
            }
            drafters.append(ModelDrafter(fake_model(FakeSession(V, **options), case.tokenizer())))
    return drafters


class Continuing(FixedPlanner):
    """A token from the model, and behind it what followed those words before."""

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        if room < 2 or not {"model", "lookup"} <= drafters.keys():
            return super().draft(drafters, tokens, room, sampler)
        drawn = drafters["model"].propose(tokens, 1, sampler)
        text = np.concatenate([tokens, np.array(drawn.tokens, np.int32)])
        guess = drafters["lookup"].propose(text, min(room - 1, 4), sampler)
        return drawn.followed_by(guess) if drawn and guess else drawn


def planner_of(drafters: Sequence[Drafter], lookahead: int | None) -> Planner:
    """For a lookahead, below 0 with copies behind models' drafts; None measures, on a machine
    where drafts are cheap.
    """
    if lookahead is not None and lookahead < 0:
        return Continuing([d.name for d in drafters], -lookahead)
    if lookahead is not None:
        return FixedPlanner([d.name for d in drafters], lookahead)
    costs = {name: {1: 0.01, 2: 0.02, 16: 0.1} for name in ("model", "guesses")}
    return AdaptivePlanner(Costs({"check": {1: 1.0, 4: 1.1, 17: 1.4}, **costs}))


lookaheads = st.one_of(st.none(), st.integers(0, 8), st.just(-8))


def decode_checked(
    case: Case, params: SamplingParams, drafters: Sequence[Drafter], lookahead: int | None
) -> tuple[list[int], str, str]:
    """Run the loop; its invariants hold after every round."""
    session = case.target()
    tokens = TokenBuffer(case.prompt)
    stream = TextStream(case.tokenizer(), max_tokens=case.max_tokens, stop=case.stops)
    text, taken, total, reason = "", 0, 0, None
    for step in decode(
        CachedSession(session),
        tokens,
        sampler=Sampler(params, V, case.prompt, ends=case.stop_ids),
        planner=planner_of(drafters, lookahead),
        drafters={d.name: d for d in drafters},
        cut=stream.cut,
        logprobs=LogprobsRequest(),
    ):
        assert reason is None  # nothing follows an end
        reason = step.finish_reason
        if session.passes:
            assert session.length == len(tokens) - 1
        assert session.cache == tokens.view[: session.length].tolist()
        assert session.length <= case.context_size
        assert tuple(entry.token for entry in step.logprobs) == step.tokens
        total += len(step.tokens)
        assert total >= len(tokens) - len(case.prompt) == stream.num_tokens
        if reason is None:
            assert tokens.view[-len(step.tokens) :].tolist() == list(step.tokens)
            assert len(step.tokens) == step.accepted + 1
        assert (
            0
            <= step.accepted
            <= step.drafted
            <= (MAX_LOOKAHEAD if lookahead is None else abs(lookahead))
        )
        kinds = ("accepted",) * step.accepted + (
            ("plain",)
            if not step.drafted
            else ("bonus",)
            if step.accepted == step.drafted
            else ("recovered",)
        )
        assert step.origins == kinds[: len(step.tokens)]
        if reason is not None:
            stream.finish(reason)
        piece, count = stream.take()
        text += piece
        taken += count
        assert decoded(tokens.view[len(case.prompt) :].tolist(), True).startswith(
            text.rstrip("\ufffd")
        )
    assert taken == len(tokens) - len(case.prompt)
    return tokens.view[len(case.prompt) :].tolist(), text, str(reason)


common = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(common, max_examples=150)
@given(cases.filter(lambda case: len(case.prompt) <= case.context_size), st.data())
def test_the_loop_equals_decoding_one_by_one(case: Case, data: st.DataObject) -> None:
    """Greedy and reproducible, whatever drafts; under rejection the invariants alone."""
    drafters = data.draw(drafter_lists(case), label="drafters")
    lookahead = data.draw(lookaheads, label="lookahead")
    assert decode_checked(case, case.params, drafters, lookahead) == one_by_one(case)
    rejecting = replace(case.params, rule="rejection")
    decode_checked(case, rejecting, drafters, lookahead)  # the drafters' caches hold another text


@settings(common, max_examples=60)
@given(
    cases.filter(lambda case: len(case.prompt) <= case.context_size),
    st.lists(st.lists(st.integers(0, V - 1), max_size=3), min_size=1, max_size=3),
    st.data(),
)
def test_a_runtime_equals_decoding_one_by_one(
    case: Case, turns: list[list[int]], data: st.DataObject
) -> None:
    """Turn after turn over the same caches, each turn's prompt being what came before, changed."""
    drafters = data.draw(drafter_lists(case), label="drafters")
    planner = planner_of(drafters, data.draw(lookaheads, label="lookahead"))
    model = fake_model(case.target(), case.tokenizer())
    with Runtime(model, drafters, planner=planner) as runtime:
        for more in turns:
            generation = runtime.generate(
                case.prompt, case.params, max_tokens=case.max_tokens, stop=case.stops
            )
            chunks = list(generation)
            result = generation.result
            assert (list(result.tokens), result.text, result.finish_reason) == one_by_one(case)
            assert "".join(chunk.text for chunk in chunks) == result.text
            assert [t for chunk in chunks for t in chunk.tokens] == list(result.tokens)
            assert [o for chunk in chunks for o in chunk.origins] == list(result.origins)
            counters = result.counters
            assert counters.tokens == len(result.tokens) == len(result.origins)
            assert result.origins.count("accepted") <= counters.accepted <= counters.drafted
            kept = data.draw(st.integers(0, len(result.tokens)), label="kept")
            prompt = [*case.prompt, *result.tokens[:kept], *more][-case.context_size :]
            case = replace(case, prompt=prompt)
