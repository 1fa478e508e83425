"""The planner that measures: drafter and lookahead by expected tokens per second, or none.

At each round every choice is worth its expected tokens less what its time could have earned
otherwise (`worth.py`). Reach probabilities come from what each drafter's confidence proved to be
worth (`experience.py`), times from measured costs (`costs.py`). Invariant: plain decoding is always
one of the choices, and what the planner spends on finding out, at an expected loss, stays within
its shares of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgespec.confidence import top2_gap
from edgespec.costs import MAX_TOKENS, Costs
from edgespec.drafters import Drafter
from edgespec.errors import ConfigError
from edgespec.experience import Experience, judge
from edgespec.planner import Outcome, PlannerStatus
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft, checked
from edgespec.worth import MAX_DRAWN, Choices, Option

MAX_LOOKAHEAD = MAX_TOKENS - 1
PROBE_SHARE = 0.0045
"""The share of the time that may go into drafts thought not to pay, in case they do."""
PROBE_PART = 0.03
"""The part of an answer's time so far that its probes may take: short answers get none."""
LOOK_SHARE = 0.005
"""The share of the time that a parked planner may spend on looking for a draft."""
REFERENCE_SHARE = 0.003
"""The share of the time that may go into plain rounds, to know what they cost just now."""

_FADE = 0.97  # of a round's weight in the speed, for each round after it
_HELD_UP = 5.0  # times longer than expected, at most, a round is taken to have been
_PARKED = 8  # rounds without a draft after which the planner says that it has parked


