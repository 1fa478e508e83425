"""Imports point one way, third parties have one importer each, and starting up stays light."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A module may import from the rows above its own, and from its own row. Packages count as one.
ORDER = [
    "errors options units not_gguf",
    "registry tomlfile metrics session tokenizer platform terminal gguf gguf_parts categorical "
    "narrow",
    "fetch chat text noise penalties native_use",
    "sampling",
    "verify logprobs confidence exactness experience",
    "backends drafters costs",
    "planner worth parking timing",
    "drawing",
    "adaptive decode tune trial",
    "cost_store",
    "generation",
    "opening",
    "runtime conversation figures",
    "divergence bench exporters tui.messages tui.files tui.claim",
    "tui.settings tui.meter tui.records",
    "tui.export tui.settings_file",
    "console",
    "tui",
    "commands",
    "cli",
]
RANK = {name: rank for rank, row in enumerate(ORDER) for name in row.split()}
ONLY_IN = {
    "llama_cpp": {"backends.llama_lib"},
    "huggingface_hub": {"fetch.hub"},
    "onnxruntime": {
        *("backends.ort", "backends.ort_load", "backends.ort_memory", "backends.ort_notes"),
        "backends.ort_providers",
        *("exporters.onnx_run", "exporters.onnx_draft_run"),
    },
    "tokenizers": {
        *("backends.onnx_tokenizer", "exporters.onnx_text"),
        *("exporters.gguf_tokenizer", "exporters.gguf_probe"),
    },
    "jinja2": {"chat.template", "chat.guard", "chat.bounded"},
    "torch": {
        *("exporters.gguf_reference", "exporters.onnx_reference", "exporters.onnx_weights"),
        *("exporters.onnx_blocks", "exporters.onnx_portable"),
    },
    "transformers": {
        *("exporters.gguf_reference", "exporters.onnx_reference", "exporters.onnx_text"),
    },
}


FOLDERS = {ROOT / "edgespec": (), ROOT / "exporters": ("exporters",), ROOT / "tui": ("tui",)}
"""Where modules lie, and under what they install in the package."""


def name_of(path: Path, folder: Path) -> str:
    parts = (*FOLDERS[folder], *path.relative_to(folder).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path, folder): path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found: set[str] = set()
    inside = path.relative_to(ROOT).parent.parts
    inside = inside if inside[0] == "edgespec" else ("edgespec", *inside)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(inside[: len(inside) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


NAMES = {
    "llama_cpp": "llama-cpp-python", "markdown_it": "markdown-it-py", "optimum": "optimum-onnx",
}  # fmt: skip
"""Packages that aren't called like what they are imported as."""


def asked(requirements: Iterable[str]) -> set[str]:
    """The packages that requirements name."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def own(path: Path) -> set[str]:
    names = {name.removeprefix("edgespec.") for name in imports(path) if "edgespec." in name}
    return names & MODULES.keys()


def unit(name: str) -> str:
    return name if name in RANK else name.split(".")[0]


def test_every_module_has_its_place() -> None:
    assert {unit(name) for name in MODULES} - {""} == RANK.keys()


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {""}))
def test_imports_point_one_way(name: str) -> None:
    above = {used for used in own(MODULES[name]) if RANK[unit(used)] > RANK[unit(name)]}
    assert not above, f"{name} imports {above}"


@pytest.mark.parametrize("name", sorted(name for name in RANK if name.startswith("tui.")))
def test_the_line_chats_half_of_the_tui_draws_nothing(name: str) -> None:
    assert not {used.split(".")[0] for used in imports(MODULES[name])} & {"textual", "rich"}


def test_each_module_or_its_package_states_its_invariant() -> None:
    def states(path: Path) -> bool:
        return "Invariant" in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")

    modules = [path for path in MODULES.values() if path.name != "__init__.py"]
    assert not [p for p in modules if not (states(p) or states(p.with_name("__init__.py")))]


def test_nothing_goes_round() -> None:
    """Within a row too: what is imported when a module is loaded forms no circle."""

    def top_level(path: Path) -> set[str]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edgespec"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
                names.add(node.module or "")
        return {n.removeprefix("edgespec.") for n in names} & MODULES.keys() - {""}

    graph = {name: top_level(path) - {name} for name, path in MODULES.items()}
    while graph:
        free = {name for name, used in graph.items() if not used & graph.keys()}
        assert free, f"a circle among {sorted(graph)}"
        graph = {name: used for name, used in graph.items() if name not in free}


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_third_party_has_one_importer(library: str) -> None:
    users = {
        name
        for name, path in MODULES.items()
        if any(used.split(".")[0] == library for used in imports(path))
    }
    assert users <= ONLY_IN[library]


def test_what_is_imported_is_asked_for() -> None:
    """Not left to what another package happens to bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    always = asked(project["dependencies"])
    extras = asked(one for group in project["optional-dependencies"].values() for one in group)
    for name, path in MODULES.items():
        used = {one.split(".")[0] for one in imports(path)} - {"edgespec", *sys.stdlib_module_names}
        there = always if name.split(".")[0] == "tui" else always | extras
        assert {NAMES.get(one, one.replace("_", "-")) for one in used} <= there, name


def test_what_a_programs_signatures_name_can_be_had_from_the_package() -> None:
    import edgespec

    functions = (
        edgespec.Runtime.__init__, edgespec.Runtime.generate, edgespec.Runtime.conversation,
        edgespec.Runtime.encode_messages, edgespec.Conversation.send, edgespec.Conversation.extend,
        edgespec.Planner.draft, edgespec.SamplingParams.__init__,
    )  # fmt: skip
    hints = " ".join(str(hint) for f in functions for hint in f.__annotations__.values())
    named = set(re.findall(r"\b[A-Z]\w+", hints))
    outside = {"Callable", "Sequence", "Mapping", "TokenIds", "CancelFlag", "Sampler", "Rule"}
    assert {"Message", "Drafter", "Planner", "Model", "Step"} < named
    assert named - outside - {"None"} <= {*edgespec.__all__}
    for name in {*edgespec.__all__} - {"__version__"}:
        assert getattr(edgespec, name)
    assert issubclass(edgespec.Busy, edgespec.EdgespecError)
    assert {*edgespec.__all__} <= {*dir(edgespec)}, "a prompt completes them"


@pytest.mark.parametrize(
    "call", ["import edgespec.cli", "main(['--version'])", "main(['models'])", "main(['--help'])"]
)
def test_starting_up_stays_light(call: str, tmp_path: Path) -> None:
    script = (
        "import sys, json, contextlib\n"
        "from edgespec.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    {call}\n"
        "heavy = {'llama_cpp', 'huggingface_hub', 'numpy', 'jinja2', 'textual', 'rich'}\n"
        "print(json.dumps(sorted(heavy & sys.modules.keys())))"
    )
    env = {**os.environ, "EDGESPEC_CACHE": str(tmp_path), "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HF_HOME": "/a/b"},
        {"HF_HOME": "~/b"},
        {"XDG_CACHE_HOME": "/x"},
        {"HUGGINGFACE_HUB_CACHE": "/old"},
        {"HF_HUB_CACHE": "~/new", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/a"},
        {"HF_HUB_CACHE": "$HOME/there"},
    ],
)
def test_the_hubs_cache_is_where_its_client_says(env: dict[str, str]) -> None:
    script = (
        "from edgespec.fetch import hub; from huggingface_hub import constants\n"
        "print(hub.cache_dir()); print(constants.HF_HUB_CACHE)"
    )
    names = {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**clean, **env},
        timeout=60,
    )
    ours, theirs = map(Path, done.stdout.splitlines())
    assert ours == theirs
