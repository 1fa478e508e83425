"""Intervals that hold as often as they say, and comparisons that find what changed and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len

from edgespec.bench import charts, compare, report, table
from edgespec.bench.beside import EACH, answered_by_all, at_best, best_side, energy, with_bests
from edgespec.bench.prompts import ALL
from edgespec.bench.record import Answer, Pair, Results, Run, Trial
from edgespec.bench.stats import percentile, ratio_interval, spread, t_cdf, t_quantile
from edgespec.bench.summary import against, categories, contexts, row, whole
from edgespec.errors import ConfigError

Noise = Callable[[np.random.Generator, int], np.ndarray]


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # printed tables of Student's distribution, two-sided 95%
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (10, 2.2281), (73, 1.9930)],
)
def test_students_quantiles(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, abs=6e-5)
    assert t_cdf(t_quantile(0.999, freedom), freedom) == pytest.approx(0.999)
    assert t_cdf(0.0, freedom) == 0.5


@pytest.mark.parametrize(
    ("pairs", "noise", "least", "most"),
    [
        # Normal noise: of 2,000 intervals 95% hold, with a standard deviation of 0.49%; five of
        # those are exceeded once in 1.7 million runs of a right formula.
        (2, lambda rng, n: rng.normal(0, 0.1, n), 0.9256, 0.9744),
        (5, lambda rng, n: rng.normal(0, 0.1, n), 0.9256, 0.9744),
        (20, lambda rng, n: rng.normal(0, 0.1, n), 0.9256, 0.9744),
        # Skewed noise (exponential, mean taken off) costs coverage: 5 pairs keep 88%, 74 keep 94%.
        (5, lambda rng, n: rng.exponential(0.1, n) - 0.1, 0.85, 0.97),
        (74, lambda rng, n: rng.exponential(0.1, n) - 0.1, 0.915, 0.97),
    ],
)
def test_intervals_hold_as_often_as_they_say(
    pairs: int, noise: Noise, least: float, most: float
) -> None:
    rng = np.random.default_rng(pairs)
    truth, runs, held = math.log(1.5), 2000, 0
    for _ in range(runs):
        found = ratio_interval((truth + noise(rng, pairs)).tolist())
        assert found and found.low and found.high
        held += found.low <= 1.5 <= found.high
    assert least <= held / runs <= most


def test_small_things() -> None:
    assert ratio_interval([]) is None and spread([]) is None
    one = ratio_interval([math.log(2)])
    assert one and (one.center, one.low, one.high, one.pairs) == (pytest.approx(2), None, None, 1)
    assert str(one) == "2.00"
    same = ratio_interval([math.log(2)] * 3)
    assert same and same.low == pytest.approx(2) and same.high == pytest.approx(2)
    assert percentile([3, 1, 2], 0.5) == 2 and percentile([1, 2], 0.95) == pytest.approx(1.95)
    unsure = ratio_interval([-9.0, 9.0], 0.9999)
    assert unsure and (unsure.low, unsure.high) == (0.0, math.inf)
    assert str(unsure) == "1.00 (0.00 to inf)"
    middle = spread([5, 1, 3, 2, 4])
    assert middle and (middle.low, middle.median, middle.high) == (2, 3, 4)


# -------------------------------------------------------------------------------- from trials


def answer(side: str, seconds: float, tokens: int = 21, **more: object) -> Answer:
    made = Answer(
        side, list(range(tokens)), "", "length", 0.5, seconds,
        arrivals=[(0.5, 1), (0.5 + seconds, tokens - 1)], rounds=tokens - 1, drafted=0, accepted=0,
        draft_seconds=0.0, check_seconds=0.8 * seconds, sample_seconds=0.1 * seconds,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def results(trials: list[Trial], sides: list[str]) -> Results:
    made = Results(trials=trials)
    made.pairs["p"] = Pair("p", {"sha256": "1"}, [], {"threads": 2}, sides)
    return made


def measured(
    seed: int,
    *,
    prompts: int = 60,
    noise: float = 0.05,
    drift: float = 0.0,
    side: float = 1.0,
    plain: float = 1.0,
    difference: dict[str, object] | None = None,
) -> Results:
    """Five categories; the side is 1.6 times as fast on average, prompts differing by a factor.

    `side` and `plain` multiply their seconds, `drift` is how much slower the machine is all along.
    """
    texts = np.random.default_rng(1)  # the same in every measurement
    rng = np.random.default_rng(seed)
    trials = []
    for i in range(prompts):
        gain, base = 1.6 * math.exp(texts.normal(0, 0.4)), 4 * math.exp(texts.normal(0, 0.2))
        base *= (1 + drift) * math.exp(rng.normal(0, noise))
        seconds = base / gain * math.exp(rng.normal(0, noise))
        trials.append(
            Trial(
                "p",
                f"prompt {i}",
                f"kind {i % 5}",
                0,
                0,
                50,
                "",
                [
                    answer("plain", base * plain),
                    answer(
                        "lookup:auto", seconds * side, difference=difference if i == 3 else None
                    ),
                ],
            )
        )
    return results(trials, ["plain", "lookup:auto"])


def test_a_planted_regression_is_found() -> None:
    before = measured(10)
    slower = compare.compare(before, measured(11, side=1.1))
    assert slower.failed
    assert ("lookup:auto", ALL) in {(c.side, c.category) for c in slower.regressions}
    worst = next(c for c in slower.regressions if c.category == ALL)
    assert worst.interval.low and worst.interval.high
    assert worst.interval.low < 1 / 1.1 < worst.interval.high < 0.99
    assert any(
        line.startswith("REGRESSION: p, lookup:auto, all: speed against plain is 0.9")
        for line in compare.lines(slower)
    )
    faster = compare.compare(before, measured(11, side=1 / 1.1))
    assert not faster.failed
    assert any(line.startswith("better: p, lookup:auto, all") for line in compare.lines(faster))


def test_a_slower_plain_path_is_found_although_ratios_flatter_it() -> None:
    """Over another program's plain decoding; without one, nobody can tell it from a slow day."""
    before, after = measured(10), measured(11, plain=1.15, side=1.15)
    alone = compare.compare(before, after)
    assert not alone.failed
    told = [line for line in compare.lines(alone) if "isn't judged" in line]
    assert len(told) == 1 and told[0].startswith("note: p, plain, all: tokens per second is 0.8")
    for made in (before, after):
        made.pairs["p"] = replace(made.pairs["p"], peers={"it": {"versions": {"it": "1"}}})
        for trial in made.trials:
            plain = trial.answer("plain")
            assert plain and plain.decode_seconds
            slower = 1.15 if made is after else 1.0
            trial.answers.append(answer("it/plain", plain.decode_seconds / slower))
    found = compare.compare(before, after)
    assert {(c.side, c.what) for c in found.regressions} == {("plain", "speed against it/plain")}
    after.pairs["p"] = replace(after.pairs["p"], peers={"it": {"versions": {"it": "2"}}})
    assert not compare.compare(before, after).failed


