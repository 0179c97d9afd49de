"""Compiled loops over cells: from PostgreSQL's binary forms to Arrow's buffers.

A cell is a place in a buffer: where a value begins and how long it is, with a negative length
for null. COPY and pgoutput both come apart into cells, so one set of kernels serves both. Each
kernel reads one column. Kernels that can meet a value with no place here answer the row of the
first such value, or -1, and mark those rows invalid.

`binary_values.py` says the same in plain Python, and tests hold both equal.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: PLR0913, PLR0917
# Kernels have no objects to hold their buffers, and numba infers the types by itself.

import numba
import numpy as np

_DATE_SHIFT = 10_957
_TIME_SHIFT = 946_684_800_000_000
_DAY_MAX, _DAY_MIN = 2_147_483_647, -2_147_483_648
_NEGATIVE = 0x4000
_POWERS = np.array([1, 10, 100, 1000, 10_000], dtype=np.int64)
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


@numba.njit(cache=True, nogil=True, inline="always")
def int16_at(data, at):
    """A signed 16-bit integer."""
    return np.int64(np.int16((np.uint16(data[at]) << 8) | np.uint16(data[at + 1])))


@numba.njit(cache=True, nogil=True, inline="always")
def int32_at(data, at):
    """A signed 32-bit integer."""
    return np.int64(
        np.int32(
            (np.uint32(data[at]) << 24)
            | (np.uint32(data[at + 1]) << 16)
            | (np.uint32(data[at + 2]) << 8)
            | np.uint32(data[at + 3])
        )
    )


@numba.njit(cache=True, nogil=True, inline="always")
def int64_at(data, at):
    """A signed 64-bit integer."""
    high = np.uint64(np.uint32(int32_at(data, at)))
    low = np.uint64(np.uint32(int32_at(data, at + 4)))
    return np.int64((high << np.uint64(32)) | low)


@numba.njit(cache=True, nogil=True)
def split_rows(data, at, starts, lengths):
    """Split COPY's rows into cells, column by column.

    Answers the rows, the place after the last whole one, and whether the end was reached:
    1 for the trailer, 0 for a cut or full buffer, -1 for bytes that are no rows of this width.
    """
    columns, capacity = starts.shape
    size = data.size
    row = 0
    while row < capacity:
        if at + 2 > size:
            return row, at, 0
        count = int16_at(data, at)
        if count == -1:
            return row, at + 2, 1
        if count != columns:
            return row, at, -1
        place = at + 2
        for column in range(columns):
            if place + 4 > size:
                return row, at, 0
            length = int32_at(data, place)
            place += 4
            starts[column, row] = place
            lengths[column, row] = length
            if length > 0:
                place += length
                if place > size:
                    return row, at, 0
        at = place
        row += 1
    return row, at, 0


@numba.njit(cache=True, nogil=True)
def valid_cells(lengths, valid):
    """Mark what is not null; answers how many nulls there are."""
    nulls = 0
    for row in range(lengths.size):
        there = lengths[row] >= 0
        valid[row] = there
        nulls += not there
    return nulls


@numba.njit(cache=True, nogil=True)
def first_of_other_width(lengths, width):
    """The first value that is not null and not `width` bytes long, or -1."""
    for row in range(lengths.size):
        if lengths[row] >= 0 and lengths[row] != width:
            return row
    return -1


@numba.njit(cache=True, nogil=True)
def read_bool(data, starts, lengths, out):
    """One byte each."""
    for row in range(starts.size):
        out[row] = lengths[row] > 0 and data[starts[row]] != 0


@numba.njit(cache=True, nogil=True)
def read_int2(data, starts, lengths, out):
    """Two bytes each."""
    for row in range(starts.size):
        if lengths[row] >= 0:
            out[row] = int16_at(data, starts[row])


@numba.njit(cache=True, nogil=True)
def read_int4(data, starts, lengths, out):
    """Four bytes each; also floats, whose bits are the same."""
    for row in range(starts.size):
        if lengths[row] >= 0:
            out[row] = int32_at(data, starts[row])


@numba.njit(cache=True, nogil=True)
def read_oid(data, starts, lengths, out):
    """Four bytes each, without a sign."""
    for row in range(starts.size):
        if lengths[row] >= 0:
            out[row] = int32_at(data, starts[row]) & 0xFFFFFFFF


@numba.njit(cache=True, nogil=True)
def read_int8(data, starts, lengths, out):
    """Eight bytes each; also doubles."""
    for row in range(starts.size):
        if lengths[row] >= 0:
            out[row] = int64_at(data, starts[row])


@numba.njit(cache=True, nogil=True)
def read_date(data, starts, lengths, out, valid):
    """Days since 2000; the infinities and what leaves Arrow's range have no place."""
    bad = -1
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        days = int32_at(data, starts[row])
        if days in (_DAY_MAX, _DAY_MIN) or days > _DAY_MAX - _DATE_SHIFT:
            valid[row] = 0
            bad = row if bad < 0 else bad
        else:
            out[row] = days + _DATE_SHIFT
    return bad


