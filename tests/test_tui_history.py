"""Conversations on disk: crashes at any byte, damage, two windows, full disks, large ones."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.tui import writer as writer_module
from edgespec.tui.claim import Claim
from edgespec.tui.history import History, HistoryError
from edgespec.tui.messages import DrafterFigures, Figures, Turn
from edgespec.tui.records import Mark, Placed, decode, encode, title_of
from edgespec.tui.replay import last_mark, replay
from edgespec.tui.writer import NotSaved

FIGURES = Figures(
    turn=3,
    tokens=120,
    rounds=40,
    tokens_per_second=23.4,
    gain=1.6,
    ttft_seconds=0.21,
    acceptance_rate=0.75,
    mean_accepted_length=3.0,
    drafter="lookup",
    lookahead=4,
    drafters=(DrafterFigures("lookup", 30, 100, 75),),
    recent_accepted=(1, 4, 0),
    lengths=(0, 10, 20),
    context_used=150,
    context_size=8192,
)


def turn(number: int, **more: object) -> Turn:
    return Turn(f"question {number}", f"answer {number}", "end", pair="smollm2", **more)  # type: ignore[arg-type]


def answers(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.answer for turn in turns]


# ------------------------------------------------------------------------------------- one window


def test_turns_come_back_as_they_were(tmp_path: Path) -> None:
    history = History(tmp_path, clock=lambda: 1_796_000_000.5)
    writer = history.begin()
    assert not list(tmp_path.iterdir()), "nothing is written before the first turn"
    first = Turn("Why?", "Because.\n\n```py\n1\n```", "end", "", "smollm2", 1.5, FIGURES)
    failed = Turn("And?", "Half an", None, "the disk \x1b[31mburns", "smollm2", 2.0)
    writer.put(0, first)
    writer.put(1, failed)
    writer.close()

    opened = History(tmp_path).resume(writer.id)
    kept, other = opened.turns
    assert kept.figures == Figures(**{**vars(FIGURES), "turn": 0})
    assert (kept.question, kept.answer, kept.reason) == (first.question, first.answer, "end")
    assert other == failed
    assert opened.notes == ()
    [summary] = history.list()
    assert (summary.title, summary.turns, summary.pair) == ("Why?", 2, "smollm2")
    assert summary.at == 1_796_000_000.5
    assert summary.problem == ""


def test_a_turn_asked_again_replaces_it_and_what_followed(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    for number in range(4):
        writer.put(number, turn(number))
    size = writer.path.stat().st_size
    before = writer.path.read_bytes()
    writer.put(1, turn(11))
    writer.put(2, turn(12))
    assert answers(writer.turns) == ["answer 0", "answer 11", "answer 12"]
    writer.close()
    opened = History(tmp_path).resume(writer.id)
    assert answers(opened.turns) == ["answer 0", "answer 11", "answer 12"]
    assert opened.writer.path.read_bytes()[:size] == before, "what was saved isn't written over"
    with pytest.raises(ValueError, match="turn 5 of 3"):
        opened.writer.put(5, turn(5))


def test_titles(tmp_path: Path) -> None:
    assert title_of("  What is\n\ta  monad?  ") == "What is a monad?"
    assert title_of("word " * 100) == ("word " * 12)[:59].rstrip() + "…"
    history = History(tmp_path)
    writer = history.begin()
    writer.rename("Before the first turn")
    writer.put(0, turn(0))
    assert history.list()[0].title == "Before the first turn"
    history.rename(writer.id, "  By\nthe list [/] \x1b]0;x\x07 ")
    assert writer.title == "By the list [/] \x1b]0;x\x07"
    writer.put(1, turn(1))
    writer.close()
    other = History(tmp_path)
    assert other.list()[0].title == writer.title
    other.rename(writer.id, "x" * 10_000)
    assert len(other.list()[0].title) == 120
    other.rename(writer.id, "")
    assert other.list()[0].title == "question 0"


def test_delete(tmp_path: Path) -> None:
    history = History(tmp_path)
    kept, gone = history.begin(), history.begin()
    kept.put(0, turn(0))
    gone.put(0, turn(0))
    history.delete(gone.id)
    assert [summary.id for summary in history.list()] == [kept.id]
    with pytest.raises(NotSaved, match="was deleted"):
        gone.put(1, turn(1))
    assert not gone.path.exists(), "what was deleted doesn't come back"
    with pytest.raises(HistoryError, match="any more"):
        history.resume(gone.id)
    kept.close()
    History(tmp_path).delete(kept.id)
    assert history.list() == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "x\x00"])
def test_an_id_names_a_file_of_the_folder_alone(tmp_path: Path, name: str) -> None:
    with pytest.raises(HistoryError, match="not the id"):
        History(tmp_path).read(name)


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_conversations_are_their_owners_alone(tmp_path: Path) -> None:
    writer = History(tmp_path / "new").begin()
    writer.put(0, turn(0))
    assert writer.path.stat().st_mode & 0o077 == 0
    assert writer.path.parent.stat().st_mode & 0o077 == 0


# ---------------------------------------------------------------------------------------- records

# Any string, halves of surrogate pairs, line separators and controls included.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(
    ["\u2028\u2029\x85\x1c", "[/] [b + [red]x", "\x1b]52;c;AAAA\x07\x9b31m", "\ud800", "😀\ufe0f"]
)


def joined(text: str) -> str:
    """JSON, like UTF-16, takes two halves of a pair side by side for the whole character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(question=ANY_TEXT, answer=ANY_TEXT, pair=ANY_TEXT)
