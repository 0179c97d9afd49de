"""The large path: staging and folding as Spark tasks do exactly what the driver does."""

import pyarrow as pa
import pytest

from headwater.errors import DamagedState, HeadwaterError, SchemaError
from headwater.model.reserved import CHANGE_TYPE, SEQ, VNODE
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    REAL,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    decimal,
)
from headwater.state import stage, table
from headwater.state.fold import fold_here, fold_on_spark
from headwater.state.key_hash import vnode_sql, vnodes
from headwater.state.parquet_file import data_schema
from headwater.state.row_cache import read_rows
from headwater.state.stage import chunks_by_key
from headwater.state.stage_on_spark import with_vnode
from headwater.testing.oracle import assert_same_rows
from headwater.testing.value_pools import pool_of
from state_kit import SCHEMAS, Dice, Rig, changes_of, plain, schema_of, small_files

KEYS = {
    "float": schema_of(["k", "r"], k=DOUBLE, r=REAL, v=VARCHAR),
    "timestamp": schema_of(["t"], t=TIMESTAMP, z=TIMESTAMPTZ, v=VARCHAR),
    "decimal": schema_of(["d", "e"], d=decimal(38, 10), e=decimal(6, 6), v=INTEGER),
    "odd names": schema_of(
        ["a`b", "dot.ted"], **{"a`b": BIGINT, "dot.ted": VARCHAR, "file_name": VARCHAR,
                               "row_index": BIGINT, "_metadata": VARCHAR, "x y": BOOLEAN}
    ),
    "composite": SCHEMAS["composite"],
    "everything": SCHEMAS["everything"],
}  # fmt: skip


def on_spark(tmp_path, spark, schema, **changes) -> Rig:
    """A table that does everything as Spark tasks."""
    settings = small_files(driver_bytes=0, **changes)
    return Rig(tmp_path / "spark", schema, settings=settings, spark=lambda: spark, parallelism=3)


@pytest.mark.parametrize("name", KEYS)
def test_the_large_path_does_what_the_small_one_does(tmp_path, spark, name):
    schema = KEYS[name]
    large, small = on_spark(tmp_path, spark, schema), Rig(tmp_path / "driver", schema)
    dice = Dice("paths", schema, keys=60)
    for _ in range(3):
        changes = dice.changes(60)
        for rig in (large, small):
            rig.stage(changes)
            rig.commit()
    large.check(every=True)
    for before, after in zip(large.records, large.records[1:], strict=False):
        ours = large.table.change_rows(before.epoch, after.epoch)
        assert_same_rows(ours, small.table.change_rows(before.epoch, after.epoch))
    assert_same_rows(large.table.rows(), small.table.rows())
    for live in large.table.view().files:
        assert live.file.first_vnode <= live.file.last_vnode
    assert_same_rows(plain(large.table.frame().toArrow()), large.model)
    frame = large.table.changes(large.records[0].epoch, large.committed)
    assert_same_rows(
        frame.toArrow(), large.table.change_rows(large.records[0].epoch, large.committed)
    )
    large.check_folder()


@pytest.mark.parametrize("name", KEYS)
def test_fresh_rows_are_written_where_they_are_and_change_like_others(tmp_path, spark, name):
    schema = KEYS[name]
    large, small = on_spark(tmp_path, spark, schema), Rig(tmp_path / "driver", schema)
    dice = Dice("fresh", schema, keys=60)
    small.stage(dice.changes(80))
    small.commit()
    rows = small.table.rows().select(list(schema.names))
    inserts = rows.append_column(CHANGE_TYPE, pa.array(["insert"] * rows.num_rows, pa.string()))
    frame = spark.createDataFrame(inserts, f"{schema.spark}, `{CHANGE_TYPE}` string")
    large.stage(inserts, fresh=frame.repartition(3))
    large.commit()
    assert_same_rows(large.table.rows().select(list(schema.names)), rows)
    for _ in range(2):
        changes = dice.changes(60)
        for rig in (large, small):
            rig.stage(changes)
            rig.commit()
    large.check(every=True)


