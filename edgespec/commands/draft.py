"""A drafter cut out of a model, where there is none: `edgespec draft`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ConfigError, ModelError
from edgespec.options import count

if TYPE_CHECKING:
    from edgespec.exporters.draft import Variant
    from edgespec.gguf import GGUFHeader
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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "draft",
        help="cut a drafter out of a model that has none, and measure whether it pays",
        description="Makes a drafter for TARGET by leaving out blocks, rows of the output head or "
        "bits, and measures on this machine what it costs, how many of its draft tokens stand and "
        "what that gains. Options that are given several times make every combination, and OUT is "
        "then a folder. The output stays the target's own: what a drafter can't say, it never "
        "drafts.",
    )
    parser.add_argument("target", metavar="TARGET", type=Path, help="the GGUF file to draft for")
    parser.add_argument("out", metavar="OUT", type=Path, help="the file, or folder, to write")
    parser.add_argument(
        "--from", dest="source", metavar="PATH", type=Path,
        help="cut this GGUF file, which has the target's tokens (default: TARGET itself)",
    )  # fmt: skip
    parser.add_argument(
        "--layers", action="append", default=[], metavar="BLOCKS",
        help="the blocks to keep: first:8, last:4, 0-5,20 or parts of these with commas; auto:12 "
        "leaves out those that matter least (all)",
    )  # fmt: skip
    parser.add_argument(
        "--vocab", action="append", default=[], type=count, metavar="N",
        help="keep the N most frequent tokens in the output head (all)",
    )  # fmt: skip
    parser.add_argument(
        "--quant", action="append", default=[], type=str.lower, metavar="TYPE",
        help="store the weights as llama.cpp's q4_0, q8_0, ... (as they are)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", action="append", default=[], metavar="PATH", type=Path,
        help="a text like what the target will write, or a folder of such (your code, your "
        "notes), to choose tokens by beside its own answers; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", metavar="FILE",
        help="JSON lines with `turns`: drafters are judged by the answers to every other one, and "
        "the rest serve as the sample (default: a few of our own)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=count, default=96, metavar="N", help="of each sample answer (96)"
    )
    parser.add_argument(
        "--measure", action=argparse.BooleanOptionalAction, default=True,
        help="measure what was made (--no-measure only writes it)",
    )  # fmt: skip
    parser.add_argument("--threads", type=count, metavar="N", help="CPU threads (the usable CPUs)")
    parser.add_argument("--force", action="store_true", help="replace what is there already")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    from edgespec.commands.progress import shown
    from edgespec.exporters.draft import make, open_source
    from edgespec.exporters.staging import refuse_existing
    from edgespec.fetch.sources import human_bytes
    from edgespec.trial import table, verdict

    source: Path = args.source or args.target
    header = open_source(source)
    asked = _combinations(args, header)
    paths = _destinations(args.out, source, asked)
    for path in paths:
        refuse_existing(path, args.force)
    with _Sample(args, header) as sample:
        for path, choice in zip(paths, asked, strict=True):
            variant = sample.decide(choice)
            path.parent.mkdir(parents=True, exist_ok=True)
            with shown() as report:
                make(
                    source, path, variant, report=report, threads=args.threads or None,
                    overwrite=args.force,
                )  # fmt: skip
            print(path, flush=True)
        if not args.measure:
            return 0
        trials = [sample.tried(path) for path in paths]
        if args.source:
            trials.append(sample.tried(source, "(uncut)"))
    for line in table(trials, human_bytes):
        print(line)
    print()
    print(verdict(trials, args.target.name))
    return 0


@dataclass(frozen=True)
class _Choice:
    """One combination, as it was asked for."""

    layers: str | None
    vocab: int | None
    quant: str | None

    @property
    def label(self) -> str:
        layers = self.layers and self.layers.replace(":", "").replace(",", "_").replace(" ", "")
        vocab = self.vocab and f"v{self.vocab}"
        return "-".join(part for part in (layers, vocab, self.quant) if part)


def _combinations(args: argparse.Namespace, header: GGUFHeader) -> list[_Choice]:
    """What to make; whatever can't be made is refused here, before any work."""
    from edgespec.exporters import layers
    from edgespec.exporters.quantise import file_type

    if not (args.layers or args.vocab or args.quant):
        raise ConfigError("nothing is to be cut: name --layers, --vocab or --quant")
    for text in args.layers:
        layers.parse(text, layers.count(header))
    for quant in args.quant:
        file_type(quant)
    every = product(args.layers or [None], args.vocab or [None], args.quant or [None])
    return [_Choice(*each) for each in dict.fromkeys(every)]


