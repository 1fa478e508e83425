"""transformers' `generate`: plain, with an assistant model, with prompt lookup.

It reads the target's GGUF file (whose weights it turns into float32 or bfloat16), or a checkpoint's
folder. The settings of the assistant are transformers' own defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import Answer, Request, Timed, chosen, layers_on_gpu, main, versions

REQUIREMENTS = ["torch==2.13.0", "transformers==4.57.*", "gguf>=0.10", "accelerate"]
TYPES = {"float32": "", "bfloat16": "-bf16"}


class Models:
    """The target and the assistant in each number type that a setting asks for."""

    def __init__(self, request: Request) -> None:
        layers_on_gpu(request)  # it is given none
        import torch

        torch.set_num_threads(request["threads"])
        ways = ["plain", "lookup-10", *(["assisted"] if request["drafters"] else [])]
        names = {way + end: (way, kind) for kind, end in TYPES.items() for way in ways}
        self.settings = chosen(request, list(names))
        self.details = {"versions": versions("torch", "transformers")}
        self._ways = {setting: names[setting] for setting in self.settings}
        self._stop = frozenset(request["stop_ids"])
        kinds = {kind for _, kind in self._ways.values()}
        assisted = {kind for way, kind in self._ways.values() if way == "assisted"}
        self._targets = {kind: _open(request["target"], kind) for kind in kinds}
        self._assistants = {kind: _open(request["drafters"][0], kind) for kind in assisted}

    def answer(self, setting: str, ids: list[int], max_tokens: int) -> Answer:
        """By `generate`, with a streamer that takes the time of each arrival."""
        import torch

        way, kind = self._ways[setting]
        more: dict[str, Any] = {}
        if way == "assisted":
            more["assistant_model"] = self._assistants[kind]
        elif way.startswith("lookup"):
            more["prompt_lookup_num_tokens"] = int(way.removeprefix("lookup-"))
        timed = Timed(self._stop)
        prompt = torch.tensor([ids])
        with torch.inference_mode():
            self._targets[kind].generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                do_sample=False,
                temperature=None,
                top_k=None,
                top_p=None,
                repetition_penalty=1.0,
                eos_token_id=sorted(self._stop),
                pad_token_id=min(self._stop),
                streamer=_Streamer(timed, len(ids)),
                **more,
            )
        return timed.answer()


class _Streamer:
    """What `generate` gives its tokens to; the prompt comes first."""

    def __init__(self, timed: Timed, prompt: int) -> None:
        self._timed = timed
        self._prompt = prompt

    def put(self, tokens: Any) -> None:
        new = tokens.flatten().tolist()
        skipped = min(self._prompt, len(new))
        self._prompt -= skipped
        if new[skipped:] and not self._timed.ended:
            self._timed.add(new[skipped:])

    def end(self) -> None:
        pass


def _open(path: str, kind: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    file = Path(path)
    if file.is_dir():
        model = AutoModelForCausalLM.from_pretrained(file, dtype=getattr(torch, kind))
    else:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=getattr(torch, kind)
        )
    return model.eval()


if __name__ == "__main__":
    main(REQUIREMENTS, Models)
