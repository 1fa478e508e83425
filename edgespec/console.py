"""The line chat, and answers on plain standard output.

Invariant: answers go to stdout, everything else to stderr; Ctrl+C stops an answer and never tears
the conversation.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from edgespec.errors import EdgespecError
from edgespec.figures import summary
from edgespec.generation import Chunk, Generation
from edgespec.runtime import Conversation, Runtime
from edgespec.sampling import SamplingParams
from edgespec.terminal import printable

HELP = """\
Type a message and press Enter; a line that ends in \\ goes on in the next.
Ctrl+C stops an answer, Ctrl+D or /quit leaves.
  /clear          forget the conversation
  /system TEXT    set the system prompt (and forget the conversation)
  /stats          figures of the last answer
  /quit           leave"""


def say(*lines: str) -> None:
    """A message to the person, on stderr."""
    for line in lines:
        print(printable(line), file=sys.stderr, flush=True)


def stream(generation: Generation) -> bool:
    """Print an answer as it comes; False if Ctrl+C stopped it."""
    completed = True
    chunks = _in_background(generation)
    try:
        while True:
            try:
                chunk = next(chunks, None)
            except KeyboardInterrupt:
                completed = False
                generation.cancel()
                continue
            if chunk is None:
                return completed
            sys.stdout.write(printable(chunk.text))
            sys.stdout.flush()
    finally:
        generation.cancel()  # stdout may be gone: don't go on computing for nobody


class _in_background(Iterator[Chunk]):  # noqa: N801 - used as a function
    """Runs a generation in a thread, so that Ctrl+C is seen while native code runs."""

    def __init__(self, generation: Generation) -> None:
        self._queue: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._fill, args=(generation,), daemon=True)
        self._thread.start()

    def _fill(self, generation: Generation) -> None:
        end: BaseException | None = None
        try:
            for chunk in generation:
                self._queue.put(chunk)
        except BaseException as error:  # handed to the reader
            end = error
        self._queue.put(end)

    def __next__(self) -> Chunk:
        while True:
            # Waiting without a limit can't be interrupted on Windows.
            with suppress(queue.Empty):
                item = self._queue.get(timeout=0.1)
                if isinstance(item, Chunk):
                    return item
                self._thread.join()
                if item is None:
                    raise StopIteration
                raise item


def chat(runtime: Runtime, sampling: SamplingParams, *, system: str | None, max_tokens: int) -> int:
    """Read messages line by line and answer each, until the input ends."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401 - line editing and history for input()
        say("Type a message; /help lists what else there is.")
    conversation = runtime.conversation(system)
    last = ""
    while True:
        try:
            line = _read(interactive)
        except KeyboardInterrupt:
            say("", "Ctrl+D or /quit leaves.")
            continue
        if line is None:
            if interactive:
                say("")
            return 0
        command, _, rest = line.strip().partition(" ")
        if not command:
            continue
        if command in ("/quit", "/exit"):
            return 0
        if command == "/help":
            say(HELP)
        elif command == "/clear":
            conversation.clear()
        elif command == "/system":
            conversation = runtime.conversation(rest.strip() or None)
        elif command == "/stats":
            say(last or "Nothing was answered yet.")
        elif command.startswith("/") and command[1:].isalpha():
            say(f"There is no {command} here; /help lists what there is.")
        else:
            last = _turn(conversation, line, sampling, max_tokens) or last


def _turn(
    conversation: Conversation, line: str, sampling: SamplingParams, max_tokens: int
) -> str | None:
    try:
        generation = conversation.send(line, sampling, max_tokens=max_tokens)
        say(*(f"note: {note}" for note in generation.notes))
        stream(generation)
    except EdgespecError as error:
        say(f"edgespec: {error}")
        return None
    print(flush=True)
    figures = summary(generation.result)
    say(figures)
    return figures


def _read(interactive: bool) -> str | None:
    """One message; None at the end of the input."""
    lines: list[str] = []
    while True:
        try:
            if interactive:
                # input() puts its prompt on stdout unless both ends are terminals.
                print("… " if lines else "> ", end="", file=sys.stderr, flush=True)
            line = input()
        except EOFError:
            return "\n".join(lines) if lines else None
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])
