"""Strangers' templates, run in Jinja's immutable sandbox with limits on time, size and reach.

Jinja's sandbox keeps a template from Python's internals, not from looping forever or filling the
memory. Three things are added. The syntax tree is checked against a list of what chat templates
need and gets a call to the meter in every loop and macro body. Each operator, method and filter
that can build something goes through `Operations`. What a template can reach is listed here by
type and name; the rest does not exist for it.

Invariant: a template can call nothing that is not named in this module, and whatever goes wrong
in it is a TemplateError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

import jinja2.filters
import jinja2.tests
from jinja2 import Template, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import LoopControlExtension
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from edgespec.chat.bounded import Meter, Operations, TemplateLimits
from edgespec.chat.guard import GenerationTag, Guard
from edgespec.chat.marking import Marker
from edgespec.errors import TemplateError

_FILE = "<chat template>"
_NOTHING = object()
_MAX_PARTS = 20_000  # nodes of the syntax tree; the largest templates in use have 4,000
_FILTERS = frozenset(
    "abs batch capitalize count d default dictsort first float int items last length list lower "
    "map max min reject rejectattr reverse round select selectattr sort title trim unique "
    "upper".split()
)
_TESTS_ON_WORDS = frozenset(
    "== eq equalto != ne in > gt greaterthan >= ge < lt lessthan <= le lower upper".split()
)
_ON_WORDS = frozenset(  # these look at the words and build nothing
    "startswith endswith find rfind index rindex count isdigit isalpha isalnum isspace isupper "
    "islower isnumeric isdecimal istitle".split()
)
_AT_NEEDLE = frozenset("split rsplit partition rpartition removeprefix removesuffix".split())
_CASES = frozenset("upper lower title capitalize swapcase casefold".split())
_LOOP = frozenset(
    "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle "
    "changed".split()
)


class TemplateRefusal(TemplateError):
    """The template itself refused the conversation, through raise_exception()."""


class SandboxedTemplate:
    """A compiled template.

    `source`: Jinja as Hugging Face's chat templates use it. Raises TemplateError for a syntax
    error, something no chat template needs (include, import, ...) or too long a source.
    `constants`: the strings and names the template's own text holds.
    """

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self._limits = limits
        if len(source) > limits.source_chars:
            raise TemplateError(
                f"The chat template is longer than {limits.source_chars} characters."
            )
        environment = _Environment(Operations(Meter(limits), Marker((), (source,))))
        try:
            tree = environment.parse(source, None, _FILE)
            parts = list(tree.find_all(nodes.Node))
            if len(parts) > _MAX_PARTS:  # compiling takes longer than parsing
                raise TemplateError(f"The chat template has more than {_MAX_PARTS} parts.")
            found = {n.value for n in parts if isinstance(n, nodes.Const)}
            found.update(n.data for n in parts if isinstance(n, nodes.TemplateData))
            found.update(n.attr for n in parts if isinstance(n, nodes.Getattr))
            self.constants = frozenset(text for text in found if isinstance(text, str))
            tree = Guard().visit(tree)
            tree.set_environment(environment)
            self._code = environment.compile(tree, None, _FILE)
        except TemplateError:
            raise
        except Exception as e:  # a hostile source reaches the parser's and Python's own limits
            raise _failure(e, getattr(e, "lineno", None)) from e

    def render(self, variables: Mapping[str, Any], marker: Marker, input_chars: int) -> str:
        """The text for `variables` (plain values only: str, numbers, None, lists, dicts).

        `input_chars`: characters in them, which the limits scale with. Raises TemplateError, and
        TemplateRefusal when the template calls raise_exception().
        """
        # A fresh sandbox each time: two renderings share no meter.
        meter = Meter(self._limits, input_chars)
        environment = _Environment(Operations(meter, marker))
        template: Template | None = None
        pieces: list[str] = []
        size = 0
        try:
            template = Template.from_code(environment, self._code, environment.globals)
            for piece in template.root_render_func(template.new_context(dict(variables))):
                size += len(piece)
                meter.allow(size)
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError as e:
            refusal = isinstance(e, TemplateRefusal)
            line = None if refusal else _line(e.__traceback__, template)
            raise type(e)(_sentence(marker.clean(str(e)), line)) from e
        except Exception as e:
            raise _failure(e, _line(e.__traceback__, template), marker) from e


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, ops: Operations) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # folding constants would run the template while it is compiled
            finalize=pass_context(lambda _, value: ops.text(value)),
            extensions=[LoopControlExtension, GenerationTag],
            cache_size=0,
        )
        self._ops = ops
        self.binop_table.update({"+": ops.add, "*": ops.mul, "**": ops.power, "%": ops.mod})
        # What the guard's calls name.
        self.edge_tick, self.edge_concat, self.edge_cut = ops.meter.spend, ops.concat, ops.cut
        self.edge_watch, self.edge_bare = ops.watch, ops.bare
        self.globals.clear()
        self.globals.update(
            range=safe_range, namespace=Namespace, dict=lambda *a, **k: dict(*a, **k),
            raise_exception=_raise_exception, strftime_now=_strftime_now,
        )  # fmt: skip
        self.filters.clear()
        self.filters.update(_filters(ops))
        for name in _TESTS_ON_WORDS:
            self.tests[name] = _on_words(ops, jinja2.tests.TESTS[name])

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = self._reach(obj, attribute)
        if found is not _NOTHING:
            return found
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if hasattr(obj, attribute):
            return self.unsafe_undefined(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            if isinstance(obj, str):
                return self._ops.part(self._ops.letters(obj)[argument], obj)
            if isinstance(obj, dict | list | tuple | range):
                return obj[argument]
        except (TypeError, LookupError):
            pass
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self._ops.meter.spend(len(args) + len(kwargs))
        return __self._ops.watch(super().call(__context, __obj, *args, **kwargs))

    def _reach(self, obj: Any, name: str) -> Any:
        """The attribute of that name a template may have, else _NOTHING."""
        ops = self._ops
        if name.startswith("_"):
            return _NOTHING
        if isinstance(obj, Undefined):
            return getattr(obj, name)  # raises UndefinedError, which says what is missing
        if isinstance(obj, str):
            return _string_method(ops, obj, name)
        if isinstance(obj, dict) and name in ("keys", "values", "items"):
            return lambda: list(getattr(obj, name)())
        if isinstance(obj, dict) and name in ("get", "copy"):
            return getattr(obj, name)
        if isinstance(obj, list | tuple) and name in ("count", "index"):
            return lambda value: getattr(ops.bare(obj), name)(ops.bare(value))
        if isinstance(obj, Namespace) or (isinstance(obj, LoopContext) and name in _LOOP):
            return getattr(obj, name, _NOTHING)
        if isinstance(obj, Macro) and name == "name":
            return obj.name
        return _NOTHING


def _string_method(ops: Operations, text: str, name: str) -> Any:
    if name in _ON_WORDS:

        def on_words(*args: Any) -> Any:
            bare = [tuple(map(ops.bare, a)) if isinstance(a, tuple) else ops.bare(a) for a in args]
            return getattr(ops.bare(text), name)(*bare)

        return on_words
    if name in _AT_NEEDLE:

        def at_needle(*args: Any, **kwargs: Any) -> Any:
            needle, *rest = (*args, *kwargs.values()) if args else (kwargs.pop("sep", None),)
            if not isinstance(needle, str):
                return ops.part(getattr(text, name)(needle, *rest, **kwargs), text)
            aligned, needle = ops.marker.align(text, needle)
            return ops.part(getattr(aligned, name)(needle, *rest, **kwargs), aligned)

        return at_needle
    if name in ("strip", "lstrip", "rstrip"):
        return lambda chars=None: ops.strip(text, chars, getattr(str, name))
    if name == "splitlines":
        return lambda keepends=False: ops.part(text.splitlines(keepends), text)
    if name in _CASES:
        return getattr(text, name)
    if name in ("replace", "join"):
        return functools.partial(getattr(ops, name), text)
    return _NOTHING


def _filters(ops: Operations) -> dict[str, Callable[..., Any]]:
    filters = {name: _watched(ops, jinja2.filters.FILTERS[name]) for name in _FILTERS}
    for name in ("first", "last", "list", "length", "count", "batch"):
        filters[name] = _watched(ops, jinja2.filters.FILTERS[name], ops.letters)
    for name in ("int", "float"):
        filters[name] = _watched(ops, jinja2.filters.FILTERS[name], ops.bare)
    plain_batch, plain_round, plain_reverse = (filters[n] for n in ("batch", "round", "reverse"))

    @pass_context
    def join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            value = jinja2.filters.FILTERS["map"](context, value, attribute=attribute)
        return ops.join(d, ops.letters(value))

    @pass_context
    def sum_(context: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
        if attribute is not None:
            value = jinja2.filters.FILTERS["map"](context, value, attribute=attribute)
        return functools.reduce(ops.add, ops.watch(iter(value)), start)

    def batch(value: Any, linecount: int, fill_with: Any = None) -> Any:
        ops.meter.allow(linecount)
        return plain_batch(value, linecount, fill_with)

    def round_(value: Any, precision: int = 0, method: Any = "common") -> Any:
        if abs(precision) > 20:  # ten to that power is computed
            raise TemplateError("The chat template rounds to too many digits.")
        return plain_round(value, precision, method)

    def reverse(value: Any) -> Any:
        return ops.cut(value, step=-1) if isinstance(value, str) else plain_reverse(value)

    filters.update(
        trim=ops.strip, replace=ops.replace, indent=ops.indent, tojson=ops.tojson,
        format=ops.format, string=ops.text, safe=ops.text,
        join=join, sum=sum_, batch=batch, round=round_, reverse=reverse,
    )  # fmt: skip
    return filters


def _watched(
    ops: Operations, function: Callable[..., Any], see: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """A filter of Jinja's whose result is weighed; `see` is how it looks at strings."""

    @functools.wraps(function)  # keeps Jinja's mark of what it passes first
    def watched(*args: Any, **kwargs: Any) -> Any:
        ops.meter.spend(0)
        if see is not None:
            seen = tuple(see(a) if isinstance(a, str) else a for a in args)
            whole = next((a for a in args if isinstance(a, str)), None)
            return ops.watch(ops.part(function(*seen, **kwargs), whole))
        return ops.watch(function(*args, **kwargs))

    return watched


