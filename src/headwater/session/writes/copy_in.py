"""COPY ... FROM STDIN: rows of texts become rows of the table, in one epoch.

Rows are read a batch at a time and held in memory up to `driver_bytes`; beyond that they go to
files, which Spark reads when the epoch is staged. So a COPY of any length takes the same room,
and takes effect whole or not at all. An error names the line and the column.
"""

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.errors import HeadwaterError, UserError
from headwater.model.schema import Column
from headwater.pgwire.session import CopyTarget
from headwater.session.context import Context
from headwater.session.writes.computed import Computed, with_computed
from headwater.session.writes.insert import completed, completion
from headwater.session.writes.literals import Reading
from headwater.session.writes.outcome import unchanged, writing
from headwater.session.writes.scene import Scene
from headwater.session.writes.spill import (
    Gathered,
    Spill,
    SpillWriter,
    forget,
    spill_writer,
    spilled,
)
from headwater.session.writes.storing import Inserting
from headwater.session.writes.target import writable
from headwater.session.writes.text_columns import BadValue, read_column


def copy_target(context: Context, table: TableDef, columns: tuple[str, ...] = ()) -> CopyTarget:
    """Where the rows of a COPY go; `columns` are those that the statement names, or none."""
    return _Copy(context, table, columns)


class _Copy:
    """One COPY while its rows come in."""

    def __init__(self, context: Context, table: TableDef, columns: tuple[str, ...]) -> None:
        self._context = context
        self._target = writable(table)
        self._reading = Reading(zone=context.variables["timezone"])
        self._given = copy_columns(table, columns)
        self._whole, self._computed = completion(self._target, self._given, self._reading)
        self._made = [self._target.column(name) for name in self._whole.order]
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._lines = 0
        self._spill: SpillWriter | None = None
        self._busy = asyncio.Lock()

    async def write(self, rows: pa.RecordBatch) -> None:
        """Read a batch, and keep it in memory or in a file."""
        async with self._busy:
            await self._context.blocking(self._take, rows)

    async def finish(self) -> int:
        """Put all rows into one epoch, and say how many.

        Replay: they are put once, or an error is raised and they are not.
        """
        context, table = self._context, self._target.table
        scene = Scene(
            context=context,
            snapshot=await context.snapshot(),
            target=self._target,
            reading=self._reading,
            alias=table.name,
        )
        rows = await self._rows()
        count = rows.num_rows
        rows = await completed(scene, rows, self._whole, self._computed)
        rows = await with_computed(scene, rows, self._plain(), self._generated())
        # From here on the rows are whoever's stores them; `abort` has nothing left to forget.
        self._held, self._spill = [], None
        try:
            async with writing(context) as snapshot:
                unchanged(snapshot, table)
                await Inserting(context, table).store(rows)
        except BaseException:
            if isinstance(rows, Spill):
                rows.remove()
            raise
        return count

    async def _rows(self) -> Gathered:
        if self._spill is None:
            return pa.concat_tables([self._empty(), *self._held])
        return await self._context.blocking(spilled, self._spill, self._made)

    async def abort(self) -> None:
        """Forget the rows. Replay: nothing is left to forget."""
        async with self._busy:
            self._held = []
            writer, self._spill = self._spill, None
            if writer is not None:
                await self._context.blocking(forget, writer)

    def _take(self, rows: pa.RecordBatch) -> None:
        whole = self._read(rows)
        self._lines += rows.num_rows
        self._bytes += whole.nbytes
        self._held.append(whole)
        engine = self._context.engine
        if self._spill is None and self._bytes > engine.settings.now.driver_bytes:
            self._spill = spill_writer(engine, self._made)
        if self._spill is not None:
            for each in self._held:
                self._spill.add(each)
            self._held = []

    def _read(self, rows: pa.RecordBatch) -> pa.Table:
        zone, values = self._reading.zone, []
        for column, texts in zip(self._given, rows.columns, strict=True):
            try:
                values.append(read_column(texts, column.type, zone))
            except BadValue as bad:
                shown = bad.text if len(bad.text) <= 100 else bad.text[:100] + "..."
                where = f'line {self._lines + bad.place + 1}, column {column.name}: "{shown}"'
                raise self._error(bad.error, where) from bad.error
        table = pa.Table.from_arrays(values, names=[column.name for column in self._given])
        try:
            return self._whole(table)
        except HeadwaterError as error:
            raise self._error(error, f"line {self._bad_line(table)}") from error

    def _bad_line(self, rows: pa.Table) -> int:
        """The line of the first row that does not fit, of which there is one."""
        for place in range(rows.num_rows):
            try:
                self._whole(rows.slice(place, 1))
            except HeadwaterError:
                return self._lines + place + 1
        return self._lines + 1

    def _error(self, error: HeadwaterError, where: str) -> HeadwaterError:
        told = [error.detail] if error.detail else []
        detail = "\n".join([*told, f"COPY {self._target.table.name}, {where}"])
        placed = UserError(error.message, detail=detail, hint=error.hint)
        placed.sqlstate = error.sqlstate
        return placed

    def _empty(self) -> pa.Table:
        return pa.schema([(column.name, column.type.arrow) for column in self._made]).empty_table()

    def _plain(self) -> list[Column]:
        target = self._target
        return [column for column in target.columns if column not in target.generated]

    def _generated(self) -> list[Computed]:
        target = self._target
        return [
            Computed(column, target.detail(column.name).generated or "")
            for column in target.generated
        ]


def copy_columns(table: TableDef, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a COPY: those that are named, or all that are not generated."""
    target = writable(table)
    if names:
        return tuple(target.writable_column(c.name, "insert") for c in target.named(names))
    return tuple(column for column in target.columns if column not in target.generated)
