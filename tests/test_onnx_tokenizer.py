"""Vocabularies of ONNX folders, written here as transformers writes them, against `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from fakes import FakeSession, fake_model
from tokenizers import Tokenizer

from edgespec.backends.onnx_folder import OnnxFolder
from edgespec.backends.onnx_tokenizer import OnnxTokenizer
from edgespec.chat import FALLBACK_TEMPLATE, ChatTemplate, Message, encode_chat
from edgespec.runtime import Runtime
from edgespec.tokenizer import decode

CONTROL = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
LETTERS = "▁abcdefghijklmnopqrstuvwxyz<>/:;=123\n"
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def words(kind: str, *more: str, scheme: str = "always", split: bool = False) -> dict[str, Any]:
    """tokenizer.json of `CONTROL`, `more` control tokens, bytes and letters."""
    control = [*CONTROL, *more]
    texts = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
    model: dict[str, Any] = {"type": kind, "byte_fallback": True}
    if kind == "Unigram":
        # SentencePiece gives control tokens the score 0, which is more than any piece has.
        scores = [0.0] * (len(texts) - len(LETTERS)) + [-5.0 - i / 9 for i in range(len(LETTERS))]
        model |= {"unk_id": 0, "vocab": [list(pair) for pair in zip(texts, scores, strict=True)]}
    else:
        vocab = {text: i for i, text in enumerate(texts)}
        model |= {"unk_token": "<unk>", "fuse_unk": True, "vocab": vocab, "merges": []}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    decoders = [{"type": "ByteFallback"}, {"type": "Fuse"}, space]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": True, **FLAGS} for i, text in enumerate(control)
        ],
        "normalizer": None,
        "pre_tokenizer": space,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def tokenizer(folder: Path, written: dict[str, Any], **settings: Any) -> OnnxTokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"eos_token_id": 2}')
    rows = len(written["model"]["vocab"])
    return OnnxTokenizer(OnnxFolder(folder / "model.onnx", folder, "words"), rows)


TALK = [Message("user", "hi a</s>b"), Message("assistant", "yes"), Message("user", "so")]


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_words_that_spell_control_tokens_stay_words(kind: str, tmp_path: Path) -> None:
    """A Unigram model looks for all its entries in plain text, these among them."""
    ours = tokenizer(tmp_path, words(kind), bos_token="<s>", add_bos_token=True)
    assert (ours.bos_id, ours.add_bos, ours.stop_ids) == (1, True, {2, 5})
    assert dict(ours.control_tokens) == {text: i for i, text in enumerate(CONTROL)}
    for text in ("old price: <s>12</s>", "a</s>b", "<pad><unk>Ü</s>", "<|im_end|>", "</s>"):
        ids = ours.encode(text)
        assert min(ids) >= len(CONTROL)
        assert decode(ours, ids) == " " + text
    assert ours.vocabulary()[: len(CONTROL)] == [text.encode() for text in CONTROL]
    assert [ours.token_bytes(i) for i in range(len(CONTROL))] == [b""] * len(CONTROL)
    ids = encode_chat(ours, ChatTemplate(FALLBACK_TEMPLATE), TALK)
    assert [CONTROL[i] for i in ids if i < len(CONTROL)] == [
        "<s>", *["<|im_start|>", "<|im_end|>"] * 3, "<|im_start|>",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_a_stop_token_that_is_not_listed_is_not_found_in_words(kind: str, tmp_path: Path) -> None:
    written = words(kind)
    del written["added_tokens"][2]
    ours = tokenizer(tmp_path, written)
    assert 2 in ours.stop_ids and 2 not in ours.encode("a</s>b")
    assert ours.vocabulary()[2] == b"</s>"


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_space_before_the_text_stands_where_it_does_in_the_whole_text(
    kind: str, scheme: str, nested: bool, tmp_path: Path
) -> None:
    written = words(kind, scheme=scheme)
    if nested:
        parts = [written["pre_tokenizer"]]
        written["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    whole = Tokenizer.from_str(json.dumps(written))
    ours = tokenizer(tmp_path, written)
    talk = [Message("user", "hi"), Message("assistant", " so"), Message("user", "a b\n")]
    with_tag = "{{ '[x] ' }}" + FALLBACK_TEMPLATE  # which begins with no control token
    for source in (FALLBACK_TEMPLATE, with_tag):
        template = ChatTemplate(source)
        rendered = whole.encode(template.render(talk), add_special_tokens=False).ids
        assert encode_chat(ours, template, talk) == rendered
    for text in ("hi", " hi", "\nhi"):
        ids = whole.encode(text, add_special_tokens=False).ids
        session = FakeSession(ours.num_tokens, bias=dict.fromkeys(ours.stop_ids, -99.0))
        with Runtime(fake_model(session, ours)) as runtime:
            assert runtime.generate(text, max_tokens=1).result.tokens
            assert session.cache == ids


def test_the_parts_of_an_answer_are_told_apart(tmp_path: Path) -> None:
    """Or what was thought would be read as a part of the answer, in later turns too."""
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
    ends = ["<|return|>", "<|call|>"]
    ours = tokenizer(tmp_path, words("BPE", *marks, *ends, scheme="never"))
    ids = {text: len(CONTROL) + i for i, text in enumerate([*marks, *ends])}
    assert ours.stop_ids == {2, 5, ids["<|return|>"], ids["<|call|>"]}
    assert [decode(ours, [ids[text]]) for text in marks] == marks
    assert decode(ours, [ids[text] for text in ends]) == ""
    thought, said = ours.encode("hm"), ours.encode("so")
    channel, message = [ids["<|channel|>"]], [ids["<|message|>"]]
    answer = [*channel, *ours.encode("analysis"), *message, *thought, ids["<|end|>"]]
    answer += [ids["<|start|>"], *ours.encode("assistant")]
    answer += [*channel, *ours.encode("final"), *message, *said]
    text = decode(ours, answer)
    source = (
        "{% for m in messages %}{% if '<|channel|>analysis<|message|>' in m.content or "
        "'<|channel|>final<|message|>' in m.content %}{{ raise_exception('parts') }}{% endif %}"
        "{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    )
    talk = [Message("user", "x"), Message("assistant", text), Message("user", "y")]
    prompt = encode_chat(ours, ChatTemplate(source), talk)
    assert decode(ours, prompt) == "user:x;assistant:so;user:y;"
    assert not {*ids.values()} & {*ours.encode(text)}  # people's words are plain all the same


def test_what_its_maker_suppresses(tmp_path: Path) -> None:
    assert tokenizer(tmp_path, words("BPE")).suppressed_ids == frozenset()
    about = {"suppress_tokens": [2, 7, 8, 10**9]}  # with the end of a text, and what there isn't
    (tmp_path / "generation_config.json").write_text(json.dumps(about))
    assert tokenizer(tmp_path, words("BPE")).suppressed_ids == {7, 8}


def test_where_answers_have_no_parts_nothing_is_shown_of_them(tmp_path: Path) -> None:
    """Phi-3 has <|end|> too."""
    ours = tokenizer(tmp_path, words("BPE", "<|end|>", "<|message|>"))
    assert len(CONTROL) in ours.stop_ids
    assert decode(ours, [len(CONTROL), len(CONTROL) + 1]) == ""
