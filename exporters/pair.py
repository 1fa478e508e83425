"""What a target and its draft must share, in whichever format they are exported.

Invariant: a pair that passes has one meaning for every id that both know, which is what the runtime
asks of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Outline


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
