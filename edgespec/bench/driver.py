"""A pair from its files to its trials: open, say what is measured, load peers, measure.

Invariant: a folder holds one measurement. Whatever would make its figures incomparable (another
file, another version, other settings) is refused by name before anything is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from edgespec import platform
from edgespec.bench.curves import cost_curves
from edgespec.bench.files import Writer
from edgespec.bench.identity import code_hash, identity, label, libraries, versions
from edgespec.bench.peers import Peer, PeerSide, peer_name
from edgespec.bench.prompts import LONG_TEXTS, PromptSet, load
from edgespec.bench.protocol import Plan, measure, prepare
from edgespec.bench.record import Pair, Run, first_change, machine_change, one_line
from edgespec.bench.sides import AUTO, RuntimeSide, Side, settings
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.fetch import bars
from edgespec.opening import find_files
from edgespec.platform.huge_pages import on_request
from edgespec.platform.memory import total_memory
from edgespec.registry import LOOKUP, MODEL, ModelSpec, load_registry
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY, Rule, SamplingParams


@dataclass(frozen=True)
class Named:
    """A pair to measure: its name in the results, and the files or the pair of the registry."""

    name: str
    pair: str | None
    target: str | None
    drafters: list[str] | None


@dataclass(frozen=True)
class Options:
    """Everything that is the same for all pairs of a measurement.

    `groups` are choices of drafters, each a setting with each of `lookaheads`; None takes all that
    a pair has together. `temperature` 0 is greedy; above, `rule` says how drafts are verified.
    """

    prompts: PromptSet
    limit: int | None = None
    all_turns: bool = False
    groups: Sequence[tuple[str, ...]] | None = None
    lookaheads: Sequence[int | Literal["auto"]] = (AUTO,)
    temperature: float = 0.0
    rule: Rule = "rejection"
    seed: int = 1
    max_tokens: int = 128
    repeats: int = 1
    contexts: Sequence[int] = ()
    context_size: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    device: str = "auto"
    allow_cpu: bool = False
    peers: Sequence[tuple[Path, list[str] | None]] = ()
    environments: Path = Path("peers")

    @property
    def sampling(self) -> SamplingParams:
        if not self.temperature:
            return GREEDY
        return SamplingParams(temperature=self.temperature, seed=self.seed, rule=self.rule)


def begin(writer: Writer, command: Sequence[str]) -> None:
    """Note that a run begins, and on what machine; raises ConfigError where it went on another."""
    machine = {
        "cpu": platform.cpu_name(),
        "usable_cpus": platform.usable_cpus(),
        "memory_bytes": total_memory(),
        "system": sys.platform,
    }
    earlier = writer.results.runs[-1:] if writer.results.trials else []
    for run in earlier:
        if (change := machine_change(run.machine, machine)) is not None:
            name, was, is_ = change
            raise ConfigError(
                f"{writer.file.parent} holds results of another machine ({name} was {was}, is "
                f"{is_}): choose another --out"
            )
    began = datetime.now(UTC).isoformat(timespec="seconds")
    writer.begin(Run(began, [one_line(word) for word in command], machine, versions()))


def run_pair(
    named: Named,
    options: Options,
    writer: Writer,
    say: Callable[[str], None],
    progress: Callable[[int, int, str, float | None], None],
) -> None:
    """Measure what is missing of a pair; raises EdgespecError."""
    _refuse_absent(named, options)
    asked = (named.pair, named.target, named.drafters)
    with bars() as on_fetch:
        target, drafters = find_files(*asked, fetch=True, report=say, on_fetch=on_fetch)
    say(f"{named.name}: reading {target.name} to take its hash...")
    files = {path: identity(path) for path in (target, *_files(drafters))}
    with ExitStack() as stack:
        runtime = stack.enter_context(_open(target, drafters, options, say))
        for note in runtime.notes:
            say(f"note: {note}")
        wanted = settings(_groups(options, runtime), options.lookaheads)
        plan = Plan(
            named.name,
            options.prompts.limited(options.limit),
            options.max_tokens,
            options.repeats,
            options.all_turns,
            options.sampling,
            options.contexts,
        )
        # What can't be done is refused before a peer is loaded, or anything kept.
        own: list[Side] = [RuntimeSide(runtime, setting) for setting in (None, *wanted)]
        prepared = prepare(runtime, plan)
        peers: list[Peer] = []
        for script, only in options.peers:
            say(f"{peer_name(script)}: making its environment where it has none, and loading...")
            peers.append(_peer(script, only, target, drafters, runtime, options, writer))
            stack.callback(peers[-1].close)
        sides = own + _peer_sides(peers)
        pair = Pair(
            pair=named.name,
            target=files[target],
            drafters=[files[path] for path in _files(drafters)],
            settings=_settings(options, runtime),
            sides=[side.name for side in sides],
            peers={peer.name: peer.details for peer in peers},
        )
        _same_conditions(writer, pair)

        def begin() -> None:
            known = writer.results.pairs.get(named.name)
            if known is None or (known != pair and not writer.results.answered(named.name)):
                writer.append(pair)
            measured = {(c.model, c.role) for c in writer.results.costs if c.pair == named.name}
            for costs in cost_curves(runtime, named.name, known=measured, say=say):
                writer.append(costs)

        measure(runtime, sides, plan, writer, progress, prepared=prepared, begin=begin, say=say)


def _refuse_absent(named: Named, options: Options) -> None:
    """See that a pair has the drafters that were chosen, before anything is downloaded or read."""
    if options.groups is None or not any(options.lookaheads):
        return
    drafters: Sequence[ModelSpec | str]
    if named.drafters is None:
        drafters = load_registry().pair(named.pair).drafters
        advice = "or name its target's file with --target and a drafter's with --drafter"
    else:
        drafters, advice = named.drafters, "or add one with --drafter"
    has = [LOOKUP if drafter == LOOKUP else MODEL for drafter in drafters]
    missing = [name for group in options.groups for name in group if name not in has]
    if missing:
        raise ConfigError(
            f"{named.name} has no drafter {missing[0]!r} (it has: {', '.join(has) or 'none'}): "
            f"change --drafters, {advice}"
        )


def refuse_twins(scripts: Sequence[Path]) -> None:
    """Peers are told apart by their scripts' names; raises ConfigError where two have one."""
    if twice := _twice([peer_name(script) for script in scripts]):
        raise ConfigError(
            f"two --peer are called {twice}: name a script once, with its settings behind it, and "
            "give another script another name"
        )


