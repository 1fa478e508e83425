"""What gets installed: the folders under their names, and models.toml, as wheel and editable.

A wheel is the same whether it is built from the tree or from a source distribution of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"edgespec": "edgespec", "exporters": "edgespec/exporters", "tui": "edgespec/tui"}
"""Where what gets installed lies in the tree, and in a wheel."""
BESIDE = ("pyproject.toml", "setup.py", "MANIFEST.in", "models.toml", "README.md", "LICENSE")
PROBE = """
import pathlib, sys
import edgespec.exporters, edgespec.tui
for name in ("backends.llama", "drafters.lookup", "runtime"):
    # These import numpy, which isn't here.
    file = pathlib.Path(edgespec.__file__).parent / (name.replace(".", "/") + ".py")
    assert file.is_file(), file
for name in ("prompts/spec-bench.jsonl", "prompts/README.md", "report.css"):
    file = pathlib.Path(edgespec.__file__).parent / "bench" / name
    assert file.is_file(), file
from edgespec.registry import load_registry, packaged_models_file
print(packaged_models_file())
print(load_registry(pathlib.Path(sys.argv[1])).default.name)
for name in ("tui", "exporters"):
    try:
        __import__(name)
    except ImportError:
        continue
    print("a top-level", name)
"""

pytestmark = pytest.mark.slow


def install(folder: Path, *what: str) -> tuple[Path, list[str]]:
    """Install into a clean venv, without what needs a compiler; the probe's lines."""
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    python = scripts / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", *what], check=True, cwd=folder)
    subprocess.run([*pip, "platformdirs"], check=True, cwd=folder)
    empty = folder / "empty.toml"
    empty.touch()
    probe = subprocess.run(
        [python, "-c", PROBE, empty], check=True, cwd=folder, capture_output=True, text=True
    )
    version = subprocess.run(
        [scripts / "edgespec", "--version"], check=True, capture_output=True, text=True
    )
    assert version.stdout.startswith("edgespec ")
    return folder / "venv", probe.stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What gets installed, without what earlier builds left, which would be packed too."""
    tree = tmp_path / "tree"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, tree)
    return tree


def files_of(tree: Path) -> set[str]:
    """What a wheel should hold."""
    return {"edgespec/models.toml"} | {
        f"{installed}/{file.relative_to(tree / name).as_posix()}"
        for name, installed in FOLDERS.items()
        for file in (tree / name).rglob("*")
        if file.is_file()
    }


def build_wheel(source: Path, folder: Path) -> tuple[Path, set[str]]:
    """A wheel built from a tree or a source distribution, and what it holds."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*build, "-w", folder, source], check=True)
    (wheel,) = folder.glob("edgespec-*.whl")
    with ZipFile(wheel) as packed:
        return wheel, {name for name in packed.namelist() if ".dist-info/" not in name}


def test_a_wheel_holds_everything(tree: Path, tmp_path: Path) -> None:
    wanted = files_of(tree)
    wheel, found = build_wheel(tree, tmp_path)
    assert found == wanted
    folder, (models, default, *rest) = install(tmp_path, str(wheel))
    assert Path(models).is_relative_to(folder)
    assert (default, rest) == ("smollm2", [])


def test_a_source_distribution_makes_the_same_wheel(tree: Path, tmp_path: Path) -> None:
    wanted = files_of(tree)
    venv.create(tmp_path / "builder", with_pip=True)
    scripts = tmp_path / "builder" / ("Scripts" if sys.platform == "win32" else "bin")
    requires = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["build-system"]
    pip = [scripts / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *requires["requires"]], check=True)
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run(
        [scripts / "python", "-c", build, tmp_path], check=True, cwd=tree, capture_output=True
    )
    (packed,) = tmp_path.glob("edgespec-*.tar.gz")
    assert build_wheel(packed, tmp_path)[1] == wanted


def test_an_editable_install_reads_the_tree(tmp_path: Path) -> None:
    _, (models, default, *rest) = install(tmp_path, "-e", str(ROOT))
    assert Path(models) == ROOT / "models.toml"
    assert (default, rest) == ("smollm2", [])
