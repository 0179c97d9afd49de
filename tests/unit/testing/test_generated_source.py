import itertools
import math
from datetime import timedelta

import pyarrow as pa
import pytest

from headwater.errors import ConfigError, SchemaError
from headwater.model import types
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, TIMESTAMPTZ, VARCHAR, DataType
from headwater.model.types import Kind as K
from headwater.testing.bank_source import BankSource
from headwater.testing.clock import ManualClock
from headwater.testing.generated_source import GeneratedSource, Mix
from headwater.testing.oracle import apply_changes, assert_same_rows
from headwater.testing.source_contract import ContractBroken
from headwater.testing.value_pools import distinct_keys, pool_of

PLAIN = Schema(
    (
        Column("id", BIGINT, nullable=False),
        Column("name", VARCHAR),
        Column("amount", types.decimal(10, 2)),
        Column("at", TIMESTAMPTZ),
    ),
    ("id",),
)
WIDE = Schema(
    (
        Column("x", DOUBLE),
        Column("a", VARCHAR, nullable=False),
        Column("b", DOUBLE, nullable=False),
        Column("l", types.list_of(INTEGER)),
        Column("always", INTEGER, nullable=False),
    ),
    ("a", "b"),
)
TABLES = {"plain": PLAIN, "wide": WIDE}
MIX = Mix(keys=60, block=100)


def source(seed=1, mix=MIX, **options):
    return GeneratedSource("g", seed, TABLES, mix, **options)


async def transactions(reader, begin, end):
    """One batch per transaction."""
    batches = []
    for after in range(begin, end):
        batches.append(await reader.read(str(after), max_bytes=1))
        assert batches[-1].position == str(after + 1)
    return batches


async def drained(reader, max_bytes=20_000):
    batches, position = [], None
    while True:
        batch = await reader.read(position, max_bytes=max_bytes)
        batches.append(batch)
        position = batch.position
        if not batch.more:
            return batches


def joined(batches):
    tables = {}
    for batch in batches:
        for table, chunk in batch.changes.items():
            tables.setdefault(table, []).append(chunk)
    return {table: pa.concat_tables(chunks) for table, chunks in tables.items()}


def text(tables):
    return {name: str(table.to_pylist()) for name, table in sorted(tables.items())}


async def test_however_it_is_read_it_is_the_same_log():
    single = joined(await transactions(source(), 0, 350))
    batched = joined(await drained(source(limit=350)))
    whole = joined([await source(limit=350).read(None, max_bytes=1 << 30)])
    assert text(single) == text(batched) == text(whole)
    backwards = source()
    await backwards.read("0", max_bytes=1 << 22)
    for after in (700, 20, 345, 101, 99):
        one = await backwards.read(str(after), max_bytes=1)
        fresh = await source().read(str(after), max_bytes=1)
        assert text(one.changes) == text(fresh.changes)


async def test_seeds_differ():
    one, two = [joined(await drained(source(seed, limit=100))) for seed in (1, 2)]
    assert text(one) != text(two)


async def test_changes_are_true_to_what_is_there():
    seen = set()
    rows = {table: {} for table in TABLES}
    several, repeated = 0, 0
    for batch in await transactions(source(), 0, 1500):
        several += len(batch.changes) > 1
        for table, chunk in batch.changes.items():
            schema = TABLES[table]
            assert chunk.schema.names == [*schema.names, "_change_type"]
            assert chunk.drop(["_change_type"]).schema == schema.arrow
            keys = chunk.select(schema.key).to_pylist()
            repeated += len({str(key) for key in keys}) < len(keys)
            for number in range(chunk.num_rows):
                one = chunk.slice(number, 1)
                change = one["_change_type"][0].as_py()
                before = len(rows[table])
                apply_changes(rows[table], one, schema.key)
                grown = len(rows[table]) - before
                assert grown == {"insert": 1, "update_postimage": 0, "delete": -1}[change]
                seen.add(change)
                if change != "delete" and table == "wide":
                    assert one["always"][0].is_valid
    assert seen == {"insert", "update_postimage", "delete"}
    assert several > 50
    assert repeated > 20
    assert_oracle(source(), "1500", rows)


def assert_oracle(reader, position, rows):
    oracle = reader.oracle_at(position)
    assert oracle.keys() == rows.keys()
    for table, expected in oracle.items():
        assert_same_rows(rows[table], expected, key=TABLES[table].key)
        assert rows[table].keys() == expected.keys()
        assert len(expected) > 10


async def test_the_oracle_follows_any_position():
    reader = source(limit=1000)
    rows = {table: {} for table in TABLES}
    for batch in await drained(reader, 30_000):
        for table, chunk in batch.changes.items():
            apply_changes(rows[table], chunk, TABLES[table].key)
        assert_oracle(reader, batch.position, rows) if int(batch.position) > 150 else None
    assert reader.oracle_at("0") == {"plain": {}, "wide": {}}
    assert_oracle(reader, "1000", rows)


async def test_nulls_and_extremes_come():
    wide = joined(await drained(source(limit=1500)))["wide"]
    values = wide["x"].to_pylist()
    assert None in values
    assert any(v is not None and math.isnan(v) for v in values)
    assert any(v is not None and math.isinf(v) for v in values)
    assert "" in wide["a"].to_pylist()
    calm = joined(await drained(source(mix=Mix(keys=60, nulls=0, extremes=0), limit=500)))["wide"]
    kept = calm.filter(pa.compute.not_equal(calm["_change_type"], "delete"))
    assert kept["x"].null_count == 0
    assert all(math.isfinite(v) for v in kept["x"].to_pylist())