def test_noise_and_a_slow_day_are_no_regression() -> None:
    """All intervals hold at once with 95%, and only one end of each can cry wolf.

    So of 60 comparisons of equals 1.5 do at most; more than 6 come by chance less than once in
    1,000 such tests. The noise is large, lest the tolerance hide what the intervals do, and the
    slow day slower than any tolerance.
    """
    alarms = sum(
        compare.compare(measured(i, noise=0.2), measured(1000 + i, noise=0.2, drift=0.5)).failed
        for i in range(60)
    )
    assert alarms <= 6


def test_lost_exactness_is_a_regression() -> None:
    wrong = {"token": 3, "plain": 1, "other": 2, "gap": 2.0, "noise": 0.0, "explained": False}
    found = compare.compare(measured(1), measured(2, difference=wrong))
    assert found.failed and "1 of 60 answers differ" in found.inexact[0]
    assert not compare.compare(
        measured(1), measured(2, difference={**wrong, "explained": True})
    ).failed


def test_exactness_is_compared_over_what_both_were_asked() -> None:
    """More repetitions of one text that parts are one such text, and other prompts are no loss."""

    def made(*asked: tuple[str, int, bool]) -> Results:
        wrong = {"token": 3, "explained": False}
        return results([
            Trial("p", name, "x", 0, repeat, 9, "", [
                answer("plain", 4.0), answer("l", 2.0, difference=None if exact else wrong)])
            for name, repeat, exact in asked
        ], ["plain", "l"])  # fmt: skip

    first = made(("a", 0, False), ("b", 0, True))
    again = made(*(("a", r, False) for r in range(3)), ("b", 0, True))
    assert not compare.compare(first, again).inexact
    other = compare.compare(first, made(("b", 0, True), ("c", 0, False)))
    assert not other.inexact and "note: p, l: 1 answer to what" in "".join(other.notes)
    for worse in (made(("a", 0, True), ("b", 0, False)), made(("b", 0, True), ("b", 1, False))):
        found = compare.compare(first, worse)
        assert found.failed and "differ from plain's" in found.inexact[0]


def test_what_the_second_file_lacks_is_told() -> None:
    before = measured(1)
    before.trials += [
        Trial("p", "long", "context", 0, 0, 64, "", [answer("plain", 4.0)], 64),
    ]
    before.pairs["p"].settings.update(gone=1)
    after = measured(2)
    after.trials[:] = [t for t in after.trials if t.category != "kind 3"][:40]
    after.pairs["p"].settings.update(new=2)
    after.pairs["p"] = replace(after.pairs["p"], drafters=[{"sha256": "another"}])
    notes = compare.compare(before, after).notes
    for said in (
        "a drafter of p is another file", "gone was 1 and is None", "new was None and is 2",
        "no answers in kind 3", "lacks 20 of the 60 questions", "text lengths 64",
    ):  # fmt: skip
        assert sum(said in note for note in notes) == 1, (said, notes)
    assert compare.compare(before, before).notes == []


