"""`edgespec bench`: turns, equal sides, what survives a kill, and the report."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from fakes import FakeSession, fake_model
from links import needs_links
from rich.cells import cell_len
from tiny_gguf import write_tiny

from edgespec import Runtime, cli, platform
from edgespec.bench import (
    beside,
    charts,
    driver,
    files,
    identity,
    peers,
    progress,
    prompts,
    protocol,
    record,
    report,
    stats,
    summary,
    svg,
    table,
)
from edgespec.bench.curves import cost_curves
from edgespec.bench.driver import named_pairs
from edgespec.bench.exactness import difference
from edgespec.bench.files import Writer
from edgespec.bench.peers import Peer, PeerSide
from edgespec.bench.protocol import Plan, measure, order
from edgespec.bench.record import Answer, Costs, Pair, Run, Trial
from edgespec.bench.sides import RuntimeSide, Setting, settings
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError, EdgespecError
from edgespec.platform import cpu_name
from edgespec.platform.energy import EnergyMeter
from edgespec.sampling import GREEDY, SamplingParams
from edgespec.terminal import columns
from edgespec.text import TextStream


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))


def fake_runtime(noise: float = 0.3) -> tuple[Runtime, FakeSession, FakeSession]:
    target = FakeSession(260, bias={257: -9.0, 259: -9.0})
    draft = FakeSession(260, noise=noise, name="draft")
    runtime = Runtime(fake_model(target), [LookupDrafter(), ModelDrafter(fake_model(draft))])
    return runtime, target, draft


def plan(**more: object) -> Plan:
    asked = [prompts.Prompt(f"p{i}", f"kind {i % 2}", (f"Prompt {i}?", "And?")) for i in range(4)]
    return Plan("pair", asked, 12, **more)  # type: ignore[arg-type]


def sides(runtime: Runtime) -> list[RuntimeSide]:
    chosen = [None, Setting(("lookup", "model"), 3), Setting(("model",), 2)]
    return [RuntimeSide(runtime, setting) for setting in chosen]


# ------------------------------------------------------------------------------- the protocol


def test_sides_take_turns_evenly() -> None:
    """Over a cycle each stands equally often at every place, before each of the others, and right
    behind it. After fewer trials no side was more than once more often at a place than another.
    """
    for count in (2, 3, 4, 5, 6):
        names = list(range(count))
        orders = [order(names, i) for i in range(2 * count)]  # type: ignore[arg-type]
        for place in range(count):
            assert sorted(o[place] for o in orders) == sorted(2 * names)
            for trials in range(2 * count):
                there = [o[place] for o in orders[:trials]]
                often = [there.count(name) for name in names]
                assert max(often) - min(often) <= 1, (count, trials)
        for a in names:
            for b in names:
                before = sum(o.index(a) < o.index(b) for o in orders)
                behind = sum((a, b) in pairwise(o) for o in orders)
                assert a == b or (before, behind) == (count, 2)


def test_every_answer_begins_from_nothing(tmp_path: Path) -> None:
    """Each side reads the whole prompt each time, and plain never touches a drafter."""
    runtime, target, draft = fake_runtime()
    plain, both, model = sides(runtime)
    ids = runtime.encode_messages([protocol.Message("user", "Hello, hello, hello!")])
    for side in (plain, both, plain, both, model):
        target.passes.clear()
        draft.passes.clear()
        answer = side.answer(ids, 12, GREEDY)
        assert target.passes[0] == (len(ids), 1)
        if side is plain:
            assert draft.passes == [] and set(target.passes[1:]) == {(1, 1)}
            assert (answer.drafted, answer.rounds) == (0, 11)
        elif side is model:
            assert draft.passes[0][0] == len(ids) + 1  # the first token came without it
            assert answer.drafted
    assert answer.arrivals[0][1] >= 1 and sum(n for _, n in answer.arrivals) == 12


def test_a_measurement_and_what_it_holds(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    told: list[tuple[int, int, str, float | None]] = []
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(repeats=2), writer, lambda *t: told.append(t))
    trials = files.read([tmp_path]).trials
    assert [(t.prompt, t.repeat) for t in trials] == [
        (f"p{i}", r) for r in range(2) for i in range(4)
    ]
    for trial in trials:
        names = ["plain", "lookup+model:3", "model:2"]
        assert sorted(a.side for a in trial.answers) == sorted(names)
        texts = {tuple(a.tokens) for a in trial.answers}
        assert len(texts) == 1 and all(a.difference is None for a in trial.answers)
    assert {tuple(a.side for a in t.answers) for t in trials} != {
        tuple(a.side for a in trials[0].answers)
    }
    assert told[0][:2] == (0, 8) and told[0][3] is None and told[-1][:2] == (8, 8)
    assert all(left is not None for *_, left in told[1:])


def test_later_turns_follow_plains_answer(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(all_turns=True), writer)
        first, second = writer.results.trials[:2]
    assert (first.turn, second.turn) == (0, 1)
    answer = first.answer("plain")
    assert answer
    messages = [
        protocol.Message("user", "Prompt 0?"),
        protocol.Message("assistant", answer.text),
        protocol.Message("user", "And?"),
    ]
    assert second.prompt_tokens == len(runtime.encode_messages(messages))


def test_lengths_keep_the_text_that_was_read(tmp_path: Path) -> None:
    runtime, target, _ = fake_runtime()
    with Writer(tmp_path) as writer:
        short = Plan("pair", [], 8, contexts=(256, 512))
        measure(runtime, sides(runtime), short, writer)
        assert [t.context for t in writer.results.trials] == [256, 512]
        assert all(0.9 * (t.context or 0) <= t.prompt_tokens <= (t.context or 0)
                   for t in writer.results.trials)  # fmt: skip
        assert sum(n > 200 for n, _ in target.passes) == 2  # once for each length
        assert all(a.ttft_seconds is None for t in writer.results.trials for a in t.answers)
        assert all(a.decode_seconds for t in writer.results.trials for a in t.answers)
        target.passes.clear()
        for wrong, says in (
            (Plan("other", [], 8, contexts=(256, 4090)), "raise --ctx-size or leave that length"),
            (plan(contexts=(20,)), "holds no question"),
            (Plan("other", [prompts.Prompt("long", "x", ("a" * 4090,))], 8), "the prompt long"),
            (
                Plan("other", [prompts.Prompt("two", "x", ("a" * 9, "a" * 4000))], 99,
                     all_turns=True),
                "the prompt two",
            ),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=says):
                measure(runtime, sides(runtime), wrong, writer)
        assert target.passes == []  # nothing was done for what could not be finished


def test_a_prompt_that_is_called_like_a_length(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    asked = [prompts.Prompt("context 256", "context", ("Hi?",))]
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), Plan("pair", asked, 4, contexts=(256,)), writer)
        short, long = writer.results.trials
        assert (short.context, long.context) == (None, 256)
        assert short.prompt_tokens < 100 < long.prompt_tokens


def test_each_category_and_length_takes_its_own_turns(tmp_path: Path) -> None:
    """Two sides, four categories in turn: by the trial's number one would always lead in each."""
    runtime, *_ = fake_runtime()
    asked = [prompts.Prompt(f"p{i}", f"kind {i % 4}", ("Hi?",)) for i in range(16)]
    with Writer(tmp_path) as writer:
        wanted = Plan("pair", asked, 3, repeats=4, contexts=(256, 300, 350, 400))
        measure(runtime, sides(runtime)[:2], wanted, writer)
        leads: dict[tuple[str, int | None], list[str]] = {}
        for trial in writer.results.trials:
            leads.setdefault((trial.category, trial.context), []).append(trial.answers[0].side)
    assert len(leads) == 8
    for kind, led in leads.items():
        assert led.count("plain") == len(led) / 2, kind
    assert len({tuple(led[:2]) for led in leads.values()}) > 1  # not all begin with plain


