"""`edgespec tune`: its sums against ones done by hand, its sentence against what planners reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from fakes import FakeSession, fake_model
from simulator import MACHINES, Game, alternating, fixed_cost, make_text

from edgespec import Runtime
from edgespec.adaptive import AdaptivePlanner
from edgespec.commands.tune import planned, sampled
from edgespec.costs import Costs
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.planner import FixedPlanner, PlannerStatus
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.tune import (
    PAYS,
    Answer,
    Sample,
    best,
    break_even,
    gain,
    reached,
    report,
    verdict,
)
from edgespec.verify import Draft

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
    said = verdict([Answer(60, 1.3, ("lookup",)), Answer(60, 1.2, ("lookup", "model"))])
    assert "Speculation pays" in said and "with lookup and model and reached 1.25 times" in said
    said = verdict([Answer(60, 1.04, ("model",))])
    assert "does not pay" in said and "drafted with model and reached 1.04 times" in said
    assert "does not pay" in verdict([Answer(60, 1.2)])  # a clock that ran fast is no gain
    assert "drafted nothing" in verdict([Answer(60, 1.0)])
    assert "can't be told" in verdict([Answer(60, None)])


def test_answers_count_by_their_time() -> None:
    assert reached([Answer(100, 2.0), Answer(100, 0.5)]) == pytest.approx(200 / 250)
    assert reached([Answer(90, 1.5), Answer(10, None)]) == pytest.approx(1.5)
    assert reached([]) is None


@pytest.mark.parametrize("seed", range(3))
def test_what_pays_on_one_kind_of_text_alone_is_found_by_the_sentence(seed: int) -> None:
    """Half of the prompts copy: no fixed lookahead pays over all of them, and the planner does."""
    machine, rng = MACHINES["q4_k_m"], np.random.default_rng(seed)
    process = alternating(0.5, 0.5, (128, 128), copies=True, fixed=True)
    text = make_text(process, rng, answers=((90, 128),) * 4)
    planner, answers = AdaptivePlanner(machine.measured(rng)), list[Answer]()
    names = ("lookup",)

    def after() -> None:
        answers.append(Answer(128, planner.status().gain, names))

    rounds = Game(machine, text, seed).play(planner, names, after)
    found = reached(answers)
    assert found == pytest.approx(4 * 128 / sum(r.cost for r in rounds), rel=0.05)
    assert "Speculation pays" in verdict(answers)
    fixed = (fixed_cost(machine, text, "lookup", k) for k in range(1, 9))
    assert 4 * 128 / min(fixed) < PAYS < found


class Told(FixedPlanner):
    """Drafts with lookup, and tells of each answer a gain that was given."""

    def __init__(self, gains: Sequence[float]) -> None:
        super().__init__(["lookup"], 3)
        self._gains = list(gains)

    def begin(self, length: int) -> None:
        super().begin(length)
        self._gain = self._gains.pop(0)

    def status(self) -> PlannerStatus:
        return PlannerStatus("lookup", 3, False, "", self._gain)


def runtime(gains: Sequence[float] = (), **options: object) -> Runtime:
    target = FakeSession(260, order=1, **options)  # type: ignore[arg-type]
    return Runtime(fake_model(target), [LookupDrafter()], planner=Told(gains))


def test_sample_prompts_are_answered_by_the_runtimes_own_planner() -> None:
    with runtime((1.5, 0.5)) as opened:
        answers = planned(opened, ["hello", "you there"], 200)
        sample = sampled(opened, ["hello"], 200, "lookup")
    assert [answer.gain for answer in answers] == [1.5, 0.5]
    assert {answer.drafters for answer in answers} == {("lookup",)}  # by words that came before
    assert [answer.tokens for answer in answers] == [199, 199]
    assert sample is not None and sample.rate > 0.5 and sample.share > 0.3


class Continued(Told):
    """Each draft is the model's first token and, behind it, what lookup has."""

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        drawn = drafters["model"].propose(tokens, 1, sampler)
        text = np.concatenate([tokens, np.array(drawn.tokens, np.int32)])
        guess = drafters["lookup"].propose(text, max(room - 1, 0), sampler)
        return drawn.followed_by(guess) if drawn and guess else guess


def test_drafters_that_wrote_a_draft_in_turn_are_named_one_by_one() -> None:
    target, drafter = FakeSession(260, order=1), FakeSession(260, order=1)
    drafters = [LookupDrafter(), ModelDrafter(fake_model(drafter))]
    with Runtime(fake_model(target), drafters, planner=Continued((1.5,))) as opened:
        (answer,) = planned(opened, ["hello"], 200)
    assert sorted(answer.drafters) == ["lookup", "model"]
    assert "+" not in verdict([answer])


def test_answers_that_end_with_their_first_token_show_nothing() -> None:
    with runtime((1.0,), bias={257: 90.0}) as opened:
        answers = planned(opened, ["hello"], 64)
        assert sampled(opened, ["hello"], 64, "lookup") is None
    assert answers == [Answer(0, 1.0)]
    with pytest.raises(ConfigError, match="end with their first token"):
        verdict(answers)


def test_a_drafter_without_a_guess_is_told_of_beside_one_that_has_some() -> None:
    lines = list(report(FLAT, {"lookup": None, "model": Sample(0.6, 0.4)}, {"lookup"}))
    told = [line for line in lines if "on the sample prompts" in line]
    assert ["it had no guess" in line for line in told] == [True, False]
    assert told[1].endswith("acceptance 0.60, with a guess in 40% of the rounds")
