"""Everything a change must pass: formatting, lint, strict types, tests. Stops at the first failure.

python tests/check.py            # all of it
python tests/check.py --quick    # leaves out the tests on a real model and on packages
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the steps; the exit status of the first that fails, else 0."""
    quick = ["-m", "not real and not slow"] if "--quick" in sys.argv[1:] else []
    steps = {
        "formatting": ["ruff", "format", "--check", "."],
        "lint": ["ruff", "check", "."],
        "types of edgespec": ["mypy", "edgespec"],
        "types of exporters": ["mypy", "exporters"],
        "types of tui": ["mypy", "tui"],
        "tests": ["pytest", *quick],
    }
    for name, command in steps.items():
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode
        if code:
            print(f"{name} failed: python -m {' '.join(command)}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
