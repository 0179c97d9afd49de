"""Dates and times in their two forms: fields in results, packed numbers in the binlog.

    type         in a result              in the binlog
    DATE         year, month, day         3 bytes: day 5 bits, month 4, year 15
    DATETIME     fields, microseconds     5 bytes big-endian: sign, year*13+month 17 bits, day 5,
                                          hour 5, minute 6, second 6; then the fraction
    TIMESTAMP    fields, in UTC           4 bytes big-endian: seconds since 1970; then the fraction
    TIME         sign, days, fields       3 bytes big-endian: sign, hour 10 bits, minute 6, second
                                          6, as an offset; then the fraction
A fraction of n digits takes (n+1)/2 bytes.

A date whose month or day is zero, or that no calendar has, is a *zero date*. The kernels mark
it; what becomes of it is the user's choice. TIME is written as PostgreSQL writes it, without
zeros at the end of the fraction, so that equal times are equal texts.
"""

from dataclasses import dataclass

import numba
import numpy as np
import pyarrow as pa

from headwater.cdc.mysql.pieces import Array, Pieces

_SECOND = 1_000_000
_DAY_US = 86_400 * _SECOND
NO_DATE = np.int64(-(1 << 62))
"""What a kernel writes where there is no date."""
NO_TIME = NO_DATE
_LONGEST_TIME = 18