def test_decoding_is_timed_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What making text takes belongs to the time, as it does for other programs."""
    runtime, *_ = fake_runtime()
    ids = runtime.encode_messages([protocol.Message("user", "Hello")])
    plain = RuntimeSide(runtime, None)
    now = [0.0]
    for module in ("bench.sides", "generation", "decode"):
        monkeypatch.setattr(f"edgespec.{module}.perf_counter", lambda: now[0])
    real = TextStream.take

    def slow(stream: TextStream) -> tuple[str, int]:
        now[0] += 1
        return real(stream)

    monkeypatch.setattr(TextStream, "take", slow)
    answer = plain.answer(ids, 12, GREEDY)
    assert (answer.ttft_seconds, answer.decode_seconds) == (0.0, 12.0)
    assert plain.answer(ids, 12, GREEDY, read=True).ttft_seconds is None


def test_under_rejection_texts_are_not_compared(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    drawn = SamplingParams(temperature=1.0, seed=5, rule="rejection")
    with Writer(tmp_path) as writer:
        settings = {"rule": "rejection"}
        writer.append(Pair("pair", {"name": "x", "sha256": "0"}, [], settings, ["plain"]))
        measure(runtime, sides(runtime), plan(sampling=drawn), writer)
    results = writer.results
    assert any(a.tokens != t.answers[0].tokens for t in results.trials for a in t.answers)
    assert all(a.difference is None for t in results.trials for a in t.answers)
    shown = "\n".join(table.lines(results))
    assert "texts aren't compared" in shown and "has plain's text" not in shown
    assert "4/4" not in shown


def test_sampled_answers_are_drawn_again_with_the_same_seed(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    sampling = SamplingParams(temperature=1.0, seed=5)
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(repeats=2, sampling=sampling), writer)
        trials = writer.results.trials
    assert all(a.difference is None for t in trials for a in t.answers)
    assert trials[0].answers[0].tokens != trials[4].answers[0].tokens  # another seed


def test_a_difference_is_explained_by_rounding_or_not() -> None:
    runtime, target, _ = fake_runtime()
    ids = runtime.encode_messages([protocol.Message("user", "Hello")])
    plain = RuntimeSide(runtime, None).answer(ids, 8, GREEDY).tokens
    assert difference(runtime, ids, plain, plain, sampling=GREEDY) is None
    wrong = [*plain[:3], (plain[3] + 1) % 256, *plain[4:]]
    found = difference(runtime, ids, plain, wrong, sampling=GREEDY)
    assert found and (found["token"], found["noise"]) == (3, 0.0)
    row = sorted(target.row([*ids, *plain[:3]])[:260])
    assert found["gap"] == pytest.approx(row[-1] - target.row([*ids, *plain[:3]])[wrong[3]])
    assert not found["explained"]
    target.passes.clear()
    difference(runtime, ids, plain, wrong, sampling=GREEDY)
    assert sum(fed > 9 for fed, _ in target.passes) == 1  # the text before is read once
    shorter = difference(runtime, ids, plain, plain[:5], sampling=GREEDY)
    assert shorter and (shorter["token"], shorter["other"]) == (5, None)
    target._bias = {plain[3]: 0.0}  # now two tokens are all but equal
    near = target.row([*ids, *plain[:3]])
    near[wrong[3]] = near[plain[3]] - 0.001
    tie = difference(runtime, ids, plain, wrong, sampling=GREEDY)
    assert tie and tie["explained"] and tie["gap"] < 0.02
    # A near-tie of two tokens is no excuse for a third, nor for an end.
    third = [*plain[:3], (plain[3] + 2) % 256]
    found = difference(runtime, ids, plain, third, sampling=GREEDY)
    assert found and not found["explained"] and found["gap"] > 0.02
    ended = difference(runtime, ids, plain, plain[:3], sampling=GREEDY)
    assert ended and not ended["explained"]
    near[257] = near[plain[3]] - 0.001  # an end token, as near
    ended = difference(runtime, ids, plain, plain[:3], sampling=GREEDY)
    assert ended and ended["explained"] and ended["gap"] < 0.02


class Says:
    """A side that answers what it is told to."""

    def __init__(self, name: str, tokens: Sequence[int]) -> None:
        self.name, self._tokens = name, list(tokens)

    def answer(self, ids: Sequence[int], max_tokens: int, sampling: SamplingParams) -> Answer:
        return Answer(self.name, self._tokens, "", "length", 0.1, 0.1)


def test_texts_that_part_alike_are_explained_once_and_another_programs_not(tmp_path: Path) -> None:
    """Each explanation reads the text anew, as long as it is."""
    runtime, target, _ = fake_runtime()
    plain = RuntimeSide(runtime, None)
    ids = runtime.encode_messages([protocol.Message("user", "Hi?")])
    right = plain.answer(ids, 8, GREEDY).tokens
    wrong = (right[2] + 1) % 256
    own = [Says("a", [*right[:2], wrong, 7]), Says("b", [*right[:2], wrong, 8, 9])]
    others = [Says("it/plain", [*right[:2], 10**6, 4]), Says("it/fast", right)]

    def passes(name: str, *sides: Says) -> tuple[int, dict[str, Any]]:
        target.passes.clear()
        asked = Plan("pair", [prompts.Prompt("p", "c", ("Hi?",))], 8)
        with Writer(tmp_path / name) as writer:
            measure(runtime, [plain, *sides], asked, writer)
        (trial,) = writer.results.trials
        return len(target.passes), {a.side: a.difference for a in trial.answers}

    alone, _ = passes("alone")
    beside, found = passes("beside", *others)
    assert beside == alone
    assert found["it/plain"] == {"token": 2, "plain": right[2], "other": 10**6}
    assert found["it/fast"] is found["plain"] is None
    once, found = passes("once", own[0])
    assert once > alone and found["a"]["explained"] is False
    assert passes("twice", *own, *others)[0] == once
    ended, found = passes("ended", own[0], Says("b", right[:2]))
    assert ended > once and found["a"]["gap"] != found["b"]["gap"]  # the same place, otherwise


def test_drawn_texts_that_part() -> None:
    """Where a seed's draw was near, rounding explains another token; elsewhere it doesn't."""
    runtime, target, _ = fake_runtime()
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=5)
    ids = runtime.encode_messages([protocol.Message("user", "Hello")])
    plain = RuntimeSide(runtime, None).answer(ids, 8, sampling).tokens
    gaps = {}
    for token in range(256):
        if token != plain[3]:
            found = difference(runtime, ids, plain, [*plain[:3], token], sampling=sampling)
            assert found and found["explained"] == (found["gap"] <= 0.02)
            gaps[token] = found["gap"]
    assert len(set(gaps.values())) > 100 and max(gaps.values()) > 1
    ended = difference(runtime, ids, plain, plain[:3], sampling=sampling)
    assert ended and ended["gap"] > 1 and not ended["explained"]
    assert target.length == 0  # as the next answer must find it


def test_settings() -> None:
    made = settings([("lookup",), ("lookup", "model")], [0, 3, "auto"])
    assert [s.name for s in made] == [
        "plain again", "lookup:3", "lookup+model:3", "lookup:auto", "lookup+model:auto",
    ]  # fmt: skip
    runtime, *_ = fake_runtime()
    with pytest.raises(ConfigError, match="no drafter 'nobody'"):
        RuntimeSide(runtime, Setting(("nobody",), 3))


def test_cost_curves() -> None:
    runtime, target, draft = fake_runtime()
    ticks = iter(range(10**6))
    found = list(
        cost_curves(
            runtime, "pair", sizes=(1, 4), behind=8, turns=3, clock=lambda: float(next(ticks))
        )
    )
    assert [(c.role, c.model) for c in found] == [("target", "fake"), ("drafter", "draft")]
    assert found[0].seconds == found[1].seconds == {"1": [1.0] * 3, "4": [1.0] * 3}
    assert target.length == draft.length == 0
    assert (4, 4) in target.passes and (4, 1) in draft.passes
    (rest,) = cost_curves(runtime, "pair", known={("fake", "target")}, sizes=(1,), turns=1)
    assert (rest.role, rest.model) == ("drafter", "draft")


# ------------------------------------------------------------------------------ what survives


class Killed(BaseException):
    pass


def test_a_kill_at_any_byte_costs_the_trial_under_way(tmp_path: Path) -> None:
    runtime, *_ = fake_runtime()
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(), writer)
    whole = (tmp_path / files.FILE).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    around = {0, *ends, *(e - 1 for e in ends), *(e + 1 for e in ends[:-1])}
    for cut in sorted(around | set(range(0, len(whole), 97))):
        (tmp_path / files.FILE).write_bytes(whole[:cut])
        with Writer(tmp_path) as writer:
            kept = len(writer.results.trials)
            assert kept == sum(end <= cut for end in ends)
            left = writer.file.read_bytes()
        assert left == whole[: max([0, *ends[:kept]])]
    (tmp_path / files.FILE).write_bytes(whole[: ends[1] + 40])
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(), writer)
    again = files.read([tmp_path]).trials
    assert [t.prompt for t in again] == ["p0", "p1", "p2", "p3"]
    assert [[a.tokens for a in sorted(t.answers, key=lambda a: a.side)] for t in again] == [
        [a["tokens"] for a in sorted(json.loads(line)["answers"], key=lambda a: a["side"])]
        for line in whole.splitlines()
    ]


def test_nothing_measured_leaves_nothing(tmp_path: Path) -> None:
    with Writer(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    with Writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []  # it was there before


def test_one_process_writes_to_a_folder_at_a_time(tmp_path: Path) -> None:
    line = {"kind": "run", "began": "", "command": [], "machine": {}, "versions": {}}
    data = json.dumps(line, separators=(",", ":")).encode() + b'\n{"kind":"tri'
    with Writer(tmp_path) as writer:
        writer.file.write_bytes(data)  # the other's line, half of it
        with pytest.raises(ConfigError, match="another edgespec bench is writing"):
            Writer(tmp_path)
        assert writer.file.read_bytes() == data
    with Writer(tmp_path) as writer:
        assert len(writer.results.runs) == 1
    assert (tmp_path / files.FILE).read_bytes() == data[:-12]


@pytest.mark.parametrize("text", ["{'a': 1}", "my results", '{"kind": "other"}', "x\n"])
def test_a_file_of_someone_else_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / files.FILE).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"didn't write|is no result"):
        Writer(tmp_path)
    assert (tmp_path / files.FILE).read_text("utf-8") == text


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    runtime, target, _ = fake_runtime()
    with Writer(tmp_path) as writer:
        measure(runtime, sides(runtime), plan(), writer)
        target.passes.clear()
        measure(runtime, sides(runtime), plan(), writer)
        assert target.passes == []  # not even warmed up
        measure(runtime, sides(runtime), plan(repeats=2), writer)
        assert len(writer.results.trials) == 8


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    odd = Answer("plain", [1], "half \ud800 and é\n", "end", None, 0.0, arrivals=[(0.5, 1)])
    written = [
        Run("2026-01-01", ["edgespec", "bench"], {"cpu": "x"}, {"python": "3"}),
        Pair("p", {"name": "t", "bytes": 1, "sha256": "0"}, [], {"threads": 1}, ["plain"]),
        Costs("p", "t", "target", 256, {"1": [0.1]}),
        Trial("p", "a", "c", 0, 0, 3, "now", [odd]),
    ]
    with Writer(tmp_path) as writer:
        for entry in written:
            writer.append(entry)  # type: ignore[arg-type]
    found = files.read([tmp_path])
    assert [found.runs[0], found.pairs["p"], found.costs[0]] == written[:3]
    assert found.trials[0].answers[0].text == "half ? and é\n"
    line = json.loads((tmp_path / files.FILE).read_text("utf-8").splitlines()[3])
    line["answers"][0]["of_a_later_version"] = line["later"] = 1
    (tmp_path / "later.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert asdict(files.read([tmp_path / "later.jsonl"]).trials[0].answers[0])["tokens"] == [1]


def test_results_are_taken_together_only_where_they_belong_together(tmp_path: Path) -> None:
    settings = {"threads": 2, "prompts": "human-eval", "prompts_sha256": "1", "code": "c"}
    one = Pair("p", {"sha256": "t"}, [{"sha256": "d"}], settings, ["plain"], {"it": {"v": "1"}})
    answers = [Answer("plain", [1], "", "length", 0.1, 0.1)]

    def keep(name: str, pair: Pair) -> Path:
        with Writer(tmp_path / name) as writer:
            writer.append(pair)
            writer.append(Costs("p", "t", "target", 256, {"1": [float(len(name))]}))
            writer.append(Trial("p", "line 1", "c", 0, 0, 3, name, answers))
            writer.append(Trial("p", "context 9", "context", 0, 0, 9, name, answers, 9))
        return tmp_path / name

    first = keep("one", one)
    same = files.read([first, keep("same", replace(one, sides=["plain", "x/y"]))])
    assert same.pairs["p"].sides == ["plain", "x/y"] and same.pairs["p"].settings == settings
    assert same.costs == [Costs("p", "t", "target", 256, {"1": [3.0, 4.0]})]
    assert [(t.prompt, t.repeat) for t in same.trials] == [
        ("line 1", 0), ("context 9", 0), ("line 1", 0), ("context 9", 1),
    ]  # fmt: skip
    others = settings | {"prompts": "mine", "prompts_sha256": "2"}
    second = keep("second", replace(one, settings=others, peers={"other": {"v": "9"}}))
    both = files.read([first, second, first / files.FILE])
    assert both.pairs["p"].settings["prompts"] == "human-eval + mine"
    assert set(both.pairs["p"].peers) == {"it", "other"}
    names = [t.prompt for t in both.trials if t.context is None]
    assert len(names) == len(set(names)) == 2  # the same name, but another prompt
    assert both.costs[0].seconds == {"1": [3.0, 6.0]}  # what is named twice counts once
    with Writer(tmp_path / "hasty") as writer:  # two runs that began within a second
        for _ in range(2):
            writer.append(Run("2026-11-30T09:00:00+00:00", ["edgespec"], {}, {}))
    assert len(files.read([tmp_path / "hasty"] * 2).runs) == 2
    for i, (changed, says) in enumerate((
        (replace(one, target={"sha256": "u"}), "the target is t in one file and u in another"),
        (replace(one, drafters=[]), "a drafter"),
        (replace(one, settings=settings | {"threads": 1}), "threads is 2 in one"),
        (replace(one, settings=others | {"threads": 1}), "threads is 2 in one"),
        (replace(one, settings=settings | {"code": "d"}), "code is c in one"),
        (replace(one, settings={"threads": 2}), "code is c in one file and None"),
        (replace(one, peers={"it": {"v": "2"}}), "it is"),
    )):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            files.read([first, keep(f"x{i}", changed)])


def test_conditions_that_nothing_was_answered_under_stop_no_report(tmp_path: Path) -> None:
    """As where a measurement went on with another version before its first trial was done."""
    one = Pair("p", {"sha256": "t"}, [], {"code": "new"}, ["plain"])
    stale = [replace(one, settings={"code": "old"}), Costs("p", "t", "target", 256, {"1": [9.0]})]
    answers = [Answer("plain", [1], "", "length", 0.1, 0.1)]

    def keep(name: str, *records: record.Record) -> Path:
        with Writer(tmp_path / name) as writer:
            for entry in records:
                writer.append(entry)
        return tmp_path / name

    first = keep("first", one, Trial("p", "a", "c", 0, 0, 3, "1", answers))
    costs = Costs("p", "t", "target", 256, {"1": [1.0]})
    later = keep("later", *stale, one, costs, Trial("p", "a", "c", 0, 0, 3, "2", answers))
    for paths in ([first, later], [later, first]):
        found = files.read(paths)
        assert found.pairs == {"p": one} and found.costs == [costs]
        assert sorted(trial.ended for trial in found.trials) == ["1", "2"]
    begun = keep("begun", *stale)
    assert files.read([first, begun]).costs == []
    assert files.read([begun]).pairs["p"].settings == {"code": "old"}


def test_a_measurement_goes_on_only_with_the_same_code_and_peers(tmp_path: Path) -> None:
    settings = {"code": "c"}
    one = Pair("p", {"sha256": "t"}, [], settings, ["plain"], {"it": {"versions": {"it": "1"}}})
    with Writer(tmp_path) as writer:
        driver._same_conditions(writer, one)
        writer.append(one)
        writer.append(Trial("p", "a", "c", 0, 0, 3, "now", []))
        driver._same_conditions(writer, one)
        assert len((tmp_path / files.FILE).read_bytes().splitlines()) == 2
        for changed, says in (
            (replace(one, settings={"code": "d"}), "code was c, is d"),
            (replace(one, peers={"it": {"versions": {"it": "2"}}}), "it was"),
            (replace(one, sides=["plain", "x"]), "what is compared"),
        ):
            with pytest.raises(ConfigError, match=says):
                driver._same_conditions(writer, changed)
    (tmp_path / "commands").mkdir()
    (tmp_path / "bench").mkdir()
    (tmp_path / "loop.py").write_text("1", encoding="utf-8")
    before = identity.code_hash(tmp_path)
    (tmp_path / "commands" / "run.py").write_text("1", encoding="utf-8")
    (tmp_path / "bench" / "conditions.py").write_text("1", encoding="utf-8")
    assert identity.code_hash(tmp_path) == before  # no part of a measurement
    (tmp_path / "loop.py").write_text("2", encoding="utf-8")
    assert identity.code_hash(tmp_path) != before
    assert len({identity.code_hash(), before}) == 2


def test_every_build_of_onnx_runtime_is_a_version_that_was_measured_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds = [f"onnxruntime{build}" for build in ("", "-gpu", "-directml", "-trt-rtx")]
    monkeypatch.setattr(identity, "version", lambda name: "1.30" if name in builds else "1")
    assert [name for name, found in identity.versions().items() if found == "1.30"] == builds


def test_each_build_of_a_library_is_one_that_was_measured_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People make llama.cpp anew, with other flags, and its version stays."""

    def found(name: str) -> SimpleNamespace | None:
        return SimpleNamespace(origin=str(tmp_path / name / "__init__.py")) if name == has else None

    monkeypatch.setattr(identity, "find_spec", found)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    for has, below in (("llama_cpp", "lib"), ("onnxruntime", "capi")):
        folder = tmp_path / has / below
        folder.mkdir(parents=True)
        for file, counts in (
            ("libit.so.1", True), ("it.dll", True), ("libit.dylib", True),
            ("it.cpython-311-x86_64-linux-gnu.so", True), ("it.pyd", True),
            ("build_info.py", False), ("sources.txt", False),
        ):  # fmt: skip
            before = identity.libraries()
            assert list(before) == [f"{has}_libraries"]
            (folder / file).write_bytes(b"a build")
            assert (identity.libraries() != before) == counts, file
        before = identity.libraries()
        (folder / "it.dll").write_bytes(b"another")
        assert identity.libraries() != before
    has = "llama_cpp"
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(own))
    before = identity.libraries()
    (own / "libllama.so").write_bytes(b"mine")
    assert identity.libraries() != before


