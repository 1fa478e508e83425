"""The planner on simulated machines and texts: what it loses, what it follows, what it never does.

Seeds are fixed and nothing here reads a real clock, so the figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from chance import fit
from fakes import FakeSession, PieceTokenizer, fake_model
from interrupting import Interrupted, at_each_bytecode
from simulator import (
    FAR,
    LOOKAHEADS,
    MACHINES,
    PROCESSES,
    Game,
    Machine,
    Played,
    Text,
    alternating,
    fixed_rounds,
    make_text,
    oracle_cost,
)

from edgespec.adaptive import MAX_LOOKAHEAD, AdaptivePlanner
from edgespec.categorical import Categorical
from edgespec.confidence import MATCH_EDGES, MATCH_PRIOR, NEAR_OUTLOOK, Calibration, Outlook
from edgespec.costs import Costs
from edgespec.decode import decode
from edgespec.drafters import GoOn
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drawing import Drawing
from edgespec.experience import Experience, ModelRates
from edgespec.parking import Parking
from edgespec.planner import FixedPlanner, Outcome, Seconds
from edgespec.sampling import GREEDY, Sampler, SamplingParams
from edgespec.session import CachedSession, TokenBuffer
from edgespec.text import TextStream
from edgespec.verify import NO_DRAFT, Draft, Verdict, verify_rejection
from edgespec.worth import Choices

BOTH = ("lookup", "model")


def play(
    machine: Machine | str, process: str, names: Sequence[str], seed: int = 0, **options: Any
) -> tuple[Text, list[Played], AdaptivePlanner]:
    machine = MACHINES[machine] if isinstance(machine, str) else machine
    rng = np.random.default_rng(seed)
    text = make_text(PROCESSES[process], rng, **options)
    planner = AdaptivePlanner(machine.measured(rng))
    return text, Game(machine, text, seed + 1).play(planner, names), planner


def best_fixed(machine: Machine, text: Text, names: Sequence[str]) -> dict[int, float]:
    """The rounds of the best fixed choice in hindsight, by position."""
    choices = [(name, k) for name in names for k in LOOKAHEADS]
    return min((fixed_rounds(machine, text, *c) for c in choices), key=lambda r: sum(r.values()))


def cost(rounds: Sequence[Played], begin: int = 0, end: int = 1 << 30) -> float:
    return sum(r.cost for r in rounds if begin <= r.at < end)


@pytest.mark.parametrize(
    ("machine", "process", "names"),
    [
        ("f16", "steady 0.6", ["model"]),
        ("f16", "code/prose", BOTH),
        ("f16", "copying", BOTH),
        ("q4_1", "copying", ["lookup"]),
        ("q4_k_m", "steady 0.8", ["model"]),
        ("gpu", "steady 0.95", ["model"]),
        ("gpu", "bursty", BOTH),
        ("apple", "steady 0.95", ["model"]),
        ("noisy f16", "bursty", ["model"]),
        ("throttled f16", "copying", BOTH),
        ("crowded f16", "steady 0.8", ["model"]),
        ("stale f16", "steady 0.8", ["model"]),
    ],
)
def test_regret_is_at_most_5_percent(machine: str, process: str, names: Sequence[str]) -> None:
    for seed in range(2):
        text, rounds, _ = play(machine, process, names, seed)
        best = sum(best_fixed(MACHINES[machine], text, names).values())
        assert cost(rounds) <= best / 0.95
        assert cost(rounds) >= oracle_cost(MACHINES[machine], text, names)


def test_far_behind_a_text_no_draft_is_lost_on_what_batches_cost_behind_a_short_one() -> None:
    """There a batch costs as much as its tokens; what was measured at the start says otherwise."""
    for seed in range(4):
        text, rounds, _ = play("far q4_1", "steady 0.6", ["lookup"], seed, answers=((8000, 128),))
        assert cost(rounds) <= sum(tokens for _, tokens in text.answers) / 0.98


def test_far_behind_a_text_batches_that_stay_cheap_are_found_out() -> None:
    for seed in range(3):
        text, rounds, _ = play("far gpu", "copying", ["lookup"], seed, **FAR)
        assert (
            cost(rounds) <= sum(best_fixed(MACHINES["far gpu"], text, ["lookup"]).values()) / 0.95
        )


@pytest.mark.parametrize("machine", ["q4_k_m", "gpu", "apple", "f16"])
def test_a_useless_drafter_costs_at_most_2_percent(machine: str) -> None:
    for seed in range(3):
        text, rounds, _ = play(machine, "useless", ["model"], seed)
        assert cost(rounds) <= sum(t for _, t in text.answers) / 0.98
        assert sum(bool(r.drafted) for r in rounds[-200:]) <= 10


@pytest.mark.parametrize("machine", ["apple", "gpu", "f16"])
def test_a_switch_is_followed_within_60_tokens(machine: str) -> None:
    """From 60 tokens behind each switch on, it does about as well as the best choice there."""
    every, seeds = 400, 4
    ours, theirs = {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        text = make_text(
            alternating(0.1, 0.95, (every, every), fixed=True), rng, answers=((90, 1600),)
        )
        planner = AdaptivePlanner(MACHINES[machine].measured(rng))
        rounds = Game(MACHINES[machine], text, seed).play(planner, ["model"])
        fixed = [fixed_rounds(MACHINES[machine], text, "model", k) for k in range(13)]
        for kind, begin in ((1, every), (0, 2 * every), (1, 3 * every)):
            stretch = range(begin + 60, begin + every)
            ours[kind] += cost(rounds, stretch.start, stretch.stop)
            theirs[kind] += min(
                sum(c for at, c in rounds_.items() if at in stretch) for rounds_ in fixed
            )
    assert ours[0] <= theirs[0] / 0.95  # it has parked
    assert ours[1] <= theirs[1] / 0.95  # it drafts


def test_parked_it_asks_the_model_for_next_to_nothing() -> None:
    _, rounds, _ = play("q4_k_m", "useless", ["model"], answers=((90, 3000),))
    late = [r for r in rounds if r.at > 300]
    lost = cost(late) - len(late)  # over plain rounds, which cost 1 each
    assert lost <= 0.01 * cost(late)


def test_probes_find_a_drafter_that_the_target_says_nothing_about() -> None:
    """Parked, with the target's certainty telling nothing, only probes can wake it.

    Where the prompt of each answer is dear to read (f16), they are too rare for that.
    """
    process = alternating(0.03, 0.95, (1500, 1500), fixed=True)
    spent = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        text = make_text(process, rng, answers=((90, 128),) * 23, informed=0.0, certain=0.0)
        planner = AdaptivePlanner(MACHINES["gpu"].measured(rng))
        spent += cost(Game(MACHINES["gpu"], text).play(planner, ["model"]), 1500, 2900)
    assert spent < 0.9 * 3 * 1400


def test_plain_rounds_are_seen_while_drafting_for_half_a_percent_of_the_time() -> None:
    _, rounds, _ = play("gpu", "steady 0.95", ["model"])
    late = [r for r in rounds if r.at > 100]
    plain = [r for r in late if not r.drafted]
    speed = sum(1 + r.stood for r in late) / cost(late)
    assert len(plain) >= 2
    assert sum(1 - 1 / speed for _ in plain) <= 0.005 * cost(late)


class Asked:
    """A model drafter that owes a given number of tokens and would stand every time."""

    name, free, failed = "model", False, ""

    def __init__(self, owed: int) -> None:
        self.owed, self.sizes = owed, list[int]()

    def begin(self, length: int) -> None:
        pass

    def propose(
        self,
        tokens: Any,
        max_tokens: int,
        sampler: Any,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        size = 1
        while size < max_tokens and go_on and go_on(0, 9.5):
            size += 1
        self.sizes.append(size)
        return Draft((0,) * size, None, "model", (9.5,) * size)

    def owes(self, tokens: Any, *, near: bool = False) -> int:
        return self.owed

    def close(self) -> None:
        pass


def quick_costs() -> Costs:
    rng = np.random.default_rng(0)
    return replace(MACHINES["f16"], noise=0.0).measured(rng)


def text_of(length: int) -> Any:
    return np.zeros(length, np.int32)


def test_it_never_drafts_without_room_nor_beyond_it() -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(1)
    planner.begin(50)
    sampler = Sampler(GREEDY, 4)
    assert planner.draft({"model": drafter}, text_of(50), 0, sampler) == NO_DRAFT
    assert planner.draft({"model": drafter}, text_of(50), -1, sampler) == NO_DRAFT
    assert drafter.sizes == []
    for room in (1, 2, 5, 40):
        drafted = planner.draft({"model": drafter}, text_of(50), room, sampler)
        assert 1 <= len(drafted) <= min(room, MAX_LOOKAHEAD)


def test_a_room_of_one_takes_one_token_of_a_guess() -> None:
    planner = AdaptivePlanner(quick_costs())
    tokens = np.array([5, 6, 7, 8, 9, 1, 2, 3, 4] * 3, np.int32)
    planner.begin(len(tokens))
    drafted = planner.draft({"lookup": LookupDrafter()}, tokens, 1, Sampler(GREEDY, 16))
    assert drafted.tokens == (5,)


@pytest.mark.parametrize(
    ("owed", "room", "asked"),
    [(1, 1000, True), (50, 1000, True), (3000, 1000, False), (120, 1000, True), (120, 7, False)],
)
def test_what_it_owes_and_how_much_may_follow_decide_whether_a_drafter_is_asked(
    owed: int, room: int, asked: bool
) -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(owed)
    planner.begin(3000)
    planner.draft({"model": drafter}, text_of(3000), room, Sampler(GREEDY, 4))
    assert bool(drafter.sizes) == asked


class ReadsPart(Asked):
    """A model drafter behind a long prompt, which can do with the end of it."""

    def __init__(self, long: int, short: int) -> None:
        super().__init__(long)
        self.short, self.asked_near = short, list[bool]()

    def propose(
        self,
        tokens: Any,
        max_tokens: int,
        sampler: Any,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        self.asked_near.append(near)
        self.owed, self.short = (self.owed, 1) if near else (1, 1)
        return super().propose(tokens, max_tokens, sampler, go_on, near=near)

    def owes(self, tokens: Any, *, near: bool = False) -> int:
        return self.short if near else self.owed


@pytest.mark.parametrize(
    ("long", "short", "near"), [(900, 132, True), (270, 132, False), (900, 600, None)]
)
def test_behind_a_long_prompt_a_drafter_reads_its_end_where_all_of_it_is_too_dear(
    long: int, short: int, near: bool | None
) -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), ReadsPart(long, short)
    planner.begin(long)
    planner.draft({"model": drafter}, text_of(long), 1000, Sampler(GREEDY, 4))
    assert drafter.asked_near == ([] if near is None else [near])


@pytest.mark.parametrize(("long", "ways"), [(40, 1), (263, 1), (265, 2)])
def test_a_drafter_does_with_less_only_where_that_is_less_than_half(long: int, ways: int) -> None:
    choices = Choices(quick_costs(), Experience(), 1.0, text_of(long), 31)
    assert len(choices.asking(ReadsPart(long, min(long, 132)))) == ways


@pytest.mark.parametrize(
    ("near_stands", "all_stands", "least"),
    [(1.0, 1.0, 2.0), (0.7, 0.85, 1.3), (0.35, 0.8, 0.97), (0.5, 0.5, 0.97), (0.0, 0.0, 0.97)],
)
def test_to_find_out_what_the_end_of_a_prompt_is_worth_costs_little(
    near_stands: float, all_stands: float, least: float
) -> None:
    """Eight answers of 128 tokens behind prompts of 900, of which the target is always sure."""
    planner, costs = AdaptivePlanner(quick_costs()), quick_costs()
    rng = np.random.default_rng(0)
    spent = plain = 0.0
    for _ in range(8):
        drafter, length = ReadsPart(900, 132), 901
        planner.begin(900)
        while length < 1028:
            owed, seconds, stood = (drafter.owed, drafter.short), 0.0, 0
            room = 1027 - length
            draft = planner.draft({"model": drafter}, text_of(length), room, Sampler(GREEDY, 4))
            if draft:
                near = drafter.asked_near[-1]
                rate = near_stands if near else all_stands
                while stood < len(draft) and rng.random() < rate:
                    stood += 1
                seconds = costs.draft("model", len(draft), owed[near], length)
            check = costs.seconds("check", len(draft) + 1, length)
            rows = np.zeros((len(draft) + 1, 4), np.float32)
            rows[:, 0] = 5.0
            planner.observe(
                Outcome(draft, Verdict(stood, 3), Seconds(seconds, check), length, rows)
            )
            spent += seconds + check
            plain += (stood + 1) * costs.seconds("check", 1, length)
            length += stood + 1
    assert plain / spent > least


def test_what_was_owed_is_no_longer_told_once_it_is_read() -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), ReadsPart(270, 132)
    planner.begin(270)
    assert planner.status().reason == ""
    assert planner.draft({"model": drafter}, text_of(271), 0, Sampler(GREEDY, 4)) == NO_DRAFT
    assert planner.status().reason == ""  # nobody was asked
    draft = planner.draft({"model": drafter}, text_of(271), 1000, Sampler(GREEDY, 4))
    assert "read 270 tokens first" in planner.status().reason
    rows = np.zeros((len(draft) + 1, 4), np.float32)
    planner.observe(Outcome(draft, Verdict(len(draft), 3), Seconds(1.0, 0.2), 271, rows))
    assert planner.status().drafter == "model"
    assert "first" not in planner.status().reason


@pytest.mark.parametrize("stands", [True, False])
def test_what_a_drafter_is_worth_is_learnt_apart_where_it_knows_the_end_alone(
    stands: bool,
) -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), ReadsPart(900, 132)
    planner.begin(900)
    for length in range(901, 1000):
        draft = planner.draft({"model": drafter}, text_of(length), 1000, Sampler(GREEDY, 4))
        rows = np.zeros((len(draft) + 1, 4), np.float32)
        rows[:, 0] = 5.0  # a text of which the target is sure
        came = len(draft) if stands else 0
        planner.observe(
            Outcome(draft, Verdict(came, 3), Seconds(0.02 * len(draft), 0.15), length, rows)
        )
    assert all(drafter.asked_near)
    rates = planner._known.models
    assert (rates["model", True].outlook.rate > 0.9) == stands
    assert rates["model", False].confidence.rate(9.5) == planner._known.model(
        "other"
    ).confidence.rate(9.5)
    assert (len(drafter.sizes) > 90) == stands
    again = AdaptivePlanner(quick_costs())
    again.recall(planner.to_json())
    fresh, near = ModelRates(outlook=Outlook(NEAR_OUTLOOK)), again._known.model("model", near=True)
    assert (near.outlook.rate > fresh.outlook.rate) == stands
    assert near.outlook.rate != fresh.outlook.rate


def test_a_parked_model_is_probed_though_a_lookup_guesses_too() -> None:
    """The lookup's bad guesses must not use up what there is for finding out about the model."""
    tokens = np.array([5, 6, 7, 8, 9, 1, 2, 3, 4] * 30, np.int32)
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(20)
    drafters = {"lookup": LookupDrafter(), "model": drafter}
    planner.begin(len(tokens))
    probes = []
    for k in range(3000):
        draft = planner.draft(drafters, tokens, 1000, Sampler(GREEDY, 16))
        rows = np.zeros((len(draft) + 1, 16), np.float32)
        seconds = 0.1 + 0.1 * len(draft)
        planner.observe(Outcome(draft, Verdict(0, 0), Seconds(0.02, seconds), len(tokens), rows))
        if draft.drafter == "model":
            probes.append(k)
    late = [k for k in probes if k > 500]
    assert 1 <= len(late) <= 100


