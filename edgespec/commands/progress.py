"""How far an export is, on stderr.

Invariant: a terminal shows one line that changes, with an estimate of what is left; anything else
gets one line for each stage, so that a log stays short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgespec.terminal import printable

if TYPE_CHECKING:
    from edgespec.exporters.progress import Report


@contextmanager
def shown() -> Iterator[Report]:
    """A report for `edgespec.exporters`, drawn while the block lasts."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines()
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.markup import escape

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        last = ""

        def report(stage: str, done: int = 0, total: int | None = 0, /) -> None:
            nonlocal last
            if stage != last:  # the estimate starts again with it
                bar.reset(task, description=escape(printable(stage)), total=total or None)
                last = stage
            bar.update(task, completed=done, total=total or None)

        yield report


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, stage: str, _done: int = 0, _total: int | None = 0, /) -> None:
        if stage != self._last:
            print(printable(f"{stage}..."), file=sys.stderr, flush=True)
            self._last = stage
