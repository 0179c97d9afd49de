"""The columns of a sink as an Iceberg table has them, and whether the two fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model.schema import Column

if TYPE_CHECKING:
    from pyiceberg.table import Table


def new_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a table that we create; Iceberg has no 16-bit integers."""
    return pa.schema([pa.field(column.name, _stored(column.type.arrow)) for column in columns])


def file_schema(table: "Table", columns: Sequence[Column]) -> pa.Schema:
    """The schema of our data files: the sink's columns, under the table's field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415  an extra

    there = schema_to_pyarrow(table.schema(), include_field_ids=True)
    return pa.schema([there.field(column.name) for column in columns])


def check_columns(table: "Table", columns: Sequence[Column], sink: str) -> None:
    """Refuse a table whose columns do not fit, and name the first one."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415  an extra

    there = schema_to_pyarrow(table.schema(), include_field_ids=False)
    for column in columns:
        if column.name not in there.names:
            raise SchemaError(
                f'the target of sink "{sink}" has no column "{column.name}"',
                detail=f"{'.'.join(table.name())} has: {', '.join(there.names)}.",
                hint="Add the column to the table, or leave it out of the sink's query.",
            )
        found = there.field(column.name).type
        if type_shape(found) != type_shape(_stored(column.type.arrow)):
            told = table.schema().find_field(column.name).field_type
            raise SchemaError(
                f'column "{column.name}" of sink "{sink}" does not fit its target',
                detail=f"The sink has {column.type.postgres}, the table has {told}.",
                hint="Cast the column in the sink's query, or change the table.",
            )
    ours = {column.name for column in columns}
    for field in there:
        if field.name not in ours and not field.nullable:
            raise SchemaError(
                f'sink "{sink}" has no column "{field.name}", which its target needs',
                detail=f"{'.'.join(table.name())} does not take nulls there.",
                hint="Select the column in the sink's query, or let the table take nulls.",
            )


def _stored(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_int16(type_):
        return pa.int32()
    if pa.types.is_list(type_):
        return pa.list_(_stored(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _stored(field.type)) for field in type_])
    return type_


def type_shape(type_: pa.DataType) -> Any:
    """A type without what does not matter: how long values may be, names of list items."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return ("list", type_shape(type_.value_type))
    if pa.types.is_struct(type_):
        return ("struct", *((field.name, type_shape(field.type)) for field in type_))
    if pa.types.is_large_string(type_):
        return "string"
    if pa.types.is_large_binary(type_):
        return "binary"
    return str(type_)
