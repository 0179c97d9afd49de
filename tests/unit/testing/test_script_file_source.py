import json
import os

import pytest

from headwater.errors import ConfigError, SchemaError, SourceUnavailable, UserError
from headwater.model import types
from headwater.model.schema import Column, Schema
from headwater.model.types import DataType, Kind
from headwater.testing.bank_source import BankSource
from headwater.testing.clock import ManualClock
from headwater.testing.generated_source import GeneratedSource, Mix
from headwater.testing.oracle import assert_same_rows
from headwater.testing.pretty import from_pretty
from headwater.testing.script_file_source import ScriptFileSource, append_transactions
from headwater.testing.source_kinds import schema_options, source_from_options

LARGE = 1 << 20
ORDERS = Schema(
    (
        Column("id", types.BIGINT, nullable=False),
        Column("amount", types.decimal(10, 2)),
        Column("at", types.TIMESTAMPTZ),
        Column("x", types.DOUBLE),
        Column("tags", types.list_of(types.VARCHAR)),
        Column("ok", types.BOOLEAN, nullable=False),
    ),
    ("id",),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "script.jsonl"


def opened(path):
    return ScriptFileSource("f", path, {"orders": ORDERS})


async def test_lines_are_transactions(path):
    path.write_text(
        '{"orders": [["+", {"id": 1, "amount": "10.00", "at": "2024-01-01T00:00:00Z"}]]}\n'
        "\n"
        '{"orders": [["U+", {"id": 1, "x": "nan", "tags": ["a", null]}], ["-", {"id": 2}]]}\n'
    )
    batch = await opened(path).read(None, max_bytes=LARGE)
    assert (batch.position, batch.more) == ("3", False)
    expected = from_pretty(
        """
            id    amount  at                     x     tags
        +   1     10.00   2024-01-01T00:00:00Z   .     .
        U+  1     .       .                      nan   [a,.]
        -   2     .       .                      .     .
        """,
        ORDERS,
    )
    assert batch.changes["orders"].schema == expected.schema
    assert_same_rows(batch.changes["orders"], expected)


async def test_only_complete_lines_count(path):
    source = opened(path)
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        await source.read(None, max_bytes=LARGE)
    line = b'{"orders": [["+", {"id": 1}]]}\n'
    with path.open("wb", buffering=0) as file:
        for byte in line[:-1]:
            file.write(bytes([byte]))
            assert (await source.read(None, max_bytes=LARGE)).position == "0"
        file.write(line[-1:])
        assert (await source.read(None, max_bytes=LARGE)).position == "1"
        file.write(line + line + line[:5])
    assert (await source.read("1", max_bytes=LARGE)).position == "3"
    assert (await source.read("2", max_bytes=LARGE)).changes["orders"].num_rows == 1
    assert (await opened(path).read("1", max_bytes=1)).position == "2"
    assert (await opened(path).read("1", max_bytes=1)).more


async def test_what_is_appended_is_read_back(path):
    generated = GeneratedSource("g", 3, {"orders": ORDERS}, Mix(keys=40), limit=60)
    transactions = []
    for after in range(60):
        transactions.append((await generated.read(str(after), max_bytes=1)).changes)
    append_transactions(path, *transactions[:30])
    append_transactions(path, *transactions[30:])
    source = opened(path)
    for after, transaction in enumerate(transactions):
        batch = await source.read(str(after), max_bytes=1)
        for table, chunk in transaction.items():
            assert batch.changes[table].schema == chunk.schema
            assert_same_rows(batch.changes[table], chunk)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 of the file"),
        ("[]", "line 2 of the file"),
        ('{"other": []}', 'there is no table "other"'),
        ('{"orders": [["+", {"nothing": 1}]]}', 'there is no column "nothing"'),
        ('{"orders": [["?", {"id": 1}]]}', "?"),
        ('{"orders": [["+", {"id": "x"}]]}', "column \"id\": 'x' is no bigint"),
        ('{"orders": [["+", {"id": true}]]}', "True is no bigint"),
        ('{"orders": [["+", {"id": 9223372036854775808}]]}', "is no bigint"),
        ('{"orders": [["+", {"amount": 1.5}]]}', "1.5 is no numeric(10,2)"),
        ('{"orders": [["+", {"tags": "a"}]]}', "is no list"),
    ],
)
async def test_bad_lines_are_named(path, line, said):
    path.write_text(f'{{"orders": []}}\n{line}\n')
    source = opened(path)
    with pytest.raises(SchemaError) as caught:
        await source.read(None, max_bytes=LARGE)
    assert "line 2" in str(caught.value)
    assert said in str(caught.value)


