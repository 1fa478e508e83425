"""edgespec: speculative decoding on one person's machine.

    from edgespec import Runtime

    with Runtime.open("smollm2") as runtime:
        for chunk in runtime.conversation().send("Why is the sky blue?"):
            print(chunk.text, end="", flush=True)

Invariant: importing this loads nothing native; names are fetched when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgespec.conversation import Conversation as Conversation
    from edgespec.errors import EdgespecError as EdgespecError
    from edgespec.generation import Chunk as Chunk
    from edgespec.generation import Generation as Generation
    from edgespec.generation import Result as Result
    from edgespec.logprobs import LogprobsRequest as LogprobsRequest
    from edgespec.logprobs import TokenLogprobs as TokenLogprobs
    from edgespec.runtime import Runtime as Runtime
    from edgespec.sampling import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "Chunk": "generation",
    "Conversation": "conversation",
    "EdgespecError": "errors",
    "Generation": "generation",
    "LogprobsRequest": "logprobs",
    "Result": "generation",
    "Runtime": "runtime",
    "SamplingParams": "sampling",
    "TokenLogprobs": "logprobs",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"edgespec.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
