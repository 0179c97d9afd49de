"""UPDATE: the rows that match, each with its new values, in one epoch.

The statement holds the lock of writers from the moment it reads until its rows are put, and
reads at an epoch that shows all that was put before: two `SET x = x + 1` add two.

    the condition       the new values    is done
    fixes the key       are known         by a lookup, without Spark
    anything            anything          by one Spark query; few rows come to the driver,
                                          many stay in files

A row whose key changes is deleted under its old key and inserted under its new one. A new key
that another row has is an error, unless that row's key changes as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headwater.errors import BindError, HeadwaterError
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, HIDDEN_PREFIX, SEQ
from headwater.model.schema import Column
from headwater.model.spelling import quoted
from headwater.runtime.fitting import as_changes
from headwater.runtime.spark_errors import explained
from headwater.session.context import Context
from headwater.session.writes import conflict
from headwater.session.writes.computed import Computed, constant_column, with_computed
from headwater.session.writes.insert import default_of
from headwater.session.writes.literals import LATER, constant, place_error, stored
from headwater.session.writes.matching import NEW, fixed_keys, look_up, scan
from headwater.session.writes.outcome import Wrote, put, writing
from headwater.session.writes.returning import plan_returning, returned
from headwater.session.writes.scene import Scene, reading_of, set_scene
from headwater.session.writes.spill import Gathered, Spill, select_columns
from headwater.session.writes.target import Target, key_taken
from headwater.sql.statement import Update

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OLD = f"{HIDDEN_PREFIX}old_"
"""What a key's old value is called beside the new one."""


