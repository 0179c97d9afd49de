"""Column types of MySQL and MariaDB, and the type that each has here.

    upstream                              here                upstream               here
    tinyint, smallint, tinyint unsigned   smallint            char, varchar, text    varchar
    mediumint, int, smallint unsigned,    integer             enum, set              varchar
      mediumint unsigned, year                                json                   jsonb
    bigint, int unsigned, bit(1 to 63)    bigint              binary, varbinary,     bytea
    bigint unsigned                       decimal(20,0)         blob, bit(64)
    decimal(p,s), p up to 38; wider       decimal, numeric    date                   date
    float; double                         real; double        datetime               timestamp
    time                                  by `time.mode`      timestamp              timestamptz

TIME goes from -838:59:59 to 838:59:59. By default it is a `time`, and a value beyond the day is
an error that names it; `time.mode = 'interval'` (or `'varchar'`) holds them all. MariaDB's JSON
is text with a check; it is jsonb here and keeps the text as it was written. Geometry, VECTOR,
INET and MariaDB's UUID have no exact home and are refused by name; a table without them in its
list of columns can be read.

A value of ENUM that upstream holds as "not valid" is the empty text, as upstream shows it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from headwater.cdc.mysql.options import TimeMode
from headwater.errors import SchemaError
from headwater.model.types import (
    BIGINT,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    MAX_PRECISION,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    DataType,
    decimal,
)

UNSIGNED_BIGINT = decimal(20, 0)
_TIMES = {TimeMode.TIME: TIME, TimeMode.INTERVAL: INTERVAL, TimeMode.VARCHAR: VARCHAR}


class Family(StrEnum):
    """How values are decoded; several upstream types share one."""

    INTEGER = "integer"
    BIT = "bit"
    DECIMAL = "decimal"
    FLOAT = "float"
    TEXT = "text"
    BINARY = "binary"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"


_INTEGERS: dict[str, tuple[DataType, DataType]] = {
    "tinyint": (SMALLINT, SMALLINT),
    "smallint": (SMALLINT, INTEGER),
    "mediumint": (INTEGER, INTEGER),
    "int": (INTEGER, BIGINT),
    "bigint": (BIGINT, UNSIGNED_BIGINT),
}
_SIMPLE: dict[str, tuple[Family, DataType]] = {
    "year": (Family.INTEGER, INTEGER),
    "float": (Family.FLOAT, REAL),
    "double": (Family.FLOAT, DOUBLE),
    "date": (Family.DATE, DATE),
    "datetime": (Family.DATETIME, TIMESTAMP),
    "timestamp": (Family.TIMESTAMP, TIMESTAMPTZ),
    "json": (Family.JSON, JSONB),
    "enum": (Family.ENUM, VARCHAR),
    "set": (Family.SET, VARCHAR),
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), (Family.TEXT, VARCHAR)
    ),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        (Family.BINARY, BYTEA),
    ),
}
_QUOTED = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlColumn:
    """A column as the server describes it, and its type here."""

    name: str
    spelled: str
    """The whole type, such as `int(10) unsigned`."""
    family: Family
    type: DataType
    nullable: bool = True
    unsigned: bool = False
    collation: str | None = None
    charset: str | None = None
    values: tuple[str, ...] = ()
    """Of an ENUM or SET, in order."""
    default: str | None = None
    generated: bool = False
    """Computed when read, so that the log does not have it."""

    @property
    def base(self) -> str:
        """The type without its sizes."""
        return self.spelled.partition("(")[0].split()[0]


def family_and_type(
    table: str, name: str, spelled: str, mode: TimeMode
) -> tuple[Family, DataType, bool]:
    """How a column is decoded, its type here, and whether it is unsigned."""
    base, _, rest = spelled.lower().partition("(")
    unsigned = " unsigned" in spelled.lower()
    base = base.split()[0]
    if base in _INTEGERS:
        return Family.INTEGER, _INTEGERS[base][unsigned], unsigned
    if base == "decimal":
        precision, scale = (int(part) for part in rest.partition(")")[0].split(","))
        wide = precision > MAX_PRECISION
        return Family.DECIMAL, NUMERIC if wide else decimal(precision, scale), unsigned
    if base == "bit":
        return Family.BIT, BYTEA if int(rest.partition(")")[0]) > 63 else BIGINT, True
    if base == "time":
        return Family.TIME, _TIMES[mode], False
    if base in _SIMPLE:
        return (*_SIMPLE[base], base == "year")
    raise SchemaError(
        f'column "{name}" of table "{table}" has type {spelled}, which Headwater cannot hold',
        hint="List the columns to read without it, or add a generated column with it as text.",
    )


def listed_values(spelled: str) -> tuple[str, ...]:
    """The values of an ENUM or SET, from its type as the server spells it."""
    return tuple(value.replace("''", "'") for value in _QUOTED.findall(spelled))
