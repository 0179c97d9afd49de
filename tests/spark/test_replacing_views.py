"""Views that are replaced or swapped while their tables change and others read them.

At every epoch, before the swap, at it and after it, a view is the query that it then has, and each
view that reads it is its own query over it, both ways.
"""

import asyncio

import pytest

import headwater
from creating_kit import begin, replaced, tables, written
from engine_kit import CALM, FREQUENT, heard, lost_files
from headwater.catalog.relation import TableKind
from headwater.errors import HeadwaterError, RelationError, UserError
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine
from headwater.testing.oracle import assert_same_rows
from headwater.views import difference
from views_engine_kit import check, keep, rows_at, write
from views_kit import quick

__all__ = ["quick"]

SMALL = {"backfill_slice_bytes": 1024, "barrier_interval_ms": 30, "retention_s": 3600}

PAIRS = {
    "lines": ("select id, g, v from t where v % 3 <> 0", "select id, g, v + 1 as v from t"),
    "copies": ("select g, v % 5 as r from t", "select g, v % 3 as r from t where v > 20"),
    "counts": (
        "select n, count(*) c from (select g, count(*) n from t group by g) x group by n",
        "select n, count(*) c from (select g, v, count(*) n from t group by g, v) x group by n",
    ),
}
READERS = {
    "lines": {
        "sums": "select g, sum(v) s, count(*) n from lines group by g",
        "with_names": "select id, name, v from lines join names on lines.g = names.g",
        "above": "select n, count(*) c from sums group by n",
    },
    "copies": {"kinds": "select r, count(*) n from copies group by r"},
    "counts": {"most": "select max(n) m, sum(c) c from counts"},
}


def engine_at(folder, spark, **settings):
    return Engine(folder, spark=spark, settings={**FREQUENT, **SMALL, **settings})


async def until(condition, timeout=120.0):
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


def tables_left(engine):
    """Names of what is stored and shown, and how many stores are hidden."""
    snapshot = engine.catalog.snapshot()
    hidden = [table for table in snapshot.tables if table.kind is TableKind.STORE]
    return {table.name for table in snapshot.shown_tables}, len(hidden)


def check_around(engine, swap, old, new, readers, *, first, most=6):
    """The epochs before the swap have the old query, those from it on the new one."""
    name = next(iter(old))
    id_ = engine.catalog.snapshot().table("t").id
    epochs = sorted({e.epoch for e in engine.store[id_].log(first, engine.visible)} | {swap})
    at = epochs.index(swap)
    for epoch in epochs[max(0, at - most // 2) : at + 1 + most // 2]:
        query = old[name] if epoch < swap else new[name]
        assert_same_rows(
            rows_at(engine, f"select * from {name}", epoch), rows_at(engine, query, epoch)
        )
        for reader, text in readers.items():
            assert_same_rows(
                rows_at(engine, f"select * from {reader}", epoch), rows_at(engine, text, epoch)
            )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [("copies", False, 0), ("lines", True, 1000)],
    ids=["at_once_by_tasks", "beside"],
)
async def test_a_view_is_replaced_while_others_read_it(tmp_path, quick, monkeypatch, case):
    name, beside, few = case
    # More rows than these stay with Spark until they are written.
    monkeypatch.setattr(difference, "_FEW_ROWS", few)
    old, new = PAIRS[name]
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=40, epochs=1)
        await keep(engine, name, old)
        for reader, text in READERS[name].items():
            await keep(engine, reader, text)
        first, before = engine.visible, engine.catalog.snapshot().table(name)
        async with written(engine):
            await asyncio.sleep(0.3)
            swap = await replaced(engine, name, new, beside=beside)
            await asyncio.sleep(0.3)
        await engine.flush()
        check_around(engine, swap, {name: old}, {name: new}, READERS[name], first=first, most=2)
        after = engine.catalog.snapshot().table(name)
        assert (after.id, after.created) == (before.id, before.created)
        assert not engine.creating.running
        assert not engine.ledger.pins()
    async with engine_at(tmp_path, quick) as engine:
        await write(engine, "t", (3, 2, 1000), (9999, 1, -5))
        await engine.flush()
        check(engine)
        assert tables_left(engine)[0] == {"t", "names", name, *READERS[name]}
        assert not (lost := lost_files(engine)), lost


