"""edgespec: speculative decoding on one person's machine.

    from edgespec import Runtime

    with Runtime.open("smollm2", report=print) as runtime:
        for chunk in runtime.conversation().send("Why is the sky blue?"):
            print(chunk.text, end="", flush=True)

What a person should know stands in the `notes` of the runtime (of its models and this machine), of
an answer (before it begins) and of its result (what went wrong on the way).

Invariant: importing this loads nothing native; names are fetched when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgespec.chat import Message as Message
    from edgespec.conversation import Conversation as Conversation
    from edgespec.drafters import Drafter as Drafter
    from edgespec.errors import Busy as Busy
    from edgespec.errors import EdgespecError as EdgespecError
    from edgespec.generation import Chunk as Chunk
    from edgespec.generation import Generation as Generation
    from edgespec.generation import Result as Result
    from edgespec.logprobs import LogprobsRequest as LogprobsRequest
    from edgespec.logprobs import TokenLogprobs as TokenLogprobs
    from edgespec.planner import FixedPlanner as FixedPlanner
    from edgespec.planner import Outcome as Outcome
    from edgespec.planner import Planner as Planner
    from edgespec.planner import PlannerStatus as PlannerStatus
    from edgespec.runtime import Runtime as Runtime
    from edgespec.sampling import SamplingParams as SamplingParams
    from edgespec.sampling import Step as Step
    from edgespec.session import Model as Model
    from edgespec.session import Session as Session
    from edgespec.verify import Draft as Draft

__version__ = "0.1.0"

_HOMES = {
    "Busy": "errors",
    "Chunk": "generation",
    "Conversation": "conversation",
    "Draft": "verify",
    "Drafter": "drafters",
    "EdgespecError": "errors",
    "FixedPlanner": "planner",
    "Generation": "generation",
    "LogprobsRequest": "logprobs",
    "Message": "chat",
    "Model": "session",
    "Outcome": "planner",
    "Planner": "planner",
    "PlannerStatus": "planner",
    "Result": "generation",
    "Runtime": "runtime",
    "SamplingParams": "sampling",
    "Session": "session",
    "Step": "sampling",
    "TokenLogprobs": "logprobs",
}
__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # which would take any name for granted

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"edgespec.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
