"""`edgespec bench` beside programs that end, hang or reply with what is no figure."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny

from edgespec import cli
from edgespec.bench import files
from edgespec.bench.peers import Gone, Peer, PeerSide, Unanswered
from edgespec.errors import ConfigError, EdgespecError
from edgespec.sampling import GREEDY

MORTAL = """
import json, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent
if "--make" in sys.argv:
    print(sys.executable)
else:
    hello = json.loads(sys.stdin.readline())
    settings = hello.get("settings") or ["plain"]
    print(json.dumps({"settings": settings, "of": (here / "version").read_text()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        with (here / "asked").open("a+") as file:
            file.write(line)
        number = len((here / "asked").read_text().splitlines())
        what = json.loads((here / "fate").read_text()).get(str(number))
        if what == "ends":
            sys.exit(3)
        elif what == "leaves":
            code = "import time; time.sleep(20); print('on', flush=True)"
            subprocess.Popen([sys.executable, "-c", code], stdout=(here / "alive").open("w"))
            sys.exit(3)
        elif what == "hangs":
            time.sleep(600)
        elif what == "refuses":
            print(json.dumps({"error": "not this"}), flush=True)
        else:
            print(json.dumps({"tokens": asked["ids"][:2], "finish_reason": "length",
                              "ttft_seconds": 0.5, "decode_seconds": 0.25}), flush=True)
"""


def mortal(folder: Path, **fate: str) -> Path:
    """A script whose program does something else at some requests, counted over all its starts."""
    (folder / "version").write_text("1")
    (folder / "fate").write_text(json.dumps({key.lstrip("_"): what for key, what in fate.items()}))
    (folder / "it.py").write_text(MORTAL, encoding="utf-8")
    return folder / "it.py"


def asked(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


def bench(
    folder: Path, capsys: pytest.CaptureFixture[str], script: Path, settings: str
) -> tuple[int, str, str]:
    """Three prompts of one pair, beside some settings of a script's program."""
    target = write_tiny(folder / "a.gguf", context=512)
    turns = "".join(f'{{"turns": ["{text}"]}}\n' for text in ("Hi.", "Ho.", "Ha."))
    (folder / "p.jsonl").write_text(turns, encoding="utf-8")
    args = (
        "bench", "--target", target, "--lookahead", "1", "--threads", "1", "--tokens", "2",
        "--prompts", folder / "p.jsonl", "--peer", f"{script}:{settings}", "--out", folder / "out",
    )  # fmt: skip
    return (cli.main([*map(str, args)]), *capsys.readouterr())


def test_one_that_ended_is_asked_the_same_prompt_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have ended before it was asked, and then neither prompt nor setting is to blame."""
    script = mortal(tmp_path, _3="ends")  # the warm-up, the first prompt, the second
    code, shown, err = bench(tmp_path, capsys, script, "plain")
    assert code == 0, err
    trials = files.read([tmp_path / "out"]).trials
    assert [len(trial.answers) for trial in trials] == [3, 3, 3]
    assert "gave no answer" not in shown
    ids = [one["ids"] for one in asked(tmp_path)]
    assert [one["max_tokens"] for one in asked(tmp_path)] == [32, 2, 2, 8, 2, 2]
    assert ids[2] == ids[4] and ids[3] == ids[4][:8][::-1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sessions")
def test_what_a_program_that_ended_had_started_is_ended_too(tmp_path: Path) -> None:
    script = mortal(tmp_path, _1="leaves")
    os.mkfifo(tmp_path / "alive")
    with os.fdopen(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), "rb") as alive:
        peer = Peer(script, tmp_path, tmp_path / "it.log", {"settings": None}, patience=60)
        try:
            with pytest.raises(Gone, match="ended or made no sense"):
                peer.ask({"ids": [1]})
        finally:
            peer.close()
        os.set_blocking(alive.fileno(), True)
        assert alive.read() == b""  # nobody is left to write


def test_one_that_ends_on_a_prompt_is_there_for_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = mortal(tmp_path, _3="ends", _5="ends")  # the warm-up, the first prompt, the second
    code, shown, err = bench(tmp_path, capsys, script, "plain")
    assert code == 0, err
    trials = files.read([tmp_path / "out"]).trials
    assert [len(trial.answers) for trial in trials] == [3, 2, 3]
    says = "it/plain gave no answer 1 of 3 times: it ended or made no sense (it.log says why)"
    assert says in shown.splitlines()
    # Where it was started anew, it answered a few tokens of another text before it was timed.
    ids = [one["ids"] for one in asked(tmp_path)]
    assert [one["max_tokens"] for one in asked(tmp_path)] == [32, 2, 2, 8, 2, 8, 2]
    assert ids[5] == ids[6][:8][::-1] and ids[6] not in ids[1:5]


def test_its_other_settings_answer_the_same_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = mortal(tmp_path, _5="ends", _7="ends")  # two warm-ups, two answers, then prompt two
    code, _, err = bench(tmp_path, capsys, script, "plain,fast")
    assert code == 0, err
    trials = files.read([tmp_path / "out"]).trials
    assert [len(trial.answers) for trial in trials] == [4, 3, 4]
    (lost,) = trials[1].unanswered
    last = asked(tmp_path)[7:]
    assert len(last) == 5  # each setting is warmed up before it is timed, but once
    assert {one["setting"] for one in last if one["max_tokens"] == 8} == {"plain", "fast"}
    assert last[0]["setting"] != lost.split("/")[1]


def test_one_that_ends_on_two_prompts_running_ends_its_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = mortal(tmp_path, _2="ends", _3="ends", _4="ends", _5="ends")
    code, _, err = bench(tmp_path, capsys, script, "plain")
    assert code == 1 and "on two prompts running, it ended or made no sense: " in err
    assert err.splitlines()[-1].endswith("it.log says why; the same command goes on")
    assert len(files.read([tmp_path / "out"]).trials) == 1
    code, _, err = bench(tmp_path, capsys, script, "plain")  # it goes on where it was
    assert code == 0, err
    trials = files.read([tmp_path / "out"]).trials
    assert [len(trial.answers) for trial in trials] == [2, 3, 3]


def test_one_that_ends_at_once_is_measured_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, err = bench(tmp_path, capsys, mortal(tmp_path, _1="ends", _2="ends"), "plain")
    assert (code, shown) == (1, "") and "it ended or made no sense: " in err
    assert not (tmp_path / "out" / files.FILE).exists()


def test_one_that_hangs_is_ended_and_started_anew(tmp_path: Path) -> None:
    script = mortal(tmp_path, _2="hangs", _3="refuses", _5="ends", _6="ends")
    peer = Peer(script, tmp_path, tmp_path / "it.log", {"settings": None}, patience=60)
    side = PeerSide(peer, "plain")
    try:
        assert side.answer([1, 2, 3], 2, GREEDY).tokens == [1, 2]
        process = peer._process
        peer._patience = 0.2
        with pytest.raises(Gone, match="it gave no reply within 0 minutes and was ended") as gone:
            side.answer([1, 2, 3], 2, GREEDY)
        assert (gone.value.peer, process.poll() is not None) == ("it", True)
        peer._patience = 60
        # A text that it refuses to warm up with is no reason to refuse the one that is asked.
        assert side.answer([4, 5, 6], 2, GREEDY).tokens == [4, 5]
        with pytest.raises(Gone, match="ended or made no sense"):
            side.answer([7], 2, GREEDY)
        (tmp_path / "version").write_text("2")
        with pytest.raises(EdgespecError, match="it isn't what it was when it is started again"):
            side.answer([7], 2, GREEDY)
    finally:
        peer.close()


@pytest.mark.parametrize(
    "wrong",
    [
        '"decode_seconds": -0.25', '"ttft_seconds": NaN', '"decode_seconds": Infinity',
        '"tokens": [3, -1]', '"tokens": [Infinity]', '"first_tokens": -1', '"drafted": -2',
        '"arrivals": [[-0.5, 1]]', '"tokens": null',
    ],
)  # fmt: skip
def test_a_reply_that_holds_no_figures_is_no_answer(wrong: str) -> None:
    """Its logarithm would be taken in every table and report that is made of it."""

    class Stub:
        name, starts = "it", 1

        def be_there(self) -> None:
            pass

        def ask(self, request: dict[str, object]) -> Any:
            right = '"tokens": [10000000], "ttft_seconds": 0.5, "decode_seconds": 0'
            return json.loads(f"{{{right}, {wrong if request['ids'] == [1] else right}}}")

    side = PeerSide(Stub(), "plain")  # type: ignore[arg-type]
    assert side.answer([2], 1, GREEDY).decode_seconds == 0
    with pytest.raises(Unanswered, match="it/plain gave a reply that holds no answer"):
        side.answer([1], 1, GREEDY)


@pytest.mark.parametrize("seconds", ["-0.5", "NaN", "Infinity", "1e999", "[]"])
def test_a_line_whose_times_are_none_is_named(seconds: str, tmp_path: Path) -> None:
    answer = f'{{"side": "plain", "tokens": [1, 2], "text": "", "finish_reason": "length", \
"ttft_seconds": null, "decode_seconds": {seconds}}}'
    file = tmp_path / "results.jsonl"
    file.write_text(
        f'{{"kind": "trial", "pair": "p", "prompt": "a", "category": "c", "turn": 0, "repeat": 0, \
"prompt_tokens": 3, "ended": "now", "answers": [{answer}]}}\n',
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="line 1, is no result of edgespec bench"):
        files.read([file])
    file.write_text(file.read_text("utf-8").replace(seconds, "0.5"), "utf-8")
    assert len(files.read([file]).trials) == 1