def test_changes_of_one_key_are_ordered_by_their_number(tmp_path, spark):
    schema = schema_of(["id"], id=BIGINT, v=INTEGER)
    rig = on_spark(tmp_path, spark, schema)
    order = Dice("order", schema).random
    numbered = [(n, 7 if n % 3 else n % 50, n) for n in range(300)]
    order.shuffle(numbered)
    frame = spark.createDataFrame(
        [(key, value, "delete" if value % 11 == 5 else "update_postimage", n)
         for n, key, value in numbered],
        f"id bigint, v int, {CHANGE_TYPE} string, {SEQ} bigint",
    ).repartition(5)  # fmt: skip
    rig.table.stage(rig.last, frame)
    rig.table.confirm(rig.last)
    expected = {}
    for _, key, value in sorted(numbered):
        expected[key] = value
    rows = [{"id": k, "v": v} for k, v in expected.items() if v % 11 != 5]
    assert_same_rows(plain(rig.table.rows()), rows)


def test_a_batch_larger_than_a_chunk_is_staged_chunk_by_chunk(tmp_path, spark, monkeypatch):
    schema = schema_of(["id"], id=BIGINT, v=VARCHAR)
    monkeypatch.setattr(stage, "CHUNK_BYTES", 3000)
    dice = Dice("chunks", schema, keys=300)
    rig = Rig(tmp_path / "w", schema, settings=small_files(target_file_bytes=2500))
    rig.stage(dice.changes(500))
    rig.commit()
    changes = dice.changes(3000)
    numbered = changes.append_column(SEQ, pa.array(range(changes.num_rows)))
    numbered = numbered.append_column(VNODE, pa.array(vnodes(changes, schema).astype("int16")))
    ordered = numbered.sort_by([(VNODE, "ascending"), ("id", "ascending"), (SEQ, "ascending")])
    chunks = list(chunks_by_key(ordered.to_batches(max_chunksize=40), schema))
    assert len(chunks) > 5
    keys = [set(chunk.column("id").to_pylist()) for chunk in chunks]
    assert sum(map(len, keys)) == len(set.union(*keys))
    assert pa.concat_tables(chunks).equals(ordered)

    def write(plan, _):
        with stage.PartWriter(plan) as writer:
            for chunk in chunks:
                writer.add(chunk)
            part = writer.finish()
        assert len(part.added) > 1
        assert stage.part_from_rows(pa.Table.from_batches([stage.part_rows(part)])) == part
        return part

    monkeypatch.setattr(rig.table, "_write", write)
    rig.stage(changes)
    rig.commit()
    rig.check(every=True)


def test_a_misfit_is_refused_like_on_the_driver(tmp_path, spark):
    schema = SCHEMAS["int"]
    rig = on_spark(tmp_path, spark, schema)
    good = changes_of([("insert", {"id": 1, "name": "a"})], schema)
    for bad, match in (
        (good.drop_columns(["name"]), '"name" is missing'),
        (good.drop_columns([CHANGE_TYPE]), "need a column _change_type"),
        (good.set_column(0, "id", pa.array(["x"])), '"id" does not fit type bigint'),
        (good.set_column(4, CHANGE_TYPE, pa.array(["upsert"])), "unknown change type"),
    ):
        with pytest.raises(SchemaError, match=match):
            rig.table.stage(rig.last, bad)
    rig.stage(good.set_column(0, "id", pa.array([1], pa.int16())))
    rig.commit()
    rig.check(every=True)


def test_an_error_inside_a_task_keeps_its_kind(tmp_path, spark):
    schema = schema_of(["id"], id=BIGINT, v=INTEGER)
    rig = on_spark(tmp_path, spark, schema)
    frame = spark.createDataFrame([(1, 2, "upsert")], f"id bigint, v int, {CHANGE_TYPE} string")
    with pytest.raises(HeadwaterError, match="unknown change type"):
        rig.table.stage(rig.last, frame)


TYPES = [
    BOOLEAN, BIGINT, INTEGER, DATE, TIMESTAMP, TIMESTAMPTZ, VARCHAR, decimal(38, 18), decimal(9, 0),
    decimal(38, 38), *(SCHEMAS["everything"][n].type for n in ("s", "n", "y", "ti", "u")),
]  # fmt: skip


