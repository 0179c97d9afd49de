"""Rows in the columns and types of a schema that is wider than theirs."""

from collections.abc import Sequence

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


def has_columns(rows: pa.Table, names: Sequence[str], schema: Schema) -> bool:
    """Whether rows have columns of a schema, in types whose values these can hold."""
    for name in names:
        if name not in rows.column_names:
            return False
        found, wanted = rows.schema.field(name).type, schema[name].type.arrow
        if found != wanted and not _holds(wanted, found):
            return False
    return True


def selected(rows: pa.Table, names: Sequence[str], schema: Schema) -> pa.Table:
    """Some columns, in the types that the schema declares, which may be wider than theirs."""
    wanted = pa.schema([schema.arrow.field(name) for name in names])
    own = rows.select(list(names))
    return own if own.schema.equals(wanted) else own.cast(wanted)


def _holds(wanted: pa.DataType, found: pa.DataType) -> bool:
    """Whether every value of another type is one of this type, which may be spelled differently."""
    if _is_text(wanted) or _is_text(found):
        return _is_text(wanted) and _is_text(found)
    if not (_is_number(wanted) or _is_number(found)):
        return bool(wanted.id == found.id)
    try:
        fields = [pa.schema([("v", each)]) for each in (wanted, found)]
        return bool(
            pa.unify_schemas(fields, promote_options="permissive").field("v").type == wanted
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def no_changes(schema: Schema) -> Filled:
    """An epoch of a table without changes."""
    empty = schema.arrow.empty_table()
    fields = [*schema.arrow, pa.field(CHANGE_TYPE, pa.string())]
    keys = empty.select(list(schema.key))
    return Filled(pa.schema(fields).empty_table(), PartialRows.none(schema), keys)