class Scripted(Asked):
    """A model drafter that draws given tokens, under a distribution where it is asked for one."""

    def __init__(self, drawn: Sequence[int], probs: Any = None) -> None:
        super().__init__(1)
        self.drawn, self.probs = drawn, probs

    def propose(
        self,
        tokens: Any,
        max_tokens: int,
        sampler: Any,
        go_on: GoOn | None = None,
        *,
        near: bool = False,
    ) -> Draft:
        size = 1
        while (
            size < min(max_tokens, len(self.drawn)) and go_on and go_on(self.drawn[size - 1], 9.5)
        ):
            size += 1
        probs = None if self.probs is None else (self.probs,) * size
        return Draft(tuple(self.drawn[:size]), probs, "model", (9.5,) * size)


def forked() -> tuple[Any, list[int]]:
    """A text with the same words twice, going on in two ways, and once more at its end; the first
    of the two ways is what comes.
    """
    words, ways = range(12, 24), ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 7, 5, 3, 1])
    return np.array([*words, *ways[0], 24, *words, *ways[1], 25, *words], np.int32), ways[0]


def test_what_a_model_drew_is_continued_with_words_that_came_before() -> None:
    tokens, follows = forked()
    planner, drafter = AdaptivePlanner(quick_costs()), Scripted([follows[0], 31, 31, 31])
    planner.begin(len(tokens))
    lookup, sampler = LookupDrafter(), Sampler(GREEDY, 32)

    def play(drafters: Any, text: Any, coming: Sequence[int]) -> Draft:
        draft = planner.draft(drafters, text, 7, sampler)
        stood = next((i for i, t in enumerate(draft.tokens) if t != coming[i]), len(draft))
        rows = np.zeros((len(draft) + 1, 32), np.float32)
        drawn = 0 if draft.drafter == "lookup" else len(draft) - draft.copied
        drafting = planner.costs.draft("model", drawn, 1, 64) if drawn else 0.0
        check = planner.costs.expected(len(draft) + 1, 64)
        planner.observe(
            Outcome(draft, Verdict(stood, coming[stood]), Seconds(drafting, check), len(text), rows)
        )
        return draft

    for _ in range(20):  # copying is found to work
        play({"lookup": lookup}, np.array([*range(12)] * 2, np.int32), [*range(12)])
    drafts = [play({"lookup": lookup, "model": drafter}, tokens, follows) for _ in range(60)]
    draft = next(draft for draft in drafts if draft.copied)
    assert draft.drafter == "model+lookup" and draft.probs is None
    assert draft.tokens == tuple(follows[: len(draft)])
    assert draft.copied == len(draft) - 1 >= 2


