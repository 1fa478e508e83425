"""The pairs there are: what is on this disk, what is to download, what fits this machine's memory.

Invariant: a pair is never hidden for not fitting; it is told why in one sentence, and the person
may try it all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import onnx_folder
from edgespec.errors import ConfigError, ModelFormatError
from edgespec.fetch import is_here, lost
from edgespec.gguf_parts import read_model
from edgespec.registry import OVERHEAD_BYTES, ModelSpec, PairSpec, Registry, size_on_disk
from edgespec.terminal import printable
from edgespec.tui.messages import Choice
from edgespec.units import human_bytes

_SHARE = 0.75
"""Of the memory that one program can have: the system and a browser have the rest."""


@dataclass(frozen=True)
class PairInfo:
    """A pair as a person chooses it.

    Attributes:
        choice: what to load.
        description: what it is, in a few words; a file's folder.
        drafters: names of what drafts.
        here: whether nothing is to be downloaded.
        missing: names of the models that aren't here.
        download_bytes: of those.
        memory_bytes: what running it takes.
        licences: of its models, each once.
        too_big: a sentence where it doesn't fit this machine's memory, else "".
        problem: a sentence where it can't be loaded at all, else "".
        untested: nobody on this project has run it.
        default: the pair that is loaded where none is named.
        added: a file that the person added, and may take from the list.
    """

    choice: Choice
    description: str
    drafters: tuple[str, ...] = ("lookup",)
    here: bool = True
    missing: tuple[str, ...] = ()
    download_bytes: int = 0
    memory_bytes: int = 0
    licences: tuple[str, ...] = ()
    too_big: str = ""
    problem: str = ""
    untested: bool = False
    default: bool = False
    added: bool = False

    @property
    def name(self) -> str:
        """How people know it."""
        return self.choice.label


def list_pairs(
    registry: Registry,
    files: Iterable[str] = (),
    memory_bytes: int | None = None,
    *,
    here: Callable[[ModelSpec], bool] = is_here,
) -> list[PairInfo]:
    """The person's own files, then the registry's pairs: first those that are here.

    memory_bytes: this machine's memory; None where it isn't known, and then everything fits.
    here: whether a model is on this machine, as `edgespec.fetch.is_here` tells it.
    """
    own = [_of_file(path, memory_bytes) for path in files]
    known = [
        _of_pair(pair, pair is registry.default, memory_bytes, here)
        for pair in registry.pairs.values()
    ]
    return own + sorted(known, key=lambda info: (not info.here, bool(info.too_big)))


def too_big(need_bytes: int, memory_bytes: int | None) -> str:
    """Why something doesn't fit this machine's memory, in one sentence; "" where it does."""
    if memory_bytes is None or need_bytes <= memory_bytes * _SHARE:
        return ""
    return (
        f"It needs about {human_bytes(need_bytes)} of memory; of the {human_bytes(memory_bytes)} "
        f"of this machine, some {human_bytes(int(memory_bytes * _SHARE))} are left for it."
    )


def check_file(text: str) -> str:
    """The full path of a model that a person named: a GGUF file, or a folder with an ONNX model.

    Raises ConfigError or ModelFormatError: one sentence.
    """
    if not text.strip():
        raise ConfigError("Name a GGUF file, or a folder that holds an ONNX model.")
    try:
        path = Path(text.strip().strip("\"'")).expanduser().absolute()
        if path.is_dir():
            if any(any(path.glob(graphs)) for graphs in ("*.onnx", "onnx/*.onnx")):
                return str(path)
            inside = sorted(file.name for file in path.glob("*.gguf"))
            hint = f"; name a file in it, such as {printable(inside[0])}" if inside else ""
            raise ConfigError(f"There is no ONNX model in {printable(str(path))}{hint}.")
        if path.suffix.lower() != ".onnx":
            read_model(path)
        elif not path.is_file():
            raise ConfigError(f"There is no file {printable(str(path))}.")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no home folder for "~"
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"Can't read {printable(text.strip())}: {why}.") from error
    return str(path)


def _of_pair(
    pair: PairSpec,
    default: bool,
    memory_bytes: int | None,
    here: Callable[[ModelSpec], bool],
) -> PairInfo:
    missing = [model for model in pair.models if not here(model)]
    return PairInfo(
        choice=Choice(pair=pair.name),
        description=pair.description,
        drafters=tuple(d if isinstance(d, str) else d.name for d in pair.drafters),
        here=not missing,
        missing=tuple(model.name for model in missing),
        download_bytes=sum(model.size_bytes for model in missing),
        memory_bytes=pair.memory_bytes,
        licences=pair.licences,
        too_big=too_big(pair.memory_bytes, memory_bytes),
        problem=lost(missing),
        untested=pair.untested,
        default=default,
    )


def _of_file(name: str, memory_bytes: int | None) -> PairInfo:
    path, need, problem = Path(name), 0, ""
    try:
        path.stat()
        model = onnx_folder.find(path) if path.is_dir() else None
        if model is None and path.is_dir():
            problem = f"There is no ONNX model in {name} any more."
        else:  # of a folder, what is loaded: other graphs and checkpoints may lie beside it
            need = size_on_disk(path if model is None else model.graph) + OVERHEAD_BYTES
    except (FileNotFoundError, NotADirectoryError):
        problem = f"{name} is not there any more."
    except (OSError, ValueError) as error:
        problem = f"{name} can't be read: {getattr(error, 'strerror', None) or error}."
    except ModelFormatError as error:  # several graphs, or a damaged configuration
        problem = str(error)
    return PairInfo(
        Choice(target=name),
        str(path.parent),
        memory_bytes=need,
        too_big=too_big(need, memory_bytes),
        problem=problem,
        added=True,
    )
