"""How the chat is chosen, what it starts with, and what a runtime gives it."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
from fakes import ByteTokenizer, FakeSession, fake_model

from edgespec.chat import Message
from edgespec.errors import ConfigError
from edgespec.logprobs import LogprobsRequest
from edgespec.runtime import Runtime
from edgespec.sampling import GREEDY
from edgespec.terminal import line_chat_reason
from edgespec.tui.driver import Drawing, on_stdout

# ------------------------------------------------------------------- whole screen, or line by line


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Latin(Terminal):
    encoding = "iso-8859-1"


HERE = {"TERM": "xterm-256color", "LANG": "en_GB.UTF-8"}


@pytest.mark.parametrize(
    ("environment", "streams", "word"),
    [
        (HERE, (Terminal(), Terminal()), ""),
        (HERE | {"NO_COLOR": "1"}, (Terminal(), Terminal()), ""),
        ({"TERM": "xterm"}, (Terminal(), Terminal()), ""),
        (HERE | {"TERM": "dumb"}, (Terminal(), Terminal()), "TERM"),
        ({"LANG": "C.UTF-8"}, (Terminal(), Terminal()), "TERM"),
        (HERE | {"LANG": "C"}, (Terminal(), Terminal()), "UTF-8"),
        (HERE | {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, (Terminal(), Terminal()), "UTF-8"),
        (HERE | {"LC_ALL": "POSIX"}, (Terminal(), Terminal()), "UTF-8"),
        (HERE, (Terminal(), Latin()), "UTF-8"),
        (HERE, (io.StringIO(), Terminal()), "no terminal"),
        (HERE, (Terminal(), None), "no terminal"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there, TERM is usually not set")
def test_where_the_chat_is_line_by_line(
    environment: dict[str, str], streams: tuple[Terminal, Terminal], word: str
) -> None:
    reason = line_chat_reason(environment, streams)
    assert word in reason and bool(reason) == bool(word)


EARLY = """
    cli commands commands.chat commands.shared errors options platform terminal tomlfile tui tui.app
    tui.bridge tui.charts tui.claim tui.commands tui.conversing tui.document tui.doing tui.driver
    tui.files tui.history tui.items tui.leaving tui.lines tui.markdown tui.messages tui.palette
    tui.panel tui.saving
    tui.settings tui.settings_file tui.showing tui.shown tui.talk tui.themes tui.ticking tui.widgets
    tui.widgets.board tui.widgets.composer tui.widgets.fields tui.widgets.scrolled
    tui.widgets.search tui.widgets.suggestions tui.widgets.transcript units
"""
"""What the chat may import of edgespec before its first picture: each module more makes all starts
slower, so what a later step alone needs is imported there.
"""

HEAVY = "huggingface_hub jinja2 llama_cpp markdown_it numpy onnxruntime pygments tokenizers"

FIRST_PICTURE = """
import json, sys
import edgespec.terminal
from edgespec.cli import main
from edgespec.tui.app import ChatApp

async def start(app):
    found.extend(sys.modules)
    app.exit()

found, run = [], ChatApp.run
edgespec.terminal.line_chat_reason = lambda environment: ""
ChatApp._start = start
ChatApp.run = lambda app: run(app, headless=True)
assert main(["chat", "--target", "x.gguf"]) == 0
print(json.dumps(found))
"""


def test_nothing_that_can_wait_is_imported_before_the_first_picture(tmp_path: Path) -> None:
    saved = 'panel = true\n[pairs."x.gguf"]\ntemperature = 0.5\n'
    (tmp_path / "settings.toml").write_text(saved, encoding="utf-8")
    env = os.environ | {"EDGESPEC_CONFIG": str(tmp_path), "EDGESPEC_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PICTURE], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = set(json.loads(done.stdout.splitlines()[-1]))
    assert "textual" in found and not set(HEAVY.split()) & found
    own = {name.removeprefix("edgespec.") for name in found if name.startswith("edgespec.")}
    assert own <= set(EARLY.split())


AHEAD = """
import sys
from tui_fakes import drive, stage, until

later = {"markdown_it.tree", "edgespec.tui.highlighting", "edgespec.tui.screens.pairs"}

async def body(pilot, s):
    assert not later & sys.modules.keys()
    s.reading.set()
    await until(lambda: later <= sys.modules.keys(), pilot, "imported")
    assert s.app.loaded is None

drive(stage(unread=True, loading=True), body)
"""


def test_what_the_first_message_needs_is_imported_while_the_pair_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AHEAD], capture_output=True, text=True, timeout=60,
        cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


Leave = Callable[["subprocess.Popen[bytes]", int], None]
"""Is given the chat and the terminal's end that sees it."""


