"""What a drafter's guesses lose when the middle of an answer is left out of what it reads.

    python benchmarks/left_out.py DRAFT.gguf [--read 16 32 64] [--behind 80] [--prompt 64 128 256]
        [--texts FILE]

On recorded texts (`record_texts.py`) of one vocabulary with the drafter: the share of the next 24
tokens that it names, having read the prompt, the answer's first four tokens and, of what follows,
all or the newest few. Twice: once `--behind` tokens into every answer, and once behind each stretch
of 24 tokens or more that a lookup would have copied, which is where a drafter falls behind. Then of
the first 24 tokens behind prompts of over 264, with all of the prompt read or its end alone. Takes
some minutes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from replay_texts import TEXTS, RecordedText, load

from edgespec.backends import LoadOptions, load_model
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.reading import FIRST, NEAR
from edgespec.sampling import GREEDY, Sampler
from edgespec.session import CancelFlag, common_prefix

NEXT = 24
LONG = 2 * (NEAR + FIRST)  # tokens of a prompt that may be worth reading in part
STRETCH = 24


def gaps(text: RecordedText, behind: int) -> Iterator[tuple[str, int, int]]:
    """Where a drafter could go on: why there, where it fell behind, and where it goes on."""
    tokens, end = text.tokens, len(text.tokens) - NEXT
    if LONG < text.prompt < end:
        yield f"{text.category}, behind a long prompt", FIRST, text.prompt
    if text.prompt + behind <= end:
        yield "into the answer", text.prompt + FIRST, text.prompt + behind
    lookup, sampler = LookupDrafter(), Sampler(GREEDY, 1 << 18)
    at = text.prompt + FIRST
    while at < end:
        guess = np.array(lookup.propose(tokens[:at], 64, sampler).tokens, np.int32)
        stands = common_prefix(guess, tokens[at:end])
        if stands >= STRETCH:
            yield "behind a copy", at, at + stands
        at += stands + 1


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafter")
    parser.add_argument("--read", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--behind", type=int, default=80)
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--texts", type=Path, default=TEXTS)
    args = parser.parse_args()
    model = load_model(args.drafter, LoadOptions(context_size=4096), CancelFlag())
    words = model.tokenizer.num_tokens
    named: dict[tuple[str, str], list[float]] = defaultdict(list)
    for text in load(args.texts):
        for why, begin, at in gaps(text, args.behind):
            follows = text.tokens[at : at + NEXT]
            for newest in (at, *(args.read if begin > text.prompt else args.prompt)):
                resume = max(begin, at - newest)
                read = [text.tokens[:begin], text.tokens[resume:at], follows[:-1]]
                model.session.rollback(0)
                rows = model.session.forward(np.concatenate(read), NEXT)  # (NEXT, V)
                key = why, "all" if newest == at else f"the newest {newest}"
                named[key].append(float(np.mean(rows[:, :words].argmax(1) == follows)))
    for (why, read_), shares in named.items():
        print(
            f"{why}, {read_} read: {np.mean(shares):.1%} of the next {NEXT} ({len(shares)} times)"
        )


if __name__ == "__main__":
    main()
