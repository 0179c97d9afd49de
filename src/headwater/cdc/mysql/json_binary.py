"""MySQL's binary JSON as the text that the server itself would write.

A value is a type byte and a payload. Objects and arrays hold tables of offsets, small ones with
two bytes each, large ones with four, and keep short numbers and literals in the table itself.
Values that JSON does not have (decimals, dates, bytes) are opaque: a type of a column, a
length, its bytes.
"""

import base64
import math
import struct

from headwater.cdc.mysql.decimals import text_of_packed
from headwater.errors import DamagedState

_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_LITERAL, _DOUBLE, _STRING, _OPAQUE = 4, 11, 12, 15
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_DECIMAL, _DATE, _TIME, _DATETIMES = 246, 10, 11, (7, 12)
_ESCAPES = {
    **{code: f"\\u{code:04x}" for code in range(32)},
    8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\",
}  # fmt: skip
_LONGEST_PLAIN = 15


def json_text(raw: bytes) -> str:
    """A document. No bytes at all are how the server stores the value of a broken insert: null."""
    if not raw:
        return "null"
    try:
        return _value(raw[0], raw, 1)
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise DamagedState("a JSON document in the log cannot be read", detail=str(error)) from None


def _value(kind: int, raw: bytes, at: int) -> str:
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY):
        return _container(kind, raw, at)
    if kind == _LITERAL:
        return _LITERALS[raw[at]]
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], raw, at)[0])
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", raw, at)[0])
    if kind == _STRING:
        size, start = _length(raw, at)
        return _quoted(raw[start : start + size].decode("utf-8"))
    if kind == _OPAQUE:
        size, start = _length(raw, at + 1)
        return _opaque(raw[at], raw[start : start + size])
    raise DamagedState(f"a JSON document in the log has a value of unknown type {kind}")


def _container(kind: int, raw: bytes, at: int) -> str:
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    named = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width, number = (4, "<I") if large else (2, "<H")
    count = struct.unpack_from(number, raw, at)[0]
    entries = at + 2 * width
    values = entries + (count * (width + 2) if named else 0)
    parts = []
    for place in range(count):
        entry = values + place * (width + 1)
        child = raw[entry]
        inlined = child in (_LITERAL, 5, 6) or (large and child in (7, 8))
        where = entry + 1 if inlined else at + struct.unpack_from(number, raw, entry + 1)[0]
        text = _value(child, raw, where)
        if named:
            key = entries + place * (width + 2)
            start = at + struct.unpack_from(number, raw, key)[0]
            size = struct.unpack_from("<H", raw, key + width)[0]
            text = f"{_quoted(raw[start : start + size].decode('utf-8'))}: {text}"
        parts.append(text)
    inside = ", ".join(parts)
    return f"{{{inside}}}" if named else f"[{inside}]"


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, and where the next thing begins."""
    value = 0
    for place in range(5):
        value |= (raw[at + place] & 0x7F) << 7 * place
        if not raw[at + place] & 0x80:
            return value, at + place + 1
    raise DamagedState("a length in a JSON document does not end")


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def double_text(value: float) -> str:
    """A double with the fewest digits that give it back, in the server's form."""
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign = "-" if value < 0 else ""
    digits, _, power = f"{abs(value):.17e}".partition("e")
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) if whole.strip("0") else int(power) + 1
    digits = digits.rstrip("0")
    if -_LONGEST_PLAIN < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= _LONGEST_PLAIN or (0 < point and len(digits) >= point):
        if len(digits) <= point:
            return f"{sign}{digits.ljust(point, '0')}.0"
        return f"{sign}{digits[:point]}.{digits[point:]}"
    return f"{sign}{digits[0]}{'.' + digits[1:] if len(digits) > 1 else ''}e{point - 1}"


def _opaque(type_: int, raw: bytes) -> str:
    if type_ == _DECIMAL:
        return text_of_packed(raw[2:], raw[0], raw[1])
    if type_ in (_DATE, _TIME, *_DATETIMES):
        return f'"{_moment(type_, struct.unpack("<q", raw)[0])}"'
    return f'"base64:type{type_}:{base64.b64encode(raw).decode()}"'


def _moment(type_: int, packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micros, whole = packed & 0xFFFFFF, packed >> 24
    second, minute = whole & 63, whole >> 6 & 63
    if type_ == _TIME:
        return f"{sign}{whole >> 12 & 1023:02d}:{minute:02d}:{second:02d}.{micros:06d}"
    hour, day, month = whole >> 12 & 31, whole >> 17 & 31, whole >> 22
    date = f"{month // 13:04d}-{month % 13:02d}-{day:02d}"
    return date if type_ == _DATE else f"{date} {hour:02d}:{minute:02d}:{second:02d}.{micros:06d}"
