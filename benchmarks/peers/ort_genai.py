"""onnxruntime-genai: plain, with a drafter model, with n-grams from the text.

The target and the drafter are folders with a genai_config.json (or files in such folders). Both
configurations are copied into one folder, with the threads set there: without, onnxruntime-genai
takes all that the machine has. draft-K has a fixed width of K; ngram-N looks up the newest N - 1
tokens, with an adaptive width.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from common import Answer, Request, Timed, chosen, layers_on_gpu, main, versions

REQUIREMENTS = ["onnxruntime-genai==0.18.*"]
DRAFTS = (1, 2, 3, 4, 6, 8)
NGRAMS = (3, 4)


class Models:
    """One model for plain and n-grams, one that has the drafter too."""

    def __init__(self, request: Request) -> None:
        layers_on_gpu(request)  # the wheel has none
        self._options: dict[str, dict[str, Any]] = {"plain": {}}
        if request["drafters"]:
            self._options |= {f"draft-{k}": {"max_draft_tokens": k} for k in DRAFTS}
        for n in NGRAMS:
            self._options[f"ngram-{n}"] = {
                "ngram_size": n,
                "max_draft_tokens": 8,
                "ngram_chained_lookup": True,
                "min_adaptive_k": 2,
            }
        self.settings = chosen(request, list(self._options))
        self.details = {"versions": versions("onnxruntime-genai", "onnxruntime")}
        self._stop = frozenset(request["stop_ids"])
        self._folder = tempfile.TemporaryDirectory(prefix="edgespec-peer-")
        drafts = any(setting.startswith("draft") for setting in self.settings)
        alone = any(not setting.startswith("draft") for setting in self.settings)
        self._alone = self._open(request, None) if alone else None
        self._drafted = self._open(request, request["drafters"][0]) if drafts else None

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """By the generator, timed from outside."""
        import onnxruntime_genai as lib

        model = self._drafted if setting.startswith("draft") else self._alone
        params = lib.GeneratorParams(model)
        params.set_search_options(
            max_length=len(ids) + max_tokens, do_sample=False, repetition_penalty=1.0
        )
        if self._options[setting]:
            params.set_speculative_options(**self._options[setting])
        generator = lib.Generator(model, params)
        timed = Timed(self._stop)
        generator.append_tokens(ids)
        waiting = 0  # tokens of a check that come in later calls, without a pass
        rounds = -1  # the first one is the prompt's, behind which it drafts at once
        while len(timed.tokens) < max_tokens and not generator.is_done():
            rounds += not waiting
            generator.generate_next_token()
            goes_on = timed.add(generator.get_next_tokens().tolist(), joins=waiting > 0)
            if self._options[setting]:
                waiting = generator.get_speculative_stats()["tokens_buffered"]
            if not goes_on:
                break
        if not self._options[setting]:
            return timed.answer()
        stats = generator.get_speculative_stats()
        return timed.answer(
            drafted=stats["draft_tokens_proposed"],
            accepted=stats["draft_tokens_accepted"],
            rounds=max(0, rounds),
        )

    def _open(self, request: Request, drafter: str | None) -> Any:
        import onnxruntime_genai as lib

        target = _folder(request["target"])
        made = Path(self._folder.name) / ("drafted" if drafter else "alone")
        made.mkdir()
        config = json.loads((target / "genai_config.json").read_text("utf-8"))
        for file in target.iterdir():
            if file.suffix not in (".onnx", ".data") and file.is_file():
                shutil.copyfile(file, made / file.name)
        blocks = [(config["model"]["decoder"], target)]
        if drafter:
            other = _folder(drafter)
            theirs = json.loads((other / "genai_config.json").read_text("utf-8"))
            config["model"]["draft"] = theirs["model"]["decoder"]
            blocks.append((config["model"]["draft"], other))
        for name, (block, folder) in zip(("target", "draft"), blocks, strict=False):
            _link(folder, made / name)
            block["filename"] = f"{name}/{block['filename']}"
            block.setdefault("session_options", {})["intra_op_num_threads"] = request["threads"]
        (made / "genai_config.json").write_text(json.dumps(config), "utf-8")
        return lib.Model(str(made))


def _link(folder: Path, to: Path) -> None:
    """The model's files in another folder, since paths may not lead out of a configuration's."""
    to.mkdir()
    for file in folder.iterdir():
        if file.suffix in (".onnx", ".data"):
            try:
                os.link(file.resolve(), to / file.name)  # a link of the hub's cache is relative
            except OSError:  # another disk
                shutil.copyfile(file, to / file.name)


def _folder(path: str) -> Path:
    found = Path(path).absolute()  # in the hub's cache each file is a link to elsewhere
    return found if found.is_dir() else found.parent


if __name__ == "__main__":
    main(REQUIREMENTS, Models)
