"""What a pair promises, asked of every two backends: the target's own text, whoever drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from chance import fit
from tiny_gguf import write_tiny
from tiny_onnx import write_tiny_onnx

from edgespec.runtime import Runtime
from edgespec.sampling import SamplingParams
from edgespec.session import Logits

BACKENDS = ("gguf", "in place", "grown")
PROMPT = [3, 70, 80, 90]
END = 2
# Warm enough that two random models often agree, and not so warm that they say the same.
ALL = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, banned_tokens=frozenset({END}))


@dataclass(frozen=True)
class Expected:
    """The distribution of a target's first two tokens, in cells that tell it from the drafter's.

    A cell is whether the first is odd, and how much more the target likes the second than the
    drafter does: a quarter of the vocabulary.
    """

    quarters: list[np.ndarray]
    cells: dict[tuple[int, int], float]

    def cell(self, tokens: tuple[int, ...]) -> tuple[int, int]:
        first, second = tokens[:2]
        return first % 2, int(self.quarters[first][second])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Runtime]]:
    root = tmp_path_factory.mktemp("pairs")

    @cache
    def model(kind: str, seed: int) -> Path:
        if kind == "gguf":
            return write_tiny(root / f"{seed}.gguf", seed=seed, scale=0.2)
        attention = "gqa" if kind == "in place" else "copy"
        positions = kind == "grown"
        folder = root / f"{attention}{seed}"
        return write_tiny_onnx(folder, attention=attention, positions=positions, seed=seed)

    @cache
    def pair(target: str, drafter: str | None, lookahead: int, seed: int = 0) -> Runtime:
        drafters = [] if drafter is None else [str(model(drafter, 1))]
        return Runtime.open(
            target=model(target, seed), drafters=drafters, lookahead=lookahead, threads=1
        )

    made: list[Runtime] = []

    def remembered(*of: str | int | None) -> Runtime:
        made.append(pair(*of))
        return made[-1]

    yield remembered
    for runtime in set(made):
        runtime.close()


@pytest.fixture(scope="module")
def after_each(opened: Callable[..., Runtime]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """A model's distribution of the next token (V,), and of the one after each that it may be."""

    @cache
    def of(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        session = opened(kind, None, 0, seed).target.session
        session.rollback(0)
        first = probs(session.forward(PROMPT))[0]
        second = []
        for token in range(len(first)):
            second.append(probs(session.forward([token]))[0])
            session.rollback(len(PROMPT))
        session.rollback(0)
        return first, np.array(second)

    return of


def expect(
    target: tuple[np.ndarray, np.ndarray], drafter: tuple[np.ndarray, np.ndarray]
) -> Expected:
    first, second = target
    quarters, cells = [], dict.fromkeys(product((0, 1), range(4)), 0.0)
    for token, (chance, row, drafted) in enumerate(zip(first, second, drafter[1], strict=True)):
        ratio = np.divide(row, drafted, out=np.zeros_like(row), where=drafted > 0)
        quarters.append(np.argsort(np.argsort(ratio)) * 4 // len(ratio))
        for quarter, share in zip(quarters[-1], row, strict=True):
            cells[token % 2, int(quarter)] += chance * share
    return Expected(quarters, cells)


def probs(rows: Logits) -> np.ndarray:
    rows = rows.astype(np.float64) / ALL.temperature
    rows[:, END] = -np.inf
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("drafter", BACKENDS)
@pytest.mark.parametrize("target", BACKENDS)
def test_rejection_keeps_the_targets_joint_distribution(
    target: str,
    drafter: str,
    opened: Callable[..., Runtime],
    after_each: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> None:
    runtime = opened(target, drafter, 2)
    own = expect(after_each(target, 0), after_each(drafter, 1))
    sample, accepted, drafted = [], 0, 0
    for seed in range(400):
        params = replace(ALL, seed=seed, rule="rejection")
        result = runtime.generate(PROMPT, params, max_tokens=3).result
        sample.append(own.cell(result.tokens))
        accepted += result.counters.accepted
        drafted += result.counters.drafted
    assert 0.1 < accepted / drafted < 0.9  # both ways are gone
    assert fit(sample, own.cells, odds=1e-3).good  # the seeds are fixed


@pytest.mark.parametrize("drafter", BACKENDS)
@pytest.mark.parametrize("target", BACKENDS)
def test_a_seed_gives_the_targets_own_text(
    target: str, drafter: str, opened: Callable[..., Runtime]
) -> None:
    plain, pair = opened(target, None, 0), opened(target, drafter, 3)
    for seed in (1, 2, 2**63):
        params = replace(ALL, seed=seed)
        result = pair.generate(PROMPT, params, max_tokens=24).result
        assert result.counters.drafted and result.counters.accepted < result.counters.drafted
        assert result.tokens == plain.generate(PROMPT, params, max_tokens=24).result.tokens
