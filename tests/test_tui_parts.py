"""The parts of the chat that need no screen: text, layout, charts, figures, conversation."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.strip import Strip
from tui_fakes import DRAFTING, Clock, FakeRuntime, Script

from edgespec.metrics import Counters
from edgespec.tui import charts, commands, panel
from edgespec.tui.document import Document
from edgespec.tui.export import as_markdown
from edgespec.tui.items import Answer, Note, Question, TokenFlow
from edgespec.tui.markdown import MarkdownText
from edgespec.tui.messages import DrafterFigures, Failed, Figures, Finished, Piece, Settings, Turn
from edgespec.tui.meter import Meter, Pieces
from edgespec.tui.records import Placed, decode, encode
from edgespec.tui.shown import one_line, shown
from edgespec.tui.talk import Talk

TEXT = st.text(st.characters(codec="utf-8"), max_size=200)

# ------------------------------------------------------------------------------------------ text


@given(TEXT)
def test_what_is_shown_holds_no_control_character(text: str) -> None:
    bad = [c for c in shown(text) if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
    assert not bad
    assert not set(shown(text)) & set("\u202a\u202e\u2066\u2069\u200b\u200d\ufe0f\ufeff\xad")
    assert shown(f"{text}\u200e\u200f\u061c") == shown(text)
    assert "\n" not in one_line(text)


@given(TEXT.filter(str.isalnum))
def test_plain_words_are_shown_as_they_are(text: str) -> None:
    assert shown(text) == text.replace("\U0001f3fb", "")


def test_joined_emoji_are_shown_as_their_parts() -> None:
    assert shown("👨‍👩‍👧 ❤️ 👍🏽 e\u0301") == "👨👩👧 ❤ 👍 e\u0301"


# -------------------------------------------------------------------------------------- markdown

SOURCES = [
    "# Title\n\nA *b* **c** `d`\nnext line\n\n- one\n- two\n  - nested\n\n3. x\n4. y\n\nend",
    "> quote\n> > deeper\n> - item\n\n---\n\n    indented code\n\n```py\nx = 1\n\ny\n```\ntail",
    "| a | b |\n|---|:-:|\n| [red]x | `c|d` |\n| long cell here | y |\n\n[t](http://u) ![i](v)",
    "```\nnever closed\n\n# no title\n- no item",
    "Great day!\n#sunny #beach\n\n#include it\n\ntext\n***bold***\n\n- a\n***b***\n- - x",
    "8. h\n9. i\n\n10. j\n\ntext\n```a` b\n\n- c\n\n**bold** end\n\n2024 it was\n-- so",
    "loose\n\n- a\n\n- b\n\n  c\n\n1) d\n\nSetext\n===\n<b>html</b>\n<div>\nblock\n</div>\n",
]


def blocks(text: MarkdownText) -> list[Any]:
    return [
        (b.kind, b.text.plain, b.text.spans, b.first.plain, b.rest.plain, b.tight, b.language)
        for b in text.blocks
    ]


@pytest.mark.parametrize("source", [*SOURCES, "\n\n".join(SOURCES)])
def test_markdown_in_pieces_is_markdown_at_once(source: str) -> None:
    for size in (1, 3, 17):
        text = MarkdownText()
        for at in range(0, len(source), size):
            text.append(source[at : at + size])
        assert blocks(text) == blocks(MarkdownText(source))
        assert [x.text.plain for x in text.lines(40)] == [
            x.text.plain for x in MarkdownText(source).lines(40)
        ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["# ", "- ", "\n", "```", "|a|b|\n", "|-|-|\n",
                                 "\n" + "|c" * 30 + "|\n" + "|-" * 30 + "|\n", "> ", "表", "x" * 30,
                                 " ", "*", "[red]", "`", "1. ", "    ", "\x1b[2J", "---\n"]),
                max_size=40),
       st.integers(1, 60))  # fmt: skip
def test_no_line_is_wider_than_asked_for(parts: list[str], width: int) -> None:
    for item in (Answer("".join(parts)), Question("".join(parts)), Note("".join(parts), "error")):
        for line in item.lines(max(width, 24)):
            assert line.text.cell_length + line.indent <= max(width, 24)
            assert cell_len(line.text.plain) == line.text.cell_length


def test_what_markdown_looks_like() -> None:
    lines = [line.text.plain for line in MarkdownText("\n\n".join(SOURCES[:2])).lines(40)]
    assert lines == [
        "Title", "", "A b c d", "next line", "", "• one", "• two", "  • nested", "", "3. x", "4. y",
        "", "end", "", "▎ quote", "▎", "▎ ▎ deeper", "▎", "▎ • item", "", "─" * 40, "", " text",
        " indented code", "", " py", " x = 1", " ", " y", "", "tail",
    ]  # fmt: skip


def test_code_is_kept_as_it_came() -> None:
    assert MarkdownText("a\n\n```py\nx = [1]\n\n  y\n```\n\n~~~\nz\n~~~").codes == [
        "x = [1]\n\n  y", "z",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [12, 24, 60])
def test_a_line_of_code_is_told_whole_by_its_lines(width: int) -> None:
    code = ["def f(a,  b):", "    return  a  +  b + 'some words' + '表表表表表'", "", "x = 1"]
    source = "- a\n\n  > ```py\n" + "".join(f"  > {line}\n" for line in code) + "  > ```\n"
    lines = [line for line in MarkdownText(source).lines(width) if line.code is not None]
    told = "".join(f"{line.text.plain[line.prefix :]}{line.behind}" for line in lines[1:])
    assert told == "\n".join(code) + "\n"
    assert (len(lines) > 5) == (width < 60)


def test_where_a_link_leads_is_written_out() -> None:
    (line,) = MarkdownText("[good.example](http://evil.example)").lines(80)
    assert line.text.plain == "good.example (http://evil.example)"


@pytest.mark.parametrize("wrapped", ["{}", "- {}", "![{}](v)", "| {} |\n|---|", "# {}"])
def test_marks_nested_without_end_are_shown_as_they_were_written(wrapped: str) -> None:
    nested = "*" * 800 + "x" + "*" * 800
    text = MarkdownText(f"*before*\n\n{wrapped.format(nested)}\n\n*after*\n")
    plain = "".join(line.text.plain for line in text.lines(2000))
    assert nested in plain and plain.startswith("before") and plain.endswith("after")


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize(
    "deep",
    [
        "1. " * 12 + "xyz",
        "* " * 10 + "xyz",
        "> " * 24 + "xyz",
        "> - " * 12 + "xyz",
        "\n".join("  " * depth + f"- xyz{depth}" for depth in range(14)),
    ],
)
def test_what_follows_a_list_without_end_is_shown(deep: str, pieces: int) -> None:
    source = f"{deep}\n\nafter\n\n```\ncode\n```\n"
    text = MarkdownText()
    for at in range(0, len(source), pieces):
        text.append(source[at : at + pieces])
    plain = [line.text.plain for line in text.lines(200)]
    assert plain[-4:] == ["after", "", " text", " code"] and text.codes == ["code"]
    assert all(word in "\n".join(plain) for word in deep.split() if "xyz" in word)


def test_a_list_begins_where_it_says() -> None:
    for first in (0, 1, 7):
        lines = MarkdownText(f"{first}. a\n{first + 1}. b").lines(40)
        assert [line.text.plain for line in lines] == [f"{first}. a", f"{first + 1}. b"]


# ------------------------------------------------------------------------------------- documents


def test_lines_are_found_and_estimates_mended() -> None:
    rng = random.Random(1)
    document = Document()
    document.set_width(30)
    for number in range(300):
        words = " ".join(f"w{number}" for _ in range(rng.randrange(1, 60)))
        document.add(Answer(words + "\n\n- a\n- b" * rng.randrange(3)))
    first = 900
    for _ in range(5):
        first += document.settle(first, 20)
    seen = [document.line(first + y) for y in range(20)]
    index, inside = document.at(first), first - document.top(document.at(first))
    # All laid out now: the same lines are elsewhere, and still in a row.
    real = [line for item in document.items for line in item.lines(30)]
    document.set_width(30)
    assert document.height == len(real)
    assert seen == real[document.top(index) + inside :][:20]


def test_a_view_stays_with_its_text_when_what_is_above_turns_out_longer() -> None:
    document = Document()
    document.set_width(20)
    for number in range(50):
        document.add(Answer(f"{number}\n\n" + "- item\n" * 10))
    last = document.height - 5
    last += document.settle(last, 5)
    shown_now = [document.line(last + y) for y in range(5)]
    up = last - 40
    moved = document.settle(up, 5)
    last += moved
    assert [document.line(last + y) for y in range(5)] == shown_now


def test_tokens_flow_in_lines_with_their_places() -> None:
    flow = TokenFlow(10, "old text")
    for text in ("ab", " cdef", " ghij", "\n", "", " a very long token", "表"):
        flow.add(Piece(text, "accepted"))
    assert [line.text.plain for line in flow.lines] == [
        "old text", "ab cdef", " ghij↵", " a very lo", "ng token表",
    ]  # fmt: skip
    for line in flow.lines[1:]:
        ends = [end for _, end, _ in line.tokens]
        assert ends == sorted(ends) and ends[-1] == line.text.cell_length
    assert {token for line in flow.lines for _, _, token in line.tokens} == {0, 1, 2, 3, 5, 6}


# ---------------------------------------------------------------------------------------- charts


@given(st.lists(st.floats(0, 1e6), max_size=300), st.integers(1, 80), st.integers(1, 6))
def test_charts_have_their_size(values: list[float], width: int, height: int) -> None:
    top = charts.round_top(max(values, default=0.0))
    assert all(value <= top * 1.0001 for value in values)
    rows = charts.graph(values, width, height, top)
    assert [len(row) for row in rows] == [width] * height
    assert len(charts.sparkline(values, width, top)) == width


@given(st.floats(0, 1), st.integers(1, 40))
def test_bars_say_their_share(share: float, width: int) -> None:
    bar = charts.bar(share, width)
    assert len(bar) == width and abs(bar.count("█") - share * width) <= 1
    assert (bar.strip() == "") == (share == 0)


@pytest.mark.parametrize("width", [20, 38, 60, 200])
@pytest.mark.parametrize("height", [3, 8, 17, 50])
@pytest.mark.parametrize("figures", [Figures(1), Figures(1, tokens=3, rounds=2, parked=True)])
def test_a_panel_fits(width: int, height: int, figures: Figures) -> None:
    pages = panel.long(figures, [], width, height)
    for lines in pages:
        assert len(lines) <= height and all(line.cell_length <= width for line in lines)
    if height >= 8:  # no section is left out
        plain = "\n".join(line.plain for lines in pages for line in lines)
        headings = ("Speed", "Planner", "Accepted", "Tokens in", "Drafters", "Machine")
        assert all(plain.count(heading) >= 1 for heading in headings)
    assert len(panel.long(figures, [], 200, 50)) == 1
    assert panel.short(figures, width).cell_length <= width


@pytest.mark.parametrize("height", [3, 5, 7, 19, 56])
@pytest.mark.parametrize("width", [38, 58, 78])
def test_no_round_and_no_drafter_is_cut_off(width: int, height: int) -> None:
    drafters = tuple(DrafterFigures(f"drafter {n}", 1, 100, 10 + n) for n in range(9))
    lengths = (0, *range(20, 32))
    figures = Figures(
        1, 300, 306, ttft_seconds=0.3, reason="why " * 9 + "not", lengths=lengths,
        drafters=drafters, context_used=7, context_size=99, memory_bytes=55_000_000,
    )  # fmt: skip
    pages = panel.long(figures, [], width, height)
    assert all(len(lines) <= height for lines in pages)
    plain = "\n".join(line.plain for lines in pages for line in lines)
    rounds = re.findall(r"(?m)(?:^| {3}) ?\d+[+ ][█▏▎▍▌▋▊▉ ]+(\d+) +\d+%", plain)
    assert sum(map(int, rounds)) == sum(lengths)
    drafted = [(int(a), int(b)) for a, b in re.findall(r"(\d+)/(\d+) +\d+%", plain)]
    assert tuple(map(sum, zip(*drafted, strict=True))) == (sum(range(10, 19)), 900)
    assert ("8+" in plain) == (height > 9)
    assert bool(re.search(r"\d more", plain)) == (height < 11)
    assert all(figure in plain for figure in ("why", "0.30 s", "7 of 99", "55 MB"))


def test_unknown_figures_are_left_out() -> None:
    assert panel.short(Figures(1), 80).plain == ""
    assert "0.0" not in "".join(line.plain for line in panel.long(Figures(1), [], 40, 40)[0])


def test_why_it_is_parked_stands_in_the_line_where_there_is_room() -> None:
    figures = Figures(1, 9, 8, 20.0, parked=True, reason="drafts don't pay", context_size=99)
    assert panel.short(figures, 80).plain == "20.0 tok/s · parked: drafts don't pay · context 0/99"
    assert panel.short(figures, 40).plain == "20.0 tok/s · parked · context 0/99"


# ------------------------------------------------------------------------- meter, pieces, talk


def test_a_meter_counts_rounds_by_their_last_token() -> None:
    runtime = FakeRuntime(Script(), Clock())
    meter = Meter(7, runtime)  # type: ignore[arg-type]
    counters = Counters(prompt_tokens=5)
    meter.count(["plain"])
    meter.count(["accepted", "accepted", "bonus", "plain", "accepted"])
    meter.count(["recovered", "accepted"])
    counters.tokens, counters.rounds, counters.decode_seconds = 8, 4, 0.5
    assert meter.figures(counters).gain is None  # nothing was drafted: it is plain decoding
    counters.add_draft("lookup", 6, 4, rejected=True)
    figures = meter.figures(counters, rounds_over=True)
    assert figures.recent_accepted == (2, 0, 1, 1)
    assert figures.lengths == (0, 2, 1, 1)  # the last round was cut by the end of the text
    assert figures.turn == 7 and figures.gain == DRAFTING.gain and figures.tokens_per_second == 14


def test_recent_speed_is_that_of_the_last_second() -> None:
    meter = Meter(1, FakeRuntime(Script(), Clock()))  # type: ignore[arg-type]
    counters = Counters()
    speeds = []
    for step in range(40):
        counters.tokens += 10 if step < 20 else 1
        counters.decode_seconds += 0.1
        speeds.append(meter.figures(counters).recent_tokens_per_second)
    assert speeds[0] is None
    assert speeds[19] == pytest.approx(100) and speeds[39] == pytest.approx(10)


class Chunky:
    """A chunk, and a tokenizer whose tokens are given as bytes."""

    def __init__(self, text: str, *tokens: bytes) -> None:
        self.text, self._bytes = text, tokens
        self.tokens = range(len(tokens))
        self.origins = ["plain"] * len(tokens)
        self.logprobs = ()

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]


@pytest.mark.parametrize(
    ("chunk", "texts"),
    [
        (Chunky("a b", b"a", b" b"), ["a", " b"]),
        (Chunky("é!", b"\xc3", b"\xa9!"), ["", "é!"]),
        (Chunky("cut", b"cut", b" off"), ["cut", ""]),
        (Chunky("x\ufffd", b"x", b"\xc3"), ["x", "\ufffd"]),
    ],
)
def test_pieces_say_what_their_chunk_says(chunk: Any, texts: list[str]) -> None:
    pieces = Pieces(chunk).of(chunk)
    assert [piece.text for piece in pieces] == texts
    assert "".join(piece.text for piece in pieces) == chunk.text


def test_a_talk_numbers_its_turns_and_keeps_the_old_one_when_nothing_comes() -> None:
    talk = Talk()
    ask = talk.ask("q", Settings(), pair="mine")
    assert talk.is_running(ask.turn) and not talk.is_running(ask.turn - 1)
    talk.end(Finished(ask.turn, "a", "end", Figures(ask.turn)))
    talk.restart(talk.turns)
    again = talk.ask("q", Settings(), index=0)
    assert again.turn > ask.turn and again.history == ()
    assert talk.end(Failed(again.turn, "no")) is None
    assert (talk.turns[0].answer, talk.turns[0].pair) == ("a", "mine")
    more = talk.ask("q2", Settings())
    assert more.history == (("q", "a"),)


def test_captions() -> None:
    figures = Figures(1, tokens=1, tokens_per_second=None)
    assert panel.caption(Turn("q", "a", "end", figures=figures)) == "1 token"
    assert "/continue" in panel.caption(Turn("q", "a", "length"))


def test_figures_of_what_was_added_are_told_as_that() -> None:
    talk = Talk()
    first = talk.ask("q", Settings())
    talk.end(Finished(first.turn, "a", "length", Figures(first.turn, tokens=1024)))
    more = talk.ask("q", Settings(), index=0, more=True)
    turn = talk.end(Finished(more.turn, "a b", "end", Figures(more.turn, tokens=64)))
    assert turn is not None and panel.caption(turn) == "64 more tokens"
    assert "*64 more tokens*" in as_markdown([turn])
    kept = decode(encode(Placed(0, turn)))
    assert isinstance(kept, Placed) and kept.turn.figures is not None
    assert kept.turn.figures.continued and kept.turn.figures.tokens == 64
    again = talk.ask("q", Settings(), index=0)
    whole = talk.end(Finished(again.turn, "c", "end", Figures(again.turn, tokens=9)))
    assert whole is not None and panel.caption(whole) == "9 tokens"


# ------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("text", "yes"),
    [("/help", True), ("/set a b", True), ("/usr/bin", False), ("/ x", False), ("/a\nb", False),
     ("a /help", False), ("/", False), ("/2", False)],
)  # fmt: skip
def test_what_is_a_command(text: str, yes: bool) -> None:
    assert commands.is_command(text) == yes


def test_completions_begin_with_what_is_there() -> None:
    assert commands.completions("/s") == [
        "/system ", "/set ", "/save", "/settings", "/stats", "/search ", "/stop",
    ]  # fmt: skip
    assert commands.completions("/set te", ["temperature", "top_k"]) == ["/set temperature"]
    assert commands.completions("hello /s") == []


@pytest.mark.parametrize("tokens", [False, True])
def test_new_colours_reach_lines_of_an_answer_that_changed(tokens: bool) -> None:
    answer = Answer()
    answer.append("a paragraph\n\nanother", [Piece("a paragraph\n\n", "plain")])
    answer.tokens_shown = tokens
    for line in answer.lines(40):
        line.strip = Strip.blank(40)  # as it is drawn
    answer.changed()
    answer.restyle()
    assert all(line.strip is None for line in answer.lines(40))
