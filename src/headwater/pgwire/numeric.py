"""Numbers of any length in PostgreSQL's binary form: digits to the base of ten thousand.

    int16 digits, int16 weight of the first, uint16 sign, int16 digits shown after the point,
    then the digits, each an int16

Zeros at both ends are left out, so a number has one form only, the one that PostgreSQL sends.
"""

import struct
from decimal import Decimal, InvalidOperation

from headwater.pgwire.violation import WireError, bad_bytes, bad_text

_POSITIVE, _NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0, 0x4000, 0xC000, 0xD000, 0xF000
_SPECIAL = {"nan": _NAN, "infinity": _INFINITY, "inf": _INFINITY}
_SPELLED = {_NAN: "NaN", _INFINITY: "Infinity", _MINUS_INFINITY: "-Infinity"}
_MOST_DIGITS = 131_072
_MOST_SHOWN = 16_383


def spell_decimal(number: Decimal) -> str:
    """Plain digits, never an exponent."""
    if number.is_nan():
        return "NaN"
    if number.is_infinite():
        return "Infinity" if number > 0 else "-Infinity"
    return f"{number:f}"


def read_decimal(text: str) -> Decimal:
    """The number that a text spells."""
    try:
        if "_" in text or not text.isascii():
            raise InvalidOperation
        number = Decimal(text.strip())
    except InvalidOperation:
        raise bad_text("numeric", text) from None
    if number.is_snan() or (number.is_nan() and text.strip().lower() != "nan"):
        raise bad_text("numeric", text)
    if number.is_finite() and (
        number.adjusted() >= _MOST_DIGITS or -int(number.as_tuple().exponent) > _MOST_SHOWN
    ):
        raise WireError("value overflows numeric format", "22003")
    return number


def encode_numeric(text: str) -> bytes:
    """The binary form of plain digits, as stored numbers are spelled."""
    sign = _POSITIVE
    digits = text.strip()
    if digits[:1] in "+-":
        sign = _NEGATIVE if digits[:1] == "-" else _POSITIVE
        digits = digits[1:]
    if not digits.replace(".", "", 1).isdecimal():
        return _encode_odd(text)
    whole, _, fraction = digits.partition(".")
    whole = whole.lstrip("0")
    shown = len(fraction)
    padded = "0" * (-len(whole) % 4) + whole + fraction + "0" * (-shown % 4)
    groups = [int(padded[at : at + 4]) for at in range(0, len(padded), 4)]
    weight = (len(whole) + 3) // 4 - 1
    first = next((place for place, group in enumerate(groups) if group), len(groups))
    groups, weight = groups[first:], weight - first
    while groups and not groups[-1]:
        groups.pop()
    if not groups:
        weight, sign = 0, _POSITIVE
    if shown > _MOST_SHOWN or weight > _MOST_DIGITS // 4:
        raise WireError("value overflows numeric format", "22003")
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, sign, shown, *groups)


def decode_numeric(data: bytes) -> Decimal:
    """The number in a binary form."""
    if len(data) < 8:
        raise bad_bytes("numeric")
    count, weight, sign, shown = struct.unpack_from(">HhHH", data)
    if sign in _SPELLED:
        return Decimal(_SPELLED[sign])
    if sign not in (_POSITIVE, _NEGATIVE) or len(data) != 8 + 2 * count or shown > _MOST_SHOWN:
        raise bad_bytes("numeric")
    groups = struct.unpack_from(f">{count}H", data, 8)
    if any(group > 9999 for group in groups):
        raise bad_bytes("numeric")
    digits = "".join(f"{group:04d}" for group in groups) or "0"
    point = 4 * (weight + 1)
    fraction = digits[max(point, 0) :].ljust(0)
    if point < 0:
        fraction = "0" * -point + fraction
    whole = digits[: max(point, 0)].ljust(max(point, 0), "0") or "0"
    fraction = fraction.ljust(shown, "0")[:shown]
    spelled = f"{'-' if sign else ''}{whole}" + (f".{fraction}" if shown else "")
    return Decimal(spelled)


def _encode_odd(text: str) -> bytes:
    """NaN, the infinities, and numbers with an exponent."""
    name = text.strip().lower()
    special = _SPECIAL.get(name.lstrip("+-"))
    if special is not None:
        if special == _INFINITY and name.startswith("-"):
            special = _MINUS_INFINITY
        # PostgreSQL reads a scale of 32 out of the bits that say "infinity".
        return struct.pack(">hhHh", 0, 0, special, 0 if special == _NAN else 32)
    return encode_numeric(spell_decimal(read_decimal(text)))
