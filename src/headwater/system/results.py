"""Answers as clients expect them: PostgreSQL's types, spelled as PostgreSQL spells them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model import types
from headwater.model.types import DataType, Kind, list_of
from headwater.system import functions
from headwater.system.forms import REG_TYPES, VECTORS, Output
from headwater.system.relations import FORMS
from headwater.system.scene import Scene

_TOLD = {"char": 18, "name": 19, "text": 25, "oid": 26, "text[]": 1009, "oid[]": 1028}
"""Types of PostgreSQL's own that a client may want to hear of. asyncpg must: it asks for a type
that it does not know with a query that has these, and would otherwise ask for ever."""

_ARROW: dict[pa.DataType, DataType] = {
    pa.bool_(): types.BOOLEAN,
    pa.int8(): types.SMALLINT,
    pa.uint8(): types.SMALLINT,
    pa.int16(): types.SMALLINT,
    pa.uint16(): types.INTEGER,
    pa.int32(): types.INTEGER,
    pa.uint32(): types.INTEGER,
    pa.int64(): types.BIGINT,
    pa.uint64(): types.NUMERIC,
    pa.float32(): types.REAL,
    pa.float64(): types.DOUBLE,
    pa.string(): types.VARCHAR,
    pa.binary(): types.BYTEA,
    pa.date32(): types.DATE,
    pa.time64("us"): types.TIME,
    pa.month_day_nano_interval(): types.INTERVAL,
}
_SEEN = {
    pa.uint32(): "oid",
    pa.list_(pa.field("l", pa.uint32())): "oid[]",
    pa.list_(pa.field("l", pa.string())): "text[]",
}
"""What the embedded database's own types stand for."""


def told_oid(form: str) -> int:
    """The number that a client is told for a type, where that differs from our type's own; or 0."""
    return _TOLD.get(form, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultShape:
    """A column of an answer, and PostgreSQL's short name of its type if the query passes it on."""

    name: str
    type: DataType
    form: str | None
    oid: int | None


def result_columns(schema: pa.Schema, outputs: list[Output] | None) -> list[ResultShape]:
    """The columns of an answer; `outputs` are those that the query's text promises."""
    promised: Sequence[Output | None] = [None] * len(schema)
    if outputs is not None and len(outputs) == len(schema):
        promised = outputs
    shapes = []
    for field, output in zip(schema, promised, strict=True):
        form = None if output is None else output[1]
        if form is not None and not _fits(form, field.type):
            form = None
        shapes.append(_shape(field, form))
    return shapes


def _fits(form: str, arrow: pa.DataType) -> bool:
    if form in REG_TYPES or form in ("oid", "regproc"):
        return bool(pa.types.is_integer(arrow))
    if form in VECTORS:
        return bool(pa.types.is_list(arrow))
    if form.endswith("[]"):
        return bool(pa.types.is_list(arrow))
    return form in FORMS and bool(FORMS[form].arrow == arrow)


def _shape(field: pa.Field, form: str | None) -> ResultShape:
    if form in VECTORS or form in REG_TYPES:
        return ResultShape(name=field.name, type=types.VARCHAR, form=form, oid=None)
    if form == "jsonb":
        return ResultShape(name=field.name, type=types.JSONB, form=form, oid=None)
    oid = _TOLD.get(form or _SEEN.get(field.type, ""))
    type_ = FORMS[form].type if form in FORMS else _type_of(field.type)
    return ResultShape(name=field.name, type=type_, form=form, oid=oid)


def _type_of(arrow: pa.DataType) -> DataType:
    if arrow in _ARROW:
        return _ARROW[arrow]
    if pa.types.is_list(arrow):
        return list_of(_type_of(arrow.value_type))
    if pa.types.is_timestamp(arrow):
        return types.TIMESTAMP if arrow.tz is None else types.TIMESTAMPTZ
    if pa.types.is_decimal(arrow):
        return types.NUMERIC
    return types.VARCHAR


def shaped(table: pa.Table, shapes: Sequence[ResultShape], scene: Scene) -> pa.Table:
    """The rows in Arrow's types of those columns."""
    arrays = [
        _column(column.combine_chunks(), shape, scene)
        for column, shape in zip(table.columns, shapes, strict=True)
    ]
    schema = pa.schema([pa.field(s.name, s.type.arrow) for s in shapes])
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(  # noqa: PLR0911  one per kind
    array: pa.Array, shape: ResultShape, scene: Scene
) -> pa.Array:
    wanted = shape.type.arrow
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if shape.form in VECTORS:
        return _spelled(array, lambda value: " ".join(str(each) for each in value))
    if shape.form in REG_TYPES:
        shown = functions.FUNCTIONS[f"{REG_TYPES[shape.form]}_shown"].call
        return _spelled(array, lambda value: str(shown(scene, value)))
    if shape.type.kind is Kind.INTERVAL:
        return _spelled(array, _interval)
    if shape.type.kind is Kind.NUMERIC:
        return _spelled(array, _number)
    if array.type == wanted:
        return array
    if pa.types.is_nested(array.type) and not pa.types.is_list(array.type):
        return _spelled(array, str)
    return pc.cast(array, wanted, safe=False)


def _spelled(array: pa.Array, spell: Callable[[Any], str]) -> pa.Array:
    values = [None if value is None else spell(value) for value in array.to_pylist()]
    return pa.array(values, pa.string())


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:f}"


def _interval(value: Any) -> str:
    """A span of time as PostgreSQL writes it."""
    months, days, nanos = value
    parts = []
    years, months = int(months / 12), months - int(months / 12) * 12
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    if nanos or not parts:
        sign, rest = ("-", -nanos) if nanos < 0 else ("", nanos)
        seconds, micros = divmod(rest // 1000, 1_000_000)
        clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(f"{clock}.{micros:06}".rstrip("0") if micros else clock)
    return " ".join(parts)
