"""Literals that take a type from their surroundings: `date '2020-01-01'`, `x = '7'`.

The text is read here, once, by PostgreSQL's rules, so that a wrong one is an error with a place
when the statement is read and not when a row is. Spellings that depend on settings or on the
clock ('now', 'tomorrow', '1/8/1999') are refused.
"""

import datetime
import json
import re
import uuid
import zoneinfo
from decimal import Decimal, InvalidOperation

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.array_text import read_array
from headwater.sql.expression.interval_text import interval_of
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, string_literal

_DATE = re.compile(r"(\d{4,})-(\d{1,2})-(\d{1,2})")
_TIMESTAMP = re.compile(
    r"(\d{4,})-(\d{1,2})-(\d{1,2})(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?",
    re.IGNORECASE,
)
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?(?:\s*([ap]m))?", re.IGNORECASE)
_DAY_FIRST = re.compile(r"(\d{1,2})[ -]([a-z]{3,9})[ -](\d{4})(.*)", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"([a-z]{3,9}) (\d{1,2}),? (\d{4})(.*)", re.IGNORECASE)
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_RANGES = {
    Kind.SMALLINT: (-(2**15), 2**15 - 1, "cast({0} as smallint)"),
    Kind.INTEGER: (-(2**31), 2**31 - 1, "cast({0} as int)"),
    Kind.BIGINT: (-(2**63), 2**63 - 1, "{0}L"),
}
_TRUE = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_FALSE = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")


def literal_as(value: str, target: DataType, text: Text, node: object = None) -> Typed:
    """The literal in that type."""
    try:
        return _read(value, target)
    except OverflowError:
        text.mistake(
            f'value "{value}" is out of range for type {target.postgres}', node, sqlstate="22003"
        )
    except NotImplementedError:
        text.refuse(f"a literal of type {target.postgres} is not supported", node)
    except (ValueError, InvalidOperation):
        state = "22007" if target.kind in _CLOCKS else "22P02"
        text.mistake(
            f'invalid input syntax for type {target.postgres}: "{value}"', node, sqlstate=state
        )


_CLOCKS = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)


def _read(value: str, target: DataType) -> Typed:  # noqa: PLR0911, PLR0912
    match target.kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return _integer(value, target)
        case Kind.DECIMAL:
            return _decimal(value, target)
        case Kind.NUMERIC:
            return Typed(f"'{Decimal(value.strip()):f}'", target, nullable=False)
        case Kind.REAL | Kind.DOUBLE:
            return _float(value, target)
        case Kind.BOOLEAN:
            word = value.strip().lower()
            if word not in _TRUE and word not in _FALSE:
                raise ValueError(value)
            return Typed("true" if word in _TRUE else "false", target, nullable=False)
        case Kind.VARCHAR:
            return Typed(string_literal(value), target, nullable=False, constant=value)
        case Kind.BYTEA:
            data = bytes.fromhex(value[2:]) if value.startswith("\\x") else value.encode()
            return Typed(f"X'{data.hex()}'", target, nullable=False)
        case Kind.JSONB:
            normal = normal_json(value)
            return Typed(string_literal(normal), target, nullable=False, constant=normal)
        case Kind.UUID:
            return Typed(f"'{uuid.UUID(value)}'", target, nullable=False)
        case Kind.INTERVAL:
            return interval_of(value)
        case Kind.LIST:
            return _list(value, target)
        case _:
            return _moment(value.strip(), target)


def _list(value: str, target: DataType) -> Typed:
    element = target.element
    assert element is not None
    items = []
    for each in read_array(value):
        if each is None:
            items.append(Typed(f"cast(NULL as {element.spark})", element))
        else:
            items.append(_read(each, element))
    body = f"array({', '.join(item.text for item in items)})"
    if not items:
        body = f"cast(array() as {target.spark})"
    return Typed(body, target, nullable=False, items=tuple(items))


def normal_json(value: str) -> str:
    """JSON as PostgreSQL's jsonb spells it: keys by length then bytes, the last of equals."""

    def spell(node: object) -> str:
        match node:
            case dict():
                keys = sorted(node, key=lambda key: (len(key.encode()), key.encode()))
                return "{" + ", ".join(f"{spell(key)}: {spell(node[key])}" for key in keys) + "}"
            case list():
                return "[" + ", ".join(map(spell, node)) + "]"
            case Decimal():
                return f"{node:f}"
            case _:
                return json.dumps(node, ensure_ascii=False)

    def refuse(word: str) -> object:
        raise ValueError(word)

    return spell(json.loads(value, parse_float=Decimal, parse_constant=refuse))


