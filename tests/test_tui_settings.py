"""Settings in their file, pairs, exports and the clipboard."""

from __future__ import annotations

import base64
import json
import os
import threading
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tiny_gguf import write_tiny

from edgespec.errors import ConfigError, EdgespecError
from edgespec.gguf_parts import part_files
from edgespec.registry import Registry, load_registry
from edgespec.sampling import SamplingParams
from edgespec.tui import clipboard
from edgespec.tui.export import (
    AlreadyThere,
    ExportFailed,
    as_json,
    as_markdown,
    contained,
    export,
    file_name,
)
from edgespec.tui.messages import Choice, Figures, Preferences, Settings, Turn
from edgespec.tui.pairs import PairInfo, check_file, list_pairs, too_big
from edgespec.tui.settings import (
    FIELDS,
    PRESETS,
    SAMPLING,
    as_text,
    checked,
    preset_of,
    sampling,
    told,
    with_preset,
    with_text,
)
from edgespec.tui.settings_file import SettingsFile

# --------------------------------------------------------------------------------------- the values

FULL = Settings(
    temperature=0.3,
    top_k=7,
    top_p=1.0,
    seed=5,
    rule="rejection",
    system='Say "hi"\n[pairs.x]\n# \u2028 \x00 ☃',
    lookahead=3,
    drafters=("lookup", "/a b/c.gguf"),
    context_size=2048,
    threads=2,
    gpu_layers=0,
)


def test_every_setting_has_a_field_and_sampling_takes_its_own() -> None:
    assert {field.key for field in FIELDS} == {field.name for field in fields(Settings)}
    params = sampling(FULL)
    assert params == SamplingParams(temperature=0.3, top_k=7, top_p=1.0, seed=5, rule="rejection")
    known = {field.name for field in fields(SamplingParams)}
    assert set(SAMPLING) == known - {"logit_bias", "banned_tokens", "steps"}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        FULL,
        replace(FULL, drafters=()),
        Settings(temperature=0.12345678, frequency_penalty=1e-7, presence_penalty=1234567.5),
    ],
)
def test_text_of_a_setting_reads_back(settings: Settings) -> None:
    again = Settings()
    for field in FIELDS:
        again = with_text(again, field.key, as_text(settings, field.key))
    assert again == settings