def test_a_continued_draft_leaves_the_targets_distribution_alone() -> None:
    rng = np.random.default_rng(5)
    drawn_from = Categorical(None, np.array([0.1, 0.6, 0.2, 0.1]))
    first = np.array([0.4, 0.3, 0.2, 0.1])  # the target's first word, and its second behind each
    second = np.array(
        [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.0, 0.5, 0.5, 0.0]]
    )
    pairs = []
    for _ in range(40_000):
        token = drawn_from.draw(rng)
        drawn = Draft((token,), (drawn_from,), "model", (1.0,))
        draft = drawn.followed_by(Draft(((token + 1) % 4,), None, "lookup", (3.0,)))
        rows = [first, second[token], np.full(4, 0.25)]
        verdict = verify_rejection(draft, lambda i, rows=rows: Categorical(None, rows[i]), rng)
        came = [*draft.tokens[: verdict.num_accepted], verdict.next_token]
        if len(came) == 1:
            came.append(Categorical(None, second[came[0]]).draw(rng))
        pairs.append((came[0], came[1]))
    wanted = {(i, j): first[i] * second[i][j] for i in range(4) for j in range(4)}
    assert fit(pairs, wanted).good


class Counted(LookupDrafter):
    """Counts how often it is asked."""

    asked = 0

    def propose(self, *args: Any, **kwargs: Any) -> Draft:
        self.asked += 1
        return super().propose(*args)


