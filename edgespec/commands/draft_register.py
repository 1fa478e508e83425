"""The drafter that pays most, registered with its target: `edgespec draft --register NAME`.

Invariant: names that are taken, and paths that can't be written down, are refused before any work,
and a drafter that doesn't pay is not registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.exporters.register import Exported
    from edgespec.trial import Trial


def refuse(name: str, paths: Sequence[Path], *, measured: bool) -> None:
    """Raises ConfigError, ExportError where the pair couldn't be registered in the end.

    paths: of the models that may become part of it.
    """
    from edgespec.exporters.register import model_names, refuse_taken
    from edgespec.exporters.staging import require_text

    if not measured:
        raise ConfigError("--register takes the drafter that pays most: leave out --no-measure")
    refuse_taken([name, *model_names(name)])
    require_text(*(path.absolute() for path in paths))


def best(name: str, target: Path, tried: Sequence[tuple[Trial, Path]], uncut: Path) -> str:
    """Register the target with the best of what was tried; a sentence that says what was done.

    uncut: the model that drafters were cut out of, which may be among them as a whole.
    """
    from edgespec.exporters.register import model_names, pair_entry, register
    from edgespec.trial import ranked
    from edgespec.tune import PAYS

    first = ranked([trial for trial, _ in tried])[0]
    if first.choice.gain < PAYS:
        return "nothing was registered, as none of them pays"
    path = next(path for trial, path in tried if trial is first)
    names = model_names(name)
    models = [_model(own, at) for own, at in zip(names, (target, path), strict=True)]
    made = ", cut out by `edgespec draft`" if path != uncut else ""
    about = f"{target.name} with {path.name}{made}"
    file = register(pair_entry(name, models[0], models[1:], about), [name, *names])
    return f"registered as {name} in {file}: edgespec chat {name}"


def _model(name: str, path: Path) -> Exported:
    from edgespec.backends.onnx_folder import find
    from edgespec.exporters.register import Exported
    from edgespec.gguf import read_header

    folder = find(path)
    if folder is not None:
        return Exported(name, folder.graph, "onnx", "unknown")
    licence = read_header(path).metadata.get("general.license", "unknown")
    return Exported(name, path, "gguf", str(licence))
