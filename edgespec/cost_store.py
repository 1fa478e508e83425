"""Measured costs on disk, and what drafters proved to be worth: a small file for each pair, machine
and version.

Invariant: a file that is missing, damaged or of another version is the same as none: the costs are
measured again. Writing replaces the file in one step, and costs of a measurement never by those of
an earlier one.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.adaptive import AdaptivePlanner
from edgespec.costs import Costs
from edgespec.platform import cache_dir, cpu_name
from edgespec.session import Model

_FORMAT = 6


def key(target: Model, drafters: Mapping[str, Model]) -> dict[str, Any]:
    """What the costs depend on: model files, device, threads, versions."""
    return {
        "format": _FORMAT,
        "target": target.details,
        "drafters": {name: model.details for name, model in drafters.items()},
        "machine": cpu_name(),
    }


def load(key: Mapping[str, Any]) -> AdaptivePlanner | None:
    """A planner that goes on from what is kept for this key, if there is anything."""
    found = _read(key)
    return found[1] if found else None


def save(key: Mapping[str, Any], planner: AdaptivePlanner) -> None:
    """Keep what a planner knows beside what others kept meanwhile, of whom one that learnt nothing
    changes nothing; a disk that can't take it is no reason to fail.

    What drafters proved to be worth is that of the last who saw an answer.
    """
    file, costs, found = _file(key), planner.costs, _read(key)
    known: dict[str, Any] = {"costs": costs.to_json(), "taken": costs.taken}
    if found is None:
        known["drafters"] = planner.to_json()
    else:
        theirs = found[0]
        if costs.taken <= theirs["taken"] and not costs.observed:
            return
        known["drafters"] = planner.to_json() if costs.observed else theirs["drafters"]
        known |= _joined(known, theirs, costs.observed)
    part = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"key": key, **known}), "utf-8")
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _read(key: Mapping[str, Any]) -> tuple[dict[str, Any], AdaptivePlanner] | None:
    """What is kept for this key, and a planner that goes on from it."""
    damaged = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
    with suppress(OSError, *damaged):
        data = json.loads(_file(key).read_text("utf-8"))
        kinds = {"check", *key["drafters"]}
        if data["key"] == json.loads(json.dumps(key)) and set(data["costs"]["0"]) == kinds:
            planner = AdaptivePlanner(Costs.from_json(data["costs"]))
            planner.recall(data["drafters"])
            planner.costs.taken = data["taken"] = float(data["taken"])
            if 0 <= planner.costs.taken < 1e12:
                return data, planner
    return None


def _joined(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], observed: set[str]
) -> dict[str, Any]:
    """Costs of both: each length from the later measurement, or from who saw passes of it last.

    Lengths that one of them alone knows stay, at the pace of the others. Those of the earlier
    measurement are as unsure as one that is new.
    """
    first, others = dict(ours["costs"]), dict(theirs["costs"])
    if ours["taken"] < theirs["taken"]:
        first, others = others, first
    pace = first["0"]["check"]["seconds"][0] / others["0"]["check"]["seconds"][0]
    long_reads = others.pop("long_reads") | first.pop("long_reads")
    same = ours["taken"] == theirs["taken"]
    if same:
        first = {b: curves for b, curves in first.items() if b in observed or b not in others}
    for length in others.keys() - first.keys():
        first[length] = {
            kind: {
                "seconds": [seconds * pace for seconds in curve["seconds"]],
                "unsure": curve["unsure"] if same else [1.0] * len(curve["unsure"]),
            }
            for kind, curve in others[length].items()
        }
    return {
        "costs": {"long_reads": long_reads, **first},
        "taken": max(ours["taken"], theirs["taken"]),
    }


def _file(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:16]}.json"
