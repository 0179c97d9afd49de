"""A table with a column of every type, and rows at the edges, for MySQL and MariaDB.

Each row is what is written upstream; beside it stands what has to arrive here. The two are written
by hand, so that neither side of the code under test is its own judge.
"""

import datetime
from decimal import Decimal

UTC = datetime.UTC
COLUMNS = {
    "id": "int unsigned NOT NULL",
    "t": "tinyint",
    "tu": "tinyint unsigned",
    "s": "smallint",
    "su": "smallint unsigned",
    "m": "mediumint",
    "mu": "mediumint unsigned zerofill",
    "i": "int",
    "iu": "int unsigned",
    "b": "bigint",
    "bu": "bigint unsigned",
    "d": "decimal(12,2)",
    "dw": "decimal(38,10)",
    "dx": "decimal(65,30)",
    "f": "float",
    "g": "double",
    "bit1": "bit(1)",
    "bit9": "bit(9)",
    "bit64": "bit(64)",
    "y": "year",
    "day": "date",
    "dt": "datetime",
    "dt3": "datetime(3)",
    "dt6": "datetime(6)",
    "ts": "timestamp NULL",
    "ts6": "timestamp(6) NULL",
    "tm": "time",
    "tm6": "time(6)",
    "tm3": "time(3)",
    "c": "char(10)",
    "v": "varchar(40) COLLATE utf8mb4_bin",
    "vw": "varchar(300)",
    "latin": "varchar(20) CHARACTER SET latin1",
    "gbk": "varchar(20) CHARACTER SET gbk",
    "u16": "varchar(20) CHARACTER SET utf16",
    "tx": "text",
    "lt": "longtext",
    "bin": "binary(6)",
    "vb": "varbinary(20)",
    "bl": "blob",
    "lb": "longblob",
    "e": "enum('small','it''s','','large')",
    "st": "set('a','b','c','d')",
    "j": "json",
    "stored": "int GENERATED ALWAYS AS (i * 2) STORED",
}
WRITTEN = [name for name in COLUMNS if name != "stored"]

