"""The rows that the WHERE of an UPDATE or DELETE means.

A condition that fixes the whole primary key by values is looked up, without Spark. Anything else
is a query over the table, at the epoch that shows everything that was written before.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headwater.errors import HeadwaterError
from headwater.model.epoch import Epoch
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column
from headwater.model.types import Kind
from headwater.runtime.spark_errors import explained
from headwater.session.writes.assigning import (
    assigned_query,
    column_of,
    from_target,
    reads,
    run,
    stored_target,
)
from headwater.session.writes.conflict import keys_of
from headwater.session.writes.literals import LATER, Constant, constant, place_error
from headwater.session.writes.outcome import caught_up
from headwater.session.writes.scene import Scene
from headwater.session.writes.spill import Finish, Gathered, gather
from headwater.session.writes.text_input import read
from headwater.sql.data_statements import identifier
from headwater.sql.plan import plan_query

_INTEGERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)
_NOT_BY_BYTES = (Kind.REAL, Kind.DOUBLE, Kind.NUMERIC)
"""Keys of these types may be equal without being spelled the same."""

_NO_MATCH = object()

NEW = f"{HIDDEN_PREFIX}new_"
"""What the new values of a row are called, beside its stored columns."""


def fixed_keys(scene: Scene, where: exp.Expr | None) -> pa.Table | None:
    """The keys that a condition names, if that is all it does; None sends it to Spark."""
    columns = scene.target.table.schema.key_columns
    if where is None or any(column.type.kind in _NOT_BY_BYTES for column in columns):
        return None
    found: dict[str, list[Any]] = {}
    for part in _conjuncts(where):
        named = _equality(scene, part, columns)
        if named is None or named[0] in found:
            return None
        found[named[0]] = named[1]
    many = any(len(values) != 1 for values in found.values())
    if set(found) != {column.name for column in columns} or (many and len(columns) > 1):
        return None
    arrays = [pa.array(found[column.name], column.type.arrow) for column in columns]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


async def look_up(scene: Scene, keys: pa.Table) -> pa.Table:
    """The stored rows of some keys."""
    table = scene.target.table
    epoch = await caught_up(scene.context, [table.id])
    first = {key: place for place, key in reversed(list(enumerate(keys_of(keys, table))))}
    distinct = keys.take(pa.array(sorted(first.values()), pa.int64()))
    found = await scene.context.blocking(
        scene.context.engine.store[table.id].lookup, distinct, epoch
    )
    return found.select(list(table.schema.names))


async def scan(  # noqa: PLR0913, PLR0917
    scene: Scene,
    where: exp.Expr | None,
    stored: Sequence[Column],
    values: Sequence[tuple[Column, exp.Expr]] = (),
    finish: Finish | None = None,
    made: Sequence[Column] | None = None,
) -> tuple[Gathered, Epoch]:
    """Matched rows: some stored columns and some new values of each, through `finish`.

    New values are cast to their columns, and called by `NEW` and their place for `finish`, which
    gives `made`.
    """
    context, target, alias = scene.context, scene.target, scene.alias
    relations = stored_target(scene.snapshot, context.path, target.table)
    items = [column_of(alias, column.name) for column in stored]
    tree = from_target([*items, *(node for _, node in values)], alias, where)
    query = plan_query(
        tree, scene.reading.text.text, relations, parameters=scene.reading.parameters
    )
    query = assigned_query(
        query, [*[None] * len(items), *(column for column, _ in values)], scene.reading.text
    )
    epoch = await caught_up(context, reads(query, scene.snapshot))
    given = [*stored, *(Column(f"{NEW}{i}", column.type) for i, (column, _) in enumerate(values))]

    def work() -> Gathered:
        try:
            frame = run(context.engine, query, epoch)
        except Exception as error:
            raise explained(error) from error
        return gather(context.engine, frame, given, finish=finish, made=made)

    return await context.blocking(work), epoch


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Paren):
        return _conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return [node]


def _equality(
    scene: Scene, node: exp.Expr, columns: Sequence[Column]
) -> tuple[str, list[Any]] | None:
    """A key column and the values that it may have."""
    if isinstance(node, exp.EQ):
        for side, other in ((node.this, node.expression), (node.expression, node.this)):
            column = _key_column(scene, side, columns)
            if column is not None:
                return _values(scene, column, [other])
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        column = _key_column(scene, node.this, columns)
        if column is not None:
            return _values(scene, column, node.expressions)
    return None


def _key_column(scene: Scene, node: exp.Expr, columns: Sequence[Column]) -> Column | None:
    if not isinstance(node, exp.Column):
        return None
    table = node.args.get("table")
    if table is not None and identifier(table) != scene.alias:
        return None
    name = identifier(node.this)
    return next((column for column in columns if column.name == name), None)


def _values(
    scene: Scene, column: Column, nodes: Sequence[exp.Expr]
) -> tuple[str, list[Any]] | None:
    found = []
    for node in nodes:
        try:
            known = constant(node, scene.reading)
            value = LATER if known is LATER else _comparable(scene, known, column)
        except HeadwaterError as error:
            raise place_error(error, node, scene.reading.text) from error
        if value is LATER:
            return None
        if value is not _NO_MATCH:
            found.append(value)
    return column.name, found


def _comparable(scene: Scene, value: Constant, column: Column) -> Any:
    """The value that a key must have to be equal; `LATER` where that is not so simple."""
    if value.value is None:
        return _NO_MATCH
    if value.type is None:
        return read(value.value, column.type, scene.reading.zone)
    source, target = value.type.kind, column.type
    if source in _INTEGERS and target.kind in _INTEGERS:
        info = pa.scalar(0, target.arrow).type.bit_width - 1
        return value.value if -(1 << info) <= value.value < 1 << info else _NO_MATCH
    if source in _INTEGERS and target.kind is Kind.DECIMAL:
        whole = (target.precision or 0) - (target.scale or 0)
        fits = abs(value.value) < 10**whole
        return Decimal(value.value).scaleb(0) if fits else _NO_MATCH
    return value.value if value.type == target else LATER