@pytest.mark.parametrize(("looking", "most"), [(0.0, 400), (0.2, 40)])
def test_parked_it_looks_seldom_where_looking_is_dear(looking: float, most: int) -> None:
    """`looking` in plain rounds; the text has nothing to copy until its end."""
    planner, lookup = AdaptivePlanner(quick_costs()), Counted()
    rng = np.random.default_rng(0)
    text = np.concatenate([rng.permutation(4000), np.arange(40), np.arange(40)]).astype(np.int32)
    drafts, sampler = 0, Sampler(GREEDY, 5000)
    planner.begin(0)
    for length in [*range(1, 401), *range(4040, 4080)]:
        draft = planner.draft({"lookup": lookup}, text[:length], 100, sampler)
        if length == 400:
            assert most * 0.9 <= lookup.asked <= most
        seconds = looking * planner.costs.expected(1, length) if not draft else 0.0
        check = planner.costs.expected(len(draft) + 1, length)
        rows = np.zeros((len(draft) + 1, 2), np.float32)
        follows = int(text[min(length + len(draft), len(text) - 1)])
        planner.observe(
            Outcome(draft, Verdict(len(draft), follows), Seconds(seconds, check), length, rows)
        )
        drafts += bool(draft)
    assert drafts >= 3  # what there is to copy is found soon all the same


class Watched(ModelDrafter):
    """Keeps what it drew."""

    def propose(self, *args: Any, **kwargs: Any) -> Draft:
        self.drawn = super().propose(*args)
        return self.drawn


class Watcher(AdaptivePlanner):
    """Compares what went to the check with what was drawn."""

    def __init__(self, drafter: Watched) -> None:
        super().__init__(quick_costs())
        self.drafter, self.sizes = drafter, list[int]()

    def observe(self, outcome: Outcome) -> None:
        if outcome.draft.drafter == "model":
            assert outcome.draft is self.drafter.drawn
            assert outcome.draft.probs is not None
            self.sizes.append(len(outcome.draft))
        super().observe(outcome)


def test_a_drawn_token_always_goes_to_the_check() -> None:
    drafter = Watched(fake_model(FakeSession(16, noise=0.1, scale=5.0)))
    planner = Watcher(drafter)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3, rule="rejection")
    run_loop(planner, {"model": drafter}, params)
    assert len(set(planner.sizes)) > 1  # it did stop early, and at different lengths


