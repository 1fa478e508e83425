"""The planner that measures: drafter and lookahead by expected tokens per second, or none.

At each round every choice is worth its expected tokens less what its time could have earned
otherwise (`worth.py`). Reach probabilities come from what each drafter's confidence proved to be
worth (`experience.py`), times from measured costs (`costs.py`). Invariant: plain decoding is always
one of the choices, and what the planner spends on finding out, at an expected loss, stays within
its shares of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgespec.confidence import top2_gap
from edgespec.costs import MAX_TOKENS, Costs
from edgespec.drafters import Drafter
from edgespec.drawing import Drawing
from edgespec.errors import ConfigError
from edgespec.experience import Experience, judge
from edgespec.parking import Parking
from edgespec.planner import Outcome, PlannerStatus
from edgespec.sampling import Sampler
from edgespec.session import TokenIds
from edgespec.verify import NO_DRAFT, Draft, vet
from edgespec.worth import MAX_DRAWN, Choices, Option

MAX_LOOKAHEAD = MAX_TOKENS - 1
PROBE_SHARE = 0.0045
"""The share of the time that may go into drafts thought not to pay, in case they do."""
PROBE_PART = 0.03
"""The part of an answer's time so far that its probes may take: short answers get none."""
REFERENCE_SHARE = 0.003
"""The share of the time that may go into plain rounds, to know what they cost just now."""

_FADE = 0.97  # of a round's weight in the speed, for each round after it
_HELD_UP = 5.0  # times longer than expected, at most, a round is taken to have been
_LONG = 16  # tokens, more than which are a long read
_LEAST_PART = 0.05  # of an answer's tokens that a long read is thought to serve
_NEWEST = 0.3  # of the newest answer's weight in what is usual
_RESTS = 31  # answers at most that a drafter which keeps failing is left out of


@dataclass
class _Answer:
    """One answer: its length, its times in plain rounds, and what it was drafted for.

    Attributes:
        begun: the text's length when the answer began.
        length: the text's length now.
        tokens: those that its rounds brought.
        reckoned: its time by the costs.
        spent: its time as it was.
        choosing: the part of `spent` that went into choosing tokens from the rows.
        probes: the part of `reckoned` that went into probes, at a loss.
        to_serve: tokens that a long read might have served when it was made; 0 before one.
        served: tokens of the rounds in which a model drafted.
        looked: whether the first look for a draft is over.
        drafted: the latest draft.
    """

    begun: int
    length: int
    tokens: float = 0.0
    reckoned: float = 0.0
    spent: float = 0.0
    choosing: float = 0.0
    probes: float = 0.0
    to_serve: float = 0.0
    served: float = 0.0
    looked: bool = False
    drafted: Draft = NO_DRAFT

    def gain(self) -> float | None:
        """Tokens per second in plain decoding's; None before its first round."""
        spent = self.spent  # read once: another thread may be counting
        # In plain decoding each token takes a round, and as long to choose.
        return (self.tokens + self.choosing) / spent if spent else None


@dataclass
class _Round:
    """One round: whether it looks for a draft, and what it found.

    Attributes:
        looks: whether it looks at all, as every round does that isn't parked.
        guesses: what free drafters have, by name.
        asked: the draft that is made, or was asked for in vain.
        copied: what a free drafter added behind what a model drew.
    """

    looks: bool = False
    guesses: dict[str, Draft] = field(default_factory=dict)
    asked: Option | None = None
    copied: Draft = NO_DRAFT


@dataclass
class _Speed:
    """Tokens in the time of a plain round, older rounds fading."""

    tokens: float = 1.0
    time: float = 1.0  # plain rounds

    def add(self, tokens: float, time: float) -> None:
        """Take in a round."""
        self.tokens = self.tokens * _FADE + tokens
        self.time = self.time * _FADE + time

    @property
    def value(self) -> float:
        """At least plain decoding's 1, which is always to be had."""
        return max(1.0, self.tokens / self.time)