def test_what_a_setting_is_after_a_change_is_told_with_its_value() -> None:
    assert told(Settings(top_k=7), "top_k", "7") == "top_k is 7 now"
    assert told(Settings(), "top-k", "") == "top-k is 40 now, as usual"
    assert told(Settings(), "seed", "") == "seed is as usual now: none"
    with pytest.raises(ConfigError, match=r'no setting "foo": there are .*temperature.*top_k'):
        with_text(Settings(), "foo", "1")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("temperature", "hot", "a number, not 'hot'"),
        ("temperature", "-1", "temperature must be 0 or more"),
        ("temperature", "nan", "temperature"),
        ("temperature", "inf", "temperature"),
        ("top_k", "4.5", "a whole number"),
        ("top_p", "1.5", "between 0 and 1"),
        ("rule", "[red]x", "rejection or reproducible"),
        ("lookahead", "some", "a whole number or auto"),
        ("lookahead", "-1", "0 (plain decoding) or more"),
        ("lookahead", "65", "at most 64"),
        ("max_tokens", "0", "1 or more"),
        ("context_size", "0", "1 or more"),
        ("seed", "-3", "0 or more"),
        ("temprature", "1", "did you mean temperature"),
        ("\x1b]0;x", "1", "no setting"),
        ("system", "\ud800", "whole Unicode"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told(key: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        with_text(Settings(), key, text)
    assert words in str(error.value)
    assert "\x1b" not in str(error.value)


def test_presets() -> None:
    kept = Settings(system="Short.", lookahead=4, drafters=())
    for name in PRESETS:
        changed = with_preset(kept, name)
        assert preset_of(changed) == name
        assert (changed.system, changed.lookahead, changed.drafters) == ("Short.", 4, ())
        checked(changed)
    assert preset_of(Settings(temperature=0.11)) is None
    assert preset_of(Settings()) == "balanced"
    with pytest.raises(ConfigError, match="precise"):
        with_preset(kept, "wild")


# ----------------------------------------------------------------------------------------- the file


def test_settings_are_kept_by_pair(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.toml"
    file = SettingsFile(path)
    assert file.settings("smollm2") == Settings()
    assert file.preferences() == Preferences()
    assert not path.exists(), "reading writes nothing"
    file.save_settings("smollm2", FULL)
    file.save_settings('a "b".c/d.gguf', Settings(temperature=1.5))
    file.save_settings("usual", Settings())
    file.add_file("/models/a.gguf")
    file.add_file("/models/b.gguf")
    file.add_file("/models/a.gguf")
    file.remove_file("/models/b.gguf")
    again = SettingsFile(path)
    assert again.settings("smollm2") == FULL
    assert again.settings('a "b".c/d.gguf') == Settings(temperature=1.5)
    assert again.files() == ("/models/a.gguf",)
    assert "usual" not in path.read_text("utf-8"), "what is as always isn't written"
    assert {entry.name for entry in path.parent.iterdir()} == {"settings.toml"}


def test_preferences_of_two_windows_meet(tmp_path: Path) -> None:
    one, two = SettingsFile(tmp_path / "s.toml"), SettingsFile(tmp_path / "s.toml")
    mine, theirs = one.preferences(), two.preferences()
    one.save_preferences(replace(mine, theme="edgespec-light"))
    two.save_preferences(replace(theirs, panel=True, last_pair="a"))
    one.save_settings("x", Settings(top_k=1))
    two.save_settings("y", Settings(top_k=2))
    expected = Preferences(theme="edgespec-light", panel=True, last_pair="a")
    assert SettingsFile(tmp_path / "s.toml").preferences() == expected
    assert [one.settings(name).top_k for name in "xy"] == [1, 2]


def test_many_windows_at_once_lose_nothing(tmp_path: Path) -> None:
    def save(number: int) -> None:
        file = SettingsFile(tmp_path / "s.toml")
        for step in range(4):
            file.save_settings(f"pair-{number}-{step}", Settings(top_k=number + 1))

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = SettingsFile(tmp_path / "s.toml")
    for number in range(4):
        for step in range(4):
            assert file.settings(f"pair-{number}-{step}").top_k == number + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pairs.x]\ntemprature = 1\n", ["line 2", "[pairs.x]", "did you mean temperature"]),
        ("\n[pairs.x]\ntemperature = -1\n", ["line 3", "0 or more"]),
        ("[pairs.x]\ntemperature = true\n", ["line 2", "a number"]),
        ("[pairs.x]\ntop_k = 1.5\n", ["line 2", "whole number"]),
        ("[pairs.x]\nlookahead = 'some'\n", ["line 2", "auto"]),
        ("[pairs.x]\ndrafters = ['a', 1]\n", ["line 2", "list of texts"]),
        ("[pairs.x]\nrule = 'best'\n", ["line 2", "rejection or reproducible"]),
        ("pairs = 5\n", ["line 1", "table"]),
        ("files = 'a'\n", ["line 1", "list of texts"]),
        ("theme = 5\n", ["line 1", "text in quotes"]),
        ("panel = 'yes'\n", ["line 1", "true or false"]),
        ("colour = 'x'\n", ["line 1", '"colour" is not a known key']),
        ("[pairs.x\n", ["not valid TOML"]),
        ("\x00\xff", ["s.toml"]),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_kept(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode("latin-1"))
    file = SettingsFile(path)
    # Preferences are read ahead of the first picture: what is kept for pairs is checked behind it.
    of_pairs = text.strip().startswith(("[pairs.x]", "pairs =", "files ="))
    if of_pairs:
        assert file.preferences() == Preferences()
    for attempt in (
        lambda: file.settings("x"),
        *([] if of_pairs else [file.preferences]),
        lambda: file.save_settings("x", Settings()),
        lambda: file.save_preferences(Preferences(theme="x")),
    ):
        with pytest.raises(ConfigError) as error:
            attempt()
        assert all(word in str(error.value) for word in ["s.toml", *words]), str(error.value)
    assert path.read_bytes() == text.encode("latin-1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.toml"]


@pytest.mark.skipif(os.name == "nt", reason="there, such a name is one of a file that isn't there")
def test_a_file_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / ("x" * 300))  # more than a file's name may have
    for read in (lambda: file.settings("x"), file.preferences):
        with pytest.raises(ConfigError, match=r"Can't read .*name too long"):
            read()


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('\ufeff# mine\n[pairs.x]\ntemperature = 1 # as int\nsystem = ""\n', "utf-8")
    assert SettingsFile(path).settings("x") == Settings(temperature=1.0)


def test_a_name_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "s.toml")
    file.save_settings("x", FULL)
    before = file.path.read_bytes()
    name = os.fsdecode(b"/models/caf\xe9.gguf") if os.name != "nt" else "/models/\ud800.gguf"
    for save in (lambda: file.save_settings(name, Settings(top_k=1)), lambda: file.add_file(name)):
        with pytest.raises(ConfigError, match=r"/models/.*isn't UTF-8.*rename it") as error:
            save()
        str(error.value).encode()  # so that it can be shown
    file.remove_file(name)
    assert file.path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.toml"]


