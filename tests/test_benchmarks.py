"""The scripts in benchmarks/, as far as they can be wrong without anybody seeing it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec import platform
from edgespec.backends.ort_notes import attention_note
from edgespec.backends.ort_providers import DEVICES
from edgespec.bench import files, report

FOLDER = Path(__file__).parents[1] / "benchmarks"


def script_of(name: str) -> Any:
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script


def test_no_setting_of_mixed_spin_depends_on_how_busy_the_machine_is() -> None:
    script = script_of("mixed_spin")
    assert "default" in script.SETTINGS
    for name, setting in script.SETTINGS.items():
        assert setting.keys() & set(platform.WAITING), name


def test_cuda_check_counts_the_copies_of_the_passes_it_made(tmp_path: Path) -> None:
    """A session that is loaded runs some twenty passes of its own."""
    script = script_of("cuda_check")
    events = [{"cat": "Session", "name": "model_loading_uri", "ts": 0, "dur": 5}]
    for at in range(30):
        size = 900 if at >= 28 else 1
        copy = {"op_name": "MemcpyToHost", "output_size": str(size)}
        events += [
            {"name": "m_kernel_time", "ts": 10 * at + 11, "dur": 2000, "args": copy},
            {"name": "add_kernel_time", "ts": 10 * at + 13, "dur": 9, "args": {"op_name": "Add"}},
            {"cat": "Session", "name": "model_run", "ts": 10 * at + 10, "dur": 8, "args": {}},
        ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(events))
    assert list(script.copies(trace, 2)) == [("MemcpyToHost", 2.0, 900)]
    assert list(script.copies(trace, 4)) == [("MemcpyToHost", 2.0, 450)]


@pytest.mark.parametrize(
    ("device", "notes", "said"),
    [
        ("CUDA", [], []),
        ("CUDA (90 of 96 operations, the others on the CPU)", ["CUDA is old"], []),
        ("CPU, 4 threads", [], ["doesn't run on the GPU"]),
        ("CUDA (9 of 96 operations, the others on the CPU)", [], ["only 9 of 96 operations"]),
        (
            "CUDA (90 of 96 operations, the others on the CPU)",
            [attention_note("m", DEVICES["cuda"])],
            ["attention of m"],
        ),
    ],
)
def test_cuda_check_tells_what_runs_elsewhere(
    device: str, notes: list[str], said: list[str]
) -> None:
    found = script_of("cuda_check").misplaced({"device": device}, notes)
    assert len(found) == len(said)
    assert all(part in whole for part, whole in zip(said, found, strict=True))


def test_cuda_check_without_cuda_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime
    from tiny_onnx import write_tiny_onnx

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has it")
    assert script_of("cuda_check").main([str(write_tiny_onnx(tmp_path / "m"))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "can't use CUDA" in line and "--device cpu" in line


def test_each_report_is_what_the_code_makes_of_its_results() -> None:
    """`edgespec bench --report FOLDER --out FOLDER` makes it anew where that is another page."""
    folders = sorted(file.parent for file in (FOLDER / "results").glob("*/*/results.jsonl"))
    stale = [
        str(folder.relative_to(FOLDER))
        for folder in folders
        if report.render(files.read([folder])) != (folder / "report.html").read_text("utf-8")
    ]
    assert folders and not stale


@pytest.mark.parametrize(("room", "shown"), [(None, True), (80, False)])
def test_a_report_on_a_terminal_is_as_wide_as_that(
    room: int | None,
    shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from edgespec.cli import main

    if room:
        size = os.terminal_size((room, 24))
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: size)
        monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    folder = FOLDER / "results/2026-12-01-xeon-2cpu/qwen-coder-f16-spec-bench"
    assert main(["bench", "--report", str(folder), "--out", str(tmp_path)]) == 0
    assert ("TOKENS/ROUND" in capsys.readouterr().out.split("no room for")[0]) == shown
