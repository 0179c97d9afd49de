"""Targets that were restored from a backup, and statements that come beside each other."""

import time

import psycopg
import pytest

import headwater
from headwater.catalog.relation import ObjectKind
from sql_sink_kit import restartable_postgres

pytestmark = pytest.mark.server

SETTINGS = {"barrier_interval_ms": 50, "maintenance_interval_s": 3600.0, "storage_fsync": False}


@pytest.fixture(scope="module")
def postgres():
    with restartable_postgres() as running:
        yield running


def listed(options):
    return ", ".join(f"{name} = '{value}'" for name, value in options.items())


def until(holds, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def status(hw):
    (delivering,) = hw.engine.sinks.delivering.values()
    return delivering.executor.status


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reached", ["the connection stays", "the server was away"])
def test_a_target_of_yesterday_is_noticed_and_brought_up_to_date(postgres, tmp_path, reached):
    """Rows that it lost would be missing for ever if deliveries just went on."""
    name = "kept" if "stays" in reached else "away"
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table t (id bigint primary key, v varchar)")
        options = {"connector": "postgres", **postgres.options(name)}
        hw.sql(f"create sink s from t with ({listed(options)})")

        def target(query=f"select id, v from {name}"):
            with psycopg.connect(postgres.url, autocommit=True) as db:
                return sorted(db.execute(query).fetchall())

        def stored():
            return sorted(
                (row["id"], row["v"]) for row in hw.stored("t").rows(hw.visible).to_pylist()
            )

        def write(*statements):
            for statement in statements:
                hw.sql(statement)
            hw.sql("flush")

        write("insert into t values (1, 'one'), (2, 'two')")
        until(lambda: target() == stored())
        ident = next(each for each in hw.engine.catalog.snapshot().objects).settings["ident"]
        progress = f"select epoch from headwater_sink_progress where sink = '{ident}'"
        ((backup,),) = target(progress)
        write("insert into t values (3, 'three')", "delete from t where id = 1")
        until(lambda: target() == stored())
        with psycopg.connect(postgres.url, autocommit=True) as db:
            db.execute(f"delete from {name} where id = 3")
            db.execute(f"insert into {name} values (1, 'one')")
            db.execute("update headwater_sink_progress set epoch = %s where sink = %s",
                       [backup, ident])  # fmt: skip
        if "away" in reached:
            postgres.stop()
            postgres.start()
        write("insert into t values (4, 'four')")
        until(lambda: status(hw).attempts >= 1 and "was given epoch" in status(hw).reason)
        assert (4, "four") not in target(), "nothing is written over the gap"
        assert f"REWIND TO EPOCH {backup}" in status(hw).hint
        hw.sql(f"alter sink s rewind to epoch {backup}")
        until(lambda: target() == stored())
        write("insert into t values (5, 'five')")
        until(lambda: target() == stored())
        hw.sql("drop sink s")


@pytest.mark.timeout(300)
def test_what_is_altered_late_keeps_what_came_meanwhile(postgres, tmp_path):
    """A statement that has looked at a sink before it got a column does not take it away again."""
    with headwater.connect(tmp_path / "w", settings=SETTINGS) as hw:
        hw.sql("create table t (id bigint primary key, v varchar)")
        options = {"connector": "postgres", **postgres.options("late")}
        hw.sql(f"create sink s from t with ({listed(options)}, auto.schema.change = 'true')")
        engine = hw.engine

        def sink():
            return next(o for o in engine.catalog.snapshot().objects if o.kind is ObjectKind.SINK)

        before = sink()
        hw.sql("alter table t add column more bigint")
        hw._wait(engine.ddl.alter_sink(before, {"sink_rate_limit": "1000"}))
        assert [column.name for column in sink().columns] == ["id", "v", "more"]
        assert sink().settings["sink_rate_limit"] == "1000"
        hw.sql("insert into t values (1, 'one', 11)")
        hw.sql("flush")

        def target():
            with psycopg.connect(postgres.url, autocommit=True) as db:
                # The column comes with the first row that has it.
                return db.execute("select to_jsonb(late) from late").fetchall()

        until(lambda: target() == [({"id": 1, "v": "one", "more": 11},)])