def _destinations(out: Path, source: Path, asked: Sequence[_Choice]) -> list[Path]:
    if len(asked) == 1 and not out.is_dir():
        return [out]
    return [out / f"{source.stem}-{choice.label}.gguf" for choice in asked]


def _pieces(paths: Sequence[Path]) -> Iterator[str]:
    """The text in files and folders, a piece at a time, up to a few megabytes."""
    left = _SAMPLE_BYTES
    for path in paths:
        path = path.expanduser()
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if left <= 0 or hidden or file.is_dir():
                continue
            try:
                with file.open("rb") as opened:
                    data = opened.read(left)
            except OSError as error:
                raise ConfigError(f"can't read {file}: {error.strerror}") from None
            if b"\0" in data:
                if file != path:  # a folder may hold pictures too
                    continue
                raise ConfigError(f"{file} holds no text: --sample")
            left -= len(data)
            text = data.decode("utf-8", "replace")
            yield from (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


class _Sample:
    """The target and what it says, had only where something is to be learnt from it."""

    def __init__(self, args: argparse.Namespace, header: GGUFHeader) -> None:
        self._args, self._header = args, header
        self._runtime: Runtime | None = None
        self._learnt: list[int] | None = None
        self._texts: list[Text] | None = None
        self._blocks: dict[int, tuple[int, ...]] = {}

    def __enter__(self) -> _Sample:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runtime is not None:
            self._runtime.close()

    def decide(self, choice: _Choice) -> Variant:
        """Which blocks and tokens a choice comes to."""
        from edgespec.exporters import head, layers
        from edgespec.exporters.draft import Variant, describe

        blocks = kept = None
        if choice.layers is not None:
            total = layers.count(self._header)
            parsed = layers.parse(choice.layers, total)
            if isinstance(parsed, layers.Automatic):
                parsed = self._least_missed(parsed.number, total)
            blocks = parsed
            self._say(f"blocks {describe(blocks, total)}")
        if choice.vocab is not None:
            always = self._target().target.tokenizer.stop_ids
            kept = head.frequent(self._header, Counter(self._sample()), choice.vocab, always)
        return Variant(blocks, kept, choice.quant)

    def tried(self, path: Path, label: str | None = None) -> Trial:
        """Measure the drafter in a file."""
        from edgespec.backends import LoadOptions, load_model
        from edgespec.session import CancelFlag
        from edgespec.tokenizer import check_same_tokens
        from edgespec.trial import tried

        runtime = self._target()
        name = label or path.name
        if self._texts is None:
            self._texts = list(self._answers(self._prompts()[1]))
        self._say(f"measuring {name}")
        size = max(len(text.prompt) + len(text.answer) for text in self._texts) + 64
        options = LoadOptions(context_size=size, threads=self._args.threads or None)
        model = load_model(path, options, CancelFlag())
        try:
            check_same_tokens(runtime.target.tokenizer, model.tokenizer)
            if not model.session.can_rollback:
                raise ModelError(f"{name} can't draft, since it can't take back a guess")
            return tried(
                name, path.stat().st_size, runtime.target.session, model.session, self._texts,
                runtime.target.tokenizer.num_tokens,
            )  # fmt: skip
        finally:
            model.close()

    def _least_missed(self, number: int, total: int) -> tuple[int, ...]:
        """The blocks that `auto` keeps."""
        from edgespec.backends import LoadOptions
        from edgespec.backends.llama_blocks import Ablation
        from edgespec.exporters.layers import least_missed
        from edgespec.session import CancelFlag

        if number not in self._blocks:
            tokens = self._sample()[:_ABLATION_TOKENS]
            options = LoadOptions(threads=self._args.threads or None)
            self._say("finding out what each block does")
            ablation = Ablation(self._header.path, tokens, options, CancelFlag())
            try:
                self._blocks[number] = least_missed(ablation.change, total, number)
            finally:
                ablation.close()
        return self._blocks[number]

    def _sample(self) -> list[int]:
        """Tokens to learn from: what the target says, and the text given."""
        if self._learnt is None:
            # Read first: what is wrong with it should be said before minutes of answers.
            pieces = list(_pieces(self._args.sample))
            answers = self._answers(self._prompts()[0])
            self._learnt = [token for text in answers for token in text.prompt + text.answer]
            for piece in pieces:
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
                target=self._args.target, drafters=[], threads=self._args.threads or None
            )
        return self._runtime

    def _say(self, what: str) -> None:
        print(f"{what}...", file=sys.stderr, flush=True)