class Watched:
    """A chat in a terminal of its own, which is left once it has drawn that no model is there."""

    def __init__(self, folder: Path, leave: Leave, **streams: Any) -> None:
        import pty
        import select

        end, other = pty.openpty()
        environment = os.environ | HERE | {
            "EDGESPEC_DATA": str(folder), "EDGESPEC_CONFIG": str(folder),
        }  # fmt: skip
        chat = subprocess.Popen(
            [sys.executable, "-m", "edgespec.cli", "chat", "--target", str(folder / "gone.gguf")],
            env=environment, **{"stdin": other, "stdout": other, "stderr": other} | streams,
        )  # fmt: skip
        os.close(other)
        self.drawn, asked = b"", False
        while select.select([end], [], [], 60)[0]:
            try:
                data = os.read(end, 1 << 16)
            except OSError:  # nobody has the terminal open any more
                data = b""
            if not data:
                break
            self.drawn += data
            if not asked and b"gone.gguf" in self.drawn and b"not loaded" in self.drawn:
                asked = True
                leave(chat, end)
        else:
            chat.kill()  # it draws nothing, and would never end
        os.close(end)
        self.status = chat.wait(20)
        assert asked


def ctrl_q(_: subprocess.Popen[bytes], end: int) -> None:
    os.write(end, b"\x11")


needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@needs_terminal
@pytest.mark.parametrize("how", ["key", "signal"])
def test_the_terminal_is_as_it_was_after_leaving(how: str, tmp_path: Path) -> None:
    def signalled(chat: subprocess.Popen[bytes], _: int) -> None:
        chat.send_signal(signal.SIGTERM)

    seen = Watched(tmp_path, ctrl_q if how == "key" else signalled)
    drawn = seen.drawn
    assert seen.status == 0
    assert drawn.rindex(b"\x1b[?1049l") > drawn.rindex(b"\x1b[?1049h")  # the other screen is back
    assert b"Traceback" not in drawn


@needs_terminal
@pytest.mark.parametrize("full", [False, True])
def test_the_screen_is_drawn_on_stdout_wherever_stderr_leads(full: bool, tmp_path: Path) -> None:
    path = Path("/dev/full") if full else tmp_path / "log"
    if full and not path.exists():
        pytest.skip("needs /dev/full")
    with path.open("wb") as log:
        seen = Watched(tmp_path, ctrl_q, stderr=log)
    assert seen.status == 0 and b"\x1b[?1049l" in seen.drawn
    if not full:
        assert path.read_bytes() == b""


@needs_terminal
def test_a_byte_that_is_not_utf8_is_one_wrong_letter(tmp_path: Path) -> None:
    def mistyped(_: subprocess.Popen[bytes], end: int) -> None:
        os.write(end, b"gr\xfcn\x1b[200~a\xe9b\x1b[201~\x11")

    seen = Watched(tmp_path, mistyped)
    assert seen.status == 0 and b"Traceback" not in seen.drawn


@needs_terminal
def test_drawing_goes_on_when_the_terminal_is_gone() -> None:
    """Else its thread would end, and the screen wait for it once its queue is full."""
    import pty

    from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

    end, other = pty.openpty()
    with os.fdopen(other, "w", encoding="utf-8") as terminal:
        thread = WriterThread(cast(TextIO, Drawing(terminal)))
        thread.start()
        os.close(end)

        def draw() -> None:
            for _ in range(3 * MAX_QUEUED_WRITES):
                thread.write("x")
            thread.stop()

        drawing = threading.Thread(target=draw, daemon=True)
        drawing.start()
        drawing.join(20)
        assert not drawing.is_alive()


@needs_terminal
def test_the_driver_is_textuals_own_but_for_stdout() -> None:
    from textual.drivers import linux_driver
    from textual.drivers.headless_driver import HeadlessDriver

    assert issubclass(on_stdout(linux_driver.LinuxDriver), linux_driver.LinuxDriver)
    assert on_stdout(HeadlessDriver) is HeadlessDriver
    # what is put in its place there
    assert "getincrementaldecoder(" in inspect.getsource(linux_driver.LinuxDriver.run_input_thread)


def test_an_option_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgespec.cli", "chat", "--temperature", "-1", "--target", "x.gguf"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | {"EDGESPEC_CONFIG": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr


# ------------------------------------------------------------------------- what a runtime gives it


def runtime(context_size: int = 4096) -> Runtime:
    session = FakeSession(260, order=3, context_size=context_size, bias={257: -50, 259: -50})
    return Runtime(fake_model(session, ByteTokenizer()))


