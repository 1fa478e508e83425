"""Writes ONNX models of a few kilobytes with random weights, in the shapes that exporters give
them: a cache shared in place or returned as a longer copy, with or without a mask and positions,
merged, in half precision, choosing their rows; and some that are wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_gguf import spm_vocabulary

WIDTH, HEADS, HEAD = 32, 2, 16
CONV = 3  # tokens that a convolution sees
CACHE_TYPES = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


def write_tiny_onnx(
    folder: Path,
    *,
    attention: Literal["gqa", "copy"] = "copy",
    cache: str = "float",
    logits: str = "float",
    mask: bool = True,
    positions: bool = True,
    merged: bool = False,
    rows: Literal["logits_rows", "num_logits_to_keep"] | None = None,
    external: bool = False,
    ignores_past: bool = False,
    ignores_mask: bool = False,
    window: int = 0,
    leaks: float = 0,
    rounded: bool = False,
    switch: int = 0,
    switch_named: bool = True,
    last_row: bool = False,
    nan: bool = False,
    cached: bool = True,
    states: Sequence[Literal["conv", "recurrent"]] = (),
    extra_input: str | None = None,
    tokens: Sequence[bytes] | None = None,
    padding: int = 0,
    layers: int = 2,
    context: int = 2048,
    seed: int = 0,
    scale: float = 0.15,
    file: str = "model.onnx",
) -> Path:
    """A folder with a model of `layers` layers; positions are learnt (copy) or rotated (gqa).

    `padding`: rows of logits behind the vocabulary; `window`: places that attention looks back;
    `leaks`: the share of each hidden place that shows; `rounded`: activations to 8 bits; `states`:
    layers in front whose past has a fixed size; `switch`: tokens up to which gqa rotates otherwise
    than in longer texts, and whether the nodes that choose are named as onnxruntime-genai's
    builder names them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = list(tokens or spm_vocabulary()[0])
    build = _Builder(seed, scale)
    size = len(vocabulary) + padding
    inputs = [_value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
    if mask:
        inputs.append(_value("attention_mask", TensorProto.INT64, ["batch_size", "total"]))
    if positions:
        shape = ["batch_size", "sequence_length"]
        inputs.append(_value("position_ids", TensorProto.INT64, shape))
    if merged:
        inputs.append(_value("use_cache_branch", TensorProto.BOOL, [1]))
    if rows:
        shape = ["rows"] if rows == "logits_rows" else []
        inputs.append(_value(rows, TensorProto.INT64, shape))
    if extra_input:
        inputs.append(_value(extra_input, TensorProto.FLOAT, ["batch_size"]))
    outputs = [_value("logits", CACHE_TYPES[logits], ["batch_size", "rows", size])]
    kind = CACHE_TYPES[cache]
    for layer in range(layers if cached else 0):
        for part in ("key", "value"):
            shape = ["batch_size", HEADS, "past_sequence_length", HEAD]
            inputs.append(_value(f"past_key_values.{layer}.{part}", kind, shape))
            shape = ["batch_size", HEADS, "total_sequence_length", HEAD]
            outputs.append(_value(f"present.{layer}.{part}", kind, shape))

    for state in states:
        shape = ["batch_size", WIDTH, CONV] if state == "conv" else ["batch_size", WIDTH]
        inputs.append(_value(f"past_{state}.0", kind, shape))
        outputs.append(_value(f"present_{state}.0", kind, shape))

    x = build.op("Gather", build.weight("embedding", size, WIDTH), "input_ids")
    if "conv" in states:
        x = _convolved(build, x, kind)
    if "recurrent" in states:
        x = _recurrent(build, x, kind)
    if attention == "copy":
        places = "position_ids" if positions else _places(build, mask)
        x = build.op("Add", x, build.op("Gather", build.weight("places", context, WIDTH), places))
    tables = _rotations(build, kind, context, switch, switch_named) if attention == "gqa" else None
    for layer in range(layers):
        if rounded:
            x = build.rounded(x)
        q, k, v = (
            build.op("MatMul", x, build.weight(f"{name}{layer}", WIDTH, WIDTH)) for name in "qkv"
        )
        if tables is not None:
            mixed = _grouped(build, layer, q, k, v, kind, tables)
        elif cached:
            mixed = _copied(
                build, layer, q, k, v, kind, mask and not ignores_mask, merged, ignores_past,
                window, leaks,
            )  # fmt: skip
        else:
            mixed = v
        x = build.op("Add", x, build.op("MatMul", mixed, build.weight(f"o{layer}", WIDTH, WIDTH)))
    if rows == "logits_rows":
        x = build.op("Gather", x, rows, axis=1)
    elif rows or last_row:
        one = build.constant("one", [1])
        many = build.op("Reshape", rows, one) if rows else one
        end = build.constant("end", [2**31])
        x = build.op("Slice", x, build.op("Neg", many), end, one)
    x = build.op("MatMul", x, build.weight("head", WIDTH, size, scale=0.02))
    if nan:
        x = build.op("Add", x, build.constant("nan", [np.nan], np.float32))
    build.nodes.append(helper.make_node("Cast", [x], ["logits"], to=CACHE_TYPES[logits]))

    graph = helper.make_graph(build.nodes, "tiny", inputs, outputs, build.weights)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    if external:
        onnx.save(
            model,
            folder / file,
            save_as_external_data=True,
            location=f"{file}.data",
            size_threshold=100,  # shapes must stay where they are looked for
        )
    else:
        onnx.save(model, folder / file)
    write_words(folder, vocabulary)
    config = {"model_type": "tiny", "max_position_embeddings": context, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_words(folder: Path, vocabulary: Sequence[bytes]) -> None:
    """A tokenizer.json for a vocabulary as SentencePiece orders it; the first three are special."""
    texts = [entry.decode() for entry in vocabulary]
    data: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": texts[i], "special": True, "single_word": False}
            | {"lstrip": False, "rstrip": False, "normalized": False}
            for i in range(3)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")


class _Builder:
    def __init__(self, seed: int, scale: float) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = np.random.default_rng(seed)
        self._scale = scale

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def rounded(self, x: str) -> str:
        """To 8 bits, by a scale that all tokens of a pass share."""
        outputs = [f"{part}_{len(self.nodes)}" for part in ("rounded", "step", "zero_point")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], outputs))
        return self.op("DequantizeLinear", *outputs)

    def weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        array = self._rng.normal(0, scale or 10 * self._scale, shape).astype(np.float32)
        if name[0] in "qkvo":
            array /= np.sqrt(WIDTH) * self._scale * 5
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, name: str, values: Any, kind: Any = np.int64) -> str:
        if name not in {weight.name for weight in self.weights}:
            self.weights.append(numpy_helper.from_array(np.array(values, kind), name))
        return name


