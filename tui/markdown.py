"""Markdown as lines of styled text, parsed again only where a stream changed it.

Textual's own Markdown is a widget for each block; while an answer streams, laying those out takes
tens of milliseconds of the two cores on which the model computes. Here a message is a list of
blocks and a block a list of lines, so new text costs the block it belongs to.

Invariant: `append` in any pieces gives the blocks that it gives for the whole, except where a late
line changes the meaning of a block that was over (a reference link). Nothing is ever taken for
Textual's own markup: styles are put on by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from textual.content import Content

from edgespec.tui.lines import EMPTY, Line, wrapped
from edgespec.tui.shown import one_line, shown

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.parser_block import RuleFuncBlockType
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode

_HIGHLIGHTED = 20_000  # characters of code up to which colours are worth their time
_DEEPEST = 30  # marks within marks; a paragraph with more is shown as it was written
_DEEPEST_LIST = 17  # levels around a list or quote; markdown-it drops what has 20 around it
_MARKS = {"strong": "strong", "em": "emphasis", "s": "strike", "link": "link"}


@dataclass
class Block:
    """A paragraph, heading, code block, table or rule.

    `first` and `rest` stand before its first and its other lines: bullets, the bar of a quote.
    `at` is the line of the source in which its outermost block begins.
    """

    kind: str
    text: Content
    first: Content = EMPTY
    rest: Content = EMPTY
    tight: bool = False
    language: str = ""
    rows: Sequence[Sequence[Content]] = ()
    at: int = 0
    _kept: tuple[int, list[Line]] = field(default=(0, []), repr=False, compare=False)

    def lines(self, width: int) -> list[Line]:
        """Its lines, none wider than `width` cells; kept until the width changes."""
        if self._kept[0] != width:
            self._kept = (width, list(_lay_out(self, width)))
        return self._kept[1]

    @property
    def lines_kept(self) -> Sequence[Line]:
        """Its lines as far as they are laid out."""
        return self._kept[1]


class MarkdownText:
    """A Markdown source that grows, and its blocks."""

    def __init__(self, source: str = "") -> None:
        self.source = ""
        self.blocks: list[Block] = []
        self._tail = 0  # where the last settled block begins, in characters of the source
        self._line = 0  # and in lines
        self.append(source)

    def append(self, text: str) -> None:
        """Take in more of the source."""
        self.source += text
        tail = self.source[self._tail :]
        fresh, settled = _parse(tail, self._line)
        self.blocks = [block for block in self.blocks if block.at < self._line] + fresh
        if settled:
            self._tail += sum(len(line) + 1 for line in tail.split("\n")[:settled])
            self._line += settled

    def lines(self, width: int) -> list[Line]:
        """All lines, a blank one between blocks."""
        found: list[Line] = []
        before: Block | None = None
        codes = 0
        for block in self.blocks:
            if before is not None and not block.tight:
                found.append(Line(_shared(before.rest, block.rest).rstrip()))
            before = block
            lines = block.lines(width)
            if block.kind == "code":
                for line in lines:
                    line.code = codes
                codes += 1
            found += lines
        return found

    def restyle(self) -> None:
        """Draw its lines anew, as the colours changed."""
        for block in self.blocks:
            for line in block.lines_kept:
                line.strip = None

    @property
    def codes(self) -> list[str]:
        """The code blocks in it, in order, as they came: with their tabs and joined emoji."""
        seen = [block.text.plain for block in self.blocks if block.kind == "code"]
        source = [
            token.content.removesuffix("\n")
            for token in _parser().parse(self.source)
            if token.type in ("fence", "code_block")
        ]
        # What isn't shown may hide a fence: where both don't tell of the same blocks, what is seen.
        same = [_letters(code) for code in source] == [_letters(code) for code in seen]
        return source if same else seen


# ------------------------------------------------------------------------------------- reading


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import blockquote, list_block

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    rules = parser.block.ruler
    before = ["paragraph", "reference", "blockquote"]
    rules.at("list", _not_too_deep(list_block), {"alt": before})
    rules.at("blockquote", _not_too_deep(blockquote), {"alt": [*before, "list"]})
    return parser


def _not_too_deep(rule: RuleFuncBlockType) -> RuleFuncBlockType:
    """A rule for lists or quotes that leaves those alone that are nested too deeply: mere text.

    Else markdown-it would leave out all that follows, to the end of the answer.
    """

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return state.level <= _DEEPEST_LIST and rule(state, start, end, silent)

    return limited


def _parse(source: str, line: int) -> tuple[list[Block], int]:
    """The blocks of a source that begins at `line`, and in which of its lines the last settled one
    begins: the last outermost block that more text leaves a block of its own.
    """
    from markdown_it.tree import SyntaxTreeNode

    # shown() may not change the number of lines: the parser counts them.
    lines = [*map(_shown_line, source.split("\n"))]
    tokens = _parser().parse("\n".join(lines))
    _flatten(tokens)
    root = SyntaxTreeNode(tokens)
    blocks: list[Block] = []
    begin = settled = 0
    for node in root.children:
        begin = node.map[0] if node.map else begin
        if begin < len(lines) - 1 or _stays(node, lines[begin]):
            settled = begin
        for block in _blocks(node, EMPTY, EMPTY):
            block.at = line + begin
            blocks.append(block)
    return blocks, settled


def _stays(node: SyntaxTreeNode, first: str) -> bool:
    """Whether a block stays what it is, however its first line goes on.

    "#" may become a tag, "1" the number of a list's next item, and "***" bold words of the
    paragraph above. A paragraph with a letter in it stays one.
    """
    return node.type == "paragraph" and any(map(str.isalpha, first))


def _flatten(tokens: Sequence[Token]) -> None:
    """Leave the words alone where marks are nested deeper than the tree's recursion can go."""
    for token in tokens:
        if not token.children:
            continue
        if max(child.level for child in token.children) > _DEEPEST:
            token.children = None
        else:
            _flatten(token.children)


