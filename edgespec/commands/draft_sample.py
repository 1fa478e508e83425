"""What a drafter is cut by and judged by: the target's own answers, and texts a person gives.

Invariant: the target is loaded, answers and is measured only where something is to be learnt from
it, and its tokens are compared with those of another model before that is cut; what drafters are
judged by is never what they were made from.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.shared import tell
from edgespec.errors import ConfigError, ModelError
from edgespec.platform import expanded
from edgespec.registry import size_on_disk

if TYPE_CHECKING:
    from edgespec.exporters.draft import Source, Variant
    from edgespec.runtime import Runtime
    from edgespec.trial import Text, Trial

_LEARN = (
    "Write a Python class for a stack with push, pop and peek.",
    "What are the main causes of inflation? Answer in a paragraph.",
    "Write a polite e-mail that moves a meeting to next week.",
    "Explain how a hash table works, with a short example in JavaScript.",
)
"""The target's answers to these say which tokens and which blocks matter."""

_TRY = (
    "Write a Python function that merges two sorted lists, with a docstring.",
    "Explain in a few sentences why the sky is blue.",
    "Write a C function that counts the words in a string.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
)
"""Drafters are judged by the target's answers to these."""

_ABLATION_TOKENS = 256
_SAMPLE_BYTES = 8_000_000  # a million or two tokens: enough for any vocabulary, read in seconds
_PIECE = 50_000  # characters tokenized at once


@dataclass(frozen=True)
class Choice:
    """One combination, as it was asked for."""

    layers: str | None
    vocab: int | None
    quant: str | None

    @property
    def label(self) -> str:
        layers = self.layers and self.layers.replace(":", "").replace(",", "_").replace(" ", "")
        vocab = self.vocab and f"v{self.vocab}"
        return "-".join(part for part in (layers, vocab, self.quant) if part)


