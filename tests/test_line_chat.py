"""The line chat: the settings it starts with, its commands, and what it writes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tui_fakes import Clock, FakeRuntime, Script

from edgespec import Runtime, cli, console
from edgespec.errors import ModelError
from edgespec.generation import Chunk
from edgespec.metrics import Counters
from edgespec.tui.messages import Preferences, Settings
from edgespec.tui.settings_file import SettingsFile


class Opened(FakeRuntime):
    """A runtime from a script, as `Runtime.open` gives one."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Said:
    """What came of a chat."""

    def __init__(
        self, runtime: Opened, options: dict[str, Any], code: int, out: str, err: str
    ) -> None:
        self.runtime, self.options, self.code = runtime, options, code
        self.out, self.err = out, err
        self.asked = [[message.content for message in asked] for asked in runtime.asked]


Chat = Callable[..., Said]


@pytest.fixture
def chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Chat:
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def run(text: str, *args: str, script: Script | None = None) -> Said:
        runtime, options = Opened(script or Script(answers=["An answer."]), Clock()), {}

        def opener(pair: str | None = None, **given: Any) -> Opened:
            options.update(given, pair=pair)
            return runtime

        monkeypatch.setattr(Runtime, "open", opener)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = cli.main(["chat", *args])
        return Said(runtime, options, code, *capsys.readouterr())

    return run


def test_saved_settings_hold_and_the_command_line_comes_first(chat: Chat, tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "config" / "settings.toml")
    saved = Settings(system="Be short.", temperature=0.25, top_k=3, max_tokens=9, context_size=512,
                     drafters=("lookup",), lookahead=2, threads=1)  # fmt: skip
    file.save_settings("a.gguf", saved)
    said = chat("hi\n", "--target", "/x/a.gguf", "--top-k", "7", "--no-draft")
    assert said.asked == [["Be short.", "hi"]]
    (options,) = said.runtime.options
    assert (options["max_tokens"], options["sampling"].temperature) == (9, 0.25)
    assert options["sampling"].top_k == 7
    opened = {key: said.options[key] for key in ("context_size", "lookahead", "threads", "target")}
    assert opened == {"context_size": 512, "lookahead": 2, "threads": 1, "target": "/x/a.gguf"}
    assert said.options["drafters"] == []
    assert "the settings saved for a.gguf are used" in said.err
    other = chat("hi\n", "--target", "/x/b.gguf", "--system", "Sing.")
    assert other.asked == [["Sing.", "hi"]] and "saved" not in other.err


@pytest.mark.parametrize(
    ("layers", "device", "used"), [(20, "cpu", None), (0, "cuda", None), (20, "cuda", 20)]
)
def test_saved_layers_give_way_to_a_device_that_is_named(
    chat: Chat, tmp_path: Path, layers: int, device: str, used: int | None
) -> None:
    file = SettingsFile(tmp_path / "config" / "settings.toml")
    file.save_settings("a.gguf", Settings(gpu_layers=layers))
    said = chat("hi\n", "--target", "/x/a.gguf", "--device", device)
    assert (said.options["gpu_layers"], said.options["device"]) == (used, device)
    both = chat("hi\n", "--target", "/x/a.gguf", "--device", device, "--gpu-layers", "7")
    assert both.options["gpu_layers"] == 7  # which then is told


def test_the_pair_that_was_chosen_last_is_loaded_unless_one_is_named(
    chat: Chat, tmp_path: Path
) -> None:
    assert chat("").options["pair"] == "smollm2"
    file = SettingsFile(tmp_path / "config" / "settings.toml")
    file.save_preferences(Preferences(last_pair="qwen3-4b"))
    assert chat("").options["pair"] == "qwen3-4b"
    assert chat("", "smollm2").options["pair"] == "smollm2"
    assert chat("", "--target", "x.gguf").options["pair"] is None


def test_a_pair_that_was_named_is_the_last_one(chat: Chat, tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "config" / "settings.toml")
    chat("")
    assert not file.path.exists()  # the default one may be another tomorrow
    chat("", "qwen3-4b")
    chat("", "--target", "x.gguf")
    assert file.preferences().last_pair == "qwen3-4b"
    assert chat("").options["pair"] == "qwen3-4b"


def test_the_system_prompt_is_shown_by_the_bare_command(chat: Chat) -> None:
    said = chat("/system\n/system Sing.\nhi\n/system\nmore\n/set system\nlast\n")
    assert "There is no system prompt" in said.err and "The system prompt: Sing." in said.err
    assert said.asked == [["Sing.", "hi"], ["Sing.", "more"], ["last"]]


