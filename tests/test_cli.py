"""The command line as a person or a program uses it: what goes where, and how it ends."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeSession, fake_model
from rich.cells import cell_len
from tiny_gguf import write_tiny

from edgespec import Runtime, __version__, cli, console
from edgespec.backends import LoadOptions, llama_device
from edgespec.commands import run, shared
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.figures import as_json, summary
from edgespec.generation import Result
from edgespec.metrics import Counters, DrafterCounts
from edgespec.opening import find_files
from edgespec.options import add_answer_options, add_model_options
from edgespec.planner import FixedPlanner, PlannerStatus
from edgespec.registry import user_models_file
from edgespec.sampling import GREEDY
from edgespec.session import CancelFlag

COMMAND = [sys.executable, "-m", "edgespec.cli"]
PLAIN = ["--no-draft", "--threads", "1", "--temperature", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_tiny(folder / "a.gguf", context=512)
    write_tiny(folder / "b.gguf", context=512, seed=1)
    write_tiny(folder / "long.gguf", context=8192, layers=24, scale=0.1)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))


def edgespec(*args: str | Path, stdin: str | bytes = "") -> tuple[int, str, str]:
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run([*COMMAND, *args], input=data, capture_output=True, timeout=120)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err
    return done.returncode, out, err


def in_process(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        code = cli.main(args)
    except SystemExit as left:
        code = int(left.code or 0)
    return (code, *capsys.readouterr())


# ------------------------------------------------------------------------------ what is asked


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(capsys, "--version") == (0, f"edgespec {__version__}\n", "")
    assert edgespec("--version") == (0, f"edgespec {__version__}\n", "")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["nonsense"],
        ["run", "x", "--temperature", "hot"],
        ["run", "x", "--max-tokens", "-1"],
        ["run", "x", "--max-tokens", "1.5"],
        ["run", "x", "--top-k", "-1"],
        ["run", "x", "--seed", "-1"],
        ["run", "x", "--ctx-size", "0"],
        ["run", "x", "--threads", "0"],
        ["run", "x", "--gpu-layers", "-2"],
        ["run", "x", "--lookahead", "-1"],
        ["run", "x", "--lookahead", "many"],
        ["run", "x", "--no-such-option"],
    ],
)
def test_arguments_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], args: Sequence[str]
) -> None:
    code, out, err = in_process(capsys, *args)
    assert (code, out) == (2, "")
    assert "usage: edgespec" in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "x", "--temperature", "-1"], "temperature must be"),
        (["run", "x", "--temperature", "nan"], "temperature must be"),
        (["run", "x", "--top-p", "1.5"], "top_p must be"),
        (["run", "x", "--min-p", "-0.1"], "min_p must be"),
        (["run", "x", "--pair", "nobody"], "nobody"),
        (["chat", "nobody"], "nobody"),
        *(
            ([command, "one", "--pair", "two"], "the pair is named twice")
            for command in ("chat", "verify", "tune")
        ),
        (["run", "hi", "--no-draft", "--drafters", "lookup"], "contradict each other"),
        (["run", "hi", "--drafters", "lookup", "--drafter", "small.gguf"], "leaves out small.gguf"),
        (["run", "hi", "--target", "a.gguf", "--drafters", "model"], "no drafter model"),
        (["run", "x", "--target", "none.gguf"], "doesn't exist"),
        (["run", "x", "--drafters", "modle"], "no drafter modle: choose lookup, model"),
        (["run", "x", "--target", "none.gguf", "--drafter", "nine.gguf"], "no drafter nine.gguf"),
        (["run", "x", "--no-draft", "--drafter", "lookup"], "contradict"),
        (["verify", "--target", "none.gguf", "--no-draft"], "leave --no-draft and --lookahead 0"),
        (["verify", "--target", "none.gguf", "--lookahead", "0"], "compares drafted answers with"),
        (["verify", "--target", "none.gguf", "--lookahead", "auto"], "give --lookahead a number"),
        (["tune", "--target", "none.gguf", "--lookahead", "4"], "leave --lookahead out"),
        (["tune", "--target", "none.gguf", "--no-draft"], "leave --no-draft out"),
        (["run", "x", "--target", "none.gguf", "--pair", "smollm2"], "not both"),
        (["run", "  "], "empty"),
        (["pull", "nobody"], "nobody"),
        (["pull", "qwen3-0.6"], "did you mean qwen3-0.6b"),
        (["pull", "qwen3-4bb"], "did you mean qwen3-4b"),
        (["chat", "--lines", "some.gguf"], "name it with --target some.gguf"),
        (["run", "x", "--target", "smollm2"], "name it with --pair smollm2"),
        *(
            ([*command, "~no-such-user/x"], "~no-such-user/x begins with a home folder")
            for command in (
                ["run", "x", "--target"],
                ["verify", "--prompts"],
                ["export", "gguf"],
            )
        ),
    ],
)
def test_failures_are_one_sentence(
    capsys: pytest.CaptureFixture[str], args: Sequence[str], says: str
) -> None:
    code, out, err = in_process(capsys, *args)
    assert (code, out) == (1, "")
    assert says in err
    assert err.startswith("edgespec: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "drafters"),
    [
        ([], None),
        (["--no-draft"], []),
        (["--drafter", "a"], ["lookup", "a"]),
        (["--drafter", "a", "--drafter", "lookup"], ["a", "lookup"]),
        (["--drafters", "lookup"], ["lookup"]),
        (["--drafters", "model, lookup"], ["model", "lookup"]),
        (["--drafters", "model", "--drafter", "a", "--drafter", "b"], ["a", "b"]),
        (["--drafters", "model,lookup", "--drafter", "a"], ["a", "lookup"]),
    ],
)
def test_what_drafts(args: Sequence[str], drafters: list[str] | None) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    assert shared.drafters(parser.parse_args(args)) == drafters


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "x", "--max-tokens", "abc"], "'abc' is no whole number"),
        (["run", "x", "--ctx-size", "1.5"], "'1.5' is no whole number"),
        (["run", "x", "--lookahead", "-1"], "-1 is below 0"),
        (["run", "x", "--lookahead", "65"], "65 is above 64"),
        (["run", "x", "--top-p", "much"], "'much' is no number"),
        (["bench", "--lookahead", "3,x"], "'x' is neither a number nor `auto`"),
        (["bench", "--lengths", "256,long"], "'long' is no whole number"),
        (["bench", "--temperature", "hot"], "'hot' is no number"),
        (["verify", "--system", "Be brief."], "--system"),  # it would change nothing
    ],
)
def test_a_wrong_argument_is_named_by_what_is_wrong(
    capsys: pytest.CaptureFixture[str], args: Sequence[str], says: str
) -> None:
    code, out, err = in_process(capsys, *args)
    assert (code, out) == (2, "")
    assert says in err.splitlines()[-1] and "invalid" not in err


def test_pulling_a_pair_that_is_named_like_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = user_models_file().parent
    folder.mkdir(parents=True)
    entries = '[pairs.big]\ntarget = "big"\ndrafters = ["small"]\ndescription = "A pair"\n'
    for name in ("big", "small"):
        (folder / f"{name}.gguf").write_bytes(name.encode())
        entries += f'[models.{name}]\nsource = {{ kind = "file", path = "{name}.gguf" }}\n'
        entries += 'licence = "MIT"\nformat = "gguf"\n'
    user_models_file().write_text(entries, encoding="utf-8")
    big, small = str(folder / "big.gguf"), str(folder / "small.gguf")
    for name, files in (("big", [big, small]), ("small", [small])):
        code, out, _ = in_process(capsys, "pull", name)
        assert (code, out.splitlines()) == (0, files)

    def state() -> str:
        rows = in_process(capsys, "models")[1].splitlines()
        return next(row for row in rows if row.startswith("big ")).split()[-1]

    assert state() == "here"
    Path(small).unlink()
    assert state() == "missing"  # nothing can download it


def test_a_choice_among_the_drafters_of_a_pair(tmp_path: Path) -> None:
    """`model` is the model of the pair that drafts."""
    folder = user_models_file().parent
    folder.mkdir(parents=True)
    big, small = folder / "big.gguf", folder / "small.gguf"
    entries = ""
    for file in (big, small):
        file.write_bytes(file.stem.encode())
        entries += f"""
            [models.{file.stem}]
            source = {{ kind = "file", path = "{file.name}" }}
            licence = "MIT"
            format = "gguf"
        """
    user_models_file().write_text(
        entries
        + """
        [pairs.mine]
        target = "big"
        drafters = ["lookup", "small"]
        description = "A pair"

        [pairs.alone]
        target = "big"
        drafters = ["lookup"]
        description = "No model drafts"
        """,
        encoding="utf-8",
    )
    for chosen, drafters in (
        (None, ["lookup", str(small)]),
        (["model"], [str(small)]),
        (["model", "lookup"], [str(small), "lookup"]),
        (["lookup"], ["lookup"]),
        ([], []),
    ):
        assert find_files("mine", None, chosen, fetch=False) == (big, drafters)
    with pytest.raises(ConfigError, match="no drafter model"):
        find_files("alone", None, ["model"], fetch=False)


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = in_process(capsys, "models")
    assert code == 0
    rows = out.splitlines()
    assert re.match(r"smollm2 .* lookup .*default", rows[1])
    assert "untested" in out and "never run by us" in err
    assert f"{LoadOptions().context_cap} tokens at most" in err
    code, out, _ = in_process(capsys, "models", "--json")
    listed = json.loads(out)
    assert len(listed) == len(rows) - 1
    assert {"pair", "here", "untested", "drafters", "memory_bytes"} <= listed[0].keys()


def test_what_a_models_file_says_stays_in_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    folder = user_models_file().parent
    folder.mkdir(parents=True)
    evil = "m\\u001b]0;title\\u0007\\nit"
    user_models_file().write_text(
        f'[models."{evil}"]\nsource = {{ kind = "file", path = "gone.gguf" }}\nformat = "gguf"\n'
        f'licence = "{evil}"\n[pairs."日本語 e\\u0301{evil}"]\ntarget = "{evil}"\n'
        f'drafters = ["{evil}"]\ndescription = "no"\n',
        encoding="utf-8",
    )
    out = in_process(capsys, "models")[1]
    assert not [c for c in out if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
    rows = out.splitlines()
    (row,) = [row for row in rows if row.startswith("日本語")]
    seen = "m\u241b]0;title\u2407 it"
    assert row.count(seen) == 3 and row.endswith("missing")
    first, *_ = row.partition("0 bytes")
    assert cell_len(first) == rows[0].index("DOWNLOAD")


def commands_of(words: Sequence[str]) -> dict[str, tuple[str | None, str]]:
    """The commands that are known where these words are read: what --help says of each."""
    (found,) = [
        action for action in cli._parser(words)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]  # fmt: skip
    lines = {listed.dest: listed.help for listed in found._choices_actions}
    return {name: (lines.get(name), parser.format_help()) for name, parser in found.choices.items()}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_is_called_as_its_module_and_reads_the_same_alone(name: str) -> None:
    known = commands_of([])
    assert list(known) == list(cli.COMMANDS)
    assert commands_of([name]) == {name: known[name]} and known[name][0]


def options_of_an_answer() -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    add_model_options(parser)
    add_answer_options(parser)
    return parser._actions


def test_every_option_gives_its_default() -> None:
    assert [a.dest for a in options_of_an_answer() if not str(a.help).endswith(")")] == []
    last, usual = "the pair used last", "the default pair"
    for name, default in (("chat", last), ("verify", usual), ("tune", usual)):
        text = " ".join(commands_of([name])[name][1].split())
        assert text.count(f"a pair that `models` lists (default: {default})") == 2  # also as --pair


def test_help_shows_no_option_that_the_command_refuses() -> None:
    """Nor a default that it hasn't."""
    helps = {name: " ".join(text.split()) for name, (_, text) in commands_of([]).items()}
    assert "--no-draft" in helps["run"] and "auto measures and plans (auto)" in helps["run"]
    assert not re.search("--(no-)?draft[^e]|--lookahead|with a fixed lookahead", helps["tune"])
    assert not re.search("--(no-)?draft[^e]|planner|auto measures", helps["verify"])
    assert "--lookahead N draft tokens a round, at most 64 (3)" in helps["verify"]


