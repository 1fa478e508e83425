"""The prompts a measurement asks: those that come with edgespec, or a file of one's own.

Invariant: prompts come in an order that takes categories in turn, so that a measurement stopped
early has seen all of them, and a slow hour falls on all alike.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from typing import Any

from edgespec.bench.record import one_line
from edgespec.errors import ConfigError
from edgespec.platform import expanded

BUILTIN = ("spec-bench", "human-eval")
LONG_TEXTS = "spec-bench"
"""Whose prompts the texts of `--lengths` are made of."""

UNSORTED = "prompts"
"""The category of prompts whose file names none."""

ALL = "all"
"""All categories together, which no category may be called."""


@dataclass(frozen=True)
class Prompt:
    """What the user says, turn by turn."""

    name: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class PromptSet:
    """Prompts, where they came from, and the SHA-256 of that file."""

    source: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def limited(self, per_category: int | None) -> list[Prompt]:
        """The first of each category, categories in turn."""
        groups: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            groups.setdefault(prompt.category, []).append(prompt)
        rows = zip_longest(*(group[:per_category] for group in groups.values()))
        return [prompt for row in rows for prompt in row if prompt is not None]


def load(source: str) -> PromptSet:
    """`spec-bench`, `human-eval`, or a file of JSON lines with `turns`.

    A line may also have `id` and `category`. Raises ConfigError for anything else.
    """
    if source in BUILTIN:
        data = (resources.files("edgespec.bench") / "prompts" / f"{source}.jsonl").read_bytes()
    else:
        try:
            data = expanded(source).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"can't read the prompts in {source}: {error.strerror}; "
                f"{' and '.join(BUILTIN)} come with edgespec"
            ) from None
    prompts = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        try:
            if line.strip():
                prompts.append(_prompt(json.loads(line.decode("utf-8")), number))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ConfigError(
                f"{source} holds no prompts: each line is a JSON object like "
                f'{{"turns": ["..."]}}, and line {number} isn\'t'
            ) from None
    if not prompts:
        raise ConfigError(f"{source} holds no prompts")
    if any(prompt.category == ALL for prompt in prompts):
        raise ConfigError(
            f"{source} has a category `{ALL}`, as all categories together are called: rename it"
        )
    if len({prompt.name for prompt in prompts}) < len(prompts):
        raise ConfigError(f"{source} has two prompts with the same id")
    return PromptSet(one_line(source), hashlib.sha256(data).hexdigest(), tuple(prompts))


def _prompt(entry: dict[str, Any], number: int) -> Prompt:
    turns = entry["turns"]
    texts = turns if isinstance(turns, list) else []
    if not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise ValueError("turns are texts")
    # Half a surrogate pair is no text that a tokenizer takes.
    asked = (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
    name, category = entry.get("id", f"line {number}"), entry.get("category", UNSORTED)
    return Prompt(one_line(str(name)), one_line(str(category)), tuple(asked))


def long_prompt(encode: Callable[[str], Sequence[int]], length: int) -> list[int]:
    """A request about a text, of at most `length` tokens and nearly as many.

    `encode` gives the tokens of a user's message; the text is made of `LONG_TEXTS`.
    """
    words = " ".join(turn for p in load(LONG_TEXTS).prompts for turn in p.turns).split(" ")

    def asked(count: int) -> list[int]:
        text = " ".join((words * (1 + count // len(words)))[:count])
        return list(encode(f"{text}\n\nSummarise the text above in a few paragraphs."))

    low, high = 0, 2 * length
    if len(asked(0)) > length:
        raise ConfigError(f"a context of {length} tokens holds no question: make it longer")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(asked(middle)) <= length else (low, middle)
    return asked(low)