def test_a_measurement_goes_on_only_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many machines have one name for their processor, as a hypervisor gives it."""
    trial = Trial("p", "a", "c", 0, 0, 3, "now", [Answer("plain", [1], "", "length", 0.1, 0.1)])
    pair = Pair("p", {"sha256": "t"}, [], {"code": "c"}, ["plain"])

    def begun(folder: Path, *records: record.Record) -> Path:
        with Writer(folder) as writer:
            driver.begin(writer, ["edgespec"])
            for entry in records:
                writer.append(entry)
        return folder

    first = begun(tmp_path / "first", pair)
    monkeypatch.setattr(platform, "usable_cpus", lambda: 7)
    begun(first, trial)  # nothing was answered yet
    begun(first)
    monkeypatch.setattr(platform, "usable_cpus", lambda: 9)
    with pytest.raises(
        ConfigError, match=r"of another machine \(usable_cpus was 7, is 9\): choose"
    ):
        begun(first)
    second = begun(tmp_path / "second", pair, replace(trial, prompt="b"))
    third = begun(tmp_path / "third", replace(pair, pair="q"), replace(trial, pair="q"))
    for paths in ([first, second], [second, first]):
        with pytest.raises(
            ConfigError, match=r"two machines \(usable_cpus is [79] on one and [79] o"
        ):
            files.read(paths)
    assert len(files.read([first, third, first]).trials) == 2  # each pair on one
    lines = [(folder / files.FILE).read_bytes() for folder in (first, second)]
    (tmp_path / "both.jsonl").write_bytes(b"".join(lines))
    assert len(files.read([tmp_path / "both.jsonl"]).trials) == 2  # what is there stays readable


@pytest.mark.parametrize("line", ["{", '{"kind": "song"}', "[]", '{"kind": "trial"}', "\xff"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError, match="line 2, is no result"):
        files.read([file])


# ----------------------------------------------------------------------------------- prompts


def test_how_many_prompts_come_along_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(in_process(capsys, "bench", "--help")[1].split())
    for name, whole in (("spec-bench", 480), ("human-eval", 164)):
        assert f"`{name}` ({len(prompts.load(name).prompts)} of its {whole}" in words


def test_the_prompts_that_come_along() -> None:
    bench, code = prompts.load("spec-bench"), prompts.load("human-eval")
    assert len(bench.prompts) == 74 and len(code.prompts) == 15
    assert len({p.category for p in bench.prompts}) == 13
    limited = bench.limited(1)
    assert len(limited) == 13 and len({p.category for p in limited}) == 13
    everything = bench.limited(None)
    assert len(everything) == 74 and len({p.category for p in everything[:13]}) == 13


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"turns": ["a"]}\n\n{"turn": ["b"]}', "and line 3 isn't"),
        ("[" * 200_000, "holds no prompts"),
        (None, "can't read"),
        ("", "holds no prompts"),
        ("[1]", "holds no prompts"),
        ('{"turns": []}', "holds no prompts"),
        ('{"turns": "one"}', "holds no prompts"),
        ('{"turns": [" "]}', "holds no prompts"),
        ('{"id": 1, "turns": ["a"]}\n{"id": 1, "turns": ["b"]}', "the same id"),
        ('{"category": "all", "turns": ["a"]}', "has a category `all`"),
    ],
)
def test_files_that_hold_no_prompts(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "p.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        prompts.load(str(tmp_path / "p.jsonl"))


def test_a_file_without_categories(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"turns": ["a"]}\n\n{"turns": ["b"]}\n', encoding="utf-8")
    found = prompts.load(str(tmp_path / "p.jsonl"))
    assert [(p.name, p.category) for p in found.prompts] == [
        ("line 1", "prompts"), ("line 3", "prompts"),
    ]  # fmt: skip


def test_prompts_as_editors_and_programs_write_them(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    turns = ["line\u2028separator", "next\x85line", "half \ud83d"]
    lines = [
        json.dumps({"turns": turns[:2], "category": "\ud83d\n x"}, ensure_ascii=False),
        json.dumps({"turns": turns[2:], "id": "\ud83d"}),
    ]
    data = "\r\n".join(lines).encode("utf-8", "surrogatepass").replace(b"\xed\xa0\xbd", b"\\ud83d")
    file.write_bytes(codecs.BOM_UTF8 + data + b"\r\n")
    one, two = prompts.load(str(file)).prompts
    assert (one.name, one.category, list(one.turns)) == ("line 1", "? x", turns[:2])
    assert (two.name, two.category, two.turns) == ("?", "prompts", ("half ?",))


# ------------------------------------------------------------------------------------ energy


def test_energy(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None
    folder = tmp_path / "sys/class/powercap"

    def zone(name: str, kind: str, energy: int) -> None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "name").write_text(kind + "\n", encoding="utf-8")
        (folder / name / "energy_uj").write_text(f"{energy}\n", encoding="utf-8")
        (folder / name / "max_energy_range_uj").write_text("10000000\n", encoding="utf-8")

    zone("intel-rapl:0", "package-0", 9_000_000)
    zone("intel-rapl:1", "package-1", 0)
    zone("intel-rapl:0:0", "core", 0)  # a part of package 0
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    zone("intel-rapl:0", "package-0", 2_000_000)  # began again at 10
    zone("intel-rapl:1", "package-1", 500_000)
    zone("intel-rapl:0:0", "core", 400_000)
    assert meter.joules() == pytest.approx(3.5)
    zone("intel-rapl:0", "package-0", 2_500_000)
    assert meter.joules() == pytest.approx(4.0)
    (folder / "intel-rapl:1/energy_uj").unlink()  # not to be read any more
    assert meter.joules() is None
    assert cpu_name()


# ------------------------------------------------------------------------------------ report

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects what refers to something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [f"{n}={v}" for n, v in attrs if n in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def many(tmp_path: Path) -> record.Results:
    """Results with peers, lengths, energy and names that want escaping."""
    runtime, *_ = fake_runtime()
    with Writer(tmp_path) as writer:
        writer.append(Run("2026-01-01T00:00:00", ["edgespec", "<b>"], {"cpu": "A&B"}, {"x": "1"}))
        names = ["plain", "lookup+model:3", "model:2", "peer<i>/draft-1"]
        model = {"name": "<t>.gguf", "bytes": 1, "sha256": "ab"}
        writer.append(Pair("pair", model, [model], {"threads": 1}, names))
        for costs in cost_curves(runtime, "pair", sizes=(1, 2, 3), turns=2):
            writer.append(costs)
        measure(runtime, sides(runtime), plan(contexts=(256, 512)), writer)
        for trial in writer.results.trials:
            trial.answers.append(Answer(names[3], [1, 2], "", "length", 0.1, 0.001, joules=1.0))
        return writer.results


def test_the_report_is_whole_and_refers_to_nothing(tmp_path: Path) -> None:
    results = many(tmp_path)
    html = report.render(results)
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == [] and page.references == [] and "script" not in page.tags
    assert not re.search(r"https?:|url\(|@import|<link|<img", html)
    assert "prefers-color-scheme: dark" in html
    for word in ("kind 0", "kind 1", "all", "lookup+model:3", "peer<i>", "A&B", "<t>.gguf"):
        assert word in page.words, word
    pictures = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(pictures) == 6
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for key in ("x", "x1", "x2", "cx"):
                assert -1 <= float(element.get(key, 0)) <= width + 1, element.attrib
            for key in ("y", "y1", "y2", "cy"):
                assert -1 <= float(element.get(key, 0)) <= height + 1, element.attrib
    ratios = ElementTree.fromstring(pictures[0])
    shown = "".join(ratios.itertext())
    assert all(name in shown for name in ("kind 0", "kind 1", "all", "model:2"))
    assert " to " in shown  # intervals, in figures too


def test_many_sides_are_told_apart_and_stay_in_the_picture() -> None:
    names = [f"lookup+model:{i}" for i in range(12)] + ["transformers-generate, best"]
    ratio = stats.ratio_interval([0.1, 0.2])
    assert ratio
    rows = {"kind": dict.fromkeys(names, (ratio, "ngram-simple+draft-6, 15.9 tok/s"))}
    speeds = {name: {256: stats.Spread(9.0, 8.0, 10.0)} for name in names}
    pictures = [
        charts.intervals("", rows, names, "plain"),
        charts.accepted_lengths({"kind": dict.fromkeys(names, 2.5)}, names),
        charts.lengths(speeds),
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        texts = [element for element in root if element.tag == "text"]
        for element in texts:
            left, words = float(element.attrib["x"]), element.text or ""
            if element.get("text-anchor") == "start":
                assert left + svg.text_width(words) <= width, words
            assert float(element.attrib["y"]) <= height, words
        for name in names:  # beside its mark, not in a legend that has to be looked up
            assert any((element.text or "").startswith(name) for element in texts), name
    assert len({svg.colour(series) for series in range(-1, 18)}) == 19


def test_long_and_wide_names_leave_room_for_the_scale() -> None:
    names = ["x" * 60 + ":3", "x" * 60 + ":6", "模型" * 20]
    slow, fast = stats.ratio_interval([-0.7, -0.69]), stats.ratio_interval([0.69, 0.7])
    assert slow and fast
    note = "9.0 tok/s, " + "y" * 90
    rows = {"类" * 80: {names[0]: (slow, note), names[1]: (fast, note), names[2]: (fast, "")}}
    speeds = {name: {256: stats.Spread(9.0, 8.0, 10.0)} for name in names}
    split = summary.Split(0.1, 0.1, 0.1, 0.1, 2.0)
    pictures = [
        charts.intervals("", rows, names, "plain"),
        charts.accepted_lengths({"类" * 80: dict.fromkeys(names, 2.5)}, names),
        charts.time_split(dict.fromkeys(names, split)),
        charts.lengths(speeds),
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        shown = [element for element in root if element.tag == "text"]
        places = [
            (float(e.attrib["x"]), e.get("text-anchor"), svg.text_width(e.text or ""))
            for e in shown
        ]
        assert all(x + width <= svg.WIDTH for x, anchor, width in places if anchor == "start")
        assert all(x - width >= 0 for x, anchor, width in places if anchor == "end")
        sides = {e.text for e in shown if (e.text or "").startswith(("xx", "模"))}
        assert len(sides) == len(names)  # still told apart
        for bar in root.iter("rect"):
            assert float(bar.attrib["width"]) > 0
    root = ElementTree.fromstring(pictures[0])
    one, two, _ = (float(dot.attrib["cx"]) for dot in root if dot.tag == "circle")
    assert two - one > 150
    named = [e for e in root if (e.text or "").startswith(("xx", "模"))]
    assert max(float(e.attrib["x"]) + svg.text_width(e.text or "") for e in named) < one
    lines = columns([("A", "B"), ("模型", "x"), ("abcd", "y")])
    assert [cell_len(line) for line in lines] == [7, 7, 7]


def test_the_speed_over_length_has_each_peer_at_its_best(tmp_path: Path) -> None:
    results = many(tmp_path)
    for trial in results.trials:
        slower = 0.002 if trial.context == 256 else 0.0005
        trial.answers.append(Answer("peer<i>/b", [1, 2], "", "length", 0.1, slower))
    html = report.render(results)
    (picture,) = [p for p in re.findall(r"<svg .*?</svg>", html, re.DOTALL) if "over the len" in p]
    tips = [t.text or "" for t in ElementTree.fromstring(picture).iter("title")]
    assert "peer<i>, best, 256 tokens: 1000.0 tokens/s" in tips
    assert "peer<i>, best, 512 tokens: 2000.0 tokens/s" in tips
    page = Page()
    page.feed(html)
    assert "peer<i>/draft-1 at 256 tokens" in page.words
    assert "peer<i>/b at 512 tokens" in page.words


def test_a_report_of_little(tmp_path: Path) -> None:
    """One prompt has no interval; a pair that was never answered has nothing."""
    runtime, *_ = fake_runtime()
    with Writer(tmp_path) as writer:
        writer.append(Pair("empty", {"name": "x", "bytes": 1, "sha256": "0"}, [], {}, ["plain"]))
        assert "Nothing was measured yet" in report.render(writer.results)
        assert list(table.lines(writer.results))
    other = tmp_path / "one"
    with Writer(other) as writer:
        writer.append(Pair("pair", {"name": "x", "bytes": 1, "sha256": "0"}, [], {}, ["plain"]))
        alone = Plan("pair", plan().prompts[:1], 12)
        measure(runtime, sides(runtime), alone, writer)
        assert "one prompt" in report.render(writer.results)
        assert any("one prompt" in line for line in table.lines(writer.results))


def test_the_table_says_when_texts_differ(tmp_path: Path) -> None:
    results = many(tmp_path)
    assert "every answer of edgespec has plain's text" in list(table.lines(results))
    trial = results.trials[0]
    answer = trial.answer("model:2")
    assert answer
    answer.difference = {"token": 1, "explained": False}
    assert any(line.startswith("NOT EXACT: 1 of 6") for line in table.lines(results))
    answer.difference = {"token": 1, "explained": True}
    assert any("5 of 6 texts are plain's; 1 part" in line for line in table.lines(results))
    answer.difference = None
    behind = next(t for t in results.trials if t.context).answer("model:2")
    assert behind
    behind.difference = {"token": 1, "explained": False}  # behind a long text it counts too
    assert any(line.startswith("NOT EXACT: 1 of 6") for line in table.lines(results))
    behind.difference = None
    told = "peer<i>: 0 of 6 texts are plain's (another program rounds otherwise); its speeds"
    for explained in (False, True):
        for trial in results.trials:
            theirs = trial.answer("peer<i>/draft-1")
            assert theirs
            theirs.difference = {"token": 1, "explained": explained}
        lines = list(table.lines(results))
        assert any(line.startswith(told) for line in lines)
        assert not any("NOT EXACT" in line for line in lines)
        assert "*" not in "".join(lines)  # a star says that rounding was measured
        assert escape(told) in report.render(results)
    results.trials.clear()
    assert not any("plain's text" in line for line in table.lines(results))
    assert "nothing was measured yet" in list(table.lines(results))


# ------------------------------------------------------------------------------- command line


def in_process(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    try:
        code = cli.main([*map(str, args)])
    except SystemExit as left:
        code = int(left.code or 0)
    return (code, *capsys.readouterr())


PEER = """
import json, sys
if "--make" in sys.argv:
    print(sys.executable)
