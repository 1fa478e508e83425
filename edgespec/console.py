"""The line chat, and answers on plain standard output.

Invariant: answers go to stdout, everything else to stderr; Ctrl+C stops an answer and never tears
the conversation. What it has in common with the chat on the whole screen is imported as it is used.
"""

from __future__ import annotations

import queue
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import time
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError
from edgespec.figures import summary
from edgespec.generation import Chunk, Generation, Result
from edgespec.platform import expanded
from edgespec.runtime import Runtime
from edgespec.terminal import printable

if TYPE_CHECKING:
    from edgespec.tui.messages import Settings, Turn

_END = "Ctrl+Z with Enter" if sys.platform == "win32" else "Ctrl+D"
"""How people end the input."""
_LONG = 128
"""Tokens of a prompt still to be read, from which on it is told how many they are."""
_END_TYPED = ("\x04", "\x1a")
"""Ctrl+D and Ctrl+Z where the console takes them for text, as Windows' does with the first."""

HELP = f"""\
Type a message and press Enter; a line that ends in \\ goes on in the next, and a space before a
slash makes a message of it. Ctrl+C stops an answer, {_END} or /quit leaves.
  /clear            forget the conversation
  /system TEXT      set the system prompt (and forget the conversation); alone, show it
  /set NAME VALUE   change a setting until you leave; without VALUE as usual again; /set alone
                    lists them
  /stats            figures of the last answer
  /export [FILE]    write the conversation to FILE, which ends in .md or .json
  /quit             leave"""


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


