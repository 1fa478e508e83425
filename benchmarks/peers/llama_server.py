"""llama.cpp's server, as the xllamacpp wheel carries it: plain, with a drafter model, with n-grams.

draft-K drafts with the model, at most K tokens a round; ngram-simple and ngram-mod copy from the
text. The server takes these choices when it starts, so each setting is a server of its own; they
share a model file that is mapped. ngram-mod learns from all answers it ever gave, so with --repeat
it has seen the later ones.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from common import Answer, Request, chosen, main, versions

REQUIREMENTS = ["xllamacpp"]
NGRAMS = ("ngram-simple", "ngram-mod")
LONGEST = 8


class Servers:
    """One server for each setting, asked over its own HTTP interface."""

    def __init__(self, request: Request) -> None:
        drafts = [f"draft-{k}" for k in range(1, LONGEST + 1)] if request["drafters"] else []
        self.settings = chosen(request, ["plain", *drafts, *NGRAMS])
        self.details = {"versions": versions("xllamacpp")}
        self._stop = frozenset(request["stop_ids"])
        self._servers = {setting: _start(request, setting) for setting in self.settings}

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """The server's own timings: prompt, and decoding behind the first token."""
        reply = _post(
            self._servers[setting].listening_address + "/completion",
            {
                "prompt": ids,
                "n_predict": max_tokens,
                "temperature": 0.0,
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        timings = reply["timings"]
        ended = reply["stop_type"] == "eos" or reply["tokens"][-1:] in [[s] for s in self._stop]
        return {
            "tokens": [token for token in reply["tokens"] if token not in self._stop],
            "text": reply["content"],
            "finish_reason": "end" if ended else "length",
            "ttft_seconds": timings["prompt_ms"] / 1e3,
            "decode_seconds": timings["predicted_ms"] / 1e3,
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
            # Every token is an accepted guess or a round's own.
            "rounds": max(0, timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0)),
        }


def _start(request: Request, setting: str) -> Any:
    import xllamacpp as lib

    params = lib.CommonParams()
    params.model.path = request["target"]
    params.n_ctx = request["context"]
    params.n_parallel = 1
    params.port = 0
    params.cache_ram_mib = 0
    params.verbosity = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request["threads"]
    if setting != "plain":
        kind = "draft-simple" if setting.startswith("draft-") else setting
        name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
        params.speculative.types = [getattr(lib.common_speculative_type, name)]
    if setting.startswith("draft-"):
        draft = params.speculative.draft
        draft.mparams.path = request["drafters"][0]
        draft.n_max = int(setting.removeprefix("draft-"))
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = request["threads"]
    return lib.Server(params)


def _post(url: str, data: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(data).encode()
    with urlopen(HttpRequest(url, body, {"content-type": "application/json"})) as reply:
        result: dict[str, Any] = json.load(reply)
        return result


if __name__ == "__main__":
    main(REQUIREMENTS, Servers)