def test_a_disk_that_does_not_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SettingsFile(tmp_path / "s.toml")
    file.save_settings("x", FULL)
    before = file.path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        file.save_settings("x", Settings())
    assert file.path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.toml"]
    with pytest.raises(ConfigError, match="temperature"):
        file.save_settings("x", Settings(temperature=-1))


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_linked_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "edgespec.toml"
    real.touch(0o640)
    link = tmp_path / "settings.toml"
    link.symlink_to(real)
    SettingsFile(link).save_settings("x", Settings(top_k=3))
    assert link.is_symlink()
    assert "top_k = 3" in real.read_text("utf-8")
    assert real.stat().st_mode & 0o777 == 0o640


def test_settings_of_a_file_are_kept_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SettingsFile(tmp_path / "s.toml")
    one, two = (str(tmp_path / name / "onnx" / "model.onnx") for name in ("one", "two"))
    file.save_settings("model.onnx", Settings(top_k=1))  # as edgespec once did
    assert [file.settings(Choice(target=x).key).top_k for x in (one, two)] == [1, 1]
    file.save_settings(Choice(target=one).key, Settings(top_k=2))
    file.save_settings(Choice(target=two).key, Settings())
    again = SettingsFile(file.path)
    assert again.settings(Choice(target=one).key) == Settings(top_k=2)
    assert again.settings(Choice(target=two).key) == Settings()
    assert again.settings("model.onnx") == Settings(top_k=1)
    Path(one).parent.mkdir(parents=True)
    monkeypatch.chdir(Path(one).parent)
    assert Choice(target="model.onnx").key == Choice(target="../onnx/model.onnx").key == one
    assert Choice("a pair").key == "a pair"


HUB = "hub/models--some--model/snapshots/abc123"


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ("a/b.gguf", "b.gguf"),
        ("SmolLM2", "SmolLM2"),
        ("SmolLM2/onnx", "SmolLM2/onnx"),
        ("SmolLM2/model.onnx", "SmolLM2/model.onnx"),
        ("SmolLM2/onnx/model.onnx", "SmolLM2/onnx/model.onnx"),
        ("SmolLM2/.", "SmolLM2"),
        ("SmolLM2/onnx/..", "SmolLM2"),
        (HUB, "some/model"),
        (f"{HUB}/onnx/model_q4.onnx", "some/model/onnx/model_q4.onnx"),
        (f"{HUB}/a.gguf", "a.gguf"),
    ],
)
def test_a_file_is_called_by_what_tells_it_apart(tmp_path: Path, target: str, label: str) -> None:
    assert Choice(target=f"{tmp_path}/{target}").label == label


# -------------------------------------------------------------------------------------------- pairs


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    extra = tmp_path / "models.toml"
    extra.write_text(
        """
        [models.gone]
        source = { kind = "file", path = "[red]gone.gguf" }
        format = "gguf"
        [pairs.gone]
        target = "gone"
        drafters = ["lookup"]
        description = "A file that went away"
        """,
        "utf-8",
    )
    return load_registry(extra)


def test_pairs(registry: Registry, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * 1000)
    here = {"smollm2-135m", "qwen2.5-7b"}
    found = {
        info.name: info
        for info in list_pairs(
            registry,
            [str(model), str(tmp_path / "lost.gguf")],
            8_000_000_000,
            here=lambda spec: spec.name in here,
        )
    }
    assert [*found][:3] == ["model.gguf", "lost.gguf", "smollm2"]
    assert found["smollm2"].here
    assert found["smollm2"].default
    half = found["qwen2.5-7b"]
    assert not half.here
    assert half.download_bytes == registry.model("qwen2.5-0.5b").size_bytes
    assert half.too_big == too_big(6_200_000_000, 8_000_000_000)
    assert "needs about 6.2 GB" in half.too_big
    assert "8.0 GB" in half.too_big
    assert found["qwen3-4b"].too_big == ""
    assert "[red]gone.gguf" in found["gone"].problem
    assert found["model.gguf"].added
    assert found["model.gguf"].memory_bytes == 400_001_000
    assert found["model.gguf"].choice.target == str(model)
    assert "not there any more" in found["lost.gguf"].problem
    assert all(info.too_big == "" for info in list_pairs(registry, here=lambda spec: False))


