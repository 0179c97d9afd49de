"""Rows on their way into a table that users write: which values fit, and what changes they are.

    what is wrong                    SQLSTATE
    null where a value must be       23502
    a text longer than varchar(n)    22001

A text whose surplus is blanks alone is cut to its length, as SQL asks.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.relation import TableDef
from headwater.errors import HeadwaterError, UserError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column
from headwater.model.types import DataType, Kind
from headwater.pgwire.text import text_of

_MOST_SHOWN = 64


def fitted(table: TableDef, rows: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """The rows, whose values fit the columns: NOT NULL and varchar(n)."""
    key = table.schema.key
    for name in rows.column_names if names is None else names:
        column = table.schema[name]
        values = rows.column(name)
        if (not column.nullable or name in key) and values.null_count:
            raise _null(table, rows, column)
        detail = table.detail.columns.get(name)
        if detail is not None and detail.length is not None:
            rows = _cut(rows, name, detail.length)
    return rows


def as_changes(rows: pa.Table, kind: ChangeType, table: TableDef) -> pa.Table:
    """Rows as changes of one kind; columns that they lack are null."""
    columns = [
        rows.column(column.name).cast(column.type.arrow)
        if column.name in rows.column_names
        else pa.nulls(rows.num_rows, column.type.arrow)
        for column in table.schema.columns
    ]
    kinds = pa.array([kind.value]).take(pa.array(np.zeros(rows.num_rows, dtype=np.int64)))
    return pa.Table.from_arrays([*columns, kinds], names=[*table.schema.names, CHANGE_TYPE])


def shown(value: pa.Scalar, type_: DataType) -> str:
    """A value in an error message."""
    if not value.is_valid:
        return "null"
    if type_.kind is Kind.STRUCT:
        return "(...)"
    text = str(text_of(pa.array([value], value.type), type_)[0].as_py())
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _null(table: TableDef, rows: pa.Table, column: Column) -> HeadwaterError:
    place = pc.index(pc.is_null(rows.column(column.name)), True).as_py()
    seen = [each for each in table.columns if each.name in rows.column_names]
    values = ", ".join(shown(rows.column(each.name)[place], each.type) for each in seen)
    return _error(
        f'null value in column "{column.name}" of relation "{table.name}" violates '
        "not-null constraint",
        "23502",
        detail=f"Failing row contains ({values}).",
    )


def _cut(rows: pa.Table, name: str, length: int) -> pa.Table:
    values = rows.column(name)
    long = pc.fill_null(pc.greater(pc.utf8_length(values), length), False)
    if not pc.any(long).as_py():
        return rows
    rest = pc.utf8_slice_codeunits(values.filter(long), length)
    if pc.any(pc.not_equal(pc.utf8_trim(rest, " "), "")).as_py():
        raise _error(f"value too long for type character varying({length})", "22001")
    cut = pc.if_else(long, pc.utf8_slice_codeunits(values, 0, length), values)
    return rows.set_column(rows.column_names.index(name), name, cut)


def _error(message: str, sqlstate: str, *, detail: str = "") -> UserError:
    error = UserError(message, detail=detail)
    error.sqlstate = sqlstate
    return error
