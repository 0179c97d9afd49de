"""Kernels against plain Python: every binary form, on random values and on the edges."""

import datetime
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cdc.postgres.binary_values import NO_PLACE, value_of
from headwater.cdc.postgres.cells import Cells, Place
from headwater.cdc.postgres.columns import column_of
from headwater.cdc.postgres.copy_binary import SIGNATURE, CopyReader
from headwater.cdc.postgres.text_values import read_array, read_date, read_timestamp
from headwater.cdc.postgres.types import Codec, PgType, TypeCatalog, Wire, number_wire
from headwater.errors import BrokenInvariant, SchemaError
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    decimal,
    list_of,
)

HERE = Place("public.t", "c")
AS_NULL = Place("public.t", "c", bad_as_null=True)


def numeric(text: str) -> bytes:
    """The binary form of a number, by the rule of the protocol."""
    if text in ("NaN", "Infinity", "-Infinity"):
        sign = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}[text]
        return struct.pack(">hhHh", 0, 0, sign, 0)
    sign = 0x4000 if text.startswith("-") else 0
    whole, _, fraction = text.lstrip("-").partition(".")
    padded = whole.rjust(-(-len(whole) // 4) * 4, "0") + fraction.ljust(
        -(-len(fraction) // 4) * 4, "0"
    )
    groups = [int(padded[at : at + 4]) for at in range(0, len(padded), 4)]
    weight = -(-len(whole) // 4) - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight, sign = 0, 0
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, sign, len(fraction), *groups)


def array(values: list[bytes | None], oid: int = 25) -> bytes:
    if not values:
        return struct.pack(">iii", 0, 0, oid)
    body = b"".join(
        struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
        for each in values
    )
    return struct.pack(">iiiii", 1, 0, oid, len(values), 1) + body


def cells(values: list[bytes | None]) -> Cells:
    data = b"#" + b"".join(each or b"" for each in values)
    lengths = np.array([-1 if each is None else len(each) for each in values], dtype=np.int32)
    starts = 1 + np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))[:-1]]) if values else []
    return Cells(np.frombuffer(data, np.uint8), np.array(starts, dtype=np.int64), lengths)


def plain(column: pa.Array) -> list[object]:
    """Values as the oracle has them: moments as numbers, since Python's end at 9999."""
    if pa.types.is_date(column.type):
        column = column.view(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    if pa.types.is_list(column.type) and pa.types.is_timestamp(column.type.value_type):
        column = column.cast(pa.list_(pa.int64()))
    return column.to_pylist()


packed = {
    Codec.BOOL: (BOOLEAN, st.sampled_from([b"\0", b"\1"])),
    Codec.INT2: (SMALLINT, st.binary(min_size=2, max_size=2)),
    Codec.INT4: (INTEGER, st.binary(min_size=4, max_size=4)),
    Codec.INT8: (BIGINT, st.binary(min_size=8, max_size=8)),
    Codec.OID: (BIGINT, st.binary(min_size=4, max_size=4)),
    Codec.FLOAT4: (REAL, st.floats(width=32, allow_nan=False).map(lambda x: struct.pack(">f", x))),
    Codec.FLOAT8: (DOUBLE, st.floats(allow_nan=False).map(lambda x: struct.pack(">d", x))),
    Codec.NUMERIC: (
        NUMERIC,
        st.one_of(
            st.from_regex(r"\A-?(0|[1-9][0-9]{0,60})(\.[0-9]{1,60})?\Z", fullmatch=True).map(
                numeric
            ),
            st.sampled_from(["NaN", "Infinity", "-Infinity"]).map(numeric),
        ),
    ),
    Codec.TEXT: (VARCHAR, st.text(max_size=20).map(str.encode)),
    Codec.JSONB: (JSONB, st.text(max_size=20).map(lambda text: b"\1" + text.encode())),
    Codec.BYTEA: (BYTEA, st.binary(max_size=20)),
    Codec.UUID: (UUID, st.binary(min_size=16, max_size=16)),
    Codec.DATE: (DATE, st.binary(min_size=4, max_size=4)),
    Codec.TIME: (TIME, st.integers(0, 86_400_000_000).map(lambda x: struct.pack(">q", x))),
    Codec.TIMESTAMP: (TIMESTAMPTZ, st.binary(min_size=8, max_size=8)),
}
wires = {codec: Wire(type_, codec) for codec, (type_, _) in packed.items()}


@pytest.mark.parametrize("codec", packed, ids=str)
@settings(max_examples=60)
@given(data=st.data())
def test_a_kernel_reads_what_python_reads(codec, data):
    values = data.draw(st.lists(st.none() | packed[codec][1], max_size=12))
    expected = [None if each is None else value_of(each, wires[codec]) for each in values]
    column = column_of(cells(values), wires[codec], AS_NULL)
    column.validate(full=True)
    assert column.type == wires[codec].type.arrow
    assert plain(column) == [None if each is NO_PLACE else each for each in expected]


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (4, 4), (12, 2), (13, 5), (38, 0), (38, 38), (38, 17), (19, 1)]
)
@settings(max_examples=80)
@given(data=st.data())
def test_decimals_of_every_size_are_exact(precision, scale, data):
    wire = Wire(decimal(precision, scale), Codec.DECIMAL)
    most = 10**precision - 1
    drawn = data.draw(st.lists(st.none() | st.integers(-most, most), max_size=10))
    drawn += [most, -most, 0, 1, -1]
    shown = [None if each is None else f"{Decimal(each).scaleb(-scale):f}" for each in drawn]
    column = column_of(
        cells([None if each is None else numeric(each) for each in shown]), wire, HERE
    )
    assert column.to_pylist() == [None if each is None else Decimal(each) for each in shown]


