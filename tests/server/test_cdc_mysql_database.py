"""What a source checks before it begins, and what it says when its place in the log is lost."""

import pickle
import time

import pytest

from headwater.cdc.mysql.database import MySqlDatabase
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.offset import BinlogOffset
from headwater.errors import ConfigError, HeadwaterError, SchemaError, SourceUnavailable, UserError
from mysql_servers import PASSWORD, SERVERS, USER


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as running:
        running.run(
            "CREATE DATABASE shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, v int)",
            "CREATE TABLE shop.loose (v int)", "CREATE VIEW shop.seen AS SELECT * FROM shop.orders",
            "CREATE TABLE shop.places (id int PRIMARY KEY, p point, v int)",
            "CREATE TABLE shop.isam (id int PRIMARY KEY) ENGINE = MyISAM",
            "CREATE TABLE shop.computed (id int PRIMARY KEY, v int, w int AS (v + 1) VIRTUAL)",
        )  # fmt: skip
        yield running


def refused(server, kind=UserError, **more):
    with pytest.raises(kind) as caught:
        MySqlDatabase(server.options("shop", **more)).validate()
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_a_server_with_everything_in_place(server):
    MySqlDatabase(server.options("shop", **{"table.name": "orders"})).validate()
    MySqlDatabase(server.options("shop", **{"ssl.mode": "disabled"})).validate()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"password": "wrong"}, f'user "{USER}" may not do this'),
        ({"username": "nobody"}, 'user "nobody" may not do this'),
        ({"hostname": "no-such-host.invalid"}, 'the host "no-such-host.invalid" is not known'),
        ({"database.name": "shop,nowhere"}, 'the database "nowhere" does not exist'),
        ({"table.name": "missing"}, 'table "shop.missing" does not exist'),
        ({"table.name": "shop.loose"}, "has no primary key"),
        ({"table.name": "seen"}, "only tables have a log"),
        ({"table.name": "places"}, 'column "p" of table "shop.places" has type point'),
        ({"table.name": "isam"}, "ENGINE = InnoDB"),
        ({"table.name": "far.orders"}, "is not in a database of this source"),
    ],
)
def test_each_lack_is_named(server, more, said):
    assert said in refused(server, **more)


def test_a_server_that_does_not_answer_may_be_tried_again(server):
    assert "cannot be reached" in refused(server, SourceUnavailable, port="1")


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
    ],
)
def test_each_setting_is_named_with_its_remedy(server, name, wrong, right):
    server.run(f"SET GLOBAL {name} = {wrong}")
    try:
        assert f"SET GLOBAL {name} = '{right}';" in refused(server, ConfigError)
    finally:
        server.run(f"SET GLOBAL {name} = {right}")


@pytest.mark.parametrize("privilege", ["REPLICATION SLAVE", "REPLICATION CLIENT"])
def test_each_privilege_is_named_with_its_remedy(server, privilege):
    server.run(f"REVOKE {privilege} ON *.* FROM '{USER}'@'%'")
    try:
        assert f"GRANT {privilege} ON *.* TO '{USER}'@'%';" in refused(server, ConfigError)
    finally:
        server.run(f"GRANT {privilege} ON *.* TO '{USER}'@'%'")


def test_tls_that_is_not_there_or_not_trusted_is_refused(server):
    mode = {"ssl.mode": "required" if server.kind == "mariadb" else "verify_ca"}
    assert f"ssl.mode = {mode['ssl.mode']}" in refused(server, ConfigError, **mode)


def test_a_column_that_cannot_be_held_is_refused_only_when_it_is_read(server):
    database = MySqlDatabase(server.options("shop"))
    table = database.open_table("places", ["id", "v"])
    assert [each.column.name for each in table.schema.columns] == ["id", "v"]
    with pytest.raises(SchemaError, match="part of the key"):
        database.open_table("places", ["v"])
    with pytest.raises(SchemaError, match='no column "q"'):
        database.open_table("places", ["id", "q"])
    computed = database.open_table("computed")
    assert [each.column.name for each in computed.schema.columns] == ["id", "v"]
    with pytest.raises(SchemaError, match="computed when it is read"):
        database.open_table("computed", ["id", "w"])


def test_the_password_is_in_no_repr(server):
    database = MySqlDatabase(server.options("shop"))
    table = database.open_table("orders")
    options = MySqlOptions.parse(server.options("shop"))
    for thing in (database, table, options, table.schema):
        assert PASSWORD not in repr(thing)
    assert pickle.loads(pickle.dumps(table)).name == "shop.orders"


def test_a_purged_log_and_a_foreign_history_stop_loudly(server):
    database = MySqlDatabase(server.options("shop", **{"heartbeat.s": "1"}))
    start = database.prepare(["orders"])
    log = database.open_log({"orders": database.open_table("orders").schema})
    server.run("INSERT INTO shop.orders VALUES (1, 1)", "DELETE FROM shop.orders")
    after = log.read(start, max_bytes=1 << 20).offset
    with pytest.raises(UserError, match="another history"):
        log.read(BinlogOffset(after.file, after.position + 10_000_000), max_bytes=1 << 20)
    gtids = "0-77-1" if server.kind == "mariadb" else "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
    with pytest.raises(UserError, match="another history"):
        log.read(BinlogOffset(after.file, after.position, gtids), max_bytes=1 << 20)
    server.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    log.read(after, max_bytes=1 << 20)
    last = server.run("SHOW BINARY LOGS")[-1][0]
    log.close()
    deadline = time.monotonic() + 90
    while start.file in {row[0] for row in server.run("SHOW BINARY LOGS")}:
        # A file stays until the server has noticed that its reader is gone.
        assert time.monotonic() < deadline
        server.run(f"PURGE BINARY LOGS TO '{last}'")
        time.sleep(0.1)
    with pytest.raises(UserError, match="no longer has position") as caught:
        log.read(start, max_bytes=1 << 20)
    assert "drop the source and create it again" in caught.value.hint
    log.close()


def test_a_statement_that_was_not_logged_as_rows_stops_loudly(server):
    database = MySqlDatabase(server.options("shop"))
    log = database.open_log({"orders": database.open_table("orders").schema})
    start = log.current()
    server.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO shop.orders VALUES (9, 9)",
               "DELETE FROM shop.orders")  # fmt: skip
    with pytest.raises(HeadwaterError, match="holds as text"):
        log.read(start, max_bytes=1 << 20)
    log.close()


def test_partial_row_images_stop_loudly(server):
    database = MySqlDatabase(server.options("shop"))
    server.run("INSERT INTO shop.orders VALUES (9, 9)")
    log = database.open_log({"orders": database.open_table("orders").schema})
    start = log.current()
    server.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE shop.orders SET v = 10",
               "DELETE FROM shop.orders")  # fmt: skip
    with pytest.raises(UserError, match="without some of their columns"):
        log.read(start, max_bytes=1 << 20)
    log.close()
