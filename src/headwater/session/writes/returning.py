"""RETURNING: columns of the rows that a statement wrote, or expressions over them.

Plain columns are picked on the driver. Other expressions go through the planner and Spark, over
the rows alone. It is done before anything is written: an error in it leaves no trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headwater.errors import UserError
from headwater.model import types
from headwater.model.schema import Column
from headwater.pgwire.session import ResultColumn
from headwater.runtime.spark_errors import explained
from headwater.session.context import Context
from headwater.session.queries import result_columns
from headwater.session.writes.assigning import column_of, from_target, local_target, run
from headwater.session.writes.computed import PLACE, local_frame
from headwater.session.writes.scene import Scene
from headwater.session.writes.spill import Spill, gather
from headwater.session.writes.target import Target
from headwater.sql.algebra import Query
from headwater.sql.data_statements import identifier
from headwater.sql.plan import plan_query


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """A planned RETURNING; `plain` names the columns where it is nothing but columns."""

    target: Target
    query: Query
    columns: tuple[ResultColumn, ...]
    plain: tuple[str, ...] | None


def plan_returning(scene: Scene, items: Sequence[exp.Expr]) -> Returning | None:
    """Plan the clause; None when there is none."""
    if not items:
        return None
    target, alias, reading = scene.target, scene.alias, scene.reading
    place = Column(PLACE, types.BIGINT, False)
    relations = local_target(scene.snapshot, scene.context.path, (*target.columns, place), PLACE)
    written = [each for item in items for each in _written_out(item, target, alias)]
    query = plan_query(
        from_target([*written, column_of(alias, PLACE)], alias),
        reading.text.text,
        relations,
        parameters=reading.parameters,
    )
    return Returning(
        target=target,
        query=query,
        columns=result_columns(query)[:-1],
        plain=_plain(written, target, alias),
    )


async def returned(
    context: Context, returning: Returning | None, rows: pa.Table | Spill
) -> pa.Table | None:
    """What the clause gives for these rows, in their order."""
    if returning is None:
        return None
    if isinstance(rows, Spill):
        error = UserError(
            f"RETURNING of {rows.num_rows:,} rows does not fit into memory",
            hint="Write without RETURNING and read the rows afterwards.",
        )
        error.sqlstate = "54000"
        raise error
    if returning.plain is not None:
        picked = [rows.column(name) for name in returning.plain]
    elif not rows.num_rows:
        picked = [pa.nulls(0, column.type.arrow) for column in returning.columns]
    else:
        picked = await context.blocking(_computed, context, returning, rows)
    return pa.Table.from_arrays(picked, names=[column.name for column in returning.columns])


def _computed(context: Context, returning: Returning, rows: pa.Table) -> "list[pa.ChunkedArray]":
    engine = context.engine
    wanted = [Column(f"v{i}", each.type) for i, each in enumerate(returning.columns)]
    try:
        local = local_frame(engine.spark(), rows, returning.target.columns)
        frame = run(engine, returning.query, engine.visible, local)
    except Exception as error:
        raise explained(error) from error
    made = gather(engine, frame, wanted, parts=(rows.num_rows,))
    if isinstance(made, Spill):
        try:
            frame = made.frame(engine.spark()).orderBy(made.place_sql())
            return frame.toArrow().columns[:-1]  # type: ignore[no-any-return]
        finally:
            made.remove()
    return made.columns  # type: ignore[no-any-return]


def _written_out(item: exp.Expr, target: Target, alias: str) -> list[exp.Expr]:
    """`*` as columns: a row's place, which stands beside them, is not the user's."""
    whole = isinstance(item, exp.Star) or (
        isinstance(item, exp.Column)
        and isinstance(item.this, exp.Star)
        and identifier(item.args["table"]) == alias
    )
    if not whole:
        return [item]
    return [column_of(alias, column.name) for column in target.columns]


def _plain(items: Sequence[exp.Expr], target: Target, alias: str) -> tuple[str, ...] | None:
    known = {column.name for column in target.columns}
    names = []
    for item in items:
        inner = item.this if isinstance(item, exp.Alias) else item
        if not isinstance(inner, exp.Column) or isinstance(inner.this, exp.Star):
            return None
        table = inner.args.get("table")
        name = identifier(inner.this)
        if (table is not None and identifier(table) != alias) or name not in known:
            return None
        names.append(name)
    return tuple(names)