def pieces(paths: Sequence[Path]) -> Iterator[str]:
    """The text in files and folders, a piece at a time, up to a few megabytes."""
    left = _SAMPLE_BYTES
    for path in paths:
        path = expanded(path)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            within = file != path  # a folder may hold links, pipes and pictures too
            if left <= 0 or hidden or file.is_dir() or (within and not file.is_file()):
                continue
            try:
                with file.open("rb") as opened:
                    data = opened.read(left)
            except OSError as error:
                if within:
                    continue
                raise ConfigError(f"can't read {file}: {error.strerror}") from None
            if b"\0" in data:
                if within:
                    continue
                raise ConfigError(f"{file} holds no text: --sample")
            left -= len(data)
            text = data.decode("utf-8", "replace")
            yield from (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


class Sample:
    """The target and what it says, had only where something is to be learnt from it."""

    def __init__(self, args: argparse.Namespace, source: Source) -> None:
        self._args, self._source = args, source
        self._runtime: Runtime | None = None
        self._told: set[str] = set()
        self._given: list[str] = []
        self._learnt: list[int] | None = None
        self._texts: list[Text] | None = None
        self._blocks: dict[int, tuple[int, ...]] = {}

    def __enter__(self) -> Sample:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runtime is not None:
            self._runtime.close()

    def prepare(self, asked: Sequence[Choice]) -> None:
        """Refuse, before any drafter is made, what can't be made or judged.

        Raises IncompatiblePair for a model to cut that has other tokens than the target, and
        ConfigError for a head that is no selection, a sample that can't be read, and answers with
        nothing to judge by.
        """
        from edgespec.trial import require_drafted

        if self._args.source is not None:
            self._require_same_tokens(self._args.source)
        numbers = dict.fromkeys(choice.vocab for choice in asked if choice.vocab is not None)
        for number in numbers:
            always = self._target().target.tokenizer.stop_ids
            self._source.frequent(Counter[int](), number, always)
        self._given = list(pieces(self._args.sample))
        if self._args.measure:
            require_drafted(self._judges())

    def _require_same_tokens(self, source: Path) -> None:
        from edgespec.backends import LoadOptions, load_model
        from edgespec.session import CancelFlag
        from edgespec.tokenizer import check_same_tokens

        options = LoadOptions(context_size=16, threads=self._args.threads)
        model = load_model(source, options, CancelFlag())
        try:
            check_same_tokens(self._target().target.tokenizer, model.tokenizer)
        finally:
            model.close()

    def decide(self, choice: Choice) -> Variant:
        """Which blocks and tokens a choice comes to."""
        from edgespec.exporters import layers
        from edgespec.exporters.draft import Variant, describe

        blocks = kept = None
        if choice.layers is not None:
            total = self._source.blocks
            parsed = layers.parse(choice.layers, total)
            if isinstance(parsed, layers.Automatic):
                parsed = self._least_missed(parsed.number, total)
            blocks = parsed
            self._say(f"blocks {describe(blocks, total)}")
        if choice.vocab is not None:
            always = self._target().target.tokenizer.stop_ids
            kept = self._source.frequent(Counter(self._sample()), choice.vocab, always)
        return Variant(blocks, kept, choice.quant)

    def tried(self, path: Path, label: str | None = None) -> Trial:
        """Measure the drafter in a file."""
        from edgespec.backends import LoadOptions, load_model
        from edgespec.session import CancelFlag
        from edgespec.tokenizer import check_same_tokens
        from edgespec.trial import tried

        runtime = self._target()
        tokenizer = runtime.target.tokenizer
        name = label or path.name
        texts = self._judges()
        self._say(f"measuring {name}")
        size = max(len(text.prompt) + len(text.answer) for text in texts) + 64
        options = LoadOptions(context_size=size, threads=self._args.threads)
        model = load_model(path, options, CancelFlag())
        self._notes(model.notes)
        try:
            check_same_tokens(tokenizer, model.tokenizer)
            if not model.session.can_rollback:
                raise ModelError(f"{name} can't draft, since it can't take back a guess")
            return tried(
                name, size_on_disk(path), runtime.target.session, model.session, texts,
                tokenizer.num_tokens, tokenizer.suppressed_ids,
            )  # fmt: skip
        finally:
            model.close()

    def _judges(self) -> list[Text]:
        """The answers that drafters are judged by."""
        if self._texts is None:
            self._texts = list(self._answers(self._prompts()[1]))
        return self._texts

    def _least_missed(self, number: int, total: int) -> tuple[int, ...]:
        """The blocks that `auto` keeps."""
        from edgespec.commands.progress import shown
        from edgespec.exporters.layers import least_missed, tries

        if number not in self._blocks:
            tokens = self._sample()[:_ABLATION_TOKENS]
            stage = "finding out what each block does"
            done, size = 0, size_on_disk(self._source.path)  # each try reads the weights
            with shown() as report:
                report(stage)
                ablation = self._source.ablation(tokens, self._args.threads)

                def change(without: frozenset[int]) -> float:
                    nonlocal done
                    found = ablation.change(without)
                    done += size
                    report(stage, done, size * tries(total, number))
                    return found

                try:
                    self._blocks[number] = least_missed(change, total, number)
                finally:
                    ablation.close()
        return self._blocks[number]

    def _sample(self) -> list[int]:
        """Tokens to learn from: what the target says, and the text given."""
        if self._learnt is None:
            answers = self._answers(self._prompts()[0])
            self._learnt = [token for text in answers for token in text.prompt + text.answer]
            for piece in self._given:
                self._learnt += self._target().target.tokenizer.encode(piece)
        return self._learnt

    def _prompts(self) -> tuple[Sequence[str], Sequence[str]]:
        """Prompts to learn from and to judge by."""
        from edgespec.commands.shared import read_prompts

        if self._args.prompts is None:
            return _LEARN, _TRY
        prompts = read_prompts(self._args.prompts)
        return prompts[::2], prompts[1::2] or prompts

    def _answers(self, prompts: Sequence[str]) -> Iterator[Text]:
        from edgespec.chat import Message
        from edgespec.sampling import GREEDY
        from edgespec.trial import Text

        runtime = self._target()
        self._say("answering sample prompts with the target")
        for prompt in prompts:
            ids = runtime.encode_messages([Message("user", prompt)])
            answer = runtime.generate(ids, GREEDY, max_tokens=self._args.max_tokens)
            yield Text(tuple(ids), answer.result.tokens)
        runtime.target.session.rollback(0)

    def _target(self) -> Runtime:
        from edgespec.runtime import Runtime

        if self._runtime is None:
            self._runtime = Runtime.open(
                target=self._args.target, drafters=[], threads=self._args.threads
            )
            self._notes(self._runtime.notes)
        return self._runtime

    def _notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                tell(f"note: {note}")

    def _say(self, what: str) -> None:
        tell(f"{what}...")