def test_any_text_is_one_line_and_comes_back(question: str, answer: str, pair: str) -> None:
    line = encode(Placed(7, Turn(question, answer, "stop", pair=pair)))
    assert line.count(b"\n") == 1
    assert len(line.decode("utf-8").splitlines()) == 1
    record = decode(line)
    assert isinstance(record, Placed)
    assert (record.index, record.turn.reason) == (7, "stop")
    assert record.turn.question == joined(question)
    assert record.turn.answer == joined(answer)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    found = replay(io.BytesIO(data), Path("x.jsonl"))
    assert found.turns == ()
    assert found.length == len(data)
    last_mark(io.BytesIO(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = ["kind", "index", "question", "answer", "reason", "figures", "version", "at", "turns"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON | st.sampled_from(["turn", "mark", "end"])))
def test_any_json_is_a_record_or_a_value_error(data: dict[str, object]) -> None:
    with suppress(ValueError):
        decode(json.dumps(data).encode())


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "turn", "index": -1, "question": "x"}',
        '{"kind": "turn", "index": true, "question": "x"}',
        '{"kind": "turn", "index": 0, "question": 5}',
        '{"kind": "turn", "index": 0, "question": "x", "reason": "bored"}',
        '{"kind": "mark", "title": "x", "turns": 1, "at": NaN}',
        '{"kind": "mark", "title": "x", "turns": 1, "at": 1e999}',
        f'{{"kind": "mark", "title": "x", "turns": 1, "at": {10**400}}}',
        "[" * 100_000,
        "9" * 10_000,
        "null",
    ],
)
def test_what_is_no_record(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
        decode(line.encode())


@pytest.mark.parametrize(
    ("key", "value"), [("drafters", "all of them"), ("tokens_per_second", 10**400)]
)
def test_figures_that_are_not_whole_leave_the_words(key: str, value: object) -> None:
    line = json.loads(encode(Placed(0, turn(0, figures=FIGURES))))
    line["figures"][key] = value
    record = decode(json.dumps(line).encode())
    assert isinstance(record, Placed)
    assert (record.turn.answer, record.turn.figures) == ("answer 0", None)


# ---------------------------------------------------------------------------------------- crashes

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "again", "name", "reopen", "crash", "full"]),
              st.integers(0, 1 << 16), ANY_TEXT),
    min_size=1, max_size=14,
)  # fmt: skip


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS, cut=st.integers(0, 1 << 20))
def test_a_crash_at_any_byte_leaves_a_prefix(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, int, str]],
    cut: int,
) -> None:
    """Puts, turns asked again, names, full disks, crashes: what is read is what some prefix of the
    puts had made, and every put that returned before the cut is in it."""
    folder = tmp_path_factory.mktemp("history")
    history = History(folder)
    writer = history.begin()
    model: list[str] = []
    # What each put made of it, and the file's bytes when it was saved (None: the disk was full).
    states: list[tuple[int | None, list[str]]] = [(0, [])]
    crashed = False

    def put(index: int, answer: str, room: int | None = None) -> bool:
        model[index:] = [joined(answer)]
        with pytest.MonkeyPatch.context() as patch:
            if room is not None:
                patch.setattr(writer_module, "_write", small_disk(room % 400))
            try:
                writer.put(index, Turn("q", answer, "end"))
            except NotSaved as error:
                assert room is not None, error  # noqa: PT017
                states.append((None, list(model)))
                return False
        states.append((writer.path.stat().st_size, list(model)))
        return True

    for what, number, text in operations:
        if what == "put":
            crashed &= not put(len(model), text)
        elif what == "again" and model:
            crashed &= not put(number % len(model), text)
        elif what == "full":
            put(len(model), text, room=number)
        elif what == "name":
            writer.rename(text)
            if model:  # with a name goes what the disk didn't take before
                states.append((writer.path.stat().st_size, list(model)))
                crashed = False
        elif what in ("reopen", "crash") and writer.path.exists():
            if what == "crash":  # the file is cut anywhere, as if its last bytes never arrived
                crashed = True
                size = number % (writer.path.stat().st_size + 1)
                os.truncate(writer.path, size)
            else:
                size = writer.path.stat().st_size
            writer.close()
            history = History(folder)
            sure = last_saved(states, size)
            if not readable(history, writer.id):
                assert states[sure][1] == []
                writer = history.begin()
                states, model, crashed = [(0, [])], [], False
                continue
            opened = history.resume(writer.id)
            writer, model = opened.writer, answers(opened.turns)
            reached = [state for _, state in states].index(model, sure)  # or it fails
            if what == "reopen" and not crashed:
                assert model == states[sure][1]
                assert opened.notes == ()
            states[reached + 1 :] = [(writer.path.stat().st_size, list(model))]
    if writer.path.exists():
        data = writer.path.read_bytes()
        size = cut % (len(data) + 1)
        found = replay(io.BytesIO(data[:size]), writer.path)
        assert answers(found.turns) in [state for _, state in states[last_saved(states, size) :]]


