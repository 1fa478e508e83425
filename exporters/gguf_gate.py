"""The gate between a file that was written and its final name.

Invariant: a file passes only if llama.cpp opens it, finds in it every tensor that was planned,
gives the checkpoint's ids for every probe text, and computes logits that are near enough to a
reference, or the manifest says that there was none and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf_probe import TEXTS, probe_texts, reference
from edgespec.exporters.gguf_quant import Quant
from edgespec.exporters.gguf_reference import NoReferenceError, reference_logits, why_not
from edgespec.exporters.gguf_tensors import Plan
from edgespec.exporters.gguf_tokenizer import Words, differing, stop_ids
from edgespec.exporters.progress import Report
from edgespec.gguf import read_header

Rows = npt.NDArray[np.float32]

_TOKENS = 48

# How far logits may lie apart, as the largest difference over the largest logit. Small models
# suffer most: SmolLM2-135M was seen at 0.07 in q8_0, 0.20 in q4_k_m, 0.46 in q4_0, 0.58 in q2_k.
_NEAR = {"f32": 1e-3, "f16": 1e-2, "bf16": 5e-2}
_NEAR_BITS = ((8, 0.2), (6, 0.3), (5, 0.5), (3, 1.0), (0, 2.0))


@dataclass
class Parity:
    """How near a file is to its checkpoint; goes into the manifest.

    Attributes:
        figures: what was compared with what, and how it came out.
        notes: what the person should know.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Gate:
    """The checks of one export; asks for each reference once."""

    def __init__(self, checkpoint: Checkpoint, words: Words, report: Report) -> None:
        self.parity = Parity()
        self._checkpoint = checkpoint
        self._words = words
        self._report = report
        self._tokens: list[int] = []
        self._truth: Rows | str | None = None
        self._before: tuple[str, Rows] | None = None

    def check(self, path: Path, plan: Plan | None, quant: Quant) -> None:
        """Raises ExportError unless the file is what it should be.

        The plain file that a quantised one is made from goes first: it is the second one's
        reference where transformers can't be asked.
        """
        self._report(f"checking the {quant.name} file")
        if plan is not None:
            _same_tensors(path, plan)
        self._same_ids(path)
        self._near_logits(path, quant)

    def _same_ids(self, path: Path) -> None:
        from edgespec.backends import llama_probe

        words, figures = self._words, self.parity.figures
        own = reference(words.vocabulary, self._checkpoint.path)
        if own is not None:
            differs = differing(path, words, own)
            if differs is not None:
                text, ours, theirs = differs
                raise ExportError(
                    f"The file splits {text!r} into {ours[:12]} and the checkpoint into "
                    f"{theirs[:12]}, so it isn't the same model to its user."
                )
            asked = len(probe_texts(words.vocabulary, marks=own.name == "tokenizers"))
            figures["ids"] = {"compared_with": own.name, "texts": asked, "equal": True}
        else:
            figures["ids"] = {"compared_with": None}
        with llama_probe.vocabulary(path) as native:
            if not self._tokens:
                found = [token for text in TEXTS[:4] for token in native.encode(text)]
                self._tokens = found[:_TOKENS] or [0]
            stops = stop_ids(self._checkpoint, len(words.vocabulary.tokens))
            figures["stop_ids"] = {str(stop): native.ends_text(stop) for stop in stops}

    def _near_logits(self, path: Path, quant: Quant) -> None:
        from edgespec.backends import llama_probe

        ours = llama_probe.logits(path, self._tokens)
        if not np.isfinite(ours).all():
            raise ExportError(
                "The file computes logits that aren't numbers; the checkpoint's values may be too "
                "large for this type: try --quant bf16 or f32."
            )
        figures = self.parity.figures.setdefault("logits", {})
        truth = self._reference()
        if not isinstance(truth, str):
            figures[quant.name] = self._compare("transformers", ours, truth, quant)
        elif self._before is not None:
            name, before = self._before
            figures[quant.name] = self._compare(f"the {name} file", ours, before, quant)
        else:
            figures[quant.name] = {"compared_with": None, "because": truth}
            self.parity.notes.append(
                f"its logits were not compared with the checkpoint's, as {truth}"
            )
        self._before = quant.name, ours

    def _reference(self) -> Rows | str:
        """The checkpoint's own logits, asked for once; or half a sentence why there are none."""
        if self._truth is None:
            self._truth = why_not(self._checkpoint)
        if self._truth is None:
            self._report("asking transformers for the checkpoint's logits")
            try:
                self._truth = reference_logits(self._checkpoint, self._tokens)
            except NoReferenceError as error:
                self._truth = str(error)
        return self._truth

    def _compare(self, with_what: str, ours: Rows, theirs: Rows, quant: Quant) -> dict[str, Any]:
        theirs = theirs[:, : ours.shape[1]]
        ours = ours[:, : theirs.shape[1]]
        found, allowed = distances(ours, theirs), near(quant)
        if not found["relative"] <= allowed:
            raise ExportError(
                f"The {quant.name} file's logits lie {found['relative']:.2g} from those of "
                f"{with_what}, where {allowed:g} is allowed; the export isn't faithful."
            )
        return {"compared_with": with_what, **found, "allowed": allowed}


def near(quant: Quant) -> float:
    """The largest difference of logits, relative to the largest logit, that a type may bring."""
    if quant.name in _NEAR:
        return _NEAR[quant.name]
    return next(allowed for bits, allowed in _NEAR_BITS if quant.bits >= bits)


def distances(ours: Rows, theirs: Rows) -> dict[str, float]:
    """Largest difference over largest logit, mean divergence in nats, and agreement on the best."""
    difference = np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), 1e-30)
    wanted, found = _log_probs(theirs), _log_probs(ours)
    return {
        "relative": float(difference),
        "divergence": float((np.exp(wanted) * (wanted - found)).sum(axis=1).mean()),
        "same_best": float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        "positions": float(len(ours)),
    }


def _log_probs(rows: Rows) -> Rows:
    shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    result: Rows = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _same_tensors(path: Path, plan: Plan) -> None:
    header = read_header(path)
    found = {tensor.name: tensor.shape for tensor in header.tensors}
    wanted = {tensor.name: tuple(tensor.shape[::-1]) for tensor in plan.tensors}
    wrong: Sequence[str] = sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )
    if wrong:
        raise ExportError(f"The file doesn't hold {wrong[0]} as it was planned; export again.")