def wait_as_before(writer: Writer, pairs: Sequence[Named]) -> None:
    """Have OpenMP's threads wait as when these pairs were begun, where the person doesn't say.

    How busy the machine is at the start decides that otherwise. Works before libgomp is loaded.
    """
    known = writer.results.pairs
    names = [one.name for one in pairs if one.name in known and writer.results.answered(one.name)]
    if names and not platform.users_environment().keys() & set(platform.WAITING):
        before = known[names[0]].settings
        spins = before.get("gomp_spincount")
        if before.get("omp_wait_policy") is None:
            platform.set_spins(None if spins is None else str(spins))


def named_pairs(
    pairs: Sequence[str], target: str | None, drafters: Sequence[str] | None
) -> list[Named]:
    """What the command line names: pairs, and files that make one; the default pair for nothing."""
    found = [Named(pair, pair, None, None) for pair in pairs]
    if target is not None:
        files = [file for file in drafters or () if file != LOOKUP]
        name = "+".join(label(Path(file)) for file in (target, *files))
        found.append(Named(name, None, target, [LOOKUP, *files]))
    elif drafters:
        raise ConfigError("--drafter goes with --target: name the target's file too")
    if not found:
        name = load_registry().default.name
        found = [Named(name, name, None, None)]
    if len({one.name for one in found}) < len(found):
        raise ConfigError("a pair is named twice: name it once")
    return found


def _open(
    target: Path, drafters: list[str], options: Options, say: Callable[[str], None]
) -> Runtime:
    auto = AUTO in options.lookaheads
    return Runtime.open(
        target=target,
        drafters=drafters,
        lookahead=AUTO if auto else 1,  # each side brings its own planner
        context_size=options.context_size,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        device=options.device,
        allow_cpu=options.allow_cpu,
        measure_again=True,  # what earlier chats learnt is no part of this measurement
        report=lambda what: say(f"{what}..."),
    )


