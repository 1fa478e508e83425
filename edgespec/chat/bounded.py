"""Operations for templates whose cost is known before they run.

A stranger's template may call anything it is given with anything it can build, so each operation
that can return more than it was given computes the size of its result first, and each result is
weighed. The time is looked at on the way; memory follows from the work, since every character and
element costs at least one unit of it.

Invariant: no value heavier than `Meter.size` is built, and no operation starts after the deadline
or with the work used up.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2.filters import do_indent
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from edgespec.chat.marking import Marker
from edgespec.errors import TemplateError

_STEP = 32  # work of a step that builds nothing: a loop's turn, a call
_MAX_BITS = 4096
_MAX_DEPTH = 100
_MAX_WIDTH = 64  # of a number in a format, of an indent
# A field as Python reads it: it takes a length modifier and leaves it out.
_FORMAT = re.compile(r"%(?:\((\w*)\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.?)", re.DOTALL)


@dataclass(frozen=True)
class TemplateLimits:
    """What a chat template may take.

    `seconds`: wall time of one rendering. `chars`: characters of the rendered text, or of any
    value on the way; four times the conversation's own where that is more. `source_chars`:
    characters of the template itself.
    """

    seconds: float = 1.0
    chars: int = 1_000_000
    source_chars: int = 131_072


class Meter:
    """Time, size and work left to one rendering of `input_chars` characters of messages."""

    def __init__(self, limits: TemplateLimits, input_chars: int = 0) -> None:
        self.size = max(limits.chars, 4 * input_chars)
        self._seconds = limits.seconds
        self._deadline = time.monotonic() + limits.seconds
        self._work = 32 * self.size

    def spend(self, work: int) -> None:
        """Raises TemplateError when the time or the work is used up."""
        self._work -= work + _STEP
        if self._work < 0:
            raise TemplateError("The chat template does more work than a template may.")
        if time.monotonic() > self._deadline:
            raise TemplateError(f"The chat template takes longer than {self._seconds:g} s.")

    def allow(self, size: int) -> None:
        """Raises TemplateError for a value of `size` characters or elements that is too large."""
        if size > self.size:
            raise TemplateError(
                f"The chat template builds something larger than {self.size} characters."
            )

    def weigh(self, value: Any, *, printable: bool = False) -> tuple[int, int]:
        """Characters and elements in all of `value`, as often as they would be printed; its depth.

        With `printable`, raises TemplateError for what has no text of its own (functions, loops).
        """
        if type(value) is str:  # nearly every call
            self.allow(len(value))
            self.spend(len(value))
            return len(value), 0
        total = deepest = looked = 0
        stack: list[tuple[Any, int]] = [(value, 0)]
        while stack:
            item, depth = stack.pop()
            total += 1
            looked += 1
            if looked % 4096 == 0:
                self.spend(0)  # a large value takes long enough to look at the clock
            deepest = max(deepest, depth)
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                if item.bit_length() > _MAX_BITS:
                    raise TemplateError("The chat template builds a number that is too large.")
            elif isinstance(item, list | tuple):
                self.allow(total + len(stack) + len(item))
                stack.extend((part, depth + 1) for part in item)
            elif isinstance(item, dict):
                self.allow(total + len(stack) + 2 * len(item))
                stack.extend((part, depth + 1) for pair in item.items() for part in pair)
            elif isinstance(item, Namespace) and not printable:
                attributes = item._Namespace__attrs
                stack.extend((part, depth + 1) for part in attributes.values())
            elif printable and not isinstance(item, float | Undefined | None):
                raise TemplateError(
                    f"The chat template prints a {type(item).__name__}, which is not text."
                )
            self.allow(total)
            if depth > _MAX_DEPTH:
                raise TemplateError("The chat template nests its values too deep.")
        self.spend(total)
        return total, deepest


class Operations:
    """The operators, string methods and filters that need a bound or must see through marks.

    A result is the one Python or Jinja gives for the words without marks, marked again. Where a
    string of both template and people's text is cut by position, all of it is marked: the
    template's control tokens become plain text rather than the reverse.
    """

    def __init__(self, meter: Meter, marker: Marker) -> None:
        self.meter = meter
        self.marker = marker

    def watch(self, value: Any) -> Any:
        """`value`, weighed; an iterator is weighed item by item."""
        if isinstance(value, Iterator):
            return self._watched(value)
        self.meter.weigh(value)
        return value

    def _watched(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.spend(0)
            yield item

    def bare(self, value: Any) -> Any:
        """`value` for a comparison: without marks, one level deep."""
        if isinstance(value, str):
            return self.marker.clean(value)
        if type(value) in (list, tuple):
            self.meter.weigh(value)
            return type(value)(self.marker.clean(v) if isinstance(v, str) else v for v in value)
        return self.watch(value)

    def text(self, value: Any) -> str:
        """`value` as Jinja prints it. Raises TemplateError for what is not text."""
        if type(value) is not str:
            self.meter.weigh(value, printable=True)
            value = str(value)
        self.meter.weigh(value)
        return str(value)

    def concat(self, *values: Any) -> str:
        return self.join("", values)

    def join(self, separator: Any, values: Iterable[Any]) -> str:
        parts: list[str] = []
        separator, size = self.text(separator), 0
        for value in values:
            parts.append(self.text(value))
            size += len(parts[-1]) + len(separator)
            self.meter.allow(size - len(separator))
        return self.text(separator.join(parts))

    def cut(self, value: Any, start: Any = None, stop: Any = None, step: Any = None) -> Any:
        if isinstance(value, str) and self.marker.char in value:
            return self.marker.mark(self.marker.clean(value)[start:stop:step])
        return self.watch(self.part(value[start:stop:step], value))

    def part(self, found: Any, whole: Any) -> Any:
        """What was cut out of the string `whole`, a string or several; anything else unchanged.

        All of the string stays as it is: templates do write `'<|' + message.role.strip() + '|>'`.
        """
        if not isinstance(whole, str) or found == whole:
            return found
        if isinstance(found, str):
            return self.marker.fit(found)
        if isinstance(found, list | tuple):
            return type(found)(self.part(one, whole) for one in found)
        return found

    def letters(self, value: Any) -> Any:
        """A string's characters as people count them; anything else unchanged."""
        if isinstance(value, str) and self.marker.char in value:
            return [self.marker.mark(c) for c in self.marker.clean(value)]
        return value

    # Operators: Jinja hands over the two operands.

    def add(self, left: Any, right: Any) -> Any:
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.meter.allow(len(left) + len(right))
        return self.watch(left + right)

    def mul(self, left: Any, right: Any) -> Any:
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                self.meter.allow(len(sequence) * max(times, 0))
        return self.watch(left * right)

    def power(self, left: Any, right: Any) -> Any:
        whole = isinstance(left, int) and isinstance(right, int)
        if whole and max(left.bit_length(), 1) * abs(right) > _MAX_BITS:
            raise TemplateError("The chat template builds a number that is too large.")
        return self.watch(left**right)

    def mod(self, left: Any, right: Any) -> Any:
        if isinstance(left, str) and isinstance(right, dict):
            return self.format(left, **right)
        if isinstance(left, str):
            return self.format(left, *(right if isinstance(right, tuple) else (right,)))
        return self.watch(left % right)

    def format(self, pattern: Any, *args: Any, **kwargs: Any) -> str:
        """printf-style formatting; every field may take the longest argument."""
        pattern = self.text(pattern)
        fields = list(_FORMAT.finditer(pattern))
        widths = [width for field in fields for width in field.groups("")[1:3]]
        if any(w == "*" or int(w or 0) > _MAX_WIDTH for w in widths):
            raise TemplateError("The chat template formats to a width that is too large.")
        if any(field[4] == "(" for field in fields):  # a key with other characters than a name's
            raise TemplateError("The chat template formats a value whose name isn't a word.")
        values = (*args, *kwargs.values())
        if any(field[3] and field[4] in ("s", "r", "a") for field in fields):
            raise TemplateError("The chat template cuts a text in a format.")
        longest = max((len(self.text(value)) for value in values), default=0)
        # repr() of a character (%r, %a) takes ten at most; a float's %f 310.
        self.meter.allow(len(pattern) + len(fields) * (10 * longest + 400 if longest else 0))
        return self.text(pattern % (kwargs or args))

    # Methods and filters on strings.

    def replace(self, value: Any, old: Any, new: Any, count: Any = -1) -> str:
        text, needle = self.marker.align(self.text(value), self.text(old))
        new, times = self.text(new), text.count(needle)
        if count is not None and count >= 0:
            times = min(times, count)
        self.meter.allow(len(text) + times * len(new))
        count = -1 if count is None else count
        replaced = text.replace(needle, new, count)
        if text.replace(needle, "", count):  # not all of it is the template's new words
            replaced = self.part(replaced, text)
        return self.text(replaced)

    def strip(self, value: Any, chars: Any = None, how: Callable[..., str] = str.strip) -> str:
        text = self.text(value)
        if chars is None or chars.isspace() or self.marker.char not in text:
            stripped = how(text, chars)  # white space beside words makes no difference to `mark`
            return stripped if chars is None or chars.isspace() else self.part(stripped, text)
        return self.marker.mark(how(self.marker.clean(text), self.marker.clean(chars)))

    def indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        pad = width if isinstance(width, str) else " " * min(max(width, 0), _MAX_WIDTH + 1)
        if len(pad) > _MAX_WIDTH:
            raise TemplateError("The chat template indents too far.")
        text = self.text(value)
        self.meter.allow(len(text) + (len(text.splitlines()) + 1) * len(pad))
        return self.text(do_indent(text, pad, first, blank))

    def tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON without HTML escapes, with the arguments Hugging Face's templates know."""
        step = len(indent) if isinstance(indent, str) else indent or 0
        if max(step, sum(map(len, separators or ()))) > _MAX_WIDTH:
            raise TemplateError("The chat template indents too far.")
        weight, depth = self.meter.weigh(value)
        # An escape takes six characters, mostly one; the result itself is weighed below.
        self.meter.allow(weight * (6 + step * (depth + 1)) // 8)
        return self.text(
            json.dumps(
                value,
                ensure_ascii=ensure_ascii,
                indent=indent,
                separators=separators,
                sort_keys=sort_keys,
            )
        )