FULL = {
    "id": ("4000000000", 4000000000),
    "t": ("-128", -128),
    "tu": ("255", 255),
    "s": ("-32768", -32768),
    "su": ("65535", 65535),
    "m": ("-8388608", -8388608),
    "mu": ("16777215", 16777215),
    "i": ("-1073741824", -1073741824),
    "iu": ("4294967295", 4294967295),
    "b": ("-9223372036854775808", -9223372036854775808),
    "bu": ("18446744073709551615", Decimal(18446744073709551615)),
    "d": ("-1234567890.12", Decimal("-1234567890.12")),
    "dw": (
        "-1234567890123456789012345678.0123456789",
        Decimal("-1234567890123456789012345678.0123456789"),
    ),
    "dx": (
        "-12345678901234567890123456789012345.000000000000000000000000000001",
        "-12345678901234567890123456789012345.000000000000000000000000000001",
    ),
    "f": ("0.1", 0.10000000149011612),
    "g": ("-1.7976931348623157e308", -1.7976931348623157e308),
    "bit1": ("b'1'", 1),
    "bit9": ("b'101010101'", 0b101010101),
    "bit64": ("b'" + "1" * 64 + "'", b"\xff" * 8),
    "y": ("2155", 2155),
    "day": ("'9999-12-31'", datetime.date(9999, 12, 31)),
    "dt": ("'2024-02-29 23:59:59'", datetime.datetime(2024, 2, 29, 23, 59, 59)),  # noqa: DTZ001
    "dt3": ("'1000-01-01 00:00:00.123'", datetime.datetime(1000, 1, 1, 0, 0, 0, 123000)),  # noqa: DTZ001
    "dt6": ("'9999-12-31 23:59:59.999999'", datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
    # The servers of the tests are two hours ahead of UTC.
    "ts": ("'2024-06-01 12:00:00'", datetime.datetime(2024, 6, 1, 10, 0, 0, tzinfo=UTC)),
    "ts6": ("'1970-01-01 02:00:01.000001'", datetime.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)),
    "tm": ("'-838:59:59'", "-838:59:59"),
    "tm6": ("'-00:00:00.000001'", "-00:00:00.000001"),
    "tm3": ("'101:02:03.450'", "101:02:03.45"),
    "c": ("'char   '", "char"),
    "v": ("'Gr\u00fc\u00dfe \U0001f30a '", "Gr\u00fc\u00dfe \U0001f30a "),
    "vw": ("'" + "w\u00e9" * 150 + "'", "w\u00e9" * 150),
    "latin": ("'\u00e9\u20ac\u00ff'", "\u00e9\u20ac\u00ff"),
    "gbk": ("'\u4e2d\u6587'", "\u4e2d\u6587"),
    "u16": ("'\u4e2d\U0001f30a'", "\u4e2d\U0001f30a"),
    "tx": ("REPEAT('text', 1000)", "text" * 1000),
    "lt": ("REPEAT('\u00e9', 40000)", "\u00e9" * 40000),
    "bin": ("X'010200'", b"\x01\x02\x00\x00\x00\x00"),
    "vb": ("X'00FF00'", b"\x00\xff\x00"),
    "bl": ("REPEAT(X'FE', 300)", b"\xfe" * 300),
    "lb": ("X''", b""),
    "e": ("'it''s'", "it's"),
    "st": ("'a,d'", "a,d"),
    "j": ("""'{"b": [1, 2.5, null, true, "x\\\\n\u00e9"], "a": {}}'""", None),
}
ZERO = {
    "id": ("0", 0), "t": ("0", 0), "tu": ("0", 0), "s": ("0", 0), "su": ("0", 0), "m": ("0", 0),
    "mu": ("0", 0), "i": ("0", 0), "iu": ("0", 0), "b": ("0", 0), "bu": ("0", Decimal(0)),
    "d": ("0", Decimal("0.00")), "dw": ("0.0000000001", Decimal("0.0000000001")),
    "dx": ("0", "0.000000000000000000000000000000"), "f": ("0", 0.0), "g": ("5e-324", 5e-324),
    "bit1": ("0", 0), "bit9": ("0", 0), "bit64": ("1", b"\0" * 7 + b"\1"), "y": ("1901", 1901),
    "day": ("'1000-01-01'", datetime.date(1000, 1, 1)),
    "dt": ("'1969-12-31 23:59:59'", datetime.datetime(1969, 12, 31, 23, 59, 59)),  # noqa: DTZ001
    "dt3": ("'1970-01-01'", datetime.datetime(1970, 1, 1)),  # noqa: DTZ001
    "dt6": ("'2000-02-29 00:00:00.000001'",
            datetime.datetime(2000, 2, 29, 0, 0, 0, 1)),  # noqa: DTZ001
    "ts": ("'1970-01-01 02:00:01'", datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "ts6": ("'2038-01-19 05:14:07.999999'",
            datetime.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=UTC)),
    "tm": ("'00:00:00'", "00:00:00"), "tm6": ("'23:59:59.999999'", "23:59:59.999999"),
    "tm3": ("'-100:00:00.500'", "-100:00:00.5"),
    "c": ("''", ""), "v": ("''", ""), "vw": ("'x'", "x"), "latin": ("''", ""), "gbk": ("'a'", "a"),
    "u16": ("'a'", "a"), "tx": ("''", ""), "lt": ("'x'", "x"), "bin": ("X''", b"\0" * 6),
    "vb": ("X''", b""), "bl": ("X'00'", b"\0"), "lb": ("X'00'", b"\0"), "e": ("''", ""),
    "st": ("''", ""), "j": ("'[]'", None),
}  # fmt: skip
EMPTY = {"id": ("7", 7), **{name: ("NULL", None) for name in WRITTEN if name != "id"}}
JSON_TEXT = {
    # MariaDB keeps the text as it was written; MySQL writes its own.
    ("mariadb", 4000000000): '{"b": [1, 2.5, null, true, "x\\n\u00e9"], "a": {}}',
    ("mysql", 4000000000): '{"a": {}, "b": [1, 2.5, null, true, "x\\n\u00e9"]}',
    ("mariadb", 0): "[]",
    ("mysql", 0): "[]",
}


def create(name: str) -> str:
    """The statement that makes the table."""
    columns = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
    return f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id)) DEFAULT CHARSET utf8mb4"


def inserts(name: str) -> list[str]:
    """The statements that write the rows."""
    listed = ", ".join(f"`{column}`" for column in WRITTEN)
    return [
        f"INSERT INTO {name} ({listed}) VALUES ({', '.join(row[c][0] for c in WRITTEN)})"
        for row in (FULL, ZERO, EMPTY)
    ]


def expected(kind: str) -> list[dict[str, object]]:
    """The rows that must arrive, in key order."""
    rows = []
    for row in (ZERO, EMPTY, FULL):
        values = {column: row[column][1] for column in WRITTEN}
        values["j"] = JSON_TEXT.get((kind, values["id"]))  # type: ignore[arg-type]
        values["stored"] = None if values["i"] is None else values["i"] * 2  # type: ignore[operator]
        rows.append(values)
    return rows
