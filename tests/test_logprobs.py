"""Log-probabilities under speculation are those of decoding one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeSession, PieceTokenizer, fake_model
from test_sampling import reference

from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.generation import Result
from edgespec.logprobs import LogprobsRequest, Stage
from edgespec.planner import FixedPlanner
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, SamplingParams

V = 12
PIECES = [bytes([97 + i]) for i in range(V)]
PROMPT = [1, 2, 3, 1, 2]
STEPPED = SamplingParams(
    top_k=6, top_p=0.9, repetition_penalty=1.4, frequency_penalty=0.3, penalty_window=4, seed=3
)
SETTINGS = {
    "greedy": GREEDY,
    "greedy, penalties": replace(GREEDY, repetition_penalty=1.4),
    "steps": STEPPED,
    "steps, rejection": replace(STEPPED, rule="rejection"),
    "whole vocabulary": SamplingParams(temperature=1.3, top_k=0, top_p=1.0, seed=4),
}


def answer(
    params: SamplingParams,
    request: LogprobsRequest | None,
    drafters: Sequence[Drafter] = (),
    lookahead: int = 0,
    stop: Sequence[str] = (),
    max_tokens: int = 30,
) -> Result:
    model = fake_model(FakeSession(V, padding=3), PieceTokenizer(PIECES))
    planner = FixedPlanner([d.name for d in drafters], lookahead)
    with Runtime(model, drafters, planner=planner) as runtime:
        return runtime.generate(
            PROMPT, params, max_tokens=max_tokens, stop=stop, logprobs=request
        ).result


def model_drafter() -> ModelDrafter:
    return ModelDrafter(fake_model(FakeSession(V, noise=0.2), PieceTokenizer(PIECES)))


def drafters() -> list[list[Drafter]]:
    """Fresh ones each time, since a runtime closes what it was given."""
    return [
        [],
        [model_drafter()],
        [LookupDrafter(1)],
        [LookupDrafter(2), model_drafter()],
    ]


@pytest.mark.parametrize("stage", ["model", "sampling"])
@pytest.mark.parametrize("name", SETTINGS)
def test_they_are_the_targets_own(name: str, stage: Stage) -> None:
    params = SETTINGS[name]
    for lookahead, drafter in enumerate(drafters()):
        result = answer(params, LogprobsRequest(3, stage), drafter, 2 * lookahead)
        if drafter and params.rule != "rejection":
            assert result.counters.accepted > 0
        assert [entry.token for entry in result.logprobs] == list(result.tokens)
        for at, entry in enumerate(result.logprobs):
            past = [*PROMPT, *result.tokens[:at]]
            row = FakeSession(V).row(past)[:V].tolist()
            plain = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)
            probs = reference(row, params if stage == "sampling" else plain, past)
            assert entry.logprob == pytest.approx(math.log(probs[entry.token]), abs=1e-5)
            top = sorted(probs, key=lambda token: (-probs[token], token))[:3]
            assert [token for token, _ in entry.top] == top
            expected = [math.log(probs[token]) for token in top]
            assert [logprob for _, logprob in entry.top] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("stage", ["model", "sampling"])
def test_speculation_changes_none_of_them(stage: Stage) -> None:
    for name in ("greedy", "greedy, penalties", "steps", "whole vocabulary"):
        request = LogprobsRequest(2, stage)
        plain = answer(SETTINGS[name], request)
        for lookahead in (1, 4, 8):
            for drafter in drafters():
                got = answer(SETTINGS[name], request, drafter, lookahead)
                assert got.logprobs == plain.logprobs


def test_they_are_cut_with_the_tokens() -> None:
    plain = answer(GREEDY, None)
    stop = plain.text[9:12]
    for lookahead in (0, 3, 8):
        for kind in ({"stop": [stop]}, {"max_tokens": 7}, {"max_tokens": 1}, {"max_tokens": 0}):
            drafter = [model_drafter()] if lookahead else []
            result = answer(GREEDY, LogprobsRequest(), drafter, lookahead, **kind)  # type: ignore[arg-type]
            assert [entry.token for entry in result.logprobs] == list(result.tokens)


def test_nothing_is_computed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.decode.token_logprobs", None)
    assert answer(GREEDY, None).logprobs == ()


def test_minus_infinity_in_the_logits() -> None:
    model = fake_model(FakeSession(V, bias={5: -math.inf}), PieceTokenizer(PIECES))
    with Runtime(model) as runtime:
        result = runtime.generate(PROMPT, GREEDY, max_tokens=3, logprobs=LogprobsRequest(V)).result
    for entry in result.logprobs:
        assert dict(entry.top)[5] == -math.inf
        assert math.fsum(np.exp([logprob for _, logprob in entry.top])) == pytest.approx(1)


def test_requests_are_checked() -> None:
    for wrong in ({"top_n": -1}, {"stage": "after"}):
        with pytest.raises(ConfigError):
            LogprobsRequest(**wrong)  # type: ignore[arg-type]
