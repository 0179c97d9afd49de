"""Dates, timestamps and intervals.

date ± integer          date                   date - date             integer (days)
date/timestamp ± interval   timestamp          timestamp - timestamp   interval (days, time)
extract                 numeric (decimal), as in PostgreSQL since version 14; date_part gives
double precision
time zones              the session is in UTC; AT TIME ZONE takes a constant name
"""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function, pick, simple
from headwater.sql.expression.coercion import become, converted
from headwater.sql.expression.interval_text import interval_from, parts_of, unit_name
from headwater.sql.expression.problem import Text, shown
from headwater.sql.expression.typed import Typed, made, reading, string_literal

_STAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_TRUNCATED = (
    "microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month",
    "quarter", "year",
)  # fmt: skip


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
    moved = (
        f"({stamp.text} + make_interval(0, cast({minus}{parts.months} as int), 0, "
        f"cast({minus}{parts.days} as int), 0, 0, "
        f"cast({minus}{parts.micros} as decimal(20,0)) / 1000000))"
    )
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
    """Interval times a whole number."""
    if factor.type is None or factor.type.kind not in (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT):
        text.refuse("an interval can be multiplied by an integer only", node)
    parts = parts_of(value)
    return interval_from(
        *(f"{part} * {factor.text}" for part in (parts.months, parts.days, parts.micros)),
        columns=reading(value, factor),
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
    if value.type.kind not in (Kind.DATE, *_STAMPS):
        text.refuse(f"EXTRACT from {value.type.postgres} is not supported", node)
    stamp = value.text
    whole = _WHOLE_FIELDS.get(field)
    if whole is not None:
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


def _extract_interval(field: str, value: Typed, text: Text, node: object) -> Typed:
    parts = parts_of(value)
    whole = {
        "year": f"{parts.months} div 12L",
        "month": f"{parts.months} % 12L",
        "quarter": f"({parts.months} % 12L) div 3L + 1L",
        "day": parts.days,
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


def _date_part(call: Call) -> Typed:
    call.count(2)
    if call.args[0].literal is None:
        call.refuse("the field of date_part must be a constant")
    found = extract(call.args[0].literal, call.args[1], call.text, call.node)
    return converted(found, types.DOUBLE)


def _date_trunc(call: Call) -> Typed:
    call.count(2, 3)
    unit = (call.args[0].literal or "").lower()
    value = call.args[1]
    if value.type is None:
        value = call.arg(1, types.TIMESTAMPTZ)
    if len(call.args) == 3 and (call.args[2].literal or "").upper() not in ("UTC", "GMT"):
        call.refuse("date_trunc in another time zone than UTC is not supported")
    if value.type is not None and value.type.kind is Kind.INTERVAL:
        call.refuse("date_trunc of an interval is not supported")
    if value.known.kind is Kind.DATE:
        value = converted(value, types.TIMESTAMPTZ)
    if value.known.kind not in _STAMPS:
        call.no_such()
    known = {each.rstrip("s"): each.rstrip("s") for each in _TRUNCATED}
    name = known.get(unit.rstrip("s"))
    if name is None and unit in ("decade", "century", "millennium"):
        call.refuse(f"date_trunc to {unit!r} is not supported")
    if name is None:
        call.mistake(f'unit "{unit}" not recognized', sqlstate="22023")
    stamp = (
        value.text if value.known.kind is Kind.TIMESTAMPTZ else (f"cast({value.text} as timestamp)")
    )
    body = f"date_trunc('{name}', {stamp})"
    if value.known.kind is Kind.TIMESTAMP:
        body = f"cast({body} as timestamp_ntz)"
    return made(body, value.known, value)


def at_time_zone(value: Typed, zone: Typed, text: Text, node: object) -> Typed:
    """Timestamp to timestamptz in a zone, and back."""
    if zone.literal is None:
        text.refuse("the time zone must be a constant", node)
    name = string_literal(zone.literal)
    if value.type is None:
        value = become(value, types.TIMESTAMPTZ, text, node)
    if value.known.kind is Kind.DATE:
        value = converted(value, types.TIMESTAMPTZ)
    if value.known.kind is Kind.TIMESTAMP:
        body = f"cast(convert_timezone({name}, 'UTC', {value.text}) as timestamp)"
        return made(body, types.TIMESTAMPTZ, value)
    body = f"convert_timezone('UTC', {name}, cast({value.text} as timestamp_ntz))"
    return made(body, types.TIMESTAMP, value)


_PATTERNS = (
    ("YYYY", "yyyy"), ("HH24", "HH"), ("HH12", "hh"), ("MI", "mm"), ("MM", "MM"), ("DD", "dd"),
    ("SS", "ss"), ("US", "SSSSSS"), ("MS", "SSS"), ("DDD", "DDD"), ("Mon", "MMM"),
    ("AM", "a"), ("PM", "a"), ("YY", "yy"), ("HH", "hh"),
)  # fmt: skip


def java_pattern(pattern: str, text: Text, node: object) -> str:
    """A pattern of to_char for times, in Java's letters."""
    found, at = "", 0
    while at < len(pattern):
        for ours, java in sorted(_PATTERNS, key=lambda pair: -len(pair[0])):
            if pattern.startswith(ours, at) or (
                ours.isupper()
                and pattern[at : at + len(ours)] == ours.lower()
                and ours not in ("AM", "PM")
            ):
                found += java
                at += len(ours)
                break
        else:
            if pattern[at].isalpha():
                text.refuse(f"the pattern {pattern!r} is not supported", node)
            found += "''" if pattern[at] == "'" else pattern[at]
            at += 1
    return found


def _to_char(call: Call) -> Typed:
    call.count(2)
    value, form = call.args
    if value.type is None or value.type.kind not in (Kind.DATE, *_STAMPS) or form.literal is None:
        call.refuse("to_char is supported for times with a constant pattern only")
    java = java_pattern(form.literal, call.text, call.node)
    return made(f"date_format({value.text}, {string_literal(java)})", types.VARCHAR, value)


def _to_timestamp(call: Call) -> Typed:
    call.count(1, 2)
    if len(call.args) == 1:
        seconds = call.arg(0, types.DOUBLE)
        body = f"timestamp_micros(cast(rint({seconds.text} * 1000000D) as bigint))"
        return made(body, types.TIMESTAMPTZ, seconds)
    call.refuse("to_timestamp with a pattern is not supported", hint="Use a cast of ISO text.")


def _make_interval(call: Call) -> Typed:
    call.count(0, 7)
    values = [call.arg(place, types.INTEGER).text for place in range(min(6, len(call.args)))]
    values += ["0"] * (6 - len(values))
    years, months, weeks, days, hours, minutes = values
    micros = f"({hours} * 3600000000L + {minutes} * 60000000L)"
    if len(call.args) == 7:
        micros += f" + cast(rint({call.arg(6, types.DOUBLE).text} * 1000000D) as bigint)"
    return interval_from(
        f"{years} * 12L + {months}", f"{weeks} * 7L + {days}", micros, columns=reading(*call.args)
    )


def unit(name: str, text: Text, node: object) -> str:
    """A unit of time by any of its names."""
    try:
        return unit_name(name)
    except ValueError:
        text.mistake(f'unit "{name}" not recognized', node, sqlstate="22023")


FUNCTIONS: dict[str, Function] = {
    "date_part": _date_part,
    "date_trunc": _date_trunc,
    "to_char": _to_char,
    "to_timestamp": _to_timestamp,
    "make_interval": _make_interval,
    "make_date": pick((simple((types.INTEGER,) * 3, types.DATE, "make_date({0}, {1}, {2})"),)),
    "make_timestamp": pick(
        (
            simple(
                (*(types.INTEGER,) * 5, types.DOUBLE),
                types.TIMESTAMP,
                "make_timestamp_ntz({0}, {1}, {2}, {3}, {4}, cast({5} as decimal(16,6)))",
            ),
        )
    ),
}