def run_loop(planner: Any, drafters: Any, params: SamplingParams) -> list[int]:
    prompt = [1, 2, 3, 4, 2, 3]
    tokens = TokenBuffer(prompt)
    pieces = [bytes([97 + i]) for i in range(16)]
    looks = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.decode.perf_counter", lambda: 0.05 * next(looks))
        for _ in decode(
            CachedSession(FakeSession(16, scale=5.0)),
            tokens,
            sampler=Sampler(params, 16, prompt),
            planner=planner,
            drafters=drafters,
            cut=TextStream(PieceTokenizer(pieces), max_tokens=150).cut,
        ):
            pass
    return tokens.view.tolist()


def test_the_real_loop_gives_the_targets_text() -> None:
    plain = run_loop(FixedPlanner((), 0), {}, GREEDY)
    drafters = {
        "lookup": LookupDrafter(),
        "model": ModelDrafter(fake_model(FakeSession(16, noise=0.3))),
    }
    assert run_loop(AdaptivePlanner(quick_costs()), drafters, GREEDY) == plain


def test_a_calibration_learns_what_a_confidence_is_worth() -> None:
    rng = np.random.default_rng(0)
    rates = Calibration(MATCH_EDGES, [0.2] * 5 + [0.6] * 5 + [0.9])
    assert rates.rate(1) == pytest.approx(0.2) and rates.rate(33) == pytest.approx(0.9)
    for _ in range(400):
        rates.learn(1.0, bool(rng.random() < 0.8))
        rates.learn(33.0, bool(rng.random() < 0.2))
    # Some 33 weighted outcomes and 3 of the prior: a standard error of 0.05, and four of them.
    assert rates.rate(1) == pytest.approx(0.75, abs=0.2)
    assert rates.rate(33) == pytest.approx(0.26, abs=0.2)
    assert rates.rate(10) == pytest.approx(0.6)  # untouched


def test_an_answer_of_another_kind_is_learnt_soon_and_weighs_as_one() -> None:
    rates = Calibration(MATCH_EDGES, MATCH_PRIOR)
    for stands, outcomes in ((True, 300), (False, 10), (True, 5)):
        rates.begin()
        for _ in range(outcomes):
            rates.learn(4.0, stands)
        assert (rates.rate(4.0) > 0.7) == stands
    rates.begin()
    # Of three answers two went well, however many outcomes each had.
    assert 0.5 < rates.rate(4.0) < 0.8


def test_an_outlook_follows_a_change_and_remembers_what_is_usual() -> None:
    outlook = Outlook()
    assert outlook.rate == pytest.approx(0.7, abs=0.01)
    for _ in range(40):
        outlook.learn(1, 0)
    assert outlook.rate > 0.9
    for _ in range(12):
        outlook.learn(0, 1)
    assert outlook.rate < 0.3
    steady, fresh = Outlook(), Outlook()
    for _ in range(200):
        steady.learn(1, 0)
        fresh.learn(1, 0, tried=False)
    for one in (steady, fresh):
        for _ in range(3):
            one.learn(0, 1)
    assert steady.rate > fresh.rate + 0.1  # a few misses weigh less in a drafter known as good


def test_the_status_says_what_it_does_and_why() -> None:
    text, rounds, planner = play("gpu", "steady 0.95", ["model"])
    status = planner.status()
    assert (status.drafter, status.parked) == ("model", False)
    assert status.lookahead == [r.drafted for r in rounds if r.drafted][-1]
    assert "from model should add" in status.reason and "more than" in status.reason
    begin = sum(tokens for _, tokens in text.answers[:-1])
    last = [r for r in rounds if r.at >= begin]
    real = len(last) + sum(r.stood for r in last)
    assert status.gain == pytest.approx(real / cost(last), rel=0.15)

    _, _, planner = play("q4_k_m", "useless", ["model"])
    status = planner.status()
    assert (status.drafter, status.lookahead, status.parked) == ("", 0, True)
    assert "no more than" in status.reason and "would have to read" in status.reason
    assert status.gain == pytest.approx(1.0, abs=0.05)


def test_why_it_parked_is_still_known_after_an_answer_that_met_its_limit() -> None:
    _, _, planner = play("q4_k_m", "useless", ["model"])
    before = planner.status().reason
    assert planner.draft({"model": Asked(1)}, text_of(50), 0, Sampler(GREEDY, 4)) == NO_DRAFT
    rows = np.zeros((1, 4), np.float32)
    planner.observe(Outcome(NO_DRAFT, Verdict(0, 1), Seconds(0.0, 0.1), 50, rows))
    assert planner.status().reason == before != "no drafter has a guess"


def test_a_long_read_that_is_not_worth_it_is_named() -> None:
    """A draft would pay, but not what must be read first for so few tokens: the words say so."""
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(16)
    planner.begin(50)
    for _ in range(12):
        draft = planner.draft({"model": drafter}, text_of(50), 1, Sampler(GREEDY, 4))
        assert draft == NO_DRAFT
        planner.observe(
            Outcome(draft, Verdict(0, 1), Seconds(0.0, 0.1), 50, np.zeros((1, 4), np.float32))
        )
    reason = planner.status().reason
    assert "no more" not in reason and "but it would have to read 16 tokens first" in reason


def test_a_drafter_without_confidences_is_judged_by_what_stood() -> None:
    class Silent(Asked):
        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            return replace(super().propose(*args), confidence=())

    planner, drafter = AdaptivePlanner(quick_costs()), Silent(1)
    planner.begin(50)
    sizes = []
    for _ in range(40):
        draft = planner.draft({"model": drafter}, text_of(50), 8, Sampler(GREEDY, 4))
        check = planner.costs.expected(len(draft) + 1, 50)
        drafting = planner.costs.draft("model", len(draft), 1, 50) if draft else 0.0
        rows = np.zeros((len(draft) + 1, 4), np.float32)
        planner.observe(Outcome(draft, Verdict(len(draft), 0), Seconds(drafting, check), 50, rows))
        sizes.append(len(draft))
    assert min(sizes[-10:]) > 0  # all of it stood, so it isn't parked


