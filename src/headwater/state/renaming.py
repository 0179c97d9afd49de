"""Rows under other names of columns, as inserts of a table that is written anew."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.model.spelling import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_ROWS = 100_000
"""So many are written by the driver."""


def renamed_rows(
    rows: "pa.Table | DataFrame", schema: Schema, kept: Mapping[str, str]
) -> "pa.Table | DataFrame":
    """The rows in the columns of `schema`: `kept` by old names and new ones, the others null."""
    old = {new: name for name, new in kept.items()}
    if isinstance(rows, pa.Table):
        return _table(rows, schema, old)
    chosen = [
        f"cast({quoted(old[column.name]) if column.name in old else 'null'} as {column.type.spark})"
        f" as {quoted(column.name)}"
        for column in schema.columns
    ]
    return rows.selectExpr(*chosen, f"'{ChangeType.INSERT.value}' as {CHANGE_TYPE}")


def _table(rows: pa.Table, schema: Schema, old: Mapping[str, str]) -> pa.Table:
    columns = {}
    for column in schema.columns:
        name, type_ = old.get(column.name), column.type.arrow
        columns[column.name] = rows[name].cast(type_) if name else pa.nulls(rows.num_rows, type_)
    kinds = pa.array([ChangeType.INSERT.value] * rows.num_rows, pa.string())
    return pa.table({**columns, CHANGE_TYPE: kinds})
