"""What operators need of a followed PostgreSQL: budgets, lag, other passwords, the right server."""

import asyncio
import json
import sqlite3
import time

import psycopg
import pytest

from cdc_kit import FILL, ORDERS, eventually, following, same, server, stored, upstream
from headwater.cdc.external_table import SplitOptions
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.cdc.postgres.log import PostgresLog
from headwater.cdc.postgres.options import parse_options
from headwater.errors import HeadwaterError, SourceUnavailable
from headwater.runtime import ddl_followed
from headwater.session.alter_source import with_options
from servers import postgres_server

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(600)

LOOK_OFTEN = {"cdc_watch_interval_s": 0.2}


def rows(hw, query):
    return hw.sql(query).rows()


def events(hw, kind):
    return [row[0] for row in rows(hw, f"SELECT text FROM hw_catalog.events WHERE kind = '{kind}'")]


def status(hw, column, table="t"):
    query = f"SELECT {column} FROM hw_catalog.cdc_progress WHERE \"table\" = '{table}'"
    [(found,)] = rows(hw, query)
    return found


def metrics(hw):
    return hw.engine.metrics.exposition().decode()


def slot(upstream, column, name="kept"):
    query = f"SELECT {column} FROM pg_replication_slots WHERE slot_name = '{name}'"
    [(found,)] = upstream.rows(query)
    return found


def noise(upstream, megabytes):
    """Log that is none of our business."""
    upstream.db.execute("CREATE TABLE IF NOT EXISTS noise (t text)")
    for _ in range(megabytes):
        upstream.db.execute(
            "INSERT INTO noise SELECT repeat(md5(g::text), 30) FROM generate_series(1, 1000) g"
        )


def held_up(upstream):
    """A transaction that keeps the slot from moving."""
    connection = psycopg.connect(upstream.url)
    connection.execute("CREATE TABLE IF NOT EXISTS holder (n int)")
    connection.execute("SELECT pg_current_xact_id()")
    return connection


def a_table(upstream):
    upstream.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    upstream.db.execute("INSERT INTO t VALUES (1, 'one')")


