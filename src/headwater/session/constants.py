"""SELECT of literals alone, such as the `SELECT 1` of a connection pool, without a Spark job."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType
from headwater.pgwire.session import ResultColumn
from headwater.sql.data_statements import identifier

_UNNAMED = "?column?"


def as_constants(query: Any) -> tuple[tuple[ResultColumn, ...], pa.Table] | None:
    """The one row of a query that has nothing but literals; None for any other."""
    if not isinstance(query, exp.Select) or not query.expressions:
        return None
    if any(value for name, value in query.args.items() if name != "expressions"):
        return None
    columns, arrays = [], []
    for each in query.expressions:
        inner = each.this if isinstance(each, exp.Alias) else each
        found = _value(inner)
        if found is None:
            return None
        value, type_, name = found
        if isinstance(each, exp.Alias):
            name = identifier(each.args["alias"])
        columns.append(ResultColumn(name=name, type=type_))
        arrays.append(pa.array([value], type_.arrow))
    names = [f"c{place}" for place in range(len(arrays))]
    return tuple(columns), pa.Table.from_arrays(arrays, names=names)


def _value(node: Any) -> tuple[object, DataType, str] | None:
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if isinstance(literal, exp.Boolean) and not negative:
        return bool(literal.this), types.BOOLEAN, "bool"
    if isinstance(literal, exp.Null) and not negative:
        return None, types.VARCHAR, _UNNAMED
    if not isinstance(literal, exp.Literal):
        return None
    text: Sequence[str] = literal.this
    if literal.is_string:
        return None if negative else (text, types.VARCHAR, _UNNAMED)
    if not str(text).isdigit() or int(str(text)) >= 2**31:
        return None
    number = int(str(text))
    return -number if negative else number, types.INTEGER, _UNNAMED
