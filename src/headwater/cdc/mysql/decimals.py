"""DECIMAL in its two forms: as text in results, packed by nine digits in the binlog.

A packed decimal has its digits in groups of nine, four bytes each, on both sides of the point;
the group farthest from the point may be shorter and takes as many bytes as it needs. The whole
is big-endian, its first bit is inverted, and a negative number has all bits inverted.
"""

import numba
import numpy as np
import pyarrow as pa

from headwater.cdc.mysql.pieces import Pieces, bytes_column, fixed_column

_GROUP = 9
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_BYTES = np.array(_GROUP_BYTES, dtype=np.int64)
_POWERS = np.array([10**power for power in range(10)], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)


@numba.njit(cache=True, nogil=True)
def _times_plus(high, low, factor, more):  # type: ignore[no-untyped-def]
    """128 bits times a number of at most 32 bits, plus another."""
    first = (low & _LOW) * factor + more
    second = (low >> np.uint64(32)) * factor + (first >> np.uint64(32))
    low = second << np.uint64(32) | first & _LOW
    return high * factor + (second >> np.uint64(32)), low


@numba.njit(cache=True, nogil=True)
def _store(out, row, high, low, negative):  # type: ignore[no-untyped-def]
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
    out[row, 0] = low
    out[row, 1] = high


@numba.njit(cache=True, nogil=True)
def _from_text(data, starts, sizes, scale, out):  # type: ignore[no-untyped-def]
    """Gives the first row that is no decimal of this scale, or -1."""
    for row in range(sizes.size):
        high, low, group, digits = np.uint64(0), np.uint64(0), np.uint64(0), 0
        negative, behind, point = False, 0, False
        for place in range(starts[row], starts[row] + max(sizes[row], 0)):
            byte = data[place]
            if byte == 45:
                negative = True
            elif byte == 46:
                point = True
            elif 48 <= byte <= 57:
                group = group * np.uint64(10) + np.uint64(byte - 48)
                digits += 1
                behind += point
                if digits == _GROUP:
                    high, low = _times_plus(high, low, _POWERS[_GROUP], group)
                    group, digits = np.uint64(0), 0
            else:
                return row
        high, low = _times_plus(high, low, _POWERS[digits], group)
        if behind > scale:
            return row
        for _ in range(scale - behind):
            high, low = _times_plus(high, low, np.uint64(10), np.uint64(0))
        _store(out, row, high, low, negative)
    return -1


@numba.njit(cache=True, nogil=True)
def _group_of(data, at, size, flip, first):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for place in range(at, at + size):
        byte = np.uint64(data[place])
        if place == first:
            byte ^= np.uint64(0x80)
        value = value << np.uint64(8) | (byte ^ flip)
    return value


@numba.njit(cache=True, nogil=True)
def _from_packed(data, starts, sizes, digits, out):  # type: ignore[no-untyped-def]
    whole, scale = digits
    head, tail = whole % _GROUP, scale % _GROUP
    groups = whole // _GROUP + scale // _GROUP
    for row in range(sizes.size):
        if sizes[row] < 0:
            _store(out, row, np.uint64(0), np.uint64(0), False)
            continue
        first = starts[row]
        negative = not data[first] & 0x80
        flip = np.uint64(0xFF) if negative else np.uint64(0)
        high, low = np.uint64(0), _group_of(data, first, _BYTES[head], flip, first)
        at = first + _BYTES[head]
        for _ in range(groups):
            high, low = _times_plus(high, low, _POWERS[_GROUP], _group_of(data, at, 4, flip, first))
            at += 4
        if tail:
            high, low = _times_plus(
                high, low, _POWERS[tail], _group_of(data, at, _BYTES[tail], flip, first)
            )
        _store(out, row, high, low, negative)


def packed_size(precision: int, scale: int) -> int:
    """How many bytes a packed decimal takes."""
    return sum(
        digits // _GROUP * 4 + _GROUP_BYTES[digits % _GROUP]
        for digits in (precision - scale, scale)
    )


def decimals_of_text(pieces: Pieces, type_: pa.DataType) -> pa.Array:
    """Decimals that came as text; `numeric` keeps the text."""
    if not pa.types.is_decimal(type_):
        return bytes_column(pieces, type_)
    out = np.empty((len(pieces), 2), dtype=np.uint64)
    wrong = _from_text(pieces.data, pieces.starts, pieces.sizes, type_.scale, out)
    if wrong >= 0:
        raise ValueError(f"{pieces.value(wrong)!r} is not a decimal of scale {type_.scale}")
    return fixed_column(out, type_, pieces.validity())


def decimals_of_packed(pieces: Pieces, type_: pa.DataType, precision: int, scale: int) -> pa.Array:
    """Packed decimals; `numeric` becomes text, one by one, since such columns are rare."""
    if not pa.types.is_decimal(type_):
        texts = [
            None if value is None else text_of_packed(value, precision, scale)
            for value in (pieces.value(row) for row in range(len(pieces)))
        ]
        return pa.array(texts, type_)
    out = np.empty((len(pieces), 2), dtype=np.uint64)
    digits = (precision - scale, scale)
    _from_packed(pieces.data, pieces.starts, pieces.sizes, digits, out)
    return fixed_column(out, type_, pieces.validity())


def text_of_packed(value: bytes, precision: int, scale: int) -> str:
    """A packed decimal of any size as the server would write it."""
    whole = precision - scale
    negative = not value[0] & 0x80
    plain = bytes([value[0] ^ 0x80]) + value[1:]
    if negative:
        plain = bytes(byte ^ 0xFF for byte in plain)
    sizes = [whole % _GROUP, *[_GROUP] * (whole // _GROUP)]
    digits, at = "", 0
    for size in [*sizes, *[_GROUP] * (scale // _GROUP), scale % _GROUP]:
        length = _GROUP_BYTES[size]
        if size:
            digits += str(int.from_bytes(plain[at : at + length], "big")).zfill(size)
        at += length
    text = digits[:whole].lstrip("0") or "0"
    return ("-" if negative else "") + text + (f".{digits[whole:]}" if scale else "")
