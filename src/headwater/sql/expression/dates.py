"""Dates, timestamps and intervals.

date ± integer          date                   date - date             integer (days)
date/timestamp ± interval   timestamp          timestamp - timestamp   interval (days, time)
extract                 numeric (decimal), as in PostgreSQL since version 14; date_part gives
double precision
time zones              the session is in UTC; AT TIME ZONE takes a constant name
"""

import re

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.clock_text import DAY, micros_time, time_micros
from headwater.sql.expression.coercion import INTEGERS, become, converted
from headwater.sql.expression.interval_text import interval_from, parts_of
from headwater.sql.expression.problem import Text, shown
from headwater.sql.expression.typed import Typed, made, reading, string_literal

_STAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def kinds_of(left: Typed, right: Typed) -> tuple[Kind | None, Kind | None]:
    """The kinds of two operands; None for a literal without a type."""
    return (
        left.type.kind if left.type else None,
        right.type.kind if right.type else None,
    )


def concerns_time(left: Typed, right: Typed) -> bool:
    """Whether an operator between these is about dates and times."""
    wanted = (Kind.DATE, Kind.TIME, Kind.INTERVAL, *_STAMPS)
    return any(kind in wanted for kind in kinds_of(left, right))


def micros_of(value: Typed) -> str:
    """A timestamp as microseconds since 1970."""
    stamp = (
        value.text if value.known.kind is Kind.TIMESTAMPTZ else (f"cast({value.text} as timestamp)")
    )
    return f"unix_micros({stamp})"