@numba.njit(cache=True, nogil=True)
def _days(year, month, day):  # type: ignore[no-untyped-def]
    """Days since 1970 of a date of the calendar, or NO_DATE."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return NO_DATE
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    last = 31
    if month in (4, 6, 9, 11):
        last = 30
    elif month == 2:
        last = 29 if leap else 28
    if day > last:
        return NO_DATE
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (9 if month <= 2 else -3)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@numba.njit(cache=True, nogil=True)
def _moment(year, month, day, seconds, micros):  # type: ignore[no-untyped-def]
    days = _days(year, month, day)
    if days == NO_DATE:
        return NO_DATE
    return days * _DAY_US + seconds * _SECOND + micros


@numba.njit(cache=True, nogil=True)
def _number(data, start, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for place in range(size):
        value |= np.int64(data[start + place]) << (8 * place)
    return value


@numba.njit(cache=True, nogil=True)
def _big(data, start, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for place in range(size):
        value = value << 8 | np.int64(data[start + place])
    return value


@numba.njit(cache=True, nogil=True)
def _field_moments(data, starts, sizes, out):  # type: ignore[no-untyped-def]
    """Microseconds since 1970 of fields of length 0, 4, 7 or 11."""
    for row in range(sizes.size):
        size, at = sizes[row], starts[row]
        if size < 4:
            out[row] = NO_DATE
            continue
        seconds, micros = np.int64(0), np.int64(0)
        if size >= 7:
            seconds = np.int64(data[at + 4]) * 3600 + np.int64(data[at + 5]) * 60
            seconds += np.int64(data[at + 6])
        if size >= 11:
            micros = _number(data, at + 7, 4)
        year = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        out[row] = _moment(year, np.int64(data[at + 2]), np.int64(data[at + 3]), seconds, micros)


@numba.njit(cache=True, nogil=True)
def _field_times(data, starts, sizes, out):  # type: ignore[no-untyped-def]
    """Microseconds of TIME fields of length 0, 8 or 12."""
    for row in range(sizes.size):
        size, at = sizes[row], starts[row]
        value = np.int64(0)
        if size >= 8:
            value = _number(data, at + 1, 4) * 24 + np.int64(data[at + 5])
            value = value * 3600 + np.int64(data[at + 6]) * 60 + np.int64(data[at + 7])
            value *= _SECOND
            if size >= 12:
                value += _number(data, at + 8, 4)
            if data[at]:
                value = -value
        out[row] = NO_TIME if size < 0 else value


@numba.njit(cache=True, nogil=True)
def _packed_dates(data, starts, sizes, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        out[row] = NO_DATE
        if sizes[row] > 0:
            value = _number(data, starts[row], 3)
            out[row] = _moment(value >> 9, value >> 5 & 15, value & 31, 0, 0)


@numba.njit(cache=True, nogil=True)
def _packed_datetimes(data, starts, sizes, factor, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        out[row] = NO_DATE
        if sizes[row] <= 0:
            continue
        at = starts[row]
        value = _big(data, at, 5) - 0x8000000000
        micros = _big(data, at + 5, sizes[row] - 5) * factor
        month = value >> 22
        seconds = (value >> 12 & 31) * 3600 + (value >> 6 & 63) * 60 + (value & 63)
        out[row] = _moment(month // 13, month % 13, value >> 17 & 31, seconds, micros)


@numba.njit(cache=True, nogil=True)
def _packed_timestamps(data, starts, sizes, factor, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        out[row] = NO_DATE
        if sizes[row] > 0:
            at = starts[row]
            seconds = _big(data, at, 4)
            micros = _big(data, at + 4, sizes[row] - 4) * factor
            # Second 0 is how the server stores '0000-00-00 00:00:00'.
            if seconds or micros:
                out[row] = seconds * _SECOND + micros


@numba.njit(cache=True, nogil=True)
def _packed_times(data, starts, sizes, factor, out):  # type: ignore[no-untyped-def]
    for row in range(sizes.size):
        out[row] = NO_TIME
        size, at = sizes[row], starts[row]
        if size <= 0:
            continue
        # Whole and fraction are one number around an offset, so a negative fraction borrows.
        extra = 8 * (size - 3)
        value = _big(data, at, size) - (np.int64(0x800000) << extra)
        negative = value < 0
        value = abs(value)
        whole = value >> extra
        seconds = (whole >> 12 & 1023) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
        value = seconds * _SECOND + (value & ((np.int64(1) << extra) - 1)) * factor
        out[row] = -value if negative else value


@numba.njit(cache=True, nogil=True)
def _two(out, at, value):  # type: ignore[no-untyped-def]
    out[at] = 48 + value // 10
    out[at + 1] = 48 + value % 10
    return at + 2


@numba.njit(cache=True, nogil=True)
def _spell_times(values, offsets, out):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(values.size):
        if values[row] != NO_TIME:
            value = values[row]
            if value < 0:
                out[at] = 45
                at += 1
                value = -value
            seconds, micros = value // _SECOND, value % _SECOND
            hours = seconds // 3600
            if hours > 99:
                out[at] = 48 + hours // 100
                at += 1
            at = _two(out, at, hours % 100)
            out[at] = 58
            at = _two(out, at + 1, seconds // 60 % 60)
            out[at] = 58
            at = _two(out, at + 1, seconds % 60)
            if micros:
                out[at] = 46
                at += 1
                part = 100_000
                while micros:
                    out[at] = 48 + micros // part
                    micros %= part
                    part //= 10
                    at += 1
        offsets[row + 1] = at


@dataclass(frozen=True, slots=True)
class Moments:
    """Dates and times of a column, in microseconds; NO_DATE where there is none."""

    values: Array
    nulls: Array

    def zero_dates(self) -> Array:
        """The rows that hold a date that is none."""
        return np.asarray((self.values == NO_DATE) & ~self.nulls)

    def column(self, type_: pa.DataType) -> pa.Array:
        """As Arrow; null where there is none."""
        valid = self.values != NO_DATE
        values = np.where(valid, self.values, 0)
        if type_ == pa.date32():
            values = (values // _DAY_US).astype(np.int32)
        validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(values)])

    def beyond_the_day(self) -> Array:
        """The rows whose TIME is no time of day."""
        return np.asarray((self.values != NO_TIME) & ((self.values < 0) | (self.values > _DAY_US)))

    def texts(self, type_: pa.DataType) -> pa.Array:
        """A TIME as text."""
        offsets = np.zeros(self.values.size + 1, dtype=np.int32)
        out = np.empty(self.values.size * _LONGEST_TIME, dtype=np.uint8)
        _spell_times(self.values, offsets, out)
        valid = self.values != NO_TIME
        validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        text = pa.py_buffer(out[: int(offsets[-1])])
        return pa.Array.from_buffers(type_, len(valid), [validity, pa.py_buffer(offsets), text])


def field_moments(pieces: Pieces, *, time: bool = False) -> Moments:
    """DATE, DATETIME, TIMESTAMP or TIME as a result has them."""
    out = np.empty(len(pieces), dtype=np.int64)
    kernel = _field_times if time else _field_moments
    kernel(pieces.data, pieces.starts, pieces.sizes, out)
    return Moments(out, pieces.sizes < 0)


def packed_moments(pieces: Pieces, base: str, digits: int) -> Moments:
    """The same as the binlog has them; `digits` are those of the fraction."""
    out = np.empty(len(pieces), dtype=np.int64)
    # A fraction of n digits is stored in pairs of digits: 5 digits as if there were 6.
    factor = np.int64(10 ** (6 - (digits + 1) // 2 * 2))
    if base == "date":
        _packed_dates(pieces.data, pieces.starts, pieces.sizes, out)
    else:
        kernel = {
            "datetime": _packed_datetimes, "timestamp": _packed_timestamps, "time": _packed_times
        }[base]  # fmt: skip
        kernel(pieces.data, pieces.starts, pieces.sizes, factor, out)
    return Moments(out, pieces.sizes < 0)
