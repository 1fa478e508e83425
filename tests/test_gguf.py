"""read_header takes only files llama.cpp can read, and says in one sentence what ails the rest."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import ModelFormatError
from edgespec.gguf import GGUFHeader, StringArray, read_header

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
CODES |= {U64: "Q", I64: "q", F64: "d"}
GGML_F32, GGML_Q4_0, GGML_Q4_K = 0, 2, 12


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def scalar(value_type: int, value: float) -> bytes:
    return struct.pack("<I" + CODES[value_type], value_type, value)


def text(value: bytes) -> bytes:
    return struct.pack("<I", STRING) + string(value)


def array(item_type: int, items: Sequence[float | bytes], count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, item_type, len(items) if count is None else count)
    if item_type == STRING:
        return head + b"".join(string(item) for item in items if isinstance(item, bytes))
    return head + struct.pack(f"<{len(items)}{CODES.get(item_type, 'B')}", *items)


def tensor(name: bytes, shape: Sequence[int], ggml_type: int, offset: int) -> bytes:
    head = string(name) + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, ggml_type, offset)


LLAMA = (b"general.architecture", text(b"llama"))


def gguf(
    keys: Sequence[tuple[bytes, bytes]] = (LLAMA,),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file with `data` bytes of tensor data; the counts can be made to lie."""
    n_keys = len(keys) if n_keys is None else n_keys
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    head = struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys)
    head += b"".join(string(key) + value for key, value in keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


def sample() -> bytes:
    """A small file with every kind of value and three tensors."""
    scalars = [(b"x.type%d" % t, scalar(t, 1)) for t in CODES]
    arrays = [(b"x.array%d" % t, array(t, [0, 1, 1])) for t in CODES]
    tokens = (b"tokenizer.ggml.tokens", array(STRING, [b"a", b"", b"\xe4\xbd", b"z" * 300]))
    tensors = [
        tensor(b"a", [32, 2], GGML_Q4_0, 0),  # 36 bytes
        tensor(b"b", [256, 1, 3, 1], GGML_Q4_K, 64),  # 432 bytes
        tensor(b"c", [5], GGML_F32, 64 + 448),  # 20 bytes
    ]
    return gguf([LLAMA, *scalars, *arrays, tokens], tensors, 64 + 448 + 20)


def check_invariants(header: GGUFHeader, size: int) -> None:
    """What a caller may rely on for any accepted file of `size` bytes."""
    end = header.data_offset
    for info in header.tensors:
        assert end <= info.offset
        assert info.nbytes > 0
        end = info.offset + info.nbytes
        assert end <= size
    assert len({info.name for info in header.tensors}) == len(header.tensors)
    for key, value in header.metadata.items():
        assert key
        if isinstance(value, StringArray):
            entries = list(value)
            assert len(entries) == len(value)
            assert not entries or (value[0], value[-1]) == (entries[0], entries[-1])
        else:
            assert isinstance(value, int | float | str | np.ndarray)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


def read(path: Path, content: bytes) -> GGUFHeader:
    path.write_bytes(content)
    return read_header(path)


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.startswith("x.gguf ")
    assert "\n" not in message
    assert message.isprintable()
    return message


# -- what is accepted ----------------------------------------------------------------------------


def test_every_kind_of_value(path: Path) -> None:
    header = read(path, sample())
    assert header.path == path
    assert header.version == 3
    assert header.architecture == "llama"
    for value_type in CODES:
        value, values = (
            header.metadata[f"x.type{value_type}"],
            header.metadata[f"x.array{value_type}"],
        )
        kind = bool if value_type == BOOL else float if value_type in (F32, F64) else int
        assert type(value) is kind
        assert value == 1
        assert isinstance(values, np.ndarray)
        assert values.tolist() == [0, 1, 1]
    assert header.metadata["x.array7"].dtype == np.bool_  # type: ignore[union-attr]
    assert header.metadata["x.array3"].dtype == np.int16  # type: ignore[union-attr]


def test_numbers_keep_sign_and_range(path: Path) -> None:
    keys = [LLAMA, (b"a", scalar(I64, -(2**63))), (b"b", scalar(U64, 2**64 - 1))]
    keys += [(b"c", scalar(F32, 0.5)), (b"d", array(I8, [-128, 127]))]
    metadata = read(path, gguf(keys)).metadata
    assert (metadata["a"], metadata["b"], metadata["c"]) == (-(2**63), 2**64 - 1, 0.5)
    assert np.array_equal(metadata["d"], [-128, 127])


def test_string_array_is_a_sequence_of_bytes(path: Path) -> None:
    tokens = read(path, sample()).metadata["tokenizer.ggml.tokens"]
    expected = [b"a", b"", b"\xe4\xbd", b"z" * 300]
    assert isinstance(tokens, StringArray)
    assert list(tokens) == expected
    assert len(tokens) == 4
    assert [tokens[i] for i in range(-4, 4)] == expected * 2
    assert tokens[1:3] == expected[1:3]
    assert tokens[::-1] == expected[::-1]
    assert b"a" in tokens
    assert tokens.index(b"\xe4\xbd") == 2
    for index in (4, -5):
        with pytest.raises(IndexError):
            tokens[index]


@pytest.mark.parametrize("item_type", [STRING, F32, BOOL])
def test_empty_array(path: Path, item_type: int) -> None:
    value = read(path, gguf([LLAMA, (b"none", array(item_type, []))])).metadata["none"]
    assert isinstance(value, StringArray | np.ndarray)
    assert len(value) == 0
    assert list(value) == []


def test_tensors(path: Path) -> None:
    content = sample()
    header = read(path, content)
    start = header.data_offset
    assert start == len(content) - (64 + 448 + 20)
    assert start % 32 == 0
    assert [(t.name, t.shape, t.type, t.offset, t.nbytes) for t in header.tensors] == [
        ("a", (32, 2), GGML_Q4_0, start, 36),
        ("b", (256, 1, 3, 1), GGML_Q4_K, start + 64, 432),
        ("c", (5,), GGML_F32, start + 512, 20),
    ]


def test_alignment_is_the_files_own(path: Path) -> None:
    keys = [LLAMA, (b"general.alignment", scalar(U32, 256))]
    tensors = [tensor(b"a", [1], GGML_F32, 0), tensor(b"b", [1], GGML_F32, 256)]
    header = read(path, gguf(keys, tensors, 260, alignment=256))
    assert header.data_offset % 256 == 0
    assert header.tensors[1].offset == header.data_offset + 256


def test_version_2_and_a_vocabulary_only_file(path: Path) -> None:
    header = read(path, gguf(version=2)[:-1])  # no tensors, so the padding may be missing
    assert header.version == 2
    assert header.tensors == ()


def test_parts_of_a_split_model(path: Path) -> None:
    first = [LLAMA, (b"split.no", scalar(U16, 0)), (b"split.count", scalar(U16, 2))]
    later = [(b"split.no", scalar(U16, 1)), (b"split.count", scalar(U16, 2))]
    tensors = [tensor(b"a", [1], GGML_F32, 0)]
    assert read(path, gguf(first, tensors, 4)).architecture == "llama"
    assert read(path, gguf(later, tensors, 4)).architecture == ""
    assert "general.architecture" in refusal(path, gguf(first[1:], tensors, 4))


def test_the_file_is_let_go(path: Path) -> None:
    header = read(path, sample())
    path.write_bytes(b"")  # Windows refuses this while a mapping is open
    path.unlink()
    check_invariants(header, len(sample()))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_a_refused_file_is_let_go_too(path: Path) -> None:
    path.write_bytes(sample()[:-1])
    with pytest.raises(ModelFormatError) as caught:  # its traceback keeps the frames alive
        read_header(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert caught.value


def test_text_that_is_not_utf8_is_replaced(path: Path) -> None:
    metadata = read(path, gguf([LLAMA, (b"general.name", text(b"caf\xe9"))])).metadata
    assert metadata["general.name"] == "caf\ufffd"


# -- what is not a GGUF file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n<!DOCTYPE html><html>", ["HTML page", "resolve"]),
        (b"\xef\xbb\xbf<html lang=en>", ["HTML page", "resolve"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", ["Git LFS", "git lfs pull"]),
        (b"PK\x03\x04" + bytes(40), ["zip or PyTorch", "as safetensors", "edgespec export"]),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j", ["PyTorch", "as safetensors", "edgespec export"]),
        (struct.pack("<Q", 90) + b'{"__metadata__":{}}', ["safetensors", "edgespec export"]),
        (b"tjgg" + struct.pack("<I", 3) + bytes(40), ["GGML file", "get a GGUF"]),
        (b"lmgg" + bytes(40), ["GGML file"]),
        (b"FUGG" + bytes(40), ["big-endian"]),
        (b"abc", ["not a GGUF model", "3 bytes"]),
        (bytes(1000), ["zeros", "unfinished"]),
        (b"MZ\x90\x00\x1b[2J" + bytes(100), ["not a GGUF model", "MZ", r"\x1b"]),
    ],
)
def test_other_formats_are_named(path: Path, content: bytes, words: list[str]) -> None:
    message = refusal(path, content)
    assert all(word in message for word in words), message


def test_paths_that_hold_no_file(tmp_path: Path) -> None:
    cases = {tmp_path / "none.gguf": "doesn't exist", tmp_path: "is a folder"}
    (tmp_path / "empty.gguf").touch()
    cases |= {tmp_path / "empty.gguf": "is empty", tmp_path / "a\0b": "can't be read"}
    cases |= {tmp_path / "empty.gguf" / "x": "can't be read"}
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        cases[tmp_path / "pipe"] = "is a pipe"
    for path, words in cases.items():
        with pytest.raises(ModelFormatError, match=words):
            read_header(path)
        with pytest.raises(ModelFormatError, match=words):
            read_header(str(path))


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_unreadable_file(path: Path) -> None:
    path.write_bytes(sample())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read anything")
    with pytest.raises(ModelFormatError, match="permissions"):
        read_header(path)


# -- what is damaged -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words"),
    [(0, "version 0"), (1, "no longer reads"), (4, "update edgespec"), (3 << 24, "big-endian")],
)
def test_versions_refused(path: Path, version: int, words: str) -> None:
    assert words in refusal(path, gguf(version=version))


@pytest.mark.parametrize("size", [4, 8, 23, 30, 60])
def test_header_cut_short(path: Path, size: int) -> None:
    assert any(word in refusal(path, gguf()[:size]) for word in ("cut short", "can't fit"))


def test_cuts_of_the_sample_are_refused(path: Path) -> None:
    content = sample()
    for size in range(1, len(content), 5):
        refusal(path, content[:size])


def test_missing_data_is_counted(path: Path) -> None:
    content = sample()
    for n in (1, 7):
        message = refusal(path, content[:-n])
        assert f"cut short: {n} of its {len(content):,} bytes are missing" in message


@pytest.mark.parametrize("count", [50, 2**32, 2**62, 2**63, 2**64 - 1])
def test_counts_that_cannot_fit(path: Path, count: int) -> None:
    assert f"{count:,} tensors can't fit" in refusal(path, gguf(n_tensors=count))
    assert f"{count:,} metadata keys can't fit" in refusal(path, gguf(n_keys=count))


@pytest.mark.parametrize("length", [2**20, 2**40, 2**63, 2**64 - 1])
def test_lengths_that_cannot_fit(path: Path, length: int) -> None:
    lie = struct.pack("<Q", length)
    key = refusal(path, gguf()[:24] + lie + gguf()[32:])
    value = refusal(path, gguf([LLAMA, (b"key", struct.pack("<I", STRING) + lie + b"abc")]))
    entry = array(STRING, [], 2) + lie + b"abc" + string(b"x")
    in_array = refusal(path, gguf([LLAMA, (b"key", entry)]))
    last = array(STRING, [], 2) + string(b"x") + lie
    at_end = refusal(path, gguf([LLAMA, (b"key", last)]))
    name = refusal(path, gguf(tensors=[lie + tensor(b"a", [1], 0, 0)[8:]]))
    for message in (key, value, in_array, at_end, name):
        assert "cut short or damaged" in message
        assert "runs past the end" in message
    assert "metadata key 1 of 1" in key
    assert "'key'" in value
    assert "'key'" in in_array


@pytest.mark.parametrize("item_type", [U8, F64, BOOL, STRING])
@pytest.mark.parametrize("count", [1000, 2**60, 2**64 - 1])
def test_arrays_that_cannot_fit(path: Path, item_type: int, count: int) -> None:
    content = gguf([LLAMA, (b"key", array(item_type, [], count))])
    assert "'key' runs past the end" in refusal(path, content)


def test_limits(path: Path) -> None:
    keys = [LLAMA] + [(b"k%d" % i, scalar(U8, 0)) for i in range(4096)]
    assert "4,097 metadata keys" in refusal(path, gguf(keys))
    content = gguf(tensors=[tensor(b"%d" % i, [8], GGML_F32, 32 * i) for i in range(16385)])
    assert "16,385 tensors" in refusal(path, content + bytes(32 * 16385))
    assert "string arrays" in refusal(path, gguf([LLAMA, (b"s", array(STRING, [b""] * (2**21)))]))
    assert "names and texts" in refusal(path, gguf([LLAMA, (b"s", text(bytes(2**21)))]))
    path.write_bytes(gguf([LLAMA, (b"big", array(U8, [], 2**31))]))
    os.truncate(path, 2**32)  # sparse
    with pytest.raises(ModelFormatError, match="a header's limit"):
        read_header(path)


def test_nested_array(path: Path) -> None:
    assert "array of arrays" in refusal(path, gguf([LLAMA, (b"key", array(ARRAY, [], 1))]))


@pytest.mark.parametrize("value_type", [13, 255, 2**32 - 1])
def test_unknown_value_type(path: Path, value_type: int) -> None:
    unknown = struct.pack("<IQ", value_type, 0)
    assert "unknown value type" in refusal(path, gguf([LLAMA, (b"key", unknown)]))
    assert "unknown value type" in refusal(path, gguf([LLAMA, (b"key", array(value_type, [0]))]))


def test_bool_that_is_neither(path: Path) -> None:
    assert "neither 0 nor 1" in refusal(path, gguf([LLAMA, (b"key", scalar(BOOL, 2))]))
    assert "neither 0 nor 1" in refusal(path, gguf([LLAMA, (b"key", array(BOOL, [0, 255]))]))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"", "metadata key of 0 bytes"),
        (b"k" * 65536, "metadata key of 65536 bytes"),
        (b"\xff\xfe\x1b", "isn't UTF-8"),
        (b"general.alignment\0", "NUL"),
        (b"general.architecture", "occurs twice"),
    ],
)
def test_bad_keys(path: Path, key: bytes, words: str) -> None:
    assert words in refusal(path, gguf([LLAMA, (key, scalar(U8, 0))]))


