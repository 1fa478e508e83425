"""The text stream: what may be shown, and where it ends."""

from __future__ import annotations

import pytest
from fakes import ByteTokenizer, PieceTokenizer
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import ConfigError
from edgespec.text import Cut, TextStream
from edgespec.tokenizer import StreamingDetokenizer, decode

BYTES = ByteTokenizer()
CHARACTERS = ["🦊", "語", "你好，世界", "مرحبا بالعالم", "שלום עולם", "e\u0301", "👩‍👩‍👧‍👦", "a"]


def tokens(text: str | bytes) -> list[int]:
    return list(text.encode() if isinstance(text, str) else text)


def streamed(ids: list[int]) -> list[str]:
    detokenizer = StreamingDetokenizer(BYTES)
    return [*map(detokenizer.add, ids), detokenizer.finish()]


def test_an_emoji_over_four_tokens() -> None:
    assert streamed(tokens("🦊!")) == ["", "", "", "🦊", "!", ""]


@pytest.mark.parametrize("text", CHARACTERS)
def test_no_piece_ends_within_a_character(text: str) -> None:
    pieces = streamed(tokens(text))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\xff", ["\ufffd", ""]),
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),  # it held back what then couldn't be completed
        (b"a\xc3", ["a", "", "\ufffd"]),
        (b"\xf0\x9f\xa6", ["", "", "", "\ufffd"]),
        (b"\xed\xa0\x80", None),  # a surrogate
    ],
)
def test_bytes_that_are_no_text(data: bytes, pieces: list[str] | None) -> None:
    got = streamed(tokens(data))
    assert "".join(got) == data.decode("utf-8", "replace")
    assert pieces is None or got == pieces


def test_control_tokens_add_nothing_and_part_nothing() -> None:
    fox = tokens("🦊")
    assert "".join(streamed([*fox[:2], 256, *fox[2:]])) == "🦊"


RANDOM = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from(CHARACTERS), max_size=6).map(lambda t: "".join(t).encode()),
    st.lists(st.sampled_from([b"\xf0\x9f", b"\xa6\x8a", b"\xe8", b"a", b"\xff"])).map(b"".join),
)


@given(RANDOM)
def test_pieces_concatenate_to_the_whole(data: bytes) -> None:
    pieces = streamed(tokens(data))
    assert "".join(pieces) == decode(BYTES, data) == data.decode("utf-8", "replace")


# ------------------------------------------------------------------------------ the stream


def run(
    stream: TextStream, rounds: list[list[int]]
) -> tuple[list[str], list[int], list[Cut], list[int]]:
    """Texts taken, how many tokens came with each, the cuts, and the tokens that stand."""
    texts, counts, cuts = [], [], []
    standing: list[int] = []
    for ids in rounds:
        cut = stream.cut(ids)
        standing += ids[: max(0, cut.keep)]
        if cut.keep < 0:
            del standing[cut.keep :]
        cuts.append(cut)
        text, count = stream.take()
        texts.append(text)
        counts.append(count)
        assert stream.num_tokens == len(standing)
        assert sum(counts) <= len(standing)
        if cut.reason is not None:
            break
    return texts, counts, cuts, standing


