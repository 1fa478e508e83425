"""Measure speculation against plain decoding, and other programs: `edgespec bench`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgespec.errors import ConfigError, EdgespecError
from edgespec.options import RULES, add_machine_options, count, lookahead, number, positive

if TYPE_CHECKING:
    from edgespec.bench.record import Results

OUT = "edgespec-bench"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="measure speculation against plain decoding, prompt by prompt",
        description="Answer prompts with and without speculation, in turn on each prompt, and "
        "report speeds with intervals, by category. A measurement that was stopped goes on when "
        "the same command is given again.",
    )
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="pairs that `models` lists")
    parser.set_defaults(command=run)
    _add_models(parser.add_argument_group("models"))
    _add_measurement(parser.add_argument_group("measurement"))
    _add_results(parser.add_argument_group("results"))


def _add_models(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--target", metavar="PATH", help="a model file instead of a pair")
    group.add_argument(
        "--drafter", action="append", metavar="PATH",
        help="a model file that drafts for --target, beside lookup; one at the most",
    )  # fmt: skip
    group.add_argument(
        "--drafters", type=_groups, metavar="LIST",
        help="choices of drafters to compare, as in `lookup,model,lookup+model` "
        "(all of the pair's together)",
    )  # fmt: skip
    group.add_argument(
        "--lookahead", type=_lookaheads, default=["auto"], metavar="LIST",
        help="lookaheads to compare, as in `3,6,auto`; 0 measures plain decoding against itself "
        "(auto)",
    )  # fmt: skip
    add_machine_options(group)
    group.add_argument(
        "--peer", action="append", default=[], metavar="SCRIPT[:SETTINGS]",
        help="another program that answers in turn, through a script of benchmarks/peers; "
        "SETTINGS, as in `plain,draft-3`, leaves the others out (may be given again)",
    )  # fmt: skip
    group.add_argument(
        "--peer-environments", type=Path, default=Path("peers"), metavar="DIR",
        help="where the peers' environments are, or are made (./peers)",
    )  # fmt: skip


def _add_measurement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompts", default="spec-bench", metavar="FILE|NAME",
        help="`spec-bench` (74 of its 480 prompts), `human-eval` (15 of its 164), or JSON lines "
        "with `turns` and `category` (spec-bench)",
    )  # fmt: skip
    group.add_argument("--limit", type=positive, metavar="N", help="prompts of each category (all)")
    group.add_argument(
        "--turns", action="store_true",
        help="every turn of a prompt, the earlier ones answered by plain decoding (the first)",
    )  # fmt: skip
    group.add_argument(
        "--tokens", type=positive, default=128, metavar="N", help="the longest answer (128)"
    )
    group.add_argument(
        "--temperature", type=number, default=0.0, metavar="T",
        help="0 takes the likeliest token; above, each answer is drawn with --seed (0)",
    )  # fmt: skip
    group.add_argument(
        "--rule", choices=RULES,
        help="how drafts are verified at a temperature above 0; under `rejection` each side draws "
        "a text of its own, under `reproducible` all draw the same (rejection)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=count, metavar="N",
        help="of the first repetition, at a temperature above 0 (1)",
    )  # fmt: skip
    group.add_argument(
        "--repeat", type=positive, default=1, metavar="R", help="how often all is measured (1)"
    )
    group.add_argument(
        "--lengths", type=_lengths, default=[], metavar="LIST",
        help="measure the speed behind texts of so many tokens too, as in `256,1024,4096` (none)",
    )  # fmt: skip


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", type=Path, metavar="DIR",
        help=f"where results.jsonl and report.html go (./{OUT})",
    )  # fmt: skip
    group.add_argument(
        "--report", nargs="+", type=Path, metavar="FILE",
        help="measure nothing: table and report of these results, taken together",
    )  # fmt: skip
    group.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"),
        help="measure nothing: what got worse from A to B, on the same machine with the same "
        "models and settings; exit status 1 where anything did or can't be read, 2 where no figure "
        "tells",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit status."""
    if args.compare or args.report:
        _refuse_more(args)
    out = args.out or Path(OUT)
    if args.compare:
        return _compare(*args.compare)
    if args.report:
        from edgespec.bench import files

        results = files.read(args.report)
        _refuse_other_results(args, out)
        return _show(results, out)
    return _measure(args, out)


def _refuse_more(args: argparse.Namespace) -> None:
    """What only a measurement knows says nothing to --report and --compare; raises ConfigError."""
    if args.report and args.compare:
        raise ConfigError("--report shows results and --compare compares two: give one of them")
    commands = argparse.ArgumentParser().add_subparsers()
    add(commands)
    usual = vars(commands.choices["bench"].parse_args([]))
    name = "--report" if args.report else "--compare"
    for key, value in usual.items():
        kept = ("report", "out") if args.report else ("compare",)
        if key not in kept and getattr(args, key) != value:
            given = " ".join(args.pairs) if key == "pairs" else f"--{key.replace('_', '-')}"
            raise ConfigError(f"{name} measures nothing: leave out {given}, or {name}")