def last_saved(states: list[tuple[int | None, list[str]]], size: int) -> int:
    """The last state that the first `size` bytes of the file hold for sure."""
    return max(n for n, (end, _) in enumerate(states) if end is not None and end <= size)


def readable(history: History, conversation_id: str) -> bool:
    try:
        history.read(conversation_id)
    except HistoryError:
        return False
    return True


def small_disk(room: int) -> Callable[[int, bytes], None]:
    def write(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:room])
        raise OSError(28, "disk full")

    return write


def test_every_cut_of_a_conversation(tmp_path: Path) -> None:
    """Each byte, not a sample: three turns, one asked again, a name."""
    writer = History(tmp_path).begin()
    states: list[list[str]] = [[]]
    ends = [0]
    for index, number in ((0, 0), (1, 1), (0, 5), (1, 6)):
        writer.put(index, turn(number))
        states.append(answers(writer.turns))
        ends.append(writer.path.stat().st_size)
    writer.rename("A name")
    data = writer.path.read_bytes()
    for size in range(len(data) + 1):
        found = replay(io.BytesIO(data[:size]), writer.path)
        sure = max(index for index, end in enumerate(ends) if end <= size)
        assert answers(found.turns) in states[sure : sure + 2]
        # Told exactly where a turn was cut off.
        lost = data[:size].rpartition(b"\n")[2]
        told = any("is lost" in note for note in found.notes)
        if lost.startswith(b'{"kind": "turn"') and not lost.endswith(b"}"):
            assert told


