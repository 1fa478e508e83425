"""Downloads on the console, for the commands: a program draws its own.

Invariant: nothing is drawn where stderr is no terminal, and nothing of a bar stays behind; what the
process prints meanwhile goes where it always goes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnFetch = Callable[[str, int, int | None], None]
"""Told of a model that is brought here: its name, bytes done and bytes in all (None: unknown);
it may start again at 0, as comparing follows downloading."""


@contextmanager
def bars() -> Iterator[OnFetch]:
    """Draw on stderr, while the block lasts, what is told of models that are under way."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    bar = rich.Progress(
        *columns, console=Console(stderr=True), transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    tasks: dict[str, rich.TaskID] = {}

    def on_fetch(name: str, done_bytes: int, total_bytes: int | None) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=None)
            bar.start()
        bar.update(tasks[name], completed=done_bytes, total=total_bytes)
        if done_bytes == total_bytes:
            bar.remove_task(tasks.pop(name))
            bar.stop()  # messages follow

    try:
        yield on_fetch
    finally:
        if tasks:
            bar.stop()
