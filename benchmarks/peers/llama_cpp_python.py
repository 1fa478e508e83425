"""llama-cpp-python's high-level `Llama`: plain, and its prompt lookup decoding.

lookup-K drafts K tokens a round, as LlamaPromptLookupDecoding does; its documentation advises 10
on a GPU and 2 on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import Answer, Request, Timed, chosen, layers_on_gpu, main, versions

REQUIREMENTS = ["llama-cpp-python"]


class Models:
    """One `Llama` for each setting, since a drafter makes it keep all logits."""

    def __init__(self, request: Request) -> None:
        self.settings = chosen(request, ["plain", "lookup-2", "lookup-10"])
        self.details = {"versions": versions("llama-cpp-python")}
        self._stop = frozenset(request["stop_ids"])
        self._models = {setting: _open(request, setting) for setting in self.settings}

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """By the token generator, timed from outside."""
        model = self._models[setting]
        model.reset()
        timed = Timed(self._stop)
        passes = seen = 0
        evaluate = type(model).eval

        def counted(tokens: Sequence[int]) -> None:
            nonlocal passes
            passes += 1
            evaluate(model, tokens)

        model.eval = counted  # what comes without a pass is of the check before
        for token in model.generate(ids, temp=0.0, top_k=1, reset=True):
            goes_on = timed.add([token], joins=passes == seen)
            seen = passes
            if not goes_on or len(timed.tokens) == max_tokens:
                break
        return timed.answer(text=model.detokenize(timed.tokens).decode("utf-8", "replace"))


def _open(request: Request, setting: str) -> Any:
    from llama_cpp import Llama, llama_supports_gpu_offload
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = None
    if setting != "plain":
        draft = LlamaPromptLookupDecoding(num_pred_tokens=int(setting.removeprefix("lookup-")))
    return Llama(
        request["target"],
        n_ctx=request["context"],
        n_gpu_layers=layers_on_gpu(request, llama_supports_gpu_offload),
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        draft_model=draft,
        verbose=False,
    )


if __name__ == "__main__":
    main(REQUIREMENTS, Models)
