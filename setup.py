"""The one build step pyproject.toml has no word for: models.toml goes into the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Copies models.toml beside the modules of a wheel; an editable install reads it in place."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / "edgespec"
            self.mkpath(str(package))
            self.copy_file("models.toml", str(package / "models.toml"))


setup(cmdclass={"build_py": BuildPy})