def test_a_small_sum_in_a_column_of_a_large_scale_is_exact():
    wire = Wire(decimal(38, 10), Codec.DECIMAL)
    for text in ("0.0000000001", "1", "9999999999999999999999999999.9999999999", "10000", "0.1"):
        assert column_of(cells([numeric(text)]), wire, HERE).to_pylist() == [Decimal(text)]


@pytest.mark.parametrize(
    "codec", [Codec.TEXT, Codec.INT4, Codec.NUMERIC, Codec.UUID, Codec.TIMESTAMP]
)
@settings(max_examples=40)
@given(data=st.data())
def test_lists_are_read_with_the_kernels_of_their_elements(codec, data):
    element = wires[codec]
    wire = Wire(list_of(element.type), Codec.ARRAY, element=element)
    lists = data.draw(
        st.lists(st.none() | st.lists(st.none() | packed[codec][1], max_size=4), max_size=6)
    )
    values = [None if each is None else array(each) for each in lists]
    expected = []
    for each in values:
        inner = None if each is None else value_of(each, wire)
        expected.append(inner and [None if one is NO_PLACE else one for one in inner])
    column = column_of(cells(values), wire, AS_NULL)
    column.validate(full=True)
    assert plain(column) == expected


INFINITE_DATE = struct.pack(">i", 2**31 - 1)
INFINITE_STAMP = struct.pack(">q", 2**63 - 1)


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (wires[Codec.DATE], INFINITE_DATE),
        (wires[Codec.DATE], struct.pack(">i", -(2**31))),
        (wires[Codec.TIMESTAMP], INFINITE_STAMP),
        (wires[Codec.TIMESTAMP], struct.pack(">q", -(2**63))),
        (wires[Codec.TIMESTAMP], struct.pack(">q", 2**63 - 946_684_800_000_000)),
        (Wire(decimal(5, 2), Codec.DECIMAL), numeric("NaN")),
        (Wire(decimal(38, 2), Codec.DECIMAL), numeric("NaN")),
        (Wire(decimal(5, 2), Codec.DECIMAL), numeric("1.234")),
        (Wire(decimal(30, 2), Codec.DECIMAL), numeric("1.234")),
        (wires[Codec.TEXT], b"caf\xe9"),
        (
            Wire(list_of(INTEGER), Codec.ARRAY, element=wires[Codec.INT4]),
            struct.pack(">iiiiiii", 2, 0, 23, 1, 1, 1, 1) + struct.pack(">ii", 4, 7),
        ),
    ],
)
def test_a_value_without_a_place_is_refused_by_name_or_null(wire, value):
    """The bad value stands among good ones, which keep their rows."""
    good = {
        Codec.DATE: struct.pack(">i", 0),
        Codec.TIMESTAMP: struct.pack(">q", 0),
        Codec.DECIMAL: numeric("1.5"),
        Codec.TEXT: b"ok",
        Codec.ARRAY: array([struct.pack(">i", 7)], 23),
    }[wire.codec]
    with pytest.raises(SchemaError) as caught:
        column_of(cells([good, value, good]), wire, HERE)
    assert "public.t" in caught.value.message
    assert '"c"' in caught.value.message
    column = column_of(cells([good, None, value, good]), wire, AS_NULL)
    assert [each is None for each in plain(column)] == [False, True, True, False]
    assert plain(column)[0] == plain(column)[3]


