"""Messages to token ids, through the model's own chat template.

Control tokens are read out of the rendered text only where the template's text wrote them. What
people wrote (a user, a file, a tool, an earlier answer) is plain text, also where it spells a
control token: the model then sees the characters. For words that spell none, the ids are those of
the whole rendered text tokenized at once.

Tokens that only carry a meaning by convention (`<think>`, `<tool_call>` in some vocabularies) are
the tokenizer's choice: those in `control_tokens` are kept from people's words like the others, and
a template that looks for them in an answer (`content.split('</think>')`) still finds them.

Invariant: no control token's id comes from a character of a message or a variable.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.chat.bounded import TemplateLimits
from edgespec.chat.marking import Marker
from edgespec.chat.template import SandboxedTemplate, TemplateRefusal
from edgespec.errors import ConfigError
from edgespec.tokenizer import Tokenizer

__all__ = [
    "FALLBACK_TEMPLATE", "ROLES", "TRANSCRIPT_TEMPLATE", "ChatTemplate", "Message",
    "TemplateLimits", "encode_chat", "fallback_template",
]  # fmt: skip

ROLES = ("system", "user", "assistant", "tool")

# ChatML, which most models without a template of their own have seen.
FALLBACK_TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# For a vocabulary without ChatML's tokens. Plain text all through: here, people can write what
# looks like another's turn, since there is no token to tell them apart.
TRANSCRIPT_TEMPLATE = """\
{% for message in messages %}
{{ message.role + ': ' + message.content | trim + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""


# How gpt-oss begins what it thinks and what it says. Its template refuses answers that hold these.
_THINKS, _SAYS = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"


@dataclass(frozen=True)
class Message:
    """One turn. `role`: system, user, assistant or tool.

    `tokens`: the ids of an answer, where a model gave it, to go on with.
    """

    role: str
    content: str
    tokens: tuple[int, ...] = field(default=(), repr=False, compare=False)


AnyMessage = Message | Mapping[str, Any]


class ChatTemplate:
    """A model's chat template, compiled.

    `source`: Jinja, as in a tokenizer's `chat_template`. `bos_token`, `eos_token`: their texts,
    which the template may write. Raises TemplateError for a template that can't be used.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: TemplateLimits = TemplateLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._template = SandboxedTemplate(source, limits)
        self._specials = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[AnyMessage],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as text, to look at: its control tokens are not told from words.

        Messages are `Message`s or mappings with a role and further plain values (content may be
        None or a list of parts). `variables` reach the template: tools, enable_thinking, ...
        Raises ConfigError for a role or value that can't be used, TemplateError for a template
        that fails, refuses or takes too much.
        """
        variables["add_generation_prompt"] = add_generation_prompt
        text, marker = self._render(messages, variables, ())
        return marker.clean(text)

    def _render(
        self, messages: Sequence[AnyMessage], variables: Mapping[str, Any], control: Sequence[str]
    ) -> tuple[str, Marker]:
        given = [self._said(_as_mapping(message)) for message in messages]
        words = list(_strings([given, dict(variables)]))
        own = self._template.constants
        marker = Marker(control, [*words, *own, *self._specials.values()])
        plain = functools.partial(_marked, marker=marker, own=own)
        context: dict[str, Any] = {"tools": None, "documents": None}
        context.update({name: plain(value) for name, value in variables.items()})
        context.update(self._specials)
        # The role is one of four words, and templates do write '<|' + message.role + '|>'.
        context["messages"] = [{**plain(m), "role": m["role"]} for m in given]
        return self._template.render(context, marker, sum(map(len, words))), marker

    def _said(self, message: dict[str, Any]) -> dict[str, Any]:
        """An answer without what was thought before it, where the template wants that apart."""
        content = message.get("content")
        if message["role"] != "assistant" or not isinstance(content, str):
            return message
        if not {_THINKS, _SAYS} <= self._template.constants:
            return message
        _, says, said = content.rpartition(_SAYS)
        if not says and _THINKS not in content:
            return message
        return {**message, "content": said if says else ""}  # it was stopped while it thought


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[AnyMessage],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation, with exactly one BOS where the model or the template wants one.

    A template that refuses a conversation with system messages gets it once more with each system
    text in front of the next user message's, two line ends between them. Raises as
    `ChatTemplate.render` does.
    """
    control = tuple(tokenizer.control_tokens)
    variables["add_generation_prompt"] = add_generation_prompt
    try:
        text, marker = template._render(messages, variables, control)
    except TemplateRefusal:
        folded = _fold_system(messages)
        if folded is None:
            raise
        text, marker = template._render(folded, variables, control)
    ids: list[int] = []
    for index, segment in enumerate(_segments(text, tokenizer, marker)):
        if isinstance(segment, str):
            ids.extend(tokenizer.encode(segment, at_start=index == 0))
        else:
            ids.append(segment)
    bos = tokenizer.bos_id
    if bos is not None:
        while ids[:2] == [bos, bos]:
            del ids[0]
        if tokenizer.add_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
    return ids


def fallback_template(tokenizer: Tokenizer) -> str:
    """The source of a template for a model that brings none; the caller tells the user."""
    has_chatml = {"<|im_start|>", "<|im_end|>"} <= tokenizer.control_tokens.keys()
    return FALLBACK_TEMPLATE if has_chatml else TRANSCRIPT_TEMPLATE


def _segments(text: str, tokenizer: Tokenizer, marker: Marker) -> Iterator[str | int]:
    """Plain text and control tokens' ids, in order; no plain text is empty."""
    control = tokenizer.control_tokens
    parts = _splitter(tuple(control), marker.char).split(text)  # text, token, text, ..., text
    ids = [control[part] for part in parts[1::2]]
    for index, plain in enumerate(parts[::2]):
        plain = marker.clean(plain)
        if index > 0 and ids[index - 1] in tokenizer.rstrip_tokens:
            plain = plain.lstrip()
        if index < len(ids) and ids[index] in tokenizer.lstrip_tokens:
            plain = plain.rstrip()
        if plain:
            yield plain
        if index < len(ids):
            yield ids[index]


@functools.lru_cache(maxsize=16)
def _splitter(control: tuple[str, ...], marker: str) -> re.Pattern[str]:
    longest_first = sorted(filter(None, control), key=len, reverse=True)
    # One character has no inside: people's has the marker on both sides.
    one, mark = "(?:(?<!{1}){0}|{0}(?!{1}))", re.escape(marker)
    choices = [
        re.escape(text) if len(text) > 1 else one.format(re.escape(text), mark)
        for text in longest_first
    ]
    return re.compile(f"({'|'.join(choices) or '(?!)'})")


def _as_mapping(message: AnyMessage) -> dict[str, Any]:
    if isinstance(message, Message):
        given: dict[str, Any] = {"role": message.role, "content": message.content}
    else:
        given = dict(message)
    if given.get("role") not in ROLES:
        raise ConfigError(
            f"A message's role is one of {', '.join(ROLES)}, not {str(given.get('role'))[:40]!r}."
        )
    return given


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(list(value))
        yield from _strings(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def _marked(value: Any, marker: Marker, own: frozenset[str]) -> Any:
    """A copy of `value` in plain types, with people's words marked."""
    if isinstance(value, str):
        return marker.mark(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_marked(part, marker, own) for part in value]
    if isinstance(value, Mapping):
        # A key that the template names is the template's word; it must find it as it is.
        return {
            marker.mark(key)
            if isinstance(key, str) and (key not in own or marker.spells(key))
            else key: _marked(part, marker, own)
            for key, part in value.items()
        }
    raise ConfigError(f"A chat template can't be given a {type(value).__name__}.")


def _fold_system(messages: Sequence[AnyMessage]) -> list[dict[str, Any]] | None:
    """The conversation with its system texts in front of user texts; None if it has none."""
    folded: list[dict[str, Any]] = []
    waiting: list[str] = []
    given = [_as_mapping(message) for message in messages]
    if all(message["role"] != "system" for message in given):
        return None
    for message in given:
        content = message.get("content")
        if message["role"] == "system":
            waiting.append(
                content
                if isinstance(content, str)
                else "".join(part.get("text", "") for part in content or ())
            )
        elif message["role"] == "user" and waiting:
            before = "".join(text + "\n\n" for text in waiting)
            if isinstance(content, str):
                folded.append({**message, "content": before + content})
            else:
                parts = [{"type": "text", "text": before}, *(content or ())]
                folded.append({**message, "content": parts})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": "\n\n".join(waiting)})
    return folded