class AdaptivePlanner:
    """Chooses anew at each round; see `Planner`."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._known = Experience()
        self._guesses: dict[str, Draft] = {}  # of free drafters, for this round
        self._best: Option | None = None  # this round's, taken or not
        self._copied = NO_DRAFT  # what a free drafter added behind this round's draft
        self._in_vain: tuple[str, bool] | None = None  # the model that was asked and had no guess
        self._drafted = NO_DRAFT  # the latest draft
        self._idle = _PARKED  # rounds since
        self._looking = 0.0  # what looking for a draft costs, in plain rounds
        self._every = 1  # parked, it looks for one in one round of so many
        self._rests = self._looked = False
        self._sought = False  # whether a draft was looked for in this answer
        self._plain_rounds = 0
        self._begun = self._length = 0  # of the text, when this answer began and now
        self._answer = 200.0  # tokens of an answer, in the mean
        # Of late, in rounds that had a free guess and in others; time in plain rounds.
        self._tokens, self._time = [1.0, 1.0], [1.0, 1.0]
        # Of this answer: its tokens, its time as reckoned and as it was, what of that went into
        # choosing tokens, and the time of its probes.
        self._answer_tokens = self._answer_time = self._real_time = self._probe_time = 0.0
        self._choosing = 0.0
        self._probe_credit = self._reference_credit = 0.0  # in plain rounds

    def begin(self, length: int) -> None:
        """See `Planner.begin`."""
        self._end_answer()
        self._begun = self._length = length
        self._answer_tokens = self._answer_time = self._real_time = self._probe_time = 0.0
        self._choosing = 0.0
        self._looked = self._sought = False
        self._best = None
        self._known.begin()

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """See `Planner.draft`."""
        longest = min(MAX_LOOKAHEAD, room)
        self._guesses.clear()
        self._copied, self._in_vain = NO_DRAFT, None
        self._rests = self._idle >= _PARKED and self._idle % self._every != 0
        if self._rests or longest <= 0:
            return NO_DRAFT
        drafters = {name: drafter for name, drafter in drafters.items() if not drafter.failed}
        self._best, self._sought = None, True
        free = [drafter for drafter in drafters.values() if drafter.free]
        for drafter in free:
            guess = drafter.propose(tokens, longest, sampler)
            if checked(guess, longest, sampler.width, drafter.name, free=True):
                self._guesses[drafter.name] = guess
        if not self._guesses and len(free) == len(drafters):
            return NO_DRAFT
        price = self._speed / self.costs.seconds("check", 1, len(tokens))  # tokens for a second
        choices = Choices(self.costs, self._known, price, tokens, longest)
        best = self._choose(choices, drafters, room)
        if best is None:
            return NO_DRAFT
        if best.drafter.free:
            return self._guesses[best.drafter.name].as_guess(best.size)
        go_on = choices.go_on(best.drafter.name, free, sampler, best.near)
        most = min(longest, MAX_DRAWN)
        draft = best.drafter.propose(tokens, most, sampler, go_on, near=best.near)
        checked(draft, most, sampler.width, best.drafter.name)
        if not draft:  # it has tokens of which none may come, or none for the newest one
            self._best = None
            if not best.drafter.failed:  # which says nothing of its guesses
                self._in_vain = best.drafter.name, best.near
            return NO_DRAFT
        self._copied = choices.copied
        return draft.followed_by(self._copied) if self._copied else draft

    def observe(self, outcome: Outcome) -> None:
        """See `Planner.observe`."""
        draft, stood, length = outcome.draft, outcome.num_accepted, outcome.length
        if self._rests:  # a round that costs nothing measurable
            self._length = length + 1
            self._answer_tokens += 1.0
            self._answer_time += 1.0
            self._took(1.0, outcome, self.costs.seconds("check", 1, length))
            self._probe_credit += PROBE_SHARE
            self._plain_rounds += 1
            self._idle += 1
            return
        came = outcome.tokens
        for name, guess in self._guesses.items():
            judge(self._known.match(name), guess, came)
        # Before it is reckoned with: the first round at another length tells what one costs there.
        # To be parked costs next to nothing, so not every plain round is learnt from then.
        if not draft and (self._idle < _PARKED or self._every > 1 or self._plain_rounds % 4 == 0):
            self.costs.observe("check", 1, length, outcome.check_seconds)
        plain = self.costs.seconds("check", 1, length)
        seconds = self.costs.seconds("check", len(draft) + 1, length)
        expected = seconds  # with a long read, which `seconds` leaves out
        certainty = top2_gap(outcome.rows[0]) if self._known.models else 0.0
        drawn = len(draft) - draft.copied
        # Behind a token that nothing followed, the draft wasn't judged.
        judged = drawn if outcome.next_token is not None else min(stood, drawn)
        best = self._best if draft else None
        if draft.copied and stood >= drawn:
            judge(self._known.match(self._copied.drafter), self._copied, came[drawn:])
        for (name, near), model in self._known.models.items():
            if (name, near) == self._in_vain:
                model.in_vain(certainty)
            elif best is None or name != best.drafter.name:
                model.unasked(certainty)
            elif near == best.near:
                seconds += self.costs.draft(name, drawn, min(2, best.owed), length)
                expected += self.costs.draft(name, drawn, best.owed, length)
                self.costs.observe_draft(name, drawn, best.owed, length, outcome.draft_seconds)
                model.asked(draft.as_guess(judged), min(stood, drawn), came, certainty)
            elif best.near:  # to have read all helps; to have read less may not
                model.hinted(min(stood, drawn), stood < judged, certainty)
        self._count(len(came), seconds / plain)
        # A round in which the program was held up says nothing of drafting.
        real = min(outcome.draft_seconds + outcome.check_seconds, _HELD_UP * expected)
        self._took(real / plain, outcome, plain)
        self._length = length + len(came)
        first, self._looked = not self._looked, True
        if draft:
            self.costs.observe("check", len(draft) + 1, length, outcome.check_seconds)
            self._idle, self._drafted = 0, draft
            if best is not None:  # what it owed it has read
                self._best = replace(best, owed=1, arrears=0.0)
            return
        # To learn from a round takes about as long as to look for its draft. The first look of an
        # answer takes in its whole prompt, and says nothing of the others.
        if not first and self._in_vain is None:
            self._looking += 0.05 * (2 * outcome.draft_seconds / plain - self._looking)
        self._every = min(4, max(1, math.ceil(self._looking / LOOK_SHARE)))
        self._reference_credit = 0.0  # it shows what a plain round costs
        self._plain_rounds += 1
        self._idle += 1

    def status(self) -> PlannerStatus:
        """See `Planner.status`."""
        parked = self._idle >= _PARKED
        # Without one plain round seen, what one costs is only what it once was.
        seconds = self._real_time  # read once: another thread may begin an answer
        # In plain decoding each token takes a round, and as long to choose.
        plain = self._answer_tokens + self._choosing
        gain = plain / seconds if self._plain_rounds and seconds else None
        best = self._best
        if best is None:
            reason = "no drafter has a guess" if self._sought else ""
        else:
            pays = best.worth > 0
            reason = (
                f"a draft of {best.size} from {best.drafter.name} should add {best.tokens:.1f} "
                f"tokens, {'more' if pays else 'no more'} than its time of {best.time:.1f} plain "
                "rounds is worth"
            )
            if best.owed > MAX_TOKENS or (parked and pays and best.arrears > 0):
                reason += (
                    f", {'but' if pays else 'and'} it would have to read {best.owed} tokens first"
                )
        if parked:
            return PlannerStatus("", 0, True, reason, gain)
        return PlannerStatus(self._drafted.drafter, len(self._drafted), False, reason, gain)

    def to_json(self) -> dict[str, Any]:
        """What answers showed of the drafters, for another day; this one counts as over."""
        self._end_answer()
        return {"answer": self._answer, **self._known.to_json()}

    def recall(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        answer = float(data["answer"])
        if not 1 <= answer < 1e6:
            raise ValueError("this is no length of an answer")
        self._answer = answer
        self._known.recall(data)

    @property
    def _speed(self) -> float:
        """Tokens in the time of a plain round, of late: what time is worth."""
        kind = bool(self._guesses)
        return max(1.0, self._tokens[kind] / self._time[kind])

    def _end_answer(self) -> None:
        """Learn how long answers are; what follows belongs to the next."""
        if self._length > self._begun:
            self._answer += 0.3 * (self._length - self._begun - self._answer)
            self._begun = self._length

    def _count(self, tokens: int, time: float) -> None:
        """Take in a round's tokens and its time in plain rounds, long reads left out."""
        kind = bool(self._guesses)
        self._tokens[kind] = self._tokens[kind] * _FADE + tokens
        self._time[kind] = self._time[kind] * _FADE + time
        self._answer_tokens += tokens
        self._answer_time += time
        self._probe_credit += PROBE_SHARE * time
        self._reference_credit = min(self._reference_credit + REFERENCE_SHARE * time, 1.0)

    def _took(self, time: float, outcome: Outcome, plain: float) -> None:
        """Take in a round's time in plain rounds, `plain` being the seconds of one; choosing its
        tokens comes on top.
        """
        choosing = outcome.sample_seconds / plain
        choosing = min(choosing, _HELD_UP * len(outcome.tokens))
        self._choosing += choosing
        self._real_time += time + choosing

    def _choose(
        self, choices: Choices, drafters: Mapping[str, Drafter], room: int
    ) -> Option | None:
        """The draft to make; None for a plain round. The best there is is `_best`, taken or not."""
        options: list[Option] = []
        for name, drafter in drafters.items():
            if not drafter.free:
                if name not in self.costs:
                    raise ConfigError(
                        f"what drafter {name!r} costs wasn't measured: give `costs.measure` its "
                        "session under this name, or plan with a FixedPlanner"
                    )
                options += choices.asking(drafter)
            elif name in self._guesses:
                options.append(choices.taking(drafter, self._guesses[name]))
        # A long read is paid once and serves what follows: a fifth of an answer's tokens, since the
        # rest may be another kind of text, or three fifths of what there is room for.
        served = min(3.0 * (room + 1), max(32.0, self._answer, self._length - self._begun))
        share = min(1.0, 5 * self._speed / served)
        self._best = best = max(options, key=lambda o: o.worth - share * o.arrears)
        if best.worth - share * best.arrears > 0:
            return None if self._affords_reference() else best
        # A guess in hand is judged without a probe: only its checks' costs are to be learnt.
        asked = [option for option in options if not option.drafter.free] or options
        probe = max(asked, key=lambda o: o.worth - o.arrears)
        loss = probe.arrears - probe.worth
        if loss > min(self._probe_credit, PROBE_PART * self._answer_time - self._probe_time):
            return None
        self._probe_credit -= max(0.0, loss)
        self._probe_time += max(0.0, loss)
        self._best = probe
        return probe

    def _affords_reference(self) -> bool:
        """Whether to go without a draft this once, to see what a plain round costs."""
        loss = 1.0 - 1.0 / max(1.05, self._speed)
        affords = self._reference_credit >= loss
        self._reference_credit -= loss if affords else 0.0
        return affords
