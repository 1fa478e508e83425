"""When a planner whose drafts don't pay looks for one all the same.

To look takes the free drafters' guesses and learning from the round, a tenth of a millisecond or
two. Where a plain token takes less than some ten, that is not nothing.

Invariant: while drafts come every round looks; parked, looking keeps to its share of the time, as
far as one round of `_RARE` is rare enough for that, and from `_LONG` such rounds of an answer on
one of `_RAREST`.
"""

from __future__ import annotations

import math

LOOK_SHARE = 0.005
"""The share of the time that a parked planner may spend on looking for a draft."""

_AFTER = 8  # rounds without a draft after which a planner has parked,
_LONG = 64  # and after which there is little hope of one
_RARE, _RAREST = 4, 16  # at least one round of so many looks, before and after that
_NEWEST = 0.05  # of the newest look's weight in what looking costs


class Parking:
    """How long no draft was made, and what looking for one costs."""

    def __init__(self) -> None:
        self._idle = _AFTER  # rounds since the latest draft
        self._cost = 0.0  # of a look, in plain rounds

    def begin(self) -> None:
        """An answer begins: what there was little hope of in another may come in this one."""
        self._idle = min(self._idle, _AFTER)

    @property
    def parked(self) -> bool:
        """Whether no draft was made for some rounds."""
        return self._idle >= _AFTER

    @property
    def every(self) -> int:
        """Parked, it looks in one round of so many."""
        most = _RARE if self._idle < _LONG else _RAREST
        return min(most, max(1, math.ceil(self._cost / LOOK_SHARE)))

    def looks(self) -> bool:
        """Whether the coming round looks for a draft."""
        return not self.parked or self._idle % self.every == 0

    def drafted(self) -> None:
        """A draft was made."""
        self._idle = 0

    def went_plain(self) -> None:
        """A round without a draft went by."""
        self._idle += 1

    def looked(self, cost: float) -> None:
        """What a look took that found nothing worth its time, in plain rounds."""
        # To learn from a round takes about as long as to look for its draft. A round that was
        # held up says nothing of either.
        self._cost += _NEWEST * (min(1.0, 2 * cost) - self._cost)
