"""The loop: draft, check, commit, roll back. Token ids only.

Invariants, after every round: `target.length == len(tokens) - 1`, the newest token not being in the
cache yet; and ids, text and cache end at the same token, because whatever ends the text cuts the
round before it is committed. (A model that can't forget may end a text with more in its cache; it
is never drafted for. Behind a round that failed the cache may hold its draft until `align`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from edgespec.drafters import Drafter
from edgespec.errors import ConfigError
from edgespec.logprobs import LogprobsRequest, TokenLogprobs, token_logprobs
from edgespec.planner import NO_TIME, Outcome, Planner, Seconds
from edgespec.sampling import Sampler
from edgespec.session import CachedSession, Logits, TokenBuffer
from edgespec.text import Cut, FinishReason
from edgespec.verify import (
    NO_DRAFT,
    NOTHING,
    Draft,
    Origin,
    Verdict,
    verify_choices,
    verify_rejection,
    vet,
)


@dataclass(frozen=True)
class Round:
    """One draft and one check: the tokens that were committed, and what it cost.

    `tokens` are the first of those that `verdict` brought: the text may end before the others.
    `fed` is how many tokens went through the target: the uncached prompt or one, and the draft.
    `total_seconds` is the whole round, committing included; `seconds` its parts.
    """

    tokens: tuple[int, ...] = ()
    draft: Draft = NO_DRAFT
    verdict: Verdict = NOTHING
    fed: int = 0
    seconds: Seconds = NO_TIME
    total_seconds: float = 0.0
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where each of its tokens came from."""
        return self.verdict.origins(self.draft)[: len(self.tokens)]

    @property
    def drafted(self) -> int:
        """Tokens in its draft."""
        return len(self.draft)

    @property
    def accepted(self) -> int:
        """Draft tokens that were right, also where the text was cut before them."""
        return self.verdict.num_accepted

    @property
    def rejected(self) -> bool:
        """Whether the target replaced a draft token."""
        return self.accepted < self.drafted and self.verdict.next_token is not None


def decode(
    target: CachedSession,
    tokens: TokenBuffer,
    *,
    sampler: Sampler,
    planner: Planner,
    drafters: Mapping[str, Drafter],
    cut: Callable[[Sequence[int]], Cut],
    left: Callable[[], int] | None = None,
    logprobs: LogprobsRequest | None = None,
) -> Iterator[Round]:
    """Extend `tokens` (the prompt, at least one token) in place, a round at a time.

    The first round feeds the prompt and drafts nothing: the first token never waits for a drafter.
    `cut` sees each round's tokens before they are committed and says how many stand; `left` says
    how many more there may be, so that no draft goes beyond them. A full context ends the text
    with the reason "context". Each round brings the `logprobs` asked for.
    """
    reason = cut(()).reason
    if reason is not None:
        yield Round(finish_reason=reason)
        return
    target.align(tokens.view)
    sampler = sampler.named(target.name)
    planner.begin(len(tokens))
    for drafter in drafters.values():
        drafter.begin(len(tokens))
    drafting = False  # in the prompt's round nobody drafts, and nobody learns
    while reason is None:
        began = perf_counter()
        pending = len(tokens) - target.length  # the whole prompt at first, then the newest token
        room = target.room - pending
        if room < 0:
            yield Round(finish_reason="context")
            return
        if left is not None:
            room = min(room, left() - 1)  # a check brings one token more than was drafted
        draft = planner.draft(drafters, tokens.view, room, sampler) if drafting else NO_DRAFT
        draft = vet(draft, room, sampler.width)
        drafted_at = perf_counter()
        rows = check(target, tokens, draft)  # (k+1, V)
        checked_at = perf_counter()
        verdict = verify(rows, draft, sampler, len(tokens))
        chosen_at = perf_counter()
        seconds = Seconds(drafted_at - began, checked_at - drafted_at, chosen_at - checked_at)
        if drafting:
            seen = rows[:, : sampler.width]
            planner.observe(Outcome(draft, verdict, seconds, len(tokens), seen))
        new = verdict.tokens(draft)
        asked = token_logprobs(rows, new, sampler, logprobs) if logprobs else ()
        keep, reason = commit(target, tokens, new, sampler, cut)
        yield Round(
            new[:keep],
            draft,
            verdict,
            fed=pending + len(draft),
            seconds=seconds,
            total_seconds=perf_counter() - began,
            finish_reason=reason,
            logprobs=asked[:keep],
        )
        drafting = True


def check(target: CachedSession, tokens: TokenBuffer, draft: Draft) -> Logits:
    """One pass over what the cache lacks and the draft; the rows that decide each draft token."""
    pending = tokens.view[target.length :]
    if draft:
        if not target.session.can_rollback:
            raise ConfigError(f"{target.name} can't take back a draft: plan none for it")
        pending_and_draft = [*pending.tolist(), *draft.tokens]
        return target.forward(pending_and_draft, len(draft) + 1)  # (k+1, V)
    return target.forward(pending, 1)  # (1, V)


def verify(rows: Logits, draft: Draft, sampler: Sampler, position: int) -> Verdict:
    """Apply the sampler's rule to the target's rows (k+1, V); row i decides `position + i`."""
    if sampler.chooses:
        return verify_choices(
            draft.tokens,
            lambda i: sampler.choose(rows[i], draft.tokens[:i], position + i),
            sampler.ends,
        )
    return verify_rejection(
        draft,
        lambda i: sampler.distribution(rows[i], draft.tokens[:i]),
        sampler.rng,
        sampler.ends,
    )


def commit(
    target: CachedSession,
    tokens: TokenBuffer,
    new: Sequence[int],
    sampler: Sampler,
    cut: Callable[[Sequence[int]], Cut],
) -> tuple[int, FinishReason | None]:
    """Append what stands of a round, and cut the cache to match; how many stand, and the end."""
    stands = cut(new)
    keep = max(0, stands.keep)
    tokens.extend(new[:keep])
    if stands.keep < 0:  # a stop string that began rounds ago
        tokens.truncate(len(tokens) + stands.keep)
    sampler.commit(new[:keep])
    target.cut(len(tokens) - 1)
    return keep, stands.reason
