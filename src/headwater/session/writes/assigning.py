"""Queries whose rows go into a table: planned, and cast as PostgreSQL casts when it assigns.

A query's plan is wrapped in a projection that makes each of its columns the table's. A literal
or a parameter that stands alone in the select list takes the type of its column first, as in
PostgreSQL; in the sides of a UNION it is spelled the one way that the planner surely reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import BindError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.model.spelling import quoted
from headwater.model.types import DataType, Kind
from headwater.pgwire.text import text_of
from headwater.runtime.engine import Engine
from headwater.runtime.names import CatalogRelations
from headwater.session.queries import frame_of
from headwater.session.writes.literals import LATER, Reading, constant, stored
from headwater.session.writes.target import not_assignable
from headwater.session.writes.text_input import read
from headwater.sql.algebra import Named, Output, Project, Query, tables_of
from headwater.sql.expression.casting import assigned
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, column
from headwater.sql.parse import parse_expression
from headwater.sql.plan import plan_query
from headwater.sql.planning import keep
from headwater.sql.relations import Relation, Relations
from headwater.sql.statement import ObjectName
from headwater.views.recompute import batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET = "_hw_target"
"""What the table that a statement writes is called inside; no user's table has this name."""

_BARE = exp.Literal | exp.ByteString | exp.Parameter | exp.Null

LOCAL = TableId(-1)
"""The id of rows that no table has: new ones, or those that a statement has matched."""


class WithTarget:
    """The relations of a session, and one more that only the statement itself can name."""

    def __init__(self, base: Relations, target: Relation) -> None:
        self._base = base
        self._target = target

    def find(self, name: ObjectName) -> Relation | None:
        """The relation that a name means."""
        if name == ObjectName(TARGET):
            return self._target
        return self._base.find(name)

    def names(self) -> Iterable[str]:
        """The names that a user may mean."""
        return self._base.names()


def stored_target(snapshot: CatalogSnapshot, path: Sequence[str], table: TableDef) -> WithTarget:
    """Names in sight of an UPDATE or DELETE: the target shows all that is stored of it."""
    relation = Relation(
        name=TARGET, columns=table.schema.columns, key=table.schema.key, id=table.id
    )
    return WithTarget(CatalogRelations(snapshot, path), relation)


def local_target(
    snapshot: CatalogSnapshot, path: Sequence[str], columns: Sequence[Column], key: str = ""
) -> WithTarget:
    """Names in sight of an expression over rows that are not stored yet, or not any more."""
    relation = Relation(name=TARGET, columns=tuple(columns), key=(key,) if key else (), id=LOCAL)
    return WithTarget(CatalogRelations(snapshot, path), relation)


def from_target(items: Sequence[exp.Expr], alias: str, where: exp.Expr | None = None) -> exp.Select:
    """SELECT items FROM the target, under the name that the user knows it by."""
    table = exp.Table(
        this=exp.to_identifier(TARGET, quoted=True),
        alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
    )
    select = exp.Select(expressions=[item.copy() for item in items])
    select.set("from_", exp.From(this=table))
    if where is not None:
        select.set("where", exp.Where(this=where.copy()))
    return select


def column_of(alias: str, name: str) -> exp.Column:
    """A column of the target."""
    return exp.Column(
        this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True)
    )


def assigned_query(query: Query, columns: Sequence[Column | None], text: Text) -> Query:
    """The query with its columns cast to those of a table, by place; None keeps one as it is.

    Columns are called v0, v1, ... afterwards.
    """
    outputs = {output.name: output for output in query.plan.outputs}
    made, visible = [], []
    for place, ((_, name), target) in enumerate(zip(query.visible, columns, strict=True)):
        value = _of(outputs[name])
        if target is not None:
            value = _assigned(value, target, text)
        fresh = f"_hw_v{place}"
        made.append(Named(fresh, value.expression()))
        visible.append((f"v{place}", fresh))
    kept = tuple(keep(output) for output in query.plan.outputs)
    plan = Project(input=query.plan, expressions=(*kept, *made), key=query.plan.key)
    return replace(query, plan=plan, visible=tuple(visible))