@pytest.mark.timeout(900)
async def test_swapped_views_are_followed_by_name(tmp_path, quick):
    # Each has a store beside its main one, which moves over, and both are read by others.
    ones, twos = PAIRS["counts"]
    readers = {"over_a": "select sum(c) c from a", "over_b": "select n from b where c > 1"}
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=40, epochs=1)
        await keep(engine, "a", ones)
        await keep(engine, "b", twos)
        for reader, text in readers.items():
            await keep(engine, reader, text)
        ids = {name: engine.table(name).id for name in ("a", "b")}
        first = engine.visible
        async with written(engine, pause=0.1):
            await asyncio.sleep(0.3)
            swap = await engine.ddl.swap_views(ids["a"], ids["b"])
            await asyncio.sleep(0.3)
        await engine.flush()
        check_around(engine, swap, {"a": ones}, {"a": twos}, readers, first=first, most=4)
        check_around(engine, swap, {"b": twos}, {"b": ones}, {}, first=first, most=4)
        assert {name: engine.table(name).id for name in ids} == ids
        # And back again, this time without a change of the tables.
        await engine.ddl.swap_views(ids["b"], ids["a"])
        check(engine)
    async with engine_at(tmp_path, quick) as engine:
        await write(engine, "t", (3, 2, 1000), (9999, 1, -5))
        await engine.flush()
        check(engine)
        assert "join" not in engine.catalog.snapshot().table("a").detail.query.text
        assert not (lost := lost_files(engine)), lost


async def test_what_nobody_reads_is_swapped_by_name_alone(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=20, epochs=1)
        await keep(engine, "a", "select id, v from t where v > 50")
        await keep(engine, "b", "select g, count(*) n from t group by g")
        ids = {name: engine.table(name).id for name in ("a", "b")}
        before = engine.visible
        async with written(engine):
            swap = await engine.ddl.swap_views(ids["a"], ids["b"])
        await engine.flush()
        assert {name: engine.table(name).id for name in ids} == {"a": ids["b"], "b": ids["a"]}
        check(engine)
        # Nobody is told the rows of one for those of the other.
        with pytest.raises(RelationError, match=f"did not exist at epoch {before}"):
            rows_at(engine, "select * from a", before)
        rows_at(engine, "select * from a", swap)
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        with pytest.raises(RelationError, match="did not exist"):
            rows_at(engine, "select * from b", before)


@pytest.mark.parametrize("beside", [False, True], ids=["at_once", "beside"])
async def test_a_view_of_another_form_takes_the_name(tmp_path, quick, beside):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=40, epochs=1)
        await keep(engine, "view", PAIRS["counts"][0])
        old, before = engine.table("view").id, engine.visible
        async with written(engine):
            swap = await replaced(engine, "view", "select id, v from t", beside=beside)
        await engine.flush()
        check(engine)
        assert engine.table("view").id != old
        with pytest.raises(RelationError, match=f"did not exist at epoch {before}"):
            rows_at(engine, "select * from view", before)
        rows_at(engine, "select * from view", swap)
        assert tables_left(engine) == ({"t", "names", "view"}, 0)
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        assert not (lost := lost_files(engine)), lost


async def test_a_replacement_that_ends_early_leaves_the_view_as_it_is(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=40, epochs=1)
        await write(engine, "t", (5, 1, 0))
        await keep(engine, "view", PAIRS["counts"][0])
        await keep(engine, "reader", "select sum(c) c from view")
        view = engine.catalog.snapshot().table("view")

        def untouched():
            assert engine.catalog.snapshot().table("view") == view
            assert tables_left(engine) == ({"t", "names", "view", "reader"}, 1)
            assert not engine.catalog.snapshot().objects
            assert not engine.ledger.pins()

        # A query that fails over the rows, at once and beside; the reader notices nothing.
        bad = "select cast(10 / v as bigint) n, count(*) c from t group by 10 / v"
        for beside in (False, True):
            with pytest.raises(UserError, match="division by zero"):
                await replaced(engine, "view", bad, beside=beside)
            await until(lambda: not engine.creating.running)
            untouched()
        await heard(engine, EventKind.JOB_FAILED, "division by zero")
        # One that is cancelled. Meanwhile the old one is there, and current.
        held = await begin(engine, "view", PAIRS["counts"][1], limit=0, replaces=view.id)
        with pytest.raises(RelationError, match="is being replaced"):
            await begin(engine, "view", PAIRS["counts"][1], replaces=view.id)
        await write(engine, "t", (6, 1, 7))
        await engine.flush()
        check(engine)
        assert await engine.creating.cancel(held.intent.id)
        with pytest.raises(UserError, match='"view" was cancelled'):
            await held.done
        untouched()
    async with engine_at(tmp_path, quick) as engine:
        check(engine)
        assert not (lost := lost_files(engine)), lost