@numba.njit(cache=True, nogil=True)
def read_timestamp(data, starts, lengths, out, valid):
    """Microseconds since 2000; the infinities and the last 29 years have no place."""
    bad = -1
    least, most = np.int64(-9223372036854775808), np.int64(9223372036854775807)
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        micros = int64_at(data, starts[row])
        if micros == least or micros > most - _TIME_SHIFT:
            valid[row] = 0
            bad = row if bad < 0 else bad
        else:
            out[row] = micros + _TIME_SHIFT
    return bad


@numba.njit(cache=True, nogil=True)
def text_offsets(lengths, skip, offsets):
    """Arrow's offsets of values that are copied as they are, less `skip` bytes in front."""
    total = 0
    offsets[0] = 0
    for row in range(lengths.size):
        if lengths[row] > skip:
            total += lengths[row] - skip
        offsets[row + 1] = total
    return total


@numba.njit(cache=True, nogil=True)
def copy_text(data, starts, offsets, skip, out):
    """Copy the bytes of values behind one another."""
    for row in range(starts.size):
        begin = offsets[row]
        source = starts[row] + skip
        for place in range(offsets[row + 1] - begin):
            out[begin + place] = data[source + place]


@numba.njit(cache=True, nogil=True)
def spell_uuid(data, starts, lengths, offsets, out):
    """36 characters each."""
    total = 0
    offsets[0] = 0
    for row in range(starts.size):
        if lengths[row] >= 0:
            for place in range(16):
                if place in (4, 6, 8, 10):
                    out[total] = 45
                    total += 1
                byte = data[starts[row] + place]
                out[total] = _HEX[byte >> 4]
                out[total + 1] = _HEX[byte & 15]
                total += 2
        offsets[row + 1] = total
    return total


