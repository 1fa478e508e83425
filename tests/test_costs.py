"""What passes cost: measured on sessions whose clock is made up, followed, kept on disk."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeSession, fake_model

from edgespec import cost_store
from edgespec.adaptive import AdaptivePlanner
from edgespec.confidence import MATCH_PRIOR, Outlook
from edgespec.costs import Costs
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.planner import Outcome, Seconds
from edgespec.sampling import GREEDY, Sampler
from edgespec.timing import READS, measure
from edgespec.verify import Verdict

CURVE = {1: 0.10, 2: 0.16, 3: 0.21, 4: 0.19, 5: 0.34, 6: 0.45, 8: 0.70, 12: 1.10}


class Timed(FakeSession):
    """A session that takes simulated time by the number of tokens in a pass."""

    def __init__(self, clock: list[float], cost: Callable[[int], float], **options: Any) -> None:
        super().__init__(8, **options)
        self._clock, self._cost = clock, cost

    def forward(self, tokens: Any, num_logits: int = 1) -> Any:
        self._clock[0] += self._cost(len(tokens))
        return super().forward(tokens, num_logits)


def costs(**kinds: dict[int, float]) -> Costs:
    return Costs({"check": CURVE, **kinds})


def planner() -> AdaptivePlanner:
    """One that has played a little with a lookup and a model."""
    checks = {1: 0.1, 2: 0.105, 4: 0.11, 8: 0.15}
    made = AdaptivePlanner(Costs({"check": checks, "model": {1: 0.02, 2: 0.03, 16: 0.17}}))
    drafters = {"lookup": LookupDrafter(), "model": ModelDrafter(fake_model(FakeSession(8)))}
    text = np.array([1, 2, 3, 4, 5, 6, 7] * 4, np.int32)
    made.begin(len(text))
    for k in range(20):
        some = {name: d for name, d in drafters.items() if k >= 5 or name == "model"}
        draft = made.draft(some, text, 100, Sampler(GREEDY, 8))
        rows = np.zeros((len(draft) + 1, 8), np.float32)
        made.observe(
            Outcome(draft, Verdict(0, 0), Seconds(0.02, 0.1 + 0.05 * len(draft)), len(text), rows)
        )
    return made


def relative(found: Costs, tokens: int) -> float:
    return found.seconds("check", tokens, 100) / found.seconds("check", 1, 100)


def test_measuring_takes_some_40_plain_tokens_and_leaves_no_trace() -> None:
    clock = [0.0]
    target = Timed(clock, lambda n: CURVE.get(n, 0.1 * n))
    drafter = Timed(clock, lambda n: 0.03 + 0.008 * n)
    target.cache = [1, 2, 3]
    found = measure(target, {"model": drafter}, clock=lambda: clock[0])
    assert clock[0] <= 42 * CURVE[1] + 12 * 0.038
    assert target.cache == drafter.cache == []
    assert {n for n, _ in target.passes} == {1, 2, 3, 4, 6, 8, 16}  # then its time is over
    assert {n for n, _ in drafter.passes} >= set(READS)
    assert all(rows == 1 for _, rows in drafter.passes)
    for n in (2, 4, 12):
        got = found.seconds("check", n, 100)
        # What was measured, or somewhat less out of curiosity.
        assert 0.7 * CURVE[n] <= got <= 1.001 * CURVE[n] or got == found.seconds("check", 1, 100)
    assert found.seconds("model", 1, 100) == pytest.approx(0.038)
    assert found.draft("model", 3, 2, 100) == pytest.approx(0.046 + 2 * 0.038, rel=0.01)


def test_a_slow_batch_ends_the_measuring() -> None:
    clock = [0.0]
    target = Timed(clock, lambda n: 0.1 if n == 1 else 50.0)
    found = measure(target, {}, clock=lambda: clock[0])
    assert [n for n, _ in target.passes if n > 1] == [4, 2]  # the warm-up, and one to see it
    assert found.seconds("check", 8, 100) > 50 * found.seconds("check", 1, 100)


@pytest.mark.parametrize("more", [0.008, 0.014, 0.03, 0.06])
def test_the_first_pass_of_a_size_is_not_what_it_costs(more: float) -> None:
    """As on a GPU, which makes its kernels ready then."""
    clock = [0.0]

    def gpu(one: float) -> Callable[[int], float]:
        seen: set[int] = set()

        def cost(n: int) -> float:
            new = n not in seen
            seen.add(n)
            return one + 0.00005 * n + more * new

        return cost

    target, drafter = Timed(clock, gpu(0.005)), Timed(clock, gpu(0.002))
    found = measure(target, {"model": drafter}, clock=lambda: clock[0])
    assert {n for n, _ in target.passes} >= {1, 2, 3, 4}
    for n in (2, 3, 4, 6):
        assert found.expected(n, 100) < 1.1 * found.expected(1, 100)
    assert found.seconds("model", 2, 100) < 0.0022
    beyond = 3 * more + 0.012  # uncounted: of the warm-up, of one token, and of the last size
    assert clock[0] < 42 * 0.00505 + 14 * 0.00205 + 2 * beyond


def test_a_clock_that_stands_still_doesnt_hang() -> None:
    target = FakeSession(8)
    assert np.isfinite(measure(target, {}, clock=lambda: 1.0).curve("check", 10)).all()
    assert len(target.passes) < 100


def test_measuring_can_be_stopped_and_leaves_the_cache_empty() -> None:
    target, calls = FakeSession(8), [0]

    def check() -> None:
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(target, {}, check=check, clock=lambda: 1.0)
    assert target.cache == []


@pytest.mark.parametrize("context_size", [2, 3, 7, 16])
def test_a_small_context_is_measured_as_far_as_it_goes(context_size: int) -> None:
    clock = [0.0]
    target = Timed(clock, lambda n: 0.1 * n, context_size=context_size)
    found = measure(target, {}, clock=lambda: clock[0])
    assert np.isfinite(found.curve("check", 10)).all()


def test_unmeasured_passes_lie_between_their_neighbours_or_beyond() -> None:
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.17})
    assert found.seconds("model", 9, 100) == pytest.approx(0.1)
    assert found.seconds("model", 17, 100) == pytest.approx(0.18, rel=0.02)
    assert found.seconds("model", 117, 100) == pytest.approx(1.18, rel=0.03)  # a long read
    assert costs(model={1: 0.02}).seconds("model", 4, 100) == pytest.approx(0.08)
    uneven = costs(model={1: 0.1, 6: 0.2, 12: 0.19})
    assert uneven.seconds("model", 9, 100) == pytest.approx(0.195)
    assert uneven.seconds("model", 17, 100) == pytest.approx(0.19 + 5 * 0.09 / 11)


def test_a_batch_is_never_thought_cheaper_than_one_token() -> None:
    found = Costs({"check": {1: 0.1, 2: 0.05, 8: 0.09}})
    assert min(found.curve("check", 100)[1:]) == found.seconds("check", 1, 100)


def test_throttling_changes_the_pace_and_not_what_batches_cost() -> None:
    rng = np.random.default_rng(0)
    found = costs()

    def run(factor: float, rounds: int) -> None:
        for i in range(rounds):
            n = (1, 4)[i % 4 > 0]
            found.observe("check", n, 100, factor * CURVE[n] * float(np.exp(0.1 * rng.normal())))

    run(1.0, 100)
    before = relative(found, 4)
    run(2.0, 20)
    assert found.seconds("check", 1, 100) == pytest.approx(0.2, rel=0.2)
    assert relative(found, 4) == pytest.approx(before, rel=0.15)


def test_plain_rounds_tell_dearer_batches_from_a_slower_machine() -> None:
    found = costs()
    for i in range(150):
        n = 1 if i % 15 == 0 else 4
        found.observe("check", n, 100, CURVE[n] * (2.0 if n > 1 else 1.0))
    assert relative(found, 4) == pytest.approx(3.8, rel=0.15)
    assert relative(found, 5) > 1.4 * relative(costs(), 5)  # its neighbours are thought dearer too
    assert found.seconds("check", 1, 100) == pytest.approx(0.1, rel=0.15)


def test_a_pass_that_was_held_up_says_little() -> None:
    found = costs()
    for _ in range(50):
        found.observe("check", 1, 100, 0.1)
    found.observe("check", 1, 100, 10.0)
    assert found.seconds("check", 1, 100) < 0.13


def test_a_draft_is_learnt_as_a_read_and_steps() -> None:
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.17})
    for i in range(200):
        found.observe("check", 1 + 3 * (i % 2), 100, CURVE[1 + 3 * (i % 2)])
        size = 1 + i % 5
        found.observe_draft("model", size, 2, 100, 2 * (0.03 + (size - 1) * 0.02))
    assert found.draft("model", 4, 2, 100) == pytest.approx(2 * 0.09, rel=0.1)


def test_long_reads_are_learnt_apart() -> None:
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.17})
    believed = found.seconds("model", 217, 100)
    assert believed == pytest.approx(0.18 + 200 * 0.01, rel=0.01)
    step = found.seconds("model", 1, 100)
    for _ in range(30):
        found.observe_draft("model", 3, 217, 100, 0.18 + 200 * 0.004 + 2 * step)
    assert found.seconds("model", 217, 100) == pytest.approx(0.18 + 200 * 0.004, rel=0.01)
    assert found.seconds("model", 2, 100) == pytest.approx(0.03)
    again = Costs.from_json(json.loads(json.dumps(found.to_json())))
    assert again.seconds("model", 217, 100) == pytest.approx(0.18 + 200 * 0.004, rel=0.02)


def test_a_read_is_never_thought_free() -> None:
    found = costs(model={1: 0.2, 2: 0.3, 16: 0.1})  # a pass over two was held up
    assert found.seconds("model", 1000, 100) > 1.0


def test_what_is_not_measured_for_long_is_no_less_certain_than_at_first() -> None:
    found, fresh = costs(), costs()
    for _ in range(20_000):
        found.observe("check", 1, 100, 0.1)
    assert relative(found, 8) > 0.95 * relative(fresh, 8)


def test_what_was_well_known_is_known_the_next_day() -> None:
    found = costs()
    for _ in range(200):
        found.observe("check", 1, 100, 0.1)
        found.observe("check", 4, 100, CURVE[4])
    again = Costs.from_json(json.loads(json.dumps(found.to_json())))
    # A batch counts for less than expected while it is uncertain.
    assert relative(costs(), 4) < 0.95 * CURVE[4] / CURVE[1]
    assert relative(again, 4) > 0.95 * CURVE[4] / CURVE[1]


def test_each_doubling_of_the_text_has_its_own_costs() -> None:
    found = costs()
    for _ in range(60):
        found.observe("check", 1, 100, 0.1)
        found.observe("check", 4, 4000, 4 * CURVE[4])
        found.observe("check", 1, 4000, 0.1)
    at = found.seconds("check", 4, 4000) / found.seconds("check", 1, 4000)
    assert at == pytest.approx(4 * 1.9, rel=0.2)
    assert relative(found, 4) < 2.5


def test_what_a_longer_text_costs_is_no_change_of_pace() -> None:
    """Plain rounds alone tell that a batch pays for the attention of each of its tokens."""
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.1})
    for seconds in (0.6, 1.9, 0.6):  # one was held up
        found.observe("check", 1, 8000, seconds)
    assert found.seconds("check", 1, 8000) == pytest.approx(0.6, rel=0.1)
    assert found.expected(4, 8000) == pytest.approx(CURVE[4] + 0.5 * 4**0.75, rel=0.15)
    assert found.seconds("model", 1, 8000) == pytest.approx(6 * 0.02, rel=0.2)
    assert relative(found, 4) == pytest.approx(CURVE[4] / CURVE[1], rel=0.2)
    assert found.seconds("check", 1, 100) == pytest.approx(0.1, rel=0.2)  # nor was that one
    for _ in range(8):  # it learns from batches as ever
        found.observe("check", 4, 8000, 0.7)
        found.observe("check", 1, 8000, 0.6)
    assert found.expected(4, 8000) == pytest.approx(0.7, rel=0.1)


def test_a_length_that_costs_nothing_is_no_dearer_for_one_slow_round() -> None:
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.1})
    for seconds in (0.3, 0.1, 0.1):  # the first one was held up
        found.observe("check", 1, 8000, seconds)
    for n in (1, 4, 8):
        assert found.expected(n, 8000) == pytest.approx(CURVE[n], rel=0.1)


def test_a_length_that_is_still_new_is_looked_at_anew_the_next_day() -> None:
    found = costs(model={1: 0.02, 2: 0.03, 16: 0.1})
    found.observe("check", 1, 8000, 0.3)  # it was held up, and the answer was over
    again = Costs.from_json(json.loads(json.dumps(found.to_json())))
    for day in (again, costs()):
        for _ in range(3):
            day.observe("check", 1, 8000, 0.1)
        for n in (1, 4, 8):
            assert day.expected(n, 8000) == pytest.approx(CURVE[n], rel=0.1)
    assert "5" in again.to_json()  # now it is known


def test_costs_survive_json() -> None:
    found = costs(model={1: 0.02, 16: 0.1})
    for i in range(40):
        found.observe("check", 3, 100 + 20 * i, 0.3)
    again = Costs.from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json().keys() == found.to_json().keys() == {
        "long_reads", "0", "1", "2",
    }  # fmt: skip
    for bucket in ("0", "1", "2"):
        for kind, curve in found.to_json()[bucket].items():
            assert again.to_json()[bucket][kind]["seconds"] == pytest.approx(curve["seconds"])
    assert found.pace != 0
    for n in (1, 2, 17):
        assert again.seconds("model", n, 900) == pytest.approx(found.seconds("model", n, 900))


def test_what_drafters_proved_to_be_worth_is_known_the_next_day(key: dict[str, Any]) -> None:
    made = planner()  # nothing that was drafted stood
    cost_store.save(key, made)
    again, fresh = cost_store.load(key), AdaptivePlanner(costs())
    assert again is not None
    kept, first = again.to_json(), fresh.to_json()
    assert (
        kept["matches"] == made.to_json()["matches"] and kept["answer"] == made.to_json()["answer"]
    )
    expected = made.to_json()["models"]["model"]
    assert kept["models"]["model"]["outlook"] == pytest.approx(expected["outlook"])
    assert kept["models"]["model"]["signal"] == expected["signal"]
    assert first["matches"] == {} and set(kept["matches"]) == {"lookup"}
    usual = np.array(kept["matches"]["lookup"]["usual"])
    assert (usual < 0.7 * np.array(MATCH_PRIOR)).any()  # less than is taken for granted
    assert kept["models"]["model"]["outlook"] != pytest.approx(Outlook().to_json(), rel=0.01)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    return key_of()


def key_of(device: str = "CPU, 2 threads", version: str = "1.0") -> dict[str, Any]:
    target, drafter = fake_model(FakeSession(8)), fake_model(FakeSession(8))
    target.details = {"device": device, "fingerprint": "abc", "llama_cpp": version}
    return cost_store.key(target, {"model": drafter})


def file_of(key: dict[str, Any]) -> Path:
    return cost_store._file(key)


def test_saved_costs_come_back_for_the_same_key_only(key: dict[str, Any]) -> None:
    assert cost_store.load(key) is None
    made = planner()
    cost_store.save(key, made)
    loaded = cost_store.load(key)
    assert loaded is not None
    seconds = made.costs.seconds("check", 1, 100)
    assert loaded.costs.seconds("check", 1, 100) == pytest.approx(seconds)
    assert cost_store.load(key_of(device="CPU, 4 threads")) is None
    assert cost_store.load(key_of(version="1.1")) is None
    assert [f.name for f in file_of(key).parent.iterdir()] == [file_of(key).name]
    cost_store.save(key_of(version="1.1"), planner())
    assert cost_store.load(key) is not None  # one pair's costs don't replace another's


def first_number(text: bytes, number: bytes) -> bytes:
    """The first of the costs replaced."""
    return re.sub(rb'("seconds": \[)[^,]*', rb"\g<1>" + number, text, count=1)


def test_no_drafter_takes_the_name_of_the_checks() -> None:
    session = FakeSession(8)
    with pytest.raises(ConfigError, match='a drafter called "check"'):
        measure(session, {"check": FakeSession(8)})
    assert not session.passes


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"\xff\xfe" + text,
        lambda text: b"[]",
        lambda text: text.replace(b'"check"', b'"chack"'),
        lambda text: text.replace(b'"model": {"seconds"', b'"other": {"seconds"'),
        lambda text: re.sub(rb'"outlook": \[[^,]*', b'"outlook": [1e400', text, count=1),
        lambda text: re.sub(rb'"answer": [^,]*', b'"answer": 1' + b"0" * 400, text, count=1),
        lambda text: b"null",
        lambda text: text.replace(b'"costs"', b'"cost"'),
        lambda text: text.replace(b'"0"', b'"7"'),
        lambda text: text.replace(b'"seconds": [', b'"seconds": [1.0, '),
        lambda text: text.replace(b'"seconds": [', b'"seconds": [NaN], "x": ['),
        lambda text: text.replace(b'"unsure": [', b'"unsure": [NaN, '),
        lambda text: re.sub(rb'"unsure": \[[^,]*', b'"unsure": [NaN', text, count=1),
        lambda text: text.replace(b'"drafters"', b'"drafter"'),
        lambda text: re.sub(rb'"usual": \[[^,]*', b'"usual": [1.5', text, count=1),
        lambda text: re.sub(rb'"outlook": \[[^,]*', b'"outlook": [-1.5', text, count=1),
        lambda text: first_number(text, b"-0.1"),
        lambda text: first_number(text, b"0"),
        lambda text: first_number(text, b"NaN"),
        lambda text: re.sub(rb'("seconds": \[[^,]*, )[^,]*', rb"\g<1>NaN", text, count=1),
        lambda text: first_number(text, b"1e400"),
        lambda text: text.replace(b'"seconds": [0', b'"seconds": ["a", 0'),
        lambda text: text.replace(b"abc", b"abd"),
        lambda text: b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_no_file(key: dict[str, Any], damage: Callable[[bytes], bytes]) -> None:
    cost_store.save(key, planner())
    text = file_of(key).read_bytes()
    assert damage(text) != text
    file_of(key).write_bytes(damage(text))
    assert cost_store.load(key) is None
    cost_store.save(key, planner())
    assert cost_store.load(key) is not None


def measured(factor: float = 1.0, taken: float = 1.0) -> AdaptivePlanner:
    """Freshly measured, on a machine that is slower by a factor."""
    checks = {n: factor * seconds for n, seconds in CURVE.items()}
    made = AdaptivePlanner(Costs({"check": checks, "model": {1: factor * 0.02, 16: factor * 0.1}}))
    made.costs.taken = taken
    return made


def loaded(key: dict[str, Any]) -> AdaptivePlanner:
    found = cost_store.load(key)
    assert found is not None
    return found


def answer(made: AdaptivePlanner, length: int, four: float, rounds: int = 40) -> None:
    """Rounds behind a text of `length`, in which a pass over four tokens takes `four` times one."""
    plain = made.costs.expected(1, 100)
    for _ in range(rounds):
        made.costs.observe("check", 1, length, plain)
        made.costs.observe("check", 4, length, four * plain)


def batch(made: AdaptivePlanner, length: int) -> float:
    return made.costs.expected(4, length) / made.costs.expected(1, length)


def test_who_learnt_nothing_leaves_what_was_measured_meanwhile(key: dict[str, Any]) -> None:
    cost_store.save(key, measured())
    idle, other = loaded(key), loaded(key)
    answer(other, 100, 1.5)
    for later in (other, measured(0.5, taken=2.0)):  # what another chat learnt; what `tune` found
        cost_store.save(key, later)
        text = file_of(key).read_bytes()
        cost_store.save(key, idle)
        assert file_of(key).read_bytes() == text


def test_costs_of_a_later_measurement_stay(key: dict[str, Any]) -> None:
    cost_store.save(key, measured(3.0))
    chat = loaded(key)
    cost_store.save(key, measured(taken=2.0))
    answer(chat, 100, 3.5)
    answer(chat, 4000, 3.5)
    cost_store.save(key, chat)
    kept = loaded(key)
    assert kept.costs.taken == 2.0
    assert kept.costs.expected(1, 100) == pytest.approx(CURVE[1], rel=0.01)
    assert batch(kept, 100) == pytest.approx(1.9, rel=0.01)
    # A length that the later one doesn't know is as it was found, at the later one's pace.
    assert batch(kept, 4000) == pytest.approx(3.5, rel=0.1)
    assert kept.costs.expected(1, 4000) == pytest.approx(CURVE[1], rel=0.05)


def test_two_windows_keep_what_each_learnt_of_lengths(key: dict[str, Any]) -> None:
    cost_store.save(key, measured())
    first, second = loaded(key), loaded(key)
    answer(first, 4000, 3.0)
    answer(first, 500, 3.0)
    cost_store.save(key, first)
    answer(second, 500, 2.5)
    cost_store.save(key, second)
    kept = loaded(key)
    assert batch(kept, 4000) == pytest.approx(3.0, rel=0.1)
    assert batch(kept, 500) == pytest.approx(2.5, rel=0.1)  # from the one that saw it last
    assert batch(kept, 100) == pytest.approx(1.9, rel=0.1)
    again = loaded(key)  # a length left alone is no less sure for it
    answer(again, 100, 1.9)
    before = json.loads(file_of(key).read_text())["costs"]["4"]["check"]["unsure"]
    cost_store.save(key, again)
    assert json.loads(file_of(key).read_text())["costs"]["4"]["check"]["unsure"] == before


def test_lengths_learnt_outlive_a_new_measurement(key: dict[str, Any]) -> None:
    cost_store.save(key, measured())
    chat = loaded(key)
    answer(chat, 4000, 3.0)
    for _ in range(30):
        chat.costs.observe_draft("model", 3, 217, 100, 0.1 + 200 * 0.001 + 0.04)
    cost_store.save(key, chat)
    sure = json.loads(file_of(key).read_text())["costs"]
    new = measured(0.5, taken=2.0)
    cost_store.save(key, new)
    kept = loaded(key)
    assert kept.costs.expected(1, 100) == pytest.approx(0.5 * CURVE[1], rel=0.01)
    assert batch(kept, 4000) == pytest.approx(3.0, rel=0.1)
    longer = chat.costs.expected(1, 4000) / chat.costs.expected(1, 100)
    assert kept.costs.expected(1, 4000) == pytest.approx(longer * 0.5 * CURVE[1], rel=0.01)
    stored = json.loads(file_of(key).read_text())["costs"]
    assert stored["long_reads"] == sure["long_reads"] != {}
    # It was found with other costs at a short text, so it is learnt anew from there.
    unsure = kept.costs.to_json()["4"]["check"]["unsure"]
    assert max(unsure) == pytest.approx(0.2, rel=0.5)
    assert max(sure["4"]["check"]["unsure"]) < max(unsure)
    assert "4" not in new.costs.to_json()  # a benchmark's planner goes by its measurement alone


def test_a_disk_that_takes_nothing_is_no_failure(key: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where the folder should be")
    cost_store.save(key, planner())
    assert cost_store.load(key) is None


def test_saving_at_once_leaves_one_whole_file(
    key: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From several threads or processes: what is read meanwhile is always whole."""
    own = threading.local()
    monkeypatch.setattr(cost_store.os, "getpid", lambda: own.pid)
    cost_store_done, torn = threading.Event(), []

    def writer(pid: int) -> None:
        own.pid = pid
        for _ in range(40):
            cost_store.save(key, planner())

    def reader() -> None:
        while not cost_store_done.is_set():
            with suppress(OSError):  # not there yet, or being replaced, as Windows has it
                text = file_of(key).read_text("utf-8")
                try:
                    json.loads(text)
                except ValueError:
                    torn.append(text)

    writers = [threading.Thread(target=writer, args=(pid,)) for pid in (1, 2, 2)]
    watching = threading.Thread(target=reader)
    for thread in (*writers, watching):
        thread.start()
    for thread in writers:
        thread.join()
    cost_store_done.set()
    watching.join()
    assert not torn
    assert cost_store.load(key) is not None
    assert len(list(file_of(key).parent.iterdir())) == 1
