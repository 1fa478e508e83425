"""llama.cpp itself, as llama_cpp loads it.

Invariant: where it can't be loaded, importing this module raises a ModelError that says what to do.
A build for a GPU can't be without that GPU's driver and libraries, nor on Windows where CUDA_PATH
names a folder that is gone.
"""

from edgespec.errors import ModelError

try:
    import llama_cpp.llama_cpp as lib
    from llama_cpp._ctypes_extensions import load_shared_library
except (ImportError, OSError, RuntimeError) as error:
    raise ModelError(
        f"llama.cpp can't be loaded ({error}): a library that it needs is missing, for a build "
        "for a GPU perhaps its driver; install it, or llama-cpp-python anew (docs/install.md)"
    ) from error

__all__ = ["lib", "load_shared_library"]