def test_architecture_is_a_string(path: Path) -> None:
    for keys in ([], [(b"general.architecture", scalar(U32, 1))]):
        assert "general.architecture is missing or is not" in refusal(path, gguf(keys))


@pytest.mark.parametrize("alignment", [0, 1, 4, 24, 2**17, 2**31, 2**32 - 1])
def test_bad_alignment(path: Path, alignment: int) -> None:
    keys = [LLAMA, (b"general.alignment", scalar(U32, alignment))]
    assert f"general.alignment is {alignment}, not a power" in refusal(path, gguf(keys))


@pytest.mark.parametrize("value", [scalar(U64, 32), scalar(I32, 32), text(b"32"), array(U32, [32])])
def test_alignment_of_another_type(path: Path, value: bytes) -> None:
    keys = [LLAMA, (b"general.alignment", value)]
    assert "not a 32-bit unsigned" in refusal(path, gguf(keys))


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (tensor(b"", [32], GGML_F32, 0), "tensor name of 0 bytes"),
        (tensor(b"n" * 64, [32], GGML_F32, 0), "tensor name of 64 bytes"),
        (tensor(b"\xc3", [32], GGML_F32, 0), "isn't UTF-8"),
        (tensor(b"a\0b", [32], GGML_F32, 0), "NUL"),
        (tensor(b"t", [], GGML_F32, 0), "0 dimensions"),
        (tensor(b"t", [1] * 5, GGML_F32, 0), "5 dimensions"),
        (tensor(b"t", [0], GGML_F32, 0), "impossible shape (0,)"),
        (tensor(b"t", [32, 0, 2], GGML_F32, 0), "impossible shape"),
        (tensor(b"t", [2**32, 2**32], GGML_F32, 0), "impossible shape"),
        (tensor(b"t", [2**64 - 1] * 4, GGML_F32, 0), "impossible shape"),
        (tensor(b"t", [2**62], GGML_F32, 0), "bytes are missing"),
        (tensor(b"t", [32], 31, 0), "converted again"),
        (tensor(b"t", [32], 77, 0), "newer edgespec"),
        (tensor(b"t", [31], GGML_Q4_0, 0), "rows of 31 elements in blocks of 32"),
        (tensor(b"t", [128, 2], GGML_Q4_K, 0), "rows of 128 elements in blocks of 256"),
        (tensor(b"t", [8], GGML_F32, 4), "not aligned to 32"),
        (tensor(b"t", [8], GGML_F32, 64), "follows a gap"),
        (tensor(b"t", [8], GGML_F32, 2**64 - 32), "follows a gap"),
    ],
)
def test_bad_tensors(path: Path, info: bytes, words: str) -> None:
    assert words in refusal(path, gguf(tensors=[info], data=512))


