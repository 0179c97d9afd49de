"""A sink into Iceberg: exact values, foreign writers, other tables, what outlives snapshots."""

from dataclasses import replace

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from headwater.errors import (
    ConfigError,
    Fenced,
    NotSupported,
    RelationError,
    SchemaError,
    SinkUnavailable,
)
from headwater.model.schema import Column
from headwater.model.types import BIGINT, DOUBLE, INTEGER, VARCHAR
from headwater.sinks.iceberg.sink import iceberg_sink
from headwater.sinks.sink import SinkKind, SinkSpec
from headwater.testing.oracle import assert_same_rows
from lake_sinks import (
    ODD_ROWS,
    IcebergCase,
    deletes,
    deliver,
    delivery,
    everything,
    sets,
    table_of,
)

APPEND, UPSERT = SinkKind.APPEND_ONLY, SinkKind.UPSERT
PAIRS = (Column("id", BIGINT), Column("name", VARCHAR))


def pairs(kind=APPEND, columns=PAIRS, key=("id",)):
    return SinkSpec(name="pairs", ident="pairs_7", columns=columns, key=key, kind=kind, options={})


def made(tmp_path, spec):
    case = IcebergCase(tmp_path, spec.kind)
    sink = case.make(spec)
    sink.check()
    sink.begin(1)
    return sink, case


def rows_of(case, spec):
    return case.table(spec).scan().to_arrow()


