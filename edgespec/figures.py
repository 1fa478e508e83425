"""An answer's counters as people read them: one object for programs, a few lines for eyes.

Invariant: a figure that can't be had is None or left out, never a made-up zero.
"""

from __future__ import annotations

from typing import Any

from edgespec.generation import Result
from edgespec.metrics import Counters
from edgespec.planner import PlannerStatus

_REASONS = {
    "stop": "ended at a stop string",
    "length": "ended at the token limit: --max-tokens raises it",
    "context": "ended because the context is full: --ctx-size makes room",
    "cancelled": "stopped",
}


def as_json(result: Result, status: PlannerStatus | None = None) -> dict[str, Any]:
    """The keys `edgespec run --json` prints; rates are shares of 1, times are seconds.

    What couldn't be measured is null. `finish_reason` is one of `FinishReason`. `gain` is tokens
    per second over plain decoding's, as the planner measured it, null where nothing was drafted;
    `drafter` and `lookahead` are those of its latest draft, null and 0 while `parked`, and `reason`
    says why nothing is drafted then. `cached_tokens` are those of the prompt that needed no pass.
    """
    counters = result.counters
    planner: dict[str, Any] = dict.fromkeys(("gain", "drafter", "lookahead", "parked", "reason"))
    if status is not None:
        planner = {
            "gain": _rounded(status.gain if counters.drafted else None),
            "drafter": status.drafter or None,
            "lookahead": status.lookahead,
            "parked": status.parked,
            "reason": (status.parked and status.reason) or None,
        }
    return {
        "text": result.text,
        "token_count": len(result.tokens),
        "finish_reason": result.finish_reason,
        "notes": list(result.notes),
        "tokens_per_second": _rounded(counters.tokens_per_second),
        "ttft_seconds": _rounded(counters.ttft_seconds),
        "acceptance_rate": _rounded(counters.acceptance_rate),
        "mean_accepted_length": _rounded(counters.mean_accepted_length),
        "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        **planner,
        "drafters": {
            name: {
                "rounds": drafter.rounds,
                "drafted": drafter.drafted,
                "accepted": drafter.accepted,
                "acceptance_rate": _rounded(drafter.acceptance_rate),
            }
            for name, drafter in list(counters.drafters.items())
        },
    }


def summary(result: Result, status: PlannerStatus | None = None) -> str:
    """One line of figures; more where the planner parked, or the answer didn't end by itself."""
    counters = result.counters
    parts = [f"{len(result.tokens)} token{'s' * (len(result.tokens) != 1)}"]
    if counters.tokens_per_second is not None:
        parts.append(f"{counters.tokens_per_second:.1f} tok/s")
        if counters.drafted and status is not None and status.gain is not None:
            parts[-1] += f" ({status.gain:.1f}x plain)"
    if counters.ttft_seconds is not None:
        parts.append(f"first token after {counters.ttft_seconds:.2f} s")
    parts += _speculation(counters)
    if status is not None and status.lookahead and not status.parked:
        parts.append(f"lookahead {status.lookahead} of late")
    lines = [" · ".join(parts)]
    if status is not None and status.parked and counters.rounds and status.reason:
        lines.append(f"parked: {status.reason}")
    if result.finish_reason in _REASONS:
        lines.append(_REASONS[result.finish_reason])
    lines += (f"note: {note}" for note in result.notes)
    return "\n".join(lines)


def _speculation(counters: Counters) -> list[str]:
    if not counters.drafted:
        return ["nothing drafted"] if counters.rounds else []
    parts = [
        f"{name}: {drafter.accepted} of {drafter.drafted} draft tokens accepted "
        f"({drafter.accepted / drafter.drafted:.0%})"
        for name, drafter in list(counters.drafters.items())
        if drafter.drafted
    ]
    if counters.mean_accepted_length is not None:  # a stop string may leave no token
        parts.append(f"{counters.mean_accepted_length:.2f} tokens a round")
    return parts


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 4)
