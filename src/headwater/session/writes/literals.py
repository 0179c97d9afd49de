"""Values that a statement writes out: known without a Spark job, with PostgreSQL's meaning.

    written                              is
    'text', $1, NULL                     without a type; it takes the column's
    1, 2.5, -3, 1e5                      integer, bigint or numeric
    true, date '...', '...'::type,       of that type
    interval '...', array[...]
    now(), current_date, ...             the statement's own moment
    gen_random_uuid(), random()          new each time

A value of one type that goes into a column of another is cast as PostgreSQL casts when it
assigns. Whatever is not in this table, and any cast that is not among those here, is left to
the planner and Spark: `constant` and `stored` then answer `LATER`.
"""

import math
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from enum import Enum
from typing import Any, Final, Literal

import pyarrow as pa
from sqlglot import exp

from headwater.errors import BindError, HeadwaterError
from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.pgwire.civil import DAY_US
from headwater.pgwire.interval import spell_interval
from headwater.pgwire.text import text_of
from headwater.session.writes.moments import local_to_utc, utc_to_local
from headwater.session.writes.text_input import (
    as_decimal,
    as_float,
    as_integer,
    interval_parts,
    numeric_text,
    read,
)
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.written_types import written_type

_INTEGERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)
_EXACT = (*_INTEGERS, Kind.DECIMAL, Kind.NUMERIC)
_FLOATS = (Kind.REAL, Kind.DOUBLE)
_MOMENTS = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_NOW = ("now", "transaction_timestamp", "statement_timestamp", "proctime")
_MOST_DIGITS = 1000


class Later(Enum):
    """That a value is not known here."""

    LATER = "later"


LATER: Final = Later.LATER


@dataclass(frozen=True, slots=True)
class Constant:
    """A value; without a type it is a text as the user wrote it, or null.

    Exact numbers are int or Decimal, whatever their type; other values are as they are stored.
    """

    type: DataType | None
    value: Any


NULL = Constant(None, None)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the values of one statement depend on."""

    parameters: Sequence[str | None] = ()
    zone: str = "UTC"
    text: Text = field(default_factory=lambda: Text(""))
    now: int = field(default_factory=lambda: time.time_ns() // 1000)
    """The statement's moment, in microseconds from 1970."""
    dice: bool = True
    """Whether random values may be made here: not where each row needs its own."""


def constant(node: exp.Expr, reading: Reading) -> Constant | Literal[Later.LATER]:  # noqa: PLR0911, PLR0912
    """The value of an expression, if it is one that is known here."""
    match node:
        case exp.Null():
            return NULL
        case exp.Literal() if node.args.get("is_string"):
            return Constant(None, str(node.this))
        case exp.Literal():
            return _number(str(node.this))
        case exp.ByteString():
            return Constant(None, str(node.this))
        case exp.Boolean():
            return Constant(types.BOOLEAN, bool(node.this))
        case exp.Parameter():
            return _parameter(node, reading)
        case exp.Paren():
            return constant(node.this, reading)
        case exp.Neg():
            return _negated(constant(node.this, reading))
        case exp.Cast():
            return _cast(node, reading)
        case exp.Interval():
            return _interval(node)
        case exp.Array():
            return _array(node, reading)
        case exp.CurrentTimestamp() | exp.CurrentDate() | exp.Localtimestamp() if not node.this:
            return _clock(type(node).__name__.lower(), reading)
        case exp.Anonymous() if not node.expressions:
            return _clock(function_name(node), reading)
        case _:
            return LATER


def stored(  # noqa: PLR0911
    value: Constant, target: DataType, reading: Reading
) -> Any | Literal[Later.LATER]:
    """The value as a column of that type stores it, after PostgreSQL's assignment cast."""
    if value.value is None:
        return None
    if value.type is None:
        return read(value.value, target, reading.zone)
    source, held = value.type.kind, value.value
    if source in _EXACT and target.kind in (*_EXACT, *_FLOATS):
        return _exact_as(held, target)
    if source in _FLOATS and target.kind in (*_EXACT, *_FLOATS):
        return _float_as(held, value.type, target)
    if target.kind is Kind.VARCHAR:
        return _text(value, reading)
    if source in _MOMENTS and target.kind in _MOMENTS:
        return _moment_as(held, source, target.kind, reading.zone)
    if source is Kind.LIST and target.kind is Kind.LIST:
        return _list_as(value, target, reading)
    return held if value.type == target else LATER