async def update(
    context: Context,
    statement: Update,
    parameters: Sequence[str | None] = (),
    *,
    text: str | None = None,
) -> Wrote:
    """Run an UPDATE. Replay: its rows are put once, or not at all when it raises."""
    reading = reading_of(context, statement, parameters, text)
    async with writing(context) as snapshot:
        scene = set_scene(context, snapshot, statement, reading)
        scene.target.refuse_append_only("UPDATE")
        if context.transaction is not None:
            conflict.refuse_written(scene.target.table, context.transaction.writes)
        assigned = _assignments(scene, statement)
        returning = plan_returning(scene, statement.returning)
        rows, epoch = await _matched(scene, statement, assigned)
        try:
            rows = await _with_generated(scene, rows)
            given = await returned(context, returning, rows)
            changes = await context.blocking(_Changes(scene, assigned, epoch), rows)
        except BaseException:
            if isinstance(rows, Spill):
                rows.remove()
            raise
        await put(context, scene.target.table, changes)
    columns = returning.columns if returning is not None else None
    return Wrote(count=rows.num_rows, columns=columns, rows=given)


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What SET says: values that are known, and expressions."""

    known: tuple[tuple[Column, Any], ...]
    later: tuple[tuple[Column, exp.Expr], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column, _ in (*self.known, *self.later))


@dataclass(frozen=True, slots=True)
class _NewRows:
    """Makes new rows of old ones and new values. Travels to Spark tasks."""

    target: Target
    known: tuple[tuple[Column, Any], ...]
    later: tuple[str, ...]

    @property
    def made(self) -> tuple[Column, ...]:
        """The old key, then all stored columns that are not generated."""
        schema = self.target.table.schema
        old = (Column(_OLD + c.name, c.type, False) for c in schema.key_columns)
        return (*old, *(c for c in schema.columns if c not in self.target.generated))

    def __call__(self, rows: pa.Table) -> pa.Table:
        constants = {column.name: (column, value) for column, value in self.known}
        columns = []
        for column in self.made:
            name = column.name
            if name.startswith(_OLD):
                columns.append(rows.column(name.removeprefix(_OLD)))
            elif name in constants:
                columns.append(constant_column(constants[name][1], column.type, rows.num_rows))
            elif name in self.later:
                columns.append(rows.column(f"{NEW}{self.later.index(name)}"))
            else:
                columns.append(rows.column(name))
        made = pa.Table.from_arrays(columns, names=[column.name for column in self.made])
        return self.target.check(made, [*constants, *self.later])


def _assignments(scene: Scene, statement: Update) -> _Assigned:
    target = scene.target
    known: list[tuple[Column, Any]] = []
    later: list[tuple[Column, exp.Expr]] = []
    seen: set[str] = set()
    # A die is cast for each row, so not here.
    reading = replace(scene.reading, dice=False)
    for name, node in statement.assignments:
        if node is None and target.detail(name).generated is not None:
            continue
        column = target.writable_column(name, "update")
        if name in seen:
            raise BindError(f'multiple assignments to same column "{name}"', sqlstate="42601")
        seen.add(name)
        value = default_of(target, column) if node is None else node
        try:
            found = constant(value, reading)
            kept = LATER if found is LATER else stored(found, column.type, reading)
        except HeadwaterError as error:
            raise place_error(error, value, reading.text) from error
        if kept is LATER:
            later.append((column, value))
        else:
            known.append((column, kept))
    return _Assigned(tuple(known), tuple(later))


async def _matched(scene: Scene, statement: Update, assigned: _Assigned) -> tuple[Gathered, Epoch]:
    finish = _NewRows(scene.target, assigned.known, tuple(c.name for c, _ in assigned.later))
    keys = None if assigned.later else fixed_keys(scene, statement.where)
    if keys is not None:
        found = await look_up(scene, keys)
        return finish(found), scene.context.engine.visible
    return await scan(
        scene,
        statement.where,
        scene.target.table.schema.columns,
        assigned.later,
        finish,
        finish.made,
    )


async def _with_generated(scene: Scene, rows: Gathered) -> Gathered:
    target = scene.target
    columns = _NewRows(target, (), ()).made
    computed = [
        Computed(column, target.detail(column.name).generated or "") for column in target.generated
    ]
    return await with_computed(scene, rows, columns, computed)


@dataclass(frozen=True, slots=True)
class _Changes:
    """Makes changes of matched rows. Blocking."""

    scene: Scene
    assigned: _Assigned
    epoch: Epoch

    def __call__(self, rows: Gathered) -> "pa.Table | DataFrame":
        moves = any(name in self.assigned.names for name in self.scene.target.table.schema.key)
        if isinstance(rows, Spill):
            try:
                return self._many(rows, moves)
            except Exception as error:
                raise explained(error) from error
        table = self.scene.target.table
        updated = as_changes(rows, ChangeType.UPDATE_POSTIMAGE, table)
        if not moves or not rows.num_rows:
            return updated
        old = self._old_keys(rows)
        self._refuse_taken(rows, old)
        deleted = as_changes(old, ChangeType.DELETE, table)
        return pa.concat_tables([deleted, as_changes(rows, ChangeType.INSERT, table)])

    def _old_keys(self, rows: pa.Table) -> pa.Table:
        names = self.scene.target.table.schema.key
        return rows.select([_OLD + name for name in names]).rename_columns(list(names))

    def _refuse_taken(self, rows: pa.Table, old: pa.Table) -> None:
        table = self.scene.target.table
        leaving = set(conflict.keys_of(old, table))
        keys = rows.select(list(table.schema.key))
        found = conflict.look_up(self.scene.context.engine, table, keys, self.epoch)
        taken = set(found.places) - leaving
        for place, key in enumerate(conflict.keys_of(keys, table)):
            if key in taken:
                raise key_taken(table, keys.slice(place, 1))
            taken.add(key)

    def _many(self, rows: Spill, moves: bool) -> "DataFrame":
        engine, table = self.scene.context.engine, self.scene.target.table
        frame = rows.frame(engine.spark())
        names = [quoted(name) for name in table.schema.names]
        if not moves:
            kind = f"'{ChangeType.UPDATE_POSTIMAGE.value}' as `{CHANGE_TYPE}`"
            return rows.held(frame.selectExpr(*names, kind, f"`{SEQ}`"))
        self._refuse_many_taken(frame)
        key = table.schema.key
        gone = [
            f"{quoted(_OLD + c.name)} as {quoted(c.name)}"
            if c.name in key
            else f"cast(null as {c.type.spark}) as {quoted(c.name)}"
            for c in table.schema.columns
        ]
        delete = f"'{ChangeType.DELETE.value}' as `{CHANGE_TYPE}`"
        insert = f"'{ChangeType.INSERT.value}' as `{CHANGE_TYPE}`"
        deleted = frame.selectExpr(*gone, delete, f"`{SEQ}`")
        # All old keys go before any new one comes.
        inserted = frame.selectExpr(*names, insert, f"`{SEQ}` + {1 << 62}L as `{SEQ}`")
        return rows.held(deleted.unionAll(inserted))

    def _refuse_many_taken(self, frame: "DataFrame") -> None:
        engine, table = self.scene.context.engine, self.scene.target.table
        key = list(table.schema.key)
        leaving = select_columns(frame, [_OLD + name for name in key]).toDF(*key)
        stored = engine.store[table.id].frame(self.epoch)
        staying = select_columns(stored, key).join(leaving, key, "left_anti")
        clash = conflict.clash(frame, staying, table)
        if clash.num_rows:
            raise key_taken(table, clash)