else:
    hello = json.loads(sys.stdin.readline())
    print(json.dumps({"settings": hello["settings"] or ["plain", "fast"], "versions": {"it": "1"}}))
    sys.stdout.flush()
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        if asked["setting"] == "broken":
            print("this is no reply")
        elif asked["setting"] == "empty":
            print("{}")
        elif asked["setting"] == "picky" and number % 2:
            print(json.dumps({"error": "ValueError: not\\nthis one"}))
        elif asked["setting"] == "number":
            print(3)
        else:
            n = asked["max_tokens"]
            print(json.dumps({"tokens": asked["ids"][:n], "finish_reason": "length",
                              "ttft_seconds": 0.5, "decode_seconds": 0.25}))
        sys.stdout.flush()
"""


def test_a_measurement_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")  # what a busy machine makes edgespec set
    target = write_tiny(tmp_path / "a.gguf", context=512)
    drafter = write_tiny(tmp_path / "b.gguf", context=512, seed=1)
    (tmp_path / "my_peer.py").write_text(PEER, encoding="utf-8")
    (tmp_path / "p.jsonl").write_text(
        '{"category": "one", "turns": ["Hi."]}\n{"category": "one", "turns": ["Ho."]}\n',
        encoding="utf-8",
    )
    out = tmp_path / "out"
    args: Sequence[str | Path] = [
        "bench", "--target", target, "--drafter", drafter, "--drafters", "lookup,lookup+model",
        "--lookahead", "2", "--prompts", tmp_path / "p.jsonl", "--tokens", "6", "--threads", "1",
        "--ctx-size", "256", "--peer", f"{tmp_path / 'my_peer.py'}:fast",
        "--peer-environments", tmp_path, "--out", out,
    ]  # fmt: skip
    code, shown, err = in_process(capsys, *args)
    assert code == 0, err
    assert "one" in shown and "lookup+model:2" in shown and "fast" in shown
    assert "2 of 2 prompts answered by all sides" in err
    found = files.read([out])
    (pair,) = found.pairs.values()
    assert pair.sides == ["plain", "lookup:2", "lookup+model:2", "my-peer/fast"]
    assert len(pair.target["sha256"]) == 64 and pair.drafters[0]["name"] == "b.gguf"
    assert len(pair.settings["llama_cpp_libraries"]) == 64
    assert pair.settings["lengths_sha256"] == prompts.load("spec-bench").sha256
    assert found.runs[0].command[0] == "edgespec" and found.runs[0].versions["edgespec"]
    assert len(found.trials) == 2 and all(len(t.answers) == 4 for t in found.trials)
    assert (out / "report.html").stat().st_size > 10_000
    size = (out / files.FILE).stat().st_size
    assert in_process(capsys, *args)[0] == 0  # nothing to do but to say so
    assert (out / files.FILE).stat().st_size == size
    code, _, err = in_process(capsys, *args, "--tokens", "7")
    assert code == 1 and "max_tokens was 6, is 7" in err and "choose another --out" in err
    code, shown, _ = in_process(capsys, "bench", "--compare", out, out)
    assert code == 0 and "0 regressions" in shown
    (other := tmp_path / "other").mkdir()
    renamed = (out / files.FILE).read_text("utf-8").replace('"pair":"', '"pair":"another ')
    (other / files.FILE).write_text(renamed, encoding="utf-8")
    code, shown, err = in_process(capsys, "bench", "--compare", out, other)
    assert (code, shown) == (2, "") and "nothing to compare" in err
    assert found.pairs[pair.pair].settings["gomp_spincount"] == "77"
    lines = (out / files.FILE).read_bytes().splitlines(keepends=True)
    costs = [line for line in lines if line.startswith(b'{"kind":"costs"')]
    assert len(costs) == 2
    kept = b"".join(line for line in lines if line != costs[1])  # killed between the two
    (out / files.FILE).write_bytes(kept)
    code, _, err = in_process(capsys, *args)
    assert code == 0 and "passes of b.gguf cost" in err and "passes of a.gguf cost" not in err
    assert [c.role for c in files.read([out]).costs] == ["target", "drafter"]
    again = tmp_path / "again"
    assert in_process(capsys, "bench", "--report", out, "--out", again)[0] == 0
    assert (again / "report.html").read_text("utf-8") == (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--drafter", "x.gguf"], 1, "goes with --target"),
        (["nobody"], 1, "nobody"),
        (["smollm2", "smollm2"], 1, "named twice"),
        (["--prompts", "none.jsonl"], 1, "can't read the prompts"),
        (["--peer", "x.py", "--temperature", "1"], 1, "greedily"),
        (["--rule", "rejection"], 1, "needs a --temperature"),
        (
            ["--target", "none.gguf", "--seed", "7"],
            1,
            "--seed says how answers are drawn: it needs a --temperature",
        ),
        (["--target", "none.gguf", "--seed", "0"], 1, "it needs a --temperature"),
        (["--target", "none.gguf", "--temperature", "-1"], 1, "temperature must be"),
        (["--target", "none.gguf", "--temperature", "nan"], 1, "temperature must be"),
        (["--compare", "none", "none"], 1, "can't read the results"),
        (["--lookahead", "many"], 2, "usage"),
        (["--drafters", "a,,b"], 2, "no list"),
        (["--tokens", "0"], 2, "below 1"),
        (["--tokens", "1"], 1, "give --tokens 2 or more"),
        (["--peer", __file__, "--peer", __file__ + ":fast"], 1, "two --peer are called test-bench"),
        (["--report", __file__], 1, "line 1, is no result of edgespec bench"),
        (["--report", os.devnull], 1, "holds no results of edgespec bench"),
        (["--compare", "a", "b", "--report", "c"], 1, "give one of them"),
        (["smollm2", "--report", __file__], 1, "leave out smollm2, or --report"),
        (["--report", __file__, "--tokens", "5"], 1, "leave out --tokens, or --report"),
        (["--compare", "a", "b", "--peer", "x.py"], 1, "leave out --peer, or --compare"),
        (["--compare", "a", "b"], 1, "leave out --out, or --compare"),  # --out is given to all
    ],
)
def test_what_makes_no_sense(
    args: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = () if args[:2] == ["--compare", "none"] else ("--out", tmp_path / "o")
    got, out, err = in_process(capsys, "bench", *where, *args)
    assert (got, out) == (code, "") and says in err


def test_a_report_takes_the_place_of_no_other_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime, *_ = fake_runtime()
    for name in ("edgespec-bench", "other"):
        with Writer(tmp_path / name) as writer:
            writer.append(Pair("pair", {"name": "x", "sha256": "0"}, [], {}, ["plain"]))
            measure(runtime, sides(runtime), Plan("pair", plan().prompts[:1], 4), writer)
    page = tmp_path / "edgespec-bench" / "report.html"
    code, shown, err = in_process(capsys, "bench", "--report", "other")
    assert (code, shown) == (1, "") and "edgespec-bench holds another measurement" in err
    assert not page.exists()
    assert in_process(capsys, "bench", "--report", "other", "--out", "o")[0] == 0
    assert in_process(capsys, "bench", "--report", "other", "edgespec-bench")[0] == 0
    assert page.exists()


def test_costs_are_measured_anew_for_each_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What earlier chats made of them would be part of the figures of `auto`."""
    target = write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "p.jsonl").write_text('{"turns": ["Hi."]}\n', encoding="utf-8")
    for out in ("one", "two"):
        code, _, err = in_process(
            capsys, "bench", "--target", target, "--threads", "1", "--tokens", "2",
            "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / out,
        )  # fmt: skip
        assert code == 0 and "measuring what passes of these models cost" in err