def test_tensors_that_clash(path: Path) -> None:
    first, second = tensor(b"a", [16], GGML_F32, 0), tensor(b"a", [16], GGML_F32, 64)
    assert "tensor 'a' occurs twice" in refusal(path, gguf(tensors=[first, second], data=128))
    for offset in (0, 32):
        second = tensor(b"b", [16], GGML_F32, offset)
        assert "'b' overlaps another" in refusal(path, gguf(tensors=[first, second], data=128))


# -- anything else -------------------------------------------------------------------------------

EDGES = [0, 1, 7, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]
PATCHES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from([struct.pack("<Q", edge) for edge in EDGES]),
    st.sampled_from([struct.pack("<I", edge) for edge in (*range(14), 77, 2**31, 2**32 - 1)]),
)


@settings(max_examples=300, deadline=10_000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(sample())
    for _ in range(data.draw(st.integers(1, 3))):
        at, patch = data.draw(st.integers(0, len(content))), data.draw(PATCHES)
        content[at : at + data.draw(st.sampled_from([len(patch), 0, 100]))] = patch
    check_mutant(tmp_path_factory.getbasetemp() / "x.gguf", bytes(content))


def test_flipped_bytes(path: Path) -> None:
    rng = np.random.default_rng(0)
    original = np.frombuffer(sample(), np.uint8)
    for _ in range(1000):
        content = original.copy()
        at = rng.integers(0, len(content), rng.integers(1, 4))
        content[at] = rng.integers(0, 256, len(at))
        check_mutant(path, content.tobytes())


def check_mutant(path: Path, content: bytes) -> None:
    try:
        header = read(path, content)
    except ModelFormatError:
        refusal(path, content)
    else:
        check_invariants(header, len(content))