@numba.njit(cache=True, nogil=True)
def spell_time(data, starts, lengths, offsets, out):
    """hh:mm:ss, and as many digits of a second as it needs."""
    total = 0
    offsets[0] = 0
    for row in range(starts.size):
        if lengths[row] >= 0:
            micros = int64_at(data, starts[row])
            seconds, fraction = micros // 1_000_000, micros % 1_000_000
            for part in (seconds // 3600, seconds // 60 % 60, seconds % 60):
                out[total] = 48 + part // 10
                out[total + 1] = 48 + part % 10
                out[total + 2] = 58
                total += 3
            total -= 1
            if fraction:
                out[total] = 46
                total += 1
                unit = 100_000
                while fraction:
                    out[total] = 48 + fraction // unit
                    fraction %= unit
                    unit //= 10
                    total += 1
        offsets[row + 1] = total
    return total


@numba.njit(cache=True, nogil=True)
def read_small_decimal(data, starts, lengths, scale, out, valid):
    """Numbers of at most 14 digits, as two words each."""
    bad = -1
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        at = starts[row]
        digits, weight = int16_at(data, at), int16_at(data, at + 2)
        sign = int16_at(data, at + 4) & 0xFFFF
        value = np.int64(0)
        for place in range(digits):
            value = value * 10_000 + int16_at(data, at + 8 + 2 * place)
        shift = 4 * (weight - digits + 1) + scale
        if sign not in (0, _NEGATIVE) or shift <= -4 or digits > 4:
            valid[row] = 0
            bad = row if bad < 0 else bad
            continue
        while shift > 0 and value != 0:
            step = min(shift, 4)
            value *= _POWERS[step]
            shift -= step
        if shift < 0:
            if value % _POWERS[-shift]:
                valid[row] = 0
                bad = row if bad < 0 else bad
                continue
            value //= _POWERS[-shift]
        if sign == _NEGATIVE:
            value = -value
        out[row, 0] = value
        out[row, 1] = -1 if value < 0 else 0
    return bad


@numba.njit(cache=True, nogil=True, inline="always")
def _grown(high, low, factor, more):
    """(high, low) * factor + more in 128 bits, for a factor of at most 10,000."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    first = (low & mask) * factor + more
    second = (low >> shift) * factor + (first >> shift)
    return high * factor + (second >> shift), (second << shift) | (first & mask)


@numba.njit(cache=True, nogil=True)
def read_decimal(data, starts, lengths, scale, out, valid):
    """Numbers of up to 38 digits, as two words each."""
    bad = -1
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        at = starts[row]
        digits, weight = int16_at(data, at), int16_at(data, at + 2)
        sign = int16_at(data, at + 4) & 0xFFFF
        shift = 4 * (weight - digits + 1) + scale
        good = sign in (0, _NEGATIVE) and shift > -4 and digits <= 11
        high, low = np.uint64(0), np.uint64(0)
        if good:
            for place in range(digits):
                digit = int16_at(data, at + 8 + 2 * place)
                factor = np.int64(10_000)
                if place == digits - 1 and shift < 0:
                    # The last group of four reaches below the scale; those digits are zeros.
                    good = digit % _POWERS[-shift] == 0
                    digit //= _POWERS[-shift]
                    factor = _POWERS[4 + shift]
                high, low = _grown(high, low, np.uint64(factor), np.uint64(digit))
            while shift > 0 and (high or low):
                step = min(shift, 4)
                high, low = _grown(high, low, np.uint64(_POWERS[step]), np.uint64(0))
                shift -= step
        if not good:
            valid[row] = 0
            bad = row if bad < 0 else bad
            continue
        if sign == _NEGATIVE:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(low == 0)
        out[row, 0] = np.int64(low)
        out[row, 1] = np.int64(high)
    return bad


@numba.njit(cache=True, nogil=True)
def numeric_offsets(data, starts, lengths, offsets):
    """Arrow's offsets of numbers that are spelled out, with room for every digit."""
    total = 0
    offsets[0] = 0
    for row in range(starts.size):
        if lengths[row] >= 0:
            at = starts[row]
            weight = int16_at(data, at + 2)
            sign = int16_at(data, at + 4) & 0xFFFF
            shown = int16_at(data, at + 6)
            if sign == 0xC000:
                total += 3
            elif sign == 0xD000:
                total += 8
            elif sign == 0xF000:
                total += 9
            else:
                whole = 1
                if int16_at(data, at) > 0 and weight >= 0:
                    first = int16_at(data, at + 8)
                    whole = 4 * weight + 1 + (first > 9) + (first > 99) + (first > 999)
                total += (sign == _NEGATIVE) + whole + (shown + 1 if shown else 0)
        offsets[row + 1] = total
    return total


@numba.njit(cache=True, nogil=True, inline="always")
def _digit(data, at, digits, weight, place):
    """The decimal digit at `place` left of the point (-1 is the first behind it)."""
    group = weight - (place // 4)
    if group < 0 or group >= digits:
        return 0
    value = int16_at(data, at + 8 + 2 * group)
    return value // _POWERS[place % 4] % 10


@numba.njit(cache=True, nogil=True)
def spell_numeric(data, starts, lengths, offsets, words, out):
    """Every digit of numbers, as PostgreSQL spells them; `words` is "-InfinityNaN"."""
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        at, begin = starts[row], offsets[row]
        digits, weight = int16_at(data, at), int16_at(data, at + 2)
        sign = int16_at(data, at + 4) & 0xFFFF
        shown = int16_at(data, at + 6)
        room = offsets[row + 1] - begin
        if sign not in (0, _NEGATIVE):
            first = 9 if sign == 0xC000 else 1 if sign == 0xD000 else 0
            for place in range(room):
                out[begin + place] = words[first + place]
            continue
        if sign == _NEGATIVE:
            out[begin] = 45
            begin += 1
            room -= 1
        whole = room - (shown + 1 if shown else 0)
        for place in range(whole):
            out[begin + place] = 48 + _digit(data, at, digits, weight, whole - 1 - place)
        if shown:
            out[begin + whole] = 46
            for place in range(shown):
                out[begin + whole + 1 + place] = 48 + _digit(data, at, digits, weight, -1 - place)


@numba.njit(cache=True, nogil=True)
def array_offsets(data, starts, lengths, offsets):
    """Arrow's offsets of lists; answers the elements and the first array that is no list."""
    total = 0
    bad = -1
    offsets[0] = 0
    for row in range(starts.size):
        if lengths[row] >= 0:
            dimensions = int32_at(data, starts[row])
            if dimensions == 1:
                total += int32_at(data, starts[row] + 12)
            elif dimensions > 1:
                bad = row if bad < 0 else bad
        offsets[row + 1] = total
    return total, bad


@numba.njit(cache=True, nogil=True)
def array_cells(data, starts, lengths, inner_starts, inner_lengths):
    """The cells of all elements of lists, behind one another."""
    count = 0
    for row in range(starts.size):
        if lengths[row] < 0 or int32_at(data, starts[row]) != 1:
            continue
        place = starts[row] + 20
        for _ in range(int32_at(data, starts[row] + 12)):
            length = int32_at(data, place)
            place += 4
            inner_starts[count] = place
            inner_lengths[count] = length
            place += max(length, 0)
            count += 1
