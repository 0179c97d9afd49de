"""The table in the docstring of model/types.py is what the code does, row by row."""

import json

import pyarrow as pa
import pytest

from headwater.errors import SchemaError
from headwater.model import types
from headwater.model.types import INTEGER, JSONB, VARCHAR, DataType, Kind, decimal, list_of

COLUMNS = ("headwater", "postgres", "spark", "arrow", "delta")
SAMPLES = {
    Kind.DECIMAL: decimal(10, 2),
    Kind.LIST: list_of(INTEGER),
    Kind.STRUCT: DataType(Kind.STRUCT, fields=(("a", INTEGER), ("b", list_of(VARCHAR)))),
}
SHOWN_KIND = {"decimal(p,s)": Kind.DECIMAL, "T[]": Kind.LIST, "struct<...>": Kind.STRUCT}
ARROW_NAME = {"float32": "float", "float64": "double", "date32": "date32[day]"}


def rows() -> list[dict[str, str]]:
    """The docstring's table; columns begin where their headings begin."""
    lines = [line for line in types.__doc__.splitlines() if line.startswith("    ")]
    head = lines[0]
    starts = [head.index(word) for word in ("Headwater", "PostgreSQL", "Spark", "Arrow", "Delta")]
    ends = [*starts[1:], None]
    return [
        {
            name: line[start:end].strip()
            for name, start, end in zip(COLUMNS, starts, ends, strict=True)
        }
        for line in lines[1:]
    ]


def kind_of(row: dict[str, str]) -> Kind:
    return SHOWN_KIND.get(row["headwater"]) or Kind(row["headwater"])


def scalar_rows() -> list[dict[str, str]]:
    return [row for row in rows() if kind_of(row) not in SAMPLES]


def test_every_kind_has_one_row():
    assert [kind_of(row) for row in rows()] == list(Kind)


@pytest.mark.parametrize("row", scalar_rows(), ids=lambda row: row["headwater"])
def test_scalar_rows_equal_the_code(row):
    type_ = DataType(kind_of(row))
    assert type_.spark == row["spark"]
    assert type_.delta == row["delta"]
    assert type_.postgres in row["postgres"].replace("text, ", "").split(", ")
    arrow = ARROW_NAME.get(row["arrow"], row["arrow"]).replace("us,UTC", "us, tz=UTC")
    assert str(type_.arrow) == arrow


def test_decimal_row():
    type_ = SAMPLES[Kind.DECIMAL]
    assert type_.spark == type_.delta == "decimal(10,2)"
    assert type_.arrow == pa.decimal128(10, 2)
    assert type_.postgres == "numeric(10,2)"


def test_list_row():
    type_ = list_of(list_of(VARCHAR))
    assert type_.spark == "array<array<string>>"
    assert type_.arrow == pa.list_(pa.list_(pa.string()))
    assert type_.postgres == "varchar[][]"
    assert type_.delta["type"] == "array"
    assert type_.delta["elementType"]["elementType"] == "string"


def test_struct_row():
    type_ = SAMPLES[Kind.STRUCT]
    assert type_.spark == "struct<`a`:int,`b`:array<string>>"
    assert type_.arrow == pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    assert type_.postgres == "struct<a integer, b varchar[]>"
    assert [field["name"] for field in json.loads(json.dumps(type_.delta))["fields"]] == ["a", "b"]


@pytest.mark.parametrize("kind", list(Kind))
def test_arrow_types_can_be_written_as_parquet(kind, tmp_path):
    import pyarrow.parquet as pq

    type_ = SAMPLES.get(kind) or DataType(kind)
    table = pa.table({"x": pa.array([None], type=type_.arrow)})
    pq.write_table(table, tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").schema.field("x").type == type_.arrow


@pytest.mark.parametrize("kind", list(Kind))
def test_what_can_be_a_key(kind):
    inexact = {Kind.JSONB, Kind.INTERVAL, Kind.LIST, Kind.STRUCT}
    assert (SAMPLES.get(kind) or DataType(kind)).can_be_key == (kind not in inexact)


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 0), (10, 11), (10, -1)])
def test_decimals_out_of_range_are_refused(precision, scale):
    with pytest.raises(SchemaError, match="out of range") as caught:
        decimal(precision, scale)
    assert "numeric" in caught.value.hint


@pytest.mark.parametrize("kind", [Kind.DECIMAL, Kind.LIST, Kind.STRUCT])
def test_types_with_parts_need_them(kind):
    with pytest.raises(SchemaError, match="needs"):
        DataType(kind)


def test_equal_types_are_equal_values():
    assert list_of(INTEGER) == list_of(INTEGER)
    assert hash(decimal(5, 1)) == hash(decimal(5, 1))
    assert decimal(5, 1) != decimal(6, 1)
    assert JSONB != VARCHAR
