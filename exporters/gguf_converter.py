"""llama.cpp's own conversion script, for a family that we don't know.

Invariant: the script runs in a process of its own, on a path the person named; what it writes
passes the same gate as what we write, as far as its vocabulary can be understood.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgespec.errors import ExportError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf_sentencepiece import NORMAL
from edgespec.exporters.gguf_tensors import Type
from edgespec.exporters.gguf_tokenizer import Words
from edgespec.exporters.gguf_vocabulary import UNREAD, Vocabulary, read_vocabulary
from edgespec.exporters.progress import Report
from edgespec.exporters.staging import Stage
from edgespec.gguf import StringArray, read_header
from edgespec.platform import expanded


def convert_with(
    script: Path,
    checkpoint: Checkpoint,
    plain: Type,
    work: Stage,
    earlier: Path | None,
    report: Report,
) -> tuple[Path, Words]:
    """Convert by `script`, unless an earlier run did; the file, and its words as we read them.

    Raises ExportError with the script's last line where it fails.
    """
    path = earlier or work.folder / f"{plain.name.lower()}.gguf"
    if earlier is None:
        _run(found(script), checkpoint, plain, path, report)
        work.finish("converted", path)
    tokens = read_header(path).metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray):
        raise ExportError(f"{script.name} wrote a file without a vocabulary.")
    words = Words(_vocabulary(checkpoint, tokens), "", {}, {}, None)
    words.notes.append(f"it was converted by {script}, not by edgespec")
    return path, words


def found(script: Path) -> Path:
    """Where a script that the person named lies. Raises ExportError where there is none."""
    path = expanded(script)
    if not path.is_file():
        raise ExportError(f"There is no converter at {path}; name convert_hf_to_gguf.py itself.")
    return path


def _vocabulary(checkpoint: Checkpoint, tokens: StringArray) -> Vocabulary:
    """As the checkpoint has it, or, where we can't read that, as the script wrote it."""
    try:
        return read_vocabulary(checkpoint, len(tokens))
    except ExportError as error:
        written = [token.decode("utf-8", "replace") for token in tokens]
        note = f"its ids were not compared with the checkpoint's: {str(error).rstrip('.')}"
        types = [NORMAL] * len(written)
        return Vocabulary(UNREAD, written, types, None, [], None, None, [], [note])


def _run(script: Path, checkpoint: Checkpoint, plain: Type, path: Path, report: Report) -> None:
    report(f"running {script.name}")
    command = [sys.executable, str(script), str(checkpoint.path), "--outfile", str(path)]
    done = subprocess.run(
        [*command, "--outtype", plain.name.lower()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    if done.returncode or not path.is_file():
        lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line]
        reason = lines[-1].strip().rstrip(".") if lines else f"it ended with {done.returncode}"
        raise ExportError(f"{script.name} can't convert {checkpoint.source}: {reason}.")
