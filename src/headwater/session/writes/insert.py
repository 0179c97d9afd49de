"""INSERT: VALUES or a query, defaults for what is missing, one epoch for all rows.

    the rows are               and are computed
    VALUES of known values     here, without Spark, in milliseconds
    VALUES with expressions    those rows by one Spark query, the others here
    a query                    by Spark; they come to the driver while they are few

A column that is not named gets its default. Each value is cast on its own, as PostgreSQL casts
when it assigns; the rows of one VALUES need no common type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headwater.errors import BindError, HeadwaterError
from headwater.model import types
from headwater.model.epoch import Epoch
from headwater.model.schema import Column
from headwater.runtime.engine import Engine
from headwater.runtime.names import CatalogRelations
from headwater.runtime.spark_errors import explained
from headwater.session.context import Context
from headwater.session.writes.assigning import (
    assigned_query,
    plan_assigned,
    reads,
    run,
    typed_literals,
)
from headwater.session.writes.computed import Computed, constant_column, with_computed
from headwater.session.writes.literals import LATER, Reading, constant, place_error, stored
from headwater.session.writes.outcome import Wrote, caught_up, unchanged, writing
from headwater.session.writes.returning import plan_returning
from headwater.session.writes.scene import Scene, reading_of, set_scene
from headwater.session.writes.spill import Gathered, Spill, gather
from headwater.session.writes.storing import Inserting
from headwater.session.writes.target import Target
from headwater.sql.algebra import Expression, Named, Output, Project, Query, UnionAll
from headwater.sql.parse import parse_expression
from headwater.sql.plan import plan_query
from headwater.sql.statement import Insert

_ROWS_AT_ONCE = 200
"""How many rows with expressions one Spark query computes."""

_ROW = "_hw_row"


async def insert(
    context: Context,
    statement: Insert,
    parameters: Sequence[str | None] = (),
    *,
    text: str | None = None,
) -> Wrote:
    """Run an INSERT. Replay: its rows are put once, or not at all when it raises."""
    reading = reading_of(context, statement, parameters, text)
    rows: Gathered | None = None
    scene = None
    if not _known(statement, reading):
        # Others may write while Spark computes.
        scene = set_scene(context, await context.snapshot(), statement, reading)
        rows = await _evaluated(scene, statement)
    try:
        async with writing(context) as snapshot:
            if scene is None or rows is None:
                scene = set_scene(context, snapshot, statement, reading)
                rows = await _evaluated(scene, statement)
            unchanged(snapshot, scene.target.table)
            returning = plan_returning(scene, statement.returning)
            return await Inserting(context, scene.target.table).store(rows, returning)
    except BaseException:
        if isinstance(rows, Spill):
            rows.remove()
        raise


def _known(statement: Insert, reading: Reading) -> bool:
    """Whether all that is written are values, so that no time is lost under the lock."""
    rows = values_of(statement.query)
    return rows is not None and all(
        is_default(cell) or constant(cell, reading) is not LATER for row in rows for cell in row
    )


def values_of(query: Any) -> list[list[exp.Expr]] | None:
    """The rows of a VALUES, DEFAULT VALUES included; None for a query."""
    if query is None:
        return [[]]
    while isinstance(query, exp.Subquery) and not query.args.get("alias"):
        query = query.this
    if not isinstance(query, exp.Values):
        return None
    if any(query.args.get(each) for each in ("order", "limit", "offset", "with_")):
        return None
    return [
        list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in query.expressions
    ]


def is_default(node: exp.Expr) -> bool:
    """The word DEFAULT in the place of a value."""
    return isinstance(node, exp.Var) and node.name.upper() == "DEFAULT"


def default_of(target: Target, column: Column) -> exp.Expr:
    """The default of a column, NULL where it has none."""
    text = target.detail(column.name).default
    return exp.Null() if text is None else parse_expression(text)


async def _evaluated(scene: Scene, statement: Insert) -> Gathered:
    """All columns of the new rows but hidden ones, with values that fit."""
    target = scene.target
    rows = values_of(statement.query)
    given = target.named(statement.columns)
    if rows is not None:
        table = await _values(scene, statement, given, rows)
        gathered: Gathered = table
    else:
        gathered = await _query(scene, statement, given)
    computed = [
        Computed(column, target.detail(column.name).generated or "") for column in target.generated
    ]
    plain = [column for column in target.columns if column not in target.generated]
    return await with_computed(scene, gathered, plain, computed)


# VALUES


async def _values(
    scene: Scene, statement: Insert, given: tuple[Column, ...], rows: list[list[exp.Expr]]
) -> pa.Table:
    target = scene.target
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        raise BindError("VALUES lists must all be the same length", sqlstate="42601")
    if statement.query is not None:
        _check_width(statement, width, len(given))
    given = given[:width]
    cells: dict[str, list[exp.Expr]] = {}
    for column in target.columns:
        if column in given:
            written = [row[given.index(column)] for row in rows]
            if column in target.generated:
                if not all(is_default(cell) for cell in written):
                    target.writable_column(column.name, "insert")
                continue
            default = default_of(target, column)
            cells[column.name] = [default if is_default(cell) else cell for cell in written]
        elif column not in target.generated:
            cells[column.name] = [default_of(target, column)] * len(rows)
    return target.check(await _cells(scene, cells))


def _check_width(statement: Insert, width: int, given: int) -> None:
    if width > given:
        raise BindError("INSERT has more expressions than target columns", sqlstate="42601")
    if width < given and statement.columns:
        raise BindError("INSERT has more target columns than expressions", sqlstate="42601")


async def _cells(scene: Scene, cells: dict[str, list[exp.Expr]]) -> pa.Table:
    """The values of all cells, those that are known here and those that Spark knows."""
    values: dict[str, list[Any]] = {
        name: [_value(node, scene.target.column(name), scene.reading) for node in nodes]
        for name, nodes in cells.items()
    }
    later = sorted(
        {i for found in values.values() for i, each in enumerate(found) if each is LATER}
    )
    names = [name for name, found in values.items() if LATER in found]
    computed = await _later(scene, cells, values, names, later) if later else None
    columns = []
    for name, found in values.items():
        type_ = scene.target.column(name).type.arrow
        known = pa.array([None if each is LATER else each for each in found], type_)
        if computed is not None and name in names:
            places = np.arange(len(found))
            for number, place in enumerate(later):
                if found[place] is LATER:
                    places[place] = len(found) + number
            both = pa.chunked_array([known, *computed.column(name).cast(type_).chunks], type_)
            known = both.take(pa.array(places))
        columns.append(known)
    return pa.Table.from_arrays(columns, names=list(values))


def _value(node: exp.Expr, column: Column, reading: Reading) -> Any:
    try:
        value = constant(node, reading)
        return LATER if value is LATER else stored(value, column.type, reading)
    except HeadwaterError as error:
        raise place_error(error, node, reading.text) from error


async def _later(
    scene: Scene,
    cells: dict[str, list[exp.Expr]],
    values: dict[str, list[Any]],
    names: list[str],
    rows: list[int],
) -> pa.Table:
    """The values of some columns in some rows, by Spark; nulls where they are known already."""
    columns = [scene.target.column(name) for name in names]
    plans = []
    for number, row in enumerate(rows):
        nodes = [cells[name][row] if values[name][row] is LATER else exp.Null() for name in names]
        plans.append(_row_plan(scene, nodes, columns, number))
    engine, parts = scene.context.engine, []
    needed = frozenset().union(*(reads(plan, scene.snapshot) for plan in plans))
    epoch = await caught_up(scene.context, needed)
    for first in range(0, len(plans), _ROWS_AT_ONCE):
        query = _together(plans[first : first + _ROWS_AT_ONCE], columns)
        parts.append(await scene.context.blocking(_collected, engine, query, epoch))
    return pa.concat_tables(parts).sort_by(_ROW)


def _collected(engine: Engine, query: Query, epoch: Epoch) -> pa.Table:
    try:
        return run(engine, query, epoch).toArrow()
    except Exception as error:
        raise explained(error) from error


def _row_plan(scene: Scene, nodes: list[exp.Expr], columns: list[Column], number: int) -> Query:
    """One row of a VALUES as a query, with its number."""
    select = typed_literals(
        exp.Select(expressions=[n.copy() for n in nodes]), columns, scene.reading
    )
    relations = CatalogRelations(scene.snapshot, scene.context.path)
    query = plan_query(
        select, scene.reading.text.text, relations, parameters=scene.reading.parameters
    )
    cast = assigned_query(query, columns, scene.reading.text)
    named = Named(_ROW, Expression(str(number), types.INTEGER))
    assert isinstance(cast.plan, Project)
    plan = replace(cast.plan, expressions=(*cast.plan.expressions, named), key=())
    return replace(cast, plan=plan)


def _together(plans: list[Query], columns: list[Column]) -> Query:
    outputs = [Output(f"_hw_u{i}", column.type) for i, column in enumerate(columns)]
    union = UnionAll(
        inputs=tuple(query.plan for query in plans),
        outputs=(*outputs, Output(_ROW, types.INTEGER)),
        columns=tuple((*(name for _, name in query.visible), _ROW) for query in plans),
    )
    visible = [(column.name, output.name) for column, output in zip(columns, outputs, strict=True)]
    return Query(plan=union, visible=(*visible, (_ROW, _ROW)))


# INSERT ... SELECT


@dataclass(frozen=True, slots=True)
class Completion:
    """Makes whole rows of a query's or a client's. Travels to Spark tasks."""

    target: Target
    constants: tuple[tuple[Column, Any], ...]
    order: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows with the constants among them, in the order of the table."""
        for column, value in self.constants:
            filled = constant_column(value, column.type, rows.num_rows)
            if column.name in rows.column_names:
                rows = rows.drop_columns([column.name])
            rows = rows.append_column(column.name, filled)
        return self.target.check(rows.select(list(self.order)))