def _refuse_other_results(args: argparse.Namespace, out: Path) -> None:
    """A report goes beside no other measurement than its own, unless --out says so."""
    from edgespec.bench.files import FILE

    theirs = [path / FILE if path.is_dir() else path for path in args.report]
    mine = out / FILE
    if args.out is None and mine.exists() and not any(map(mine.samefile, theirs)):
        raise ConfigError(
            f"{out} holds another measurement, whose report this would replace: say with --out "
            "where the report goes"
        )


def _measure(args: argparse.Namespace, out: Path) -> int:
    from edgespec.bench import prompts
    from edgespec.bench.driver import (
        Options,
        begin,
        named_pairs,
        refuse_twins,
        run_pair,
        wait_as_before,
    )
    from edgespec.bench.files import Writer
    from edgespec.bench.progress import Progress
    from edgespec.console import say
    from edgespec.sampling import SamplingParams

    if args.temperature and args.peer:
        raise ConfigError("peers are measured greedily: leave --temperature out")
    for option, given in (("--rule", args.rule), ("--seed", args.seed)):
        if given is not None and not args.temperature:
            raise ConfigError(
                f"{option} says how answers are drawn: it needs a --temperature above 0"
            )
    if args.temperature:
        SamplingParams(temperature=args.temperature)  # says what is wrong before any download
    if args.tokens < 2:
        raise ConfigError("decoding is timed behind the first token: give --tokens 2 or more")
    peers = [_peer(text) for text in args.peer]
    for script, _ in peers:
        if not script.is_file():
            raise ConfigError(f"there is no peer script {script}; benchmarks/peers/ has some")
    refuse_twins([script for script, _ in peers])
    pairs = named_pairs(args.pairs, args.target, args.drafter)
    options = Options(
        prompts=prompts.load(args.prompts),
        limit=args.limit,
        all_turns=args.turns,
        groups=args.drafters,
        lookaheads=args.lookahead,
        temperature=args.temperature,
        rule=args.rule or "rejection",
        seed=1 if args.seed is None else args.seed,
        max_tokens=args.tokens,
        repeats=args.repeat,
        contexts=args.lengths,
        context_size=args.ctx_size,
        threads=args.threads,
        gpu_layers=args.gpu_layers,
        device=args.device,
        allow_cpu=args.allow_cpu,
        peers=peers,
        environments=args.peer_environments,
    )
    with Writer(out) as writer:
        before = len(writer.results.trials)
        wait_as_before(writer, pairs)
        begin(writer, ["edgespec", *map(shlex.quote, sys.argv[1:])])
        failed: list[str] = []
        try:
            for pair in pairs:
                progress = Progress(pair.name)
                try:
                    try:
                        run_pair(pair, options, writer, progress.apart(say), progress)
                    finally:
                        progress.close()
                except (EdgespecError, OSError) as error:
                    failed.append(f"{pair.name}: {error}")
                    say(failed[-1])
        except KeyboardInterrupt:
            kept = f"{writer.file} keeps what was measured; the same command goes on from there"
            say("", kept if writer.results.trials else "nothing was measured yet")
            if len(writer.results.trials) > before:
                _show(writer.results, out)
            raise
        # What was measured is shown, whatever became of the rest.
        if len(failed) < len(pairs) or len(writer.results.trials) > before:
            _show(writer.results, out)
            if failed:
                say(f"not measured, or not to its end: {'; '.join(failed)}")
        return 1 if failed else 0


def _show(results: Results, out: Path) -> int:
    from edgespec.bench import report, table
    from edgespec.console import say
    from edgespec.terminal import columns_of, printable

    for line in table.lines(results, columns_of(sys.stdout)):
        print(printable(line))
    file = out / "report.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(report.render(results), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}") from None
    say(f"report: {file}")
    return 0


def _compare(a: Path, b: Path) -> int:
    from edgespec.bench import compare, files
    from edgespec.console import say
    from edgespec.terminal import printable

    before, after = files.read([a]), files.read([b])
    try:
        comparison = compare.compare(before, after)
    except compare.NothingInCommon as nothing:
        say(str(nothing))
        return 2
    for line in compare.lines(comparison):
        print(printable(line))
    return comparison.status


def _peer(text: str) -> tuple[Path, list[str] | None]:
    """A script, and the settings that were chosen behind a colon."""
    script, colon, chosen = text.rpartition(".py:")
    if colon:
        return Path(script + ".py"), list(dict.fromkeys(filter(None, chosen.split(","))))
    return Path(text), None


def _groups(text: str) -> list[tuple[str, ...]]:
    groups = [tuple(name.strip() for name in group.split("+")) for group in text.split(",")]
    if not all(all(group) for group in groups) or len(set(groups)) < len(groups):
        raise argparse.ArgumentTypeError(f"{text!r} is no list like lookup,model,lookup+model")
    return groups


def _lookaheads(text: str) -> list[int | Literal["auto"]]:
    return [lookahead(part.strip()) for part in text.split(",")]


def _lengths(text: str) -> list[int]:
    return sorted({positive(part) for part in text.split(",")})