def test_a_pair_without_any_trial_is_measured_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that another version began and was stopped in: its conditions and costs give way."""
    target = write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "p.jsonl").write_text('{"turns": ["Hi."]}\n', encoding="utf-8")
    out = tmp_path / "out"
    args: Sequence[str | Path] = [
        "bench", "--target", target, "--threads", "1", "--tokens", "2",
        "--prompts", tmp_path / "p.jsonl", "--out", out,
    ]  # fmt: skip
    assert in_process(capsys, *args)[0] == 0
    now = files.read([out])
    (pair,), (costs,), (trial,) = now.pairs.values(), now.costs, now.trials
    other = replace(pair, pair="other", settings={"code": "of then"})
    (out / files.FILE).unlink()
    with Writer(out) as writer:
        writer.append(replace(pair, settings={"code": "of then", "prompts_sha256": "of then"}))
        writer.append(replace(costs, seconds={"1": [123.0]}))
        writer.append(other)
        writer.append(replace(costs, pair="other"))
        writer.append(replace(trial, pair="other"))
    before = (out / files.FILE).read_bytes()
    code, _, err = in_process(capsys, *args)
    assert code == 0, err
    assert (out / files.FILE).read_bytes().startswith(before)
    found = files.read([out])
    assert found.pairs == {pair.pair: pair, "other": other}
    assert [t.key for t in found.trials] == [replace(trial, pair="other").key, trial.key]
    assert found.costs[0] == replace(costs, pair="other")
    assert [c.pair for c in found.costs] == ["other", pair.pair]
    assert 123.0 not in found.costs[1].seconds["1"]
    code, _, err = in_process(capsys, *args, "--tokens", "3")
    assert code == 1 and "max_tokens was 2, is 3" in err  # now something was answered


def test_commands_in_the_documents_keep_their_results_apart() -> None:
    root = Path(__file__).parents[1]
    for page in ("README.md", "docs/performance.md"):
        text = (root / page).read_text("utf-8").replace("\\\n", " ")
        measured = re.findall(r"^edgespec bench .*--prompts.*$", text, re.MULTILINE)
        folders = [re.findall(r"--out (\S+)", command) for command in measured]
        assert len(folders) >= 2 and all(folders), page
        assert len({folder for (folder,) in folders}) == len(folders), page
        if page == "docs/performance.md":
            kept = {path.name for path in (root / "benchmarks" / "results").glob("*/*")}
            assert {folder for (folder,) in folders} <= kept


def test_names_of_pairs_that_are_files() -> None:
    def name(*files: str) -> str:
        return named_pairs([], files[0], files[1:])[0].name

    assert name("a/qwen2.5-coder.gguf", "b/small-q4.gguf") == "qwen2.5-coder+small-q4"
    assert name("odd \udcff.gguf") == "odd ?"


def onnx_files(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        begin = b"\x08\x08\x12" if name.endswith(".onnx") else b"{}"
        (folder / name).write_bytes(begin + name.encode())
    return folder


def test_graphs_of_one_folder_are_models_of_their_own(tmp_path: Path) -> None:
    repo = onnx_files(tmp_path / "m", "config.json", "tokenizer.json")
    onnx = onnx_files(repo / "onnx", "a.onnx", "a.onnx_data", "b.onnx", "b.onnx.data")
    one, two = onnx / "a.onnx", onnx / "b.onnx"
    assert named_pairs([], str(one), [])[0].name == identity.identity(one)["name"] == "m/a.onnx"
    assert identity.identity(one)["sha256"] != identity.identity(two)["sha256"]
    for file, belongs in (
        (onnx / "a.onnx", True), (onnx / "a.onnx_data", True), (repo / "tokenizer.json", True),
        (repo / "chat_template.jinja", True), (onnx / "b.onnx.data", False),
        (repo / "results.jsonl", False), (onnx / "edgespec-bench" / "config.json", False),
    ):  # fmt: skip
        before = identity.identity(one)["sha256"]
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as opened:
            opened.write(b"more")
        assert (identity.identity(one)["sha256"] != before) == belongs, file


def test_all_weights_of_a_graph_alone_in_its_folder_count(tmp_path: Path) -> None:
    """A graph names its weights as it likes; what a measurement leaves there is no part of it."""
    folder = onnx_files(tmp_path / "m", "model.onnx", "weights.bin", "tokenizer.json")
    for name, belongs in (
        ("weights.bin", True), ("results.jsonl", False), ("report.html", False),
        ("llama_server.log", False),
    ):  # fmt: skip
        before = identity.identity(folder)["sha256"]
        with (folder / name).open("ab") as opened:
            opened.write(b"more")
        assert (identity.identity(folder)["sha256"] != before) == belongs, name


def test_a_model_is_named_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = onnx_files(tmp_path / "m-int4", "model.onnx", "config.json", "tokenizer.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(folder)
    for target in (".", "model.onnx", "~/m-int4", str(folder)):
        assert named_pairs([], target, [])[0].name == "m-int4"
        assert identity.identity(Path(target)) == identity.identity(folder)
    assert identity.identity(folder)["name"] == "m-int4"
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    whole = hashlib.sha256(b"GGUF").hexdigest()  # as other programs take it
    assert identity.identity(Path("../a.gguf")) == {"name": "a.gguf", "bytes": 4, "sha256": whole}
    for missing, says in (("../none", "doesn't exist"), ("..", "no ONNX model")):
        with pytest.raises(ConfigError, match=says):
            identity.identity(Path(missing))


@needs_links
def test_a_model_in_the_hubs_cache(tmp_path: Path) -> None:
    """Each file there is a link to one that has a hash for a name, beside those of all others."""
    blobs = onnx_files(tmp_path / "models--me--it" / "blobs", "1.onnx", "2.json", "3.json")
    model = tmp_path / "models--me--it" / "snapshots" / "c0ffee"
    model.mkdir(parents=True)
    for name, blob in (
        ("model.onnx", "1.onnx"), ("config.json", "2.json"), ("tokenizer.json", "3.json"),
    ):  # fmt: skip
        (model / name).symlink_to(blobs / blob)
    found = identity.identity(model / "model.onnx")
    assert found == identity.identity(model) and found["name"] == "me/it"
    (blobs / "another.onnx").write_bytes(b"of another version")
    assert identity.identity(model) == found
    (blobs / "1.onnx").write_bytes(b"\x08\x08\x12changed")
    assert identity.identity(model) != found


@needs_links
def test_peers_are_given_paths_that_lead_to_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path / "blob", context=512)
    (tmp_path / "a.gguf").symlink_to("blob")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "it.py").write_text(PEER, encoding="utf-8")
    asked: list[dict[str, Any]] = []
    real = Peer.ask
    monkeypatch.setattr(Peer, "ask", lambda peer, it: (asked.append(it), real(peer, it))[1])
    options = driver.Options(
        prompts.PromptSet("x", "0", (prompts.Prompt("p", "c", ("Hi.",)),)), lookaheads=[1],
        threads=1, max_tokens=2, environments=tmp_path, peers=[(tmp_path / "it.py", ["plain"])],
    )  # fmt: skip
    (named,) = named_pairs([], "~/a.gguf", [])
    with Writer(tmp_path / "o") as writer:
        driver.run_pair(named, options, writer, lambda _: None, lambda *_: None)
        (pair,) = writer.results.pairs.values()
    assert asked[0]["target"] == str(tmp_path / "a.gguf")
    assert pair.peers["it"]["script"] == identity.script_hash(tmp_path / "it.py")


def test_peers_and_results_are_told_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(gpu: str) -> Runtime:
        runtime, *_ = fake_runtime()
        runtime.target.details.update(device="GPU", gpu_layers="999", gpus=gpu)
        drafter = runtime.drafters["model"]
        assert isinstance(drafter, ModelDrafter)
        drafter.model.details.update(device="GPU", gpus=gpu)
        return runtime

    asked: list[dict[str, Any]] = []
    real = Peer.ask
    monkeypatch.setattr(Peer, "ask", lambda peer, it: (asked.append(it), real(peer, it))[1])
    write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "it.py").write_text(PEER, encoding="utf-8")
    one, two = prompts.Prompt("p", "c", ("Hi.",)), prompts.Prompt("q", "c", ("Ho.",))
    options = driver.Options(
        prompts.PromptSet("x", "0", (one, two)), lookaheads=[1], max_tokens=2,
        environments=tmp_path, peers=[(tmp_path / "it.py", ["plain"])],
    )  # fmt: skip
    (named,) = named_pairs([], str(tmp_path / "a.gguf"), [])

    def run(writer: Writer, gpu: str) -> None:
        monkeypatch.setattr(driver, "_open", lambda *_: opened(gpu))
        driver.run_pair(named, options, writer, lambda _: None, lambda *_: None)

    with Writer(tmp_path / "o") as writer:
        run(writer, "CUDA0: one")
        (pair,) = writer.results.pairs.values()
        with pytest.raises(ConfigError, match="gpus was CUDA0: one, is CUDA0: other"):
            run(writer, "CUDA0: other")
    assert (asked[0]["device"], asked[0]["gpu_layers"]) == ("GPU", 999)
    assert pair.settings["drafter_devices"] == ["GPU: CUDA0: one"]


def test_a_peers_script_and_what_it_imports_are_hashed(tmp_path: Path) -> None:
    for name, text in (("it", "from helper import x"), ("helper", "import common\nimport json"),
                       ("common", "x = 1"), ("other", "x = 2")):  # fmt: skip
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    for name, counts in (("it", True), ("helper", True), ("common", True), ("other", False)):
        before = identity.script_hash(tmp_path / "it.py")
        with (tmp_path / f"{name}.py").open("a", encoding="utf-8") as file:
            file.write("\n# more")
        assert (identity.script_hash(tmp_path / "it.py") != before) == counts, name


def test_peers_that_fail_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "p.jsonl").write_text('{"turns": ["Hi."]}\n', encoding="utf-8")
    (tmp_path / "broken.py").write_text(PEER, encoding="utf-8")
    (tmp_path / "absent.py").write_text("import sys; sys.exit(3)", encoding="utf-8")
    (tmp_path / "gone.py").write_text(f"print({str(tmp_path / 'no/python')!r})", encoding="utf-8")
    silent = PEER.replace('"settings": hello["settings"] or ["plain", "fast"], ', "")
    (tmp_path / "silent.py").write_text(silent, encoding="utf-8")
    for script, says in (
        ("broken.py:broken", "broken ended or made no sense"),
        ("broken.py:number", "broken ended or made no sense"),
        ("broken.py:empty", "broken/empty gave a reply that holds no answer"),
        ("broken.py:plain,plain,fast", ""),  # a peer that fails at first leaves no conditions
        ("silent.py", "silent named no settings"),
        ("gone.py", "gone could not be started"),
        ("absent.py", "absent could not be installed"),
        ("none.py", "no peer script"),
    ):
        out = tmp_path / f"o{script[:4]}"
        code, shown, err = in_process(
            capsys, "bench", "--target", target, "--lookahead", "1", "--threads", "1", "--tokens",
            "2", "--prompts", tmp_path / "p.jsonl", "--peer", tmp_path / script, "--out", out,
        )  # fmt: skip
        if not says:
            assert code == 0, err
            (pair,) = files.read([out]).pairs.values()
            assert pair.sides[-2:] == ["broken/plain", "broken/fast"]
            (out / "report.html").unlink()
            continue
        assert code == 1 and says in err.splitlines()[-1], err
        assert shown == "" and not (out / "report.html").exists()


def test_a_peer_may_leave_a_prompt_unanswered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others' answers count, it goes on with the next prompt, and the reason is told."""
    target = write_tiny(tmp_path / "a.gguf", context=512)
    asked = "".join(f'{{"turns": ["{text}"]}}\n' for text in ("Hi.", "Ho.", "Ha."))
    (tmp_path / "p.jsonl").write_text(asked, encoding="utf-8")
    (tmp_path / "it.py").write_text(PEER, encoding="utf-8")
    args = (
        "bench", "--target", target, "--lookahead", "1", "--threads", "1", "--tokens", "2",
        "--prompts", tmp_path / "p.jsonl", "--peer", f"{tmp_path / 'it.py'}:picky",
        "--out", tmp_path / "out",
    )  # fmt: skip
    code, shown, err = in_process(capsys, *args)
    assert code == 0, err
    trials = files.read([tmp_path / "out"]).trials
    assert [len(trial.answers) for trial in trials] == [2, 3, 2]
    says = "it/picky gave no answer 2 of 3 times: it can't do this: ValueError: not this one"
    assert says in shown.splitlines()
    assert err.count("it/picky gave no answer to ") == 1  # told when it first happens
    assert escape(says) in (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert in_process(capsys, *args)[1] == shown  # nothing is asked again


def test_a_setting_that_left_a_prompt_unanswered_is_not_the_best(tmp_path: Path) -> None:
    """It would stand for all prompts by the few that it answered."""
    results = many(tmp_path)
    trials = [trial for trial in results.trials if trial.context is None]
    for i, trial in enumerate(trials):
        if i:
            trial.unanswered["peer<i>/fast"] = "it can't"
        else:
            trial.answers.append(Answer("peer<i>/fast", [1, 2], "", "length", 0.1, 1e-6))
    theirs = ["peer<i>/draft-1", "peer<i>/fast"]
    assert beside.best_side(results, "pair", theirs, "all") == "peer<i>/draft-1"
    for trial in trials:
        trial.unanswered["peer<i>/draft-1"] = "nor can it"
    assert beside.best_side(results, "pair", theirs, "all") == "peer<i>/fast"


def test_what_was_measured_is_shown_whatever_became_of_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def run_pair(named: driver.Named, options: object, writer: Writer, *_: object) -> None:
        done.append(named.name)
        runtime, *_ = fake_runtime()
        writer.append(Pair(named.name, {"name": "x", "sha256": "0"}, [], {}, ["plain"]))
        measure(runtime, sides(runtime), replace(plan(), pair=named.name), writer)
        if named.name == stops:
            raise failure

    monkeypatch.setattr(driver, "run_pair", run_pair)
    stops, failure = "a", EdgespecError("the peer died")
    out = tmp_path / "one"
    code, shown, err = in_process(capsys, "bench", "a", "b", "--out", out)
    assert (code, done) == (1, ["a", "b"])
    assert shown.count("lookup+model:3, reading of the prompts included") == 2
    assert err.splitlines()[-1] == "not measured, or not to its end: a: the peer died"
    assert (out / "report.html").exists()
    done.clear()
    stops, failure = "a", KeyboardInterrupt()  # type: ignore[assignment]
    code, shown, err = in_process(capsys, "bench", "a", "b", "--out", tmp_path / "two")
    assert (code, done) == (130, ["a"]) and "keeps what was measured" in err
    assert "lookup+model:3" in shown and (tmp_path / "two" / "report.html").exists()


def test_stopped_before_anything_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "run_pair", stopped)
    code, shown, err = in_process(capsys, "bench", "a", "--out", tmp_path / "o")
    assert (code, shown) == (130, "") and not (tmp_path / "o").exists()
    assert "nothing was measured yet" in err and "keeps what was measured" not in err


