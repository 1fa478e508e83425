"""The measurement itself: each prompt is answered by every side in turn.

The protocol is Spec-Bench's (Xia et al. 2024): batch 1, by category. Caches are empty before each
answer. The order of the sides changes from trial to trial, so that a machine that gets slower by
the minute slows all of them alike. Invariant: what is written is one whole trial, in which only
another program's answers may be missing; a measurement that was stopped goes on with the trials
that are missing; what doesn't fit the context is refused before the first of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from edgespec.bench.exactness import difference, parting
from edgespec.bench.files import Writer
from edgespec.bench.peers import Gone, Unanswered
from edgespec.bench.prompts import Prompt, long_prompt
from edgespec.bench.record import Answer, Key, Trial
from edgespec.bench.sides import PLAIN, RuntimeSide, Side
from edgespec.chat import Message
from edgespec.errors import ConfigError, EdgespecError
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, SamplingParams

WARM_UP = "Write a short Python function that reverses a list, then explain it in two sentences."
WARM_UP_TOKENS = 32
CONTEXT = "context"
"""The category of trials that measure speed over the length of the text."""

Prepared = dict[tuple[str, int | None], list[int]]
"""Token ids by the name of a prompt or length, and by the length (None: a prompt)."""


@dataclass(frozen=True)
class Plan:
    """What is asked of one pair.

    `sampling` has a seed unless it is greedy, raised by one for each repetition. `contexts` are
    lengths of text, in tokens, behind which the speed is measured too.
    """

    pair: str
    prompts: Sequence[Prompt]
    max_tokens: int
    repeats: int = 1
    all_turns: bool = False
    sampling: SamplingParams = GREEDY
    contexts: Sequence[int] = ()


@dataclass(frozen=True)
class _Task:
    """A trial to come: a turn of a prompt, or (`prompt` None) a length of text."""

    name: str
    category: str
    turn: int
    repeat: int
    prompt: Prompt | None
    context: int | None = None


def measure(
    runtime: Runtime,
    sides: Sequence[Side],
    plan: Plan,
    writer: Writer,
    progress: Callable[[int, int, str, float | None], None] = lambda *_: None,
    *,
    prepared: Prepared | None = None,
    begin: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the trials that `writer` doesn't hold yet; sides[0] is plain decoding.

    `progress` is told trials done, trials in all, what is being answered, and seconds left.
    `prepared` is what `prepare` gave. `begin` is called once all sides have shown that they can
    answer, before the first trial, or at once where none is missing. `say` is told of the first
    prompt that another program couldn't answer. One that is gone on two prompts running ends the
    measurement with EdgespecError, before the second is written.
    """
    prepared = prepare(runtime, plan) if prepared is None else prepared
    tasks = list(_tasks(plan))
    places = list(_places(tasks))
    done = {t.key: t for t in writer.results.trials if t.pair == plan.pair}
    missing = [
        (place, task)
        for place, task in zip(places, tasks, strict=True)
        if (plan.pair, task.name, task.turn, task.repeat, task.context) not in done
    ]
    if missing:
        _warm_up(runtime, sides, plan)
    begin()
    if not missing:
        return
    began = clock()
    lost: set[str] = set()  # programs that were gone on the prompt before
    for number, (place, task) in enumerate(missing):
        left = (clock() - began) / number * (len(missing) - number) if number else None
        progress(len(tasks) - len(missing) + number, len(tasks), task.category, left)
        first = prepared[task.name, task.context]
        ids = _later_turn(runtime, plan, task, done) if task.turn else first
        trial, gone = _trial(runtime, order(sides, place), plan, task, ids)
        for error in gone:
            if error.peer in lost:
                raise EdgespecError(f"on two prompts running, {error}; the same command goes on")
        lost = {error.peer for error in gone}
        for side, reason in trial.unanswered.items():
            if not any(side in one.unanswered for one in done.values()):
                say(f"{side} gave no answer to {task.name}: {reason}; that is counted in the end")
        writer.append(trial)
        done[trial.key] = trial
    progress(len(tasks), len(tasks), "", 0.0)


def prepare(runtime: Runtime, plan: Plan) -> Prepared:
    """The ids of each prompt's first turn and of each text length, by name and length.

    Raises ConfigError where one, with its answer, or with its later turns and theirs, is longer
    than the context.
    """
    found: Prepared = {}
    for prompt in plan.prompts:
        found[prompt.name, None] = _encode(runtime, [Message("user", prompt.turns[0])])
        turns = prompt.turns if plan.all_turns else prompt.turns[:1]
        messages = [
            message
            for text in turns
            for message in (Message("user", text), Message("assistant", "."))
        ]
        length = len(_encode(runtime, messages[:-1])) + len(turns) * plan.max_tokens
        if length > runtime.context_size:
            raise ConfigError(
                f"a context of {runtime.context_size} tokens can't hold the prompt {prompt.name} "
                f"with answers of {plan.max_tokens} ({length} in all): raise --ctx-size, lower "
                "--tokens, or leave that prompt out"
            )
    for context in plan.contexts:
        if context + plan.max_tokens > runtime.context_size:
            raise ConfigError(
                f"a context of {runtime.context_size} tokens can't hold {context} and an "
                f"answer of {plan.max_tokens}: raise --ctx-size or leave that length out"
            )
    for context in plan.contexts:
        found[f"{CONTEXT} {context}", context] = long_prompt(
            lambda text: _encode(runtime, [Message("user", text)]), context
        )
    return found


