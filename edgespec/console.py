"""The line chat, and answers on plain standard output.

Invariant: answers go to stdout, everything else to stderr; Ctrl+C stops an answer and never tears
the conversation.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from edgespec.conversation import Conversation
from edgespec.errors import EdgespecError
from edgespec.figures import summary
from edgespec.generation import Chunk, Generation
from edgespec.runtime import Runtime
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


def stream(generation: Generation, *, silent: bool = False) -> bool:
    """Print an answer as it comes; False if Ctrl+C stopped it."""
    with _interrupts(generation) as stopped:
        try:
            for chunk in _in_background(generation):
                if not silent:
                    print(printable(chunk.text), end="", flush=True)
        finally:
            generation.cancel()  # stdout may be gone: don't go on computing for nobody
        return not stopped.is_set()


@contextmanager
def _interrupts(generation: Generation) -> Iterator[threading.Event]:
    """Within, Ctrl+C stops the answer and nothing else; a second one is what it always is."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        generation.cancel()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _in_background(generation: Generation) -> Iterator[Chunk]:
    """Run a generation in a thread, so that Ctrl+C is seen while native code runs."""
    chunks: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()

    def fill() -> None:
        end: BaseException | None = None
        try:
            for chunk in generation:
                chunks.put(chunk)
        except BaseException as error:  # handed to the reader
            end = error
        chunks.put(end)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    while True:
        try:
            item = chunks.get(timeout=0.1)  # without a limit it can't be interrupted on Windows
        except queue.Empty:
            continue
        if isinstance(item, Chunk):
            yield item
            continue
        thread.join()
        if item is not None:
            raise item
        return


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
            try:
                last = _turn(runtime, conversation, line, sampling, max_tokens) or last
            except KeyboardInterrupt:
                say("", "stopped")


def _turn(
    runtime: Runtime,
    conversation: Conversation,
    line: str,
    sampling: SamplingParams,
    max_tokens: int,
) -> str | None:
    try:
        generation = conversation.send(line, sampling, max_tokens=max_tokens)
        say(*(f"note: {note}" for note in generation.notes))
        stream(generation)
    except EdgespecError as error:
        say(f"edgespec: {error}")
        return None
    print(flush=True)
    figures = summary(generation.result, runtime.status())
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