def _integer(value: str, target: DataType) -> Typed:
    number = int(value.strip().replace("_", ""), 10)
    low, high, form = _RANGES[target.kind]
    if not low <= number <= high:
        raise OverflowError
    if number == -(2**63):
        return Typed("(-9223372036854775807L - 1L)", target, nullable=False)
    text = form.format(number)
    return Typed(f"({text})" if number < 0 else text, target, nullable=False)


def _decimal(value: str, target: DataType) -> Typed:
    number = Decimal(value.strip())
    if not number.is_finite():
        raise NotImplementedError
    with_scale = number.quantize(Decimal(1).scaleb(-(target.scale or 0)), rounding="ROUND_HALF_UP")
    if len(with_scale.as_tuple().digits) > (target.precision or 0):
        raise OverflowError
    return Typed(f"cast('{with_scale:f}' as {target.spark})", target, nullable=False)


def _float(value: str, target: DataType) -> Typed:
    word = value.strip()
    number = float(word.replace("_", ""))
    if number in (float("inf"), float("-inf")) and "inf" not in word.lower():
        raise OverflowError
    names = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    shown = names.get(str(number), repr(number))
    return Typed(f"cast('{shown}' as {target.spark})", target, nullable=False)


def _moment(value: str, target: DataType) -> Typed:
    if target.kind is Kind.TIME:
        if re.fullmatch(r"\d{6}", value):
            value = f"{value[:2]}:{value[2:4]}:{value[4:]}"
        if not (found := _TIME.fullmatch(value)):
            raise ValueError(value)
        hour, minute, second = (int(part or 0) for part in found.groups()[:3])
        micros = int((found[4] or "").ljust(6, "0"))
        if found[5]:
            hour = hour % 12 + (12 if found[5].lower() == "pm" else 0)
        shown = datetime.time(hour, minute, second, micros).isoformat()
        shown = shown.rstrip("0") if "." in shown else shown
        return Typed(f"'{shown}'", target, nullable=False)
    if target.kind is Kind.STRUCT:
        raise NotImplementedError
    moment = read_timestamp(value)
    if target.kind is Kind.DATE:
        return Typed(f"DATE'{moment.date().isoformat()}'", target, nullable=False)
    if target.kind is Kind.TIMESTAMP:
        plain = moment.replace(tzinfo=None)
        return Typed(f"TIMESTAMP_NTZ'{plain.isoformat(sep=' ')}'", target, nullable=False)
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    plain = zoned.astimezone(datetime.UTC).replace(tzinfo=None)
    return Typed(f"TIMESTAMP'{plain.isoformat(sep=' ')}Z'", types.TIMESTAMPTZ, nullable=False)


def read_timestamp(value: str) -> datetime.datetime:
    """A timestamp in ISO form or with a month's name, with a zone if one is written."""
    value = _iso(value)
    if named := re.fullmatch(r"(.*[0-9]) ([A-Za-z]+/[A-Za-z_/]+)", value):
        try:
            return read_timestamp(named[1]).replace(tzinfo=zoneinfo.ZoneInfo(named[2]))
        except zoneinfo.ZoneInfoNotFoundError:
            raise ValueError(value) from None
    found = _TIMESTAMP.fullmatch(value)
    if not found:
        raise ValueError(value)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    micros = int((found[7] or "").ljust(6, "0"))
    whole = datetime.datetime(year, month, day, tzinfo=_zone(found[8]))
    if hour > 24 or minute > 59 or second > 60:
        raise ValueError(value)
    return whole + datetime.timedelta(
        hours=hour, minutes=minute, seconds=second, microseconds=micros
    )


def _iso(value: str) -> str:
    """Other spellings that depend on no setting, as ISO's."""
    if value.lower() == "epoch":
        return "1970-01-01"
    if found := re.fullmatch(r"(\d{4})(\d{2})(\d{2})(.*)", value):
        return f"{found[1]}-{found[2]}-{found[3]}{found[4]}"
    year, month, day, rest = "", "", "", ""
    if found := _DAY_FIRST.fullmatch(value):
        day, month, year, rest = found.groups()
    elif found := _MONTH_FIRST.fullmatch(value):
        month, day, year, rest = found.groups()
    for number, name in enumerate(_MONTHS, 1):
        if month and (month.lower() == name or month.lower() == name[:3]):
            return f"{year}-{number:02}-{int(day):02}{rest}"
    return value


def _zone(text: str | None) -> datetime.tzinfo | None:
    if text is None:
        return None
    if text.upper() in ("Z", "UTC", "GMT"):
        return datetime.UTC
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    return datetime.timezone(sign * datetime.timedelta(hours=hours, minutes=minutes))
