"""Dates and times as PostgreSQL's input reads them, counted from 1970.

    date          days                 '2024-02-29', '20240229', '2024/2/29', '0044-03-15 BC'
    timestamp     microseconds         '2024-02-29 10:00:00.5', with T, 24:00 is the next day;
                                       a zone is read and left out, as PostgreSQL does
    timestamptz   microseconds, UTC    the same with Z, +05:30, Europe/Berlin; without a zone
                                       the session's
    time          microseconds         '10:00', '10:00:00.5', '24:00'

Spellings that depend on the clock ('now', 'tomorrow') or on the order of day and month are
refused, and so are the infinities, which have no stored form.
"""

import datetime
import re
from zoneinfo import ZoneInfo

from headwater.model.types import DataType, Kind
from headwater.pgwire.civil import DAY_US
from headwater.pgwire.violation import WireError

_DATE = r"(?:(?P<year>\d{3,7})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})|(?P<digits>\d{8}))"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?"
_ZONE = r"(?P<zone>[A-Za-z][A-Za-z0-9_+/-]*|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?)"
_MOMENT = re.compile(
    rf"\s*{_DATE}(?:(?:\s+|\s*[Tt]){_CLOCK})?(?:\s*{_ZONE})??(?:\s+(?P<era>BC|AD))?\s*",
    re.IGNORECASE,
)
_TIME = re.compile(rf"\s*[Tt]?{_CLOCK}(?:\s*{_ZONE})?\s*")
_FIXED = re.compile(r"([+-])(\d{1,2}):?(\d{2})?:?(\d{2})?")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SECOND = 1_000_000
_FIRST_DAY = -2_440_588
"""4714-11-24 BC, where PostgreSQL's calendar begins."""
_LAST_YEAR = {Kind.DATE: 5_874_897}
_LAST_STAMP_YEAR = 294_246
"""The last whole year that microseconds from 1970 can count to."""
_UTC_NAMES = ("z", "utc", "gmt", "zulu", "uct", "ut")


def read_moment(text: str, type_: DataType, zone: str) -> int:
    """A date in days, a timestamp in microseconds."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise _bad(text, type_)
    days = _days(found, text, type_)
    if type_.kind is Kind.DATE:
        _clock(found, text)
        return days
    micros = days * DAY_US + _clock(found, text)
    if type_.kind is Kind.TIMESTAMP:
        if found["zone"] is not None:
            _to_utc(micros, found["zone"], text, type_)
        return micros
    return _to_utc(micros, found["zone"] or zone, text, type_)


def read_time(text: str, type_: DataType) -> int:
    """A time of day in microseconds."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise _bad(text, type_)
    micros = _clock(found, text)
    if micros > DAY_US:
        raise _out_of_range(text)
    return micros


def local_to_utc(micros: int, zone: str) -> int:
    """Microseconds of a local clock as microseconds of UTC."""
    return micros - _offset(micros, ZoneInfo(zone)) * _SECOND


def utc_to_local(micros: int, zone: str) -> int:
    """Microseconds of UTC as those that a local clock shows."""
    at = _within_years(micros).replace(tzinfo=datetime.UTC).astimezone(ZoneInfo(zone))
    return micros + _seconds(at.utcoffset()) * _SECOND


def days_of(year: int, month: int, day: int) -> int:
    """Days from 1970 of a date; years are counted through zero."""
    # The year is taken to begin in March, so that the leap day is its last.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _days(found: "re.Match[str]", text: str, type_: DataType) -> int:
    if found["digits"] is not None:
        digits = found["digits"]
        year, month, day = int(digits[:4]), int(digits[4:6]), int(digits[6:])
    else:
        year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    before_christ = (found["era"] or "").upper() == "BC"
    if year == 0:
        raise _out_of_range(text)
    if before_christ:
        year = 1 - year
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1]:
        raise _out_of_range(text)
    if month == 2 and day == 29 and not leap:
        raise _out_of_range(text)
    days = days_of(year, month, day)
    if days < _FIRST_DAY or year > _LAST_YEAR.get(type_.kind, _LAST_STAMP_YEAR):
        raise WireError(f'{type_.postgres} out of range: "{text}"', "22008")
    return days


def _clock(found: "re.Match[str]", text: str) -> int:
    if found["hour"] is None:
        return 0
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    micros = _micros(found["fraction"] or "")
    at = ((hour * 60 + minute) * 60 + second) * _SECOND + micros
    if hour > 24 or minute > 59 or second > 60 or (hour == 24 and at > DAY_US):
        raise _out_of_range(text)
    return at


def _micros(digits: str) -> int:
    """A fraction of a second; more than six digits are rounded as a floating point number."""
    return round(float(f"0.{digits}") * _SECOND) if len(digits) > 6 else int(digits.ljust(6, "0"))


def _to_utc(micros: int, zone: str, text: str, type_: DataType) -> int:
    if zone.lower() in _UTC_NAMES:
        return micros
    if fixed := _FIXED.fullmatch(zone):
        hours, minutes, seconds = (int(part or 0) for part in fixed.groups()[1:])
        if hours > 15 or minutes > 59 or seconds > 59:
            raise WireError(f'time zone displacement out of range: "{text}"', "22009")
        apart = (hours * 60 + minutes) * 60 + seconds
        return micros - (apart if fixed[1] == "+" else -apart) * _SECOND
    try:
        return local_to_utc(micros, zone)
    except (OSError, ValueError, KeyError):
        if "/" in zone or zone.isupper():
            raise WireError(f'time zone "{zone}" not recognized', "22023") from None
        raise _bad(text, type_) from None


def _offset(micros: int, zone: ZoneInfo) -> int:
    """How far a local clock is from UTC, in seconds.

    A time that the clock skips counts as before the change, one that it shows twice as after.
    """
    local = _within_years(micros)
    first = _seconds(local.replace(tzinfo=zone, fold=0).utcoffset())
    second = _seconds(local.replace(tzinfo=zone, fold=1).utcoffset())
    return min(first, second)


def _within_years(micros: int) -> datetime.datetime:
    """The moment, or one near the end of the years for which there are zone rules."""
    days, rest = divmod(micros, DAY_US)
    if not -719_000 <= days <= 2_932_000:
        days = -719_000 if days < 0 else 2_932_000
    epoch = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  a local clock has no zone
    return epoch + datetime.timedelta(days=days, microseconds=rest)


def _seconds(apart: datetime.timedelta | None) -> int:
    return int((apart or datetime.timedelta()).total_seconds())


def _bad(text: str, type_: DataType) -> WireError:
    shown = text if len(text) <= 100 else text[:100] + "..."
    return WireError(f'invalid input syntax for type {type_.postgres}: "{shown}"', "22007")


def _out_of_range(text: str) -> WireError:
    return WireError(f'date/time field value out of range: "{text[:100]}"', "22008")