def test_a_files_memory_is_that_of_what_is_loaded(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "SmolLM2"
    (folder / "onnx").mkdir(parents=True)
    graph = folder / "onnx" / "model.onnx"
    graph.write_bytes(bytes(100))
    graph.with_name("model.onnx.data").write_bytes(bytes(5000))
    (folder / "model.safetensors").write_bytes(bytes(70_000))  # a checkpoint beside it

    def info(path: Path) -> PairInfo:
        return list_pairs(registry, [str(path)], here=lambda spec: False)[0]

    assert [info(path).memory_bytes for path in (folder, graph)] == [400_005_100] * 2
    graph.unlink()
    assert "no ONNX model" in info(folder).problem and "not there any more" in info(graph).problem
    for name in ("a.onnx", "b.onnx"):
        (folder / name).touch()
    assert "name one of a.onnx, b.onnx" in info(folder).problem


def test_a_model_in_several_files_is_all_of_them(registry: Registry, tmp_path: Path) -> None:
    first = write_tiny(tmp_path / "m-00001-of-00002.gguf", parts=2)
    second = tmp_path / "m-00002-of-00002.gguf"
    (info,) = list_pairs(registry, [str(first)], here=lambda spec: False)[:1]
    sizes = first.stat().st_size, second.stat().st_size
    assert info.memory_bytes - sum(sizes) == 400_000_000
    assert check_file(str(first)) == str(first)
    with pytest.raises(EdgespecError, match="name the first one, m-00001"):
        check_file(str(second))
    second.unlink()
    with pytest.raises(EdgespecError, match=r"m-00002-of-00002\.gguf doesn't exist"):
        check_file(str(first))
    for odd in ("m-00003-of-00002.gguf", "m-00001-of-99999.gguf", "m-1-of-2.gguf"):
        assert part_files(tmp_path / odd) == [tmp_path / odd]


def test_a_file_is_known_by_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "a model.bin"
    write_tiny(model)
    assert check_file(f' "{model}" ') == str(model)
    monkeypatch.chdir(tmp_path)
    assert check_file("a model.bin") == str(model)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    assert check_file("onnx") == str(tmp_path / "onnx")
    (tmp_path / "above" / "hub" / "onnx").mkdir(parents=True)
    (tmp_path / "above" / "hub" / "onnx" / "model.onnx").touch()
    assert check_file("above/hub") == str(tmp_path / "above" / "hub")
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "x.gguf").touch()
    for name, words in [
        ("text.gguf", "text.gguf"),
        ("absent.gguf", "doesn't exist"),
        ("absent.onnx", "no file"),
        ("with", "such as x.gguf"),
        ("above", "no ONNX model"),
        ("  ", "Name a GGUF file"),
        ("a\x00b", "Can't read|can't be read"),
        ("~nobody-of-that-name/x.gguf", "x.gguf"),
    ]:
        with pytest.raises(EdgespecError, match=words):
            check_file(name)


# ------------------------------------------------------------------------------------------ exports

TURNS = (
    Turn("What is `x`?", "It is\n```python\nx = 1\n```\n", "end", "", "smollm2", 1_796_000_000.0,
         Figures(1, tokens=12, tokens_per_second=23.4, gain=1.6, acceptance_rate=0.5)),
    Turn("And [/] \x1b[31m?", "An open fence\n~~~~\n# not a heading", "cancelled", pair="a*b"),
    Turn("More", "", None, "the model file vanished"),
)  # fmt: skip


def test_one_parser_reads_all_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MarkdownIt] = []

    class Noted(MarkdownIt):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("markdown_it.MarkdownIt", Noted)
    as_markdown(TURNS * 3, system="Be short.")
    assert len(made) <= 1


def test_markdown_of_a_conversation() -> None:
    text = as_markdown(TURNS, title="A [title]\nin *two* lines", system="Be <b>short</b>.")
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [inside.content for mark, inside in pairwise(tokens) if mark.type == "heading_open"]
    assert headings == [
        r"A \[title\] in \*two\* lines", "System prompt", "You · 2026-11-30 00:53 UTC", "smollm2",
        "You", r"a\*b", "You", "Answer",
    ]  # fmt: skip
    assert "*12 tokens · 23.4 tok/s (1.6x plain) · 50% of draft tokens accepted*" in text
    assert "\x1b" not in text
    assert "(no answer: the model file vanished)" in text


# What leaves Markdown open: fences in lists and quotes, comments, raw blocks, tags.
PIECES = ["```", "````py", "~~~", "> ```", "- ```\n  x", "1. a", "<!-- x", "<pre>", "<script>",
          "<![CDATA[", "<?php", "<div>", "    code", "# h", "text", "", "`", "$$", "<textarea>",
          "[a]: /b", "***", "| a |", "\\", "&lt;", "-->"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("\n".join) | st.text(max_size=30))
