"""Plain decoding against a bare llama_decode loop, and Python's share of a round.

    python benchmarks/plain_overhead.py MODEL.gguf [--drafter MODEL.gguf] [--tokens 64] [--repeat 5]

Both sides take turns on the same model and prompt; medians are printed. The bare loop has a context
of its own with the same settings, feeds one token a pass and takes numpy's argmax of the row. It
runs on edgespec's native thread, since a second thread that computes would slow both (see
edgespec/backends/native_thread.py). Then, with lookup and the drafter and a planned lookahead,
Python's share again: everything of a round but the passes of target and drafter.
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
from edgespec.backends.llama_params import model_params
from edgespec.backends.native_thread import compute
from edgespec.chat import Message
from edgespec.platform import usable_cpus

PROMPT = "Write a short story about a lighthouse keeper who finds a message in a bottle."


class BareLoop:
    """What one writes by hand."""

    def __init__(self, path: str, context_size: int) -> None:
        self.model = lib.llama_model_load_from_file(path.encode(), model_params(999))
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


class Passes:
    """The seconds that llama.cpp's passes took, of all sessions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        decode = LlamaSession._decode

        def timed(session: LlamaSession, *rest: object) -> None:
            began = perf_counter()
            decode(session, *rest)  # type: ignore[arg-type]
            self.seconds += perf_counter() - began

        LlamaSession._decode = timed  # type: ignore[method-assign,assignment]

    def answer(self, runtime: Runtime, ids: list[int], tokens: int) -> tuple[float, float, int]:
        """Seconds of an answer behind its first token, those of its Python, and its rounds."""
        answer = runtime.generate(ids, SamplingParams(temperature=0), max_tokens=tokens)
        next(answer)
        self.seconds, began = 0.0, perf_counter()
        for _ in answer:
            pass
        spent = perf_counter() - began
        return spent, spent - self.seconds, answer.counters.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--drafter")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    passes = Passes()
    ours, bare, python = [], [], []
    with Runtime.open(target=args.model, drafters=[], lookahead=0) as runtime:
        loop = BareLoop(args.model, runtime.context_size)
        ids = runtime.encode_messages([Message("user", PROMPT)])
        for _ in range(args.repeat):
            bare.append(compute(loop.run, ids, args.tokens))
            spent, rest, rounds = passes.answer(runtime, ids, args.tokens)
            ours.append(spent / rounds)
            python.append(rest / rounds)
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    print(f"{Path(args.model).name}, {args.tokens} tokens, {args.repeat} turns, medians:")
    print(f"  bare loop  {statistics.median(bare) * 1e3:8.2f} ms a token")
    print(f"  edgespec   {statistics.median(ours) * 1e3:8.2f} ms a token, {ratio:.3f} of bare")
    print(f"  python     {statistics.median(python) * 1e3:8.3f} ms a round")
    drafters = ["lookup", *([args.drafter] if args.drafter else [])]
    with Runtime.open(target=args.model, drafters=drafters, lookahead="auto") as runtime:
        planned = [passes.answer(runtime, ids, args.tokens) for _ in range(args.repeat)]
        status = runtime.status()
    share = statistics.median(rest / rounds for _, rest, rounds in planned)
    rounds = sum(rounds for _, _, rounds in planned)
    drafting = "parked" if status.parked else f"drafting with {status.drafter}"
    print(f"planned, {' and '.join(Path(d).name for d in drafters)}, {rounds} rounds, {drafting}:")
    print(f"  python     {share * 1e3:8.3f} ms a round")


if __name__ == "__main__":
    main()