def test_no_peer_outlives_a_failure_to_start_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_tiny(tmp_path / "a.gguf", context=512)
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(PEER, encoding="utf-8")
    (tmp_path / "second.py").write_text("import sys; sys.exit(3)", encoding="utf-8")
    started: list[Peer] = []
    real = Peer.ask
    monkeypatch.setattr(
        Peer, "ask", lambda peer, asked: (started.append(peer), real(peer, asked))[1]
    )
    asked = prompts.PromptSet("x", "0", (prompts.Prompt("p", "c", ("Hi.",)),))
    options = driver.Options(
        asked, lookaheads=[1], threads=1, max_tokens=2, environments=tmp_path,
        peers=[(tmp_path / "first.py", None), (tmp_path / "second.py", None)],
    )  # fmt: skip
    (named,) = named_pairs([], str(target), [])
    with Writer(tmp_path / "o") as writer, pytest.raises(ConfigError, match="second could not be"):
        driver.run_pair(named, options, writer, lambda _: None, lambda *_: None)
    (peer,) = started
    assert peer._process.returncode is not None


def test_starting_a_process_is_no_answers_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Meter:
        spent = 0.0

        def joules(self) -> float:
            self.spent += 5.0
            return self.spent

    class Stub:
        name, started, starts = "it", True, 1

        def be_there(self) -> None:
            pass

        def ask(self, request: dict[str, object]) -> dict[str, object]:
            return {"tokens": [1], "started": self.started}

    monkeypatch.setattr(peers, "EnergyMeter", Meter)
    stub = Stub()
    side = PeerSide(stub, "plain")  # type: ignore[arg-type]
    assert side.answer([1], 1, GREEDY).joules is None
    stub.started = False
    assert side.answer([1], 1, GREEDY).joules == 5.0


