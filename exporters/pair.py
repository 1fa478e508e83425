"""What a target and its draft must share, in whichever format they are exported.

Invariant: a pair that passes has one meaning for every id that both know, which is what the runtime
asks of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Outline
from edgespec.exporters.staging import Stage


@contextlib.contextmanager
def kept(work: Stage, folder: Path) -> Iterator[Path]:
    """A folder whose own exports go on, after a stop, from the steps that they finished in it."""
    folder.mkdir(exist_ok=True)
    work.finish("begun", folder)
    try:
        yield folder
    except BaseException:
        if folder.is_dir() and not any(folder.iterdir()):
            work.forget("begun")
        raise


def refuse_other_tokens(
    target: Outline, draft: Outline, ours: Sequence[str], theirs: Sequence[str]
) -> None:
    """Raises ExportError with the first id that means another text to the draft.

    The runtime's rule: one list may be longer, but ids that both have mean the same.
    """
    for token, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            raise ExportError(
                f"{draft.name} can't draft for {target.name}: token {token} is {b!r} there and "
                f"{a!r} here; choose a draft of the same family."
            )