def test_the_documents_build_llama_cpp_in_the_version_that_is_asked_for() -> None:
    root = Path(__file__).parents[1]
    wanted = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (llama,) = (one for one in wanted if one.startswith("llama-cpp-python"))
    lines = (root / "docs" / "install.md").read_text("utf-8").splitlines()
    commands = [line for line in lines if line.startswith("CMAKE_ARGS=")]
    assert {line.split('"')[1] for line in commands} == set(llama_device._FLAGS.values())
    powershell = [line for line in lines if line.startswith((".venv\\", "$env:CMAKE_ARGS"))]
    commands += [line for line in powershell if "llama-cpp-python" in line]
    assert any(line.split('"')[1:2] == [llama_device._FLAGS["NVIDIA"]] for line in powershell)
    assert len(commands) == 4 and all(line.endswith(f"'{llama}'") for line in commands)


def test_the_readmes_program_runs_and_leaves_no_sentence_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    _, part = page.split("\n## In a program\n")
    program = part.split("```python\n")[1].split("```\n")[0]
    own = user_models_file()
    own.parent.mkdir(parents=True)
    own.write_text(
        f"[models.tiny]\nsource = {{ kind = 'file', path = '{folder / 'a.gguf'}' }}\n"
        'format = "gguf"\n[pairs.smollm2]\ntarget = "tiny"\ndrafters = ["lookup"]\n'
        'description = "tiny"\ndefault = true\n',
        encoding="utf-8",
    )
    exec(compile(program, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith("measuring what passes of these models cost on this machine, once\n")
    assert "a.gguf brings no chat template" in out  # a note of the runtime's
    assert re.search(r"^\d+ tokens · [\d.]+ tok/s · first token after", out, re.MULTILINE)


def test_the_readmes_session_ends_its_answers_as_the_chat_does() -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")

    def lines(counters: Counters, status: PlannerStatus) -> str:
        tokens = (0,) * counters.tokens
        return summary(Result("", tokens, (), "end", counters), status) + "\n"

    plain = Counters(tokens=14, rounds=14, ended=True, ttft_seconds=0.14, decode_seconds=14 / 76.8)
    parked = PlannerStatus("", 0, True, "no drafter has a guess", None)
    assert lines(plain, parked) in page
    drafted = Counters(
        tokens=46, rounds=19, ended=True, ttft_seconds=0.09, decode_seconds=46 / 105.2,
        drafters={"lookup": DrafterCounts(rounds=6, drafted=32, accepted=27)},
    )  # fmt: skip
    assert lines(drafted, PlannerStatus("lookup", 1, False, "", 1.5)) in page


def test_every_option_is_in_the_documents_with_what_it_does() -> None:
    page = (Path(__file__).parents[1] / "docs" / "options.md").read_text(encoding="utf-8")
    rows = {tuple(re.findall(r"`(-[^`]+)`", line)): line for line in page.splitlines()}
    options = options_of_an_answer()
    assert len(options) > 20
    for option in options:
        assert rows[tuple(option.option_strings)].endswith(f" | {option.help} |")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chat", "What is saved for a pair comes before the defaults"),
        ("run", "the answer goes to stdout"),
        ("verify", "The exit status is 0 where the pair is exact"),
        ("tune", "says whether that pays"),
        ("models", "whether they are here"),
        ("pull", "prints where each file lies"),
        ("export", "compared with the checkpoint before it gets its name"),
    ],
)
def test_a_command_says_what_it_does(name: str, says: str) -> None:
    _, description, *_ = commands_of([name])[name][1].split("\n\n")
    assert says in " ".join(description.split())