def test_a_torn_line_is_mended_and_told_once(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    writer.put(0, turn(0))
    writer.put(1, turn(1))
    writer.close()
    data = writer.path.read_bytes()
    torn = data[: data.rindex(b'{"kind": "turn"') + 40]
    writer.path.write_bytes(torn)

    opened = History(tmp_path).resume(writer.id)
    assert answers(opened.turns) == ["answer 0"]
    assert opened.notes == ("The last turn was being saved when the program ended, and is lost.",)
    opened.writer.put(1, turn(7))
    opened.writer.close()
    assert writer.path.read_bytes().startswith(torn), "the torn line is kept"
    again = History(tmp_path).resume(writer.id)
    assert answers(again.turns) == ["answer 0", "answer 7"]
    assert again.notes == ()


def test_a_crash_while_a_torn_line_is_mended_is_told_once(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    writer.put(0, turn(0))
    writer.put(1, turn(1))
    writer.close()
    data = writer.path.read_bytes()
    torn = data.rindex(b'{"kind": "turn"') + 40
    writer.path.write_bytes(data[:torn])
    opened = History(tmp_path).resume(writer.id)
    opened.writer.put(1, turn(7))
    opened.writer.close()
    mended = writer.path.read_bytes()
    for size in range(torn, len(mended)):
        writer.path.write_bytes(mended[:size])
        opened = History(tmp_path).resume(writer.id)
        opened.writer.put(len(opened.turns), turn(9))
        opened.writer.close()
        again = History(tmp_path).resume(writer.id)
        assert answers(again.turns) == [*answers(opened.turns), "answer 9"]
        assert again.notes == (), size
        again.writer.close()


def test_a_line_that_lacks_its_line_break_alone_is_whole(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    writer.put(0, turn(0))
    writer.close()
    data = writer.path.read_bytes()
    writer.path.write_bytes(data[:-1])
    opened = History(tmp_path).resume(writer.id)
    opened.writer.put(1, turn(1))
    opened.writer.close()
    assert History(tmp_path).resume(writer.id).notes == ()
    assert writer.path.read_bytes().startswith(data)


# ----------------------------------------------------------------------------------------- damage


def test_a_damaged_line_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    for number in range(4):
        writer.put(number, turn(number))
    writer.close()
    lines = writer.path.read_bytes().split(b"\n")
    lines[3] = lines[3][:20] + b"\x00" * 30  # the second turn
    writer.path.write_bytes(b"\n".join(lines))
    damaged = writer.path.read_bytes()

    opened = History(tmp_path).resume(writer.id)
    assert answers(opened.turns) == ["answer 0", "answer 2", "answer 3"]
    [note] = opened.notes
    assert "1 line" in note
    assert "(line 4)" in note
    # Places in the file have a gap, those of the conversation don't.
    opened.writer.put(3, turn(4))
    opened.writer.put(1, turn(9))
    opened.writer.close()
    assert answers(History(tmp_path).resume(writer.id).turns) == ["answer 0", "answer 9"]
    assert writer.path.read_bytes().startswith(damaged)


def test_damaged_files_keep_no_other_from_opening(tmp_path: Path) -> None:
    history = History(tmp_path)
    good = history.begin()
    good.put(0, turn(0))
    (tmp_path / "noise.jsonl").write_bytes(os.urandom(10_000))
    (tmp_path / "zeros.jsonl").write_bytes(bytes(10_000))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "folder.jsonl").mkdir()
    never = b'{"kind": "mark", "title": "x", "turns": 1, "at": 1%s}\n' % (b"0" * 400)
    (tmp_path / "never.jsonl").write_bytes(never)
    newer = b'{"kind": "conversation", "version": 2, "created": 1.0}\n'
    (tmp_path / "newer.jsonl").write_bytes(newer + encode(Mark("New", 1, "", 2.0)))
    (tmp_path / "notes.txt").write_text("not ours")

    problems = {summary.id: summary.problem for summary in history.list()}
    assert problems.keys() == {good.id, "noise", "zeros", "folder", "never", "newer"}
    assert problems[good.id] == problems["newer"] == ""
    for name in ("noise", "zeros", "folder", "never"):
        assert f"{name}.jsonl" in problems[name]
    for name, words in (("noise", "No turn of"), ("zeros", "No turn of"), ("newer", "newer")):
        before = (tmp_path / f"{name}.jsonl").read_bytes()
        with pytest.raises(HistoryError, match=words):
            history.resume(name)
        with pytest.raises(HistoryError, match=words):
            history.rename(name, "x")
        assert (tmp_path / f"{name}.jsonl").read_bytes() == before
    assert history.resume(good.id).turns
    assert not list((tmp_path / "open").glob("noise*")), "a claim that failed is given back"


# ------------------------------------------------------------------------------------ two windows


def test_a_second_window_goes_on_in_a_copy(tmp_path: Path) -> None:
    one, two = History(tmp_path), History(tmp_path)
    first = one.begin()
    first.put(0, turn(0))
    opened = two.resume(first.id)
    assert answers(opened.turns) == ["answer 0"]
    assert "another window" in opened.notes[0]
    assert len(two.list()) == 1, "the copy begins with its first turn"
    first.put(1, turn(1))
    opened.writer.put(1, turn(2))
    assert answers(one.read(first.id).turns) == ["answer 0", "answer 1"]
    assert answers(one.read(opened.writer.id).turns) == ["answer 0", "answer 2"]
    assert {summary.title for summary in one.list()} == {"question 0", "question 0 (copy)"}
    for change in (two.delete, lambda name: two.rename(name, "x")):
        with pytest.raises(HistoryError, match="another window"):
            change(first.id)
    one.close()
    assert two.resume(first.id).notes == ()


def test_the_same_window_gets_the_same_writer(tmp_path: Path) -> None:
    history = History(tmp_path)
    writer = history.begin()
    writer.put(0, turn(0))
    assert history.resume(writer.id).writer is writer


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edgespec.tui.claim import Claim\n"
        "claim = Claim.take(Path(sys.argv[1]))\n"
        "print(claim is not None, flush=True); sys.stdin.read()"
    )
    path = tmp_path / "open" / "x"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(path)], **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert Claim.take(path) is None
        other.kill()
        other.wait()
    claim = Claim.take(path, wait_s=10)
    assert claim is not None
    claim.give_back()
    assert not path.exists()


