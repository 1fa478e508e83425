"""Which texts tell tokenizers apart, and what a checkpoint's own tokenizer makes of them.

Invariant: every text is in Unicode's normal form C, as llama.cpp doesn't normalise; and the texts
depend on the vocabulary alone, so that the same checkpoint is always asked the same.
"""

from __future__ import annotations

import importlib.util
import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError
from edgespec.exporters.gguf_vocabulary import UNREAD, Vocabulary

Encode = Callable[[str], list[int]]

_SAMPLE = 3000  # words of the vocabulary that are asked for, each alone and in rows
_ROW = 12

TEXTS: tuple[str, ...] = (
    "The quick brown fox jumps over the lazy dog.",
    " one leading space",
    "   three leading spaces, two trailing  ",
    "\ta tab\tand another\r\nand a line\n\n\nand three\n  indented\n\t\tmore\n",
    "def fold(xs, start=0):\n    for x in xs:\n        start += x * 2  # sum\n    return start\n",
    "#include <map>\nint main(int argc, char** argv) { return !(argc << 3) && argv[0][1] != 'x'; }",
    '{"key": [1, 2.5, null], "nested": {"a-b_c": "\\n"}}',
    "I'm sure they've said it'll do; HE'S NOT, WE'LL SEE, 'tis 'twas O'Neill's",
    "0 12 345 6789 01234 567890 1234567 3.14159 1,000,000 2026-11-29 10:45 0xFFee 5kg",
    "👩‍💻 🚀🚀 ✅ 🇫🇷 ☕️ 😀😃😄 and text",
    "今天天气很好，我们去公园散步吧。你好！2026年",
    "日本語のテキストと、カタカナ ひらがな。한국어 문장도 있습니다.",
    "Съешь ещё этих мягких французских булок. ΑΒΓ αβγ ÄÖÜ ß naïve café Ωmega",
    "مرحبا بالعالم العربي שלום עולם हिन्दी में लिखा हुआ ภาษาไทย",
    "!!! ??? ... --- === *** ((())) [[]] <<>> ~~ `` ''' \"\"\" #$%^&@",
    "https://example.org/a/b?c=d&e=f#g user@example.org C:\\dir\\file.txt ./x ../y",
    "camelCase PascalCase snake_case kebab-case SCREAMING_CASE mixedUPlow iPhone XMLHttpRequest",
    "x\u00a0y\u2003z\u200bw\u2028v",
    "a  b   c    d     e      f        g                h",
    "=\n=\r\n \n \r\n  \n\n .\n\n!\n\n\n?",
    "½ ² ① Ⅷ ٣ ५ 〇 x² H₂O",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∫₀¹ f(x)dx ≈ √2",
    "word",
    "\n",
    " ",
    "  ",
)


@dataclass(frozen=True)
class Reference:
    """A checkpoint's own tokenizer.

    Attributes:
        name: the program behind it. encode: text with control tokens recognised, nothing added.
    """

    name: str
    encode: Encode


def reference(vocabulary: Vocabulary, folder: Path) -> Reference | None:
    """The checkpoint's tokenizer as its publisher runs it; None where nothing here can run it."""
    if vocabulary.kind == UNREAD:
        return None
    if vocabulary.json is not None:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(json.dumps(vocabulary.json))
        except Exception as error:  # its errors are of no type of their own
            raise ExportError(f"The tokenizer.json in {folder} can't be used: {error}.") from error
        return Reference(
            "tokenizers", lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
        )
    if importlib.util.find_spec("sentencepiece") is None:
        return None
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromFile(str(folder / "tokenizer.model"))
    except (OSError, RuntimeError) as error:
        raise ExportError(f"The tokenizer.model in {folder} can't be used: {error}.") from error
    return Reference("sentencepiece", lambda text: list(processor.EncodeAsIds(text)))


def probe_texts(vocabulary: Vocabulary, *, marks: bool = True) -> list[str]:
    """Texts of many kinds, the vocabulary's own words, and words beside its added tokens.

    marks: whether added tokens are among them, which sentencepiece alone knows nothing of.
    """
    texts = list(TEXTS)
    words = [word for word in _words(vocabulary) if unicodedata.is_normalized("NFC", word)]
    step = max(1, len(words) // _SAMPLE)
    chosen = words[::step]
    texts += chosen
    joined = ("".join(chosen[i : i + _ROW]) for i in range(0, len(chosen), _ROW))
    texts += [text for text in joined if unicodedata.is_normalized("NFC", text)]
    for mark in _spread(marked(vocabulary), 40) if marks else ():
        texts += [f"{mark}word", f"word{mark} word", f"{mark}\nline", f"a{mark}{mark}b"]
    return texts


def marked(vocabulary: Vocabulary) -> list[str]:
    """The added tokens that stand by themselves: none that white space beside them changes."""
    return [
        str(entry["content"])
        for entry in vocabulary.added
        if not (entry.get("lstrip") or entry.get("rstrip") or entry.get("single_word"))
        and str(entry["content"]).strip()
    ]


def _words(vocabulary: Vocabulary) -> Iterator[str]:
    """The text of each token that is a whole text."""
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    added = {str(entry["content"]) for entry in vocabulary.added}
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind != 1 or token in added:
            continue
        if vocabulary.kind == "llama":
            yield token.replace("\u2581", " ")
            continue
        try:
            yield bytes(letters[letter] for letter in token).decode("utf-8")
        except (KeyError, UnicodeDecodeError):
            continue


def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where it can be seen, one from U+0100 on otherwise."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {
        byte: chr(0x100 + i) for i, byte in enumerate(hidden)
    }


def _spread(items: Sequence[str], limit: int) -> Sequence[str]:
    return items[:: max(1, -(-len(items) // limit))]