def behind_texts(side: float, first: float, difference: object = None) -> list[Trial]:
    """Two text lengths, five repetitions each; plain reads the text and the side finds it read."""
    return [
        Trial("p", f"context {n}", "context", 0, r, n, "", [
            answer("plain", 4.0 * (1 + 0.01 * r), ttft_seconds=9.0),
            answer("lookup:auto", side * (1 + 0.01 * r * (-1) ** r), ttft_seconds=first,
                   difference=difference if r == 3 else None)], n)
        for n in (64, 128) for r in range(5)
    ]  # fmt: skip


def test_behind_long_texts() -> None:
    """Exactness counts there too, the first token's time doesn't, and repetitions are pairs."""
    sides = ["plain", "lookup:auto"]
    before = results(behind_texts(2.0, 0.1), sides)
    found = row(before, "p", "lookup:auto", "context", 64)
    assert found and found.ratio and found.ratio.pairs == 5
    assert found.ratio.low and found.ratio.low > 1.9
    assert found.ttft is None
    later = compare.compare(before, results(behind_texts(2.0, 1.0), sides))
    assert not later.failed and {c.what for c in later.changes} == {
        "tokens per second", "speed against plain",
    }  # fmt: skip
    slower = compare.compare(before, results(behind_texts(2.2, 0.1), sides))
    assert [(c.side, c.category) for c in slower.regressions] == [("lookup:auto", "text lengths")]
    wrong = {"token": 3, "explained": False}
    inexact = compare.compare(before, results(behind_texts(2.0, 0.1, wrong), sides))
    assert inexact.inexact == [
        "p, lookup:auto: 2 of 10 answers differ from plain's without an explanation, 0 before"
    ]


def test_all_tokens_over_all_time() -> None:
    trials = [
        Trial("p", "a", "x", 0, 0, 9, "", [answer("plain", 1.5), answer("l", 0.5, tokens=11)]),
        Trial("p", "b", "x", 0, 0, 9, "", [answer("plain", 3.5), answer("l", 1.5)]),
        Trial("p", "c", "x", 0, 0, 9, "", [answer("plain", 9.0)]),  # the side gave no answer
    ]
    made = results(trials, ["plain", "l"])
    found, base = whole(made, "p", "l"), whole(made, "p", "plain")
    assert found and base and base.ratio is None
    assert (found.answers, base.answers) == (2, 3)
    assert found.tokens_per_second == pytest.approx(32 / 3)
    assert found.ratio == pytest.approx((32 / 3) / (42 / 6))
    assert found.mean_ratio == pytest.approx((11 / 1 + 21 / 2) / (21 / 2 + 21 / 4))
    assert base.tokens_per_second == pytest.approx(63 / 15.5)
    assert whole(made, "p", "nobody") is None


def test_the_turns_of_a_prompt_are_one_speed_in_the_mean() -> None:
    """As Spec-Bench's evaluation/speed.py takes it: a question's tokens over its seconds."""
    trials = [
        Trial("p", prompt, "x", turn, repeat, 9, "", [answer("plain", 4.5),
              answer("l", seconds, tokens=tokens)])
        for prompt, turn, repeat, seconds, tokens in (
            ("a", 0, 0, 0.5, 4), ("a", 1, 0, 3.5, 21), ("a", 0, 1, 1.5, 21), ("b", 0, 0, 1.5, 21),
        )
    ]  # fmt: skip
    found = whole(results(trials, ["plain", "l"]), "p", "l")
    assert found and found.answers == 4
    speeds = (25 / 5, 21 / 2, 21 / 2)
    assert found.mean_ratio == pytest.approx(sum(speeds) / 3 / (21 / 5))


def test_only_edgespec_is_judged() -> None:
    """Another program may get slower, and plain decoding on another machine."""
    before, after = measured(10), measured(11)
    for made, seconds in ((before, 1.0), (after, 2.0)):
        made.pairs["p"].sides.append("it/a")
        for trial in made.trials:
            trial.answers.append(answer("it/a", seconds))
    assert not compare.compare(before, after).failed
    slow = measured(11, plain=1.5, side=1.5)
    machines = [Run("", [], {"cpu": cpu}, {}) for cpu in ("fast", "slow")]
    before.runs, slow.runs = machines[:1], machines[1:]
    elsewhere = compare.compare(before, slow)
    assert not elsewhere.failed and any("two machines" in note for note in elsewhere.notes)
    slow.runs = machines[:1]
    again = compare.compare(before, slow)
    assert not again.failed and any("isn't judged" in line for line in compare.lines(again))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": {"threads": 3}}, "threads"),
        ({"settings": {"threads": 2, "device": "CUDA"}}, "device"),
        ({"settings": {"threads": 2, "drafter_devices": ["GPU: one"]}}, "drafter_devices"),
        ({"settings": {"threads": 2, "drafter_devices": []}}, "drafter_devices"),
        ({"settings": {"threads": 2, "gpus": "another"}}, "gpus"),
        ({"settings": {"threads": 2, "context_size": 4352}}, "context_size"),
        ({"settings": {"threads": 2, "gomp_spincount": "77"}}, "gomp_spincount"),
        ({"target": {"sha256": "2"}}, "the target"),
        ({"drafters": [{"sha256": "3"}]}, "the drafter"),
        ({}, "the machine"),
    ],
)
def test_nothing_is_judged_under_other_conditions(change: dict[str, Any], named: str) -> None:
    """A regression would be the machine's, the model's or the setting's."""
    wrong = {"token": 3, "explained": False}
    before, after = measured(10), measured(11, side=1.5, difference=wrong)
    before.runs, after.runs = [Run("", [], {"cpu": "fast"}, {})], [Run("", [], {"cpu": "fast"}, {})]
    before.pairs["p"].settings.update(
        device="DirectML",
        drafter_devices=["GPU: another"],
        context_size=4096,
        gomp_spincount=None,
        gpus="one",
    )
    assert compare.compare(before, after).failed
    if change:
        after.pairs["p"] = replace(after.pairs["p"], **change)
    else:
        after.runs = [Run("", [], {"cpu": "slow"}, {})]
    found = compare.compare(before, after)
    lines = list(compare.lines(found))
    assert not found.failed and not any(line.startswith("REGRESSION") for line in lines)
    assert any(line.startswith(f"note: p: {named} changed, so nothing of it") for line in lines)
    told = [line for line in lines if "isn't judged, since the conditions are others" in line]
    assert any("p, lookup:auto, all: speed against plain is 0.6" in line for line in told)
    assert "note: p, lookup:auto: 1 of 60 answers differ from plain's without an" in "".join(lines)
    assert lines[-1].startswith("no figure is judged") and found.status == 2


