"""What a chat template may be made of, and the calls put into it before it is compiled.

Invariant: in the tree that leaves `Guard` every loop and macro body begins with a call to the
meter, and everything that builds a value calls `Operations`, or a hook of the environment's.
"""

from __future__ import annotations

from typing import Any, cast

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Macro,
    nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Scope,
    nodes.Break, nodes.Continue, nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List,
    nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call,
    nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand,
    nodes.BinExpr, nodes.UnaryExpr,
)  # fmt: skip


class Guard(NodeTransformer):
    """Refuses what chat templates don't need; puts the meter into the rest."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(node, _NODES):
            raise TemplateSyntaxError(
                f"'{type(node).__name__.lower()}' is not for chat templates", node.lineno
            )
        return super().visit(node, *args, **kwargs)

    def _in_body(self, node: Any) -> nodes.Node:
        # The text of a body is part of what a turn costs: it may land in a buffer of the body's.
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = _call("edge_tick", [nodes.Const(text, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return cast(nodes.Node, node)

    visit_For = visit_Macro = visit_CallBlock = _in_body  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("edge_concat", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        holders: list[nodes.Compare | nodes.Operand] = [node, *node.ops]
        for holder in holders:
            if not isinstance(holder.expr, nodes.Const):
                holder.expr = _call("edge_bare", [holder.expr], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        given = [bound or nodes.Const(None, lineno=node.lineno) for bound in bounds]
        return _call("edge_cut", [node.node, *given], node.lineno)

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return cast(nodes.Node, node)
        return _call("edge_watch", [node], node.lineno)

    visit_List = visit_Tuple = visit_Dict = _literal  # noqa: N815


def _call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(function, args, [], None, None, lineno=lineno)


class GenerationTag(Extension):
    """`{% generation %}` marks an answer for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno
        )