def _groups(options: Options, runtime: Runtime) -> Sequence[tuple[str, ...]]:
    if options.groups is not None:
        return options.groups
    if not any(options.lookaheads):  # plain decoding against itself needs no drafter
        return [()]
    if not runtime.drafters:
        raise ConfigError(
            f"{runtime.target.name} has no drafter that can be used: nothing to measure"
        )
    return [tuple(runtime.drafters)]


def _twice(names: Sequence[str]) -> str | None:
    """The first name that comes more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def _peer_sides(peers: Sequence[Peer]) -> list[Side]:
    sides: list[Side] = [PeerSide(peer, setting) for peer in peers for setting in peer.settings]
    if twice := _twice([side.name for side in sides]):
        raise ConfigError(
            f"{twice} is named twice, and answers are kept by that name: name it once"
        )
    return sides


def _peer(
    script: Path,
    only: list[str] | None,
    target: Path,
    drafters: list[str],
    runtime: Runtime,
    options: Options,
    writer: Writer,
) -> Peer:
    request = {
        # Links stay: in the hub's cache a model's files lie beside each other as links alone.
        "target": str(platform.expanded(target).absolute()),
        "drafters": [str(platform.expanded(path).absolute()) for path in _files(drafters)],
        "threads": options.threads or platform.usable_cpus(),
        "context": runtime.context_size,
        "device": str(runtime.target.details.get("device", "")),
        "gpu_layers": int(runtime.target.details.get("gpu_layers", 0)),
        "stop_ids": sorted(runtime.target.tokenizer.stop_ids),
        "settings": only,
    }
    log = writer.file.parent / f"{script.stem}.log"
    return Peer(script, options.environments, log, request)


def _settings(options: Options, runtime: Runtime) -> dict[str, Any]:
    """What a figure depends on, apart from the files."""
    sampling = options.sampling
    return {
        "max_tokens": options.max_tokens,
        "temperature": sampling.temperature,
        "rule": None if sampling.greedy else sampling.chosen_rule,
        "top_k": None if sampling.greedy else sampling.top_k,
        "top_p": None if sampling.greedy else sampling.top_p,
        "seed": None if sampling.greedy else sampling.seed,
        "prompts": options.prompts.source,
        "prompts_sha256": options.prompts.sha256,
        "lengths_sha256": load(LONG_TEXTS).sha256,
        "all_turns": options.all_turns,
        "context_size": runtime.context_size,
        "threads": options.threads or platform.usable_cpus(),
        "gpu_layers": options.gpu_layers,
        "device": runtime.target.details.get("device"),
        "gpus": runtime.target.details.get("gpus"),
        "drafter_devices": _drafter_devices(runtime),
        "cpu": platform.cpu_name(),
        "huge_pages": on_request(),
        **{name.lower(): os.environ.get(name) for name in platform.WAITING},
        **versions(),
        **libraries(),
        "code": code_hash(),
    }


def _drafter_devices(runtime: Runtime) -> list[str]:
    """What drafter models run on; every GPU is "GPU" to llama.cpp, its name stands beside that."""
    found = [d.model.details for d in runtime.drafters.values() if isinstance(d, ModelDrafter)]
    return [": ".join(at[key] for key in ("device", "gpus") if at.get(key)) for at in found]


def _same_conditions(writer: Writer, now: Pair) -> None:
    """See that a pair is measured under what it was, where it was before."""
    before = writer.results.pairs.get(now.pair)
    if before is None or not writer.results.answered(now.pair):
        return
    change = first_change(before, now)
    if change is None and before.sides != now.sides:
        change = ("what is compared", before.sides, now.sides)
    if change is not None:
        name, was, is_ = change
        variable = name.upper()
        instead = ""
        if variable in platform.WAITING:
            instead = f", or unset {variable}" if was is None else f", or set {variable}={was}"
        raise ConfigError(
            f"{writer.file.parent} holds results of {now.pair} under other conditions "
            f"({name} was {was}, is {is_}): choose another --out{instead}"
        )


def _files(drafters: Sequence[str]) -> list[Path]:
    return [Path(name) for name in drafters if name != LOOKUP]
