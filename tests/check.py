"""Everything a change must pass: formatting, lint, strict types, tests. Stops at the first failure.

python tests/check.py            # all of it
python tests/check.py --quick    # leaves out the tests on a real model and on packages
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPES = ROOT / "build" / "types"


def main() -> int:
    """Run the steps; the exit status of the first that fails, else 0."""
    quick = ["-m", "not real and not slow"] if "--quick" in sys.argv[1:] else []
    steps = {
        "formatting": (ROOT, ["ruff", "format", "--check", "."]),
        "lint": (ROOT, ["ruff", "check", "."]),
        "types": (TYPES, ["mypy", "--config-file", str(ROOT / "pyproject.toml"), "edgespec"]),
        "tests": (ROOT, ["pytest", *quick]),
        "pictures": (ROOT, ["docs.pictures", "--check"]),
    }
    lay_out_as_installed()
    for name, (folder, command) in steps.items():
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", *command], cwd=folder).returncode
        if code:
            print(f"{name} failed: python -m {' '.join(command)}", file=sys.stderr)
            return code
    return 0


def lay_out_as_installed() -> None:
    """The packages in one tree, as they install: mypy doesn't follow setuptools' `package-dir`."""
    shutil.rmtree(TYPES, ignore_errors=True)
    for source, package in (("edgespec", ""), ("exporters", "exporters"), ("tui", "tui")):
        shutil.copytree(
            ROOT / source,
            TYPES / "edgespec" / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


if __name__ == "__main__":
    sys.exit(main())
