"""What a file is that was taken for a GGUF model and is none, by its first bytes.

Invariant: every file has an answer that says what to do, and none of its bytes stand in it but
escaped.
"""

from __future__ import annotations

from typing import Final

LFS_POINTER: Final = b"version https://git-lfs"  # what such a file begins with
AGAIN: Final = "download it again"
BIG_ENDIAN: Final = "is a big-endian GGUF: get the little-endian file or convert it again"


def what_else(head: bytes) -> str:
    """What a file is that doesn't begin with GGUF, and what to do about it."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    export = "make a GGUF of it with 'edgespec export'"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        return f"is an HTML page, not a GGUF model: {AGAIN} from the file's 'resolve' address"
    if text.startswith(LFS_POINTER):
        return f"is a Git LFS pointer, not the model itself: run 'git lfs pull' or {AGAIN}"
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):
        return (
            "is a zip or PyTorch checkpoint, not a GGUF model: load it with transformers and "
            f"save it as safetensors (`save_pretrained(folder)`), then {export}"
        )
    if head[8:9] == b"{":  # an 8-byte length, then JSON
        return f"is a safetensors checkpoint, not a GGUF model: {export}"
    if head.startswith((b"lmgg", b"fmgg", b"tjgg", b"algg")):
        return "is a GGML file from before GGUF, which llama.cpp no longer reads: get a GGUF file"
    if head.startswith(b"FUGG"):
        return BIG_ENDIAN
    if len(head) < len(b"GGUF") + 4:
        return f"is not a GGUF model, only {len(head)} bytes: {AGAIN}"
    if not head.strip(b"\0"):
        return f"begins with zeros, like an unfinished download: {AGAIN}"
    return f"is not a GGUF model (it begins with {head[:8]!r}): check the path or {AGAIN}"