async def test_a_file_that_shrinks_is_refused(path):
    append_transactions(path, *[{"orders": from_pretty("id I\n+ 1")}] * 3)
    source = opened(path)
    await source.read(None, max_bytes=LARGE)
    os.truncate(path, 10)
    with pytest.raises(UserError, match="has become shorter"):
        await source.read("3", max_bytes=LARGE)
    with pytest.raises(UserError, match="has 0 lines, but 3 were read"):
        await opened(path).read("3", max_bytes=LARGE)


def test_schemas_are_options():
    struct = DataType(Kind.STRUCT, fields=(("a b", types.UUID),))
    for schema in (ORDERS, Schema((Column("k", types.DATE, nullable=False),), ("k",))):
        described = json.loads(json.dumps({"t": schema_options(schema)}))
        source = source_from_options("script-file", "s", {"path": "x", "tables": described})
        assert source.schemas == {"t": schema}
    odd = Schema((Column("k 1", types.TIME, nullable=False), Column("s", struct)), ("k 1",))
    source = source_from_options(
        "script-file", "s", {"path": "x", "tables": {"t": schema_options(odd)}}
    )
    assert source.schemas == {"t": odd}


async def test_sources_are_rebuilt_from_options(path):
    tables = {"orders": schema_options(ORDERS)}
    generated = {"seed": 5, "tables": tables, "keys": 50, "limit": 500, "nulls": 0.5}
    direct = GeneratedSource("s", 5, {"orders": ORDERS}, Mix(keys=50, nulls=0.5), limit=500)
    rebuilt = source_from_options("generated", "s", json.loads(json.dumps(generated)))
    one, two = [await reader.read("17", max_bytes=LARGE) for reader in (direct, rebuilt)]
    assert one.position == two.position == "500"
    assert_same_rows(one.changes["orders"], two.changes["orders"])
    assert one.changes["orders"].num_rows > 500

    bank = source_from_options("bank", "b", {"seed": 1, "accounts": 3, "under_way": 2, "limit": 9})
    assert isinstance(bank, BankSource)
    assert bank.total == 3000
    assert (await bank.read(None, max_bytes=LARGE)).position == "9"

    append_transactions(path, {"orders": from_pretty("id I\n+ 1")})
    file = source_from_options("script-file", "f", {"path": str(path), "tables": tables})
    assert (await file.read(None, max_bytes=LARGE)).position == "1"


async def test_a_rate_counts_from_its_start():
    clock = ManualClock()
    options = {"rate": 5, "start": "2023-12-31T23:59:50Z"}
    source = source_from_options("bank", "b", options, clock=clock)
    assert (await source.read(None, max_bytes=LARGE)).position == "50"


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("oracle", {}, 'no test source of kind "oracle"'),
        ("bank", {"colour": 1}, 'no option "colour"'),
        ("bank", {"accounts": "many"}, "do not fit"),
        ("bank", {"accounts": 0}, "at least one account"),
        ("bank", {"under_way": 0}, "can be under way"),
        ("bank", {"rate": 5}, 'needs the option "start"'),
        ("bank", {"start": "2024-01-01"}, "no time zone"),
        ("generated", {}, 'needs the option "tables"'),
        ("generated", {"tables": {"t": {}}}, 'needs "columns" and "key"'),
        ("generated", {"tables": {"t": {"columns": "id I", "key": ["id"], "x": 1}}}, '"x"'),
        ("script-file", {"tables": {}}, 'needs the option "path"'),
    ],
)
def test_bad_options_of_kinds(kind, options, said):
    with pytest.raises(ConfigError) as caught:
        source_from_options(kind, "s", options)
    assert said in str(caught.value)
