"""Functions of times: age, bins, truncation, parts, and making them."""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function, pick, simple
from headwater.sql.expression.clock_text import DAY, micros_time
from headwater.sql.expression.coercion import converted
from headwater.sql.expression.dates import at_time_zone, extract, micros_of
from headwater.sql.expression.interval_text import interval_from, parts_of
from headwater.sql.expression.typed import Typed, made, reading

INT = types.INTEGER
STAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_UNITS = (
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter",
    "year", "decade", "century", "millennium",
)  # fmt: skip


def _plain(value: Typed) -> str:
    """A timestamp without zone."""
    if value.known.kind is Kind.TIMESTAMP:
        return value.text
    return f"cast({value.text} as timestamp_ntz)"


def _age(call: Call) -> Typed:
    """Years, months, days and time between two moments, as a calendar counts them."""
    if len(call.args) == 1:
        call.refuse("age with one argument depends on the clock", hint="Give both moments.")
    call.count(2)
    kinds = [arg.type.kind for arg in call.args if arg.type is not None]
    shared = types.TIMESTAMP if Kind.TIMESTAMP in kinds else types.TIMESTAMPTZ
    one, two = (call.arg(place, shared) for place in (0, 1))
    late, early = f"greatest({_plain(one)}, {_plain(two)})", f"least({_plain(one)}, {_plain(two)})"
    parts = _calendar_difference(late, early)
    sign = (
        f"if({one.text} < {two.text}, -1L, if({one.text} is null or {two.text} is null, null, 1L))"
    )
    return interval_from(*(f"{sign} * {part}" for part in parts), columns=reading(one, two))


def _calendar_difference(late: str, early: str) -> tuple[str, str, str]:
    def clock(stamp: str) -> str:
        return f"pmod(unix_micros(cast({stamp} as timestamp)), {DAY}L)"

    micros = f"({clock(late)} - {clock(early)})"
    borrowed = f"if({micros} < 0L, 1L, 0L)"
    days = f"(cast(day({late}) as bigint) - day({early}) - {borrowed})"
    month = f"day(last_day(cast({early} as date)))"
    # Days that are missing are borrowed from the month of the earlier moment, which has enough.
    times = f"if({days} >= 0L, 0L, 1L)"
    months = (
        f"((cast(year({late}) as bigint) - year({early})) * 12L + month({late}) - month({early}) "
        f"- {times})"
    )
    return months, f"({days} + {times} * {month})", f"({micros} + {borrowed} * {DAY}L)"


def _bin(call: Call) -> Typed:
    call.count(3)
    stride = parts_of(call.arg(0, types.INTERVAL))
    kinds = [arg.type.kind for arg in call.args[1:] if arg.type is not None]
    shared = types.TIMESTAMP if Kind.TIMESTAMP in kinds else types.TIMESTAMPTZ
    value, origin = call.arg(1, shared), call.arg(2, shared)
    size = f"({stride.days} * {DAY}L + {stride.micros})"
    months = "cast(raise_error('timestamps cannot be binned into intervals with months') as bigint)"
    zero = "cast(raise_error('stride must be greater than zero') as bigint)"
    checked = f"if({stride.months} <> 0L, {months}, if({size} <= 0L, {zero}, {size}))"
    distance = f"({micros_of(value)} - {micros_of(origin)})"
    micros = f"({micros_of(value)} - pmod({distance}, {checked}))"
    body = f"timestamp_micros({micros})"
    if shared.kind is Kind.TIMESTAMP:
        body = f"cast({body} as timestamp_ntz)"
    return made(body, shared, *call.args)


