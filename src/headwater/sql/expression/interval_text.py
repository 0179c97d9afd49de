"""Intervals: how PostgreSQL reads and spells them."""

import re
from fractions import Fraction

from headwater.model import types
from headwater.sql.expression.typed import IntervalParts, Typed, stored_interval

_MONTHS = {"year": 12, "decade": 120, "century": 1200, "millennium": 12000, "month": 1}
_DAYS = {"day": 1, "week": 7}
_MICROS = {
    "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
    "millisecond": 1000, "microsecond": 1,
}  # fmt: skip
_SHORT = {
    "y": "year", "yr": "year", "yrs": "year", "mon": "month", "mons": "month", "d": "day",
    "w": "week", "h": "hour", "hr": "hour", "hrs": "hour", "m": "minute", "min": "minute",
    "mins": "minute", "s": "second", "sec": "second", "secs": "second", "ms": "millisecond",
    "msec": "millisecond", "us": "microsecond", "usec": "microsecond", "centuries": "century",
    "millennia": "millennium",
}  # fmt: skip
_TERM = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*([a-z]+)", re.IGNORECASE)
_CLOCK = re.compile(r"([+-]?)(\d+):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?")


def unit_name(word: str) -> str:
    """The singular, long name of a unit of time, or a ValueError."""
    lower = word.lower()
    for candidate in (lower, lower.removesuffix("s"), _SHORT.get(lower, "")):
        if candidate in _MONTHS or candidate in _DAYS or candidate in _MICROS:
            return candidate
    raise ValueError(word)


