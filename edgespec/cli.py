"""The command line: parse, call, print.

Invariant: an expected failure is one sentence on stderr and a non-zero exit, never a traceback;
nothing heavy is imported before the arguments are known to make sense.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from edgespec import __version__
from edgespec.errors import EdgespecError
from edgespec.terminal import printable

COMMANDS = ("chat", "run", "verify", "tune", "bench", "draft", "export", "pull", "models")
"""Each is a module of `edgespec.commands` that can `add` itself."""


_SIGPIPE = 141
"""The status of a command whose reader went away before it was done, as shells tell it. Where the
output is all that a command does, its parser sets 0 as `if_cut`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if sys.stdin is None:  # closed by who started this
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # what can't be read or shown becomes "?"
            if sys.platform == "win32" and not stream.isatty():  # else the console's code page
                stream.reconfigure(encoding="utf-8", errors="replace")
    status = _SIGPIPE
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            args = _parser(words).parse_args(words)
        except SystemExit:  # after --help, for one
            status = 0
            sys.stdout.flush()
            raise
        status = getattr(args, "if_cut", status)
        status = int(args.command(args))
        sys.stdout.flush()  # here, where a full disk is a sentence, and not when Python ends
        return status
    except EdgespecError as error:
        print(printable(f"edgespec: {error}"), file=sys.stderr)
        _drop_output()
        return 1
    except KeyboardInterrupt:
        print("edgespec: stopped", file=sys.stderr)
        _drop_output()
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError) or _windows_broken_pipe(error):
            # The reader went away (`| head`). Python would complain at exit.
            _drop_output()
            return status
        of = f" ({error.filename})" if error.filename else ""
        print(printable(f"edgespec: {error.strerror or error}{of}"), file=sys.stderr)
        _drop_output()
        return 1


def _windows_broken_pipe(error: OSError) -> bool:
    """Whether Windows says so that a pipe's reader is gone. (CPython's issue 79935)"""
    return sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None


def _drop_output() -> None:
    """What waits and can't be written goes nowhere, or Python would fail once more at its exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """What reads these words: the command that they begin with, or else all there are."""
    parser = argparse.ArgumentParser(
        prog="edgespec",
        description="Run language models faster, with the same output, by speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"edgespec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # Making the options of all commands takes longer than all else that a command begins with.
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        import_module(f"edgespec.commands.{name}").add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