def test_the_last_moment_that_fits_is_kept():
    last = 2**63 - 1 - 946_684_800_000_000
    column = column_of(cells([struct.pack(">q", last)]), wires[Codec.TIMESTAMP], HERE)
    assert plain(column) == [2**63 - 1]


def test_a_value_of_a_wrong_width_is_refused():
    with pytest.raises(SchemaError, match="cannot be kept"):
        column_of(cells([b"\0\0\0"]), wires[Codec.INT4], HERE)


def as_text(values: list[str | None], wire: Wire, where: Place = HERE) -> pa.Array:
    return column_of(
        cells([None if each is None else each.encode() for each in values]),
        wire,
        where,
        binary=False,
    )


@pytest.mark.parametrize(
    ("wire", "texts", "expected"),
    [
        (wires[Codec.BOOL], ["t", "f", None], [True, False, None]),
        (wires[Codec.INT8], ["-9223372036854775808", "7"], [-(2**63), 7]),
        (wires[Codec.OID], ["4294967295"], [4294967295]),
        (wires[Codec.FLOAT8], ["Infinity", "-Infinity", "1e-300"], [np.inf, -np.inf, 1e-300]),
        (wires[Codec.FLOAT4], ["3.4028235e+38"], [float(np.float32(3.4028235e38))]),
        (wires[Codec.BYTEA], ["\\x00ff", "\\x"], [b"\0\xff", b""]),
        (wires[Codec.NUMERIC], ["NaN", "1.50"], ["NaN", "1.50"]),
        (
            Wire(decimal(38, 2), Codec.DECIMAL),
            ["-0.01", "999999999999999999999999999999999999.99"],
            [Decimal("-0.01"), Decimal("999999999999999999999999999999999999.99")],
        ),
        (wires[Codec.DATE], ["1970-01-02", "1969-12-31"], [1, -1]),
        (
            wires[Codec.TIMESTAMP],
            ["1970-01-01 00:00:00.000001+00", "1969-12-31 23:59:59+00"],
            [1, -1_000_000],
        ),
        (Wire(TIMESTAMP, Codec.TIMESTAMP), ["1970-01-01 00:00:00.5"], [500_000]),
        (
            Wire(list_of(INTEGER), Codec.ARRAY, element=wires[Codec.INT4]),
            ["{}", "{1,NULL,-3}", None, "[0:1]={4,5}"],
            [[], [1, None, -3], None, [4, 5]],
        ),
        (
            Wire(list_of(VARCHAR), Codec.ARRAY, element=wires[Codec.TEXT]),
            ['{"a,b","",NULL,"NULL","q\\"\\\\{}"}'],
            [["a,b", "", None, "NULL", 'q"\\{}']],
        ),
    ],
)
def test_texts_of_the_server_are_read(wire, texts, expected):
    column = as_text(texts, wire)
    assert column.type == wire.type.arrow
    assert plain(column) == expected


@given(st.dates(), st.times())
def test_moments_as_text_are_what_python_says(day, time):
    epoch = datetime.date(1970, 1, 1)
    assert read_date(day.isoformat()) == (day - epoch).days
    moment = datetime.datetime.combine(day, time)
    spelled = moment.isoformat(" ")
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)  # noqa: DTZ001
    assert read_timestamp(spelled) == read_timestamp(spelled + "+00") == micros
    assert plain(as_text([spelled + "+00"], wires[Codec.TIMESTAMP])) == [micros]


