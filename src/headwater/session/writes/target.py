"""The table that a statement writes: who may be written, which columns, which values fit.

    what is wrong                                   SQLSTATE
    there is no such table                          42P01
    it is a view, a materialized view, or a
    table that a source fills                       42809
    there is no such column, or it is there twice   42703, 42701
    a generated column is written                   428C9

Which values fit is said in `runtime/fitting.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.catalog.relation import ColumnDetail, ObjectDef, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import BindError, HeadwaterError, NotSupported, UserError
from headwater.model.schema import Column
from headwater.model.types import DataType
from headwater.runtime.fitting import fitted, shown
from headwater.sql.relations import suggestion
from headwater.sql.statement import ObjectName


@dataclass(frozen=True, slots=True)
class Target:
    """A table that can be written. Travels to Spark tasks."""

    table: TableDef

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that users see."""
        return self.table.columns

    def detail(self, column: str) -> ColumnDetail:
        """What SQL knows of a column."""
        return self.table.detail.columns.get(column, ColumnDetail())

    @property
    def generated(self) -> tuple[Column, ...]:
        """The columns that are computed from others."""
        return tuple(c for c in self.columns if self.detail(c.name).generated is not None)

    def column(self, name: str) -> Column:
        """A column that the user names, or 42703."""
        for column in self.columns:
            if column.name == name:
                return column
        raise BindError(
            f'column "{name}" of relation "{self.table.name}" does not exist',
            hint=suggestion(name, [column.name for column in self.columns]),
            sqlstate="42703",
        )

    def writable_column(self, name: str, verb: str) -> Column:
        """A column that may be given a value; `verb` is for the error."""
        column = self.column(name)
        if self.detail(name).generated is not None:
            said = "cannot insert a non-DEFAULT value into" if verb == "insert" else "cannot update"
            raise _error(
                f'{said} column "{name}"',
                "428C9",
                detail=f'Column "{name}" is a generated column.',
            )
        return column

    def named(self, names: Sequence[str]) -> tuple[Column, ...]:
        """The columns of an INSERT or a COPY: those that are named, or all."""
        if not names:
            return self.columns
        for place, name in enumerate(names):
            if name in names[:place]:
                raise BindError(f'column "{name}" specified more than once', sqlstate="42701")
        return tuple(self.column(name) for name in names)

    def check(self, rows: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
        """The rows, whose values fit the columns: NOT NULL and varchar(n)."""
        return fitted(self.table, rows, names)

    def refuse_append_only(self, verb: str) -> None:
        """UPDATE and DELETE are not for tables whose rows stay."""
        if self.table.append_only:
            raise NotSupported(
                f'{verb} of append-only table "{self.table.name}" is not supported',
                hint="Its rows are never changed. Create it without APPEND ONLY.",
            )


def find_target(snapshot: CatalogSnapshot, name: ObjectName, path: Sequence[str]) -> Target:
    """The table of that name, which statements may write."""
    for namespace in path if name.schema is None else (name.schema,):
        found = snapshot.relation(name.name, namespace)
        if found is not None:
            return writable(found)
    known = [each.name for each in snapshot.shown_tables]
    raise relation_error(
        f'relation "{name}" does not exist', "42P01", hint=suggestion(name.name, known)
    )


def writable(found: TableDef | ObjectDef) -> Target:
    """The definition as something to write, or 42809."""
    if isinstance(found, TableDef) and found.writable:
        return Target(found)
    if isinstance(found, ObjectDef):
        hint = f"It is {'an' if found.kind.value == 'index' else 'a'} {found.kind.value}."
    elif found.kind is TableKind.MATERIALIZED_VIEW:
        hint = "It is a materialized view: write the tables that it reads."
    else:
        hint = f"Its rows come from source {found.source}: write them there."
    raise relation_error(f'"{found.name}" is not a table that can be written', "42809", hint=hint)


def not_assignable(column: Column, source: DataType) -> BindError:
    """The error for a value of a type that the column does not take."""
    return BindError(
        f'column "{column.name}" is of type {column.type.postgres} but expression is of type '
        f"{source.postgres}",
        hint="You will need to rewrite or cast the expression.",
        sqlstate="42804",
    )


def key_taken(table: TableDef, row: pa.Table) -> HeadwaterError:
    """The error for a key that is there already; `row` has it."""
    names = ", ".join(table.schema.key)
    values = ", ".join(
        shown(row.column(column.name)[0], column.type) for column in table.schema.key_columns
    )
    return _error(
        f'duplicate key value violates unique constraint "{table.name}_pkey"',
        "23505",
        detail=f"Key ({names})=({values}) already exists.",
    )


def _error(message: str, sqlstate: str, *, detail: str = "", hint: str = "") -> UserError:
    error = UserError(message, detail=detail, hint=hint)
    error.sqlstate = sqlstate
    return error