def test_spark_computes_the_same_vnodes(spark):
    schema = schema_of(
        [f"c{n}" for n in range(len(TYPES))], **{f"c{n}": t for n, t in enumerate(TYPES)}
    )
    columns = []
    for number, type_ in enumerate(TYPES):
        values = pool_of(type_).values
        picked = pa.array([(n * (number + 3) + n // 7) % len(values) for n in range(1500)])
        column = values.take(picked)
        holes = pa.array([(n + number) % 11 == 0 for n in range(1500)])
        columns.append(pa.compute.if_else(holes, pa.scalar(None, type_.arrow), column))
    keys = pa.table(columns, names=list(schema.names))
    frame = spark.createDataFrame(keys, schema.spark)
    expressions = []
    for name in schema.names:
        one = schema_of([name], **{name: schema[name].type})
        expressions.append(f"{vnode_sql(one)} as `v_{name}`")
    found = frame.selectExpr(*expressions, f"{vnode_sql(schema)} as v_all").toArrow()
    for name in schema.names:
        one = schema_of([name], **{name: schema[name].type})
        assert found.column(f"v_{name}").to_pylist() == vnodes(keys, one).tolist(), name
    assert found.column("v_all").to_pylist() == vnodes(keys, schema).tolist()


def test_float_keys_get_their_vnode_from_the_kernels(spark):
    schema = schema_of(["k"], k=DOUBLE, v=VARCHAR)
    assert vnode_sql(schema) is None
    rows = pa.table({"k": pool_of(DOUBLE).values, "v": pool_of(VARCHAR).values})
    found = with_vnode(spark.createDataFrame(rows, schema.spark), schema).toArrow()
    assert found.column(VNODE).to_pylist() == vnodes(found.select(["k", "v"]), schema).tolist()


def test_folding_on_spark_is_folding_here(tmp_path, spark, monkeypatch):
    schema = SCHEMAS["everything"]
    rig = Rig(tmp_path / "w", schema, settings=small_files(target_file_bytes=3000))
    dice = Dice("fold", schema, keys=60)
    for _ in range(5):
        rig.stage(dice.changes(40))
        rig.commit()
    plan = rig.table.plan_fold()
    staging = rig.table._stage_plan(plan.view.epoch, schema, plan.view)
    here, there = fold_here(staging, plan), fold_on_spark(spark, staging, plan)
    assert len(here.outputs) == len(there.outputs) > 1
    for one, two in zip(
        here.outputs, sorted(there.outputs, key=lambda file: file.first_vnode), strict=True
    ):
        assert (one.rows, one.first_vnode, one.last_vnode) == (
            two.rows, two.first_vnode, two.last_vnode,
        )  # fmt: skip
        rows = [read_rows(rig.table.storage, f.path, data_schema(schema)) for f in (one, two)]
        assert_same_rows(*rows)
    rig.stage(dice.changes(20))
    monkeypatch.setattr(table, "fold_here", lambda *args: fold_on_spark(spark, *args))
    rig.table.fold(plan)
    rig.stage(dice.changes(20))
    assert rig.staged[-1][1].folded
    rig.commit()
    rig.check(every=True)
    rig.check_folder()


def test_a_fold_that_meets_a_missing_file_says_so(tmp_path, spark):
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    for n in range(4):
        rig.put(("insert", {"id": n}))
    plan = rig.table.plan_fold()
    path = plan.inputs[0].file.path
    rig.table.storage.delete(path)
    with pytest.raises(DamagedState, match="missing") as caught:
        fold_on_spark(
            spark, rig.table._stage_plan(plan.view.epoch, plan.view.schema, plan.view), plan
        )
    assert path in caught.value.detail


def test_what_lost_tasks_leave_behind_is_collected(tmp_path, spark):
    """Attempts that failed or came second leave files that no commit names."""
    schema = schema_of(["id"], id=BIGINT, v=INTEGER)
    rig = on_spark(tmp_path, spark, schema)
    rig.put(*(("insert", {"id": n, "v": 0}) for n in range(200)))
    changes = changes_of([("insert", {"id": n, "v": n}) for n in range(100, 300)], schema)
    epoch = rig.last + (1 << 16)
    plan = rig.table._stage_plan(epoch, schema, rig.table.view())
    before = rig.files()
    lost = rig.table._write(plan, changes)
    kinds = ["insert"] * 299 + ["upsert"]
    half = changes_of([(kind, {"id": n, "v": -1}) for n, kind in enumerate(kinds)], schema)
    frame = spark.createDataFrame(half.to_pylist(), f"id bigint, v int, {CHANGE_TYPE} string")
    with pytest.raises(SchemaError):
        rig.table.stage(epoch, frame)
    left = rig.files() - before
    assert {file.path for file in lost.added} < left
    rig.stage(changes)
    rig.commit()
    rig.check(every=True)
    rig.collect()
    rig.put(("insert", {"id": 1, "v": 9}))
    rig.put(("insert", {"id": 2, "v": 9}))
    rig.collect()
    assert not left & rig.files()
    rig.check(every=True)
    rig.check_folder()
