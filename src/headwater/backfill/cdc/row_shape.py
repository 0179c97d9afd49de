"""Rows in the columns and types of a schema that is wider than theirs."""

import pyarrow as pa

from headwater.backfill.cdc.filling import Filled, PartialRows
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema


def conformed(rows: pa.Table, schema: Schema) -> pa.Table:
    """Stored rows in the columns and types of a later schema."""
    if rows.schema.equals(schema.arrow):
        return rows
    return exact_types(with_missing(rows, schema), schema).select(list(schema.names))


def exact_types(rows: pa.Table, schema: Schema) -> pa.Table:
    """The same rows in the types that the schema declares, which may be wider than they were."""
    for wanted in schema.arrow:
        place = rows.schema.get_field_index(wanted.name)
        if not rows.schema.field(place).equals(wanted):
            rows = rows.set_column(place, wanted, rows.column(place).cast(wanted.type))
    return rows


def with_missing(rows: pa.Table, schema: Schema) -> pa.Table:
    """The same rows with nulls where the schema has a column that they lack."""
    for column in schema.columns:
        if column.name not in rows.column_names:
            rows = rows.append_column(
                pa.field(column.name, column.type.arrow), pa.nulls(rows.num_rows, column.type.arrow)
            )
    return rows


def no_changes(schema: Schema) -> Filled:
    """An epoch of a table without changes."""
    empty = schema.arrow.empty_table()
    fields = [*schema.arrow, pa.field(CHANGE_TYPE, pa.string())]
    keys = empty.select(list(schema.key))
    return Filled(pa.schema(fields).empty_table(), PartialRows.none(schema), keys)