def stored_rows(case, spec):
    """The rows in the files that the table names; pyiceberg reads null lists as empty ones."""
    files = [task.file.file_path for task in case.table(spec).scan().plan_files()]
    return pa.concat_tables(pq.read_table(file.removeprefix("file://")) for file in files)


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_values_are_exact(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    spec = everything(kind)
    sink, case = made(tmp_path, spec)
    rows = sets(ODD_ROWS)
    deliver(sink, delivery(spec.ident, 5), rows[:4], rows[4:], schema=spec.arrow)
    assert_same_rows(stored_rows(case, spec), table_of(ODD_ROWS))
    by_pyiceberg = rows_of(case, spec).drop(["lists"])
    assert_same_rows(by_pyiceberg, table_of(ODD_ROWS).drop(["lists"]))
    by_polars = polars.scan_iceberg(case.table(spec)).collect().to_arrow()
    assert_same_rows(by_polars, table_of(ODD_ROWS))


def test_upserts_and_deletes_are_one_snapshot_each(tmp_path):
    spec = everything(UPSERT)
    sink, case = made(tmp_path, spec)
    before = len(case.table(spec).snapshots())
    deliver(
        sink, delivery(spec.ident, 5), sets(ODD_ROWS[:4]), sets(ODD_ROWS[4:]), schema=spec.arrow
    )
    changed = [{**row, "int": 7} for row in ODD_ROWS[2:5]]
    deliver(
        sink,
        delivery(spec.ident, 6),
        deletes([{"id": 1}, {"id": 999}]) + sets(changed[:1]),
        sets(changed[1:]),
        schema=spec.arrow,
    )
    assert_same_rows(stored_rows(case, spec), table_of([ODD_ROWS[1], *changed, *ODD_ROWS[5:]]))
    deliver(sink, delivery(spec.ident, 7), deletes([{"id": 999}]), schema=spec.arrow)
    deliver(sink, delivery(spec.ident, 8), schema=spec.arrow)
    assert len(case.table(spec).snapshots()) == before + 4
    assert sink.begin(1) == 8
    everyone = [{"id": row["id"]} for row in ODD_ROWS]
    deliver(sink, delivery(spec.ident, 9), deletes(everyone), schema=spec.arrow)
    assert rows_of(case, spec).num_rows == 0


@pytest.mark.parametrize("key", [("a", "b"), ("b",)])
def test_keys_of_nulls_zeros_and_nan(tmp_path, key):
    columns = (Column("a", VARCHAR), Column("b", DOUBLE), Column("v", INTEGER))
    spec = pairs(UPSERT, columns, key)
    sink, case = made(tmp_path, spec)
    nan = float("nan")
    rows = [{"a": None, "b": b, "v": 1} for b in (None, 0.0, nan, 1.0)]
    deliver(sink, delivery(spec.ident, 5), sets(rows), schema=spec.arrow)
    changed = [{"a": None, "b": None, "v": 2}, {"a": None, "b": -0.0, "v": 2}]
    gone = [{"a": None, "b": nan, "v": None}]
    deliver(sink, delivery(spec.ident, 6), deletes(gone) + sets(changed), schema=spec.arrow)
    assert_same_rows(rows_of(case, spec), [*changed, rows[3]])


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_a_zombie_that_has_looked_before_is_fenced(tmp_path, kind, monkeypatch):
    spec = pairs(kind)
    old, case = made(tmp_path, spec)
    owed = delivery(spec.ident, 5)
    batch = pa.RecordBatch.from_pylist(sets([{"id": 1, "name": "a"}]), schema=spec.arrow)
    receipt, load = old.prepare(owed, 0, [batch]), old._table

    def load_and_be_replaced():
        table = load()
        case.make(spec).begin(2)
        return table

    monkeypatch.setattr(old, "_table", load_and_be_replaced)
    with pytest.raises(Fenced):
        old.commit(owed, [receipt])
    assert rows_of(case, spec).num_rows == 0


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_another_writer_comes_between(tmp_path, kind, monkeypatch):
    spec = pairs(kind)
    sink, case = made(tmp_path, spec)
    foreign = iter(range(100, 103))
    load = sink._table

    def write_foreign():
        if (number := next(foreign, None)) is not None:
            load().append(table_of([{"id": number, "name": "theirs"}], PAIRS))

    batch = pa.RecordBatch.from_pylist(sets([{"id": 1, "name": "ours"}]), schema=spec.arrow)
    receipt = sink.prepare(delivery(spec.ident, 5), 0, [batch])
    write_foreign()

    def load_and_be_overtaken():
        table = load()
        write_foreign()
        return table

    monkeypatch.setattr(sink, "_table", load_and_be_overtaken)
    sink.commit(delivery(spec.ident, 5), [receipt])
    expected = [{"id": 1, "name": "ours"}] + [{"id": n, "name": "theirs"} for n in range(100, 103)]
    assert_same_rows(rows_of(case, spec), expected)
    assert sink.begin(1) == 5


def test_only_files_that_hold_a_key_are_written_again(tmp_path):
    spec = pairs(UPSERT)
    sink, case = made(tmp_path, spec)
    blocks = [[{"id": 10 * b + n, "name": "old"} for n in range(5)] for b in range(4)]
    deliver(sink, delivery(spec.ident, 5), *(sets(b) for b in blocks), schema=spec.arrow)

    def files():
        return {task.file.file_path for task in case.table(spec).scan().plan_files()}

    before = files()
    deliver(sink, delivery(spec.ident, 6), sets([{"id": 12, "name": "new"}]), schema=spec.arrow)
    assert len(before - files()) == 1
    rows = [row if row["id"] != 12 else {"id": 12, "name": "new"} for b in blocks for row in b]
    assert_same_rows(rows_of(case, spec), rows)


def test_nothing_is_left_of_attempts(tmp_path):
    spec = pairs(UPSERT)
    sink, case = made(tmp_path, spec)
    rows, once = sets([{"id": 1, "name": "a"}]), delivery(spec.ident, 5)
    sink.prepare(once, 0, [pa.RecordBatch.from_pylist(rows, schema=spec.arrow)])
    receipts = deliver(sink, once, rows, schema=spec.arrow)
    sink.commit(once, receipts)
    deliver(sink, once, rows, schema=spec.arrow)
    table = case.table(spec)
    named = {task.file.file_path for task in table.scan().plan_files()}
    folder = tmp_path / "warehouse" / "lake" / spec.ident
    assert {f"file://{p}" for p in (folder / "data").rglob("*.parquet")} == named
    assert not [p for p in (folder / "_headwater").rglob("*") if p.is_file()]
    lost = delivery(spec.ident, 6)
    sink.prepare(lost, 0, [pa.RecordBatch.from_pylist(rows, schema=spec.arrow)])
    sink.abort(lost, [])
    assert not list(folder.rglob(f"{lost.commit_id}/*"))
    assert_same_rows(rows_of(case, spec), [{"id": 1, "name": "a"}])


def test_the_epoch_outlives_its_snapshot(tmp_path):
    spec = pairs()
    sink, case = made(tmp_path, spec)
    rows = sets([{"id": 1, "name": "a"}])
    deliver(sink, delivery(spec.ident, 5), rows, schema=spec.arrow)
    case.table(spec).append(table_of([{"id": 2, "name": "b"}], PAIRS))
    table = case.table(spec)
    old = [s.snapshot_id for s in table.snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert sink.begin(2) == 5
    deliver(sink, delivery(spec.ident, 5, term=2), rows, schema=spec.arrow)
    expected = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert_same_rows(rows_of(case, spec), expected)


def test_a_partitioned_table_is_appended_to(tmp_path):
    spec = pairs()
    case = IcebergCase(tmp_path, APPEND)
    sink = case.make(spec)
    catalog = sink._catalog
    catalog.create_namespace("lake")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "name", StringType(), required=False),
    )
    by_name = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    catalog.create_table(("lake", spec.ident), schema, partition_spec=by_name)
    sink.check()
    sink.begin(1)
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
    for _ in range(2):
        deliver(sink, delivery(spec.ident, 5), sets(rows[:2]), sets(rows[2:]), schema=spec.arrow)
    assert_same_rows(rows_of(case, spec), rows)
    with pytest.raises(NotSupported, match="partitioned"):
        case.make(pairs(UPSERT)).check()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([("id", LongType())], '"name"'),
        ([("id", IntegerType()), ("name", StringType())], '"id"'),
        ([("id", LongType()), ("name", StringType()), ("more", LongType(), True)], '"more"'),
    ],
)
def test_a_table_that_does_not_fit_names_the_column(tmp_path, fields, named):
    sink = IcebergCase(tmp_path, APPEND).make(pairs())
    sink._catalog.create_namespace("lake")
    nested = [
        NestedField(n, name, kind, required=bool(more))
        for n, (name, kind, *more) in enumerate(fields, 1)
    ]
    sink._catalog.create_table(("lake", "pairs_7"), Schema(*nested))
    with pytest.raises(SchemaError, match=named):
        sink.check()