def test_the_status_before_anything_is_known() -> None:
    planner = AdaptivePlanner(quick_costs())
    status = planner.status()
    assert (status.parked, status.reason, status.gain) == (True, "", None)
    planner.draft({"lookup": LookupDrafter()}, text_of(1), 9, Sampler(GREEDY, 4))
    assert planner.status().reason == "no drafter has a guess"
    assert FixedPlanner((), 0).status().parked
    assert FixedPlanner(["model"], 3).status().reason == "the lookahead is set to 3"


def answer(
    planner: AdaptivePlanner, drafters: dict[str, Any], tokens: int, behind: int = 90
) -> list[float]:
    """An answer in which no draft stands; what each round lost, in plain ones."""
    costs = planner.costs
    planner.begin(behind)
    lost = []
    for length in range(behind + 1, behind + tokens):
        draft = planner.draft(drafters, text_of(length), 10_000, Sampler(GREEDY, 4))
        drafting = costs.draft("model", len(draft), 1, length) if draft else 0.0
        check = costs.seconds("check", len(draft) + 1, length)
        rows = np.zeros((len(draft) + 1, 4), np.float32)
        planner.observe(Outcome(draft, Verdict(0, 1), Seconds(drafting, check), length, rows))
        lost.append((drafting + check) / costs.seconds("check", 1, length) - 1)
    return lost


def test_what_many_short_answers_saved_for_probes_isnt_spent_at_once() -> None:
    """A prompt that is dear to read keeps the probes out of short answers."""

    class Reads(Asked):
        def owes(self, tokens: Any, *, near: bool = False) -> int:
            return 1 if self.sizes else 400

    planner, drafter = AdaptivePlanner(quick_costs()), Reads(0)
    for _ in range(300):
        planner._known.model("model").outlook.learn(0, 1)
    for _ in range(200):
        assert sum(answer(planner, {"model": drafter}, 128)) == pytest.approx(0)
    lost = answer(planner, {"model": drafter}, 3000)
    assert drafter.sizes
    assert sum(lost) <= 0.03 * 3000
    behind = max(range(3000), key=lambda at: sum(lost[: at + 1]) - 0.03 * at)
    assert sum(lost[: behind + 1]) <= 0.03 * behind + 1


def test_a_round_in_which_the_program_was_held_up_hardly_counts() -> None:
    planner = AdaptivePlanner(quick_costs())
    planner.begin(90)
    plain = planner.costs.seconds("check", 1, 90)
    for k in range(100):
        draft = planner.draft({}, text_of(91 + k), 1000, Sampler(GREEDY, 4))
        seconds = 2000 * plain if k == 50 else plain
        planner.observe(
            Outcome(
                draft, Verdict(0, 0), Seconds(0.0, seconds), 91 + k, np.zeros((1, 4), np.float32)
            )
        )
    assert planner.status().gain == pytest.approx(1.0, abs=0.1)


def test_the_first_answer_behind_a_long_text_is_measured_by_what_plain_costs_there() -> None:
    planner = AdaptivePlanner(quick_costs())
    planner.begin(8000)
    seconds = 6 * planner.costs.seconds("check", 1, 100)
    for k in range(6):
        planner.draft({}, text_of(8001 + k), 1000, Sampler(GREEDY, 4))
        rows = np.zeros((1, 4), np.float32)
        planner.observe(Outcome(NO_DRAFT, Verdict(0, 0), Seconds(0.0, seconds), 8001 + k, rows))
    assert planner.status().gain == pytest.approx(1.0, abs=0.1)


def test_a_model_that_has_no_guess_is_soon_left_alone() -> None:
    class Mute(Asked):
        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            self.sizes.append(0)
            return NO_DRAFT

    planner, drafter = AdaptivePlanner(quick_costs()), Mute(1)
    planner.begin(50)
    asked = []
    for k in range(400):
        length, before = 51 + k, len(drafter.sizes)
        draft = planner.draft({"model": drafter}, text_of(length), 1000, Sampler(GREEDY, 4))
        assert not draft
        seconds = planner.costs.seconds("check", 1, length)
        rows = np.zeros((1, 4), np.float32)
        rows[:, 0] = 9.0  # the target is sure of itself: else it would be worth asking
        planner.observe(
            Outcome(draft, Verdict(0, 0), Seconds(0.1 * seconds, seconds), length, rows)
        )
        asked.append(len(drafter.sizes) - before)
    assert sum(asked[:100]) > 0 and sum(asked[100:]) <= 30


def test_a_model_that_failed_is_left_alone_and_thought_no_worse_of() -> None:
    class Fails(Asked):
        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            self.sizes.append(0)
            self.failed = "no memory"
            return NO_DRAFT

    planner, drafter = AdaptivePlanner(quick_costs()), Fails(1)
    planner.begin(50)
    planner._known.model("model")
    before = planner.to_json()["models"]
    for k in range(60):
        assert not planner.draft({"model": drafter}, text_of(51 + k), 999, Sampler(GREEDY, 4))
        seconds = planner.costs.seconds("check", 1, 51 + k)
        rows = np.zeros((1, 4), np.float32)
        planner.observe(Outcome(NO_DRAFT, Verdict(0, 0), Seconds(0.0, seconds), 51 + k, rows))
    assert len(drafter.sizes) == 1
    assert planner.to_json()["models"] == before


