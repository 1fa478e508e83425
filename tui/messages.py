"""What the parts of the chat say to each other: frozen values, and nothing that computes.

Invariant: every value is immutable and light (no Runtime, no numpy, no Textual), and whatever is
about an answer names its turn, so that a late token of an old turn is known as one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Origin = Literal["accepted", "recovered", "bonus", "plain"]
"""Where a token came from; the words of `edgespec.verify.Origin`."""

FinishReason = Literal["end", "stop", "length", "context", "cancelled"]
"""Why an answer ended; the words of `edgespec.text.FinishReason`."""

Lookahead = int | Literal["auto"]


# ------------------------------------------------------------------------------ what is asked for


class Choice(NamedTuple):
    """What to load: a pair of the registry by name, or a target's file. Neither: the default."""

    pair: str | None = None
    target: str | None = None

    @property
    def key(self) -> str:
        """The name under which its settings are kept: a pair's own, or the whole path of a file."""
        if self.target is not None:
            return os.path.abspath(os.path.expanduser(self.target))  # noqa: PTH100, PTH111 - no errors
        return self.pair or "the default pair"

    @property
    def label(self) -> str:
        """How people know it: a pair's name, or a file's with as much of its path as tells it."""
        return self.key if self.target is None else _told_apart(Path(self.key))


def _told_apart(path: Path) -> str:
    """A model's name: that of its file, behind that of its folder where many files have that name.

    A folder of the hub's cache is called after a commit, and its model after the repository.
    """
    parts = [path.name or str(path)]
    while (path.name == "onnx" or path.suffix == ".onnx") and path.parent.name:
        path = path.parent
        parts.insert(0, path.name)
    repo = path.parent.parent.name
    if path.parent.name == "snapshots" and repo.startswith("models--"):
        parts[0] = repo.removeprefix("models--").replace("--", "/")
    return "/".join(parts)


@dataclass(frozen=True)
class Settings:
    """What a person can set; one pair's settings are kept together.

    The first group counts from the next answer on. The second (`LOADED_WITH`) is what a pair is
    loaded with: a change loads it again.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    seed: int | None = None
    rule: Literal["rejection", "reproducible"] | None = None
    max_tokens: int = 1024
    system: str = ""

    lookahead: Lookahead = "auto"
    drafters: tuple[str, ...] | None = None  # "lookup" and model files; None: the pair's own
    context_size: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None


LOADED_WITH = ("lookahead", "drafters", "context_size", "threads", "gpu_layers")
"""The settings that take effect when a pair is loaded."""


@dataclass(frozen=True)
class Turn:
    """A question with its answer, as it is shown, kept and exported.

    `reason` None: the answer failed, and `error` says how. `figures` are those of the answer's end.
    `asked_at` is seconds since the epoch.
    """

    question: str
    answer: str = ""
    reason: FinishReason | None = None
    error: str = ""
    pair: str = ""
    asked_at: float = 0.0
    figures: Figures | None = None


# ------------------------------------------------------------------------- what the bridge reports


class DrafterFigures(NamedTuple):
    """One drafter's part in an answer."""

    name: str
    rounds: int
    drafted: int
    accepted: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Figures:
    """An answer's figures at one moment. None is "not known yet", never zero.

    Attributes:
        turn: the answer it is about.
        tokens, rounds: of the answer so far; of what was added to it, where it was continued.
        continued: whether there was a beginning of the answer, that these figures leave out.
        tokens_per_second, recent_tokens_per_second: in the mean, and over about the last second.
        gain: tokens per second over plain decoding's on this machine.
        ttft_seconds: time to the first token.
        acceptance_rate, mean_accepted_length: share of draft tokens that stood; tokens a round.
        drafter, lookahead, parked, reason: what the planner does now and why.
        drafters: each one's part.
        recent_accepted: draft tokens accepted in each of the newest rounds, oldest first.
        lengths: lengths[n] is how many rounds brought n tokens (lengths[0] is 0).
        context_used, context_size: tokens.
        memory_bytes: resident memory of this process.
    """

    turn: int
    tokens: int = 0
    rounds: int = 0
    tokens_per_second: float | None = None
    recent_tokens_per_second: float | None = None
    gain: float | None = None
    ttft_seconds: float | None = None
    acceptance_rate: float | None = None
    mean_accepted_length: float | None = None
    drafter: str = ""
    lookahead: int = 0
    parked: bool = False
    reason: str = ""
    drafters: tuple[DrafterFigures, ...] = ()
    recent_accepted: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    context_used: int = 0
    context_size: int = 0
    memory_bytes: int | None = None
    continued: bool = False


