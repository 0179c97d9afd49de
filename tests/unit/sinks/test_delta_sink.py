"""A sink into Delta: exact values for other people's readers, foreign writers, other tables."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_readers import READERS, read_by_delta_rs
from headwater.errors import (
    ConfigError,
    Fenced,
    RelationError,
    SchemaError,
    SinkUnavailable,
    StagedRowsGone,
    UserError,
)
from headwater.model.schema import Column
from headwater.model.types import BIGINT, DOUBLE, INTEGER, VARCHAR
from headwater.sinks.delta.sink import delta_sink
from headwater.sinks.sink import SinkKind, SinkSpec
from headwater.testing.oracle import assert_same_rows
from lake_sinks import EVERYTHING, ODD_ROWS, deletes, deliver, delivery, everything, sets, table_of

APPEND, UPSERT = SinkKind.APPEND_ONLY, SinkKind.UPSERT
PAIRS = (Column("id", BIGINT), Column("name", VARCHAR))


def pairs(tmp_path, kind=APPEND, columns=PAIRS, key=("id",), **options):
    return SinkSpec(
        name="pairs",
        ident="pairs_7",
        columns=columns,
        key=key,
        kind=kind,
        options={"location": str(tmp_path / "t"), **options},
    )


def made(spec):
    sink = delta_sink(spec)
    sink.check()
    sink.begin(1)
    return sink


def live_files(path):
    return {action["path"] for action in pa.table(DeltaTable(path).get_add_actions()).to_pylist()}


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
@pytest.mark.parametrize("reader", READERS)
def test_values_are_exact_for_every_reader(tmp_path, kind, reader):
    path = str(tmp_path / "t")
    spec = everything(kind, location=path)
    rows = sets(ODD_ROWS)
    deliver(made(spec), delivery(spec.ident, 5), rows[:4], rows[4:], schema=spec.arrow)
    assert_same_rows(READERS[reader](path), table_of(ODD_ROWS))


def test_upserts_and_deletes_are_one_version_each(tmp_path):
    path, spec = str(tmp_path / "t"), everything(UPSERT, location=str(tmp_path / "t"))
    sink = made(spec)
    before = DeltaTable(path).version()
    deliver(sink, delivery(spec.ident, 5), sets(ODD_ROWS), schema=spec.arrow)
    changed = [{**row, "int": 7} for row in ODD_ROWS[2:5]]
    deliver(
        sink,
        delivery(spec.ident, 6),
        deletes([{"id": 1}, {"id": 999}]) + sets(changed[:1]),
        sets(changed[1:]),
        schema=spec.arrow,
    )
    for reader in READERS.values():
        assert_same_rows(reader(path), table_of([ODD_ROWS[1], *changed, *ODD_ROWS[5:]]))
    assert DeltaTable(path).version() == before + 2
    deliver(sink, delivery(spec.ident, 7), deletes([{"id": 999}]), schema=spec.arrow)
    deliver(sink, delivery(spec.ident, 8), schema=spec.arrow)
    assert DeltaTable(path).version() == before + 4, "also a delivery without effect is a version"
    assert sink.begin(1) == 8


@pytest.mark.parametrize("key", [("a", "b"), ("b",)])
def test_keys_of_nulls_zeros_and_nan(tmp_path, key):
    columns = (Column("a", VARCHAR), Column("b", DOUBLE), Column("v", INTEGER))
    spec = pairs(tmp_path, UPSERT, columns, key)
    sink, nan = made(spec), float("nan")
    first = [(None, None), (None, 0.0), (None, nan), (None, 1.0)]
    rows = [{"a": a, "b": b, "v": 1} for a, b in first]
    deliver(sink, delivery(spec.ident, 5), sets(rows), schema=spec.arrow)
    changed = [{"a": None, "b": None, "v": 2}, {"a": None, "b": -0.0, "v": 2}]
    gone = [{"a": None, "b": nan, "v": None}]
    deliver(sink, delivery(spec.ident, 6), deletes(gone) + sets(changed), schema=spec.arrow)
    assert_same_rows(read_by_delta_rs(str(tmp_path / "t")), [*changed, rows[3]])


def test_both_zeros_are_one_key_also_where_no_key_is_null(tmp_path):
    spec = pairs(tmp_path, UPSERT, (Column("b", DOUBLE), Column("v", INTEGER)), ("b",))
    sink = made(spec)
    deliver(sink, delivery(spec.ident, 5), sets([{"b": 0.0, "v": 1}]), schema=spec.arrow)
    deliver(sink, delivery(spec.ident, 6), sets([{"b": -0.0, "v": 2}]), schema=spec.arrow)
    assert_same_rows(read_by_delta_rs(str(tmp_path / "t")), [{"b": -0.0, "v": 2}])


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_a_zombie_that_has_looked_before_is_fenced(tmp_path, kind, monkeypatch):
    spec = pairs(tmp_path, kind)
    old, owed = made(spec), delivery(spec.ident, 5)
    batch = pa.RecordBatch.from_pylist(sets([{"id": 1, "name": "a"}]), schema=spec.arrow)
    receipt, load = old.prepare(owed, 0, [batch]), old._table

    def load_and_be_replaced():
        table = load()
        delta_sink(spec).begin(2)
        return table

    monkeypatch.setattr(old, "_table", load_and_be_replaced)
    with pytest.raises(Fenced):
        old.commit(owed, [receipt])
    assert read_by_delta_rs(str(tmp_path / "t")).num_rows == 0


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_another_writer_comes_between(tmp_path, kind, monkeypatch):
    path, spec = str(tmp_path / "t"), pairs(tmp_path, kind)
    sink = made(spec)
    foreign = iter(range(100, 103))

    def write_foreign():
        if (number := next(foreign, None)) is not None:
            rows = table_of([{"id": number, "name": "theirs"}], PAIRS)
            write_deltalake(path, rows, mode="append")

    # Once between prepare and commit, and twice after the commit has looked at the table.
    batch = pa.RecordBatch.from_pylist(sets([{"id": 1, "name": "ours"}]), schema=spec.arrow)
    receipt = sink.prepare(delivery(spec.ident, 5), 0, [batch])
    write_foreign()
    load = sink._table

    def load_and_be_overtaken():
        table = load()
        write_foreign()
        return table

    monkeypatch.setattr(sink, "_table", load_and_be_overtaken)
    sink.commit(delivery(spec.ident, 5), [receipt])
    expected = [{"id": 1, "name": "ours"}] + [{"id": n, "name": "theirs"} for n in range(100, 103)]
    assert_same_rows(read_by_delta_rs(path), expected)
    assert sink.begin(1) == 5


def test_a_table_that_others_never_leave_alone(tmp_path, monkeypatch):
    spec = pairs(tmp_path, commit_retry_num="1")
    sink = made(spec)
    load = sink._table

    def load_and_be_overtaken():
        table = load()
        write_deltalake(str(tmp_path / "t"), table_of([{"id": 9}], PAIRS), mode="append")
        return table

    monkeypatch.setattr(sink, "_table", load_and_be_overtaken)
    with pytest.raises(SinkUnavailable, match="all the time"):
        sink.commit(delivery(spec.ident, 5), [])
    monkeypatch.undo()
    assert sink.begin(1) == 0


def test_nothing_is_left_of_attempts(tmp_path):
    path, spec = str(tmp_path / "t"), pairs(tmp_path)
    sink = made(spec)
    rows = sets([{"id": 1, "name": "a"}])
    once = delivery(spec.ident, 5)
    sink.prepare(once, 0, [pa.RecordBatch.from_pylist(rows, schema=spec.arrow)])
    receipts = deliver(sink, once, rows, schema=spec.arrow)
    sink.commit(once, receipts)
    deliver(sink, once, rows, rows, schema=spec.arrow)
    stored = {str(p.relative_to(path)) for p in (tmp_path / "t" / "data").rglob("*.parquet")}
    assert stored == live_files(path)
    assert len(stored) == 1
    assert_same_rows(read_by_delta_rs(path), [{"id": 1, "name": "a"}])
    lost = delivery(spec.ident, 6)
    sink.prepare(lost, 0, [pa.RecordBatch.from_pylist(rows, schema=spec.arrow)])
    sink.abort(lost, [])
    assert not (tmp_path / "t" / "data" / lost.commit_id).exists()


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_a_prepared_file_that_is_gone_is_never_named(tmp_path, kind):
    path, spec = str(tmp_path / "t"), pairs(tmp_path, kind)
    sink, owed = made(spec), delivery(spec.ident, 5)
    batch = pa.RecordBatch.from_pylist(sets([{"id": 1, "name": "a"}]), schema=spec.arrow)
    receipt = sink.prepare(owed, 0, [batch])
    (tmp_path / "t" / json.loads(receipt)["path"]).unlink()
    with pytest.raises(StagedRowsGone, match="gone"):
        sink.commit(owed, [receipt])
    assert read_by_delta_rs(path).num_rows == 0
    deliver(sink, owed, sets([{"id": 1, "name": "a"}]), schema=spec.arrow)
    assert_same_rows(read_by_delta_rs(path), [{"id": 1, "name": "a"}])


@pytest.mark.parametrize("kind", [APPEND, UPSERT])
def test_a_partitioned_table_with_a_rule(tmp_path, kind):
    path, spec = str(tmp_path / "t"), pairs(tmp_path, kind)
    schema = table_of([], PAIRS).schema
    table = DeltaTable.create(path, schema, partition_by=["name"])
    table.alter.add_constraint({"small": "id < 100"})
    sink = made(spec)
    good = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
    deliver(sink, delivery(spec.ident, 5), sets(good), schema=spec.arrow)
    for reader in READERS.values():
        assert_same_rows(reader(path), good)
    with pytest.raises(UserError, match="refuses"):
        deliver(sink, delivery(spec.ident, 6), sets([{"id": 100}]), schema=spec.arrow)
    DeltaTable(path).alter.drop_constraint("small")
    deliver(sink, delivery(spec.ident, 6), sets([{"id": 100}]), schema=spec.arrow)
    assert_same_rows(read_by_delta_rs(path), [*good, {"id": 100, "name": None}])
    assert not list((tmp_path / "t").rglob("*pairs_7_6/*.parquet"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([("id", pa.int64())], '"name"'),
        ([("id", pa.int32()), ("name", pa.string())], '"id"'),
        ([("id", pa.int64()), ("name", pa.int64())], '"name"'),
        ([("id", pa.int64()), ("name", pa.string()), ("more", pa.int8(), False)], '"more"'),
    ],
)
def test_a_table_that_does_not_fit_names_the_column(tmp_path, fields, named):
    DeltaTable.create(str(tmp_path / "t"), pa.schema([pa.field(*field) for field in fields]))
    with pytest.raises(SchemaError, match=named):
        delta_sink(pairs(tmp_path)).check()


def test_a_column_that_changes_under_way_stalls_and_loses_nothing(tmp_path):
    path, spec = str(tmp_path / "t"), pairs(tmp_path)
    sink = made(spec)
    other = table_of([], (Column("id", BIGINT), Column("name", INTEGER)))
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    rows = sets([{"id": 1, "name": "a"}])
    with pytest.raises(SchemaError, match='"name"'):
        deliver(sink, delivery(spec.ident, 5), rows, schema=spec.arrow)
    write_deltalake(path, table_of([], PAIRS), mode="overwrite", schema_mode="overwrite")
    deliver(sink, delivery(spec.ident, 5), rows, schema=spec.arrow)
    assert_same_rows(read_by_delta_rs(path), [{"id": 1, "name": "a"}])


def test_bad_options(tmp_path):
    with pytest.raises(RelationError, match="does not exist"):
        delta_sink(pairs(tmp_path, create_table_if_not_exists="false")).check()
    with pytest.raises(ConfigError, match="retract"):
        delta_sink(pairs(tmp_path, SinkKind.RETRACT))
    with pytest.raises(ConfigError, match="key"):
        delta_sink(pairs(tmp_path, UPSERT, key=()))
    with pytest.raises(ConfigError, match="no option") as caught:
        delta_sink(pairs(tmp_path, **{"s3.secret.kex": "hidden"}))
    assert "s3.secret.key" in caught.value.hint
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SinkUnavailable):
        delta_sink(pairs(blocked)).check()


def test_every_column_of_the_spec_is_checked():
    assert len({column.type.kind for column in EVERYTHING}) >= 17
