"""What a runtime is opened with: files found or fetched, drafters that fit, a planner with costs.

Invariant: whatever can't work is found here, before the first token, and said in one sentence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgespec import cost_store
from edgespec.adaptive import AdaptivePlanner
from edgespec.backends import LoadOptions, OnLoad, is_onnx, load_model
from edgespec.drafters import Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError, ModelError
from edgespec.exactness import NEAR_TIE
from edgespec.planner import FixedPlanner, Planner
from edgespec.platform import expanded
from edgespec.registry import LOOKUP, MODEL, ModelSpec, load_registry, too_many
from edgespec.session import CancelFlag, Model
from edgespec.timing import OnPass, measure
from edgespec.tokenizer import check_same_tokens
from edgespec.units import human_bytes

if TYPE_CHECKING:
    from edgespec.fetch import OnFetch

AUTO: Literal["auto"] = "auto"
"""The lookahead that the planner chooses, round by round, from measured costs."""


def make_planner(
    target: Model,
    drafters: Sequence[Drafter],
    lookahead: int | Literal["auto"],
    cancel: CancelFlag,
    report: Callable[[str], None],
    measure_again: bool,
    on_pass: OnPass = lambda *_: None,
) -> tuple[Planner, Callable[[], None]]:
    """The planner for a lookahead, and how to keep what it learnt; "auto" may have to measure."""
    if lookahead != AUTO:
        return FixedPlanner([drafter.name for drafter in drafters], lookahead), lambda: None
    if not drafters or not target.session.can_rollback:
        return FixedPlanner((), 0), lambda: None
    models = {d.name: d.model for d in drafters if isinstance(d, ModelDrafter)}
    key = cost_store.key(target, models)
    kept = cost_store.load(key)
    planner = None if measure_again else kept
    if planner is None:
        report("measuring what passes of these models cost on this machine, once")
        sessions = {name: model.session for name, model in models.items()}
        costs = measure(target.session, sessions, check=cancel.raise_if_set, on_pass=on_pass)
        costs.taken = max(time.time(), kept.costs.taken + 1 if kept else 0.0)  # clocks go back
        planner = AdaptivePlanner(costs)
        if kept is not None:  # costs are measured again; what drafters proved to be worth stands
            planner.recall(kept.to_json())
        cost_store.save(key, planner)
    return planner, lambda: cost_store.save(key, planner)


def find_files(
    pair: str | None,
    target: Path | str | None,
    drafters: Sequence[str] | None,
    fetch: bool,
    report: Callable[[str], None] = lambda _: None,
    on_fetch: OnFetch = lambda *_: None,
) -> tuple[Path, list[str]]:
    """The target's file, and drafters as "lookup" or a file, fetched where needed.

    In `drafters`, "model" stands for the pair's model that drafts. Raises ConfigError,
    before anything is fetched, for a choice that can't be.
    """
    if drafters is not None:
        drafters = [drafters] if isinstance(drafters, str) else list(drafters)
    if target is not None:
        chosen = [LOOKUP] if drafters is None else drafters
        if MODEL in chosen:
            raise ConfigError("there is no drafter model to choose: name its file with --drafter")
        if not _exists(target) and str(target) in load_registry().pairs:
            raise ConfigError(f"{target} is a pair and no file: name it with --pair {target}")
        _refuse_two(chosen)
        _refuse_missing(chosen)
        return Path(target), chosen
    spec = load_registry().pair(pair)
    models = [drafter for drafter in spec.drafters if isinstance(drafter, ModelSpec)]
    if drafters is not None and MODEL in drafters and not models:
        raise ConfigError(f"{spec.name} has no drafter model: choose `lookup` alone")
    named: list[str | ModelSpec] = []
    for drafter in spec.drafters if drafters is None else drafters:
        named += models if drafter == MODEL else [drafter]
    _refuse_two([d if isinstance(d, str) else d.name for d in named])
    _refuse_missing([d for d in named if isinstance(d, str)])

    def local(model: ModelSpec) -> Path:
        return _local(model, fetch, report, on_fetch)

    files = [d if isinstance(d, str) else str(local(d)) for d in named]
    return local(spec.target), files


def _exists(path: Path | str) -> bool:
    # Path's own method raises where it can't look.
    return os.path.exists(expanded(path))  # noqa: PTH110


def _refuse_two(drafters: Sequence[str]) -> None:
    if refusal := too_many(drafters):
        raise ConfigError(refusal)


def _refuse_missing(drafters: Sequence[str]) -> None:
    for name in drafters:
        if name != LOOKUP and not _exists(name):
            raise ConfigError(
                f"there is no drafter {name}: choose {LOOKUP}, {MODEL} (that of a pair) or a "
                "model file that is there"
            )


def _local(spec: ModelSpec, fetch: bool, report: Callable[[str], None], on_fetch: OnFetch) -> Path:
    from edgespec import fetch as sources

    path = sources.local_path(spec)
    if path is not None:
        return path
    here = sources.is_here(spec)
    if not fetch:
        lacks = "wasn't compared with its SHA-256 yet" if here else "isn't on this machine"
        raise ModelError(f"{spec.name} {lacks}: run `edgespec pull {spec.name}`")
    size = human_bytes(spec.size_bytes)
    report(
        f"comparing {spec.name} with its SHA-256" if here else f"downloading {spec.name}, {size}"
    )
    return sources.fetch(spec, progress=partial(on_fetch, spec.name))


def options_by_file(
    target: Path, drafters: Iterable[str], options: LoadOptions
) -> tuple[dict[Path, LoadOptions], list[str]]:
    """How each file of a pair is loaded, and what to tell of `gpu_layers`.

    `drafters` are all that were asked for, used or not. In a pair with an ONNX model `gpu_layers`
    alone says where the GGUF one goes, and `device` where the ONNX one does. Raises ConfigError
    where the two contradict each other, as they can without ONNX models.
    """
    files = [target, *(Path(drafter) for drafter in drafters if drafter not in (LOOKUP, MODEL))]
    alike = dict.fromkeys(files, options)
    layers = options.gpu_layers
    if layers is None:
        return alike, []
    onnx = {file for file in alike if is_onnx(file)}
    if onnx == alike.keys():
        told = "--gpu-layers does nothing here, for it is for GGUF models: ONNX has --device"
        return alike, [told]
    if onnx:
        by_layers = replace(options, device="auto")
        return {file: options if file in onnx else by_layers for file in files}, []
    if options.device == ("cpu" if layers else "cuda"):
        raise ConfigError(
            f"--device {options.device} and --gpu-layers {layers} contradict each other: drop one"
        )
    return alike, []


def rounding_notes(target: Model, drafters: Sequence[Drafter]) -> list[str]:
    """What to tell of a target whose logits depend on how many tokens share a pass."""
    if target.rounding <= NEAR_TIE or not drafters:
        return []
    return [
        f"{target.name} gives slightly other logits for several tokens in one pass than for one "
        f"(up to {target.rounding:.1g}): where two tokens are nearly as likely, drafted text can "
        "differ from plain text"
    ]


def check_target(model: Model) -> None:
    """Raises ConfigError where a model can't be a target."""
    if model.only_drafts:
        raise ConfigError(
            f"{model.name} can only draft, since {model.only_drafts}: choose it as the drafter "
            "(--drafter) of another target (--target)"
        )


def check_drafter(target: Model, model: Model) -> None:
    """Raises ModelError where a model can't draft for its target."""
    check_same_tokens(target.tokenizer, model.tokenizer)
    if not model.session.can_rollback:
        raise ModelError(
            f"{model.name} can't draft, since it can't take back a guess (it is recurrent); "
            "choose another drafter"
        )


def load_drafter(
    target: Model,
    path: Path,
    options: LoadOptions,
    cancel: CancelFlag,
    notes: list[str],
    on_load: OnLoad = lambda *_: None,
) -> Drafter:
    """A model as drafter, checked against its target."""
    size = target.session.context_size
    options = replace(options, context_size=None, context_cap=size)
    model = load_model(path, options, cancel, on_load)
    try:
        check_drafter(target, model)
    except BaseException:
        model.close()
        raise
    if model.session.context_size < size:
        notes.append(
            f"{model.name} holds {model.session.context_size} tokens of the {size} that "
            f"{target.name} holds: behind them it drafts from the newest part of the text alone"
        )
    return ModelDrafter(model)
