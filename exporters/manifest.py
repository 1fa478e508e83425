"""What an export was made from, how, and how near the result is: a JSON file beside it.

Invariant: a manifest holds what was seen, nothing that was meant; the hashes in it are those of
the bytes that were read and written.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.progress import Report, silent
from edgespec.exporters.staging import MANIFEST_SUFFIX
from edgespec.fetch.sources import file_sha256


@dataclass(frozen=True)
class Manifest:
    """An export's record.

    Attributes:
        format: "gguf" or "onnx".
        source: the checkpoint as it was asked for. revision: its commit on the hub, or None.
        source_files: SHA-256 of each of its files, by name.
        output_files: SHA-256 and bytes of what was written, by path from the manifest's folder.
        options: what was asked for, as JSON values.
        tools: the version of each program that took part.
        parity: the figures of the checks, and what they were compared with.
        notes: what the person was told.
    """

    format: str
    source: str
    revision: str | None
    source_files: Mapping[str, str]
    output_files: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    tools: Mapping[str, str]
    parity: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    created: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def write(self, path: Path) -> None:
        """Write it as JSON; the caller stages the file."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")

    def is_of(self, folder: Path, report: Report = silent) -> bool:
        """Whether what was written lies in a folder as it was; it is read for that."""
        report("looking at what is there already")
        try:
            return all(
                file_sha256(folder / name, lambda *_: None) == about["sha256"]
                for name, about in self.output_files.items()
            )
        except OSError:
            return False

    @staticmethod
    def read(path: Path) -> Manifest:
        """The manifest in a file. Raises ExportError where it isn't one."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Manifest(**{**values, "notes": tuple(values["notes"])})
        except OSError as error:
            raise ExportError(f"Can't read {path}: {error.strerror or error}.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise ExportError(f"{path} is no manifest of an export; make the export again.") from (
                error
            )


def beside(result: Path) -> Path:
    """Where the manifest of a result (a file, or a folder) goes: in the folder, or next to it."""
    if result.is_dir():
        return result / f"edgespec{MANIFEST_SUFFIX}"
    return Path(f"{result}{MANIFEST_SUFFIX}")


def wanted(checkpoint: Checkpoint, *tools: str) -> dict[str, Any]:
    """What an export is the result of, beside what was asked for: the checkpoint's files as they
    are, and the versions of Python distributions.
    """
    files = [path for path in checkpoint.path.iterdir() if path.is_file()]
    states = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
    return {
        "source": [checkpoint.source, checkpoint.revision, states],
        "tools": tool_versions(*tools),
    }


def describe(
    checkpoint: Checkpoint,
    model_format: str,
    outputs: Mapping[str, Path],
    *,
    options: Mapping[str, Any],
    tools: tuple[str, ...] = (),
    parity: Mapping[str, Any],
    notes: tuple[str, ...] = (),
    source_files: Mapping[str, str] | None = None,
    report: Report = silent,
) -> Manifest:
    """The manifest of an export that is done.

    outputs: path from the manifest's folder -> where the file is now. tools: names of Python
    distributions that took part. notes: beside those of the checkpoint. source_files: the
    checkpoint's hashes where they are known.
    """
    total = sum(path.stat().st_size for path in outputs.values())
    written: dict[str, dict[str, Any]] = {}
    before = 0
    for name, path in sorted(outputs.items()):

        def count(done: int, _: int | None, before: int = before) -> None:
            report("reading the result's hashes", before + done, total)

        size = path.stat().st_size
        written[name] = {"sha256": file_sha256(path, count), "size_bytes": size}
        before += size
    return Manifest(
        model_format,
        checkpoint.source,
        checkpoint.revision,
        dict(source_files or checkpoint.file_hashes(report)),
        written,
        dict(options),
        tool_versions(*tools),
        dict(parity),
        (*checkpoint.notes, *notes),
    )


def describe_drafter(
    source: Path,
    model_format: str,
    folder: Path,
    *,
    options: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Manifest:
    """The manifest of a drafter that was cut out of a model into `folder`.

    It names every file, so that the folder may be replaced later.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    written = {
        path.name: {"sha256": file_sha256(path, lambda *_: None), "size_bytes": path.stat().st_size}
        for path in files
    }
    return Manifest(
        model_format, str(source), None, {}, written, options, tool_versions(), {}, notes
    )


def tool_versions(*distributions: str) -> dict[str, str]:
    """The version of edgespec, and those of the distributions that are installed."""
    versions = {"edgespec": __version__}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