@pytest.mark.parametrize(
    ("was", "is_"),
    [
        ({}, {"drafter_devices": []}),  # written down since
        ({"omp_wait_policy": "active"}, {}),
        (
            {"device": "CUDA (not verified: ONNX Runtime 1.22.0 doesn't tell)"},
            {"device": "CUDA (310 of 320 operations, the others on the CPU)"},
        ),
        (
            {"drafter_devices": ["DirectML"]},
            {"drafter_devices": ["DirectML (1 of 2 operations, the others on the CPU)"]},
        ),
        ({"context_size": 4096}, {"context_size": 4000}),
        ({"gomp_spincount": None}, {"gomp_spincount": "1000"}),
        ({"gpus": ""}, {"gpus": "CUDA0: one"}),
        ({"gpus": None}, {"gpus": "CUDA0: one"}),
        ({"drafter_devices": ["GPU"]}, {"drafter_devices": ["GPU: CUDA0: one"]}),
    ],
)
def test_what_code_made_of_the_same_setting_is_judged(
    was: dict[str, Any], is_: dict[str, Any]
) -> None:
    """In either direction; what differs is told."""
    for one, two in ((was, is_), (is_, was)):
        before, after = measured(10), measured(11, side=1.5)
        before.pairs["p"].settings.update(one)
        after.pairs["p"].settings.update(two)
        found = compare.compare(before, after)
        assert found.regressions and found.status == 1
        (key,) = {*one, *two}
        assert found.notes == [f"note: p: {key} was {one.get(key)} and is {two.get(key)}"]


def test_a_gpu_that_is_used_no_longer_is_a_regression() -> None:
    """Even where every ratio grew; unless the CPU was asked for."""
    plain, gpu, cpu = ["bench", "x"], ["bench", "--dev", "cuda"], ["bench", "--device=cpu"]
    both = {"device": "GPU", "gpus": "one", "drafter_devices": ["GPU: one"]}
    drafter = both | {"drafter_devices": ["CPU, 2 threads"]}
    target = both | {"device": "CPU, 2 threads", "gpus": None}
    for was, is_, asked, fallen in (
        (both, target, (plain, plain), "the target ran on GPU and runs on CPU, 2 threads"),
        (both, drafter, (gpu, gpu), "a drafter ran on GPU: one and runs on CPU, 2 threads"),
        (target, both, (plain, plain), ""),
        (both, target, (plain, cpu), ""),
        (both, target, (gpu, cpu), ""),
        (both, target | {"threads": 3}, (plain, plain), ""),
    ):
        before, after = measured(10), measured(11, side=1 / 1.5)
        before.runs, after.runs = ([Run("", words, {}, {})] for words in asked)
        before.pairs["p"].settings.update(was)
        after.pairs["p"].settings.update(is_)
        found = compare.compare(before, after)
        assert not found.regressions and not found.judged
        assert found.status == (1 if fallen else 2), (was, is_, asked)
        told = [line for line in compare.lines(found) if line.startswith("REGRESSION")]
        assert [fallen in line for line in told] == [True] * bool(fallen)


