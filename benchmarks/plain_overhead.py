"""Plain decoding against a bare llama_decode loop, and Python's share of a round.

    python benchmarks/plain_overhead.py MODEL.gguf [--tokens 64] [--repeat 5]

Both sides take turns on the same model and prompt; medians are printed. The bare loop has a context
of its own with the same settings, feeds one token a pass and takes numpy's argmax of the row. It
runs on edgespec's native thread, since a second thread that computes would slow both (see
edgespec/backends/native_thread.py).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from pathlib import Path
from time import perf_counter

import llama_cpp.llama_cpp as lib
import numpy as np

from edgespec import Runtime, SamplingParams
from edgespec.backends.llama import LlamaSession
from edgespec.backends.native_thread import _executor
from edgespec.chat import Message
from edgespec.platform import usable_cpus

PROMPT = "Write a short story about a lighthouse keeper who finds a message in a bottle."


class BareLoop:
    """What one writes by hand."""

    def __init__(self, path: str, context_size: int) -> None:
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = context_size
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = usable_cpus()
        self.context = lib.llama_init_from_model(self.model, params)
        self.width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def run(self, prompt: list[int], tokens: int) -> float:
        """Seconds a token, the prompt left out."""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), False)
        token = self.step(prompt)
        began = perf_counter()
        for _ in range(tokens - 1):
            token = self.step([token])
        return (perf_counter() - began) / (tokens - 1)

    def step(self, tokens: list[int]) -> int:
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lib.llama_decode(self.context, lib.llama_batch_get_one(ids, len(tokens))) == 0
        row = np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, -1), (self.width,))
        return int(row.argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    native = 0.0
    decode = LlamaSession._decode

    def timed(self: LlamaSession, *rest: object) -> None:
        nonlocal native
        began = perf_counter()
        decode(self, *rest)  # type: ignore[arg-type]
        native += perf_counter() - began

    LlamaSession._decode = timed  # type: ignore[method-assign,assignment]
    greedy = SamplingParams(temperature=0)
    ours, bare, python = [], [], []
    with Runtime.open(target=args.model, drafters=[], lookahead=0) as runtime:
        loop = BareLoop(args.model, runtime.context_size)
        ids = runtime.encode_messages([Message("user", PROMPT)])
        for _ in range(args.repeat):
            bare.append(_executor.submit(loop.run, ids, args.tokens).result())
            answer = runtime.generate(ids, greedy, max_tokens=args.tokens)
            next(answer)
            native = 0.0
            began = perf_counter()
            for _ in answer:
                pass
            spent, rounds = perf_counter() - began, answer.counters.rounds
            ours.append(spent / rounds)
            python.append((spent - native) / rounds)
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    print(f"{Path(args.model).name}, {args.tokens} tokens, {args.repeat} turns, medians:")
    print(f"  bare loop  {statistics.median(bare) * 1e3:8.2f} ms a token")
    print(f"  edgespec   {statistics.median(ours) * 1e3:8.2f} ms a token, {ratio:.3f} of bare")
    print(f"  python     {statistics.median(python) * 1e3:8.3f} ms a round")


if __name__ == "__main__":
    main()
