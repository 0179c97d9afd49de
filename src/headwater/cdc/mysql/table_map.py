"""What the binlog says of a table before its rows: columns, types, names, signs, character sets.

With `binlog_row_metadata = FULL` a TABLE_MAP event describes the table as it was when the rows
were written. So rows are never decoded by what the table looks like today.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.cdc.mysql.charsets import decoder_of
from headwater.cdc.mysql.decimals import packed_size
from headwater.cdc.mysql.events import length_encoded
from headwater.errors import SchemaError, UserError

_FIXED = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 3, 10: 3, 13: 1}
_INTEGERS = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint"}
_NUMERIC = frozenset({*_INTEGERS, 4, 5, 13, 246})
_FRACTIONAL = {17: ("timestamp", 4), 18: ("datetime", 5), 19: ("time", 3)}
_META_SIZES = {
    4: 1, 5: 1, 15: 2, 16: 2, 17: 1, 18: 1, 19: 1, 140: 1, 141: 2, 242: 1, 245: 1, 246: 2,
    247: 2, 248: 2, 249: 1, 250: 1, 251: 1, 252: 1, 253: 2, 254: 2, 255: 1,
}  # fmt: skip
_TEXTUAL = frozenset({15, 252, 253, 254})
_REFUSED = {
    7: "timestamp in the old format", 11: "time in the old format",
    12: "datetime in the old format", 140: "compressed blob", 141: "compressed varchar",
    242: "vector", 255: "geometry",
}  # fmt: skip
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_VALUES, _ENUM_VALUES = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIX, _LISTED_DEFAULT_CHARSET, _LISTED_CHARSETS = 8, 9, 10, 11
_BINARY = 63

PREFIXED = 1 << 8
"""Added to the size of a length, where a column's size says how long its length is."""


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column as the log has it."""

    name: str
    spelled: str
    """Its type, as information_schema would begin it."""
    size: int
    """How many bytes a value has; or PREFIXED plus how many bytes its length has."""
    digits: int = 0
    """Of a fraction of seconds; or the width of a BINARY, which the log sends without zeros."""
    precision: int = 0
    scale: int = 0
    charset: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as it was when rows were logged."""

    database: str
    table: str
    columns: tuple[LogColumn, ...]

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.database}.{self.table}"

    def column(self, name: str) -> int | None:
        """The place of a column, or None."""
        for place, column in enumerate(self.columns):
            if column.name == name:
                return place
        return None


def table_name(body: bytes) -> str:
    """Only the full name, to see whether the rest matters."""
    length = body[8]
    second = 9 + length + 1
    database, table = body[9 : 9 + length], body[second + 1 : second + 1 + body[second]]
    return f"{database.decode('utf-8')}.{table.decode('utf-8')}"


def parse_table_map(body: bytes, collations: Mapping[int, str]) -> TableMap:
    """A TABLE_MAP event; `collations` has the character set of each collation's number."""
    name = table_name(body)
    database, _, table = name.partition(".")
    at = 9 + body[8] + 1
    at += 1 + body[at] + 1
    count, at = length_encoded(body, at)
    types = list(body[at : at + count])
    size, at = length_encoded(body, at + count)
    metas = _metas(types, body[at : at + size])
    at += size + (count + 7) // 8
    said = _optional(body, at)
    if _NAMES not in said:
        raise UserError(
            f'the binlog does not name the columns of "{name}"',
            hint="SET GLOBAL binlog_row_metadata = 'FULL'; then create the source anew: what was "
            "logged before stays as it is.",
        )
    names = _strings(said[_NAMES])
    columns = _Columns(types, metas, said, collations)
    return TableMap(
        database, table, tuple(columns.column(name, place, names[place]) for place in range(count))
    )


def _metas(types: list[int], packed: bytes) -> list[bytes]:
    metas, at = [], 0
    for type_ in types:
        size = _META_SIZES.get(type_, 0)
        metas.append(packed[at : at + size])
        at += size
    return metas


def _optional(body: bytes, at: int) -> dict[int, bytes]:
    said = {}
    while at < len(body):
        length, start = length_encoded(body, at + 1)
        said[body[at]] = body[start : start + length]
        at = start + length
    return said