class Piece(NamedTuple):
    """One token of an answer: its text, where it came from and, where kept, its probability.

    The text is empty where the token ends inside a character, which comes with a later one.
    """

    text: str
    origin: Origin
    probability: float | None = None


class Loading(NamedTuple):
    """A pair is being loaded; `what` is a sentence on what is being waited for."""

    load: int
    what: str


class Measured(NamedTuple):
    """One pass of the measurement of a new pair: kind is "check" or a drafter's name."""

    load: int
    kind: str
    tokens: int
    seconds: float


class Loaded(NamedTuple):
    """A pair is ready; `notes` are sentences the person should read.

    `drafters` are names, with what each runs on where that isn't `device`.
    """

    load: int
    choice: Choice
    name: str
    device: str
    drafters: tuple[str, ...]
    context_size: int
    notes: tuple[str, ...] = ()


class LoadFailed(NamedTuple):
    """A pair couldn't be loaded. What was loaded before it is gone. Empty `error`: cancelled."""

    load: int
    choice: Choice
    error: str


class Downloading(NamedTuple):
    """Bytes of one model of a pair; may begin again at 0, as unpacking follows downloading."""

    pair: str
    model: str
    done_bytes: int
    total_bytes: int | None


class DownloadEnded(NamedTuple):
    """A pair's models are all here; or `error` says why not; or it was cancelled."""

    pair: str
    error: str = ""
    cancelled: bool = False


class Started(NamedTuple):
    """An answer is under way; `notes` are sentences about its prompt."""

    turn: int
    notes: tuple[str, ...] = ()


class Streamed(NamedTuple):
    """New text of an answer, and the tokens that made it.

    `completes` is what it takes the place of at the end of the text before: U+FFFD for a character
    that is whole now.
    """

    turn: int
    text: str
    pieces: tuple[Piece, ...]
    completes: str = ""


class Finished(NamedTuple):
    """An answer ended by itself, at a limit, or because it was stopped.

    `text` is the whole of it; continued answers include what was there before. `notes` are
    sentences about what went wrong on the way.
    """

    turn: int
    text: str
    reason: FinishReason
    figures: Figures
    notes: tuple[str, ...] = ()


class Failed(NamedTuple):
    """An answer that can't be given; one sentence says why."""

    turn: int
    error: str


Event = (
    Loading | Measured | Loaded | LoadFailed | Downloading | DownloadEnded
    | Started | Streamed | Figures | Finished | Failed
)  # fmt: skip
"""All that a bridge reports."""


class Ask(NamedTuple):
    """A question for the bridge.

    Attributes:
        turn: a number no other answer has had.
        history: the turns before it: questions and answers.
        question: what is asked now.
        answer: the beginning of the answer, which is to be continued; "" begins one.
        settings: sampling, token limit and system prompt.
        probabilities: whether to keep each token's probability (costs a little each token).
    """

    turn: int
    history: tuple[tuple[str, str], ...]
    question: str
    settings: Settings
    answer: str = ""
    probabilities: bool = False


@dataclass(frozen=True)
class Preferences:
    """What holds for every pair."""

    theme: str = "edgespec-dark"
    panel: bool = False
    tokens: bool = False
    last_pair: str = ""