def test_a_peer_that_hangs_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\nif '--make' in sys.argv: print(sys.executable)\n"
        "else: sys.stdin.readline(), time.sleep(600)",
        encoding="utf-8",
    )
    with pytest.raises(EdgespecError, match="slow gave no reply within"):
        Peer(script, tmp_path, tmp_path / "slow.log", {}, patience=0.2)


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups there")
def test_a_peer_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "if '--make' in sys.argv: print(sys.executable); sys.exit()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('{\"settings\": []}', flush=True)\n"
        "time.sleep(600)",
        encoding="utf-8",
    )
    peer = Peer(script, tmp_path, tmp_path / "slow.log", {}, patience=60)
    child = int((tmp_path / "pid").read_text())
    os.kill(child, 0)
    peer._patience = 0.2
    with pytest.raises(EdgespecError, match="gave no reply"):
        peer.ask({})
    peer.close()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return  # dead, and nobody has asked yet
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("it lives on")


def test_what_cannot_work_is_said_before_a_peer_is_loaded(tmp_path: Path) -> None:
    target = write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "it.py").write_text(
        f"open({str(tmp_path / 'made')!r}, 'w')\n" + PEER, encoding="utf-8"
    )
    options = driver.Options(
        prompts.PromptSet("x", "0", (prompts.Prompt("p", "c", ("Hi.",)),)), threads=1,
        groups=[("lookpu",)], lookaheads=[2], environments=tmp_path,
        peers=[(tmp_path / "it.py", None)],
    )  # fmt: skip
    (named,) = named_pairs([], str(target), [])
    with Writer(tmp_path / "o") as writer, pytest.raises(ConfigError, match="no drafter 'lookpu'"):
        driver.run_pair(named, options, writer, lambda _: None, lambda *_: None)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["smollm2"], "smollm2 has no drafter 'model' (it has: lookup): change --drafters, or name "
         "its target's file with --target and a drafter's with --drafter"),
        (["--target", "none.gguf"], "has no drafter 'model' (it has: lookup): change --drafters, "
         "or add one with --drafter"),
    ],
)  # fmt: skip
def test_a_drafter_that_a_pair_lacks_is_told_before_anything_is_read(
    args: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "find_files", lambda *_, **__: pytest.fail("it looked for files"))
    code, shown, err = in_process(capsys, "bench", *args, "--drafters", "lookup,model",
                                  "--out", tmp_path / "o")  # fmt: skip
    assert (code, shown) == (1, "") and says in err
    assert not (tmp_path / "o").exists()