def _trunc(call: Call) -> Typed:
    call.count(2, 3)
    unit = (call.args[0].literal or "").lower()
    name = unit.rstrip("s") if unit.rstrip("s") in _UNITS else unit
    if name not in _UNITS:
        call.mistake(f'unit "{unit}" not recognized', sqlstate="22023")
    value = call.args[1]
    if value.type is None:
        value = call.arg(1, types.TIMESTAMPTZ)
    if value.known.kind is Kind.INTERVAL:
        return _trunc_interval(call, name, value)
    if value.known.kind is Kind.DATE:
        value = converted(value, types.TIMESTAMPTZ)
    if value.known.kind not in STAMPS:
        call.no_such()
    if len(call.args) == 3:
        if value.known.kind is not Kind.TIMESTAMPTZ:
            call.no_such()
        local = at_time_zone(value, call.args[2], call.text, call.node)
        cut = made(_cut(name, local.text), types.TIMESTAMP, local)
        return at_time_zone(cut, call.args[2], call.text, call.node)
    body = _cut(name, _plain(value))
    if value.known.kind is Kind.TIMESTAMPTZ:
        body = f"cast({body} as timestamp)"
    return made(body, value.known, value)


def _cut(unit: str, stamp: str) -> str:
    """A timestamp without zone, cut to a unit."""
    if unit in ("decade", "century", "millennium"):
        years = {"decade": 10, "century": 100, "millennium": 1000}[unit]
        shift = 0 if unit == "decade" else 1
        first = f"(floor((year({stamp}) - {shift}) / {years}D) * {years} + {shift})"
        return f"make_timestamp_ntz(cast({first} as int), 1, 1, 0, 0, 0)"
    return f"cast(date_trunc('{unit}', cast({stamp} as timestamp)) as timestamp_ntz)"


def _trunc_interval(call: Call, unit: str, value: Typed) -> Typed:
    parts = parts_of(value)
    months = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200,
              "millennium": 12000}  # fmt: skip
    micros = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
              "millisecond": 1000, "microsecond": 1}  # fmt: skip
    if unit in months:
        size = months[unit]
        return interval_from(f"({parts.months} div {size}L) * {size}L", f"{parts.days} * 0L",
                             f"{parts.micros} * 0L", columns=value.columns)  # fmt: skip
    if unit == "week":
        call.mistake("unit week not supported for type interval", sqlstate="0A000")
    if unit == "day":
        return interval_from(parts.months, parts.days, f"{parts.micros} * 0L",
                             columns=value.columns)  # fmt: skip
    size = micros[unit]
    return interval_from(parts.months, parts.days, f"({parts.micros} div {size}L) * {size}L",
                         columns=value.columns)  # fmt: skip


def _part(call: Call) -> Typed:
    call.count(2)
    if call.args[0].literal is None:
        call.refuse("the field of date_part must be a constant")
    found = extract(call.args[0].literal, call.args[1], call.text, call.node)
    return converted(found, types.DOUBLE)


def _justify_hours(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, types.INTERVAL)
    parts = parts_of(value)
    days = f"({parts.days} + {parts.micros} div {DAY}L)"
    rest = f"({parts.micros} % {DAY}L)"
    move = f"if({days} > 0L and {rest} < 0L, -1L, if({days} < 0L and {rest} > 0L, 1L, 0L))"
    return interval_from(parts.months, f"{days} + {move}", f"{rest} - {move} * {DAY}L",
                         columns=value.columns)  # fmt: skip


def _justify_days(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, types.INTERVAL)
    parts = parts_of(value)
    months = f"({parts.months} + {parts.days} div 30L)"
    rest = f"({parts.days} % 30L)"
    move = f"if({months} > 0L and {rest} < 0L, -1L, if({months} < 0L and {rest} > 0L, 1L, 0L))"
    return interval_from(f"{months} + {move}", f"{rest} - {move} * 30L", parts.micros,
                         columns=value.columns)  # fmt: skip