def test_a_model_that_fails_in_answer_after_answer_is_asked_ever_more_seldom() -> None:
    class Fails(Asked):
        def begin(self, length: int) -> None:
            self.failed = ""

        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            self.sizes.append(0)
            self.failed = "no numbers came"
            return NO_DRAFT

    planner, drafter = AdaptivePlanner(quick_costs()), Fails(1)
    asked = []
    for _ in range(40):
        drafter.begin(90)
        answer(planner, {"model": drafter}, 6)
        asked.append(len(drafter.sizes))
        gain = planner.status().gain
        assert gain is not None and "model failed" in planner.status().reason
    assert asked[1] == 2  # once may be chance
    assert asked[-1] <= 7
    healthy = Asked(1)
    for _ in range(40):
        healthy.failed = ""
        answer(planner, {"model": healthy}, 6)
    assert len(healthy.sizes) > 5  # and one that has mended is found out in time


def test_a_model_that_is_left_out_says_so() -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(1)
    planner._rests["model"] = 3
    for left_out in (True, True, False):
        planner.begin(90)
        drafter.failed = ""
        planner.draft({"model": drafter}, text_of(91), 9, Sampler(GREEDY, 4))
        assert bool(drafter.failed) == left_out  # an answer's notes have it


def test_what_reads_served_is_learnt_and_kept() -> None:
    """The same long prompts are read sooner once reads have served whole answers."""

    def first(planner: AdaptivePlanner, stands: bool) -> int:
        """An answer of 120 tokens; the length at which its prompt was read, 0 for never."""
        read, length = 0, 601
        drafter = ReadsPart(600, 600)
        planner.begin(600)
        while length < 720:
            draft = planner.draft({"model": drafter}, text_of(length), 200, Sampler(GREEDY, 4))
            read = read or (length if draft else 0)
            costs, stood = planner.costs, len(draft) if stands else 0
            drafting = costs.draft("model", len(draft), 1, length) if draft else 0.0
            rows = np.zeros((len(draft) + 1, 4), np.float32)
            rows[:, 0] = 9.0
            seconds = Seconds(drafting, costs.seconds("check", len(draft) + 1, length))
            planner.observe(Outcome(draft, Verdict(stood, 1), seconds, length, rows))
            length += stood + 1
        return read

    planner = AdaptivePlanner(quick_costs())
    before = planner.to_json()["served"]
    for _ in range(4):
        assert first(planner, stands=True)
    learnt = planner.to_json()
    assert learnt["served"] > 2 * before
    kept = AdaptivePlanner(quick_costs())
    kept.recall(learnt)
    assert kept.to_json()["served"] == learnt["served"]
    for part in (0.01, 1.5, float("nan")):
        with pytest.raises(ValueError, match="no part of it"):
            kept.recall({**learnt, "served": part})


def test_the_gain_counts_what_a_model_read_before_it_failed() -> None:
    class Fails(Asked):
        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            self.failed = "no numbers came"
            return NO_DRAFT

    planner, drafter = AdaptivePlanner(quick_costs()), Fails(120)
    costs = planner.costs
    planner.begin(500)
    reading = costs.draft("model", 1, 120, 501)
    plain = costs.seconds("check", 1, 501)
    assert reading > 6 * plain
    for k in range(20):
        planner.draft({"model": drafter}, text_of(501 + k), 999, Sampler(GREEDY, 4))
        rows = np.zeros((1, 4), np.float32)
        planner.observe(
            Outcome(NO_DRAFT, Verdict(0, 0), Seconds(0.0 if k else reading, plain), 501 + k, rows)
        )
    assert planner.status().gain == pytest.approx(20 / (20 + reading / plain), rel=0.05)


def test_a_draft_of_the_answer_before_isnt_shown() -> None:
    costs = quick_costs()
    for planner in (AdaptivePlanner(costs), FixedPlanner(["model"], 3)):
        planner.begin(90)
        draft = planner.draft({"model": Asked(1)}, text_of(91), 9, Sampler(GREEDY, 4))
        rows = np.zeros((len(draft) + 1, 4), np.float32)
        planner.observe(Outcome(draft, Verdict(len(draft), 1), Seconds(0.1, 0.1), 91, rows))
        assert planner.status().drafter == "model" and planner.status().lookahead == len(draft)
        planner.begin(90)
        assert (planner.status().drafter, planner.status().lookahead) == ("", 0)


def test_a_look_that_was_held_up_doesnt_keep_a_parked_planner_from_looking() -> None:
    parking = Parking()
    for _ in range(20):
        parking.went_plain()
        parking.looked(0.0)
    parking.looked(500.0)
    assert parking.every > 1
    for _ in range(60):
        parking.looked(0.0)
    assert parking.every == 1


def test_a_new_answer_is_looked_at_more_often_than_a_long_one_in_vain() -> None:
    parking = Parking()
    for _ in range(100):
        parking.went_plain()
        parking.looked(0.2)
    assert parking.every == 16
    parking.begin()
    assert parking.parked and parking.every == 4


def test_the_gain_is_that_of_the_answer() -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), Asked(1)
    planner.begin(90)
    answer(planner, {}, 40)
    assert planner.status().gain == pytest.approx(1.0, abs=0.05)
    planner.begin(90)
    assert planner.status().gain is None
    for length in range(91, 300, 5):
        planner.draft({"model": drafter}, text_of(length), 4, Sampler(GREEDY, 4))
        costs = planner.costs
        outcome = Outcome(
            Draft((0,) * 4, None, "model", (9.5,) * 4),
            Verdict(4, 1),
            Seconds(costs.draft("model", 4, 1, length), costs.seconds("check", 5, length)),
            length,
            np.zeros((5, 4), np.float32),
        )
        planner.observe(outcome)
    gain = planner.status().gain
    assert gain is not None and gain > 1.5


