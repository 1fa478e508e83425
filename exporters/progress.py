"""How an export tells how far it is.

Invariant: a stage is named in a few plain words, and its count never falls while it lasts.
"""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Told what is being done and how much of it is; may raise to stop the export.

    stage: what is being done, as in "writing tensors". done, total: bytes; total is None while it
    isn't known, and both are 0 where there is nothing to count.
    """

    def __call__(self, stage: str, done: int = 0, total: int | None = 0, /) -> None: ...


def silent(stage: str, done: int = 0, total: int | None = 0, /) -> None:
    """A report for nobody."""