def test_plain_against_itself_where_nothing_can_draft(tmp_path: Path) -> None:
    target = FakeSession(260, bias={257: -9.0, 259: -9.0}, can_rollback=False)
    runtime = Runtime(fake_model(target), [])
    options = driver.Options(prompts.PromptSet("x", "0", ()), lookaheads=[0])
    wanted = settings(driver._groups(options, runtime), options.lookaheads)
    assert [setting.name for setting in wanted] == ["plain again"]
    assert list(cost_curves(runtime, "pair", sizes=(1, 2), behind=8, turns=1)) == []


def test_threads_wait_as_when_a_pair_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in platform.WAITING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "_OWN", set())
    settings = {"code": "c", "omp_wait_policy": None, "gomp_spincount": "1000"}
    one = Pair("p", {"sha256": "t"}, [], settings, ["plain"])
    with Writer(tmp_path) as writer:
        writer.append(one)
        writer.append(Trial("p", "a", "c", 0, 0, 3, "now", []))
        pairs = [driver.Named("p", "p", None, None)]
        driver.wait_as_before(writer, pairs)
        assert os.environ["GOMP_SPINCOUNT"] == "1000"
        assert "GOMP_SPINCOUNT" not in platform.users_environment()
        monkeypatch.setattr(platform, "_OWN", set())  # now it is the person's
        monkeypatch.setenv("GOMP_SPINCOUNT", "5")
        driver.wait_as_before(writer, pairs)
        assert os.environ["GOMP_SPINCOUNT"] == "5"
        now = replace(one, settings=settings | {"gomp_spincount": "5"})
        with pytest.raises(ConfigError, match=r"choose another --out, or set GOMP_SPINCOUNT=1000"):
            driver._same_conditions(writer, now)
        # Another path to the same prompts is no other condition.
        for prompts_, sha, refused in (("p.jsonl", "1", False), ("./p.jsonl", "1", False),
                                       ("p.jsonl", "2", True)):  # fmt: skip
            asked = {"prompts": prompts_, "prompts_sha256": sha}
            before = replace(one, settings=settings | {"prompts": "p.jsonl", "prompts_sha256": "1"})
            assert bool(record.first_change(before, replace(one, settings=settings | asked))) == (
                refused
            )


def test_words_that_utf8_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_pair(named: driver.Named, options: object, writer: Writer, *_: object) -> None:
        runtime, *_ = fake_runtime()
        writer.append(Pair(named.name, {"name": "x", "sha256": "0"}, [], {}, ["plain"]))
        measure(runtime, sides(runtime), replace(plan(), pair=named.name), writer)

    monkeypatch.setattr(driver, "run_pair", run_pair)
    monkeypatch.setattr(sys, "argv", ["edgespec", "bench", "\udcff"])
    out = tmp_path / "o"
    assert in_process(capsys, "bench", "smollm2", "--out", out)[0] == 0
    assert files.read([out]).runs[0].command == ["edgespec", "bench", "'?'"]
    assert "&#x27;?&#x27;" in (out / "report.html").read_text("utf-8")


def test_progress_stays_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    told = progress.Progress("a pair with a name that is long " * 3)
    told(1, 5, "kind\x1b[2J", 5.0)
    told.close()
    told.close()
    line, end = shown.getvalue().split("\n")
    assert len(line) == 80 and line[0] == "\r" and end == ""
    shown.truncate(0), shown.seek(0)
    told = progress.Progress("p")
    told(1, 5, "kind\x1b[2J", 5.0)
    assert "\x1b" not in shown.getvalue() and "\n" not in shown.getvalue()
    told(5, 5, "", 0.0)
    told.close()
    assert shown.getvalue().count("\n") == 1


def test_a_message_in_between_has_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a terminal, where the line that says how far it is stays open."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    target = write_tiny(tmp_path / "a.gguf", context=512)
    (tmp_path / "p.jsonl").write_text('{"turns": ["Hi."]}\n{"turns": ["Ho."]}\n', "utf-8")
    (tmp_path / "it.py").write_text(PEER, encoding="utf-8")
    code, _, err = in_process(
        capsys, "bench", "--target", target, "--lookahead", "1", "--threads", "1", "--tokens", "2",
        "--prompts", tmp_path / "p.jsonl", "--peer", f"{tmp_path / 'it.py'}:picky",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0 and "\ra: 0 of 2 prompts" in err, err
    assert re.search(r"^it/picky gave no answer to line 1", err, re.MULTILINE), err


def test_wide_characters_stay_on_their_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)

    def cells(text: str) -> int:
        return sum(1 + (letter in "模型🦊") for letter in text)

    told = progress.Progress("模型🦊" * 20)
    told(1, 5, "", None)
    told(2, 5, "", None)
    told.close()
    first, second = shown.getvalue().rstrip("\n").split("\r")[1:]
    assert cells(first) == cells(second) == 79 and first.startswith("模型🦊" * 13)
    shown.truncate(0), shown.seek(0)
    told = progress.Progress("模型")
    told(1, 5, "模型模型", None)
    told(2, 5, "a", None)  # covers the longer line before it, to the cell
    first, second = shown.getvalue().split("\r")[1:]
    assert second.endswith("a" + 7 * " ") and cells(first) == cells(second)


def test_peer_scripts_need_the_standard_library_alone() -> None:
    """They start in environments that hold nothing of ours, and import their own only to load."""
    import ast

    folder = Path(__file__).parents[1] / "benchmarks/peers"
    scripts = sorted(folder.glob("*.py"))
    assert len(scripts) >= 5
    for script in scripts:
        for node in ast.parse(script.read_text("utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {name.split(".")[0] for name in names}
            assert tops <= sys.stdlib_module_names | {s.stem for s in scripts}, script