# ------------------------------------------------------------------------------ answers


def test_two_files_and_the_answer_alone_on_stdout(folder: Path) -> None:
    args = ["--target", folder / "a.gguf", "--temperature", "0", "--threads", "1"]
    args += ["--device", "cpu"]  # a Mac's llama.cpp would take its GPU
    code, plain, err = edgespec("run", "abc", *args, "--no-draft", "--max-tokens", "16")
    assert code == 0
    assert "a.gguf on CPU" in err and "drafters: none" in err and "16 tokens" in err
    drafter = ["--drafter", folder / "b.gguf", "--drafter", "lookup", "--lookahead", "2"]
    code, out, err = edgespec("run", "abc", *args, *drafter, "--max-tokens", "16")
    assert code == 0
    assert "drafters: model, lookup" in err
    assert out == plain and out.endswith("\n")


def test_json(folder: Path) -> None:
    args = ["--target", folder / "a.gguf", "--lookahead", "2", "--threads", "1", "--max-tokens"]
    code, out, _ = edgespec("run", "abc", *args, "20", "--json", "--temperature", "0")
    assert code == 0
    answer = json.loads(out)
    assert {
        "text", "token_count", "finish_reason", "tokens_per_second", "ttft_seconds",
        "acceptance_rate", "mean_accepted_length", "drafters",
    } <= answer.keys()  # fmt: skip
    assert answer["finish_reason"] == "length"
    assert answer["token_count"] == 20
    assert answer["tokens_per_second"] > 0 and answer["ttft_seconds"] > 0
    code, out, _ = edgespec("run", "abc", *args, "0", "--json")
    answer = json.loads(out)
    assert (answer["text"], answer["tokens_per_second"], answer["acceptance_rate"]) == (
        "", None, None,
    )  # fmt: skip