def add_time(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`+` with a date, a timestamp or an interval in it."""
    kinds = kinds_of(left, right)
    if kinds[0] is Kind.INTERVAL and kinds[1] not in (Kind.INTERVAL, None):
        left, right = right, left
    elif kinds[1] is Kind.DATE and kinds[0] is not Kind.DATE:
        left, right = right, left
    return _shift("+", left, right, text, node)


def _shift(sign: str, left: Typed, right: Typed, text: Text, node: object) -> Typed:
    kind = left.type.kind if left.type else None
    if right.type is None:
        right = become(right, types.INTEGER if kind is Kind.DATE else types.INTERVAL, text, node)
    assert right.type is not None
    if kind is Kind.DATE and right.type.kind in (Kind.INTEGER, Kind.SMALLINT):
        function = "date_add" if sign == "+" else "date_sub"
        return made(f"{function}({left.text}, {right.text})", types.DATE, left, right)
    if right.type.kind is Kind.INTERVAL and kind in (Kind.DATE, *_STAMPS):
        stamp = converted(left, types.TIMESTAMP) if kind is Kind.DATE else left
        return _plus_parts(sign, stamp, right)
    if kind is Kind.DATE and right.type.kind is Kind.TIME and sign == "+":
        micros = f"({micros_of(left)} + {time_micros(right.text)})"
        body = f"cast(timestamp_micros({micros}) as timestamp_ntz)"
        return made(body, types.TIMESTAMP, left, right)
    if right.type.kind is Kind.INTERVAL and kind is Kind.TIME:
        moved = f"pmod({time_micros(left.text)} {sign} {parts_of(right).micros}, {DAY}L)"
        return made(micros_time(moved), types.TIME, left, right)
    if right.type.kind is Kind.INTERVAL and kind in (Kind.INTERVAL, None):
        one = parts_of(become(left, types.INTERVAL, text, node))
        two = parts_of(right)
        return interval_from(
            f"{one.months} {sign} {two.months}",
            f"{one.days} {sign} {two.days}",
            f"{one.micros} {sign} {two.micros}",
            columns=reading(left, right),
        )
    text.refuse(f"operator {shown(left.type)} {sign} {shown(right.type)} is not supported", node)


def _plus_parts(sign: str, stamp: Typed, interval: Typed) -> Typed:
    parts = parts_of(interval)
    minus = "-" if sign == "-" else ""
    # Months first, cut to the month's last day, then days, then the time: as PostgreSQL does.
    seconds = f"cast(cast({minus}{parts.micros} as decimal(18,6)) / 1000000 as decimal(18,6))"
    moved = (
        f"({stamp.text} + make_interval(0, cast({minus}{parts.months} as int), 0, "
        f"cast({minus}{parts.days} as int), 0, 0, {seconds}))"
    )
    return made(moved, stamp.known, stamp, interval)


def subtract_time(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`-` with a date, a timestamp or an interval in it."""
    kinds = kinds_of(left, right)
    if kinds[0] is None and kinds[1] is not Kind.INTERVAL:
        left = become(left, right.known, text, node)
    if kinds[1] is None:
        right = become(right, left.known, text, node)
    kinds = kinds_of(left, right)
    if kinds == (Kind.DATE, Kind.DATE):
        return made(f"datediff({left.text}, {right.text})", types.INTEGER, left, right)
    if kinds == (Kind.TIME, Kind.TIME):
        difference = f"{time_micros(left.text)} - {time_micros(right.text)}"
        return interval_from("0L", "0L", difference, columns=reading(left, right))
    moments = (Kind.DATE, *_STAMPS)
    if kinds[0] in moments and kinds[1] in moments:
        micros = f"({micros_of(left)} - {micros_of(right)})"
        return interval_from(
            "0L",
            f"{micros} div 86400000000L",
            f"{micros} % 86400000000L",
            columns=reading(left, right),
        )
    return _shift("-", left, right, text, node)


def scale_interval(value: Typed, factor: Typed, text: Text, node: object) -> Typed:
    """Interval times a number."""
    if factor.type is None or factor.type.kind not in INTEGERS:
        return _scaled(value, become(factor, types.DOUBLE, text, node))
    parts = parts_of(value)
    return interval_from(
        *(f"{part} * {factor.text}" for part in (parts.months, parts.days, parts.micros)),
        columns=reading(value, factor),
    )


def divide_interval(value: Typed, divisor: Typed, text: Text, node: object) -> Typed:
    """Interval divided by a number."""
    by = become(divisor, types.DOUBLE, text, node)
    error = "cast(raise_error('division by zero') as double)"
    checked = made(f"if({by.text} = 0, {error}, {by.text})", types.DOUBLE, by)
    return _scaled(value, by, exact=checked)


def _scaled(value: Typed, factor: Typed, exact: Typed | None = None) -> Typed:
    """Parts of months become days of a month of 30, and parts of days become time."""
    parts = parts_of(value)
    sign = "/" if exact is not None else "*"
    by = exact.text if exact is not None else factor.text
    given = f"struct({parts.months} as m, {parts.days} as d, {parts.micros} as u, {by} as f)"

    def whole(number: str) -> str:
        return f"cast({number} as bigint)"

    months, days = f"(g.m {sign} g.f)", f"(g.d {sign} g.f)"
    spare = f"round(({months} - {whole(months)}) * 30D, 6)"
    rest = f"round(({days} - {whole(days)} + s - {whole('s')}) * 86400D, 6)"
    carried = f"if(abs(r) >= 86400D, {whole('(r / 86400D)')}, 0L)"
    micros = f"cast(rint((g.u {sign} g.f) + (r - {carried} * 86400D) * 1000000D) as bigint)"
    made_ = (
        f"struct({whole(months)} as m, {whole(days)} + {whole('s')} + {carried} as d, "
        f"{micros} as u)"
    )
    inner = f"get(transform(array({rest}), r -> {made_}), 0)"
    inner = f"get(transform(array({spare}), s -> {inner}), 0)"
    result = f"get(transform(array({given}), g -> if(g.m + g.f is null, null, {inner})), 0)"
    return interval_from(
        f"{result}.m", f"{result}.d", f"{result}.u", columns=reading(value, factor)
    )


def negate_interval(value: Typed) -> Typed:
    """Minus an interval."""
    parts = parts_of(value)
    return interval_from(
        f"- {parts.months}", f"- {parts.days}", f"- {parts.micros}", columns=value.columns
    )


def extract(field: str, value: Typed, text: Text, node: object) -> Typed:
    """EXTRACT(field FROM value), as a decimal."""
    field = field.lower().rstrip("s") if field.lower() not in _PLURALS else field.lower()
    if value.type is None:
        text.mistake("EXTRACT needs a date, a timestamp or an interval", node)
    if value.type.kind is Kind.INTERVAL:
        return _extract_interval(field, value, text, node)
    if value.type.kind is Kind.TIME:
        return _extract_time(field, value, text, node)
    if value.type.kind not in (Kind.DATE, *_STAMPS):
        text.refuse(f"EXTRACT from {value.type.postgres} is not supported", node)
    stamp = value.text
    whole = _WHOLE_FIELDS.get(field)
    if whole is not None:
        if field == "julian" and value.type.kind is not Kind.DATE:
            text.refuse("EXTRACT of julian is supported for dates", node)
        if field.startswith("timezone") and value.type.kind is not Kind.TIMESTAMPTZ:
            text.mistake(f"unit {field} not supported for this type", node, sqlstate="0A000")
        if value.type.kind is Kind.DATE and field in ("hour", "minute"):
            text.mistake(f"unit {field} not supported for type date", node, sqlstate="0A000")
        body = f"cast({whole.format(stamp)} as decimal(10,0))"
        return made(body, types.decimal(10, 0), value)
    micros = micros_of(value)
    if field == "epoch":
        type_ = types.decimal(20, 6)
        if value.type.kind is Kind.DATE:
            type_ = types.decimal(20, 0)
        body = f"cast(cast({micros} as decimal(20,0)) / 1000000 as {type_.spark})"
        return made(body, type_, value)
    if value.type.kind is Kind.DATE:
        text.mistake(f"unit {field} not supported for type date", node, sqlstate="0A000")
    rest = f"pmod({micros}, 60000000L)"
    return _seconds(field, rest, value, text, node)


_PLURALS = ("century", "millennium")
_WHOLE_FIELDS = {
    "year": "year({0})",
    "month": "month({0})",
    "day": "day({0})",
    "hour": "hour({0})",
    "minute": "minute({0})",
    "quarter": "quarter({0})",
    "week": "weekofyear({0})",
    "dow": "(dayofweek({0}) - 1)",
    "isodow": "(weekday({0}) + 1)",
    "doy": "dayofyear({0})",
    "isoyear": "extract(yearofweek from {0})",
    "julian": "(datediff({0}, DATE'2000-01-01') + 2451545)",
    "timezone": "(year({0}) * 0)",
    "timezone_hour": "(year({0}) * 0)",
    "timezone_minute": "(year({0}) * 0)",
    "decade": "(year({0}) div 10)",
    "century": "((year({0}) + 99) div 100)",
    "millennium": "((year({0}) + 999) div 1000)",
}


def _seconds(field: str, micros: str, value: Typed, text: Text, node: object) -> Typed:
    if field == "second":
        body = f"cast(cast({micros} as decimal(18,0)) / 1000000 as decimal(18,6))"
        return made(body, types.decimal(18, 6), value)
    if field == "millisecond":
        body = f"cast(cast({micros} as decimal(18,0)) / 1000 as decimal(18,3))"
        return made(body, types.decimal(18, 3), value)
    if field == "microsecond":
        return made(f"cast({micros} as decimal(18,0))", types.decimal(18, 0), value)
    text.refuse(f"EXTRACT of {field!r} is not supported", node)


def _extract_time(field: str, value: Typed, text: Text, node: object) -> Typed:
    micros = time_micros(value.text)
    whole = {"hour": f"{micros} div 3600000000L", "minute": f"({micros} div 60000000L) % 60L"}
    if field in whole:
        return made(f"cast({whole[field]} as decimal(10,0))", types.decimal(10, 0), value)
    if field == "epoch":
        body = f"cast(cast({micros} as decimal(20,0)) / 1000000 as decimal(20,6))"
        return made(body, types.decimal(20, 6), value)
    return _seconds(field, f"({micros} % 60000000L)", value, text, node)


def _extract_interval(field: str, value: Typed, text: Text, node: object) -> Typed:
    parts = parts_of(value)
    whole = {
        "year": f"{parts.months} div 12L",
        "month": f"{parts.months} % 12L",
        "quarter": f"({parts.months} % 12L) div 3L + 1L",
        "day": parts.days,
        "decade": f"{parts.months} div 120L",
        "century": f"{parts.months} div 1200L",
        "millennium": f"{parts.months} div 12000L",
        "hour": f"{parts.micros} div 3600000000L",
        "minute": f"({parts.micros} div 60000000L) % 60L",
    }.get(field)
    if whole is not None:
        return made(f"cast({whole} as decimal(19,0))", types.decimal(19, 0), value)
    if field == "epoch":
        # A year has 365.25 days and a month 30, as PostgreSQL counts them here.
        days = (
            f"(({parts.months} div 12L) * 31557600L + ({parts.months} % 12L) * 2592000L + "
            f"{parts.days} * 86400L)"
        )
        body = f"cast({days} as decimal(20,0)) + cast({parts.micros} as decimal(20,0)) / 1000000"
        return made(f"cast({body} as decimal(26,6))", types.decimal(26, 6), value)
    return _seconds(field, f"({parts.micros} % 60000000L)", value, text, node)


def _zone(zone: Typed, text: Text, node: object) -> str:
    """A zone as Spark knows it; `+02` is east here, as in ISO and not as in POSIX."""
    if zone.known.kind is Kind.INTERVAL and not zone.columns:
        parts = parts_of(zone)
        micros = f"({parts.days} * 86400000000L + {parts.micros})"
        return (
            f"format_string('%s%02d:%02d', if({micros} < 0, '-', '+'), "
            f"abs({micros}) div 3600000000L, (abs({micros}) div 60000000L) % 60L)"
        )
    name = zone.literal if zone.type is None else zone.constant
    if name is None:
        text.refuse("the time zone must be a constant", node)
    found = re.fullmatch(r"([+-])(\d{1,2})(?::?(\d{2}))?", name.strip())
    if found:
        # PostgreSQL reads a bare offset as POSIX does: positive is west of Greenwich.
        sign = "-" if found[1] == "+" else "+"
        name = f"{sign}{int(found[2]):02d}:{found[3] or '00'}"
    return string_literal(name)


def at_time_zone(value: Typed, zone: Typed, text: Text, node: object) -> Typed:
    """Timestamp to timestamptz in a zone, and back."""
    name = _zone(zone, text, node)
    if value.type is None:
        value = become(value, types.TIMESTAMPTZ, text, node)
    if value.known.kind is Kind.DATE:
        value = converted(value, types.TIMESTAMPTZ)
    if value.known.kind not in _STAMPS:
        text.mistake(f"AT TIME ZONE needs a timestamp, not {shown(value.type)}", node)
    if value.known.kind is Kind.TIMESTAMP:
        # A local time that comes twice, when clocks are set back, is the later one.
        later = "(c + make_dt_interval(0, 1))"
        again = f"convert_timezone('UTC', {name}, {later}) = {value.text}"
        found = f"convert_timezone({name}, 'UTC', {value.text})"
        chosen = f"get(transform(array({found}), c -> if({again}, {later}, c)), 0)"
        body = f"cast({chosen} as timestamp)"
        return made(body, types.TIMESTAMPTZ, value)
    body = f"convert_timezone('UTC', {name}, cast({value.text} as timestamp_ntz))"
    return made(body, types.TIMESTAMP, value)
