"""What two measurements were made under: the same for a comparison, or not.

Invariant: what a person asked for and what the machine is are conditions; what edgespec or a
version below it made of the same request is none, since that is what a comparison judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from edgespec.bench.identity import LIBRARIES, PACKAGES
from edgespec.bench.record import PROMPTS, Pair, Results, machine_change
from edgespec.platform import SPINS

JUDGED = frozenset(("code", "edgespec", "python", *PACKAGES, *LIBRARIES))
"""The settings that a comparison is about."""

DEVICES = ("device", "drafter_devices", "gpus")
"""The settings that say where models ran."""

ROUNDING = 256
"""llama.cpp rounds a context up to a multiple of so many tokens."""


def other_conditions(a: Results, b: Results, pair: str) -> list[str]:
    """What figures depend on and isn't the same in both; prompts count one by one, by their texts.

    Versions are what is judged. A setting that one file doesn't have is one that the edgespec of
    its day didn't write down.
    """
    one, two = a.pairs[pair], b.pairs[pair]
    same = {
        "the machine": same_machine(a, b),
        "the target": one.target.get("sha256") == two.target.get("sha256"),
        "the drafter": drafters_of(one) == drafters_of(two),
    } | {
        key: _same_setting(key, was, two.settings[key])
        for key, was in one.settings.items()
        if key in two.settings and key not in (*JUDGED, *PROMPTS)
    }
    return [name for name, kept in same.items() if not kept]


def drafters_of(pair: Pair) -> list[Any]:
    """The hashes of its drafters' files."""
    return [drafter.get("sha256") for drafter in pair.drafters]


def _same_setting(key: str, was: Any, is_: Any) -> bool:
    """Whether a person asked for the same, and the machine gave the same for it."""
    if key == "device":
        return _device(was) == _device(is_)
    if key == "drafter_devices":
        return len(was or ()) == len(is_ or ()) and all(map(_same_gpu, was or (), is_ or ()))
    if key == "gpus":  # whether one is used is the device's to say
        return not was or not is_ or bool(was == is_)
    if key == "context_size":
        return abs(int(was) - int(is_)) < ROUNDING
    if key == "gomp_spincount":  # edgespec sets it where the machine is busy at the start
        return was == is_ or {was, is_} == {None, SPINS}
    return bool(was == is_)


def _same_gpu(was: str, is_: str) -> bool:
    """Whether two labels name one device; an older version may not have known a GPU's name."""
    (kind, _, name), (other, _, other_name) = (
        _device(label).partition(": ") for label in (was, is_)
    )
    return kind == other and (not name or not other_name or name == other_name)


def _device(label: str | None) -> str:
    """Without what a version tells of it in brackets, as how many operations run there."""
    return (label or "").partition(" (")[0]


def fallen(a: Results, b: Results) -> Iterator[str]:
    """Models that ran on a GPU, and run on the CPU although the same was asked for."""
    if _asked_device(a) != _asked_device(b):
        return
    for pair in (pair for pair in a.pairs if pair in b.pairs):
        if not set(other_conditions(a, b, pair)) <= {*DEVICES}:
            continue
        before, after = (_devices(results.pairs[pair]) for results in (a, b))
        for model, is_ in after.items():
            was = before.get(model)
            if was and is_.startswith("CPU") and not was.startswith("CPU"):
                yield f"{pair}: {model} ran on {was} and runs on {is_}, which nobody asked for"


def _devices(pair: Pair) -> dict[str, str]:
    """What each model ran on, where that is known."""
    drafters = pair.settings.get("drafter_devices") or []
    found = [("the target", pair.settings.get("device")), *(("a drafter", at) for at in drafters)]
    return {model: at for model, at in found if at}


def _asked_device(results: Results) -> str:
    """What `--device` was in the newest command; it may be shortened, as every option may."""
    words, found = results.runs[-1].command if results.runs else [], "auto"
    for word, following in pairwise([*words, ""]):
        option, given, value = word.partition("=")
        if len(option) > len("--d") and "--device".startswith(option):
            found = value if given else following
    return found


def same_machine(a: Results, b: Results) -> bool:
    """Whether the newest run of both was on one machine, as far as they tell."""
    if not a.runs or not b.runs:
        return True
    return machine_change(a.runs[-1].machine, b.runs[-1].machine) is None