def _letters(code: str) -> str:
    return "".join(shown(code).split())


def _shown_line(line: str) -> str:
    return shown(line.removesuffix("\r")).replace("\n", " ")


def _blocks(node: SyntaxTreeNode, first: Content, rest: Content) -> Iterator[Block]:
    """The blocks of a node, the prefixes of its containers before their lines."""
    match node.type:
        case "paragraph":
            yield Block("text", _inline(node), first, rest, tight=_hidden(node))
        case "heading":
            style = "title" if node.tag in ("h1", "h2") else "heading"
            yield Block("text", _inline(node).stylize(style), first, rest)
        case "fence" | "code_block":
            code = Content(node.content.removesuffix("\n"))
            yield Block("code", code, first, rest, language=one_line(node.info))
        case "hr":
            yield Block("rule", EMPTY, first, rest)
        case "blockquote":
            bar = Content.styled("▎ ", "quote")
            yield from _in_order(node.children, first + bar, rest + bar)
        case "bullet_list" | "ordered_list":
            number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
            widest = len(f"{(number or 0) + len(node.children) - 1}. ") if number is not None else 2
            for place, item in enumerate(node.children):
                mark = "• " if number is None else f"{number + place}. ".rjust(widest)
                before = (first if place == 0 else rest) + Content.styled(mark, "bullet")
                found = _in_order(item.children, before, rest + Content(" " * widest), item=True)
                for block in found or [Block("text", EMPTY, before, rest)]:
                    block.tight = block.tight and (place > 0 or block is not found[0])
                    yield block
        case "table":
            rows = [[_inline(cell) for cell in row.children] for part in node.children
                    for row in part.children]  # fmt: skip
            yield Block("table", EMPTY, first, rest, rows=rows)
        case _:
            yield Block("text", Content(node.content.rstrip("\n")), first, rest)


def _in_order(
    nodes: Sequence[SyntaxTreeNode], first: Content, rest: Content, *, item: bool = False
) -> list[Block]:
    """The blocks of a container's children; the first of them takes the container's mark."""
    found: list[Block] = []
    for node in nodes:
        inner = list(_blocks(node, rest if found else first, rest))
        if item and found and inner and node.type.endswith("list") and _tight_list(node):
            inner[0].tight = True
        found += inner
    return found


def _hidden(node: SyntaxTreeNode) -> bool:
    """Whether this is the paragraph of a tight list, with no space around it."""
    return bool(node.hidden)


def _tight_list(node: SyntaxTreeNode) -> bool:
    return any(_hidden(child) for item in node.children for child in item.children)