def _of(output: Output) -> Typed:
    return column(output.name, output.type, nullable=output.nullable)


def _assigned(value: Typed, target: Column, text: Text) -> Typed:
    try:
        return assigned(value, target.type, text)
    except BindError as error:
        if error.sqlstate != "42804":
            raise
        raise not_assignable(target, value.known) from error


def plan_assigned(
    tree: exp.Expr,
    columns: Sequence[Column],
    relations: Relations,
    reading: Reading,
) -> tuple[Query, dict[str, Any]]:
    """Plan a query for these columns; it may have fewer, never more.

    Literals that stand alone in the list of a plain SELECT are not computed at all: their values
    come beside the query, by the names of their columns, and it has nulls in their places.
    """
    fixed: dict[str, Any] = {}
    if isinstance(tree, exp.Select):
        tree = tree.copy()
        for item, target in zip(list(tree.expressions), columns, strict=False):
            inner = item.this if isinstance(item, exp.Alias) else item
            value = constant(inner, reading) if isinstance(inner, _BARE) else LATER
            if value is not LATER and value.type is None:
                fixed[target.name] = stored(value, target.type, reading)
                inner.replace(literal(None, target.type))
    typed = typed_literals(tree, columns, reading)
    query = plan_query(typed, reading.text.text, relations, parameters=reading.parameters)
    if len(query.visible) > len(columns):
        raise BindError("INSERT has more expressions than target columns", sqlstate="42601")
    return assigned_query(query, columns[: len(query.visible)], reading.text), fixed


def typed_literals(tree: exp.Expr, columns: Sequence[Column], reading: Reading) -> exp.Expr:
    """The query with literals of its select list in the types of the columns."""
    tree = tree.copy()
    for select in _selects(tree):
        for item, target in zip(list(select.expressions), columns, strict=False):
            inner = item.this if isinstance(item, exp.Alias) else item
            if isinstance(inner, _BARE):
                inner.replace(_typed(inner, target.type, reading))
    return tree


def _selects(tree: Any) -> list[exp.Select]:
    match tree:
        case exp.Select():
            return [tree]
        case exp.SetOperation():
            return [*_selects(tree.this), *_selects(tree.expression)]
        case exp.Subquery():
            return _selects(tree.this)
        case _:
            return []


def _typed(node: exp.Expr, type_: DataType, reading: Reading) -> exp.Expr:
    value = constant(node, reading)
    if value is LATER or value.type is not None or type_.kind is Kind.STRUCT:
        return node.copy()
    return literal(None if value.value is None else read(value.value, type_, reading.zone), type_)


def literal(value: object, type_: DataType) -> exp.Expr:
    """A stored value as a literal that the planner reads."""
    made = parse_expression(f"null::{type_.postgres}")
    if value is not None:
        spelled = text_of(pa.array([value], type_.arrow), type_)[0].as_py()
        made.set("this", exp.Literal.string(spelled))
    return made


def run(
    engine: Engine, query: Query, epoch: Epoch, local: "DataFrame | None" = None
) -> "DataFrame":
    """The rows of a planned query, with `local` in the place of rows that no table has."""
    if local is None:
        return frame_of(engine, query, epoch)
    tables: Mapping[TableId, DataFrame] = {
        id_: local if id_ == LOCAL else engine.store[id_].frame(epoch)
        for id_ in sorted(tables_of(query.plan))
    }
    from pyspark.sql import functions as F  # noqa: PLC0415  the command line must start fast

    rows = batch(engine.spark(), query.plan, tables)
    chosen = rows.select(*[F.col(quoted(name)) for _, name in query.visible])
    return chosen.toDF(*[name for name, _ in query.visible])


def reads(query: Query, snapshot: CatalogSnapshot) -> frozenset[TableId]:
    """The tables whose rows a query depends on, also by way of materialized views."""
    found: set[int] = set()
    left = [int(id_) for id_ in tables_of(query.plan) if id_ != LOCAL]
    while left:
        id_ = left.pop()
        if id_ not in found:
            found.add(id_)
            definition = snapshot.by_id(id_)
            left.extend(definition.reads if definition is not None else ())
    return frozenset(TableId(id_) for id_ in found)
