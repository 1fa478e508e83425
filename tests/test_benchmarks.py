"""The scripts in benchmarks/, as far as they can be wrong without anybody seeing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgespec import platform

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_no_setting_of_mixed_spin_depends_on_how_busy_the_machine_is() -> None:
    found = importlib.util.spec_from_file_location("mixed_spin", FOLDER / "mixed_spin.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert "default" in script.SETTINGS
    for name, setting in script.SETTINGS.items():
        assert setting.keys() & set(platform.WAITING), name
