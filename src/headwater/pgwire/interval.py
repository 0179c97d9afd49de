"""Intervals: months, days and microseconds, as PostgreSQL writes and sends them.

Stored intervals are text. A client that asks for binary gets three numbers, so the text is read
here, in all the forms that PostgreSQL itself or ISO 8601 would write it.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from headwater.pgwire.civil import spell_time
from headwater.pgwire.violation import bad_text

_SECOND = 1_000_000
_UNITS: dict[str, tuple[int, int, int]] = {
    # unit: (months, days, microseconds)
    "millennium": (12_000, 0, 0),
    "century": (1200, 0, 0),
    "decade": (120, 0, 0),
    "year": (12, 0, 0),
    "mon": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, 3600 * _SECOND),
    "minute": (0, 0, 60 * _SECOND),
    "second": (0, 0, _SECOND),
    "millisecond": (0, 0, 1000),
    "microsecond": (0, 0, 1),
}
_NAMES = {
    **{unit: unit for unit in _UNITS},
    **{f"{unit}s": unit for unit in _UNITS},
    "millennia": "millennium",
    "centuries": "century",
    "yr": "year",
    "yrs": "year",
    "y": "year",
    "month": "mon",
    "months": "mon",
    "w": "week",
    "d": "day",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_PART = re.compile(
    r"\s*(?:([+-]?)(\d+):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?|([+-]?[\d.]+)\s*([a-zA-Z]+))\s*"
)
_ISO = re.compile(r"([+-]?[\d.]+)([YMWDHS])")
_ISO_DATE = {"Y": "year", "M": "mon", "W": "week", "D": "day"}
_ISO_TIME = {"H": "hour", "M": "minute", "S": "second"}


class Interval(NamedTuple):
    """The three parts, which PostgreSQL never mixes."""

    months: int
    days: int
    micros: int


def read_interval(text: str) -> Interval:
    """The parts of an interval's text."""
    stripped = text.strip()
    try:
        if stripped[:1].upper() == "P":
            return _read_iso(stripped[1:].upper(), text)
        return _read_words(stripped, text)
    except InvalidOperation:
        raise bad_text("interval", text) from None


def spell_interval(interval: Interval) -> str:
    """As PostgreSQL's default style writes it: `1 year 2 mons -3 days +04:05:06.7`.

    A positive part that comes after a negative one gets its sign.
    """
    months, days, micros = interval
    years, months = int(months / 12), months - 12 * int(months / 12)
    parts: list[str] = []
    after_negative = False
    for number, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            sign = "+" if after_negative and number > 0 else ""
            parts.append(f"{sign}{number} {unit}{'' if number == 1 else 's'}")
            after_negative = number < 0
    if micros or not parts:
        sign = "-" if micros < 0 else "+" if after_negative else ""
        parts.append(sign + spell_time(abs(micros)))
    return " ".join(parts)


def _read_words(text: str, whole: str) -> Interval:
    negated = text.endswith(" ago")
    text = text.removesuffix(" ago").removeprefix("@")
    totals, at = [Decimal(0)] * 3, 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise bad_text("interval", whole)
        if match[2] is not None:
            seconds = Decimal(match[2]) * 3600 + Decimal(match[3]) * 60 + Decimal(match[4] or 0)
            totals[2] += seconds * _SECOND * (-1 if match[1] == "-" else 1)
        else:
            _add(totals, Decimal(match[5]), _NAMES.get(match[6].lower(), ""), whole)
        at = match.end()
    if not text.strip():
        raise bad_text("interval", whole)
    return _whole([-part for part in totals] if negated else totals)


def _read_iso(text: str, whole: str) -> Interval:
    totals = [Decimal(0)] * 3
    date, _, time = text.partition("T")
    for part, units in ((date, _ISO_DATE), (time, _ISO_TIME)):
        at = 0
        while at < len(part):
            match = _ISO.match(part, at)
            if match is None:
                raise bad_text("interval", whole)
            _add(totals, Decimal(match[1]), units.get(match[2], ""), whole)
            at = match.end()
    if not date and not time:
        raise bad_text("interval", whole)
    return _whole(totals)


def _add(totals: list[Decimal], number: Decimal, unit: str, whole: str) -> None:
    """Add a number of units; a part of a month spills into days, of a day into time."""
    if unit not in _UNITS:
        raise bad_text("interval", whole)
    months, days, micros = (number * size for size in _UNITS[unit])
    rest = months - int(months)
    totals[0] += int(months)
    days += rest * 30
    rest = days - int(days)
    totals[1] += int(days)
    totals[2] += micros + rest * 86_400 * _SECOND


def _whole(totals: list[Decimal]) -> Interval:
    return Interval(int(totals[0]), int(totals[1]), int(totals[2].to_integral_value()))
