"""What drafters have proved to be worth: in this answer, in most answers, from one day to the next.

Invariant: it learns from outcomes alone, whoever chose the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.confidence import (
    GAP_EDGES,
    GAP_PRIOR,
    MATCH_EDGES,
    MATCH_PRIOR,
    NEAR_OUTLOOK,
    OUTLOOK,
    SIGNAL_PRIOR,
    Calibration,
    Outlook,
)
from edgespec.verify import Draft

_NEAR = ", near"  # behind a drafter's name, on disk
_HINT = 0.5  # of an outcome's weight, where the drafter knew less of the text


@dataclass
class ModelRates:
    """What is known of a drafter that costs time.

    Attributes:
        confidence: acceptance of its tokens by its confidence in them.
        signal: acceptance of its first token by the target's own certainty.
        outlook: acceptance of tokens not drawn yet.
    """

    confidence: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, GAP_PRIOR))
    signal: Calibration = field(default_factory=lambda: Calibration(GAP_EDGES, SIGNAL_PRIOR))
    outlook: Outlook = field(default_factory=Outlook)

    def unasked(self, certainty: float) -> None:
        """It drafted nothing: what its token would have been worth, by the target's certainty."""
        likely = self.signal.rate(certainty)
        self.outlook.learn(likely, 1 - likely, tried=False)

    def in_vain(self, certainty: float) -> None:
        """It was asked and had no token."""
        self.signal.learn(certainty, False)
        self.outlook.learn(0, 1)

    def hinted(self, stood: int, missed: bool, certainty: float) -> None:
        """It drafted from less of the text than this is about, which says something of this too."""
        self.signal.learn(certainty, stood > 0)
        self.outlook.learn(_HINT * stood, _HINT * missed, tried=False)

    def asked(self, drawn: Draft, stood: int, came: Sequence[int], certainty: float) -> None:
        """It drew some tokens, of which so many stood and behind which others came."""
        judge(self.confidence, drawn, came)
        self.signal.learn(certainty, stood > 0)
        self.outlook.learn(stood, stood < len(drawn))


class Experience:
    """The rates of all drafters: of models by name and whether they know the text's end alone, of
    free ones by name and length of match.
    """

    def __init__(self) -> None:
        self.models: dict[tuple[str, bool], ModelRates] = {}
        self._matches: dict[str, Calibration] = {}

    def begin(self) -> None:
        """Another answer begins."""
        for calibration in self._matches.values():
            calibration.begin()
        for model in self.models.values():
            model.confidence.begin()
            model.signal.begin()

    def model(self, name: str, near: bool = False) -> ModelRates:
        """What is known of a drafter that costs time, where it knows the text or its end alone."""
        if (name, near) not in self.models:
            self.models[name, near] = _near_rates() if near else ModelRates()
        return self.models[name, near]

    def match(self, name: str) -> Calibration:
        """Acceptance of a free drafter's guesses by the length of their match."""
        if name not in self._matches:
            self._matches[name] = Calibration(MATCH_EDGES, MATCH_PRIOR, strength=5.0)
        return self._matches[name]

    def to_json(self) -> dict[str, Any]:
        """What is usual, for another day; this answer counts as over."""
        return {
            "matches": {name: match.to_json() for name, match in self._matches.items()},
            "models": {
                name + _NEAR * near: {
                    "confidence": model.confidence.to_json(),
                    "signal": model.signal.to_json(),
                    "outlook": model.outlook.to_json(),
                }
                for (name, near), model in self.models.items()
            },
        }

    def recall(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        for name, rates in data["matches"].items():
            self.match(str(name)).recall(rates)
        for name, known in data["models"].items():
            model = self.model(str(name).removesuffix(_NEAR), str(name).endswith(_NEAR))
            model.confidence.recall(known["confidence"])
            model.signal.recall(known["signal"])
            model.outlook.recall(known["outlook"])


def _near_rates() -> ModelRates:
    signal = [NEAR_OUTLOOK / OUTLOOK * rate for rate in SIGNAL_PRIOR]
    return ModelRates(signal=Calibration(GAP_EDGES, signal), outlook=Outlook(NEAR_OUTLOOK))


def judge(calibration: Calibration, guess: Draft, came: Sequence[int]) -> None:
    """Learn how far a guess agreed with what came, used or not."""
    for token, confidence, real in zip(guess.tokens, guess.confidence, came, strict=False):
        calibration.learn(confidence, token == real)
        if token != real:
            break