def test_where_locks_do_not_work_no_window_writes_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.tui.claim.lock_file", lambda file: True)
    one, two = History(tmp_path), History(tmp_path)
    first = one.begin()
    first.put(0, turn(0))
    second = two.resume(first.id).writer
    second.put(1, turn(2))
    first.put(1, turn(1))
    assert "another program" in first.notice
    assert first.id != second.id
    assert answers(one.read(first.id).turns) == ["answer 0", "answer 1"]
    assert answers(one.read(second.id).turns) == ["answer 0", "answer 2"]


def test_a_file_deleted_outside_is_written_again(tmp_path: Path) -> None:
    writer = History(tmp_path).begin()
    writer.put(0, turn(0))
    writer.path.unlink()
    writer.put(1, turn(1))
    assert answers(History(tmp_path).read(writer.id).turns) == ["answer 0", "answer 1"]


# -------------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("room", [0, 1, 60, 10**6])
@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, truncates: bool, fails_at: int
) -> None:
    """The append fails after `room` bytes (or at fsync), and even cutting them off may fail."""
    history = History(tmp_path)
    writer = history.begin()
    for number in range(fails_at):
        writer.put(number, turn(number))
    with monkeypatch.context() as full:
        full.setattr(writer_module, "_write", small_disk(room))
        if not truncates:
            full.setattr(os, "ftruncate", _refuse)
        for number in (fails_at, fails_at + 1):
            with pytest.raises(NotSaved, match=r"disk full. It goes on in memory"):
                writer.put(number, turn(number))
        assert writer.problem
        if fails_at:
            found = history.read(writer.id)
            assert answers(found.turns)[:fails_at] == answers(writer.turns)[:fails_at]
        else:
            assert history.list() == []
    writer.put(fails_at + 2, turn(fails_at + 2))
    assert writer.problem == ""
    writer.close()
    opened = History(tmp_path).resume(writer.id)
    assert answers(opened.turns) == [f"answer {number}" for number in range(fails_at + 3)]


def _refuse(*_: object) -> None:
    raise OSError(5, "no")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    writer = History(blocked / "conversations").begin()
    with pytest.raises(NotSaved, match="can't be saved in"):
        writer.put(0, turn(0))
    assert answers(writer.turns) == ["answer 0"]
    # Reading goes on where no claim can be had.
    history = History(tmp_path / "good")
    kept = history.begin()
    kept.put(0, turn(0))
    kept.close()
    with monkeypatch.context() as full:
        full.setattr(Claim, "take", _refuse)
        assert answers(History(tmp_path / "good").resume(kept.id).turns) == ["answer 0"]
        with pytest.raises(HistoryError, match="Can't write"):
            history.rename(kept.id, "x")
        with pytest.raises(HistoryError, match="Can't delete"):
            history.delete(kept.id)


# ----------------------------------------------------------------------------------- large numbers


def test_a_list_reads_the_ends_of_files_alone(tmp_path: Path) -> None:
    """A hundred megabytes: what a list reads of it is a few kilobytes."""
    history = History(tmp_path)
    writer = history.begin()
    big = "word " * 200_000  # a million characters
    for number in range(100):
        writer.put(number, Turn(f"question {number}", big, "end"))
    size = writer.path.stat().st_size
    assert size > 100_000_000

    class Counting(io.FileIO):
        count = 0

        def read(self, size: int = -1) -> bytes:  # type: ignore[override]
            data = super().read(size)
            self.count += len(data)
            return data

    with Counting(writer.path) as file:
        mark = last_mark(file)  # type: ignore[arg-type]
        assert mark is not None
        assert (mark.turns, file.count) == (100, 4096)
        # Also where a crash tore a long line behind it: then as much more as that line is long.
        with writer.path.open("ab") as end:
            end.write(b'{"kind": "turn", "index": 100, "question": "' + b"x" * 50_000)
        file.count = 0
        mark = last_mark(file)  # type: ignore[arg-type]
        assert mark is not None
        assert mark.turns == 100
        assert file.count < 200_000
    writer.close()
    opened = History(tmp_path).resume(writer.id)
    assert len(opened.turns) == 100
    assert opened.turns[99].answer == big


def test_thousands_of_conversations_are_listed(tmp_path: Path) -> None:
    for number in range(3000):
        lines = [encode(Placed(0, turn(number))), encode(Mark(f"t{number}", 1, "", float(number)))]
        (tmp_path / f"c{number}.jsonl").write_bytes(b"".join(lines))
    found = History(tmp_path).list()
    assert [summary.title for summary in found[:2]] == ["t2999", "t2998"]
    assert len(found) == 3000