def test_where_no_figure_can_show_a_regression_the_comparison_says_so() -> None:
    one, two = measured(1, prompts=1), measured(2, prompts=1, side=2.0)
    found = compare.compare(one, two)
    assert found.changes and not found.judged and found.status == 2
    assert list(compare.lines(found))[-1].startswith("no figure is judged: that takes two prompts")
    assert compare.compare(measured(1), measured(1)).status == 0


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"memory_bytes": 25_000_000_000 + (12 << 20)}, True),  # another kernel
        ({"memory_bytes": 32_000_000_000}, False),
        ({"memory_bytes": None}, False),
        ({"usable_cpus": 4}, False),
        ({"system": "win32"}, False),
    ],
)
def test_a_machine_is_the_same_after_an_update(change: dict[str, Any], same: bool) -> None:
    machine = {"cpu": "x", "usable_cpus": 2, "memory_bytes": 25_000_000_000, "system": "linux"}
    before, after = measured(10), measured(11, side=1.5)
    before.runs, after.runs = [Run("", [], machine, {})], [Run("", [], machine | change, {})]
    found = compare.compare(before, after)
    assert bool(found.regressions) == same
    assert any("two machines" in note for note in found.notes) != same


def test_code_and_versions_are_what_is_judged() -> None:
    before, after = measured(10), measured(11, side=1.5)
    for made, version in ((before, "1"), (after, "2")):
        made.pairs["p"].settings.update(code=version, python=version, numpy=version)
        made.pairs["p"].settings["llama-cpp-python"] = version
        made.pairs["p"].settings["llama_cpp_libraries"] = f"{version} as it was made here"
    found = compare.compare(before, after)
    assert found.failed
    assert any("llama_cpp_libraries was 1 as" in note for note in found.notes)


def test_answers_to_other_prompts_are_not_paired() -> None:
    def made(prompts: str, *trials: Trial) -> Results:
        found = results(list(trials), ["plain", "lookup:auto"])
        found.pairs["p"].settings["prompts_sha256"] = prompts
        return found

    lines = [
        Trial("p", f"line {i}", "c", 0, 0, 9, "", [answer("plain", s), answer("lookup:auto", 1.0)])
        for i, s in enumerate((4.0, 4.1, 4.2))
    ]
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare.compare(made("1", *lines), made("2", *lines))
    long = behind_texts(2.0, 0.1)
    found = compare.compare(made("1", *lines, *long), made("2", *lines, *long))
    assert {c.category for c in found.changes} == {"text lengths"}
    assert any("prompts aren't the same" in note for note in found.notes)


def test_nothing_in_common() -> None:
    other = measured(1)
    other.pairs = {"q": other.pairs["p"]}
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare.compare(measured(1), other)


def test_what_a_row_counts() -> None:
    fast = answer(
        "lookup:3", 1.0, rounds=5, drafted=30, accepted=15, finish_reason="end", joules=30.0,
        drafters={"lookup": {"rounds": 5, "drafted": 30, "accepted": 15}},
    )  # fmt: skip
    repeated = [
        Trial("p", "a", "x", 0, r, 9, "", [answer("plain", s), fast])
        for r, s in enumerate((2.0, 4.0, 300.0))  # a median, so that one bad moment is no figure
    ]
    other = Trial("p", "b", "y", 0, 0, 9, "", [answer("plain", 8.0), fast])
    long = Trial("p", "context 64", "context", 0, 0, 64, "", [answer("plain", 1e9), fast], 64)
    made = results([*repeated, other, long], ["plain", "lookup:3"])
    assert categories(made, "p") == ["x", "y", ALL] and contexts(made, "p") == [64]
    one = row(made, "p", "lookup:3", "x")
    assert one and one.ratio and (one.prompts, one.answers, one.ratio.pairs) == (1, 3, 1)
    assert one.ratio.center == pytest.approx(4.0 / 20 * 21)  # an end token was decoded too
    assert one.ratio.low is None
    whole = row(made, "p", "lookup:3", ALL)
    assert whole and whole.ratio and whole.ratio.pairs == 2
    assert whole.ratio.center == pytest.approx(math.sqrt(4.2 * 8.4))
    assert whole.mean_accepted_length == pytest.approx(21 / 5)
    assert whole.acceptance_rate == 0.5
    assert energy(made, "p") == pytest.approx({"lookup:3": 30 / 21})
    assert whole.split and whole.split.total == pytest.approx(1.0 / 5)
    assert whole.split.rest == pytest.approx(0.1 / 5)
    assert whole.gap_p50 == pytest.approx(1.0)
    many = Trial(
        "p", "c", "z", 0, 0, 9, "", [answer("plain", 1.0), answer("it/a", 1.0, first_tokens=11)]
    )
    some = row(results([many], ["plain", "it/a"]), "p", "it/a", "z")
    assert some and some.ratio and some.ratio.center == pytest.approx(0.5)  # 10 tokens, not 20
    plain = row(made, "p", "plain", ALL)
    assert plain and plain.ratio is None
    assert row(made, "p", "nobody", ALL) is None


def test_each_peer_at_its_best_in_each_category() -> None:
    trials = [
        Trial("p", f"{c} {i}", c, 0, 0, 9, "", [
            answer("plain", 4.0), answer("it/a", a), answer("it/b", b)])
        for c, a, b in (("x", 1.0, 2.0), ("y", 3.0, 2.0)) for i in range(2)
    ]  # fmt: skip
    made = results(trials, ["plain", "it/a", "it/b"])
    assert [best_side(made, "p", ["it/a", "it/b"], c) for c in ("x", "y")] == ["it/a", "it/b"]
    assert best_side(made, "p", ["it/c"], "x") is None


