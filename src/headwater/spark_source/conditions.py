"""Filters that a task applies before rows leave Python.

Spark applies every filter again afterwards, so a condition may let too many rows through and
must never drop one that Spark would keep. Hence only comparisons that mean the same in Arrow and
in Spark become conditions: floating point (NaN), timestamps and nested values do not. Null
compares as in SQL: the row does not pass.

A filter that fixes the whole key also fixes the vnode, and so the files that can hold the row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as filters

from headwater.model.schema import Column, Schema
from headwater.model.types import Kind
from headwater.state.manifest import LiveFile

_EXACT = frozenset(
    {Kind.BOOLEAN, Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DATE, Kind.VARCHAR}
)
_EQUAL = "equal"
_COMPARISONS: dict[type[filters.Filter], str] = {
    filters.EqualTo: _EQUAL,
    filters.GreaterThan: "greater",
    filters.GreaterThanOrEqual: "greater_equal",
    filters.LessThan: "less",
    filters.LessThanOrEqual: "less_equal",
}
_HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    _EQUAL: pc.equal,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "in": lambda column, values: pc.is_in(column, value_set=values),
    "null": lambda column, _: pc.is_null(column),
    "not_null": lambda column, _: pc.is_valid(column),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column; travels to the executors."""

    column: str
    comparison: str
    value: Any = None
    """An Arrow scalar of the column's type, an array of them for `in`, or None."""

    def holds(self, column: pa.Array) -> pa.Array:
        """Which rows pass."""
        return _HOLDS[self.comparison](column, self.value)


def conditions_of(
    wanted: Iterable[filters.Filter], columns: Sequence[Column]
) -> tuple[Condition, ...]:
    """Those filters that mean the same here as in Spark."""
    known = {column.name: column for column in columns}
    found = (_condition(each, known) for each in wanted)
    return tuple(condition for condition in found if condition is not None)


def files_for(
    files: Sequence[LiveFile], conditions: Sequence[Condition], schema: Schema
) -> Sequence[LiveFile]:
    """The files that may hold rows under these conditions."""
    fixed = {c.column: c.value for c in conditions if c.comparison == _EQUAL}
    if len(files) < 2 or not fixed.keys() >= set(schema.key):
        return files
    from headwater.state.key_hash import vnodes  # noqa: PLC0415  it loads a compiler

    key = pa.table({name: pa.array([fixed[name].as_py()], fixed[name].type) for name in schema.key})
    vnode = int(vnodes(key, schema)[0])
    return [live for live in files if live.file.first_vnode <= vnode <= live.file.last_vnode]


def _condition(wanted: filters.Filter, known: Mapping[str, Column]) -> Condition | None:
    path: tuple[str, ...] = getattr(wanted, "attribute", ())
    column = known.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    match wanted:
        case filters.IsNull():
            return Condition(column.name, "null")
        case filters.IsNotNull():
            return Condition(column.name, "not_null")
        case _:
            return _comparison(wanted, column) if column.type.kind in _EXACT else None


def _comparison(wanted: filters.Filter, column: Column) -> Condition | None:
    value: Any = getattr(wanted, "value", None)
    if isinstance(wanted, filters.In):
        scalars = [_scalar(each, column) for each in value if each is not None]
        if any(scalar is None for scalar in scalars):
            return None
        return Condition(column.name, "in", pa.array(scalars, column.type.arrow))
    scalar = _scalar(value, column)
    if type(wanted) not in _COMPARISONS or scalar is None:
        return None
    return Condition(column.name, _COMPARISONS[type(wanted)], scalar)


def _scalar(value: Any, column: Column) -> pa.Scalar | None:
    """The value in the column's type, or None where it does not fit exactly."""
    try:
        scalar = pa.scalar(value, column.type.arrow)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return scalar if scalar.as_py() == value else None