def test_a_warning_comes_before_the_budget_is_used_up(upstream, tmp_path):
    a_table(upstream)
    with following(tmp_path / "w", **LOOK_OFTEN) as hw:
        hw.sql(upstream.source(slot_name="kept", max_wal_retained="20MB"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        assert events(hw, "log_retained") == []
        holder = held_up(upstream)
        try:
            noise(upstream, 25)
            eventually(lambda: events(hw, "log_retained"))
        finally:
            holder.close()
        assert "of log for this source" in events(hw, "log_retained")[0]
        # A warning is a warning: the slot is there, and the table follows.
        upstream.db.execute("INSERT INTO t VALUES (2, 'two')")
        eventually(lambda: (hw.sql("FLUSH"), len(stored(hw, "t")))[1] == 2)
        assert "kept" in upstream.ours


def test_drop_saves_the_disk_and_says_so(upstream, tmp_path):
    a_table(upstream)
    with following(tmp_path / "w", **LOOK_OFTEN) as hw:
        hw.sql(upstream.source(slot_name="kept", max_wal_retained="20MB", on_wal_retained="drop"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        holder = held_up(upstream)
        try:
            noise(upstream, 30)
            eventually(lambda: "kept" not in upstream.ours)
        finally:
            holder.close()
        eventually(lambda: events(hw, "source_stopped"))
        [told] = events(hw, "source_stopped")
        assert "max_wal_retained" in told
        assert "DROP SOURCE shop CASCADE" in told
        eventually(lambda: status(hw, "state") == "failed")
        assert "slot was dropped" in status(hw, "trouble")
        upstream.db.execute("INSERT INTO t VALUES (2, 'missed')")
        # No new table makes a slot that begins after what nobody has read.
        upstream.db.execute("CREATE TABLE u (id int PRIMARY KEY)")
        with pytest.raises(HeadwaterError, match="slot was dropped"):
            hw.sql("CREATE TABLE u (*) FROM shop TABLE 'public.u'")
        hw.sql("FLUSH")
        assert len(stored(hw, "t")) == 1
    with following(tmp_path / "w") as hw:
        eventually(lambda: status(hw, "state") == "failed")
        assert "is gone" in status(hw, "trouble")
        with pytest.raises(HeadwaterError, match="is gone"):
            hw.sql("CREATE TABLE u (*) FROM shop TABLE 'public.u'")
        assert "kept" not in upstream.ours
        hw.sql("DROP SOURCE shop CASCADE")
        hw.sql(upstream.source(slot_name="kept"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        same(hw, upstream, "t")


def test_lag_is_near_nothing_when_idle_and_grows_when_it_must(upstream, tmp_path):
    a_table(upstream)
    with following(tmp_path / "w", **LOOK_OFTEN) as hw:
        hw.sql(upstream.source(slot_name="kept"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        time.sleep(4)
        # It does not grow with time.
        eventually(lambda: is_near(hw) and status(hw, "lag_bytes") < 100_000)
        assert status(hw, "retained_bytes") >= 0
        assert "source_cdc_event_lag_duration_milliseconds{" in metrics(hw)
        assert 'headwater_cdc_table_lag_seconds{source="shop",table="t"}' in metrics(hw)
        assert "pg_cdc_confirmed_flush_lsn{" in metrics(hw)
        upstream.db.execute("INSERT INTO t VALUES (2, 'two')")
        eventually(lambda: status(hw, "last_event_at") is not None)
        # Nobody may connect any more: what commits now is owed.
        address, _, name = upstream.url.rpartition("/")
        with psycopg.connect(f"{address}/postgres", autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                " AND pid <> %s",
                [name, upstream.db.info.backend_pid],
            )
            eventually(lambda: status(hw, "state") in ("stalled", "failed"))
            eventually(lambda: (status(hw, "lag_s") or 0) > 3)
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        # It would be asked again by itself; who alters it does not have to wait for that.
        hw.sql("ALTER SOURCE shop SET (connect.timeout = '11')")
        eventually(lambda: is_near(hw))
        assert status(hw, "trouble") == ""
        hw.sql("DROP SOURCE shop CASCADE")
        eventually(lambda: 'source="shop"' not in metrics(hw))


def is_near(hw):
    lag = status(hw, "lag_s")
    return status(hw, "state") == "streaming" and lag is not None and lag < 2


def test_system_tables_tell_what_is_being_filled(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(4_000))
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(
            "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
            " (backfill.num_rows_per_split = '500', backfill_rate_limit = '100')"
        )
        eventually(lambda: (status(hw, "rows", "orders") or 0) > 0)
        assert status(hw, "state", "orders") == "snapshotting"
        assert 0 < status(hw, "percent", "orders") < 100
        [(progress,)] = rows(hw, "SELECT progress FROM rw_catalog.rw_ddl_progress")
        assert "%" in progress
        [(limit, node)] = rows(hw, "SELECT rate_limit, node_name FROM rw_catalog.rw_rate_limit")
        assert (limit, node) == ("100", "STREAM_CDC_SCAN")
        [(splits, done)] = rows(
            hw, "SELECT split_total_count, split_completed_count FROM rw_catalog.rw_cdc_progress"
        )
        assert 0 <= done < splits
        hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = 0")
        eventually(lambda: status(hw, "state", "orders") == "paused")
        hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        assert rows(hw, "SELECT * FROM rw_catalog.rw_ddl_progress") == []
        assert rows(hw, "SELECT * FROM rw_catalog.rw_rate_limit") == []
        assert status(hw, "state", "orders") == "streaming"


def test_the_slot_follows_while_only_other_tables_are_written(upstream, tmp_path):
    a_table(upstream)
    with following(tmp_path / "w", **LOOK_OFTEN) as hw:
        hw.sql(upstream.source(slot_name="kept"))
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
        hw.sql("WAIT")
        for _ in range(3):
            noise(upstream, 5)
            time.sleep(2)
        [(end,)] = upstream.rows("SELECT pg_current_wal_flush_lsn()::text")
        wanted = PostgresOffset.of(end)

        def confirmed():
            return PostgresOffset.of(slot(upstream, "confirmed_flush_lsn::text")) >= wanted

        # Also when the last of it is small, and nobody writes any more.
        eventually(confirmed)


def test_a_password_changes_without_a_restart(upstream, tmp_path):
    a_table(upstream)
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(3_000))
    upstream.db.execute("DROP ROLE IF EXISTS follower")
    upstream.db.execute("CREATE ROLE follower LOGIN SUPERUSER PASSWORD 'old'")
    try:
        with following(tmp_path / "w", **LOOK_OFTEN) as hw:
            hw.sql(upstream.source(slot_name="kept"))
            hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
            hw.sql(
                "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
                " (backfill.num_rows_per_split = '200', backfill_rate_limit = '200')"
            )
            with pytest.raises(HeadwaterError, match="nobody_here"):
                hw.sql("ALTER SOURCE shop SET (username = 'nobody_here')")
            hw.sql("ALTER SOURCE shop SET (username = 'follower', password = 'old')")
            # Everything that connects from now on is the new user, the readers of chunks too.
            who = (
                "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE datname ="
                " current_database() AND pid <> pg_backend_pid() AND application_name <> ''"
            )
            eventually(lambda: upstream.rows(who) == [("follower",)])
            assert "'old'" not in str(rows(hw, "SHOW CREATE SOURCE shop"))
            hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            upstream.db.execute("UPDATE t SET v = 'later'")
            hw.sql("FLUSH")
            same(hw, upstream, "t")
            same(hw, upstream, "orders")
        with following(tmp_path / "w") as hw:
            eventually(lambda: upstream.rows(who) == [("follower",)])
            hw.sql("ALTER SOURCE shop CONNECTOR WITH (max_wal_retained = '2GB')")
            assert "2GB" in str(rows(hw, "SHOW CREATE SOURCE shop"))
            hw.sql("DROP SOURCE shop CASCADE")
    finally:
        upstream.db.execute("DROP ROLE follower")


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("slot.name = 'other'", "slot.name"),
        ("database.name = 'other'", "database.name"),
        ("unknown.types = 'text'", "unknown.types"),
        ("hots = 'x'", "hots"),
        ("port = '1'", "127.0.0.1:1"),
        ("on_wal_retained = 'pause'", "pause"),
    ],
)
def test_what_cannot_be_altered_is_named(upstream, tmp_path, option, complaint):
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        before = str(rows(hw, "SHOW CREATE SOURCE shop"))
        with pytest.raises(HeadwaterError, match=complaint):
            hw.sql(f"ALTER SOURCE shop SET ({option})")
        assert str(rows(hw, "SHOW CREATE SOURCE shop")) == before
        with pytest.raises(HeadwaterError, match="RENAME"):
            hw.sql("ALTER SOURCE shop RENAME TO shoop")
        hw.sql("DROP SOURCE shop CASCADE")


def test_two_who_alter_a_source_at_once_both_have_their_way(upstream, tmp_path):
    given = ({"connect.timeout": "11"}, {"max_wal_retained": "2GB"})
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())

        async def both():
            alter = hw.engine.ddl.alter_database_source
            await asyncio.gather(
                *(alter("shop", lambda now, each=each: with_options(now, each)) for each in given)
            )

        hw._wait(both())
        [(_, shown)] = rows(hw, "SHOW CREATE SOURCE shop")
        assert "connect.timeout = '11'" in shown
        assert "max_wal_retained = '2GB'" in shown
        hw.sql("DROP SOURCE shop CASCADE")


def test_another_server_is_refused_when_altered_and_after_a_restart(upstream, tmp_path):
    a_table(upstream)
    with postgres_server("wal_level=logical", "fsync=off") as url:
        other = url.replace("+psycopg", "")
        port = other.rpartition(":")[2].partition("/")[0]
        name = upstream.url.rpartition("/")[2]
        with psycopg.connect(other, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source(slot_name="kept"))
            hw.sql("CREATE TABLE t (*) FROM shop TABLE 'public.t'")
            hw.sql("WAIT")
            with pytest.raises(HeadwaterError, match="another server"):
                hw.sql(f"ALTER SOURCE shop SET (port = '{port}')")
            options = hw.engine.catalog.snapshot().source("shop").options
        assert str(port) not in options["port"]
        # As if the name of the host meant another machine since.
        with psycopg.connect(other.rpartition("/")[0] + f"/{name}", autocommit=True) as there:
            there.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            there.execute("CREATE PUBLICATION headwater_shop FOR TABLE t")
            there.execute("SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")
            there.execute("INSERT INTO t VALUES (7, 'foreign')")
        _point_to(tmp_path / "w", port)
        with following(tmp_path / "w") as hw:
            eventually(lambda: "another server" in status(hw, "trouble"))
            assert status(hw, "state") == "failed"
            hw.sql("FLUSH")
            assert stored(hw, "t") == [(1, "one")]


def _point_to(workspace, port):
    ledger = sqlite3.connect(workspace / "ledger.db")
    [(id_, text)] = ledger.execute("SELECT id, options FROM hw_source").fetchall()
    options = json.loads(text) | {"port": json.dumps(port)}
    ledger.execute("UPDATE hw_source SET options = ? WHERE id = ?", [json.dumps(options), id_])
    ledger.commit()
    ledger.close()


def reached(upstream):
    """The database behind a source, without an engine."""
    address = psycopg.conninfo.conninfo_to_dict(upstream.url)
    options = {"hostname": address["host"], "port": address["port"], "username": "postgres"}
    return PostgresDatabase(
        parse_options({**options, "database.name": address["dbname"], "slot.name": "kept"})
    )


def test_a_server_that_was_put_back_is_not_read(upstream):
    """An old copy of the server has the slot, and a log that ends before our position."""
    a_table(upstream)
    database = reached(upstream)
    table = database.open_table("public.t")
    begin = database.prepare(["public.t"])
    log = database.open_log({table.name: table.schema})
    assert log.read(begin, max_bytes=1 << 20) is not None
    with pytest.raises(HeadwaterError, match="ends before our position"):
        log.read(PostgresOffset(begin.lsn + (1 << 40)), max_bytes=1 << 20)
    log.close()
    database.drop()


def test_what_was_acknowledged_reaches_the_server_also_when_nothing_follows(upstream):
    a_table(upstream)
    database, now = reached(upstream), [0.0]
    table = database.open_table("public.t")
    begin = database.prepare(["public.t"])
    log = PostgresLog(database.options, {table.name: table.schema}, clock=lambda: now[0])
    upstream.db.execute("INSERT INTO t VALUES (2, 'two')")
    after = log.read(begin, max_bytes=1 << 20).offset
    log.acknowledge(after)
    # So little is not worth a round so soon.
    assert PostgresOffset.of(slot(upstream, "confirmed_flush_lsn::text")) < after
    now[0] = 11.0
    log.read(after, max_bytes=1 << 20)
    assert PostgresOffset.of(slot(upstream, "confirmed_flush_lsn::text")) >= after
    log.close()
    database.drop()


def test_a_slot_of_another_server_is_neither_measured_nor_dropped(upstream):
    database = reached(upstream)
    database.prepare([])
    database.expect("12345/00000001")
    with pytest.raises(HeadwaterError, match="another server"):
        database.survey(None)
    with pytest.raises(HeadwaterError, match="another server"):
        database.release()
    assert "kept" in upstream.ours
    database.drop()


def test_chunks_of_another_server_are_not_read(upstream):
    a_table(upstream)
    database = reached(upstream)
    database.expect(str(database.identity()))
    split, *_ = database.open_table("public.t").splits(SplitOptions())
    chunk = database.open_table("public.t").read_chunk(split, None, max_rows=9, max_bytes=999)
    assert chunk.rows.num_rows == 1
    database.expect("12345/00000001")
    with pytest.raises(HeadwaterError, match="another server"):
        database.open_table("public.t").read_chunk(split, None, max_rows=9, max_bytes=999)


def test_a_dropped_table_leaves_our_publication_and_no_other(upstream, tmp_path):
    for name in ("a", "b"):
        upstream.db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    published = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = '{0}' ORDER BY 1"
    upstream.db.execute("CREATE PUBLICATION theirs FOR TABLE a, b")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE a (*) FROM shop TABLE 'public.a'")
        hw.sql("CREATE TABLE again (*) FROM shop TABLE 'a'")
        hw.sql("CREATE TABLE b (*) FROM shop TABLE 'public.b'")
        hw.sql("WAIT")
        ours = published.format("headwater_shop")
        assert upstream.rows(ours) == [("a",), ("b",)]
        hw.sql("DROP TABLE b")
        eventually(lambda: upstream.rows(ours) == [("a",)])
        # Another table follows it still, spelled in another way.
        hw.sql("DROP TABLE a")
        upstream.db.execute("INSERT INTO a VALUES (1)")
        eventually(lambda: (hw.sql("FLUSH"), stored(hw, "again"))[1] == [(1,)])
        assert upstream.rows(ours) == [("a",)]
        hw.sql("CREATE TABLE b (*) FROM shop TABLE 'public.b'")
        upstream.db.execute("INSERT INTO b VALUES (2)")
        eventually(lambda: (hw.sql("FLUSH"), stored(hw, "b"))[1] == [(2,)])
        hw.sql(
            "CREATE SOURCE other "
            + upstream.source()[len("CREATE SOURCE shop ") : -1]
            + ", slot.name = 'o', publication.name = 'theirs')"
        )
        hw.sql("CREATE TABLE c (*) FROM other TABLE 'public.b'")
        hw.sql("WAIT")
        hw.sql("DROP TABLE c")
        time.sleep(1)
        assert upstream.rows(published.format("theirs")) == [("a",), ("b",)]
        hw.sql("DROP SOURCE shop CASCADE")
        hw.sql("DROP SOURCE other CASCADE")


def test_parallelism_changes_a_backfill_under_way(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(3_000))
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(
            "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
            " (backfill.num_rows_per_split = '200', backfill_rate_limit = '100')"
        )
        eventually(lambda: hw.engine.cdc.jobs["shop"].running)
        hw.sql("ALTER TABLE orders SET PARALLELISM = 2")
        assert _readers(hw) == 2
        hw.sql("ALTER TABLE orders SET PARALLELISM TO ADAPTIVE")
        assert _readers(hw) == 4
        hw.sql("ALTER TABLE orders SET PARALLELISM = 7")
    with following(tmp_path / "w") as hw:
        eventually(lambda: hw.engine.cdc.jobs["shop"].running)
        assert _readers(hw) == 7


def _readers(hw):
    [running] = hw.engine.cdc.jobs["shop"].running.values()
    return running.executor.backfill.machine.pace.parallelism


def test_a_source_that_could_not_be_made_is_not_there(upstream, tmp_path, monkeypatch):
    """The server goes away after it was looked at, and does not come back for the undoing."""

    def away(self, *_, **__):
        raise SourceUnavailable("the server went away")

    monkeypatch.setattr(PostgresDatabase, "prepare", away)
    monkeypatch.setattr(PostgresDatabase, "drop", away)
    monkeypatch.setattr(ddl_followed, "_PREPARE_S", 0.5)
    with following(tmp_path / "w") as hw:
        with pytest.raises(HeadwaterError, match="not ready"):
            hw.sql(upstream.source())
        assert rows(hw, "SHOW SOURCES") == []
        assert "may still be there" in str(events(hw, "source_unavailable"))
        monkeypatch.undo()
        hw.sql(upstream.source())
        hw.sql("DROP SOURCE shop CASCADE")