def test_years_beyond_arrow_are_read_value_by_value():
    assert plain(as_text(["0044-03-15 BC", "10000-01-01"], wires[Codec.DATE])) == [
        -735_160, 2_932_897,
    ]  # fmt: skip
    stamps = ["4713-01-01 00:00:00+00 BC", "294246-12-31 23:59:59.999999+00"]
    assert plain(as_text(stamps, wires[Codec.TIMESTAMP]))[1] == 9_223_371_244_799_999_999


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (Codec.DATE, "infinity"),
        (Codec.TIMESTAMP, "-infinity"),
        (Codec.TIMESTAMP, "294276-12-31 23:59:59+00"),
    ],
)
def test_a_text_without_a_place_is_refused_by_name_or_null(codec, text):
    with pytest.raises(SchemaError, match=r'"c" of public\.t'):
        as_text([text], wires[codec])
    assert as_text([None, text], wires[codec], AS_NULL).null_count == 2


@pytest.mark.parametrize("text", ["{{1,2},{3,4}}", "", "x"])
def test_an_array_that_is_no_list_is_refused(text):
    with pytest.raises((ValueError, IndexError)):
        read_array(text)


def test_numbers_choose_their_type_by_their_limits():
    def typmod(precision: int, scale: int) -> int:
        return (precision << 16 | scale & 0x7FF) + 4

    assert number_wire(-1).type == NUMERIC
    assert number_wire(typmod(12, 2)).type == decimal(12, 2)
    assert number_wire(typmod(38, 38)).type == decimal(38, 38)
    for precision, scale in ((39, 0), (1000, 10), (5, -2), (3, 5)):
        assert number_wire(typmod(precision, scale)).type == NUMERIC


def test_types_of_users_are_known_or_refused_by_name():
    nothing = {"element": 0, "base": 0, "base_typmod": -1}
    shape = PgType(oid=900, name="shape", schema="gis", kind="b", category="U", **nothing)
    shapes = PgType(
        oid=901, name="_shape", schema="gis", kind="b", category="A", **{**nothing, "element": 900}
    )
    price = {"element": 0, "base": 1700, "base_typmod": (8 << 16 | 2) + 4}
    money = PgType(oid=902, name="price", schema="app", kind="d", category="N", **price)
    strict, lenient = (
        TypeCatalog([shape, shapes, money], unknown_as_text=each) for each in (False, True)
    )
    for oid in (900, 901):
        with pytest.raises(SchemaError, match=r'column "s".*"gis"\."shape"'):
            strict.wire(oid, -1, 'column "s" of t')
    assert lenient.wire(900, -1, "").type == VARCHAR
    assert lenient.wire(901, -1, "").type == list_of(VARCHAR)
    assert strict.wire(902, -1, "").type == decimal(8, 2)


def stream(rows: list[list[bytes | None]]) -> bytes:
    body = b"".join(
        struct.pack(">h", len(row))
        + b"".join(
            struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
            for each in row
        )
        for row in rows
    )
    return SIGNATURE + bytes(8) + body + struct.pack(">h", -1)


def copied(data: bytes, cuts: list[int]) -> pa.Table:
    reader = CopyReader([("a", wires[Codec.INT4]), ("b", wires[Codec.TEXT])], [HERE, HERE])
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        reader.feed(data[begin:end])
    table = reader.table()
    assert reader.ended
    return table


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.none() | st.text(max_size=9)), max_size=9), st.data()
)
def test_a_stream_may_be_cut_anywhere(rows, data):
    whole = stream([[struct.pack(">i", a), None if b is None else b.encode()] for a, b in rows])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    assert copied(whole, cuts).to_pylist() == [{"a": a, "b": b} for a, b in rows]


def test_rows_larger_than_a_block_are_read():
    wide = "x" * 3_000_000
    whole = stream([[struct.pack(">i", 1), wide.encode()], [struct.pack(">i", 2), b"y"]])
    cuts = list(range(60_000, len(whole), 60_000))
    assert copied(whole, cuts).to_pylist() == [{"a": 1, "b": wide}, {"a": 2, "b": "y"}]


def test_a_stream_of_another_width_is_a_bug_of_ours():
    with pytest.raises(BrokenInvariant):
        copied(stream([[b"x"]]), [])
    with pytest.raises(BrokenInvariant, match="signature"):
        copied(b"?" * 40, [])