async def test_a_replacement_goes_on_after_a_restart_and_goes_with_its_view(tmp_path, quick):
    old, new = PAIRS["counts"]
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=40, epochs=1)
        await keep(engine, "counts", old)
        await keep(engine, "most", READERS["counts"]["most"])
        id_ = engine.table("counts").id
        await begin(engine, "counts", new, limit=0, replaces=id_)
    async with engine_at(tmp_path, quick) as engine:
        (again,) = engine.creating.running.values()
        assert again.intent.replaces == id_
        check(engine)
        async with written(engine):
            await engine.ddl.limit_view(again.intent, None)
            await asyncio.wait_for(asyncio.shield(again.done), 120)
        await engine.flush()
        check(engine)
        assert new in engine.catalog.snapshot().table("counts").detail.query.text
        # The next one never comes that far: its view is dropped.
        held = await begin(engine, "counts", old, limit=0, replaces=id_)
        snapshot = engine.catalog.snapshot()
        await engine.ddl.drop([*snapshot.dependents([id_]), snapshot.table("counts")])
        with pytest.raises(UserError, match="cancelled"):
            await held.done
        assert tables_left(engine) == ({"t", "names"}, 0)
        assert not engine.catalog.snapshot().objects


async def test_a_failed_view_is_well_once_it_is_replaced(tmp_path, quick):
    async with engine_at(tmp_path, quick) as engine:
        await tables(engine, rows=20, epochs=1)
        await keep(engine, "view", "select id, 10 / (v + 1) as q from t")
        await keep(engine, "reader", "select count(*) n, sum(q) s from view")
        await write(engine, "t", (7, 1, -1))
        failed = await engine.flush()
        with pytest.raises(UserError, match="has failed"):
            check(engine, "reader")
        await replaced(engine, "view", "select id, 10 / (v + 2) as q from t", beside=False)
        await engine.flush()
        check(engine)
        with pytest.raises(UserError, match="has failed"):
            rows_at(engine, "select * from view", failed)


@pytest.fixture
def hw(tmp_path, quick):
    with headwater.connect(tmp_path, spark=quick, settings=CALM) as opened:
        yield opened


def refused(hw, text, sqlstate, *words):
    with pytest.raises(HeadwaterError) as raised:
        hw.sql(text).rows()
    assert raised.value.sqlstate == sqlstate, raised.value
    for word in words:
        assert word in str(raised.value)


REPLACE = "create or replace materialized view"


def test_or_replace_says_what_it_will_not_do(hw):
    hw.sql("create table t (id int primary key, g int, v int)")
    hw.sql("insert into t values (1, 1, 10), (2, 1, 20), (3, 2, 30)")
    hw.sql("create view plain as select * from t")
    # Of a name that is not there, OR REPLACE is nothing but CREATE.
    hw.sql(f"{REPLACE} v as select id, v from t where v > 10")
    hw.sql("comment on materialized view v is 'kept'; create index by_v on v (v); flush")
    before = hw.engine.visible
    hw.sql("create materialized view top as select sum(v) s from v")
    hw.sql(f"{REPLACE} v as select id, v, g from t")
    assert sorted(hw.sql("select id, v, g from v").rows()) == [(1, 10, 1), (2, 20, 1), (3, 30, 2)]
    assert hw.sql("select s from top").rows() == [(60,)]
    assert hw.sql("select id from v where v = 30").rows() == [(3,)]
    assert "select id, v, g from t" in hw.sql("show create materialized view v").rows()[0][1]
    views = "select definition from rw_catalog.rw_materialized_views where name = 'v'"
    assert "select id, v, g from t" in hw.sql(views).rows()[0][0]
    assert hw.engine.catalog.snapshot().table("v").detail.comment == "kept"
    # As of before, it is what it was.
    then = hw.sql("select id, v from v", epoch=before).rows()
    assert sorted(then) == [(2, 20), (3, 30)]
    with pytest.raises(HeadwaterError, match='column "g" did not exist at epoch'):
        hw.sql("select id, v, g from v", epoch=before).rows()

    refused(hw, f"{REPLACE} v as select id from t", "42P16", "columns", "top")
    doubled = "select id, v, g from t union all select id, v, g from t"
    refused(hw, f"{REPLACE} v as {doubled}", "42P16", "key", "top")
    refused(hw, f"{REPLACE} v as select * from v", "42P17", "itself")
    refused(hw, f"{REPLACE} v as select s as id, 1 as v from top", "42P17")
    refused(hw, f"{REPLACE} t as select 1 as x", "42809", "table")
    refused(hw, f"{REPLACE} plain as select 1 as x", "42809", "view")
    refused(hw, f"{REPLACE} if not exists v as select 1 as x", "42601")
    # Without a reader its columns may be any, as long as its index has its own.
    hw.sql("drop materialized view top")
    refused(hw, f"{REPLACE} v as select id, g from t", "2BP01", "by_v")
    hw.sql(f"{REPLACE} v as {doubled}")
    assert sorted(hw.sql("select id from v where v = 30").rows()) == [(3,), (3,)]


