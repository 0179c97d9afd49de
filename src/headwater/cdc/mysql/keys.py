"""Keys as text in cursors and bounds, and as conditions that the server evaluates itself.

The order of keys is the server's own: of its collations, of unsigned numbers, and of ENUM and
SET by number instead of by text. So a key never meets an order of ours: it is written into SQL
in the type and collation of its column, where the server can use the index, and compared there.

    family                      in a cursor                    in SQL
    integers, decimals, BIT     digits                         digits
    text                        itself                         its bytes in hex, with the column's
                                                               character set and collation
    binary                      hex                            X'...'
    ENUM, SET                   their number                   their number
    dates and times             as the server writes them      the same, quoted
"""

import datetime
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.cdc.mysql.schema import name_in_sql
from headwater.cdc.mysql.types import Family, MySqlColumn
from headwater.errors import DamagedState

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_MOMENT = re.compile(r"[-0-9:. ]+")
_HEX = re.compile(r"([0-9a-f]{2})*")


def last_key(rows: pa.Table, key: Sequence[MySqlColumn]) -> tuple[str, ...]:
    """The key of the last row, as a cursor holds it."""
    last = rows.slice(rows.num_rows - 1)
    return tuple(spelled(column, last[column.name][0].as_py()) for column in key)


def spelled(column: MySqlColumn, value: Any) -> str:
    """A key's value as text."""
    match column.family:
        case Family.ENUM:
            text = str(column.values.index(value) + 1 if value in column.values else 0)
        case Family.SET:
            chosen = set(value.split(",")) if value else set()
            bits = [1 << place for place, word in enumerate(column.values) if word in chosen]
            text = str(sum(bits))
        case _ if isinstance(value, bytes):
            text = value.hex()
        case Family.DECIMAL if not isinstance(value, str):
            text = format(value, "f")
        case Family.DATETIME | Family.TIMESTAMP:
            assert isinstance(value, datetime.datetime)
            # strftime leaves the zeros of early years away.
            text = f"{value.year:04d}{value.strftime('-%m-%d %H:%M:%S.%f')}"
        case Family.DATE:
            text = value.isoformat()
        case _:
            text = str(value)
    return text


def after(columns: Sequence[MySqlColumn], key: Sequence[str]) -> str:
    """The condition that a row's key is greater."""
    return _compared(columns, key, ">", ">=", ">")


def at_least(columns: Sequence[MySqlColumn], key: Sequence[str]) -> str:
    """The condition that a row's key is greater or equal."""
    return _compared(columns, key, ">", ">=", ">=")


def below(columns: Sequence[MySqlColumn], key: Sequence[str]) -> str:
    """The condition that a row's key is less."""
    return _compared(columns, key, "<", "<=", "<")


def _compared(
    columns: Sequence[MySqlColumn], key: Sequence[str], strict: str, loose: str, final: str
) -> str:
    """Lexicographic comparison, spelled out, since servers do not use an index for row values."""
    if len(columns) != len(key):
        raise DamagedState(f"a cursor of {len(key)} values for a key of {len(columns)} columns")
    # A number on the other side makes the server compare ENUM and SET by number, by the index.
    sides = [
        (name_in_sql(column.name), in_sql(column, text))
        for column, text in zip(columns, key, strict=True)
    ]
    cases = []
    for place, (side, value) in enumerate(sides):
        equal = [f"{before} = {at}" for before, at in sides[:place]]
        sign = final if place == len(sides) - 1 else strict
        cases.append(" AND ".join([*equal, f"{side} {sign} {value}"]))
    if len(cases) == 1:
        return cases[0]
    first, value = sides[0]
    return f"{first} {loose} {value} AND ({' OR '.join(f'({case})' for case in cases)})"


def in_sql(column: MySqlColumn, text: str) -> str:
    """A key's value as SQL that compares in the column's own type and collation."""
    match column.family:
        case Family.TEXT:
            value = f"_utf8mb4 X'{text.encode().hex()}'" if text else "_utf8mb4 ''"
            if column.charset != "utf8mb4":
                value = f"CONVERT({value} USING {column.charset})"
            return f"{value} COLLATE {column.collation}"
        case Family.BINARY | Family.BIT if _HEX.fullmatch(text) and holds_bytes(column):
            return f"X'{text}'" if column.family is Family.BINARY else str(int(text, 16))
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            if _MOMENT.fullmatch(text):
                return f"'{text}'"
        case _ if _NUMBER.fullmatch(text):
            return text
    raise DamagedState(f'"{text[:100]}" is not a key of column "{column.name}"')


def holds_bytes(column: MySqlColumn) -> bool:
    """Whether the column's values are bytes here."""
    return bool(column.type.arrow == pa.binary())
