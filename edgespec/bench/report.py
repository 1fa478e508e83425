"""The report: one HTML page with everything in it, pictures as SVG, no scripts.

Invariant: the page refers to nothing outside itself, and every figure on it comes from the rows
that the terminal's table shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import chain

from edgespec.bench import charts
from edgespec.bench.beside import (
    NO_COMMON_ENERGY,
    at_best,
    beside,
    best_names,
    energy,
    left_out,
    metered,
    split_sides,
    unanswered,
    with_bests,
)
from edgespec.bench.prompts import ALL
from edgespec.bench.protocol import CONTEXT
from edgespec.bench.record import Pair, Results, Run
from edgespec.bench.sides import PLAIN
from edgespec.bench.stats import Interval, Spread
from edgespec.bench.summary import categories, contexts
from edgespec.bench.table import GAP, HEAD, cells, lead, over_peers, rated, unlike, verdicts, wholes

SHARED = "Where sides answered different prompts, those count that all of them answered."
FIXED = (
    'Over all categories "best" takes the fastest in each of them, on these same prompts, and '
    '"fixed" is the fastest single setting. '
)
NOT_REPORTED = "Energy: this system doesn't report it, or lets only the superuser read it."


def render(results: Results) -> str:
    """The whole page."""
    style = (resources.files("edgespec.bench") / "report.css").read_text("utf-8")
    title = "edgespec bench: " + ", ".join(results.pairs)
    body = "\n".join(chain(_head(results), *(_pair(results, pair) for pair in results.pairs)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n{_method()}\n</main>\n</body>\n</html>\n"
    )


def _head(results: Results) -> Iterator[str]:
    yield "<h1>Speculation against plain decoding</h1>"
    if not results.runs:
        return
    days: dict[str, dict[str, None]] = {}  # of each machine with its versions
    for run in results.runs:
        days.setdefault(_where(run), {})[run.began[:10]] = None
    for where, found in days.items():
        yield f'<p class="muted">{escape(where)} · {escape(", ".join(found))}</p>'


def _where(run: Run) -> str:
    memory = run.machine.get("memory_bytes")
    gib = f", {memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    machine = f"{run.machine.get('cpu')}, {run.machine.get('usable_cpus')} usable CPUs{gib}"
    return f"{machine}, {run.machine.get('system')} · {versions}"


def _pair(results: Results, pair: str) -> Iterator[str]:
    own, peers = split_sides(results.sides(pair))
    sides = [side for side in own if side != PLAIN]
    yield f"<section>\n<h2>{escape(pair)}</h2>"
    yield f'<p class="lead">{escape(lead(results, pair))}</p>'
    yield from (f"<p>{escape(sentence)}</p>" for sentence in verdicts(results, pair))
    if rated(results, pair):
        yield from _section(
            "Speed against plain decoding",
            "Tokens per second over plain's, decoding alone: the geometric mean over prompts, with "
            f"a 95% interval. To the right of 1 is faster. {SHARED}",
            _ratios(results, pair, sides),
        )
        yield from _section(
            "Tokens a round",
            "Accepted draft tokens and the target's own one; plain decoding has 1.",
            _accepted(results, pair, sides),
        )
    yield from _costs(results, pair)
    yield from _split(results, pair, own)
    yield from _lengths(results, pair, own, peers)
    yield from _peers(results, pair, sides, peers)
    yield from _energy(results, pair)
    yield from _details(results, pair)
    yield "</section>"


def _section(heading: str, words: str, picture: str) -> Iterator[str]:
    yield f"<h3>{escape(heading)}</h3>"
    yield f'<p class="muted">{escape(words)}</p>'
    yield (
        f"<figure>{picture}</figure>"
        if picture
        else "<p>No prompt was answered by all with more than one token.</p>"
    )


def _ratios(results: Results, pair: str, sides: Sequence[str]) -> str:
    rows = {
        category: {
            side: (found.ratio, charts.note(found.ratio, _speed(found.tokens_per_second)))
            for side, found in beside(results, pair, sides, category).items()
            if found.ratio
        }
        for category in categories(results, pair)
    }
    return charts.intervals("speed against plain by category", rows, sides, "plain")


def _speed(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.1f} tok/s"


def _accepted(results: Results, pair: str, sides: Sequence[str]) -> str:
    rows = {
        category: {
            side: found.mean_accepted_length
            for side, found in beside(results, pair, sides, category).items()
            if found.mean_accepted_length
        }
        for category in categories(results, pair)
    }
    return charts.accepted_lengths(rows, sides)


def _costs(results: Results, pair: str) -> Iterator[str]:
    costs = [c for c in results.costs if c.pair == pair and c.seconds]
    if not any(c.role == "target" and c.seconds.get("1") for c in costs):
        return
    behind = costs[0].behind
    yield from _section(
        "What a pass costs",
        f"A pass over several tokens, in passes over one, behind a text of {behind} tokens: "
        "medians and quartiles. Along the dotted line checking saves nothing.",
        charts.cost_curve(costs),
    )


def _split(results: Results, pair: str, own: Sequence[str]) -> Iterator[str]:
    last = categories(results, pair)[-1]
    rows = {
        side: found.split for side, found in beside(results, pair, own, last).items() if found.split
    }
    if rows:
        yield from _section(
            "Where a round's time goes",
            "The drafters and the planner; the target's pass; choosing tokens from its rows; the "
            "rest, which is the loop and the text. All categories together.",
            charts.time_split(rows),
        )


def _lengths(
    results: Results, pair: str, own: Sequence[str], peers: dict[str, list[str]]
) -> Iterator[str]:
    found = {
        n: at_best(results, pair, own, peers, CONTEXT, n) for n in contexts(results, pair)
    }  # by length
    names = dict.fromkeys(name for at in found.values() for name in at)
    rows = {
        name: {
            n: speed
            for n, at in found.items()
            if name in at and (speed := at[name][1].tokens_per_second)
        }
        for name in names
    }
    rows = {side: points for side, points in rows.items() if points}
    if rows:
        best = " Each peer is shown at whichever of its settings was fastest at that length."
        yield from _section(
            "Speed over the length of the text",
            "Decoding behind a text of so many tokens. Speculation should not lose with length."
            + best * bool(peers),
            charts.lengths(rows),
        )
        ratios = [
            f"{found[n][name][0]} at {n} tokens {found[n][name][1].ratio}"
            for name in names
            for n in found
            if name in found[n] and found[n][name][1].ratio
        ]
        yield f'<p class="muted">Times plain\'s speed: {escape("; ".join(ratios))}.</p>'
    else:
        yield "<h3>Speed over the length of the text</h3>"
        yield '<p class="muted">Not measured: <code>--lengths 256,1024,4096</code> does.</p>'


def _peers(
    results: Results, pair: str, sides: Sequence[str], peers: dict[str, list[str]]
) -> Iterator[str]:
    if not peers:
        return
    chosen = with_bests(results, pair, peers)
    names = [*sides, *(name for peer in peers for name in best_names(peer))]
    rows: dict[str, dict[str, tuple[Interval, str]]] = {}
    for category in categories(results, pair):
        rows[category] = {}
        for name, (side, found) in at_best(chosen, pair, sides, peers, category).items():
            if found.ratio and found.tokens_per_second:
                speed = _speed(found.tokens_per_second)
                note = f"{speed}, {side.split('/', 1)[1]}" if "/" in side else speed
                rows[category][name] = (found.ratio, charts.note(found.ratio, note))
    fixed = any(best_names(peer)[1] in rows.get(ALL, ()) for peer in peers)
    yield from _section(
        "Beside other programs",
        "Tokens per second over edgespec's plain decoding, answered in turn on each prompt. Each "
        f"peer is shown at whichever of its settings was fastest in the category. {FIXED * fixed}"
        f"{SHARED}",
        charts.intervals("speed beside other programs", rows, names, "edgespec, plain"),
    )
    told = (*left_out(chosen, pair, sides, peers), *unanswered(results, pair))
    yield from (f"<p>{escape(sentence)}</p>" for sentence in told)


def _energy(results: Results, pair: str) -> Iterator[str]:
    found = energy(results, pair)
    if found:
        words = ", ".join(f"{side} {joules:.2f} J" for side, joules in found.items())
        whose = metered(results, pair)
        yield f"<p>Energy a token of {escape(whose)}, prompt included: {escape(words)}.</p>"
    else:
        why = NOT_REPORTED if found is None else f"Energy: {NO_COMMON_ENERGY}."
        yield f'<p class="muted">{why}</p>'


def _details(results: Results, pair: str) -> Iterator[str]:
    yield "<details>\n<summary>All figures</summary>"
    rows = list(cells(results, pair, results.sides(pair)))
    yield from _table(HEAD, rows)
    yield from (f"<p>{escape(sentence)}</p>" for sentence in unlike(results, pair))
    own, peers = split_sides(results.sides(pair))
    if peers:
        head = ("category", "peer", "its best setting", "tok/s", *(f"{s} over it" for s in own))
        yield from _table(head, list(over_peers(results, pair)))
    for sentence in wholes(results, pair, results.sides(pair)):
        yield f"<p>{escape(sentence)}</p>"
    yield "</details>"
    yield "<details>\n<summary>Files, settings, commands</summary>"
    yield from _table(("", ""), list(_conditions(results, pair)))
    yield "</details>"


def _conditions(results: Results, pair: str) -> Iterator[tuple[str, str]]:
    conditions: Pair = results.pairs[pair]
    for role, model in (("target", conditions.target), *(("drafter", d) for d in
                        conditions.drafters)):  # fmt: skip
        yield role, f"{model.get('name')}, {model.get('bytes')} bytes, SHA-256 {model['sha256']}"
    for key, value in conditions.settings.items():
        yield key.replace("_", " "), str(value)
    for peer, details in conditions.peers.items():
        yield peer, str(details)
    for run in results.runs:
        yield run.began, " ".join(run.command)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    if any(head):
        yield "<tr>" + "".join(f"<th>{escape(cell.lower())}</th>" for cell in head) + "</tr>"
    for cell_row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cell_row) + "</tr>"
    yield "</table></div>"


def _method() -> str:
    return (
        "<section>\n<h2>How this was measured</h2>\n"
        "<p>Batch 1. Each prompt was answered by every side in turn, from empty caches, in an "
        "order that changes from prompt to prompt; behind a text length edgespec's target keeps "
        "the text it has read. Speed is that of decoding: the first token belongs to the prompt. "
        "edgespec's drafter reads the prompt behind the first token, which counts as decoding; "
        "the drafters of other programs read it before, which doesn't. A ratio is paired: "
        "both sides answered the same prompt, in some trials with other sides between them; all "
        "turns and repetitions of a prompt are one pair. Intervals are Student's, over the "
        "logarithms of these ratios; they speak of prompts like these on this machine; over "
        f"one text length they are over its repetitions. In the tables, {GAP}; a "
        "star marks edgespec's texts that part from plain's at a near-tie which rounding explains. "
        "llama.cpp's server takes its own times, other programs are timed where their tokens come "
        "out, edgespec where its text does.</p>\n</section>"
    )
