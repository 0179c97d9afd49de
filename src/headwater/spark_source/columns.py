"""The columns of a read, in Spark's types.

A batch has the user's columns. A stream has them and three more: what happened to the row, in
which epoch, and when. A user who gives a schema of his own gets those columns and no others,
which is the way to read only some: Spark tells a Python data source nothing about the columns
that a query uses.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import SchemaError
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from headwater.model.schema import Column
from headwater.model.types import BIGINT, TIMESTAMPTZ, VARCHAR, DataType, Kind

CHANGE_COLUMNS = (
    Column(CHANGE_TYPE, VARCHAR),
    Column(COMMIT_VERSION, BIGINT),
    Column(COMMIT_TIMESTAMP, TIMESTAMPTZ),
)

_SCALARS: dict[Kind, t.DataType] = {
    Kind.BOOLEAN: t.BooleanType(),
    Kind.SMALLINT: t.ShortType(),
    Kind.INTEGER: t.IntegerType(),
    Kind.BIGINT: t.LongType(),
    Kind.REAL: t.FloatType(),
    Kind.DOUBLE: t.DoubleType(),
    Kind.BYTEA: t.BinaryType(),
    Kind.DATE: t.DateType(),
    Kind.TIMESTAMP: t.TimestampNTZType(),
    Kind.TIMESTAMPTZ: t.TimestampType(),
}


def spark_schema(columns: Iterable[Column]) -> t.StructType:
    """The columns as Spark declares them."""
    return t.StructType([t.StructField(c.name, spark_type(c.type)) for c in columns])


def spark_type(type_: DataType) -> t.DataType:
    """A type as Spark has it; what Parquet has no home for is text."""
    match type_.kind:
        case Kind.DECIMAL:
            return t.DecimalType(type_.precision or 0, type_.scale or 0)
        case Kind.LIST:
            assert type_.element is not None
            return t.ArrayType(spark_type(type_.element))
        case Kind.STRUCT:
            fields = [t.StructField(name, spark_type(inner)) for name, inner in type_.fields]
            return t.StructType(fields)
        case kind:
            return _SCALARS.get(kind, t.StringType())


def require_columns(wanted: t.StructType, known: Sequence[Column], table: str) -> None:
    """Refuse a schema that the table's columns do not answer exactly."""
    types = {column.name: spark_type(column.type) for column in known}
    for field in wanted.fields:
        if field.name not in types:
            raise SchemaError(
                f'table "{table}" has no column "{field.name}"',
                detail=f"Columns: {', '.join(types)}.",
                hint="It was dropped, or the schema given is not the table's. Load it again.",
            )
        if field.dataType != types[field.name]:
            raise SchemaError(
                f'column "{field.name}" of table "{table}" is {types[field.name].simpleString()}, '
                f"not {field.dataType.simpleString()}",
                hint="Its type became wider, or the schema given is not the table's. Load it "
                "again.",
            )


def arrow_schema(wanted: t.StructType) -> pa.Schema:
    """The batches that Spark expects for these columns, to the letter."""
    return to_arrow_schema(wanted, timezone="UTC")
