"""How near a model's logits are to those of the checkpoint it was made from.

Invariant: a figure is taken over every position of every probe text, and what fails is named with
its text and position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

PROBES: Mapping[str, str] = {
    "English": (
        "The lighthouse keeper climbed the stairs every evening and counted the steps aloud, so "
        "that he wouldn't forget how high above the sea he had come. Tonight the storm was late, "
        "and he had time to think about the letter that lay unopened on the kitchen table."
    ),
    "code": (
        "def merge(left, right):\n"
        '    """Merge two sorted lists into one."""\n'
        "    merged = []\n"
        "    i = j = 0\n"
        "    while i < len(left) and j < len(right):\n"
        "        if left[i] <= right[j]:\n"
        "            merged.append(left[i])\n"
        "            i += 1\n"
        "        else:\n"
        "            merged.append(right[j])\n"
        "            j += 1\n"
        "    return merged + left[i:] + right[j:]\n"
    ),
    "Chinese": "春天来了，公园里的花都开了。孩子们在草地上放风筝，老人们坐在树下聊天、下棋。",
    "emoji": "Party at 8 🎉🎈! Bring 🍕 & 🥤; it costs €12.50 (≈ $13) 👨‍👩‍👧‍👦 — be early ☕️",
    "numbers": "3.14159, 2.71828; 2026-11-29T17:55:03Z; 0x7fff_ffff; 1,000,000 + 1 = 1000001",
}
"""Text of every kind whose tokens come about differently; control tokens are the model's own."""


@dataclass(frozen=True)
class Figures:
    """Two runs over the same tokens compared.

    positions: how many. mean_kl: nats a position, KL(reference || found). top1: the share of
    positions with the same likeliest token. worst: the largest difference of two logits. where:
    text and position of the largest KL.
    """

    positions: int
    mean_kl: float
    top1: float
    worst: float
    where: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """What a gate lets through."""

    mean_kl: float
    top1: float
    worst: float

    def refusal(self, found: Figures) -> str | None:
        """What is wrong, in words that follow a colon; None where nothing is."""
        if not np.isfinite([found.mean_kl, found.worst]).all():
            return f"logits that aren't numbers, first in {found.where}"
        wrong = []
        if found.mean_kl > self.mean_kl:
            wrong.append(f"mean KL {found.mean_kl:.2g} (at most {self.mean_kl:.2g})")
        if found.top1 < self.top1:
            wrong.append(f"the same likeliest token in {found.top1:.1%} (at least {self.top1:.0%})")
        if found.worst > self.worst:
            wrong.append(f"a logit off by {found.worst:.3g} (at most {self.worst:.3g})")
        return f"{', '.join(wrong)}; worst in {found.where}" if wrong else None


def compare(reference: Mapping[str, Floats], found: Mapping[str, Floats]) -> Figures:
    """Compare logits (n, V) of each text, by its name. Raises ValueError where shapes differ."""
    divergences: list[npt.NDArray[np.float64]] = []
    same, worst = 0, 0.0
    named: list[str] = []
    for name, expected in reference.items():
        got = found[name]
        if expected.shape != got.shape:
            raise ValueError(f"{name}: {got.shape} logits instead of {expected.shape}")
        for position, (row, other) in enumerate(zip(expected, got, strict=True)):  # (V,) each
            if not np.isfinite(other).all():
                return Figures(0, float("nan"), 0.0, float("nan"), f"{name}, position {position}")
            worst = max(worst, float(np.abs(row - other).max()))
            same += int(row.argmax()) == int(other.argmax())
            divergences.append(np.asarray(_divergence(row, other)))
            named.append(f"{name}, position {position}")
    values = np.array(divergences, np.float64)
    count = len(values)
    return Figures(count, float(values.mean()), same / count, worst, named[int(values.argmax())])


def _divergence(reference: Floats, found: Floats) -> float:
    """KL(reference || found) of two rows of logits, in nats."""
    first, second = _log_softmax(reference), _log_softmax(found)
    return max(0.0, float((np.exp(first) * (first - second)).sum()))


def _log_softmax(row: Floats) -> npt.NDArray[np.float64]:
    wide = row.astype(np.float64) - float(row.max())
    return np.asarray(wide - np.log(np.exp(wide).sum()))


def differing_ids(expected: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]]) -> str:
    """The first text whose token ids differ, and where; empty where none does."""
    for name, ids in expected.items():
        other = got[name]
        for position in range(max(len(ids), len(other))):
            if ids[position : position + 1] != other[position : position + 1]:
                return f"{name}, token {position}"
    return ""