def test_a_message_stays_in_its_section(text: str) -> None:
    document = f"{contained(text)}\n\n## The next one\n"
    tokens = MarkdownIt("commonmark").parse(document)
    assert tokens[-3].type == "heading_open"
    assert tokens[-3].level == 0


def test_a_fence_in_a_fence_stays_as_it_is() -> None:
    nested = "````md\n```py\n1\n```\n````"
    assert contained(nested) == nested
    assert contained("```py\n1") == "```py\n1\n```"
    assert contained("<!-- a ``` b") == "````text\n<!-- a ``` b\n````"


def test_json_of_a_conversation() -> None:
    text = as_json(TURNS, title="☃\u2028\x9b", system="s")
    assert "☃\\u2028\\u009b" in text
    document = json.loads(text)
    assert document["turns"][0]["figures"]["gain"] == 1.6
    assert [turn["question"] for turn in document["turns"]] == [t.question for t in TURNS]


def test_an_export_replaces_nothing_unasked(tmp_path: Path) -> None:
    path = export(tmp_path / "talk", TURNS)
    assert path.name == "talk.md"
    before = path.read_bytes()
    with pytest.raises(AlreadyThere, match=r"talk\.md is there already: write another name"):
        export(tmp_path / "talk", TURNS[:1])
    assert path.read_bytes() == before
    export(tmp_path / "talk.md", TURNS[:1], replace=True)
    assert path.read_bytes() != before
    assert json.loads(export(tmp_path / "t.json", TURNS).read_text("utf-8"))["turns"]
    with pytest.raises(ExportFailed, match=r"\.md or \.json"):
        export(tmp_path / "talk.docx", TURNS)
    with pytest.raises(ExportFailed, match="Can't write"):
        export(path / "below-a-file.md", TURNS)
    assert {entry.name for entry in tmp_path.iterdir()} == {"talk.md", "t.json"}
    export(tmp_path / "s.md", [Turn("\ud800", "\udfff")])


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("What is a monad?", "What-is-a-monad"),
        ("../../etc/passwd", "etc-passwd"),
        ("CON", "conversation-CON"),
        ("", "conversation"),
        ("\x1b[31m日本語", "31m日本語"),
        ("x" * 300, "x" * 60),
    ],
)
def test_file_names(title: str, name: str) -> None:
    assert file_name(title) == name


def test_an_export_onto_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportFailed, match="No space left"):
        export(tmp_path / "talk.md", TURNS)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------- clipboard


def copied(text: str, folder: Path, **environment: str) -> tuple[str, str]:
    """What was sent to the terminal, and what was said."""
    sent: list[str] = []
    said = clipboard.copy(text, sent.append, {"TERM": "xterm", **environment}, folder=folder)()
    return "".join(sent), said


def test_copying_through_the_terminal(tmp_path: Path) -> None:
    sent, said = copied("héllo\r\n\x1b]0;x\x07\ud800", tmp_path)
    body = base64.b64decode(sent.removeprefix("\x1b]52;c;").removesuffix("\x07")).decode()
    assert body == "héllo\n␛]0;x␇?"
    assert (tmp_path / "copied.txt").read_text("utf-8") == body
    assert str(tmp_path / "copied.txt") in said
    if os.name != "nt":
        assert (tmp_path / "copied.txt").stat().st_mode & 0o077 == 0


def test_copying_through_tmux(tmp_path: Path) -> None:
    sent, _ = copied("x", tmp_path, TMUX="/tmp/tmux-0/default,1,0")
    assert sent == "\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\\x1b]52;c;eA==\x07"


@pytest.mark.parametrize(
    ("text", "environment", "why"),
    [
        ("x" * 74_995, {}, "too long"),
        ("é" * 40_000, {}, "too long"),
        ("x", {"TERM": "dumb"}, "no way"),
        ("x", {"TERM_PROGRAM": "Apple_Terminal"}, "no way"),
        ("x", {"STY": "1.pts"}, "no way"),
    ],
)
def test_copying_to_a_file_alone(
    tmp_path: Path, text: str, environment: dict[str, str], why: str
) -> None:
    sent, said = copied(text, tmp_path, **environment)
    assert sent == ""
    assert why in said
    assert (tmp_path / "copied.txt").read_text("utf-8") == text


def test_copying_where_no_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    sent, said = copied("x", tmp_path / "x")
    assert sent
    assert "if it takes them" in said
    sent, said = copied("x" * 80_000, tmp_path / "x")
    assert sent == ""
    assert said.startswith("Nothing was copied")