@given(RANDOM, st.data())
def test_however_rounds_are_cut_the_text_is_the_same(data: bytes, draw: st.DataObject) -> None:
    ids = tokens(data)
    ends = sorted(draw.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    rounds = [ids[a:b] for a, b in zip([0, *ends], [*ends, len(ids)], strict=True)]
    stream = TextStream(BYTES, max_tokens=1000)
    texts, counts, _, standing = run(stream, rounds)
    stream.finish("cancelled")
    text, count = stream.take()
    assert "".join([*texts, text]) == data.decode("utf-8", "replace")
    assert sum(counts) + count == len(standing) == len(ids)
    assert stream.take() == ("", 0)


def first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, and of those the longest."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.text("abAB🦊", max_size=25),
    st.lists(st.text("abAB🦊", min_size=1, max_size=5), min_size=1, max_size=3),
    st.data(),
)
def test_stop_strings_against_a_search(text: str, stops: list[str], draw: st.DataObject) -> None:
    ids = tokens(text)
    ends = sorted(draw.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    rounds = [ids[a:b] for a, b in zip([0, *ends], [*ends, len(ids)], strict=True)]
    stream = TextStream(BYTES, max_tokens=1000, stop=stops)
    texts, counts, cuts, standing = run(stream, rounds)
    expected, stopped = first_stop(text, stops)
    shown = "".join(texts)
    assert expected.startswith(shown)  # what was shown never has to be taken back
    assert cuts[-1].reason == ("stop" if stopped else None)
    if not stopped:
        stream.finish("cancelled")
        rest, count = stream.take()
        shown, counts = shown + rest, [*counts, count]
    assert shown == expected
    assert standing == tokens(expected)  # with byte tokens, ids and text end together
    assert sum(counts) == len(standing)


def test_a_false_start_is_held_and_then_released() -> None:
    stream = TextStream(BYTES, max_tokens=100, stop=["STOP"])
    texts, counts, _, _ = run(stream, [tokens("a S"), tokens("TO"), tokens("RY")])
    assert texts == ["a ", "", "STORY"]
    assert counts == [2, 0, 5]  # held tokens are never given out


def test_a_false_start_within_a_true_one() -> None:
    stream = TextStream(BYTES, max_tokens=100, stop=["aab"])
    texts, _, cuts, standing = run(stream, [tokens("xa"), tokens("a"), tokens("a"), tokens("b")])
    assert texts == ["x", "", "a", ""]
    assert cuts[-1] == Cut(-2, "stop")
    assert standing == tokens("xa")


def test_a_stop_string_over_three_rounds_takes_older_tokens_back() -> None:
    stream = TextStream(BYTES, max_tokens=100, stop=["<end>"])
    texts, counts, cuts, standing = run(stream, [tokens("hi<e"), tokens("n"), tokens("d>more")])
    assert "".join(texts) == "hi"
    assert (sum(counts), standing) == (2, tokens("hi"))
    assert [cut.keep for cut in cuts] == [4, 1, -3]


def test_a_token_with_text_before_the_stop_string_stays() -> None:
    pieces = PieceTokenizer([b"so", b" be it. ST", b"OP and more", b"never"])
    stream = TextStream(pieces, max_tokens=100, stop=["STOP"])
    texts, counts, cuts, standing = run(stream, [[0, 1], [2, 3]])
    assert "".join(texts) == "so be it. "
    assert standing == [0, 1]
    assert (sum(counts), cuts[-1]) == (2, Cut(0, "stop"))


def test_overlapping_stop_strings() -> None:
    for stops in (["ab", "abc"], ["abc", "ab"], ["b", "ab"]):
        stream = TextStream(PieceTokenizer([b"xab", b"c"]), max_tokens=100, stop=stops)
        texts, _, _, _ = run(stream, [[0], [1]])
        assert "".join(texts) == "x"


def test_a_stop_string_cuts_inside_a_piece_that_goes_on() -> None:
    stream = TextStream(PieceTokenizer([b"one\n\ntwo"]), max_tokens=9, stop=["\n\n"])
    texts, counts, _, standing = run(stream, [[0]])
    assert (texts, counts, standing) == (["one"], [1], [0])


def test_what_was_held_comes_out_at_the_end() -> None:
    for last, limit, reason in ((257, 5, "end"), (97, 4, "length")):
        ids = [*tokens("a ST"), last]
        stream = TextStream(BYTES, max_tokens=limit, stop=["STOP"])
        texts, counts, cuts, _ = run(stream, [ids[:3], ids[3:]])
        assert (texts, counts, cuts[-1].reason) == (["a ", "ST"], [2, 2], reason)


@pytest.mark.parametrize("limit", [0, 1])
def test_small_limits(limit: int) -> None:
    stream = TextStream(BYTES, max_tokens=limit)
    assert stream.cut(()) == Cut(0, "length" if limit == 0 else None)
    assert stream.cut(tokens("abc")) == Cut(limit, "length")
    assert stream.take() == ("abc"[:limit], limit)


def test_a_limit_within_a_character() -> None:
    stream = TextStream(BYTES, max_tokens=3)
    assert stream.cut(tokens("🦊")) == Cut(3, "length")
    assert stream.take() == ("\ufffd", 3)


def test_an_end_token_never_shows_and_is_not_kept() -> None:
    stream = TextStream(BYTES, max_tokens=9, stop=["b"])
    assert stream.cut([97, 257, 98]) == Cut(1, "end")
    assert stream.take() == ("a", 1)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        TextStream(BYTES, max_tokens=-1)
    with pytest.raises(ConfigError, match=r"max_tokens must be a whole number, not 256\.0"):
        TextStream(BYTES, max_tokens=256.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stop string"):
        TextStream(BYTES, max_tokens=1, stop=["a", ""])
