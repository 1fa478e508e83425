"""The options that several commands share, named as the field names them.

Invariant: every option that is shown has a help text of a line or two that gives its default.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from numbers import Integral
from typing import Literal

from edgespec.errors import ConfigError

LONGEST_LOOKAHEAD = 64
"""A row of logits for each draft token has to fit into memory."""

RULES = ("rejection", "reproducible")
DEVICES = ("auto", "cpu", "cuda", "tensorrt", "directml", "coreml")


def add_model_options(
    parser: argparse.ArgumentParser,
    *,
    default_pair: str = "the default pair",
    fixed: int | None = None,
    refused: Collection[str] = (),
) -> None:
    """Which models run, where, and how they draft.

    Args:
        default_pair: the one where none is named.
        fixed: the lookahead of a command in which no planner plans; None: `auto`.
        refused: options, by their names in what is parsed, that the command takes only to say why
            not; its help leaves them out.
    """
    group = parser.add_argument_group("models")
    group.add_argument(
        "--pair", metavar="NAME", help=f"a pair that `models` lists (default: {default_pair})"
    )
    group.add_argument(
        "--target", metavar="PATH",
        help="a GGUF file or ONNX folder instead of a pair (default: the pair's)",
    )  # fmt: skip
    group.add_argument(
        "--drafter", action="append", metavar="PATH",
        help="a GGUF file or ONNX folder that drafts, or `lookup`; a model beside `lookup` at the "
        "most (default: the pair's)",
    )  # fmt: skip
    how = ""
    if "lookahead" not in refused:
        planned = "the planner chooses among them, and with a fixed lookahead " * (fixed is None)
        how = f"; {planned}the first that has a guess drafts"
    group.add_argument(
        "--drafters", type=_names, metavar="LIST",
        help=f"which may draft: `lookup,model`, `lookup` or `model`{how} (default: all of the "
        "pair's, or lookup and --drafter)",
    )  # fmt: skip
    plain = "draft at all (--no-draft is plain decoding)"
    group.add_argument(
        "--draft", action=argparse.BooleanOptionalAction, default=True,
        help=argparse.SUPPRESS if "draft" in refused else plain,
    )  # fmt: skip
    tokens = "draft tokens a round; auto measures and plans (auto)"
    if fixed is not None:
        tokens = f"draft tokens a round, at most {LONGEST_LOOKAHEAD} ({fixed})"
    group.add_argument(
        "--lookahead", type=lookahead, default="auto" if fixed is None else fixed,
        metavar="N|auto" if fixed is None else "N",
        help=argparse.SUPPRESS if "lookahead" in refused else tokens,
    )  # fmt: skip
    add_machine_options(group)


def add_machine_options(group: argparse._ArgumentGroup) -> None:
    """What models run on, and with how much of it."""
    group.add_argument(
        "--ctx-size", type=positive, metavar="N",
        help="tokens the context holds (default: the model's own, at most 8192)",
    )  # fmt: skip
    group.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: the usable CPUs)"
    )
    group.add_argument(
        "--gpu-layers", type=count, metavar="N",
        help="layers of GGUF models on the GPU (default: all, if it can)",
    )  # fmt: skip
    group.add_argument(
        "--device", choices=DEVICES, default="auto",
        help="what models run on; the last three concern ONNX alone (auto: the GPU that llama.cpp "
        "was built for, CUDA or DirectML for ONNX, else the CPU)",
    )  # fmt: skip
    group.add_argument(
        "--allow-cpu", action="store_true",
        help="run on the CPU, and say so, where --device can't be had (default: stop)",
    )  # fmt: skip


def add_answer_options(
    parser: argparse.ArgumentParser, max_tokens: int = 1024, *, system: bool = True
) -> None:
    """How an answer is sampled and how long it gets; `system`: whether it has a system prompt."""
    group = parser.add_argument_group("answers")
    if system:
        group.add_argument("--system", metavar="TEXT", help="the system prompt (none)")
    group.add_argument(
        "--max-tokens", type=count, default=max_tokens, metavar="N",
        help=f"the longest answer ({max_tokens})",
    )  # fmt: skip
    group.add_argument(
        "--temperature", type=number, default=0.7, metavar="T",
        help="0 takes the likeliest token, more is more varied (0.7)",
    )  # fmt: skip
    group.add_argument(
        "--top-k", type=count, default=40, metavar="K",
        help="of the K likeliest tokens; 0: all (40)",
    )  # fmt: skip
    group.add_argument(
        "--top-p", type=number, default=0.95, metavar="P",
        help="of the likeliest tokens up to this sum; 1: all (0.95)",
    )  # fmt: skip
    group.add_argument(
        "--min-p", type=number, default=0.0, metavar="P",
        help="of tokens at least this share as likely as the likeliest; 0: all (0)",
    )  # fmt: skip
    group.add_argument(
        "--typical-p", type=number, default=1.0, metavar="P",
        help="of the tokens of most typical surprise up to this sum; 1: all (1)",
    )  # fmt: skip
    group.add_argument(
        "--repetition-penalty", type=number, default=1.0, metavar="X",
        help="makes tokens that occurred less likely; 1: off (1)",
    )  # fmt: skip
    group.add_argument(
        "--presence-penalty", type=number, default=0.0, metavar="X",
        help="taken off the logits of tokens that occurred (0)",
    )  # fmt: skip
    group.add_argument(
        "--frequency-penalty", type=number, default=0.0, metavar="X",
        help="taken off once for each time a token occurred (0)",
    )  # fmt: skip
    group.add_argument(
        "--penalty-window", type=count, default=0, metavar="N",
        help="the newest tokens that the penalties count, prompt included; 0: all (0)",
    )  # fmt: skip
    group.add_argument(
        "--rule", choices=RULES,
        help="how drafts are verified; both are exact (rejection, or reproducible with a seed)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=count, metavar="N",
        help="the same text again for the same seed, drafted or not, up to rounding: selects the "
        "rule `reproducible` (none)",
    )  # fmt: skip


def count(text: str) -> int:
    """A whole number from 0."""
    return _whole_number(text, 0)


def positive(text: str) -> int:
    """A whole number from 1."""
    return _whole_number(text, 1)


def number(text: str) -> float:
    """Any number; what it may be is for whom it is given to."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def lookahead(text: str) -> int | Literal["auto"]:
    """Draft tokens a round, or `auto`."""
    if text == "auto":
        return "auto"
    value = _whole_number(text, 0, "neither a number nor `auto`")
    if value > LONGEST_LOOKAHEAD:
        raise argparse.ArgumentTypeError(f"{value} is above {LONGEST_LOOKAHEAD}")
    return value


def check_whole(name: str, value: object) -> None:
    """Raises ConfigError for what is no whole number, as JSON gives 40.0."""
    if not isinstance(value, Integral):  # numpy's are, too
        raise ConfigError(f"{name} must be a whole number, not {value!r}")


def check_lookahead(lookahead: int) -> None:
    """Raises ConfigError where a fixed lookahead can't be asked for."""
    check_whole("lookahead", lookahead)
    if lookahead < 0:
        raise ConfigError(f"lookahead must be 0 (plain decoding) or more, not {lookahead}")
    if lookahead > LONGEST_LOOKAHEAD:
        raise ConfigError(f"lookahead must be at most {LONGEST_LOOKAHEAD}, not {lookahead}")


def _whole_number(text: str, least: int, wrong: str = "no whole number") -> int:
    # argparse would answer a ValueError with the name of a function.
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is {wrong}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is below {least}")
    return value


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list like lookup,model")
    return names