def _value(name: str, kind: int, shape: Sequence[Any]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _places(build: _Builder, mask: bool) -> str:
    """Positions where none are given: from the mask's running sum, or from the past's length."""
    ids = build.op("Shape", "input_ids")
    one = build.constant("one_index", 1)
    new = build.op("Gather", ids, one)
    if mask:
        summed = build.op("CumSum", "attention_mask", one)
        last = build.op("Sub", summed, build.constant("one", [1]))
        end = build.constant("end", [2**31])
        start = build.op("Neg", build.op("Reshape", new, build.constant("one", [1])))
        return build.op("Slice", last, start, end, build.constant("one", [1]))
    past = build.op("Gather", build.op("Shape", "past_key_values.0.key"), build.constant("two", 2))
    total = build.op("Add", past, new)
    return build.op("Range", past, total, one)


def _heads(build: _Builder, x: str) -> str:
    shape = build.constant("split", [0, 0, HEADS, HEAD])
    return build.op("Transpose", build.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def _copied(
    build: _Builder,
    layer: int,
    q: str,
    k: str,
    v: str,
    kind: int,
    mask: bool,
    merged: bool,
    ignores_past: bool,
    window: int,
    leaks: float,
) -> str:
    """Attention as exporters spell it out; the cache comes back longer."""
    q = _heads(build, q)
    whole = {}
    for part, x in (("key", k), ("value", v)):
        past = f"past_key_values.{layer}.{part}"
        if merged:
            past = _if_past(build, past, kind)
        new = build.op("Cast", _heads(build, x), to=kind)
        present = f"present.{layer}.{part}"
        build.nodes.append(helper.make_node("Concat", [past, new], [present], axis=2))
        used = new if ignores_past else present
        whole[part] = build.op("Cast", used, to=TensorProto.FLOAT)
    turned = build.op("Transpose", whole["key"], perm=[0, 1, 3, 2])
    scores = build.op("Mul", build.op("MatMul", q, turned), build.constant("scale", 0.25, "f4"))
    zero, one = build.constant("zero", 0), build.constant("one_index", 1)
    two, three = build.constant("two", 2), build.constant("three", 3)
    shape = build.op("Shape", scores)
    new_length, total = build.op("Gather", shape, two), build.op("Gather", shape, three)
    columns = build.op("Range", zero, total, one)
    lines = build.op("Range", build.op("Sub", total, new_length), total, one)
    lines = build.op("Unsqueeze", lines, build.constant("axis", [1]))
    seen = build.op("LessOrEqual", columns, lines)
    if window:
        first = build.op("Sub", lines, build.constant("window", window))
        seen = build.op("And", seen, build.op("Greater", columns, first))
    if mask and not ignores_past:
        seen = build.op("And", seen, build.op("Cast", "attention_mask", to=TensorProto.BOOL))
    scores = build.op("Where", seen, scores, build.constant("least", -1e9, "f4"))
    weights = build.op("Softmax", scores, axis=-1)
    if leaks:
        hidden = build.op("Cast", build.op("Sub", one, "attention_mask"), to=TensorProto.FLOAT)
        hidden = build.op("Mul", hidden, build.constant("leaks", leaks, "f4"))
        weights = build.op("Add", weights, hidden)
    mixed = build.op("MatMul", weights, whole["value"])
    mixed = build.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return build.op("Reshape", mixed, build.constant("join", [0, 0, WIDTH]))


def _convolved(build: _Builder, x: str, kind: int) -> str:
    """A causal convolution over the text, whose past are the columns of the last tokens."""
    columns = build.op("Transpose", build.op("Cast", x, to=kind), perm=[0, 2, 1])
    whole = build.op("Concat", "past_conv.0", columns, axis=2)
    axis, one, end = (
        build.constant(*c) for c in (("two_axis", [2]), ("one", [1]), ("end", [2**31]))
    )
    last = build.constant("last_columns", [-CONV])
    build.nodes.append(helper.make_node("Slice", [whole, last, end, axis], ["present_conv.0"]))
    whole = build.op("Cast", whole, to=TensorProto.FLOAT)
    kernel = build.weight("kernel", WIDTH, 1, CONV, scale=0.5)
    mixed = build.op("Slice", build.op("Conv", whole, kernel, group=WIDTH), one, end, axis)
    return build.op("Add", x, build.op("Transpose", mixed, perm=[0, 2, 1]))


def _recurrent(build: _Builder, x: str, kind: int) -> str:
    """A running sum over all of the text, whose past is the sum so far."""
    one = build.constant("one_index", 1)
    past = build.op("Cast", "past_recurrent.0", to=TensorProto.FLOAT)
    past = build.op("Unsqueeze", past, build.constant("one", [1]))
    sums = build.op("Add", build.op("CumSum", x, one), past)
    newest = build.op("Gather", sums, build.constant("newest", -1), axis=1)
    build.nodes.append(helper.make_node("Cast", [newest], ["present_recurrent.0"], to=kind))
    seen = build.op("Tanh", build.op("Mul", sums, build.constant("tenth", 0.1, "f4")))
    return build.op("Add", x, seen)


def _if_past(build: _Builder, past: str, kind: int) -> str:
    """The past where the flag says there is one, else nothing, whatever was given."""
    name = f"chosen_{past}"
    shape = [1, HEADS, "past", HEAD]

    def branch(tag: str, node: Any) -> Any:
        return helper.make_graph([node], tag, [], [_value(node.output[0], kind, shape)])

    zero, axis = build.constant("zeros", [0]), build.constant("two_axis", [2])
    yes = helper.make_node("Identity", [past], [f"{name}_yes"])
    no = helper.make_node("Slice", [past, zero, zero, axis], [f"{name}_no"])
    build.nodes.append(
        helper.make_node(
            "If",
            ["use_cache_branch"],
            [name],
            then_branch=branch(f"{name}_then", yes),
            else_branch=branch(f"{name}_else", no),
        )
    )
    return name


def _rotations(
    build: _Builder, kind: int, context: int, switch: int, named: bool
) -> tuple[str, str]:
    """Tables of cosines and sines; behind `switch` tokens other ones, as with LongRoPE."""
    angles = np.arange(context)[:, None] / 100.0 ** (np.arange(HEAD // 2) / (HEAD // 2))
    half = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    if not switch:
        return (
            build.constant("cos", np.cos(angles), half),
            build.constant("sin", np.sin(angles), half),
        )

    def branch(size: str, angles: np.ndarray) -> Any:
        tables = {
            f"{part}_cache_{size}": numpy_helper.from_array(turned(angles).astype(half))
            for part, turned in (("cos", np.cos), ("sin", np.sin))
        }
        nodes = [helper.make_node("Constant", [], [name], value=tables[name]) for name in tables]
        element = TensorProto.FLOAT16 if half is np.float16 else TensorProto.FLOAT
        outputs = [_value(name, element, angles.shape) for name in tables]
        return helper.make_graph(nodes, f"{size}_rotemb_caches_graph", [], outputs)

    total = build.op("Shape", "attention_mask")
    total = build.op("Gather", total, build.constant("one_index", 1))
    limit = build.constant(f"/model/constants/INT64/{switch}" if named else "limit", switch)
    if named:  # as for TensorRT-RTX, where both tables have one shape and other names
        longer, small = "/model/rotemb_caches_subgraph/Greater/output_0", branch("padded", angles)
    else:
        longer, small = "longer", branch("small", angles[:switch])
    build.nodes.append(helper.make_node("Greater", [total, limit], [longer]))
    build.nodes.append(
        helper.make_node(
            "If",
            [longer],
            ["cos_cache", "sin_cache"],
            then_branch=branch("large", angles / 4),
            else_branch=small,
        )
    )
    return "cos_cache", "sin_cache"


def _grouped(
    build: _Builder, layer: int, q: str, k: str, v: str, kind: int, tables: tuple[str, str]
) -> str:
    """Microsoft's GroupQueryAttention: past and present may be one buffer."""
    one = build.constant("one_index", 1)
    axis = build.constant("axis", [1])
    counted = build.op("ReduceSum", "attention_mask", axis, keepdims=0)
    seen = build.op("Cast", build.op("Sub", counted, one), to=TensorProto.INT32)
    total = build.op("Gather", build.op("Shape", "attention_mask"), one)
    total = build.op("Cast", total, to=TensorProto.INT32)
    q, k, v = (build.op("Cast", x, to=kind) for x in (q, k, v))
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for part in ("key", "value")]
    name = f"grouped_{layer}"
    build.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *past, seen, total, *tables],
            [name, *present],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=1,
        )
    )
    return build.op("Cast", name, to=TensorProto.FLOAT)
