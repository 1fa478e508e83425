"""Measured costs on disk, and what drafters proved to be worth: a small file for each pair, machine
and version.

Invariant: a file that is missing, damaged or of another version is the same as none: the costs are
measured again. Writing replaces the file in one step.
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

_FORMAT = 5


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
    damaged = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
    with suppress(OSError, *damaged):
        data = json.loads(_file(key).read_text("utf-8"))
        kinds = {"check", *key["drafters"]}
        if data["key"] == json.loads(json.dumps(key)) and set(data["costs"]["0"]) == kinds:
            planner = AdaptivePlanner(Costs.from_json(data["costs"]))
            planner.recall(data["drafters"])
            return planner
    return None


def save(key: Mapping[str, Any], planner: AdaptivePlanner) -> None:
    """Keep what a planner knows; a disk that can't take it is no reason to fail."""
    file = _file(key)
    part = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        known = {"costs": planner.costs.to_json(), "drafters": planner.to_json()}
        part.write_text(json.dumps({"key": key, **known}), "utf-8")
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _file(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:16]}.json"
