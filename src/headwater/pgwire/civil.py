"""Dates and times of day as PostgreSQL spells them, for every year that a number can hold.

Python's datetime ends at the years 1 and 9999 and Arrow's spelling at 0; PostgreSQL writes
`0044-03-15 BC` and `10000-01-01`. Everything here is counted from 1970, in whole days or
microseconds, in the Gregorian calendar without end in both directions.
"""

import re

from headwater.pgwire.violation import bad_text

DAY_US = 86_400_000_000
UNIX_TO_POSTGRES_DAYS = 10_957
UNIX_TO_POSTGRES_US = UNIX_TO_POSTGRES_DAYS * DAY_US

_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")


def spell_date(days: int) -> str:
    """A date; years before the first one get BC."""
    text, era = _spell_day(days)
    return text + era


def spell_timestamp(micros: int, suffix: str = "") -> str:
    """A timestamp; `suffix` is the zone and goes before the era."""
    days, within = divmod(micros, DAY_US)
    text, era = _spell_day(days)
    return f"{text} {spell_time(within)}{suffix}{era}"


def spell_time(micros: int) -> str:
    """A time of day, with as many digits of a second as it needs."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def spell_offset(seconds: int) -> str:
    """A zone's distance from UTC: +00, +05:30, -00:01:15."""
    sign = "-" if seconds < 0 else "+"
    hours, rest = divmod(abs(seconds), 3600)
    text = f"{sign}{hours:02d}"
    if rest:
        text += f":{rest // 60:02d}"
    if rest % 60:
        text += f":{rest % 60:02d}"
    return text


def read_time(text: str) -> int:
    """Microseconds of a time of day."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise bad_text("time", text)
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    micros = round(int((match[4] or "0").ljust(9, "0")) / 1000)
    total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    if minute > 59 or second > 60 or total > DAY_US:
        raise bad_text("time", text)
    return total


def _spell_day(days: int) -> tuple[str, str]:
    year, month, day = _civil(days)
    era = ""
    if year <= 0:
        year, era = 1 - year, " BC"
    return f"{year:04d}-{month:02d}-{day:02d}", era


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day; years are counted through zero.

    The year is taken to begin in March, so that the leap day is its last, and 400 such years
    are always 146,097 days long.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * from_march + 2) // 5 + 1
    month = from_march + 3 if from_march < 10 else from_march - 9
    return era * 400 + year_of_era + (month <= 2), month, day
