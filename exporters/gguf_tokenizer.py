"""How llama.cpp is told to split text, found by trying.

Invariant: a name for a pre-tokenizer is written only after llama.cpp, told that name, gave the same
ids as the checkpoint's own tokenizer for every probe text. There is no default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from edgespec.errors import ExportError, ModelError
from edgespec.exporters.checkpoint import Checkpoint
from edgespec.exporters.gguf_families import Family
from edgespec.exporters.gguf_probe import Reference, marked, probe_texts, reference
from edgespec.exporters.gguf_settings import Hyperparameters
from edgespec.exporters.gguf_vocabulary import Vocabulary, read_vocabulary
from edgespec.exporters.progress import Report

# Every rule of its own that llama.cpp has, by one of its names; those of families we know go first.
_PRE_TOKENIZERS = """
    llama-bpe qwen2 gpt-2 smollm refact dbrx smaug-bpe tekken gpt-4o starcoder olmo command-r falcon
    falcon3 mpt stablelm2 deepseek-llm deepseek-coder deepseek-v3 chatglm-bpe glm4 qwen35 exaone
    exaone-moe minerva-7b jais jais-2 viking poro-chat bloom gpt3-finnish codeshell chameleon
    trillion granite-docling bailingmoe seed-coder hunyuan hunyuan-dense hy_v4 kimi-k2 superbpe
    llama4 youtu grok-2 afmoe laguna minimax-m2 solar-open mellum2 minicpm5 tiny_aya ufakzeka
    spark2_5 granite-embed-multi-97m lfm2 pixtral megrez