class AdaptivePlanner:
    """Chooses anew at each round; see `Planner`."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._known = Experience()
        self._answer = _Answer(0, 0)
        self._round = _Round()
        self._parking = Parking()
        self._seen: Option | None = None  # the best of the latest look, taken or not
        self._why_none = ""  # why that look had nothing to choose from
        self._failures: dict[str, int] = {}  # in a row, by drafter
        self._rests: dict[str, int] = {}  # answers, this one included, it is left out of
        self._plain_rounds = 0
        self._usual_length = 200.0  # tokens of an answer, in the mean
        self._usual_part = 0.2  # of an answer's tokens, served by its long read
        self._speeds = {True: _Speed(), False: _Speed()}  # of rounds with a free guess, and without
        self._probe_credit = 0.0  # plain rounds that may go into probes
        self._reference_credit = 0.0  # and into rounds without a draft that would pay

    def begin(self, length: int) -> None:
        """See `Planner.begin`."""
        self._end_answer()
        self._answer = _Answer(length, length)
        self._seen, self._why_none = None, ""
        self._rests = {name: left - 1 for name, left in self._rests.items() if left > 1}
        self._parking.begin()
        self._known.begin()

    def draft(
        self, drafters: Mapping[str, Drafter], tokens: TokenIds, room: int, sampler: Sampler
    ) -> Draft:
        """See `Planner.draft`."""
        longest = min(MAX_LOOKAHEAD, room)
        self._round = here = _Round(looks=self._parking.looks())
        if not here.looks or longest <= 0:
            return NO_DRAFT
        drafters = self._able(drafters)
        self.require_drafters(drafters)
        self._seen = None
        free = [drafter for drafter in drafters.values() if drafter.free]
        for drafter in free:
            guess = drafter.propose(tokens, longest, sampler)
            if vet(guess, longest, sampler.width, drafter.name, free=True):
                here.guesses[drafter.name] = guess
        if not here.guesses and len(free) == len(drafters):
            return NO_DRAFT
        price = self._speed / self.costs.seconds("check", 1, len(tokens))  # tokens for a second
        choices = Choices(self.costs, self._known, price, tokens, longest)
        here.asked = best = self._choose(choices, drafters, room)
        if best is None:
            return NO_DRAFT
        if best.drafter.free:
            return here.guesses[best.drafter.name].as_guess(best.size)
        drawing = Drawing(choices, best.drafter, free, sampler, near=best.near)
        most = min(longest, MAX_DRAWN)
        draft = best.drafter.propose(tokens, most, sampler, drawing, near=best.near)
        vet(draft, most, sampler.width, best.drafter.name)
        self._count_failures(best.drafter)
        if not draft:  # it has tokens of which none may come, or none for the newest one
            self._seen = None
            return NO_DRAFT
        here.copied = drawing.copied
        return draft.followed_by(here.copied) if here.copied else draft

    def require_drafters(self, drafters: Mapping[str, Drafter]) -> None:
        """Raises ConfigError where what one of them costs wasn't measured."""
        for name, drafter in drafters.items():
            if not drafter.free and name not in self.costs:
                raise ConfigError(
                    f"what drafter {name!r} costs wasn't measured: give `timing.measure` its "
                    "session under this name, or plan with a FixedPlanner"
                )

    def observe(self, outcome: Outcome) -> None:
        """See `Planner.observe`."""
        if self._round.looks:
            self._learn(outcome)
            return
        answer, length = self._answer, outcome.length  # a round that costs nothing measurable
        answer.length = length + 1
        answer.tokens += 1.0
        answer.reckoned += 1.0
        self._took(1.0, outcome, self.costs.seconds("check", 1, length))
        self._probe_credit += PROBE_SHARE
        self._plain_rounds += 1
        self._parking.went_plain()

    def _learn(self, outcome: Outcome) -> None:
        """From a round in which a draft was looked for, made or not."""
        here, answer, parking = self._round, self._answer, self._parking
        draft, length, came = outcome.draft, outcome.length, outcome.tokens
        for name, guess in here.guesses.items():
            judge(self._known.match(name), guess, came)
        # Before it is reckoned with: the first round at another length tells what one costs there.
        # To be parked costs next to nothing, so not every plain round is learnt from then.
        often = not parking.parked or parking.every > 1 or self._plain_rounds % 4 == 0
        if not draft and often:
            self.costs.observe("check", 1, length, outcome.seconds.check)
        plain = self.costs.seconds("check", 1, length)
        seconds = self.costs.seconds("check", len(draft) + 1, length)
        reckoned, expected = self._judge_models(outcome)
        self._count(len(came), (seconds + reckoned) / plain)
        # A round in which the program was held up says nothing of drafting.
        real = outcome.seconds.draft + outcome.seconds.check
        self._took(min(real, _HELD_UP * (seconds + expected)) / plain, outcome, plain)
        answer.length = length + len(came)
        first, answer.looked = not answer.looked, True
        if draft:
            self.costs.observe("check", len(draft) + 1, length, outcome.seconds.check)
            parking.drafted()
            answer.drafted = draft
            if self._seen is not None:  # what it owed it has read
                self._seen = replace(self._seen, owed=1, arrears=0.0)
            return
        # The first look of an answer takes in its whole prompt, and says nothing of the others.
        if not first and here.asked is None:
            parking.looked(outcome.seconds.draft / plain)
        self._reference_credit = 0.0  # it shows what a plain round costs
        self._plain_rounds += 1
        parking.went_plain()

    def _judge_models(self, outcome: Outcome) -> tuple[float, float]:
        """Learn what models are worth, asked or not; the seconds of drafting by the costs, without
        a long read and with it.
        """
        here, models, length = self._round, self._known.models, outcome.length
        draft, stood, asked = outcome.draft, outcome.verdict.num_accepted, here.asked
        certainty = top2_gap(outcome.rows[0]) if models else 0.0
        drawn = len(draft) - draft.copied
        # Behind a token that nothing followed, the draft wasn't judged.
        judged = drawn if outcome.verdict.next_token is not None else min(stood, drawn)
        if draft.copied and stood >= drawn:
            judge(self._known.match(here.copied.drafter), here.copied, outcome.tokens[drawn:])
        for (name, near), model in models.items():
            if asked is None or name != asked.drafter.name:
                model.unasked(certainty)
            elif near == asked.near and draft:
                seen = draft.as_guess(judged)
                model.asked(seen, min(stood, drawn), outcome.tokens, certainty)
            elif near == asked.near and not asked.drafter.failed:
                model.in_vain(certainty)  # a failure says nothing of its guesses
            elif not draft:
                model.unasked(certainty)
            elif asked.near:  # to have read all helps; to have read less may not
                model.hinted(min(stood, drawn), stood < judged, certainty)
        if asked is None or asked.drafter.free:
            return 0.0, 0.0
        name, steps, owed = asked.drafter.name, max(1, drawn), asked.owed
        if owed > _LONG and not self._answer.to_serve:
            self._answer.to_serve = max(32.0, self._usual_length)
        self._answer.served += len(outcome.tokens)
        short = self.costs.draft(name, steps, min(2, owed), length)
        whole = self.costs.draft(name, steps, owed, length)
        if draft:
            self.costs.observe_draft(name, steps, owed, length, outcome.seconds.draft)
        return short, whole

    def _able(self, drafters: Mapping[str, Drafter]) -> Mapping[str, Drafter]:
        """Those that haven't failed in this answer, or in answer after answer."""
        for name, drafter in drafters.items():
            if name in self._rests and not drafter.failed:
                drafter.failed = "it failed in answers before, and is tried again later"
        able = {name: drafter for name, drafter in drafters.items() if not drafter.failed}
        out = [f"{name} failed" for name in drafters if name not in able]
        if able or not out:
            out.insert(0, "no drafter has a guess")
        self._why_none = " and ".join(out)
        return able

    def _count_failures(self, drafter: Drafter) -> None:
        """A drafter that fails in one answer after the other reads each prompt in vain: from the
        second on it is left out of one answer, of three, of seven.
        """
        if not drafter.failed:
            self._failures.pop(drafter.name, None)
            return
        failures = self._failures[drafter.name] = self._failures.get(drafter.name, 0) + 1
        # The rest of this answer goes by `failed`.
        self._rests[drafter.name] = 1 + min(_RESTS, 2 ** (failures - 1) - 1)

    def status(self) -> PlannerStatus:
        """See `Planner.status`."""
        answer, best, parked = self._answer, self._seen, self._parking.parked
        # Without one plain round seen, what one costs is only what it once was.
        gain = answer.gain() if self._plain_rounds else None
        if best is None:
            reason = self._why_none
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
        return PlannerStatus(answer.drafted.drafter, len(answer.drafted), False, reason, gain)

    def to_json(self) -> dict[str, Any]:
        """What answers showed of the drafters, for another day; this one counts as over."""
        self._end_answer()
        return {"answer": self._usual_length, "served": self._usual_part, **self._known.to_json()}

    def recall(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        length, part = float(data["answer"]), float(data["served"])
        if not (1 <= length < 1e6 and _LEAST_PART <= part <= 1):
            raise ValueError("this is no length of an answer, or no part of it")
        self._usual_length, self._usual_part = length, part
        self._known.recall(data)

    @property
    def _speed(self) -> float:
        """Tokens in the time of a plain round, of late: what time is worth."""
        return self._speeds[bool(self._round.guesses)].value

    def _end_answer(self) -> None:
        """Learn how long answers are and what reads served; what follows belongs to the next."""
        answer = self._answer
        if answer.to_serve:
            part = min(1.0, answer.served / answer.to_serve)
            self._usual_part += _NEWEST * (part - self._usual_part)
            self._usual_part = max(_LEAST_PART, self._usual_part)
            answer.to_serve = 0.0
        if answer.length > answer.begun:
            length = answer.length - answer.begun
            self._usual_length += _NEWEST * (length - self._usual_length)
            answer.begun = answer.length

    def _count(self, tokens: int, time: float) -> None:
        """Take in a round's tokens and its time in plain rounds, long reads left out."""
        self._speeds[bool(self._round.guesses)].add(tokens, time)
        self._answer.tokens += tokens
        self._answer.reckoned += time
        self._probe_credit += PROBE_SHARE * time
        self._reference_credit = min(self._reference_credit + REFERENCE_SHARE * time, 1.0)

    def _took(self, time: float, outcome: Outcome, plain: float) -> None:
        """Take in a round's time in plain rounds, `plain` being the seconds of one; choosing its
        tokens comes on top.
        """
        choosing = outcome.seconds.sample / plain
        choosing = min(choosing, _HELD_UP * len(outcome.tokens))
        self._answer.choosing += choosing
        self._answer.spent += time + choosing

    def _choose(
        self, choices: Choices, drafters: Mapping[str, Drafter], room: int
    ) -> Option | None:
        """The draft to make; None for a plain round. The best there is is `_seen`, taken or not."""
        answer, guesses = self._answer, self._round.guesses
        options: list[Option] = []
        for name, drafter in drafters.items():
            if not drafter.free:
                options += choices.asking(drafter)
            elif name in guesses:
                options.append(choices.taking(drafter, guesses[name]))
        # A long read is paid once and serves what follows: a part of an answer's tokens, since the
        # rest may be another kind of text, or three fifths of what there is room for.
        length = max(32.0, self._usual_length, answer.length - answer.begun)
        share = min(1.0, self._speed / min(0.6 * (room + 1), self._usual_part * length))
        self._seen = best = max(options, key=lambda o: o.worth - share * o.arrears)
        if best.worth - share * best.arrears > 0:
            return None if self._spends_on_a_reference() else best
        # A guess in hand is judged without a probe: only its checks' costs are to be learnt.
        asked = [option for option in options if not option.drafter.free] or options
        probe = max(asked, key=lambda o: o.worth - o.arrears)
        loss = probe.arrears - probe.worth
        if loss > min(self._probe_credit, PROBE_PART * answer.reckoned - answer.probes):
            return None
        self._probe_credit -= max(0.0, loss)
        answer.probes += max(0.0, loss)
        self._seen = probe
        return probe

    def _spends_on_a_reference(self) -> bool:
        """Whether this round goes without a draft, paid for, to see what a plain one costs."""
        loss = 1.0 - 1.0 / max(1.05, self._speed)
        affords = self._reference_credit >= loss
        self._reference_credit -= loss if affords else 0.0
        return affords
