"""The planner over the turns of one conversation: code, prose, code, with the drafter's cache kept.

Seeds are fixed and nothing here reads a real clock, so the figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from simulator import (
    LOOKAHEADS,
    MACHINES,
    Game,
    Played,
    Process,
    Text,
    alternating,
    fixed_rounds,
    make_text,
    steady,
)

from edgespec.adaptive import AdaptivePlanner
from edgespec.drafters import Drafter
from edgespec.planner import FixedPlanner
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import Draft

TURN, QUESTION = 300, 40
PROMPTS = [90 + turn * (TURN + QUESTION) for turn in range(3)]
TURNS = tuple((prompt, TURN) for prompt in PROMPTS)
SEEDS = range(4)


def play(
    machine: str, process: Process, names: Sequence[str], seed: int, *, turns: bool = True
) -> tuple[Text, list[Played]]:
    rng = np.random.default_rng(seed)
    text = make_text(process, rng, answers=TURNS, turns=turns)
    planner = AdaptivePlanner(MACHINES[machine].measured(rng))
    return text, Game(MACHINES[machine], text, seed + 1).play(planner, names)


def cost(rounds: Sequence[Played], begin: int, end: int) -> float:
    return sum(r.cost for r in rounds if begin <= r.at < end)


@pytest.mark.parametrize("names", [("model",), ("lookup", "model")])
@pytest.mark.parametrize("machine", ["f16", "gpu", "apple", "q4_k_m"])
@pytest.mark.parametrize("prose", [0.35, 0.05])
def test_code_prose_and_code_again_keep_the_bounds(
    machine: str, prose: float, names: Sequence[str]
) -> None:
    """The whole within 5% of the best fixed choice in hindsight; so is each turn of the best for
    that turn alone, from 60 tokens behind the switch on; and prose within 5% of plain decoding.
    """
    process = alternating(0.9, prose, (TURN, TURN), fixed=True)
    ours, best = [0.0] * 3, [0.0] * 3
    plain = 0.0
    for seed in SEEDS:
        text, rounds = play(machine, process, names, seed)
        fixed = [
            fixed_rounds(MACHINES[machine], text, name, k) for name in names for k in LOOKAHEADS
        ]
        assert cost(rounds, 0, 3 * TURN) <= min(sum(f.values()) for f in fixed) / 0.95
        for turn in range(3):
            begin, end = turn * TURN + 60, (turn + 1) * TURN
            ours[turn] += cost(rounds, begin, end)
            best[turn] += min(sum(c for at, c in f.items() if begin <= at < end) for f in fixed)
        plain += cost(rounds, TURN, 2 * TURN)
    assert all(spent <= least / 0.95 for spent, least in zip(ours, best, strict=True))
    assert plain <= len(SEEDS) * TURN / 0.95


def test_a_later_turn_reads_what_is_new_alone() -> None:
    """A drafter's cache holds the turns before, so a question is all that it owes; in answers of
    their own, prompts as long are too dear to read.
    """
    for seed in SEEDS:
        late = {}
        for turns in (True, False):
            _, rounds = play("f16", steady(0.9), ["model"], seed, turns=turns)
            late[turns] = [r for r in rounds if r.at >= 2 * TURN]
        # A token that is read costs 0.05 plain ones, and one that is drawn 0.16.
        assert max(r.draft_cost for r in late[True]) < 0.05 * (QUESTION + 5) + 0.16 * 16
        assert sum(bool(r.drafted) for r in late[True]) > 0.9 * len(late[True])
        assert sum(r.cost for r in late[True]) < 0.85 * sum(r.cost for r in late[False])


def test_a_prompt_that_was_not_read_at_once_is_owed_later() -> None:
    """A cache of the answer before says nothing of this one, in whatever round it is asked."""
    text = make_text(steady(0.9), np.random.default_rng(0), answers=((300, 60), (90, 60)))
    game = Game(MACHINES["f16"], text)
    rounds = game.play(Waiting(("model",), 4), ["model"])
    reads = [r for r in rounds if r.draft_cost > 0.05 * 80]
    assert [r.at >= 60 for r in reads] == [False, True]


class Waiting(FixedPlanner):
    """Drafts from the third round of each answer on."""

    def begin(self, length: int) -> None:
        super().begin(length)
        self._rounds = 0

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        self._rounds += 1
        return super().draft(drafters, tokens, room if self._rounds > 2 else 0, sampler)


def test_a_turn_begins_with_all_that_came_before() -> None:
    with pytest.raises(ValueError, match="longer than all that came before"):
        make_text(steady(0.5), np.random.default_rng(0), answers=((90, 128), (200, 9)), turns=True)