class _Reading:
    """A line on the terminal that says how far a long prompt is read, until the answer comes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._seen = sys.stderr is not None and sys.stderr.isatty()
        self._shown = ""

    def show(self) -> None:
        """Where there is much left to read, how much was."""
        read, tokens = self._generation.prompt_read, self._generation.counters.prompt_tokens
        if not self._seen or not read or (tokens - read < _LONG and not self._shown):
            return
        line = f"reading the prompt: {read:,} of {tokens:,} tokens"
        if line != self._shown and read < tokens:
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
            self._shown = line

    def wipe(self) -> None:
        """The terminal as it was."""
        if self._shown:
            print(f"\r{' ' * len(self._shown)}\r", end="", file=sys.stderr, flush=True)
            self._shown = ""


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
    reading = _Reading(generation)
    while True:
        try:
            item = chunks.get(timeout=0.1)  # without a limit it can't be interrupted on Windows
        except queue.Empty:
            reading.show()
            continue
        reading.wipe()
        if isinstance(item, Chunk):
            yield item
            continue
        thread.join()
        if item is not None:
            raise item
        return


def chat(runtime: Runtime, settings: Settings, pair: str) -> int:
    """Read messages line by line and answer each, until the input ends.

    Returns the exit status: 1 where a message that no person typed failed, else 0.

    settings: those that the runtime was opened with.
    pair: how people know what is loaded.
    """
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401 - line editing and history for input()
        say("Type a message; /help lists what else there is.")
    talk, failed = _Talk(runtime, settings, pair), False
    while True:
        try:
            line = _read(interactive)
        except KeyboardInterrupt:
            say("", f"{_END} or /quit leaves.")
            continue
        if line is None:
            if interactive:
                say("")
            return int(failed)
        if not line.strip():
            continue
        name, *words = line.split(maxsplit=1)
        if name in ("/quit", "/exit") and line.startswith("/"):
            return int(failed)
        try:
            if line.startswith("/") and name[1:].isalpha():
                talk.command(name, "".join(words).strip())
            else:
                talk.ask(line.removeprefix(" ") if line.startswith(" /") else line)
        except EdgespecError as error:
            say(f"edgespec: {error}")
            failed = not interactive
        except KeyboardInterrupt:
            say("", "stopped")


class _Talk:
    """What was said in a line chat, and the settings that the next answer is given with."""

    def __init__(self, runtime: Runtime, settings: Settings, pair: str) -> None:
        self._runtime, self._settings, self._pair = runtime, settings, pair
        self._last = ""
        self._begin()

    def _begin(self) -> None:
        self._conversation = self._runtime.conversation(self._settings.system or None)
        self._turns: list[Turn] = []

    def ask(self, question: str) -> None:
        """Answer a message. Raises EdgespecError."""
        from edgespec.tui.settings import sampling

        asked_at = time()
        generation = self._conversation.send(
            question, sampling(self._settings), max_tokens=self._settings.max_tokens
        )
        say(*(f"note: {note}" for note in generation.notes))
        try:
            stream(generation)
        except KeyboardInterrupt:  # a second Ctrl+C: the conversation keeps what came
            with suppress(EdgespecError):
                self._keep(question, generation.result, asked_at)
            raise
        except EdgespecError as error:  # what came stays, as on the whole screen
            if generation.text:
                print(flush=True)
                self._keep_failed(question, generation.text, str(error), asked_at)
            raise
        print(flush=True)
        result = generation.result
        self._last = summary(result, self._runtime.status())
        say(self._last)
        self._keep(question, result, asked_at)

    def _keep(self, question: str, result: Result, asked_at: float) -> None:
        if result.text or result.finish_reason != "cancelled":  # as the conversation keeps it
            self._turns.append(self._turn(question, result, asked_at))

    def _keep_failed(self, question: str, came: str, error: str, asked_at: float) -> None:
        from edgespec.chat import Message
        from edgespec.tui.messages import Turn

        self._conversation.messages += [Message("user", question), Message("assistant", came)]
        self._turns.append(Turn(question, came, None, error, self._pair, asked_at))

    def _turn(self, question: str, result: Result, asked_at: float) -> Turn:
        from edgespec.tui.messages import Turn
        from edgespec.tui.meter import Meter

        meter = Meter(len(self._turns), self._runtime)
        meter.count(result.origins)
        figures = meter.figures(result.counters, rounds_over=True)
        reason = result.finish_reason
        return Turn(question, result.text, reason, "", self._pair, asked_at, figures)

    def command(self, name: str, words: str) -> None:
        """Do what a command says. Raises EdgespecError."""
        if name == "/help":
            say(HELP)
        elif name == "/clear":
            self._begin()
        elif name == "/system":
            self._system(words)
        elif name == "/set":
            key, value = re.split(r"\s*[=\s]\s*", f"{words} ", maxsplit=1)
            self._set(key, value.strip())
        elif name == "/stats":
            say(self._last or "Nothing was answered yet.")
        elif name == "/export":
            self._export(words)
        else:
            say(f"There is no {name} here; /help lists what there is, a space before it sends it.")

    def _system(self, words: str) -> None:
        if words:
            self._set("system", words)
        elif self._settings.system:
            say(f"The system prompt: {self._settings.system}", "/set system takes it away.")
        else:
            say("There is no system prompt: /system TEXT sets one.")

    def _set(self, key: str, value: str) -> None:
        """Change a setting; without a key, list them."""
        from edgespec.tui.messages import LOADED_WITH
        from edgespec.tui.settings import FIELDS, as_text, told, with_text

        before = self._settings
        if not key:
            say(*(f"{field.key} = {as_text(before, field.key)}" for field in FIELDS))
            return
        changed = with_text(before, key, value)
        if any(getattr(changed, name) != getattr(before, name) for name in LOADED_WITH):
            say(f"{key} counts when a model is loaded: leave, and start the chat with that option.")
            return
        self._settings = changed
        if changed.system != before.system:
            self._begin()
        say(f"{told(changed, key, value)}, until you leave.")

    def _export(self, words: str) -> None:
        """Write the conversation to a file; "md" or "json" may stand before its name."""
        from edgespec.tui.export import export, file_name
        from edgespec.tui.records import title_of

        if not self._turns:
            say("There is nothing to export yet.")
            return
        form, _, rest = words.partition(" ")
        form, name = (form, rest.strip()) if form in ("md", "json") else ("", words)
        title, system = title_of(self._turns[0].question), self._settings.system
        path = expanded(name or f"{file_name(title)}.{form or 'md'}")
        say(f"Written to {export(path, self._turns, title=title, system=system, form=form)}")


def _read(interactive: bool) -> str | None:
    """One message; None at the end of the input."""
    lines: list[str] = []
    while True:
        try:
            prompt = "… " if lines else "> "
            if interactive and sys.stdout.isatty():
                line = input(prompt)  # which tells the line editor how wide it is
            else:
                if interactive:  # input() would put its prompt on stdout
                    print(prompt, end="", file=sys.stderr, flush=True)
                line = input()
            if interactive and line.strip() in _END_TYPED:
                raise EOFError
        except EOFError:
            return "\n".join(lines) if lines else None
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])