_INTERVAL_NAMES = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def _make_interval(call: Call) -> Typed:
    call.count(0, 7)
    values = dict.fromkeys(_INTERVAL_NAMES, "0")
    for place, arg in enumerate(call.args):
        name = call.names[place] or _INTERVAL_NAMES[place]
        if name not in values:
            call.no_such()
        wanted = types.DOUBLE if name == "secs" else INT
        values[name] = call.arg(place, wanted).text
        del arg
    micros = f"({values['hours']} * 3600000000L + {values['mins']} * 60000000L)"
    if values["secs"] != "0":
        micros += f" + cast(rint({values['secs']} * 1000000D) as bigint)"
    return interval_from(
        f"{values['years']} * 12L + {values['months']}",
        f"{values['weeks']} * 7L + {values['days']}",
        micros,
        columns=reading(*call.args),
    )


def _make_time(call: Call) -> Typed:
    call.count(3)
    hour, minute = call.arg(0, INT), call.arg(1, INT)
    second = call.arg(2, types.DOUBLE)
    micros = (
        f"({hour.text} * 3600000000L + {minute.text} * 60000000L + "
        f"cast(rint({second.text} * 1000000D) as bigint))"
    )
    good = f"{hour.text} between 0 and 23 and {minute.text} between 0 and 59 and {second.text} >= 0"
    error = "cast(raise_error('time field value out of range') as bigint)"
    return made(micros_time(f"if({good}, {micros}, {error})"), types.TIME, hour, minute, second)


def _timezone(call: Call) -> Typed:
    call.count(2)
    return at_time_zone(call.args[1], call.args[0], call.text, call.node)


def overlaps(left: list[Typed], right: list[Typed], call: Call) -> Typed:
    """(a, b) OVERLAPS (c, d): half-open periods, with the ends in either order."""
    from headwater.sql.expression.dates import add_time  # noqa: PLC0415

    ends: list[Typed] = []
    for start, end in (left, right):
        if end.known.kind is Kind.INTERVAL:
            end = add_time(start, end, call.text, call.node)  # noqa: PLW2901
        for each in (start, end):
            stamp = each if each.type is not None else None
            if stamp is None or stamp.known.kind not in (Kind.DATE, *STAMPS):
                call.refuse("OVERLAPS is supported for dates and timestamps")
            ends.append(converted(stamp, types.TIMESTAMP))
    a, b, c, d = (each.text for each in ends)
    body = (
        f"(least({a}, {b}) = least({c}, {d}) or (least({a}, {b}) > least({c}, {d}) and "
        f"least({a}, {b}) < greatest({c}, {d})) or (least({c}, {d}) > least({a}, {b}) and "
        f"least({c}, {d}) < greatest({a}, {b})))"
    )
    nulls = " or ".join(f"{each} is null" for each in (a, b, c, d))
    return made(f"if({nulls}, null, {body})", types.BOOLEAN, *ends)


FUNCTIONS: dict[str, Function] = {
    "age": _age,
    "date_bin": _bin,
    "date_trunc": _trunc,
    "date_part": _part,
    "justify_hours": _justify_hours,
    "justify_days": _justify_days,
    "make_interval": _make_interval,
    "make_time": _make_time,
    "timezone": _timezone,
    "isfinite": pick(
        tuple(
            simple((each,), types.BOOLEAN, "if({0} is null, null, true)")
            for each in (types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, types.INTERVAL)
        )
    ),
    "make_date": pick((simple((INT,) * 3, types.DATE, "make_date({0}, {1}, {2})"),)),
    "make_timestamp": pick(
        (
            simple(
                (*(INT,) * 5, types.DOUBLE),
                types.TIMESTAMP,
                "make_timestamp_ntz({0}, {1}, {2}, {3}, {4}, cast({5} as decimal(16,6)))",
            ),
        )
    ),
    "make_timestamptz": pick(
        (
            simple(
                (*(INT,) * 5, types.DOUBLE),
                types.TIMESTAMPTZ,
                "make_timestamp({0}, {1}, {2}, {3}, {4}, cast({5} as decimal(16,6)))",
            ),
        )
    ),
}
