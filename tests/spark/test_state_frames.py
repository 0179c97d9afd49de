"""Reading through Spark: frames equal rows, whatever died, whatever the session's time zone."""

from datetime import UTC, date, datetime

import pytest

from headwater.config import Settings
from headwater.model.schema import Column, Schema
from headwater.model.types import (
    BIGINT,
    DATE,
    DOUBLE,
    INTEGER,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    decimal,
)
from headwater.model.vnode import VnodeBitmap
from headwater.testing.oracle import assert_same_rows
from state_kit import SCHEMAS, Dice, Rig, changes_of, plain, schema_of, small_files


def rig_on(tmp_path, spark, schema, **changes) -> Rig:
    settings: Settings = small_files(**changes)
    return Rig(tmp_path / "w", schema, settings=settings, spark=lambda: spark)


def vnode_sets() -> list[VnodeBitmap | None]:
    return [
        None, VnodeBitmap.full(), VnodeBitmap.empty(), VnodeBitmap.of([0]),
        VnodeBitmap.of(range(100, 200)), VnodeBitmap.of([5, 77, 255]), *VnodeBitmap.split(2),
    ]  # fmt: skip


def test_frames_are_rows_at_every_epoch_and_for_any_vnodes(tmp_path, spark):
    rig = rig_on(tmp_path, spark, SCHEMAS["everything"])
    dice = Dice("frames", SCHEMAS["everything"], keys=150)
    for number in range(4):
        rig.stage(dice.changes(200))
        if number == 2:
            rig.fold()
        rig.commit()
    for record in rig.records[1:]:
        assert_same_rows(rig.table.frame(record.epoch).toArrow(), rig.table.rows(record.epoch))
    first = rig.records[0].epoch
    changes = rig.table.change_rows(first, rig.committed)
    for vnodes in vnode_sets():
        rows = rig.table.rows(vnodes=vnodes)
        assert_same_rows(rig.table.frame(vnodes=vnodes).toArrow(), rows)
        if vnodes is not None:
            assert set(rows.column("_vnode").to_pylist()) <= set(vnodes)
    some = VnodeBitmap.split(3)[1]
    wanted = [row for row in changes.to_pylist() if row["_vnode"] in some]
    assert_same_rows(rig.table.changes(first, rig.committed, some).toArrow().to_pylist(), wanted)


def test_dead_rows_at_every_place_of_a_large_file(tmp_path, spark):
    schema = schema_of(["id"], id=BIGINT, v=VARCHAR)
    rig = rig_on(tmp_path, spark, schema)
    rig.put(*(("insert", {"id": n, "v": f"{n}"}) for n in range(3000)))
    order = rig.table.rows().column("id").to_pylist()
    for places in ([0], [1, 63, 64, 65, 127, 128], range(200, 400), [2935, 2936], [2999]):
        rig.put(*(("delete", {"id": order[place]}) for place in places))
        assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
    rig.put(*(("delete", {"id": n}) for n in range(3000)))
    assert rig.table.frame().count() == 0
    assert rig.table.frame().columns == ["id", "v", "_vnode"]


def test_an_empty_table_has_its_columns(tmp_path, spark):
    rig = rig_on(tmp_path, spark, SCHEMAS["int"])
    rig.stage()
    rig.commit()
    assert rig.table.frame().columns == [*SCHEMAS["int"].names, "_vnode"]
    assert rig.table.frame().count() == 0
    assert rig.table.changes(rig.committed, rig.committed).count() == 0


def test_frames_follow_new_schemas(tmp_path, spark):
    first = schema_of(["id"], id=INTEGER, s=SMALLINT, i=INTEGER, r=REAL, d=decimal(9, 2), o=VARCHAR)
    second = schema_of(["id"], id=BIGINT, s=BIGINT, i=BIGINT, r=DOUBLE, d=decimal(30, 2))
    second = Schema((*second.columns, Column("new", VARCHAR)), ("id",))
    rig, dice = rig_on(tmp_path, spark, first), Dice("evolve", first)
    rig.stage(dice.changes(60))
    rig.commit()
    start = rig.committed
    rig.stage(dice.changes(30))
    rig.commit()
    dice.schema = second
    rig.stage(dice.changes(30), second)
    rig.commit()
    for record in rig.records:
        rows = rig.models[record.epoch][1]
        assert_same_rows(plain(rig.table.frame(record.epoch).toArrow()), rows)
    found = rig.table.changes(start, rig.committed).toArrow()
    assert_same_rows(found, rig.table.change_rows(start, rig.committed))


@pytest.mark.parametrize("name", ["with space", "p%20c#?", "[br]{a,c}*", "back\\slash"])
def test_frames_of_a_table_in_any_folder(tmp_path, spark, name):
    rig = rig_on(tmp_path / name, spark, SCHEMAS["text"])
    dice = Dice("folder", SCHEMAS["text"])
    for _ in range(3):
        rig.stage(dice.changes(40))
        rig.commit()
    assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
    start = rig.records[0].epoch
    found = rig.table.changes(start, rig.committed).toArrow()
    assert_same_rows(found, rig.table.change_rows(start, rig.committed))


TIMES = schema_of(["t", "z"], t=TIMESTAMP, z=TIMESTAMPTZ, d=DATE)
MOMENTS = [
    datetime(1, 1, 1),  # noqa: DTZ001  these are the ones without a zone
    datetime(1582, 10, 10),  # noqa: DTZ001
    datetime(1883, 11, 18, 12, 3, 58),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(2024, 3, 31, 2, 30),  # noqa: DTZ001  does not exist in Berlin
    datetime(2024, 10, 27, 2, 30),  # noqa: DTZ001  is there twice in Berlin
    datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
]


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Europe/Berlin"])
def test_times_do_not_depend_on_the_zone_of_the_session(tmp_path, spark, zone):
    rig = rig_on(tmp_path, spark, TIMES, driver_bytes=0)
    rows = [{"t": m, "z": m.replace(tzinfo=UTC), "d": date(1582, 10, 4)} for m in MOMENTS]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rig.stage(changes_of([("insert", row) for row in rows], TIMES))
        rig.commit()
        rig.stage(changes_of([("delete", row) for row in rows[::2]], TIMES))
        rig.commit()
        rig.check(every=True)
        assert len(rig.model) == 3
        assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
        start = rig.records[0].epoch
        found = rig.table.changes(start, rig.committed).toArrow()
        assert_same_rows(found, rig.table.change_rows(start, rig.committed))
        found = rig.table.changes(rig.spec.created, start).toArrow()
        assert_same_rows(found, rig.table.change_rows(rig.spec.created, start))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
