"""Row events, written by a plain Python encoder from random rows, and decoded by the kernels."""

import datetime
import random
import struct
import zlib
from decimal import Decimal

import numpy as np
import pytest

from headwater.cdc.mysql.events import COMMITTED, read_events
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.row_images import decode_images
from headwater.cdc.mysql.table_map import PREFIXED, LogColumn, TableMap
from headwater.errors import DamagedState, SourceUnavailable, UserError
from headwater.model.types import (
    BIGINT,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    NUMERIC,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    decimal,
)  # fmt: skip

OPTIONS = MySqlOptions.parse(
    {"hostname": "h", "username": "u", "database.name": "d", "time.mode": "interval"}
)
GROUP = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def packed_decimal(unscaled: int, precision: int, scale: int) -> bytes:
    digits = str(abs(unscaled)).zfill(precision)
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    head = len(whole) % 9
    groups = [whole[:head], *(whole[at : at + 9] for at in range(head, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    raw = b"".join(int(each).to_bytes(GROUP[len(each)], "big") for each in groups if each)
    if unscaled < 0:
        raw = bytes(byte ^ 0xFF for byte in raw)
    return bytes([raw[0] ^ 0x80]) + raw[1:]


def fraction(micros: int, digits: int) -> bytes:
    size = (digits + 1) // 2
    return (micros // 10 ** (6 - 2 * size)).to_bytes(size, "big") if size else b""


def packed_datetime(value: datetime.datetime, digits: int) -> bytes:
    month = value.year * 13 + value.month
    whole = ((month << 5 | value.day) << 17) | value.hour << 12 | value.minute << 6 | value.second
    return (whole + 0x8000000000).to_bytes(5, "big") + fraction(value.microsecond, digits)


def packed_time(micros: int, digits: int) -> bytes:
    size = (digits + 1) // 2
    seconds, rest = divmod(abs(micros), 10**6)
    whole = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    number = whole << 8 * size | int.from_bytes(fraction(rest, digits), "big")
    number = -number if micros < 0 else number
    return (number + (0x800000 << 8 * size)).to_bytes(3 + size, "big")


def time_text(micros: int) -> str:
    seconds, rest = divmod(abs(micros), 10**6)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    text += f".{rest:06d}".rstrip("0") if rest else ""
    return f"-{text}" if micros < 0 else text


def moment(dice: random.Random, digits: int) -> datetime.datetime:
    step = 10 ** (6 - digits)
    return datetime.datetime(  # noqa: DTZ001
        dice.randrange(1, 10000), dice.randrange(1, 13), dice.randrange(1, 29), dice.randrange(24),
        dice.randrange(60), dice.randrange(60), dice.randrange(0, 10**6, step),
    )  # fmt: skip


def cell_kinds():
    """By name: the column, its type here, and a maker of (bytes in the log, value here)."""

    def integer(size, signed):
        def make(dice):
            low, high = (-(1 << 8 * size - 1), 1 << 8 * size - 1) if signed else (0, 1 << 8 * size)
            value = dice.choice([low, high - 1, 0, dice.randrange(low, high)])
            return value.to_bytes(size, "little", signed=signed), value

        return make

    def number(precision, scale):
        def make(dice):
            unscaled = dice.randrange(10 ** dice.randrange(precision + 1)) * dice.choice([1, -1])
            if precision > 20 and dice.random() < 0.3:
                # The lower 64 bits are all zero, so that negating carries.
                unscaled = -(dice.randrange(1, 9) << 64)
            digits = f"{abs(unscaled):0{scale + 1}d}"
            sign = "-" if unscaled < 0 else ""
            text = f"{sign}{digits[:-scale]}.{digits[-scale:]}"
            raw = packed_decimal(unscaled, precision, scale)
            return raw, Decimal(text) if precision <= 38 else text

        return make

    def text(prefix):
        def make(dice):
            value = "\u00e9x" * dice.randrange(100 if prefix == 1 and dice.random() < 0.9 else 60)
            value = value[:80]
            raw = value.encode()
            return len(raw).to_bytes(prefix, "little") + raw, value

        return make

    def datetimes(digits):
        def make(dice):
            value = moment(dice, digits)
            return packed_datetime(value, digits), value

        return make

    def times(digits):
        def make(dice):
            step = 10 ** (6 - digits)
            value = dice.randrange(-3020399 * 10**6, 3020399 * 10**6, step)
            return packed_time(value, digits), time_text(value)

        return make

    def stamps(dice):
        seconds, micros = dice.randrange(1, 2**31), dice.randrange(10**6)
        here = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=micros)
        return seconds.to_bytes(4, "big") + fraction(micros, 6), here

    def days(dice):
        value = moment(dice, 0).date()
        packed = value.year << 9 | value.month << 5 | value.day
        return packed.to_bytes(3, "little"), value

    def doubles(dice):
        value = dice.choice([0.0, -0.0, 1e308, 5e-324, dice.random()])
        return struct.pack("<d", value), value

    def bits(dice):
        value = dice.randrange(1 << 12)
        return value.to_bytes(2, "big"), value

    column = LogColumn
    return [
        (column("a", "tinyint", 1), SMALLINT, integer(1, True)),
        (column("b", "smallint unsigned", 2), INTEGER, integer(2, False)),
        (column("c", "mediumint", 3), INTEGER, integer(3, True)),
        (column("d", "int unsigned", 4), BIGINT, integer(4, False)),
        (column("e", "bigint", 8), BIGINT, integer(8, True)),
        (column("f", "bigint unsigned", 8), decimal(20, 0), integer(8, False)),
        (column("g", "decimal(12,2)", 6, precision=12, scale=2), decimal(12, 2), number(12, 2)),
        (column("h", "decimal(38,19)", 18, precision=38, scale=19), decimal(38, 19),
         number(38, 19)),
        (column("i", "decimal(65,30)", 30, precision=65, scale=30), NUMERIC, number(65, 30)),
        (column("j", "varchar", PREFIXED + 1, charset="utf8mb4"), VARCHAR, text(1)),
        (column("k", "text", PREFIXED + 3, charset="utf8mb4"), VARCHAR, text(3)),
        (column("l", "datetime", 8, 6), TIMESTAMP, datetimes(6)),
        (column("m", "datetime", 7, 3), TIMESTAMP, datetimes(3)),
        (column("n", "time", 6, 6), INTERVAL, times(6)),
        (column("o", "time", 4, 1), INTERVAL, times(1)),
        (column("p", "timestamp", 7, 6), TIMESTAMPTZ, stamps),
        (column("q", "date", 3), DATE, days),
        (column("r", "double", 8), DOUBLE, doubles),
        (column("s", "bit(12)", 2), BIGINT, bits),
    ]  # fmt: skip


KINDS = cell_kinds()
TABLE = TableMap("d", "t", tuple(column for column, _, _ in KINDS))
WANTED = [(column.name, type_) for column, type_, _ in KINDS]


def image(dice: random.Random) -> tuple[bytes, dict[str, object]]:
    """A random row as the log has it, and as it has to arrive."""
    nulls = bytearray((len(KINDS) + 7) // 8)
    body, row = b"", {}
    for place, (column, _, make) in enumerate(KINDS):
        if dice.random() < 0.2:
            nulls[place // 8] |= 1 << place % 8
            row[column.name] = None
        else:
            raw, row[column.name] = make(dice)
            body += raw
    return bytes(nulls) + body, row


def event(kind: int, body: bytes, position: int = 100, *, checksum: bool = True) -> bytes:
    size = 19 + len(body) + (4 if checksum else 0)
    raw = struct.pack("<IBIIIH", 1, kind, 11, size, position, 0) + body
    return raw + (struct.pack("<I", zlib.crc32(raw)) if checksum else b"")


def rows_event(kind: int, images: list[bytes], present: bytes | None = None) -> bytes:
    bitmap = present or b"\xff" * ((len(KINDS) + 7) // 8)
    extra = struct.pack("<H", 2) if kind >= 30 else b""
    head = (7).to_bytes(6, "little") + b"\0\0" + extra + bytes([len(KINDS)])
    return head + bitmap * (2 if kind in (24, 31) else 1) + b"".join(images)


def events_of(raw: list[bytes], *, checksum: bool = True):
    data, starts, sizes = b"", [], []
    for each in raw:
        starts.append(len(data))
        data += b"\0" + each
        sizes.append(1 + len(each))
    return read_events(
        np.frombuffer(data, dtype=np.uint8), np.array(starts), np.array(sizes), checksum=checksum
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("checksum", [True, False])
def test_random_rows_arrive_as_they_were_written(seed, checksum):
    dice = random.Random(seed)
    raw, wanted, counts = [], [], []
    for _ in range(dice.randrange(1, 6)):
        kind = dice.choice([23, 24, 25, 30, 31, 32])
        images = [image(dice) for _ in range(dice.randrange(1, 9) * (2 if kind in (24, 31) else 1))]
        raw.append(event(kind, rows_event(kind, [r for r, _ in images]), checksum=checksum))
        wanted += [row for _, row in images]
        counts.append(len(images))
    events = events_of(raw, checksum=checksum)
    images = decode_images(events, np.arange(len(events)), TABLE, WANTED, OPTIONS)
    assert images.counts.tolist() == counts
    for name, type_ in WANTED:
        array = images.columns[name]
        assert array.type == type_.arrow
        array.validate(full=True)
        assert array.to_pylist() == [row[name] for row in wanted], name


def test_only_wanted_columns_that_are_there_are_decoded():
    raw, row = image(random.Random(1))
    events = events_of([event(23, rows_event(23, [raw]))])
    images = decode_images(
        events, np.array([0]), TABLE, [("e", BIGINT), ("new", BYTEA), ("r", REAL)], OPTIONS
    )
    assert {name: array.to_pylist() for name, array in images.columns.items()} == {
        "e": [row["e"]], "r": [row["r"]]
    }  # fmt: skip


def test_a_damaged_event_is_noticed():
    raw = bytearray(event(23, rows_event(23, [image(random.Random(2))[0]])))
    raw[40] ^= 1
    with pytest.raises(SourceUnavailable, match="wrong checksum"):
        events_of([bytes(raw)])


def test_images_without_some_columns_are_refused():
    raw = event(23, rows_event(23, [image(random.Random(3))[0]], present=b"\xff\xfe\xff"))
    with pytest.raises(UserError, match="without some of their columns"):
        decode_images(events_of([raw]), np.array([0]), TABLE, WANTED, OPTIONS)


def test_a_row_that_runs_over_its_event_is_refused():
    raw = event(23, rows_event(23, [image(random.Random(4))[0][:-3]]))
    with pytest.raises(DamagedState):
        decode_images(events_of([raw]), np.array([0]), TABLE, WANTED, OPTIONS)


def query(text: str) -> bytes:
    return event(2, struct.pack("<IIBHH", 1, 0, 2, 0, 0) + b"db\0" + text.encode())


def test_where_transactions_end():
    gtid, mariadb_one, mariadb_many = (
        event(33, b"\0" * 42), event(162, b"\0" * 12 + b"\1" + b"\0" * 6), event(162, b"\0" * 19)
    )  # fmt: skip
    xid, rows = event(16, b"\0" * 8), event(23, b"\0" * 12)
    raw = [
        gtid, query("BEGIN"), rows, query("SAVEPOINT `s`"), rows, xid,
        gtid, query("ALTER TABLE t ADD a int"),
        gtid, query("CREATE TABLE t (a int) START TRANSACTION"), rows, xid,
        mariadb_one, query("DROP TABLE t"),
        mariadb_many, rows, query("COMMIT"),
        mariadb_many, rows, query("ROLLBACK"),
        event(27, b"x"),
        gtid, query("BEGIN"), rows,
    ]  # fmt: skip
    ends = events_of(raw).ends.tolist()
    assert [(at, end) for at, end in enumerate(ends) if end] == [
        (5, COMMITTED), (7, COMMITTED), (11, COMMITTED), (13, COMMITTED), (16, COMMITTED),
        (19, 2), (20, 4),
    ]  # fmt: skip