def _places(tasks: Sequence[_Task]) -> Iterator[int]:
    """Where each trial stands in the cycle of orders.

    Each category and each text length goes through the cycle on its own, and no two begin at the
    same place: else sides would take turns over all, but not within one.
    """
    counts: Counter[tuple[str, int | None]] = Counter()
    begins: dict[tuple[str, int | None], int] = {}
    for task in tasks:
        kind = (task.category, task.context)
        yield begins.setdefault(kind, len(begins)) + counts[kind]
        counts[kind] += 1


def order(sides: Sequence[Side], number: int) -> list[Side]:
    """The turns of a trial.

    Each side is at each place about equally often, after a few trials too; after twice as many
    trials as sides each was also right behind each of the others equally often (Williams 1949).
    """
    count, half = len(sides), len(sides) // 2
    # An even count's next trial is this one backwards, an odd count's nearly so.
    shift = number * half if count % 2 else number // 2 + number % 2 * half
    zigzag = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(count)]  # 0, 1, -1, 2, -2, ...
    turned = [sides[(shift + step) % count] for step in zigzag]
    return turned[::-1] if count % 2 and number // count % 2 else turned


def _tasks(plan: Plan) -> Iterator[_Task]:
    for repeat in range(plan.repeats):
        for prompt in plan.prompts:
            for turn in range(len(prompt.turns) if plan.all_turns else 1):
                yield _Task(prompt.name, prompt.category, turn, repeat, prompt)
        for context in plan.contexts:
            yield _Task(f"{CONTEXT} {context}", CONTEXT, 0, repeat, None, context)


def _warm_up(runtime: Runtime, sides: Sequence[Side], plan: Plan) -> None:
    """One short answer of each side that isn't counted: pages are read, planners have begun."""
    ids = runtime.encode_messages([Message("user", WARM_UP)])
    for side in sides:
        side.answer(ids, WARM_UP_TOKENS, plan.sampling)


def _later_turn(runtime: Runtime, plan: Plan, task: _Task, done: dict[Key, Trial]) -> list[int]:
    """The ids that every side is given; earlier turns were answered by plain decoding."""
    assert task.prompt is not None
    messages: list[Message] = []
    for turn, text in enumerate(task.prompt.turns[: task.turn + 1]):
        messages.append(Message("user", text))
        if turn < task.turn:
            answer = done[plan.pair, task.name, turn, task.repeat, None].answer(PLAIN)
            messages.append(Message("assistant", answer.text if answer else ""))
    return _encode(runtime, messages)


def _encode(runtime: Runtime, messages: Sequence[Message]) -> list[int]:
    return list(runtime.encode_messages(messages))


def _trial(
    runtime: Runtime, sides: Sequence[Side], plan: Plan, task: _Task, ids: list[int]
) -> tuple[Trial, list[Gone]]:
    """All sides' answers in turn, and which programs were gone."""
    sampling = plan.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + task.repeat)
    answers: list[Answer] = []
    unanswered: dict[str, str] = {}
    gone: list[Gone] = []
    for side in sides:
        try:
            if task.context is not None and isinstance(side, RuntimeSide):
                # What was read stays: a long text's first pass would take minutes on each side.
                answers.append(side.answer(ids, plan.max_tokens, sampling, read=True))
            else:
                answers.append(side.answer(ids, plan.max_tokens, sampling))
        except Unanswered as error:
            unanswered[side.name] = str(error)
        except Gone as error:
            unanswered[side.name] = error.reason
            gone.append(error)
    trial = Trial(
        pair=plan.pair,
        prompt=task.name,
        category=task.category,
        turn=task.turn,
        repeat=task.repeat,
        prompt_tokens=len(ids),
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
        answers=_compared(runtime, ids, answers, sampling),
        context=task.context,
        unanswered=unanswered,
    )
    return trial, gone


def _compared(
    runtime: Runtime, ids: list[int], answers: list[Answer], sampling: SamplingParams
) -> list[Answer]:
    """The answers, each with where it differs from plain's.

    Whether rounding explains that is worked out for our own sides, once for those that part alike;
    another program rounds in its own way. Under `rejection` each side draws a text of its own, so
    there is nothing to compare.
    """
    if not sampling.greedy and sampling.chosen_rule == "rejection":
        return answers
    plain = next(answer for answer in answers if answer.side == PLAIN).tokens
    known: dict[tuple[int, int | None], dict[str, Any] | None] = {}

    def where(answer: Answer) -> dict[str, Any] | None:
        found = parting(plain, answer.tokens)
        if found is None or "/" in answer.side:
            return found
        key = (found["token"], found["other"])
        if key not in known:
            known[key] = difference(runtime, ids, plain, answer.tokens, sampling)
        return known[key]

    return [replace(answer, difference=where(answer)) for answer in answers]