""".split()

# Classes that add BOS and EOS by tokenizer_config.json, whatever tokenizer.json says.
_BY_CONFIG = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"}


@dataclass(frozen=True)
class Words:
    """A vocabulary with all that llama.cpp is told of it.

    Attributes:
        pre: its name for the pre-tokenizer.
        special: ids with a task, by GGUF's short name for it ("bos"), as numbers.
        flags: other keys under tokenizer.ggml.
        template: the chat template, one or named ones.
        texts: the probes that agreed; compared_with: whose ids they were compared with.
    """

    vocabulary: Vocabulary
    pre: str
    special: dict[str, int]
    flags: dict[str, bool]
    template: Any
    texts: int = 0
    compared_with: str | None = None
    notes: list[str] = field(default_factory=list)

    def add_to(self, writer: gguf.GGUFWriter) -> None:
        """Put the keys into a writer."""
        vocabulary = self.vocabulary
        writer.add_tokenizer_model(vocabulary.kind)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(vocabulary.tokens)
        if vocabulary.scores is not None:
            writer.add_token_scores(vocabulary.scores)
        writer.add_token_types(vocabulary.types)
        if vocabulary.merges:
            writer.add_token_merges(vocabulary.merges)
        for name, token in self.special.items():
            writer.add_uint32(f"tokenizer.ggml.{_LONG.get(name, name)}_token_id", token)
        for name, value in self.flags.items():
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        if self.template:
            writer.add_chat_template(self.template)


_LONG = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # as the format spells them


def read_words(
    checkpoint: Checkpoint,
    family: Family,
    hyperparameters: Hyperparameters,
    rows: int,
    folder: Path,
    report: Report,
) -> Words:
    """The vocabulary of a checkpoint with `rows` embeddings; `folder` is for files to try with.

    Raises ExportError where llama.cpp has no rule that splits text as the checkpoint does.
    """
    vocabulary = read_vocabulary(checkpoint, rows)
    own = reference(vocabulary, checkpoint.path)
    special, template = _special(checkpoint, rows)
    flags = _ends(checkpoint, vocabulary, special)
    if vocabulary.kind == "gpt2":
        names = dict.fromkeys([*family.pre_tokenizers, *_PRE_TOKENIZERS])
        candidates = [Words(vocabulary, name, special, flags, template) for name in names]
    else:
        first = bool(vocabulary.adds_space)
        candidates = [
            Words(vocabulary, "default", special, {**flags, "add_space_prefix": adds}, template)
            for adds in (first, not first)
        ]
    chosen = _try(candidates, own, checkpoint, family, hyperparameters, folder, report)
    return _with_every_stop(chosen, checkpoint, family, hyperparameters, folder)


def write_vocabulary(
    path: Path, family: Family, hyperparameters: Hyperparameters, words: Words
) -> None:
    """A GGUF file without tensors: enough for llama.cpp to tokenize with."""
    writer = gguf.GGUFWriter(path, family.architecture)
    add_values(writer, family.architecture, hyperparameters)
    words.add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def add_values(
    writer: gguf.GGUFWriter, architecture: str, hyperparameters: Hyperparameters
) -> None:
    """The model's hyperparameters, each under the architecture's name."""
    for name, value in hyperparameters.values.items():
        key = f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, str(value))


def differing(path: Path, words: Words, own: Reference) -> tuple[str, list[int], list[int]] | None:
    """The first probe text whose ids differ in a file: (text, its ids, the checkpoint's)."""
    from edgespec.backends import llama_probe

    texts = probe_texts(words.vocabulary, marks=own.name == "tokenizers")
    with llama_probe.vocabulary(path) as native:
        for text in texts:
            ours, theirs = native.encode(text), own.encode(text)
            if ours != theirs:
                return text, ours, theirs
    return None


# ------------------------------------------------------------------------------------- by trying


def _try(
    candidates: Sequence[Words],
    own: Reference | None,
    checkpoint: Checkpoint,
    family: Family,
    hyperparameters: Hyperparameters,
    folder: Path,
    report: Report,
) -> Words:
    if own is None:
        note = (
            "the ids of its tokens were not compared with the checkpoint's: there is only "
            "tokenizer.model, and the sentencepiece package isn't installed"
        )
        candidates[0].notes.append(note)
        return candidates[0]
    texts = probe_texts(candidates[0].vocabulary, marks=own.name == "tokenizers")
    wanted = {text: own.encode(text) for text in texts}
    report("finding how its tokenizer splits text")
    path = folder / "vocabulary.gguf"
    best: tuple[int, str, str] | None = None
    for candidate in candidates:
        write_vocabulary(path, family, hyperparameters, candidate)
        agreed, first = _agreement(path, wanted)
        if first is None:
            path.unlink()
            _note_white_space(candidate)
            return Words(
                **{**vars(candidate), "texts": len(texts), "compared_with": own.name},
            )
        if agreed >= 0 and (best is None or agreed > best[0]):
            best = agreed, candidate.pre, first
    path.unlink(missing_ok=True)
    near = f"; the nearest, {best[1]}, first differs at {best[2]!r}" if best else ""
    raise ExportError(
        f"llama.cpp knows no tokenizer that splits text as that of {checkpoint.source} does{near}. "
        "A newer llama-cpp-python may know it."
    )


def _agreement(path: Path, wanted: dict[str, list[int]]) -> tuple[int, str | None]:
    """How many texts get the wanted ids before the first that doesn't, and that one."""
    from edgespec.backends import llama_probe

    agreed = 0
    try:
        with llama_probe.vocabulary(path) as native:
            for text, ids in wanted.items():
                if native.encode(text) != ids:
                    return agreed, text
                agreed += 1
    except ModelError as error:
        if "pre-tokenizer" in str(error):  # a name that this llama.cpp doesn't know
            return -1, ""
        raise ExportError(f"llama.cpp can't use this checkpoint's vocabulary: {error}.") from error
    return agreed, None


def _note_white_space(words: Words) -> None:
    asked = len(marked(words.vocabulary))
    touched = len(words.vocabulary.added) - asked
    if touched:
        words.notes.append(
            f"{touched} of its added tokens take the white space beside them in the checkpoint's "
            "tokenizer; llama.cpp does so only for models it knows"
        )


# ------------------------------------------------------------------------------ ids with a task


def _special(checkpoint: Checkpoint, rows: int) -> tuple[dict[str, int], Any]:
    """Ids by their task as the gguf library finds them, and the chat template."""
    try:
        found = gguf.SpecialVocab(checkpoint.path, load_merges=False, n_vocab=rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(
            f"The tokenizer files of {checkpoint.source} are damaged ({error}); download them "
            "again."
        ) from error
    template = _template(checkpoint)
    return dict(found.special_token_ids), found.chat_template if template is None else template


def _template(checkpoint: Checkpoint) -> Any:
    """The template from files of its own, which go before the one in the tokenizer's settings."""
    default = checkpoint.text("chat_template.jinja")
    more = sorted((checkpoint.path / "additional_chat_templates").glob("*.jinja"))
    if default is None or not more:
        return default
    named = {"default": default} | {
        path.stem: checkpoint.text(f"{path.parent.name}/{path.name}") for path in more
    }
    return [{"name": name, "template": template} for name, template in named.items()]


def _ends(
    checkpoint: Checkpoint, vocabulary: Vocabulary, special: dict[str, int]
) -> dict[str, bool]:
    """Whether BOS and EOS are put around a text: as the checkpoint's tokenizer does it."""
    config = checkpoint.json("tokenizer_config.json")
    named = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    bos = bool(config.get("add_bos_token", True))
    eos = bool(config.get("add_eos_token", False))
    if vocabulary.json is not None and named not in _BY_CONFIG:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(json.dumps(vocabulary.json))
        ids = tokenizer.encode("a", add_special_tokens=True).ids
        bare = tokenizer.encode("a", add_special_tokens=False).ids
        start = ids.index(bare[0]) if bare and bare[0] in ids else 0
        bos = ids[:start] == [special.get("bos")]
        eos = ids[start + len(bare) :] == [special.get("eos")]
    return {
        "add_bos_token": bos and "bos" in special,
        "add_eos_token": eos and "eos" in special,
    }


def _with_every_stop(
    words: Words,
    checkpoint: Checkpoint,
    family: Family,
    hyperparameters: Hyperparameters,
    folder: Path,
) -> Words:
    """Every id that ends a generation ends one in llama.cpp too, or the person is told."""
    from edgespec.backends import llama_probe

    stops = stop_ids(checkpoint, len(words.vocabulary.tokens))
    path = folder / "vocabulary.gguf"
    free = [name for name in ("eos", "eot", "eom") if name not in words.special]
    while True:
        write_vocabulary(path, family, hyperparameters, words)
        with llama_probe.vocabulary(path) as native:
            missing = [token for token in stops if not native.ends_text(token)]
        path.unlink()
        if not missing:
            return words
        if not free:
            words.notes.append(
                f"llama.cpp can't be told that token {missing[0]} ends an answer too"
            )
            return words
        words.special[free.pop(0)] = missing[0]


def stop_ids(checkpoint: Checkpoint, size: int) -> list[int]:
    """The ids that end a generation by the checkpoint's configs, each once."""
    stops: list[int] = []
    for config in (checkpoint.json("generation_config.json"), checkpoint.config):
        named = config.get("eos_token_id")
        stops += named if isinstance(named, list) else [] if named is None else [named]
    return list(dict.fromkeys(stop for stop in stops if isinstance(stop, int) and stop < size))
