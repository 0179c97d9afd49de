"""Subqueries inside subqueries that read a query further out.

A subquery is joined to the query right around it. So when a query inside it reads a column of a
query further out, the query between takes that column up first, as a relation of its own: the
distinct values of the column (`domain.py`). From there on it is a column of the query between.
"""

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from headwater.errors import ParseError
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier, object_name
from headwater.sql.domain import outer_domain
from headwater.sql.expression.typed import Typed


def import_outer(block: Block, pool: Any, select: Any) -> None:
    """Take up the outer columns that queries nested in this SELECT read."""
    if block.scope.outer is None:
        return
    wanted: dict[str, Typed] = {}
    for nested in _nested(select):
        for node in nested.find_all(exp.Column):
            found = _further_out(block, nested, node)
            if found is not None:
                wanted |= dict.fromkeys(found.columns, found)
    if not wanted:
        return
    domain = outer_domain(block.planning, block.scope.outer, wanted, block.text)
    pool.items.append(domain.plan)
    block.correlated += domain.equalities(block.planning)
    block.scope.imported.update(domain.columns)


def _nested(select: Any) -> Iterator[Any]:
    """The queries in the expressions of a SELECT; those in FROM see the query around directly."""
    having = select.args.get("having")
    order, where = select.args.get("order"), select.args.get("where")
    for root in (*select.expressions, where, having, order):
        if root is not None:
            yield from root.find_all(exp.Query)


def _further_out(block: Block, nested: Any, node: Any) -> Typed | None:
    """The column, if it belongs to a query around the one that is planned."""
    if isinstance(node.this, exp.Star):
        return None
    name = identifier(node.this)
    table = node.args.get("table")
    qualifier = identifier(table) if table is not None else None
    if _may_have(block, nested, name, qualifier):
        return None
    outer = block.scope.outer
    try:
        if block.scope._here(name, qualifier, node) is not None or outer is None:
            return None
        return outer.find(node)
    except ParseError:
        return None


def _may_have(block: Block, nested: Any, name: str, qualifier: str | None) -> bool:
    """Whether the column may belong to the nested query itself, or to one inside it."""
    for source in nested.find_all(exp.Table, exp.Subquery, exp.Lateral, exp.Unnest, exp.Values):
        alias = source.args.get("alias")
        shown = identifier(alias.this) if alias is not None and alias.this is not None else None
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            wanted = object_name(source)
            if qualifier is not None and qualifier != (shown or wanted.name):
                continue
            relation = None
            if wanted.schema is not None or wanted.name not in block.environment:
                relation = block.planning.relations.find(wanted)
            if relation is None or any(each.name == name for each in relation.columns):
                return True
        elif qualifier is None and source is not nested:
            if alias is not None:
                return True
        elif shown == qualifier:
            return True
    return False
