"""Whether an exported graph is the model it was made from.

Invariant: the graph is run from its file, as everyone will run it, and in steps as decoding takes
them; what fails is said with its place. Few bits hide much, so the graph is also run as it was
before its weights became fewer bits, where that was kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.errors import ExportError
from edgespec.exporters.machine import no_memory
from edgespec.exporters.onnx_file import MODEL
from edgespec.exporters.onnx_run import Graph
from edgespec.exporters.parity import Figures, Floats, Limits, compare

if TYPE_CHECKING:
    from edgespec.exporters.onnx_reference import Behind

# Against the checkpoint. A rotation left out, or weights in the wrong place, gives several nats and
# the same likeliest token in a tenth of the positions. SmolLM2-135M, which feels few bits more than
# larger models do, gave 2e-11, 2e-5, 0.005 and 0.39 nats, and 100%, 100%, 95% and 67%.
LIMITS: Mapping[str, Limits] = {
    "fp32": Limits(mean_kl=1e-6, top1=0.99, worst=0.05),
    "fp16": Limits(mean_kl=1e-3, top1=0.97, worst=2.0),
    "int8": Limits(mean_kl=0.03, top1=0.9, worst=8.0),
    "int4": Limits(mean_kl=0.8, top1=0.55, worst=40.0),
}
# Several tokens in a pass against one at a time: the same numbers summed in another order, and,
# with few bits, activations rounded to 8 after it. There: 7e-6 in fp16, 0.003 in int8 and int4.
STEP_LIMITS: Mapping[str, Limits] = {
    "fp32": Limits(mean_kl=1e-6, top1=0.97, worst=0.05),
    "fp16": Limits(mean_kl=1e-3, top1=0.95, worst=2.0),
    "int8": Limits(mean_kl=0.03, top1=0.85, worst=8.0),
    "int4": Limits(mean_kl=0.03, top1=0.85, worst=8.0),
}

_FLOATS = "code"  # the text that a float graph is run on
_STEPS = 40  # tokens that are taken one at a time


def check(
    folder: Path,
    reference: Mapping[str, Floats],
    ids: Mapping[str, list[int]],
    dtype: str,
    *,
    in_place: bool,
    behind: Behind | None = None,
) -> dict[str, Any]:
    """The figures of a graph that passed. Raises ExportError for one that didn't.

    behind: a text longer than what some layer sees, where there is such a layer.
    """
    room = max(map(len, (*ids.values(), behind.tokens if behind else []))) + 1
    graph = Graph(folder / MODEL, in_place=in_place, room=room)
    found = {}
    for name, text in ids.items():
        graph.clear()
        found[name] = graph.forward(text)
    against = compare(reference, found)
    _refuse("Its logits aren't the checkpoint's", LIMITS[dtype].refusal(against))
    text = ids["code"][:_STEPS]
    single, several = _singly(graph, text), _in_pieces(graph, text)
    steps = compare({"code": single}, {"code": several})
    _refuse(
        "Several tokens in a pass aren't what they are one at a time",
        STEP_LIMITS[dtype].refusal(steps),
    )
    if graph.selects_rows:
        _check_rows(graph, text, dtype)
    figures = {
        "compared_with": "the checkpoint in torch, float32",
        "logits": against.as_json(),
        "several_against_single": steps.as_json(),
    }
    if behind is not None:
        far = _behind_window(graph, behind)
        _refuse("Behind its window its logits aren't the checkpoint's", LIMITS[dtype].refusal(far))
        figures["behind_its_window"] = far.as_json()
    return figures


def check_floats(
    folder: Path, reference: Mapping[str, Floats], ids: Mapping[str, list[int]], *, in_place: bool
) -> dict[str, Any]:
    """The figures of one text through a float graph, by the limits of float32. Raises ExportError.

    Without them 4 bits would hide a norm of another kind, or a rotation that is a little off.
    """
    text = ids[_FLOATS]
    graph = Graph(folder / MODEL, in_place=in_place, room=len(text) + 1, mapped=True)
    against = compare({_FLOATS: reference[_FLOATS]}, {_FLOATS: graph.forward(text)})
    what = "Before its weights became fewer bits its logits weren't the checkpoint's"
    _refuse(what, LIMITS["fp32"].refusal(against))
    return against.as_json()


def check_folder(folder: Path) -> None:
    """Open it as the runtime does. Raises ExportError where it could be no target there.

    Where there is no memory for it, the ModelError that says so.
    """
    from edgespec.backends import LoadOptions, load_model
    from edgespec.errors import ModelError
    from edgespec.session import CancelFlag

    options = LoadOptions(context_cap=_STEPS, device="cpu")
    try:
        model = load_model(folder, options, CancelFlag())
    except ModelError as error:
        if no_memory(error):
            raise
        raise ExportError(
            f"The export failed its check. edgespec can't open it: {str(error).rstrip('.')}. "
            "Nothing was kept."
        ) from error
    model.close()
    if model.only_drafts:
        _refuse("It could check no drafts", model.only_drafts)


@contextlib.contextmanager
def advice(*, fused: bool) -> Iterator[None]:
    """Name the other style where a check of a fused graph fails."""
    try:
        yield
    except ExportError as error:
        if not fused:
            raise
        raise ExportError(f"{str(error).rstrip('.')}; --portable may do.") from error


def _refuse(what: str, reason: str | None) -> None:
    if reason is not None:
        raise ExportError(f"The export failed its check. {what}: {reason}. Nothing was kept.")


def _singly(graph: Graph, text: list[int]) -> Floats:
    graph.clear()
    return np.concatenate([graph.forward([token]) for token in text])  # (n, V)


def _in_pieces(graph: Graph, text: list[int]) -> Floats:
    """Passes of 5, 2, 4, 5, 2, 4, ... tokens; in place, wrong ones are taken back in between."""
    graph.clear()
    rows: list[Floats] = []
    first, sizes = 0, (5, 2, 4)
    while first < len(text):
        piece = text[first : first + sizes[len(rows) % 3]]
        rows.append(graph.forward(piece))
        first += len(piece)
        if graph.in_place and first + 3 <= len(text):
            graph.forward(text[:3])
            graph.length = first
    return np.concatenate(rows)


def _behind_window(graph: Graph, behind: Behind) -> Figures:
    """A text's last tokens within one pass over all of it, and one at a time."""
    tokens, count = behind.tokens, len(behind.logits)
    graph.clear()
    within = graph.forward(tokens, range(len(tokens) - count, len(tokens)))
    graph.clear()
    graph.forward(tokens[:-count], [0])
    singly = np.concatenate([graph.forward([token]) for token in tokens[-count:]])
    names = ("a text longer than its window", "its end one token at a time")
    return compare(
        dict.fromkeys(names, behind.logits), dict(zip(names, (within, singly), strict=True))
    )


def _check_rows(graph: Graph, text: list[int], dtype: str) -> None:
    graph.clear()
    every = graph.forward(text)
    graph.clear()
    wanted = [len(text) - 1, 0]
    chosen = graph.forward(text, wanted)
    if chosen.shape != every[wanted].shape:
        raise ExportError(f"The exported graph returns {chosen.shape} logits for two positions.")
    found: Figures = compare({"code": every[wanted]}, {"code": chosen})
    _refuse("Chosen positions differ from all", STEP_LIMITS[dtype].refusal(found))