def test_prompts_from_stdin(folder: Path) -> None:
    args = ["--target", folder / "a.gguf", *PLAIN, "--max-tokens", "8", "--json"]

    def prompt_tokens(*words: str, stdin: str | bytes = "") -> int:
        code, out, _ = edgespec("run", *words, *args, stdin=stdin)
        assert code == 0
        return int(json.loads(out)["prompt_tokens"])

    given = prompt_tokens("one two")
    assert prompt_tokens(stdin="one two") == given
    assert prompt_tokens("-", stdin="one two") == given
    assert prompt_tokens("one", "-", stdin="two") == given
    assert prompt_tokens(stdin=b"a\xffb") > 0  # no text, and no reason to fail
    assert edgespec("run", *args, stdin=" \n")[0] == 1


def test_a_minus_typed_at_a_terminal_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("told\n"))
    assert run._words(["7", "-", "2"]) == ["7", "told\n", "2"]  # from a pipe, as ever
    monkeypatch.setattr("sys.stdin", stdin := io.StringIO("told\n"))
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    assert run._words(["7", "-", "2"]) == ["7", "-", "2"]
    assert run._words(["-"]) == ["told\n"]


def test_a_chat_through_a_pipe(folder: Path) -> None:
    args = ["--target", folder / "a.gguf", *PLAIN, "--max-tokens", "4"]
    code, out, err = edgespec(
        "chat", *args, stdin="hi\n\n/stats\n/nonsense\n/help\nand \\\nmore\n/clear\nhi\n/quit\nno\n"
    )
    assert code == 0
    assert err.count("first token after") == 3 + 1  # three answers, and /stats
    assert "There is no /nonsense here" in err and "/clear" in err
    first, again = out.splitlines()[0], out.splitlines()[-1]
    assert first == again  # as if nothing had been said before
    assert edgespec("chat", *args, stdin="hi")[1].splitlines() == [first]  # no last line end


