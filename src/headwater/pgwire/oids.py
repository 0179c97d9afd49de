"""Types as numbers: what a row description says of a column, and what a client says of a value.

Numbers are PostgreSQL's own, from its catalog of built-in types. A decimal tells its precision
and scale in the type modifier. A list of lists has the number of a plain array, as dimensions
are not part of PostgreSQL's types.
"""

from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    list_of,
)

RECORD = 2249
RECORD_ARRAY = 2287
JSON = 114
OID = 26

_OIDS: dict[Kind, tuple[int, int, int]] = {
    # kind: (type, array of it, bytes of a value or -1)
    Kind.BOOLEAN: (16, 1000, 1),
    Kind.SMALLINT: (21, 1005, 2),
    Kind.INTEGER: (23, 1007, 4),
    Kind.BIGINT: (20, 1016, 8),
    Kind.REAL: (700, 1021, 4),
    Kind.DOUBLE: (701, 1022, 8),
    Kind.DECIMAL: (1700, 1231, -1),
    Kind.NUMERIC: (1700, 1231, -1),
    Kind.VARCHAR: (1043, 1015, -1),
    Kind.BYTEA: (17, 1001, -1),
    Kind.DATE: (1082, 1182, 4),
    Kind.TIME: (1083, 1183, 8),
    Kind.TIMESTAMP: (1114, 1115, 8),
    Kind.TIMESTAMPTZ: (1184, 1185, 8),
    Kind.INTERVAL: (1186, 1187, 16),
    Kind.JSONB: (3802, 3807, -1),
    Kind.UUID: (2950, 2951, 16),
    Kind.STRUCT: (RECORD, RECORD_ARRAY, -1),
}

_TYPES: dict[int, DataType] = {
    16: BOOLEAN,
    17: BYTEA,
    18: VARCHAR,  # "char"
    19: VARCHAR,  # name
    20: BIGINT,
    21: SMALLINT,
    23: INTEGER,
    25: VARCHAR,  # text
    OID: BIGINT,
    JSON: JSONB,
    700: REAL,
    701: DOUBLE,
    705: VARCHAR,  # unknown
    1042: VARCHAR,  # char(n)
    1043: VARCHAR,
    1082: DATE,
    1083: TIME,
    1114: TIMESTAMP,
    1184: TIMESTAMPTZ,
    1186: INTERVAL,
    1700: NUMERIC,
    2950: UUID,
    3802: JSONB,
}
_ARRAYS: dict[int, int] = {
    # array of type: type, for those that have no kind of their own
    199: JSON,
    1002: 18,
    1003: 19,
    1009: 25,
    1014: 1042,
    1028: OID,
} | {array: scalar for kind, (scalar, array, _) in _OIDS.items() if kind is not Kind.STRUCT}


def oid_of(type_: DataType) -> int:
    """PostgreSQL's number of a type."""
    if type_.kind is not Kind.LIST:
        return _OIDS[type_.kind][0]
    return _OIDS[innermost(type_).kind][1]


def length_of(type_: DataType) -> int:
    """Bytes of a value as a row description says it; -1 where they vary."""
    return -1 if type_.kind is Kind.LIST else _OIDS[type_.kind][2]


def modifier_of(type_: DataType) -> int:
    """The type modifier; -1 where there is none."""
    type_ = innermost(type_)
    if type_.kind is Kind.DECIMAL:
        return ((type_.precision or 0) << 16 | (type_.scale or 0)) + 4
    return -1


def innermost(type_: DataType) -> DataType:
    """The type of the elements of a list, through all its dimensions."""
    while type_.element is not None:
        type_ = type_.element
    return type_


def type_of(oid: int) -> DataType | None:
    """The type that a number stands for; None for one that is not known here."""
    if oid in _ARRAYS:
        return list_of(_TYPES[_ARRAYS[oid]])
    return _TYPES.get(oid)


def element_oid(oid: int) -> int:
    """The number of an array's element type; 0 for what is no array."""
    return _ARRAYS.get(oid, 0)
