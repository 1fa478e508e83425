"""Types that weights can be stored in, and llama.cpp's quantiser in a process of its own.

Invariant: llama.cpp's quantiser can neither be told to stop nor, where a model surprises it, be
kept from ending its process; so it never runs in ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gguf

from edgespec.errors import ConfigError, EdgespecError, ExportError
from edgespec.exporters.progress import Report
from edgespec.exporters.staging import DiskError, Stopped

_POLL_S = 0.2
_KILLED = 9  # the signal by which a system frees memory
_PLAIN = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
_FILE_TYPES = {
    gguf.GGMLQuantizationType.F32: gguf.LlamaFileType.ALL_F32,
    gguf.GGMLQuantizationType.F16: gguf.LlamaFileType.MOSTLY_F16,
    gguf.GGMLQuantizationType.BF16: gguf.LlamaFileType.MOSTLY_BF16,
}


@dataclass(frozen=True)
class Quant:
    """A type for a file's matrices.

    Attributes:
        name: as on the command line. plain: the float type it is, or None where llama.cpp's
            quantiser makes it.
        bits: about how many bits a weight takes, for estimates and for how near logits must be.
    """

    name: str
    plain: gguf.GGMLQuantizationType | None
    bits: float


def quant(name: str) -> Quant:
    """The type of that name. Raises ConfigError with all names for an unknown one."""
    name = name.lower()
    if name in _PLAIN:
        return Quant(name, _PLAIN[name], 32 if name == "f32" else 16)
    from edgespec.exporters.quantise import file_type

    file_type(name)  # refuses an unknown one
    digits = re.search(r"\d", name)
    if digits is None:
        raise ConfigError(f"{name} is no type for a whole file")
    return Quant(name, None, int(digits[0]) + 0.75)


def file_type(plain: gguf.GGMLQuantizationType) -> int:
    """What `general.file_type` says of a file whose matrices are of a float type."""
    return int(_FILE_TYPES[plain])


def quantise(
    source: Path,
    destination: Path,
    wanted: Quant,
    expected: int,
    report: Report,
    threads: int | None = None,
) -> None:
    """Write `source` again with its matrices as `wanted`; `expected`: about how many bytes.

    threads: None is the usable CPUs. Raises ExportError with llama.cpp's reason where it gives up,
    DiskError where the disk does, and Stopped where the system ended it.
    """
    code = "import sys; from edgespec.exporters.gguf_quant import main; sys.exit(main())"
    files = [str(source.absolute()), str(destination.absolute())]
    command = [sys.executable, "-P", "-c", code, *files, wanted.name, str(threads or 0)]
    stage = f"quantising to {wanted.name}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            while True:
                try:
                    process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    done = destination.stat().st_size if destination.is_file() else 0
                    report(stage, done, max(expected, done))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        log.seek(0)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    if process.returncode:
        said = [line for line in lines if line]
        reason = said[-1].rstrip(".") if said else f"it ended with {process.returncode}"
        destination.unlink(missing_ok=True)
        if "iostream" in reason:  # as C++ says of any file that it can't write
            raise DiskError(
                f"The disk took no more of the {wanted.name} file; make room and run the same "
                "command again, or choose a place on another disk."
            )
        if process.returncode == -_KILLED:
            raise Stopped(
                f"The system ended llama.cpp while it quantised to {wanted.name}, perhaps for want "
                "of memory; close other programs and run the same command again."
            )
        raise ExportError(f"llama.cpp can't quantise this model to {wanted.name}: {reason}.")


def main() -> int:
    """The other process: quantise, and say on stderr what went wrong."""
    from edgespec.exporters import quantise as own

    source, destination, name, threads = sys.argv[1:]
    try:
        # Windows' llama.cpp writes to no folder whose name isn't in its old code page, so it is
        # told the file alone, in ASCII.
        os.chdir(Path(destination).parent)
        file = Path(Path(destination).name)
        own.quantise(Path(source), file, name, threads=int(threads) or None)
    except EdgespecError as error:
        print(_reason(str(error).split(": ", 1)[-1]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _reason(said: str) -> str:
    """What llama.cpp's log says of the failure; its first line may be a rule of equals signs."""
    from edgespec.backends.llama_log import start_backend

    lines = [said, *start_backend().errors]
    if any("importance matrix" in line or "imatrix" in line for line in lines):
        return "this type needs an importance matrix, which isn't made here; choose another type"
    return next((line for line in lines if re.search("[A-Za-z]", line)), said)