def test_figures_of_an_answer_that_a_stop_string_left_empty() -> None:
    counters = Counters(prompt_tokens=9, rounds=1, decode_seconds=0.5, ttft_seconds=0.1)
    counters.add_draft("lookup", 3, 2, rejected=True)
    result = Result("", (), (), "stop", counters)
    assert "lookup: 2 of 3 draft tokens accepted (67%)\n" in summary(result)
    assert "tokens a round" not in summary(result)
    assert as_json(result)["mean_accepted_length"] is None


# ------------------------------------------------------------------------------ terminals


class Says(FakeSession):
    """Writes a text, wherever it is asked to begin."""

    def __init__(self, text: str, **options: object) -> None:
        super().__init__(260, **options)  # type: ignore[arg-type]
        self._text = [*text.encode(), 257]
        self._begin: int | None = None

    def row(self, tokens: Sequence[int]):  # type: ignore[no-untyped-def]
        logits = super().row(tokens) * 0
        if self._begin is None:
            self._begin = len(tokens)
        at = len(tokens) - self._begin
        logits[self._text[at] if at < len(self._text) else 257] = 20.0
        if at >= len(self._text) - 1:
            self._begin = None
        return logits


def saying(monkeypatch: pytest.MonkeyPatch, text: str, **options: object) -> None:
    def open_fake(*args: object, **named: object) -> Runtime:
        cancel = CancelFlag()
        session = Says(text, cancel=cancel, name="evil\x1b]0;name\x07", **options)
        return Runtime(fake_model(session), planner=FixedPlanner((), 0), cancel=cancel)

    monkeypatch.setattr(Runtime, "open", open_fake)


def test_no_control_sequence_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, "a\x1b[31mred\x9b2J\x07\x08\r\x7f\ttab\nend")
    code, out, err = in_process(capsys, "run", "hi", "--temperature", "0")
    assert code == 0
    assert out == "a␛[31mred\ufffd2J␇␈␍␡\ttab\nend\n"
    assert not set(map(chr, [*range(9), *range(11, 32), *range(127, 160)])) & set(out + err)
    code, out, _ = in_process(capsys, "run", "hi", "--json", "--temperature", "0")
    assert json.loads(out)["text"].startswith("a\x1b[31m")  # a program gets what was said
    assert "\x1b" not in out