def test_a_null_that_the_table_does_not_take_names_the_column(tmp_path):
    spec = pairs()
    sink = IcebergCase(tmp_path, APPEND).make(spec)
    sink._catalog.create_namespace("lake")
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType())]
    sink._catalog.create_table(("lake", "pairs_7"), Schema(*fields))
    sink.check()
    sink.begin(1)
    with pytest.raises(SchemaError, match="does not fit") as caught:
        deliver(sink, delivery(spec.ident, 5), sets([{"id": None}]), schema=spec.arrow)
    assert "id" in caught.value.detail
    deliver(sink, delivery(spec.ident, 5), sets([{"id": 1, "name": None}]), schema=spec.arrow)
    assert_same_rows(sink._table().scan().to_arrow(), [{"id": 1, "name": None}])


def test_bad_options(tmp_path):
    good = IcebergCase(tmp_path, APPEND).options | {"table.name": "t"}
    spec = pairs()

    def of(**changed):
        return iceberg_sink(replace(spec, options={**good, **changed}))

    with pytest.raises(RelationError, match="does not exist"):
        of(create_table_if_not_exists="false").check()
    with pytest.raises(ConfigError, match=r"catalog\.type"):
        of(**{"catalog.type": "storage"})
    with pytest.raises(ConfigError, match=r"catalog\.uri"):
        of(**{"catalog.uri": ""})
    with pytest.raises(SinkUnavailable) as caught:
        iceberg_sink(
            replace(
                spec,
                options={
                    "catalog.type": "rest",
                    "catalog.uri": "http://127.0.0.1:9/",
                    "catalog.token": "not-to-be-seen",
                    "database.name": "d",
                    "table.name": "t",
                },
            )
        ).check()
    assert "not-to-be-seen" not in str(caught.value)
    with pytest.raises(ConfigError, match="retract"):
        iceberg_sink(replace(spec, kind=SinkKind.RETRACT, options=good))