def _numbers(packed: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(packed):
        number, at = length_encoded(packed, at)
        numbers.append(number)
    return numbers


def _raw_strings(packed: bytes, at: int, count: int | None) -> tuple[list[bytes], int]:
    found: list[bytes] = []
    while at < len(packed) and (count is None or len(found) < count):
        length, at = length_encoded(packed, at)
        found.append(packed[at : at + length])
        at += length
    return found, at


def _strings(packed: bytes) -> list[str]:
    return [each.decode("utf-8") for each in _raw_strings(packed, 0, None)[0]]


class _Columns:
    """Deals the optional metadata out, each kind of which counts only its own kind of columns."""

    def __init__(
        self,
        types: list[int],
        metas: list[bytes],
        said: Mapping[int, bytes],
        collations: Mapping[int, str],
    ) -> None:
        # An ENUM or SET is logged as a string whose metadata tells what it is.
        self._types = [
            meta[0] if type_ == 254 and meta[0] in (247, 248) else type_
            for type_, meta in zip(types, metas, strict=True)
        ]
        self._metas = metas
        signs = said.get(_SIGNS, b"")
        numeric = [place for place, type_ in enumerate(types) if type_ in _NUMERIC]
        self._unsigned = {
            place
            for bit, place in enumerate(numeric)
            if bit // 8 < len(signs) and signs[bit // 8] >> 7 - bit % 8 & 1
        }
        textual = [place for place, type_ in enumerate(self._types) if type_ in _TEXTUAL]
        listed = [place for place, type_ in enumerate(self._types) if type_ in (247, 248)]
        self._charsets = {
            **_dealt(textual, said.get(_DEFAULT_CHARSET), said.get(_CHARSETS), collations),
            **_dealt(
                listed, said.get(_LISTED_DEFAULT_CHARSET), said.get(_LISTED_CHARSETS), collations
            ),
        }
        self._values = {
            **self._lists(247, said.get(_ENUM_VALUES, b"")),
            **self._lists(248, said.get(_SET_VALUES, b"")),
        }

    def column(self, table: str, place: int, name: str) -> LogColumn:
        """One column. One that cannot be decoded is refused when it is asked for."""
        type_, meta = self._types[place], self._metas[place]
        sign = " unsigned" if place in self._unsigned else ""
        charset = self._charsets.get(place, "")
        if type_ in _INTEGERS:
            return LogColumn(name, _INTEGERS[type_] + sign, _FIXED[type_])
        if type_ in _FRACTIONAL:
            base, size = _FRACTIONAL[type_]
            return LogColumn(name, base, size + (meta[0] + 1) // 2, meta[0])
        if type_ == 246:
            spelled = f"decimal({meta[0]},{meta[1]})"
            size = packed_size(meta[0], meta[1])
            return LogColumn(name, spelled, size, precision=meta[0], scale=meta[1])
        if type_ in (247, 248):
            word = "enum" if type_ == 247 else "set"
            return LogColumn(name, word, meta[1], charset=charset, values=self._values[place])
        return _plain_column(table, name, type_, meta, charset)

    def _lists(self, type_: int, packed: bytes) -> dict[int, tuple[str, ...]]:
        found, at = {}, 0
        for place, each in enumerate(self._types):
            if each == type_ and at < len(packed):
                count, at = length_encoded(packed, at)
                raw, at = _raw_strings(packed, at, count)
                decode = decoder_of(self._charsets.get(place, "utf8mb4"))
                found[place] = tuple(decode(value) for value in raw)
        return found


def _plain_column(table: str, name: str, type_: int, meta: bytes, charset: str) -> LogColumn:
    binary = charset == "binary"
    size, digits = 0, 0
    match type_:
        case 4 | 5 | 10 | 13:
            word = {4: "float", 5: "double", 10: "date", 13: "year"}[type_]
            size = _FIXED[type_]
        case 16:
            bits = meta[1] * 8 + meta[0]
            word, size = f"bit({bits})", (bits + 7) // 8
        case 15 | 253:
            word = "varbinary" if binary else "varchar"
            size = PREFIXED + (2 if int.from_bytes(meta, "little") > 255 else 1)
        case 254:
            most = ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1]
            word, digits = ("binary", most) if binary else ("char", 0)
            size = PREFIXED + (2 if most > 255 else 1)
        case 249 | 250 | 251 | 252:
            word, size = "blob" if binary else "text", PREFIXED + meta[0]
        case 245:
            word, size = "json", PREFIXED + meta[0]
        case 242 | 255 | 140:
            word, size = _REFUSED[type_], PREFIXED + meta[0]
        case _:
            raise SchemaError(
                f'column "{name}" of table "{table}" is in the log as '
                f"{_REFUSED.get(type_, f'type {type_}')}, which Headwater cannot read",
                hint="Rewrite the table in the formats of today: ALTER TABLE ... FORCE;",
            )
    return LogColumn(name, word, size, digits, charset=charset)


def _dealt(
    places: list[int], default: bytes | None, each: bytes | None, collations: Mapping[int, str]
) -> dict[int, str]:
    """The character set of columns, from a default with exceptions, or one by one."""
    if each is not None:
        numbers = _numbers(each)
    elif default is not None:
        first, *pairs = _numbers(default)
        numbers = [first] * len(places)
        for index, number in zip(pairs[::2], pairs[1::2], strict=True):
            numbers[index] = number
    else:
        return {}
    return {
        place: "binary" if number == _BINARY else collations.get(number, f"collation {number}")
        for place, number in zip(places, numbers, strict=True)
    }