def test_a_file_name_with_control_sequences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = in_process(capsys, "run", "hi", "--target", "\x1b[2Jnone.gguf")
    assert (code, out) == (1, "")
    assert "\x1b" not in err

    def unreadable(*_: object, **__: object) -> None:
        raise OSError(5, "can't be read", "\x1b[2Jnone.gguf")

    monkeypatch.setattr(Runtime, "open", unreadable)
    code, out, err = in_process(capsys, "run", "hi")
    assert (code, out) == (1, "")
    assert "none.gguf" in err and "\x1b" not in err


def test_a_path_that_is_pulled_is_safe_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.fetch.fetch", lambda spec, progress: Path("\x1b[2Jmodel.gguf"))
    assert in_process(capsys, "pull")[:2] == (0, "\x1b[2Jmodel.gguf\n")  # for a program as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert in_process(capsys, "pull")[:2] == (0, "␛[2Jmodel.gguf\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
def test_a_reader_that_goes_away(folder: Path) -> None:
    args = ["run", "abc", "--target", folder / "long.gguf", *PLAIN, "--max-tokens", "8000"]
    process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 0
    assert "Traceback" not in err and "BrokenPipe" not in err


@pytest.mark.parametrize(
    ("system", "status"), [("win32", 0), ("linux", 1)], ids=["windows", "elsewhere"]
)
def test_a_reader_that_goes_away_as_windows_tells_it(
    system: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.RawIOBase):
        closing = False

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if self.closing:
                return len(data)
            raise OSError(errno.EINVAL, "Invalid argument")

    raw = Gone()
    with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as stdout:
        with monkeypatch.context() as there:
            there.setattr(sys, "stdout", stdout)
            there.setattr(sys, "platform", system)
            assert cli.main(["models", "--json"]) == status
        raw.closing = True
    assert ("Invalid argument" in capsys.readouterr().err) == bool(status)


OUTPUTS = [
    ["run", "abc", "--target", "a.gguf", *PLAIN, "--max-tokens", "4"],
    ["models"],
    ["models", "--json"],
    ["bench", "--compare", "results.jsonl", "results.jsonl"],
    ["--help"],
    ["--version"],
]


def buffered() -> dict[str, str]:
    """An environment in which output waits to be written, as it usually does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def measured(folder: Path) -> Path:
    """The folder, with something to compare."""
    sides = ["plain", "lookup:auto"]
    answers = [{"side": side, "tokens": [1, 2], "text": "", "finish_reason": "length",
                "ttft_seconds": 1.0, "decode_seconds": 1.0} for side in sides]  # fmt: skip
    trials = [{"kind": "trial", "pair": "p", "prompt": name, "category": "c", "turn": 0,
               "repeat": 0, "prompt_tokens": 1, "ended": "", "answers": answers}
              for name in "ab"]  # fmt: skip
    pair = {"kind": "pair", "pair": "p", "target": {}, "drafters": [], "settings": {},
            "sides": sides}  # fmt: skip
    lines = "".join(json.dumps(line) + "\n" for line in (pair, *trials))
    (folder / "results.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without a full device")
@pytest.mark.parametrize("args", OUTPUTS, ids=" ".join)
def test_an_output_that_is_full(measured: Path, args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *args], stdout=full, stderr=subprocess.PIPE, timeout=120, cwd=measured,
            env=buffered(),
        )  # fmt: skip
    err = done.stderr.decode()
    assert done.returncode == 1
    assert "No space left on device" in err and "Traceback" not in err and "Exception" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
@pytest.mark.parametrize("args", OUTPUTS, ids=" ".join)
def test_an_output_that_nobody_reads(measured: Path, args: list[str]) -> None:
    """As with `| true`: nothing to complain of."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *args], stdout=write, stderr=subprocess.PIPE, timeout=120, cwd=measured,
        env=buffered(),
    )  # fmt: skip
    os.close(write)
    err = done.stderr.decode()
    assert done.returncode == 0
    assert "Traceback" not in err and "BrokenPipe" not in err and "Exception" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_is_cut_short_is_no_success(measured: Path, stream: str) -> None:
    """As with `| grep -q note`, or `2>&1 | head -1`: nothing was compared, and nothing verified."""
    verify = ["verify", "--target", "a.gguf", "--drafters", "lookup", "--threads", "1"]
    args = verify if stream == "stderr" else ["bench", "--compare", *["results.jsonl"] * 2]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *args], timeout=120, cwd=measured, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write},
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 141
    assert not done.stdout and not done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