def test_an_answer_goes_on_as_if_it_had_not_ended() -> None:
    with runtime() as whole, runtime() as parts:
        reference = whole.conversation().send("hi", GREEDY, max_tokens=30).result
        chat = parts.conversation()
        first = chat.send("hi", GREEDY, max_tokens=10).result
        more = chat.extend(GREEDY, max_tokens=20)
        assert more.result.text and [m.role for m in chat.messages] == ["user", "assistant"]
        assert chat.messages[-1].content == first.text + more.result.text
        assert chat.messages[-1].tokens == reference.tokens


@pytest.mark.parametrize("changed", [False, True])
def test_an_answer_with_control_tokens_goes_on_from_its_ids(changed: bool) -> None:
    """As words they would be other tokens, and others than those that the model said."""
    begin, more = [72, 258, 105], [33]
    with runtime() as opened:
        tokenizer: Any = opened.target.tokenizer
        shown = tokenizer.token_bytes
        tokenizer.token_bytes = lambda token: b"<|say|>" if token == 258 else shown(token)
        chat = opened.conversation()
        text = "H<|say|>i" + "?" * changed
        chat.messages = [Message("user", "a"), Message("assistant", text, tuple(begin))]
        asked = opened.encode_messages(chat.messages[:1])
        told: list[list[int]] = []
        generate = opened.generate
        opened.generate = lambda prompt, *a, **k: told.append(prompt) or generate(prompt, *a, **k)
        chat.extend(GREEDY, max_tokens=len(more))
        assert told == [[*asked, *(tokenizer.encode(text) if changed else begin)]]


def test_ids_of_another_vocabulary_are_not_gone_on_with() -> None:
    with runtime() as opened:
        chat = opened.conversation()
        chat.messages = [Message("user", "a"), Message("assistant", "H", (72, 300, -1))]
        assert chat.extend(GREEDY, max_tokens=3).result.tokens


def test_there_must_be_an_answer_to_go_on_with() -> None:
    with runtime() as opened, pytest.raises(ConfigError):
        opened.conversation().extend()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 40, 400])
def test_what_does_not_fit_is_left_out_and_little_else(turns: int) -> None:
    with runtime(512) as opened:
        chat = opened.conversation("sys")
        for number in range(turns):
            chat.messages += [Message("user", f"q{number}"), Message("assistant", "a" * 20)]
        prompt, notes = chat._fit([*chat.messages, Message("user", "now")], 100)
        room = 512 - 100
        head, question = [Message("system", "sys")], [Message("user", "now")]
        sizes = [
            len(opened.encode_messages([*head, *chat.messages[2 * dropped :], *question]))
            for dropped in range(turns + 1)
        ]
        fitting = next((n for n, size in enumerate(sizes) if size <= room), turns)
        dropped = sizes.index(len(prompt))
        assert fitting <= dropped and 2 * (turns - dropped) >= turns - fitting
        assert bool(dropped) == (fitting > 0)
        assert (f"the oldest {2 * dropped} messages" in "".join(notes)) == (dropped > 0)


def test_a_full_contexts_prompt_goes_on_from_the_one_before() -> None:
    """Were one more turn left out each time, each question would have all of it read again."""
    with runtime(1024) as opened:
        chat = opened.conversation("sys")
        before: list[int] = []
        anew = 0
        for number in range(100):
            prompt, notes = chat._fit([*chat.messages, Message("user", f"q{number:03}")], 100)
            anew += prompt[: len(before)] != before
            chat.messages += [Message("user", f"q{number:03}"), Message("assistant", "a" * 20)]
            before = prompt
        assert notes and 0 < anew <= 25


def test_chunks_bring_their_log_probabilities() -> None:
    with runtime() as opened:
        chat = opened.conversation()
        generation = chat.send("hi", GREEDY, max_tokens=12, logprobs=LogprobsRequest())
        chunks = list(generation)
        assert all(len(chunk.logprobs) == len(chunk.tokens) for chunk in chunks)
        together = tuple(entry for chunk in chunks for entry in chunk.logprobs)
        assert together == generation.result.logprobs
        plain = list(chat.send("again", GREEDY, max_tokens=3))
        assert all(chunk.logprobs == () for chunk in plain)


# ---------------------------------------------------------------------------------------- layers


def test_the_bridge_alone_knows_the_runtime() -> None:
    """Apart from types: what is imported for checking alone doesn't count."""
    import ast

    folder = Path(__file__).parents[1] / "tui"
    users = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if {"edgespec.runtime", "edgespec.generation", "edgespec.Runtime"} & set(names):
                users.add(path.name)
    assert users == {"bridge.py"}


def test_widgets_know_neither_app_nor_bridge() -> None:
    folder = Path(__file__).parents[1] / "tui"
    for path in [*folder.glob("widgets/*.py"), folder / "messages.py"]:
        text = path.read_text(encoding="utf-8")
        assert "edgespec.tui.app" not in text and "edgespec.tui.bridge" not in text, path
