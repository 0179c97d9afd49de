"""Compiled loops that spell Arrow columns as text and weave them into rows.

A column of texts is `offsets`, `data` and `valid`, as Arrow has it, so that all columns are woven
by the same two loops: one adds up how long each row gets, one writes the cells of a column behind
what each row has so far. Kernels that can meet a value with no spelling answer the first such row,
or -1.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: PLR0913, PLR0917
# Kernels have no objects to hold their buffers, and numba infers the types by itself.

import numba
import numpy as np

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_MICROS_OF_DAY = 86_400_000_000


@numba.njit(cache=True, nogil=True)
def row_sizes(offsets, data, valid, escapes, fixed, null_size, sizes):
    """Add a column's share to the size of each row; `fixed` is what stands around a value."""
    for row in range(sizes.size):
        if not valid[row]:
            sizes[row] += null_size
            continue
        size = offsets[row + 1] - offsets[row] + fixed
        for place in range(offsets[row], offsets[row + 1]):
            size += escapes[data[place]] != 0
        sizes[row] += size


@numba.njit(cache=True, nogil=True)
def plain_row_sizes(offsets, valid, fixed, null_size, sizes):
    """The same for texts that need no escapes."""
    for row in range(sizes.size):
        sizes[row] += offsets[row + 1] - offsets[row] + fixed if valid[row] else null_size


@numba.njit(cache=True, nogil=True, inline="always")
def _put(piece, out, at):
    for place in range(piece.size):
        out[at + place] = piece[place]
    return at + piece.size


@numba.njit(cache=True, nogil=True)
def weave(offsets, data, valid, escapes, before, after, null, end, cursors, out):
    """Write a column's cells, each with what stands before, after and behind it."""
    for row in range(cursors.size):
        at = cursors[row]
        if valid[row]:
            at = _put(before, out, at)
            for place in range(offsets[row], offsets[row + 1]):
                byte = data[place]
                if escapes[byte]:
                    out[at] = 92
                    out[at + 1] = escapes[byte]
                    at += 2
                else:
                    out[at] = byte
                    at += 1
            at = _put(after, out, at)
        else:
            at = _put(null, out, at)
        cursors[row] = _put(end, out, at)


@numba.njit(cache=True, nogil=True)
def weave_plain(offsets, data, valid, before, after, null, end, cursors, out):
    """The same for texts that need no escapes."""
    for row in range(cursors.size):
        at = cursors[row]
        if valid[row]:
            at = _put(before, out, at)
            for place in range(offsets[row], offsets[row + 1]):
                out[at] = data[place]
                at += 1
            at = _put(after, out, at)
        else:
            at = _put(null, out, at)
        cursors[row] = _put(end, out, at)


@numba.njit(cache=True, nogil=True, inline="always")
def _two_digits(number, out, at):
    out[at] = 48 + number // 10
    out[at + 1] = 48 + number % 10
    return at + 2


@numba.njit(cache=True, nogil=True, inline="always")
def _digits(number, least, out, at):
    """An unsigned number with at least so many digits."""
    count = 1
    rest = number // np.uint64(10)
    while rest:
        count += 1
        rest //= np.uint64(10)
    count = max(count, least)
    for place in range(count):
        out[at + count - 1 - place] = 48 + number % np.uint64(10)
        number //= np.uint64(10)
    return at + count


@numba.njit(cache=True, nogil=True)
def spell_integers(values, valid, scale, offsets, out):
    """Whole numbers, or decimals that are stored as such; at most 21 characters each."""
    at = 0
    offsets[0] = 0
    power = np.uint64(1)
    for _ in range(scale):
        power *= np.uint64(10)
    for row in range(values.size):
        if valid[row]:
            value = values[row]
            size = np.uint64(value)
            if value < 0:
                out[at] = 45
                at += 1
                size = ~size + np.uint64(1)
            if scale:
                at = _digits(size // power, 1, out, at)
                out[at] = 46
                at = _digits(size % power, scale, out, at + 1)
            else:
                at = _digits(size, 1, out, at)
        offsets[row + 1] = at
    return at


@numba.njit(cache=True, nogil=True, inline="always")
def _put_date(days, out, at):
    """A day since 1970 in the Gregorian calendar; answers its year and the place after it."""
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day = day_of_era - (365 * year + year // 4 - year // 100)
    part = (5 * day + 2) // 153
    month = part + 3 if part < 10 else part - 9
    year += era * 400 + (1 if month <= 2 else 0)
    at = _digits(np.uint64(year if year > 0 else 1 - year), 4, out, at)
    out[at] = 45
    at = _two_digits(month, out, at + 1)
    out[at] = 45
    return year, _two_digits(day - (153 * part + 2) // 5 + 1, out, at + 1)


@numba.njit(cache=True, nogil=True, inline="always")
def _put_era(year, out, at):
    if year > 0:
        return at
    out[at] = 32
    out[at + 1] = 66
    out[at + 2] = 67
    return at + 3


@numba.njit(cache=True, nogil=True)
def spell_dates(values, valid, first_year, last_year, offsets, out):
    """Days since 1970; at most 18 characters each. Years before Christ end in BC."""
    at = 0
    offsets[0] = 0
    for row in range(values.size):
        if valid[row]:
            year, at = _put_date(np.int64(values[row]), out, at)
            if year < first_year or year > last_year:
                return row
            at = _put_era(year, out, at)
        offsets[row + 1] = at
    return -1


@numba.njit(cache=True, nogil=True)
def spell_timestamps(values, valid, first_year, last_year, zone, offsets, out):
    """Microseconds since 1970, then `zone`; at most 32 characters each and those of `zone`."""
    at = 0
    offsets[0] = 0
    for row in range(values.size):
        if valid[row]:
            days = values[row] // _MICROS_OF_DAY
            micros = values[row] - days * _MICROS_OF_DAY
            year, at = _put_date(days, out, at)
            if year < first_year or year > last_year:
                return row
            seconds = micros // 1_000_000
            out[at] = 32
            at = _two_digits(seconds // 3600, out, at + 1)
            out[at] = 58
            at = _two_digits(seconds // 60 % 60, out, at + 1)
            out[at] = 58
            at = _two_digits(seconds % 60, out, at + 1)
            if micros % 1_000_000:
                out[at] = 46
                at = _digits(np.uint64(micros % 1_000_000), 6, out, at + 1)
            at = _put_era(year, out, _put(zone, out, at))
        offsets[row + 1] = at
    return -1


@numba.njit(cache=True, nogil=True)
def spell_hex(starts, data, valid, prefix, offsets, out):
    """Two digits per byte, behind a prefix."""
    at = 0
    offsets[0] = 0
    for row in range(valid.size):
        if valid[row]:
            at = _put(prefix, out, at)
            for place in range(starts[row], starts[row + 1]):
                out[at] = _HEX[data[place] >> 4]
                out[at + 1] = _HEX[data[place] & 15]
                at += 2
        offsets[row + 1] = at
    return at