def place_error(error: HeadwaterError, node: exp.Expr, text: Text) -> HeadwaterError:
    """The same error, pointing at the value in the user's text."""
    try:
        text.mistake(error.message, node, sqlstate=error.sqlstate, hint=error.hint)
    except BindError as placed:
        return placed


def _parameter(node: Any, reading: Reading) -> Constant:
    number = int(node.this.this)
    if not 1 <= number <= len(reading.parameters):
        reading.text.mistake(f"there is no parameter ${number}", node, sqlstate="42P02")
    return Constant(None, reading.parameters[number - 1])


def _number(written: str) -> Constant | Literal[Later.LATER]:
    digits = written.replace("_", "")
    if len(digits) > _MOST_DIGITS:
        return LATER
    if digits.isdigit():
        number = int(digits)
        if number < 1 << 31:
            return Constant(types.INTEGER, number)
        return Constant(types.BIGINT if number < 1 << 63 else types.NUMERIC, number)
    try:
        return Constant(types.NUMERIC, Decimal(digits))
    except ArithmeticError:
        return LATER


def _negated(value: Constant | Literal[Later.LATER]) -> Constant | Literal[Later.LATER]:
    if value is LATER or value.type is None or value.type.kind not in (*_EXACT, *_FLOATS):
        return LATER
    return Constant(value.type, -value.value)


def _interval(node: Any) -> Constant | Literal[Later.LATER]:
    unit = node.args.get("unit")
    if not isinstance(node.this, exp.Literal):
        return LATER
    parts = interval_parts(str(node.this.this), unit.name if unit is not None else None)
    return Constant(types.INTERVAL, spell_interval(parts))


def _clock(name: str, reading: Reading) -> Constant | Literal[Later.LATER]:
    if name in _NOW or name == "currenttimestamp":
        return Constant(types.TIMESTAMPTZ, reading.now)
    if name == "localtimestamp":
        return Constant(types.TIMESTAMP, utc_to_local(reading.now, reading.zone))
    if name == "currentdate":
        return Constant(types.DATE, utc_to_local(reading.now, reading.zone) // DAY_US)
    if name == "gen_random_uuid" and reading.dice:
        return Constant(types.UUID, str(uuid.uuid4()))
    if name == "random" and reading.dice:
        return Constant(types.DOUBLE, random.random())
    return LATER


def _array(node: Any, reading: Reading) -> Constant | Literal[Later.LATER]:
    """ARRAY[...] of numbers, or of texts, or of one type."""
    items = [constant(each, reading) for each in node.expressions]
    found = [each for each in items if each is not LATER]
    kinds = {each.type for each in found if each.value is not None}
    if len(found) < len(items) or not items:
        return LATER
    if kinds <= {None}:
        element = types.VARCHAR
    elif all(type_ is not None and type_.kind in _EXACT for type_ in kinds):
        element = types.NUMERIC if len(kinds) > 1 else next(iter(kinds))  # type: ignore[assignment]
    elif len(kinds) == 1:
        element = next(iter(kinds))  # type: ignore[assignment]
    else:
        return LATER
    return Constant(types.list_of(element), [each.value for each in found])


def _cast(node: Any, reading: Reading) -> Constant | Literal[Later.LATER]:
    target, length = written_type(node.args["to"], reading.text)
    inner = node.this
    if isinstance(inner, exp.Array) and target.kind is Kind.LIST:
        return _cast_items(inner, target, reading)
    if isinstance(inner, exp.Literal) and not inner.args.get("is_string"):
        if target.kind in _FLOATS:
            return Constant(target, read(str(inner.this), target))
    value = constant(inner, reading)
    if value is LATER:
        return LATER
    if value.value is None:
        return Constant(target, None)
    if value.type is None or value.type == types.VARCHAR:
        found = _read_exact(value.value, target, reading)
    elif target.kind is Kind.NUMERIC and value.type.kind in _EXACT:
        found = value.value
    else:
        found = stored(value, target, reading)
        if found is LATER:
            return LATER
        if target.kind is Kind.NUMERIC:
            found = Decimal(found)
    if length is not None and target.kind is Kind.VARCHAR:
        found = found[:length]
    return Constant(target, found)


def _read_exact(text: str, target: DataType, reading: Reading) -> Any:
    found = read(text, target, reading.zone)
    return Decimal(str(found)) if target.kind is Kind.NUMERIC else found


def _cast_items(node: Any, target: DataType, reading: Reading) -> Constant | Literal[Later.LATER]:
    """ARRAY[...]::type[] casts each element."""
    element = target.element
    assert element is not None
    if element.kind is Kind.LIST:
        return LATER
    items = []
    for each in node.expressions:
        value = constant(each, reading)
        if value is LATER or (value.type is not None and value.type.kind not in _EXACT):
            return LATER
        item = stored(value, element, reading)
        if item is LATER:
            return LATER
        items.append(Decimal(item) if item is not None and element.kind is Kind.NUMERIC else item)
    return Constant(target, items)


def _exact_as(number: int | Decimal, target: DataType) -> Any:
    match target.kind:
        case Kind.DECIMAL:
            return as_decimal(Decimal(number), target)
        case Kind.NUMERIC:
            return numeric_text(Decimal(number))
        case Kind.REAL | Kind.DOUBLE:
            return read(numeric_text(Decimal(number)), target)
        case _:
            if isinstance(number, Decimal) and not number.is_finite():
                shown = "NaN" if number.is_nan() else "infinity"
                raise _unfit(f"cannot convert {shown} to {target.postgres}", "0A000")
            whole = number if isinstance(number, int) else _rounded(number)
            return as_integer(whole, target)


def _rounded(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_HALF_UP)) if number.adjusted() < 30 else int(number)