def _inline(node: SyntaxTreeNode) -> Content:
    """The text of a block with its emphasis, code and links."""
    return Content.assemble(*(part for child in node.children for part in _parts(child, "")))


def _parts(node: SyntaxTreeNode, style: str) -> Iterator[tuple[str, str]]:
    match node.type:
        case "inline" if node.children:
            yield from (part for child in node.children for part in _parts(child, style))
        case "softbreak" | "hardbreak":
            yield ("\n", style)  # models end lines where they want them to end
        case "code_inline":
            yield (node.content, f"{style} code".strip())
        case "strong" | "em" | "s" | "link":
            inner = f"{style} {_MARKS[node.type]}".strip()
            begin = "".join(child.content for child in node.walk() if child.is_nested is False)
            yield from (part for child in node.children for part in _parts(child, inner))
            target = shown(str(node.attrs.get("href", "")))
            if node.type == "link" and target and target != begin:
                yield (f" ({target})", f"{style} muted".strip())  # where it leads is for all to see
        case "image":
            yield (f"[{node.content}]", style)
            yield (f" ({shown(str(node.attrs.get('src', '')))})", f"{style} muted".strip())
        case _:
            yield (node.content, style)


# -------------------------------------------------------------------------------------- layout


def _lay_out(block: Block, width: int) -> Iterator[Line]:
    match block.kind:
        case "code":
            label = Content.styled(f" {block.language or 'text'}", "code-label")
            yield Line((block.first + label).truncate(width), "code-block", head=True)
            before = block.rest + Content(" ")
            for line in _highlighted(block.text, block.language).split("\n", allow_blank=True):
                yield from _code_lines(line, width, before)
        case "rule":
            room = max(1, width - block.first.cell_length)
            yield Line(block.first + Content.styled("─" * min(room, 40), "rule"))
        case "table":
            yield from _table(block, width)
        case _:
            yield from wrapped(block.text, width, block.first, block.rest)


def _code_lines(code: Content, width: int, before: Content) -> list[Line]:
    """A line of code in as many as it takes, which together still tell it whole."""
    lines = wrapped(code, width, before, before, "code-block")
    at, broken = 0, code.plain
    for number, line in enumerate(lines):
        line.prefix = len(before)
        part = line.text.plain[line.prefix :]
        begin = broken.find(part, at)
        if number and begin >= 0:
            lines[number - 1].behind = broken[at:begin]
        at = max(at, begin) + len(part)
    return lines


def _shared(above: Content, below: Content) -> Content:
    """The prefix of the containers that both blocks are in."""
    same = 0
    for one, other in zip(above.plain, below.plain, strict=False):
        if one != other:
            break
        same += 1
    return above[:same]


def _highlighted(code: Content, language: str) -> Content:
    if len(code.plain) > _HIGHLIGHTED or not language:
        return code
    from edgespec.tui.highlighting import highlighted

    return highlighted(code.plain, language.split()[0])


def _table(block: Block, width: int) -> Iterator[Line]:
    """Columns as wide as they need, or shrunk in turn until they fit."""
    columns = max(map(len, block.rows), default=0)
    if not columns:
        return
    rows = [[*row, *[EMPTY] * (columns - len(row))] for row in block.rows]
    widths = [max(1, *(line.cell_length for row in rows for line in row[i].split("\n") or [EMPTY]))
              for i in range(columns)]  # fmt: skip
    whole = width - block.rest.cell_length
    room = whole - 3 * (columns - 1)
    while sum(widths) > room and max(widths) > 4:
        widths[widths.index(max(widths))] -= 1
    first = block.first
    for number, row in enumerate(rows):
        cells = [cell.wrap(w) if cell else [EMPTY] for cell, w in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = [(cell[at] if at < len(cell) else EMPTY).rstrip() for cell in cells]
            padded = [p.pad_right(w - p.cell_length) for p, w in zip(parts, widths, strict=True)]
            text = Content.styled(" │ ", "rule").join(padded)
            if number == 0:
                text = text.stylize("strong")
            yield from wrapped(text, width, first, block.rest) if text.cell_length > whole else [
                Line(first + text.rstrip())]  # fmt: skip
            first = block.rest
        if number == 0:
            line = "─┼─".join("─" * w for w in widths)
            yield Line(first + Content.styled(line[: max(1, whole)], "rule"))