def test_over_all_categories_a_peer_has_the_best_of_each() -> None:
    """One setting for all of them is twice as slow in half of them, which would flatter us."""
    trials = [
        Trial("p", f"{c} {i}", c, 0, 0, 9, "", [
            answer("plain", 4.0), answer("l", 1.0), answer("it/a", a), answer("it/b", b)])
        for c, a, b in (("x", 1.0, 2.0), ("y", 4.2, 2.0)) for i in range(2)
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a", "it/b"])
    own, peers = ["plain", "l"], {"it": ["it/a", "it/b"]}
    chosen = with_bests(made, "p", peers)
    beside = at_best(chosen, "p", own, peers, ALL)
    (best, found), (fixed, one) = beside["it, best"], beside["it, fixed"]
    assert (best, fixed) == ("it/each category's best", "it/b")
    assert found.ratio and found.ratio.center == pytest.approx(math.sqrt(8))  # 4 and 2
    assert one.ratio and one.ratio.center == pytest.approx(2.0)
    assert [at_best(chosen, "p", own, peers, c)["it, best"][0] for c in "xy"] == ["it/a", "it/b"]
    shown = [
        line.split() for line in table.lines(made) if line.startswith("all") and " it " in line
    ]
    assert [(" ".join(line[2:-9]), line[-4]) for line in shown] == [
        ("each category's best", "1.41"), ("b", "2.00"),
    ]  # fmt: skip
    html = report.render(made)
    assert "it, fixed" in html and escape("tok/s, each category's best") in html
    assert f"<td>{escape(EACH)}</td>" in html and "fastest single setting" in html
    assert EACH not in "".join(table.lines(results(trials[:2], ["plain", "l"])))
    for trial in made.trials:
        trial.answers[:] = [a for a in trial.answers if a.side != "it/a"]
    assert escape(EACH) not in report.render(results(trials, ["plain", "l", "it/b"]))


def test_a_narrow_terminal_has_less_of_the_table_and_no_row_in_two_lines() -> None:
    """The sentence that sums up, the ratios and their intervals are always there."""
    sides = ["plain", "lookup+model:auto", "llama-server/draft-4", "llama-server/plain"]
    trials = [
        Trial("p", f"{c} {i}", c, 0, 0, 9, "", [answer(s, 4.0 / n) for n, s in enumerate(sides, 1)])
        for c in ("math_reasoning", "y") for i in range(2)
    ]  # fmt: skip
    trials += [
        Trial("p", f"context {n}", "context", 0, r, n, "", [answer(s, 1.0) for s in sides], n)
        for n in (64, 128, 256) for r in range(2)
    ]  # fmt: skip
    made = results(trials, sides)
    whole = list(table.lines(made))
    heads = [line for line in whole if line.startswith(("CATEGORY", "SIDE"))]
    assert all(name in heads[0] for name in table.HEAD) and table.GAP in whole
    assert len(heads) == 3 and " 64 " in heads[1] and list(table.lines(made, 300)) == whole
    for room in (80, 100, 120):
        shown = list(table.lines(made, room))
        assert all(cell_len(line) <= room for line in shown if "  " in line)
        assert shown[1].startswith("lookup+model:auto decodes 2.00 times as fast as plain (2.00")
        (left_out,) = [line for line in shown if line.startswith("no room for (QUARTILES), ACC")]
        head = next(line for line in shown if line.startswith("CATEGORY"))
        assert all((name in head) != (name in left_out) for name in table.HEAD)
        assert "OVER PLAIN" in head and "(95%)" in head
        assert (table.GAP in shown) == ("GAP P50/P95" in head)
        over = next(line for line in shown if line.startswith("CATEGORY") and " PEER " in line)
        for name in ("TOK/S", "plain"):
            says = any(line.startswith("no room for TOK/S") and name in line for line in shown)
            assert says == (name not in over)
        assert sum("1.00 (1.00 to 1.00)" in line for line in shown) >= 3  # behind the texts
    assert len(list(table.lines(made, 1))) > len(whole)


def test_a_peer_that_cannot_stand_beside_us_is_named() -> None:
    """Its settings were measured on prompts of their own, so that none of them is its best."""
    trials = [
        Trial("p", f"{category} {i}", category, 0, 0, 9, "", [
            answer("plain", 4.0), answer("l", 2.0), *(answer(side, 1.0) for side in theirs)])
        for category, asked in (
            ("x", (["it/a"], ["it/b/c"])), ("y", (["it/a", "it/b/c"],)), ("z", ([],)))
        for i, theirs in enumerate(asked)
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a", "it/b/c"])
    said = "it isn't shown in x: no prompt there was answered by all of its settings"
    assert sum(line.startswith(said) for line in table.lines(made)) == 1
    assert escape(said) in report.render(made)
    for trial in made.trials:
        trial.answers[:] = [a for a in trial.answers if a.side != "it/a"]
    page = report.render(made)
    assert "shown in x" not in page and "20.0 tok/s, b/c" in page


def test_repetitions_of_a_length_in_several_runs_stand_beside_each_other() -> None:
    trials = [
        Trial("p", "context 64", "context", 0, repeat, 64, "", [
            answer("plain", 4.0), answer("l", 2.0), answer(side, seconds)], 64)
        for repeat, (side, seconds) in enumerate((("it/a", 1.0), ("it/b", 3.0)))
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a", "it/b"])
    beside = at_best(made, "p", ["l"], {"it": ["it/a", "it/b"]}, "context", 64)
    (ours, mine), (theirs, other) = beside["l"], beside["it, best"]
    assert (ours, mine.answers, theirs, other.answers) == ("l", 2, "it/a", 1)


def test_prompts_that_a_side_never_answered_count_for_nothing() -> None:
    """Taken together with other results, "all" may hold prompts that one side alone was asked."""
    easy = [
        Trial("p", f"e{i}", "easy", 0, 0, 9, "", [answer("plain", 8.0), answer("l", 2.0)])
        for i in range(4)
    ]
    hard = [
        Trial("p", f"h{i}", "hard", 0, 0, 9, "", [
            answer("plain", 4.0), answer("l", 2.0), answer("it/a", 2.5), answer("it/b", 3.0)])
        for i in range(2)
    ]  # fmt: skip
    lucky = Trial("p", "e9", "easy", 0, 0, 9, "", [answer("plain", 9.0), answer("it/b", 0.1)])
    sides = ["plain", "l", "it/a", "it/b"]
    made = results([*easy, *hard, lucky], sides)
    counted = {side: row(made, "p", side, ALL) for side in sides}
    assert {side: found and found.prompts for side, found in counted.items()} == {
        "plain": 7, "l": 6, "it/a": 2, "it/b": 3,
    }  # fmt: skip
    assert answered_by_all(made, "p", sides, ALL) == {("h0", 0), ("h1", 0)}
    assert best_side(made, "p", ["it/a", "it/b"], ALL) == "it/a"  # though b was lucky elsewhere
    beside = at_best(made, "p", ["l"], {"it": ["it/a", "it/b"]}, ALL)
    (ours, mine), (theirs, other) = beside["l"], beside["it, best"]
    assert (ours, theirs) == ("l", "it/a")
    assert mine.ratio and mine.ratio.center == pytest.approx(2.0)  # not 3.2 with the easy ones
    assert other.ratio and other.ratio.center == pytest.approx(1.6)
    apart = results([easy[0], lucky], sides)
    assert best_side(apart, "p", ["l", "it/b"], ALL) is None  # they have nothing in common
    assert "No prompt was answered by all" in "".join(
        report._peers(apart, "p", ["l"], {"it": ["it/b"]})
    )


def test_what_stands_beside_each_other_was_answered_by_all() -> None:
    easy = [
        Trial("p", f"e{i}", "x", 0, 0, 9, "", [
            answer("plain", 8.0), answer("l", 2.0), answer("it/a", 1.0)])
        for i in range(4)
    ]  # fmt: skip
    hard = [
        Trial("p", f"h{i}", "x", 0, 0, 9, "", [
            answer("plain", 4.0), answer("l", 2.0), answer("m", 1.0), answer("it/a", 2.0)])
        for i in range(2)
    ]  # fmt: skip
    made = results([*easy, *hard], ["plain", "l", "m", "it/a"])
    lead = table.lead(made, "p")
    assert "l decodes 2.00 times" in lead and "m decodes 4.00 times" in lead  # not 3.17
    shown = list(table.lines(made))
    assert sum("answered different prompts" in line for line in shown) == 1
    (beside,) = [line.split() for line in shown if line.startswith("x ") and " it " in line]
    assert beside[3:6] == ["10.0", "0.50", "(0.50"]  # the hard ones alone, where m is
    assert "answered different prompts" in report.render(made)
    assert "different prompts" not in "".join(table.lines(results(hard, ["plain", "l", "m"])))


def test_a_conversations_turns_are_one_pair() -> None:
    """They build on each other, so more turns make nobody surer than more prompts would."""
    trials = [
        Trial("p", prompt, "x", turn, 0, 9, "", [
            answer("plain", seconds), answer("l", 2.0), answer("it/a", 1.0)])
        for prompt in "ab" for turn, seconds in enumerate((4.0, 8.0, 16.0))
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a"])
    found = row(made, "p", "l", "x")
    assert found and found.ratio and (found.prompts, found.answers, found.ratio.pairs) == (2, 6, 2)
    assert found.ratio.center == found.ratio.low == pytest.approx(4.0)
    over = against(made, "p", "l", "it/a", "x")
    assert over and (over.pairs, over.center) == (2, pytest.approx(0.5))
    (change, *_) = compare.compare(made, made).changes
    assert change.interval.pairs == 2
    made.pairs["p"].settings["all_turns"] = True
    assert "2 prompts)" in report.render(made)


def test_a_report_names_each_machine_once() -> None:
    made = measured(1)
    made.runs += [
        Run(f"2026-01-0{day}T00:00", [], {"cpu": cpu}, {"edgespec": "1"})
        for day, cpu in enumerate(("fast", "slow", "fast"), 1)
    ]
    heads = [line for line in report._head(made) if "muted" in line]
    assert len(heads) == 2 and "2026-01-01, 2026-01-03" in heads[0] and "slow" in heads[1]


def test_answers_too_short_to_time_are_said_to_be() -> None:
    trials = [Trial("p", "a", "x", 0, 0, 9, "", [
        answer("plain", 0.0, tokens=1), answer("l", 0.0, tokens=1)])]  # fmt: skip
    html = report.render(results(trials, ["plain", "l"]))
    assert "no speed to compare" in html and "Nothing was measured" not in html


def test_a_wide_interval_leaves_room_for_the_others() -> None:
    wide = ratio_interval([-3.0, 3.8])
    narrow = ratio_interval([0.1, 0.11])
    sure = ratio_interval([-9e3, 9e3])  # its ends are 0 and infinity
    assert wide and narrow and sure and sure.low == 0.0
    rows = {"x": {"a": (wide, ""), "b": (narrow, "")}, "y": {"a": (sure, "")}}
    root = ElementTree.fromstring(charts.intervals("", rows, ["a", "b"], "plain"))
    whiskers = [line for line in root if "whisker" in line.get("class", "")]
    ends = [(float(w.attrib["x1"]), float(w.attrib["x2"])) for w in whiskers]
    assert ends[1][1] - ends[1][0] > 2  # a thousandth of the width or so before
    assert "".join(root.itertext()).count("‹") == "".join(root.itertext()).count("›") == 2


def test_energy_that_was_not_told_for_each_answer() -> None:
    trials = [
        Trial("p", f"{i}", "x", 0, 0, 9, "", [answer("plain", 1.0, joules=joules)])
        for i, joules in enumerate((42.0, None, 0.0))
    ]
    assert energy(results(trials, ["plain"]), "p") == pytest.approx({"plain": 1.0})


def test_energy_is_told_of_those_that_have_it_over_the_same_prompts() -> None:
    trials = [
        Trial("p", "a", "x", 0, 0, 9, "", [
            answer("plain", 4.0), answer("l", 2.0, joules=42.0), answer("it/a", 1.0, joules=0.0)]),
        Trial("p", "b", "x", 0, 0, 9, "", [answer("plain", 4.0), answer("l", 2.0, joules=420.0)]),
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a"])
    told = [line for line in table.lines(made) if line.startswith("energy")]
    whose = "energy of the processor's packages"
    assert told == [f"{whose}, l: 2.00 J a token", f"{whose}, it/a: 0.00 J a token"]
    html = report.render(made)
    assert "packages, prompt included: l 2.00 J, it/a 0.00 J." in html
    settings = made.pairs["p"].settings
    for key, device in (("drafter_devices", ["CUDA: NVIDIA A2"]), ("device", "GPU")):
        settings.clear()
        settings[key] = device
        words = (*table.lines(made), report.render(made))
        assert sum("packages, without a graphics card" in one for one in words) == 3
    settings.clear()
    del trials[0].answers[1]
    assert "energy: no prompt was answered by all" in "".join(table.lines(made))
    assert "Energy: no prompt was answered by all" in report.render(made)


def test_energy_leaves_out_a_prompt_that_one_side_has_no_figure_for() -> None:
    """As the one that a server was started for; a prompt's length is in what an answer takes."""
    told = {"a": (4200.0, None), "b": (42.0, 84.0), "c": (42.0, 84.0)}
    trials = [
        Trial("p", prompt, "x", 0, repeat, 9, "", [
            answer("plain", 4.0), answer("l", 2.0, joules=ours), answer("it/a", 1.0, joules=theirs),
            answer("it/b", 1.0)])
        for prompt, (ours, theirs) in told.items() for repeat in (0, 1)
    ]  # fmt: skip
    made = results(trials, ["plain", "l", "it/a", "it/b"])
    assert energy(made, "p") == pytest.approx({"l": 2.0, "it/a": 4.0})
    trials[1].answers[2].joules = 84.0  # the prompt's second time it was running
    assert energy(made, "p") == pytest.approx({"l": 4368 / 105, "it/a": 4.0})


def test_a_category_that_is_called_like_text_lengths() -> None:
    asked = Trial("p", "a", "context", 0, 0, 9, "", [answer("plain", 4.0), answer("l", 2.0)])
    long = Trial("p", "context 64", "context", 0, 0, 64, "", [
        answer("plain", 4.0), answer("l", 1.0)], 64)  # fmt: skip
    made = results([asked, long], ["plain", "l"])
    assert categories(made, "p") == ["context"] and contexts(made, "p") == [64]
    for context, ratio in ((None, 2.0), (64, 4.0)):
        found = row(made, "p", "l", "context", context)
        assert found and found.ratio and found.answers == 1
        assert found.ratio.center == pytest.approx(ratio)
    html = report.render(made)
    assert "Speed against plain decoding" in html and "behind a text of so many" in html