def test_a_list_that_is_cut_short_was_read_as_far_as_wanted(measured: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "models"], stdout=write, stderr=subprocess.PIPE, timeout=120, cwd=measured,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_an_output_that_is_closed(measured: Path) -> None:
    line = f'"{sys.executable}" -m edgespec.cli pull nobody >&-'
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith(b"edgespec: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("command", ["run", "chat --lines"])
def test_an_input_that_is_closed(folder: Path, command: str) -> None:
    target = folder / "a.gguf"
    line = f'"{sys.executable}" -m edgespec.cli {command} --target "{target}" --no-draft <&-'
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=120)
    assert "Traceback" not in done.stderr.decode()
    assert (done.returncode != 0) == (command == "run")  # no prompt; a chat without a message


def test_a_lookahead_is_a_number_or_auto(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = in_process(capsys, "run", "x", "--lookahead", "many")
    assert code == 2 and "'many' is neither a number nor `auto`" in err


# ------------------------------------------------------------------------------ Ctrl+C


def interrupt_when(what: object, times: int = 1) -> threading.Thread:
    def press() -> None:
        while not what():  # type: ignore[operator]
            time.sleep(0.005)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


posix = pytest.mark.skipif(sys.platform == "win32", reason="sends itself a POSIX signal")


@posix
@pytest.mark.parametrize("during", ["prompt", "answer"])
def test_ctrl_c_stops_the_answer_and_leaves_the_history(
    capsys: pytest.CaptureFixture[str], during: str
) -> None:
    cancel = CancelFlag()
    session = Says("word " * 2000, seconds=0.002, cancel=cancel, context_size=20_000)
    runtime = Runtime(fake_model(session), planner=FixedPlanner((), 0), cancel=cancel)
    chat = runtime.conversation()
    before = signal.getsignal(signal.SIGINT)
    question = "x" * (5000 if during == "prompt" else 1)
    generation = chat.send(question, GREEDY, max_tokens=9000)
    presses = interrupt_when(
        lambda: session.length > 10 if during == "prompt" else len(generation.text) > 5
    )
    assert console.stream(generation) is False
    presses.join(20)
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert generation.result.finish_reason == "cancelled"
    assert out == generation.result.text
    if during == "prompt":
        assert chat.messages == []
    else:
        assert [m.content for m in chat.messages] == [question, out]
    session._seconds = 0.0
    session._begin = None
    assert console.stream(chat.send("y", GREEDY, max_tokens=5)) is True
    assert [m.content for m in chat.messages[-2:]] == ["y", "word "]
    runtime.close()


class Terminal:
    """The chat on a pseudo-terminal."""

    def __init__(self, *args: str | Path) -> None:
        import pty

        self.ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env,
            start_new_session=True,
            # Tests that run in the background ignore SIGINT, and their children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""
        self._text = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end in a letter

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def press_ctrl_c_at_the_prompt(self, pattern: str) -> None:
        """Again where the line editor wasn't waiting yet: Python then tells it at the next key."""
        until = time.monotonic() + 60
        while not re.search(pattern, self.seen):
            assert time.monotonic() < until, self.seen
            self.press_ctrl_c()
            with suppress(AssertionError):
                self.wait_for(f"(?={pattern})", seconds=1)
        self.wait_for(pattern)

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Everything up to the pattern, which is taken off."""
        import select

        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < until, self.seen
            if select.select([self.ours], [], [], 0.2)[0]:
                try:
                    self.seen += self._text.decode(os.read(self.ours, 65536))
                except OSError:
                    pytest.fail(f"the chat ended: {self.seen}")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def leave(self) -> int:
        self.type("/quit\n")
        code = self.process.wait(60)
        os.close(self.ours)
        return code


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_ctrl_c_in_a_terminal(folder: Path) -> None:
    chat = Terminal("chat", "--target", folder / "long.gguf", *PLAIN, "--max-tokens", "8000")
    try:
        chat.wait_for("/help lists")
        chat.wait_for("> ")
        chat.press_ctrl_c_at_the_prompt("/quit leaves")
        for question in ("a", "b c"):  # in an answer
            chat.wait_for("> ")
            chat.type(question + "\n")
            chat.wait_for(re.escape(question) + "\r\n.{5}")
            chat.press_ctrl_c()
            chat.wait_for(r"first token after[^>]*stopped")
        chat.wait_for("> ")
        chat.type("long \\\n")
        for _ in range(3):
            chat.wait_for("… ")
            chat.type("w " * 900 + "\\\n")
        chat.wait_for("… ")
        chat.type("end\n")
        time.sleep(0.3)
        chat.press_ctrl_c()  # in the prompt, most likely
        chat.wait_for("stopped")
        chat.wait_for("> ")
        chat.type("/stats\n")
        chat.wait_for("stopped")
        assert chat.leave() == 0
    finally:
        chat.process.kill()
        chat.process.wait()


@posix
def test_ctrl_c_ends_a_run(folder: Path) -> None:
    def stopped(*extra: str, after: float = 0) -> bytes:
        """Its stdout, stopped as the answer runs, or so long behind the last line before that."""
        args = ["--target", folder / "long.gguf", *PLAIN, "--max-tokens", "8000", *extra]
        process = subprocess.Popen(
            [*COMMAND, "run", "abc", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            if b"note:" in line:
                break
        first = b"" if after else process.stdout.read(1)
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert extra or b"stopped" in err
        return first + out

    assert stopped()
    # What comes before the answer began says nothing on stdout.
    answers = (stopped("--json", after=seconds) for seconds in (0.3, 1, 3))
    assert json.loads(next(filter(None, answers)))["finish_reason"] == "cancelled"


def test_verify_says_whether_a_pair_is_exact(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / "a.gguf")
    options = ["--target", file, "--drafter", file, "--max-tokens", "12"]
    assert cli.main(["verify", *options, "--repeats", "1"]) == 0
    out, err = capsys.readouterr()
    assert "this pair is exact on this machine" in out
    assert "comparing: speculative answers, 3 draft tokens a round..." in err
    assert "a.gguf on CPU" in err and err.count("note: a.gguf brings no chat template") == 1
    assert cli.main(["verify", *options, "--repeats", "0", "--lookahead", "1"]) == 0
    assert "speculative answers, 1 draft token a round..." in capsys.readouterr().err
    assert cli.main(["verify", *options, "--no-draft"]) == 1  # there is no drafter to test


def test_tune_prints_the_sums_and_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["ab ab ab ab"]}\n')
    assert cli.main(["tune", "--target", str(folder / "a.gguf"), "--prompts", str(prompts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.lstrip().startswith("pays from acceptance") for line in lines)
    assert lines[-1].startswith(("Speculation ", "Whether "))
    short = ["tune", "--target", str(folder / "a.gguf"), "--max-tokens", "2"]
    assert cli.main(short) == 1
    assert "tokens show too little of a drafter" in capsys.readouterr().err
    assert shared.read_prompts(str(prompts)) == ["ab ab ab ab"]
    assert len(shared.read_prompts("human-eval")) == 15
    for wrong in ('{"turns": "Why?"}', '{"turns": [null]}'):
        prompts.write_text(wrong)
        with pytest.raises(ConfigError, match="holds no prompts"):
            shared.read_prompts(str(prompts))
    prompts.write_text("[]")
    assert cli.main(["tune", "--target", str(folder / "a.gguf"), "--prompts", str(prompts)]) == 1
    assert "holds no prompts" in capsys.readouterr().err


def test_a_drafter_on_another_device_is_told() -> None:
    target, draft = fake_model(FakeSession(8)), fake_model(FakeSession(8))
    target.details = {"device": "CUDA"}
    for device, says in (("CPU, 2 threads", "model (on CPU, 2 threads)"), ("CUDA", "model, ")):
        draft.details = {"device": device}
        line = shared.introduction(Runtime(target, [ModelDrafter(draft)]))[0]
        assert " on CUDA, drafters: " in line and says in line


def test_a_gpu_is_shown_with_its_name_and_interface() -> None:
    target, draft = fake_model(FakeSession(8)), fake_model(FakeSession(8))
    target.details = draft.details = {"device": "GPU", "gpus": "MTL0: Apple M3"}
    line = shared.introduction(Runtime(target, [ModelDrafter(draft)]))[0]
    assert " on GPU (MTL0: Apple M3), drafters: model, " in line
    draft.details = {"device": "GPU", "gpus": "MTL1: Apple M4"}
    line = shared.introduction(Runtime(target, [ModelDrafter(draft)]))[0]
    assert "model (on GPU (MTL1: Apple M4)), " in line