def test_the_gain_counts_what_it_takes_to_choose_tokens() -> None:
    """Plain decoding chooses each of its tokens too; so choosing brings the gain nearer to 1."""
    costs, gains = quick_costs(), []
    plain = costs.seconds("check", 1, 90)
    for choosing in (0.0, 0.5):
        planner = AdaptivePlanner(quick_costs())
        answer(planner, {}, 10)
        planner.begin(90)
        for _ in range(40):
            planner.draft({"model": Asked(1)}, text_of(100), 4, Sampler(GREEDY, 4))
            draft, rows = Draft((0,) * 4, None, "model", (9.5,) * 4), np.zeros((5, 4), np.float32)
            check = planner.costs.expected(5, 100)
            drafting = planner.costs.draft("model", 4, 1, 100)
            sample = 5 * choosing * planner.costs.seconds("check", 1, 100)
            planner.observe(
                Outcome(draft, Verdict(4, 1), Seconds(drafting, check, sample), 100, rows)
            )
        gains.append(planner.status().gain)
    without, gain = gains
    assert without > 1.3
    assert gain == pytest.approx((1 + 0.5) / (1 / without + 0.5), rel=0.02)
    planner._round.looks = False  # parked, it doesn't look; what is chosen counts all the same
    for _ in range(100):
        planner.observe(
            Outcome(NO_DRAFT, Verdict(0, 1), Seconds(0.0, plain, 0.5 * plain), 100, rows[:1])
        )
    whole = 200 * (1 / without + 0.5) + 100 * 1.5
    assert planner.status().gain == pytest.approx(1.5 * 300 / whole, rel=0.02)
    planner.observe(
        Outcome(NO_DRAFT, Verdict(0, 1), Seconds(0.0, plain, 9000 * plain), 100, rows[:1])
    )  # held up
    assert planner.status().gain == pytest.approx(1.5 * 300 / whole, rel=0.03)


def test_the_only_answer_of_a_run_shows_how_long_answers_are() -> None:
    planner = AdaptivePlanner(quick_costs())
    before = planner.to_json()["answer"]
    answer(planner, {}, 20)
    after = planner.to_json()["answer"]
    assert after < before - 30
    assert planner.to_json()["answer"] == after  # and counts once
    planner.begin(90)
    assert planner.to_json()["answer"] == after


def test_a_drafter_that_gives_no_confidence_is_judged_like_any_other() -> None:
    class Bare(LookupDrafter):
        def propose(self, *args: Any, **kwargs: Any) -> Draft:
            return replace(super().propose(*args), confidence=())

    tokens = np.array([5, 6, 7, 8, 9, 1, 2, 3, 4] * 3, np.int32)
    for planner in (AdaptivePlanner(quick_costs()), FixedPlanner(["lookup", "model"], 3)):
        planner.begin(len(tokens))
        planner.draft({"lookup": Bare(), "model": Asked(1)}, tokens, 9, Sampler(GREEDY, 16))


def test_indexing_a_long_prompt_isnt_taken_for_what_a_look_costs() -> None:
    planner = AdaptivePlanner(quick_costs())
    planner.begin(5000)
    plain = planner.costs.seconds("check", 1, 5000)
    for k in range(40):
        planner.draft({"lookup": LookupDrafter()}, text_of(5001 + k), 9, Sampler(GREEDY, 4))
        looking = plain if k == 0 else 0.0
        rows = np.zeros((1, 4), np.float32)
        planner.observe(Outcome(NO_DRAFT, Verdict(0, 3), Seconds(looking, plain), 5001 + k, rows))
    assert planner._parking.every == 1


def test_of_a_copy_the_length_that_is_worth_most_is_taken() -> None:
    """Each more token of it is worth little, all together more than drawing on."""
    known = Experience()
    rate = known.match("lookup").rate(40.0)
    tokens = np.array([*range(1, 15)] * 4, np.int32)
    choices = Choices(quick_costs(), known, 1.0, tokens[:-1], 31)
    dear = rate**4.5  # what a token more takes of the time of one
    choices.check = [dear * n for n in range(40)]
    drawing = Drawing(choices, Asked(1), [LookupDrafter()], Sampler(GREEDY, 16))
    assert not drawing(14, 9.5)
    drawn = known.model("model").confidence.rate(9.5)
    worth = [sum(drawn * rate**i for i in range(1, k + 1)) - dear * k for k in range(20)]
    assert max(worth) > 0.1 > max(np.diff(worth)[1:])
    assert len(drawing.copied) == int(np.argmax(worth))


@pytest.mark.parametrize("near", [False, True])
def test_what_was_drafted_behind_the_end_of_a_text_was_no_miss(near: bool) -> None:
    planner, drafter = AdaptivePlanner(quick_costs()), ReadsPart(900, 132) if near else Asked(1)
    planner.begin(900)
    draft = planner.draft({"model": drafter}, text_of(901), 1000, Sampler(GREEDY, 4))
    assert len(draft) > 2
    before = planner._known.model("model").outlook.rate
    rows = np.zeros((len(draft) + 1, 4), np.float32)
    planner.observe(Outcome(draft, Verdict(1, None), Seconds(0.02 * len(draft), 0.15), 901, rows))
    assert planner._known.model("model").outlook.rate > before


def test_the_status_may_be_asked_while_another_answer_begins() -> None:
    def run(interrupted: Interrupted) -> None:
        planner = AdaptivePlanner(quick_costs())
        planner.begin(50)
        answer(planner, {}, 20)
        interrupted(lambda: planner.begin(90))
        planner.status()

    assert at_each_bytecode(run, AdaptivePlanner.status) > 20