def completion(
    target: Target,
    given: Sequence[Column],
    reading: Reading,
    fixed: Mapping[str, Any] | None = None,
) -> tuple[Completion, list[Computed]]:
    """How rows of some columns become whole: constants, and defaults that Spark computes.

    `fixed` are columns among the given whose values are the same in all rows.
    """
    once = replace(reading, dice=False)
    constants = [(target.column(name), value) for name, value in (fixed or {}).items()]
    computed = []
    for column in target.columns:
        if column in given or column in target.generated:
            continue
        value = _value(default_of(target, column), column, once)
        if value is LATER:
            computed.append(Computed(column, target.detail(column.name).default or "null"))
        else:
            constants.append((column, value))
    there = {*given, *(column for column, _ in constants)}
    order = tuple(column.name for column in target.columns if column in there)
    return Completion(target, tuple(constants), order), computed


async def _query(scene: Scene, statement: Insert, given: tuple[Column, ...]) -> Gathered:
    context, target = scene.context, scene.target
    assert statement.query is not None
    relations = CatalogRelations(scene.snapshot, context.path)
    query, fixed = plan_assigned(statement.query, given, relations, scene.reading)
    _check_width(statement, len(query.visible), len(given))
    given = given[: len(query.visible)]
    for column in given:
        target.writable_column(column.name, "insert")
    epoch = await caught_up(context, reads(query, scene.snapshot))
    whole, computed = completion(target, given, scene.reading, fixed)

    def work() -> Gathered:
        made = [target.column(name) for name in whole.order]
        try:
            frame = run(context.engine, query, epoch)
        except Exception as error:
            raise explained(error) from error
        return gather(context.engine, frame, given, finish=whole, made=made)

    rows = await context.blocking(work)
    return await completed(scene, rows, whole, computed)


async def completed(
    scene: Scene, rows: Gathered, whole: Completion, computed: list[Computed]
) -> Gathered:
    """The rows with the defaults that Spark computes, in the order of the table."""
    if not computed:
        return rows
    columns = [scene.target.column(name) for name in whole.order]
    return await with_computed(scene, rows, columns, computed)