def _float_as(number: float, source: DataType, target: DataType) -> Any:
    if target.kind in _FLOATS:
        return as_float(number, target, repr(number))
    if not math.isfinite(number):
        if target.kind is Kind.NUMERIC:
            return numeric_text(Decimal(number))
        if target.kind is Kind.DECIMAL:
            return as_decimal(Decimal(number), target)
        raise _unfit(f"{target.postgres} out of range", "22003")
    if target.kind in _INTEGERS:
        return as_integer(round(number), target)
    digits = 6 if source.kind is Kind.REAL else 15
    return _exact_as(Decimal(f"{number:.{digits}g}"), target)


def _text(value: Constant, reading: Reading) -> str | Literal[Later.LATER]:
    """A value that goes into a text column, as PostgreSQL spells it."""
    assert value.type is not None
    match value.type.kind:
        case Kind.VARCHAR | Kind.TIME | Kind.INTERVAL | Kind.JSONB | Kind.UUID:
            return str(value.value)
        case Kind.BOOLEAN:
            return "true" if value.value else "false"
        case Kind.LIST | Kind.STRUCT:
            return LATER
        case kind if kind in _EXACT:
            return numeric_text(Decimal(value.value))
        case _:
            column = pa.array([value.value], value.type.arrow)
            return str(text_of(column, value.type, reading.zone)[0].as_py())


def _moment_as(value: int, source: Kind, target: Kind, zone: str) -> int:
    """Between dates and timestamps; a clock without a zone is the session's."""
    if source is target:
        return value
    local = value * DAY_US if source is Kind.DATE else value
    if source is Kind.TIMESTAMPTZ:
        local = utc_to_local(value, zone)
    match target:
        case Kind.DATE:
            return local // DAY_US
        case Kind.TIMESTAMP:
            return local
        case _:
            return local_to_utc(local, zone)


def _list_as(value: Constant, target: DataType, reading: Reading) -> Any:
    assert value.type is not None
    source, element = value.type.element, target.element
    assert source is not None
    assert element is not None
    if source != element and not (source.kind in _EXACT and element.kind in (*_EXACT, *_FLOATS)):
        return LATER
    found = [stored(Constant(source, each), element, reading) for each in value.value]
    return LATER if LATER in found else found


def _unfit(message: str, sqlstate: str) -> BindError:
    return BindError(message, sqlstate=sqlstate)