def test_a_second_ctrl_c_keeps_the_turn(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed_twice(generation: Any, **_: Any) -> bool:
        for _chunk in generation:
            generation.cancel()
        raise KeyboardInterrupt

    monkeypatch.setattr("edgespec.console.stream", pressed_twice)
    said = chat("Why?\n/export a.json\n", script=Script(answers=["One two three."]))
    assert "stopped" in said.err
    (turn,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["turns"]
    assert (turn["question"], turn["reason"]) == ("Why?", "cancelled") and turn["answer"]


@pytest.mark.parametrize("rounds", [0, 2])
def test_what_came_before_a_failure_is_kept(chat: Chat, tmp_path: Path, rounds: int) -> None:
    script = Script(answers=["One two three."], lengths=(1,))
    script.breaks = (rounds, ModelError("the pass failed"))
    said = chat("Why?\n/export a.json\nmore\n", script=script)
    assert said.err.count("edgespec: the pass failed\n") == 2
    assert said.code == 1, "a script has to know that its questions weren't answered"
    if not rounds:  # as where it couldn't even begin
        assert said.out == "" and said.asked[1] == ["more"]
        assert "nothing to export" in said.err
        return
    assert said.out == "One two\n" * 2  # its line is ended
    assert said.asked[1] == ["Why?", "One two", "more"]
    (turn,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["turns"]
    assert (turn["question"], turn["answer"], turn["error"]) == (
        "Why?", "One two", "the pass failed",
    )  # fmt: skip


def test_a_damaged_settings_file_is_told(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text("pairs = 5\n", "utf-8")
    said = chat("hi\n")
    assert said.code == 1 and "line 1" in said.err and not said.asked


@pytest.mark.parametrize(("lines", "code"), [("hi\n/quit\n", 0), ("/set none 1\n/quit\n", 1)])
def test_the_status_tells_whether_all_went_well(chat: Chat, lines: str, code: int) -> None:
    assert chat(lines).code == code


def test_a_space_before_a_slash_makes_a_message(chat: Chat) -> None:
    said = chat("/etc is what?\n /etc is what?\n /quit\n/usr/bin\n  indented\n")
    assert [asked[-1] for asked in said.asked] == [
        "/etc is what?", "/quit", "/usr/bin", "  indented",
    ]  # fmt: skip
    assert said.err.count("There is no /etc here") == 1
    assert "a space before it" in said.err


def test_settings_are_changed_and_listed(chat: Chat) -> None:
    said = chat(
        "one\n/set temperature 0.5\ntwo\n/set top-k=3\nthree\n/set system = a=b\nfour\n"
        "/set temprature 1\n/set seed -1\n/set context_size 512\n/set\nfive\n"
    )
    temperatures = [options["sampling"].temperature for options in said.runtime.options]
    assert temperatures == [0.7, 0.5, 0.5, 0.5, 0.5]
    assert said.runtime.options[2]["sampling"].top_k == 3
    assert said.asked[2:] == [["three"], ["a=b", "four"], ["a=b", "five"]]
    for words in ("did you mean temperature", "0 or more", "counts when a model is loaded"):
        assert words in said.err
    assert "temperature = 0.5\n" in said.err and "context_size = \n" in said.err
    assert "/set NAME VALUE" in chat("/help\n").err


def test_a_conversation_is_written_to_a_file(chat: Chat, tmp_path: Path) -> None:
    said = chat(
        "/export\nWhy is it?\n/export\n/export json\n/export mine.json\n/export mine.json\n"
        "/export x.doc\n/clear\nnew\n/export new.json\n",
        "--target", "/x/a.gguf", "--system", "Sing.",
        script=Script(answers=["Because.", ModelError("no"), "Yes."]),
    )  # fmt: skip
    assert "nothing to export" in said.err and f"Written to {tmp_path / 'mine.json'}" in said.err
    assert "is there already" in said.err and ".md or .json" in said.err
    assert "Because." in (tmp_path / "Why-is-it.md").read_text("utf-8")
    assert (tmp_path / "Why-is-it.json").read_bytes() == (tmp_path / "mine.json").read_bytes()
    kept = json.loads((tmp_path / "mine.json").read_text("utf-8"))
    assert kept["system"] == "Sing."
    (turn,) = kept["turns"]
    assert (turn["question"], turn["answer"], turn["pair"]) == ("Why is it?", "Because.", "a.gguf")
    assert turn["figures"]["tokens"] == 1 and turn["asked_at"]
    assert "edgespec: no" in said.err
    assert not (tmp_path / "new.json").exists(), "what failed is no turn"


@pytest.mark.parametrize("form", ["json", "md"])
def test_the_named_form_is_written_whatever_the_name(chat: Chat, tmp_path: Path, form: str) -> None:
    said = chat(
        f"Why?\n/export {form} mine\n/export {form} mine.{form}\n/export md a.json\n"
        "/export json b.md\n/export plain\n",
        "--target", "/x/a.gguf",
    )  # fmt: skip
    text = (tmp_path / f"mine.{form}").read_text("utf-8")
    assert text.startswith("{" if form == "json" else "# Why?")
    assert "is there already" in said.err
    assert "a.json is no name for .md" in said.err and "b.md is no name for .json" in said.err
    assert (tmp_path / "plain.md").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of our own needs pty")
@pytest.mark.parametrize("piped", [False, True])
def test_the_line_editor_knows_the_prompt(piped: bool) -> None:
    """Or a recalled line is drawn over it. Where stdout is a file, the prompt isn't in it."""
    import pty

    script = (
        "import builtins; from edgespec import console\n"
        "given = []; read = builtins.input\n"
        "builtins.input = lambda *prompt: (given.append(prompt), read(*prompt))[1]\n"
        "try: import readline\n"
        "except ImportError: pass\n"
        "print(repr(console._read(True)), given)\n"
    )
    end, other = pty.openpty()
    out = subprocess.PIPE if piped else other
    reader = subprocess.Popen(
        [sys.executable, "-c", script], stdin=other, stdout=out, stderr=other,
        env=os.environ | {"PYTHONIOENCODING": "utf-8", "TERM": "dumb"},
    )  # fmt: skip
    os.write(end, b"one\\\ntwo\n")
    written = reader.communicate(timeout=30)[0] if piped else b""
    os.close(other)
    shown = b""
    with suppress(OSError):  # at its end, on Linux
        while more := os.read(end, 1 << 16):
            shown += more
    os.close(end)
    assert reader.wait(30) == 0
    if piped:
        assert written.decode() == "'one\\ntwo' [(), ()]\n" and b"> " in shown
    else:
        assert "'one\\ntwo' [('> ',), ('… ',)]" in shown.decode()


@pytest.mark.parametrize(
    ("typed", "read"),
    [("\x04\n", None), (" \x1a\n", None), ("one\\\n\x04\n", "one"), ("a\x04b\n", "a\x04b")],
)
def test_an_end_that_a_console_takes_for_text_is_an_end(
    typed: str, read: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed + "more\n"))
    assert console._read(interactive=True) == read
    assert console._read(interactive=True) == "more"
    monkeypatch.setattr("sys.stdin", io.StringIO("\x04\n"))
    assert console._read(interactive=False) == "\x04"  # from a file it is what was written


@pytest.mark.parametrize("terminal", [False, True])
def test_piped_text_is_utf8_on_windows_too(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(3)]
    for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr(f"sys.{name}", stream)
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    monkeypatch.undo()
    expected = ("cp1252" if terminal else "utf-8", "replace")
    assert {(stream.encoding, stream.errors) for stream in streams} == {expected}


@pytest.mark.parametrize(
    ("prompt", "noted"),
    [(["hi", "smollm2"], True), (["smollm2"], False), (["hi", "small"], False)],
)
def test_a_pairs_name_behind_a_prompt_is_told_to_be_a_part_of_it(
    prompt: list[str],
    noted: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Runtime, "open", lambda *_, **__: Opened(Script(), Clock()))
    assert cli.main(["run", *prompt]) == 0
    note = "note: smollm2 is read as a part of the prompt; --pair smollm2 chooses that pair\n"
    assert (note in capsys.readouterr().err) == noted


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_shows_how_far_a_long_prompt_is_read(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", err)
    told, looks = "\rreading the prompt: 600 of 2,000 tokens", threading.Event()

    class Slow:
        counters = Counters(prompt_tokens=2000)

        @property
        def prompt_read(self) -> int:
            if looks.is_set() or not terminal:  # the second look comes behind the first's line
                shown.set()
            looks.set()
            return 600

        def cancel(self) -> None: ...

        def __iter__(self) -> Iterator[Chunk]:
            assert shown.wait(20)
            yield Chunk("Hi", (1,), ("plain",))

    shown = threading.Event()
    slow: Any = Slow()
    assert console.stream(slow)
    wiped = told + "\r" + " " * (len(told) - 1) + "\r"
    assert err.getvalue() == (wiped if terminal else "")
    assert capsys.readouterr().out == "Hi"


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_came_before_a_failed_run_is_not_lost(
    rounds: int,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = Script(answers=["One two three."], lengths=(1,))
    script.breaks = (rounds, ModelError("the pass failed"))
    monkeypatch.setattr(Runtime, "open", lambda *_, **__: Opened(script, Clock()))
    assert cli.main(["run", "Why?", *options]) == 1
    out, err = capsys.readouterr()
    assert err.endswith("edgespec: the pass failed\n")
    came = "One two" if rounds else ""
    if options:
        assert json.loads(out) == {"text": came, "error": "the pass failed"}
    else:
        assert out == (f"{came}\n" if came else "")