def read_interval(  # noqa: PLR0912  one branch per spelling
    text: str, unit: str | None = None
) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval as the user wrote it."""
    if unit is not None and re.fullmatch(r"\s*[+-]?\d+(\.\d*)?\s*", text):
        text = f"{text.strip()} {unit}"
    if text.strip()[:1] in ("P", "p"):
        return _read_iso(text.strip().upper())
    if found := re.fullmatch(r"\s*([+-]?)(\d+)-(\d{1,2})\s*", text):
        sign = -1 if found[1] == "-" else 1
        return sign * (int(found[2]) * 12 + int(found[3])), 0, 0
    # A number right before a time of day counts days.
    text = re.sub(r"^\s*([+-]?\d+)\s+(?=[+-]?\d+:)", r"\1 days ", text)
    rest, ago = text.strip(), False
    if rest.lower().endswith("ago"):
        rest, ago = rest[:-3].strip(), True
    months = days = micros = Fraction(0)
    matched = False
    while rest:
        if found := _CLOCK.match(rest):
            sign = -1 if found[1] == "-" else 1
            seconds = int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4] or 0)
            micros += sign * (seconds * 1_000_000 + int((found[5] or "").ljust(6, "0")))
        elif found := _TERM.match(rest):
            amount, name = Fraction(found[1]), unit_name(found[2])
            if name in _MONTHS:
                months += amount * _MONTHS[name]
            elif name in _DAYS:
                days += amount * _DAYS[name]
            else:
                micros += amount * _MICROS[name]
        elif not matched and re.fullmatch(r"[+-]?\d+(\.\d*)?", rest):
            micros += Fraction(rest) * 1_000_000
            rest, matched = "", True
            continue
        else:
            raise ValueError(text)
        matched = True
        rest = rest[found.end() :].strip().removeprefix(",").strip()
    if not matched:
        raise ValueError(text)
    # What is left of a month counts 30 days, what is left of a day 24 hours.
    whole_months = int(months)
    days += (months - whole_months) * 30
    whole_days = int(days)
    micros += (days - whole_days) * 86_400_000_000
    result = (whole_months, whole_days, round(micros))
    return (-result[0], -result[1], -result[2]) if ago else result


_ISO = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+)(?:\.(\d{1,6}))?S)?)?"
)


def _read_iso(text: str) -> tuple[int, int, int]:
    """P1Y2M3DT4H5M6S."""
    found = _ISO.fullmatch(text)
    if not found or text in ("P", "PT"):
        raise ValueError(text)
    years, months, weeks, days, hours, minutes, seconds = (
        int(part or 0) for part in found.groups()[:7]
    )
    fraction = int((found[8] or "").ljust(6, "0"))
    if (found[7] or "").startswith("-"):
        fraction = -fraction
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction
    return years * 12 + months, weeks * 7 + days, micros


def _cut(parts: tuple[int, int, int], unit: str | None) -> tuple[int, int, int]:
    """Without what is smaller than the unit that the user wrote behind."""
    months, days, micros = parts
    match (unit or "").upper():
        case "YEAR":
            return int(Fraction(months, 12)) * 12, 0, 0
        case "MONTH":
            return months, 0, 0
        case "DAY":
            return months, days, 0
        case "HOUR":
            return months, days, int(Fraction(micros, 3_600_000_000)) * 3_600_000_000
        case "MINUTE":
            return months, days, int(Fraction(micros, 60_000_000)) * 60_000_000
        case _:
            return parts


def interval_of(text: str, unit: str | None = None) -> Typed:
    """An interval literal."""
    numbers = _cut(read_interval(text, unit), unit)
    parts = IntervalParts(*(f"({number}L)" for number in numbers))
    return Typed(f"'{shown_interval(*numbers)}'", types.INTERVAL, interval=parts, nullable=False)


def shown_interval(months: int, days: int, micros: int) -> str:
    """An interval as PostgreSQL spells it."""
    years, months = int(Fraction(months, 12)), months - int(Fraction(months, 12)) * 12
    words, negative = [], False
    for amount, word in ((years, "year"), (months, "mon"), (days, "day")):
        if amount:
            plus = "+" if negative and amount > 0 else ""
            words.append(f"{plus}{amount} {word}{'' if amount == 1 else 's'}")
            negative = amount < 0
    if micros or not words:
        sign = "-" if micros < 0 else "+" if negative else ""
        seconds, fraction = divmod(abs(micros), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        rest = f".{fraction:06}".rstrip("0") if fraction else ""
        words.append(f"{sign}{clock}{rest}")
    return " ".join(words)


def interval_from(
    months: str,
    days: str,
    micros: str,
    *,
    columns: frozenset[str] = frozenset(),
) -> Typed:
    """An interval made of three Spark texts."""
    parts = IntervalParts(*(f"({part})" for part in (months, days, micros)))
    return Typed(spelled(parts), types.INTERVAL, columns, interval=parts)


def parts_of(value: Typed) -> IntervalParts:
    """The three numbers of any interval, also of one that is only there as text."""
    return value.interval or stored_interval(value.text)


def spelled(parts: IntervalParts) -> str:
    """A Spark text that spells the parts as PostgreSQL does: `1 year 2 mons 3 days 04:05:06`."""
    given = f"struct({parts.months} as m, {parts.days} as d, {parts.micros} as u)"
    body = _spelled(IntervalParts("v.m", "v.d", "v.u"))
    # Each part is computed once, however often its spelling needs it.
    return f"get(transform(array({given}), v -> {body}), 0)"


def _spelled(parts: IntervalParts) -> str:
    years, months = f"({parts.months} div 12L)", f"({parts.months} % 12L)"

    def term(amount: str, word: str, negative_before: str) -> str:
        plural = f"if({amount} = 1L, '{word}', '{word}s')"
        sign = f"if({negative_before} and {amount} > 0L, '+', '')"
        return f"if({amount} = 0L, null, concat({sign}, cast({amount} as string), ' ', {plural}))"

    micros = f"abs({parts.micros})"
    clock = (
        f"concat(if({parts.micros} < 0L, '-', "
        f"if({parts.days} < 0L or ({parts.days} = 0L and {parts.months} < 0L), '+', '')), "
        f"lpad(cast({micros} div 3600000000L as string), "
        f"greatest(2, length(cast({micros} div 3600000000L as string))), '0'), ':', "
        f"lpad(cast(({micros} div 60000000L) % 60L as string), 2, '0'), ':', "
        f"lpad(cast(({micros} div 1000000L) % 60L as string), 2, '0'), "
        f"if({micros} % 1000000L = 0L, '', concat('.', "
        f"rtrim('0', lpad(cast({micros} % 1000000L as string), 6, '0')))))"
    )
    nothing = f"({parts.months} = 0L and {parts.days} = 0L)"
    text = (
        f"concat_ws(' ', {term(years, 'year', 'false')}, "
        f"{term(months, 'mon', f'{years} < 0L')}, "
        f"{term(parts.days, 'day', f'{parts.months} < 0L')}, "
        f"if({parts.micros} = 0L and not {nothing}, null, {clock}))"
    )
    return f"if({parts.months} + {parts.days} + {parts.micros} is null, null, {text})"
