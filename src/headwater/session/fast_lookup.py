"""SELECT by primary key, or by the columns of an index, without a Spark job.

    SELECT a, b FROM t WHERE id = 7 AND region = 'eu'

A query of this form over one stored relation, whose conditions fix all columns of the key or of
an index by constants, is answered from the lookup cache on the driver. Everything else returns
None here and runs on Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import HeadwaterError
from headwater.model.epoch import Epoch
from headwater.model.types import DataType, Kind
from headwater.pgwire.parameters import value_of
from headwater.pgwire.session import ResultColumn
from headwater.runtime.engine import Engine
from headwater.session.queries import stored
from headwater.views.relation import StateRelation

_MOST_ROWS = 10_000
_EXACT = {
    Kind.BOOLEAN, Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.VARCHAR, Kind.DATE, Kind.UUID,
    Kind.TIMESTAMP,
}  # fmt: skip
"""Types whose literals mean the same to us and to the planner, whatever the spelling."""


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """A query that is one lookup."""

    table: TableDef
    keys: Mapping[str, object]
    columns: tuple[ResultColumn, ...]
    stored: tuple[str, ...]
    limit: int | None

    def run(self, engine: Engine, epoch: Epoch) -> pa.Table | None:
        """The rows; None when there are too many to be found this way."""
        schema = self.table.schema
        found = stored(engine, self.table.id)
        keys = pa.table(
            {name: pa.array([value], schema[name].type.arrow) for name, value in self.keys.items()}
        )
        if set(self.keys) == set(schema.key):
            rows = found.lookup(keys, epoch)
        else:
            view = found.view(epoch)
            relation = StateRelation(
                found, engine.store.surroundings.cache, view,
                frames=lambda side: found.frame_of(view),
            )  # fmt: skip
            looked = relation.lookup(keys, _MOST_ROWS)
            if looked is None:
                return None
            rows = looked
        if self.limit is not None:
            rows = rows.slice(0, self.limit)
        arrays = [rows.column(name) for name in self.stored]
        return pa.Table.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def as_lookup(
    query: exp.Expr,
    snapshot: CatalogSnapshot,
    path: Sequence[str],
    parameters: Sequence[str | None] = (),
) -> KeyLookup | None:
    """The lookup that a query is, or None."""
    table = _table(query, snapshot, path)
    if table is None:
        return None
    assert isinstance(query, exp.Select)
    shown = _columns(query, table)
    where = query.args.get("where")
    keys = None if where is None else _equalities(where.this, table, parameters)
    limit = _limit(query)
    if shown is None or keys is None or limit == -1:
        return None
    indexes = [
        each.keys
        for each in snapshot.objects
        if isinstance(each, ObjectDef) and each.kind is ObjectKind.INDEX and each.table == table.id
    ]
    if not any(set(columns) == set(keys) for columns in (table.schema.key, *indexes)):
        return None
    return KeyLookup(
        table=table,
        keys=keys,
        columns=tuple(ResultColumn(name=n, type=table.schema[c].type) for n, c in shown),
        stored=tuple(column for _, column in shown),
        limit=limit,
    )


_PARTS = {"expressions", "from_", "from", "where", "limit", "kind", "hint"}


def _table(query: exp.Expr, snapshot: CatalogSnapshot, path: Sequence[str]) -> TableDef | None:
    if not isinstance(query, exp.Select):
        return None
    others = (value for name, value in query.args.items() if name not in _PARTS)
    source = query.args.get("from_") or query.args.get("from")
    if any(others) or source is None or not isinstance(source.this, exp.Table):
        return None
    node = source.this
    plain = not any(value for name, value in node.args.items() if name not in ("this", "db"))
    if not plain or not isinstance(node.this, exp.Identifier):
        return None
    namespaces = (_folded(node.args["db"]),) if node.args.get("db") else tuple(path)
    every = (snapshot.relation(_folded(node.this), namespace) for namespace in namespaces)
    found = next((each for each in every if each is not None), None)
    return found if isinstance(found, TableDef) else None


def _folded(identifier: Any) -> str:
    name: str = identifier.name
    return name if identifier.args.get("quoted") else name.lower()


def _column(node: exp.Expr, table: TableDef) -> str | None:
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return None
    qualifier = node.args.get("table")
    if qualifier is not None and _folded(qualifier) != table.name:
        return None
    name = _folded(node.this)
    return name if any(column.name == name for column in table.columns) else None


def _columns(query: exp.Select, table: TableDef) -> list[tuple[str, str]] | None:
    shown: list[tuple[str, str]] = []
    for each in query.expressions:
        if isinstance(each, exp.Star) and not any(each.args.values()):
            shown += [(column.name, column.name) for column in table.columns]
            continue
        inner = each.this if isinstance(each, exp.Alias) else each
        name = _column(inner, table)
        if name is None:
            return None
        alias = _folded(each.args["alias"]) if isinstance(each, exp.Alias) else name
        shown.append((alias, name))
    return shown


def _equalities(
    where: exp.Expr, table: TableDef, parameters: Sequence[str | None]
) -> dict[str, object] | None:
    keys: dict[str, object] = {}
    parts = list(where.flatten()) if isinstance(where, exp.And) else [where]
    for part in parts:
        if not isinstance(part, exp.EQ):
            return None
        column, other = _column(part.left, table), part.right
        if column is None:
            column, other = _column(part.right, table), part.left
        if column is None or column in keys:
            return None
        value = _constant(other, table.schema[column].type, parameters)
        if value is None:
            return None
        keys[column] = value
    return keys


def _constant(node: exp.Expr, type_: DataType, parameters: Sequence[str | None]) -> object:
    """The value of a literal or parameter in a column's type; None when it is not that simple."""
    if type_.kind not in _EXACT:
        return None
    text: str | None = None
    if isinstance(node, exp.Literal):
        number = type_.kind in (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)
        if node.is_string or (number and node.this.isdigit()):
            text = node.this
    elif isinstance(node, exp.Parameter | exp.Placeholder):
        index = node.name or str(getattr(node.this, "this", ""))
        if index.isdigit() and 0 < int(index) <= len(parameters):
            text = parameters[int(index) - 1]
    if text is None:
        return None
    try:
        value = value_of(text, type_)
        return pa.scalar(text).cast(type_.arrow).as_py() if isinstance(value, str) else value
    except (HeadwaterError, pa.ArrowInvalid, ValueError):
        return None


def _limit(query: exp.Select) -> int | None:
    """The number of rows; None when there is no limit, -1 when it is not a plain number."""
    limit = query.args.get("limit")
    if limit is None:
        return None
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Literal):
        text = limit.expression.this
        return int(text) if str(text).isdigit() else -1
    return -1