def test_swap_with_says_what_it_will_not_do(hw):
    hw.sql("create table t (id int primary key, v int)")
    hw.sql("insert into t values (1, 10), (2, 20)")
    hw.sql("create materialized view v as select id, v from t")
    hw.sql("create materialized view top as select sum(v) s from v")
    hw.sql("create materialized view w as select id from t")
    refused(hw, "alter table t swap with v", "0A000")
    refused(hw, "alter materialized view v swap with nothing", "42P01")
    refused(hw, "alter materialized view v swap with t", "42809")
    refused(hw, "alter materialized view v swap with v", "42P07", "itself")
    refused(hw, "alter materialized view v swap with top", "42P17")
    refused(hw, "alter materialized view v swap with w", "42P16", "same columns", "top")
    hw.sql(f"{REPLACE} w as select id, v * 100 as v from t")
    assert hw.sql("alter materialized view v swap with w").tag == "ALTER MATERIALIZED VIEW"
    assert hw.sql("select s from top").rows() == [(3000,)]
    assert sorted(hw.sql("select v from w").rows()) == [(10,), (20,)]
    hw.sql("insert into t values (4, 1); flush")
    assert hw.sql("select s from top").rows() == [(3100,)]


def test_a_replacement_in_the_background(hw):
    hw.sql("create table t (id int primary key, v int)")
    hw.sql("insert into t values (1, 10), (2, 20)")
    hw.sql("create materialized view v as select id, v from t")
    hw.sql("create materialized view top as select sum(v) s from v")
    hw.sql("create materialized view w as select id, v from t")
    hw.sql("set background_ddl = true")
    hw.sql(f"{REPLACE} v with (backfill_rate_limit = 0) as select id, v * 2 as v from t")
    (job,) = hw.sql("show jobs").rows()
    assert "materialized view v" in job[1]
    assert hw.sql("select s from top").rows() == [(30,)]
    refused(hw, f"{REPLACE} v as select id, v from t", "55000", f"CANCEL JOBS {job[0]}")
    refused(hw, "alter materialized view v rename to z", "55000")
    refused(hw, "alter materialized view v swap with w", "55000")
    refused(hw, "drop table t", "2BP01")
    hw.sql("alter materialized view v set backfill_rate_limit = default")
    hw.sql("wait materialized view v")
    assert hw.sql("select s from top").rows() == [(60,)]
    # It goes with its view, and what is being created cannot be replaced.
    hw.sql(f"{REPLACE} w with (backfill_rate_limit = 0) as select id from t")
    hw.sql("drop materialized view w")
    assert not hw.sql("show jobs").rows()
    hw.sql("create materialized view w with (backfill_rate_limit = 0) as select id from t")
    refused(hw, f"{REPLACE} w as select id from t", "55000", "still being created")
    refused(hw, "alter materialized view w swap with v", "55000")


def test_views_that_share_a_name_are_kept_apart(hw):
    # In two schemas, or one of them before it was renamed; all are maintained in one round.
    hw.sql("create table t (id int primary key, v int); create schema s")
    hw.sql("create materialized view v as select v % 2 as k, sum(v) n from t group by v % 2")
    hw.sql("alter materialized view v rename to first")
    hw.sql("create materialized view v as select v % 3 as k, sum(v) n from t group by v % 3")
    hw.sql("create materialized view s.v as select v % 5 as k, sum(v) n from t group by v % 5")
    for start in (0, 10):
        hw.sql(f"insert into t select x, x from generate_series({start}, {start + 9}) as g(x)")
        hw.sql("flush")
    for name, divisor in (("first", 2), ("v", 3), ("s.v", 5)):
        found = hw.sql(f"select k, n from {name}").rows()
        assert sorted(found) == [
            (k, sum(x for x in range(20) if x % divisor == k)) for k in range(divisor)
        ]