async def test_keys_change_inside_a_transaction():
    moved = 0
    for batch in await transactions(source(), 0, 600):
        for chunk in batch.changes.values():
            words = chunk["_change_type"].to_pylist()
            moved += any(p == ("delete", "insert") for p in itertools.pairwise(words))
    assert moved > 5


async def test_the_rate_is_that_of_the_clock():
    clock = ManualClock()
    reader = source(rate=10, clock=clock, limit=45)
    assert (await reader.read(None, max_bytes=1 << 20)).position == "0"
    clock.advance(seconds=2.05)
    batch = await reader.read("0", max_bytes=1 << 20)
    assert (batch.position, batch.more) == ("20", False)
    clock.advance(hours=-1)
    back = await reader.read("20", max_bytes=1 << 20)
    assert (back.position, dict(back.changes), back.more) == ("20", {}, False)
    clock.advance(hours=2)
    assert (await reader.read("20", max_bytes=1 << 20)).position == "45"
    rebuilt = source(rate=10, clock=clock, limit=45, start=clock() - timedelta(seconds=3))
    assert (await rebuilt.read("20", max_bytes=1 << 20)).position == "30"


async def test_readers_are_checked():
    reader = source()
    batch = await reader.read(None, max_bytes=1000)
    await reader.acknowledge(batch.position)
    with pytest.raises(ContractBroken):
        await reader.read(None, max_bytes=1000)
    with pytest.raises(ContractBroken):
        await reader.acknowledge("1000000")


def test_a_far_position_is_near():
    reader = source(mix=Mix())
    far = reader._log.block(1000)
    near = reader._log.block(500)
    assert far.bytes > 0
    assert near.bytes > 0


EVERY = [
    *(DataType(kind) for kind in K if kind not in (K.DECIMAL, K.LIST, K.STRUCT)),
    types.decimal(38, 10),
    types.decimal(1, 0),
    types.list_of(types.list_of(VARCHAR)),
    DataType(K.STRUCT, fields=(("a", BIGINT), ("b", types.list_of(DOUBLE)))),
]


@pytest.mark.parametrize("type_", EVERY, ids=lambda t: t.postgres)
async def test_every_type_has_values_and_keys(type_):
    pool = pool_of(type_)
    assert pool.values.type == type_.arrow
    assert pool.values.null_count == 0
    assert len(pool.values.to_pylist()) > 2 * pool.extremes
    if not type_.can_be_key:
        return
    count = 2 if type_ == BOOLEAN else 9
    for extreme in (True, False):
        schema = Schema((Column("k", type_), Column("n", INTEGER)), ("k", "n"))
        keys = distinct_keys(schema, count * 3, extreme=extreme)
        assert len({str(row) for row in keys.to_pylist()}) == count * 3
    reader = GeneratedSource("g", 1, {"t": Schema((Column("k", type_),), ("k",))}, Mix(keys=count))
    batch = await reader.read(None, max_bytes=10_000)
    rows = {}
    apply_changes(rows, batch.changes["t"], ["k"])
    assert_same_rows(rows, reader.oracle_at(batch.position)["t"])


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match='"nulls" is a share'):
        Mix(nulls=2)
    with pytest.raises(ConfigError, match="at least 1"):
        Mix(keys=0)
    with pytest.raises(ConfigError, match="at least one table"):
        GeneratedSource("g", 1, {})
    with pytest.raises(ConfigError, match="seed"):
        GeneratedSource("g", -1, TABLES)
    narrow = Schema((Column("b", BOOLEAN),), ("b",))
    with pytest.raises(SchemaError, match="cannot have 1000 different values"):
        GeneratedSource("g", 1, {"t": narrow})


def bank_total(tables):
    return sum(row["balance"] for row in tables["accounts"].values()) + sum(
        row["amount"] for row in tables["transfers"].values()
    )


async def test_the_bank_keeps_its_money_at_every_transaction():
    bank = BankSource("b", 4, accounts=9, opening=50, under_way=3)
    rows = {"accounts": {}, "transfers": {}}
    for batch in await transactions(bank, 0, 1200):
        for table, chunk in batch.changes.items():
            apply_changes(rows[table], chunk, ["id"])
        assert bank_total(rows) == bank.total == 450
    assert len(rows["transfers"]) == 3
    assert len({row["balance"] for row in rows["accounts"].values()}) > 3
    for table, expected in bank.oracle_at("1200").items():
        assert_same_rows(rows[table], expected)


async def test_half_a_bank_transaction_is_seen():
    bank = BankSource("b", 4)
    wrong = 0
    for position in range(10, 60):
        now, before = bank.oracle_at(str(position)), bank.oracle_at(str(position - 1))
        wrong += bank_total({**now, "accounts": before["accounts"]}) != bank.total
    assert wrong > 40


async def test_the_bank_is_the_same_from_anywhere():
    whole = joined([await BankSource("b", 4, limit=2500).read(None, max_bytes=1 << 30)])
    parts = joined(await transactions(BankSource("b", 4), 0, 2500))
    assert text(whole) == text(parts)
    late = await BankSource("b", 4).read("2400", max_bytes=1)
    assert text(late.changes) == text(
        (await BankSource("b", 4, limit=2401).read("2400", max_bytes=1 << 30)).changes
    )