def _on_words(ops: Operations, test: Any) -> Callable[..., Any]:
    return lambda *args: test(*map(ops.bare, args))


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusal(f"The chat template refuses this conversation: {message}")


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 100 or re.search(r"%[^A-Za-z%]*\d", pattern):
        raise TemplateError("The chat template asks for a date that is too wide.")
    return datetime.now().strftime(pattern)


def _line(traceback: TracebackType | None, template: Template | None) -> int | None:
    """The template's line that was running, if any was."""
    line = None
    while traceback is not None and template is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _failure(e: Exception, line: int | None, marker: Marker | None = None) -> TemplateError:
    if isinstance(e, RecursionError):
        return TemplateError(_sentence("The chat template nests too deep", line))
    if isinstance(e, MemoryError):
        return TemplateError(_sentence("The chat template takes more memory than there is", line))
    said = str(e) or type(e).__name__
    said = marker.clean(said) if marker else said
    what = "has an error" if isinstance(e, TemplateSyntaxError) else "failed"
    where = f" at line {line}" if line else ""
    return TemplateError(_sentence(f"The chat template {what}{where}: {said}", None))


def _sentence(said: str, line: int | None) -> str:
    # A template's own message may hold anything, escape sequences for the terminal included.
    said = "".join(c for c in " ".join(said[:1000].split()) if c.isprintable())
    said = said if len(said) <= 300 else said[:297] + "..."
    said = said.rstrip(".") + (f" (line {line} of the template)" if line else "")
    return said + "."
