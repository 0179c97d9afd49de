"""What operators need of a followed MariaDB or MySQL: lag, the oldest binlog, the right server."""

from collections.abc import Iterator

import pytest

from cdc_kit import eventually, following, stored
from headwater.cdc.mysql.database import MySqlDatabase
from headwater.errors import HeadwaterError, UserError
from mysql_servers import SERVERS, RunningServer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with SERVERS[request.param]() as running:
        running.run("CREATE DATABASE shop")
        running.run("CREATE TABLE t (id int PRIMARY KEY, v text)", database="shop")
        yield running


def test_how_far_behind_and_how_near_to_being_lost(database):
    source = MySqlDatabase(database.options("shop"))
    begin = source.prepare(["shop.t"])
    assert source.survey(begin).behind_bytes == 0
    assert source.survey(None).behind_bytes is None
    database.run("INSERT INTO t VALUES (1, repeat('x', 50000))", database="shop")
    first = source.survey(begin)
    assert 50_000 < first.behind_bytes < 60_000
    assert first.retained_bytes is None
    assert first.losing == ""
    database.run("SET GLOBAL binlog_expire_logs_seconds = 7200")
    database.run(f"PURGE BINARY LOGS TO '{begin.file}'")
    database.run("FLUSH BINARY LOGS")
    database.run("INSERT INTO t VALUES (2, repeat('x', 50000))", database="shop")
    near = source.survey(begin)
    assert near.behind_bytes > 100_000
    assert "the oldest of" in near.losing
    assert "2.0 hours" in near.losing
    assert near.gauges["mysql_cdc_binlog_file_seq_max"] == begin.number + 1
    # Who has read on is safe; so is everybody where nothing is ever deleted.
    assert source.survey(source.prepare([])).losing == ""
    database.run("SET GLOBAL binlog_expire_logs_seconds = 0")
    assert source.survey(begin).losing == ""


def test_another_server_is_not_read(database):
    source = MySqlDatabase(database.options("shop"))
    identity = source.identity()
    table = source.open_table("shop.t")
    begin = source.prepare(["shop.t"])
    source.expect(identity)
    log = source.open_log({table.name: table.schema})
    assert log.read(begin, max_bytes=1 << 20).offset >= begin
    log.close()
    source.expect(identity + "9")
    with pytest.raises(UserError, match="another server"):
        source.prepare(["shop.t"])
    log = source.open_log({table.name: table.schema})
    with pytest.raises(UserError, match="another server"):
        log.read(begin, max_bytes=1 << 20)
    log.close()


def test_through_the_engine(database, tmp_path):
    database.run("DELETE FROM t", "INSERT INTO t VALUES (1, 'one')", database="shop")
    options = database.options("shop")
    said = ", ".join(f"{k} = '{v}'" for k, v in options.items())
    create = f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said}"
    state = "SELECT state, lag_s, lag_bytes, retained_bytes FROM hw_catalog.cdc_progress"
    with following(tmp_path / "w", cdc_watch_interval_s=0.2) as hw:
        with pytest.raises(HeadwaterError, match="binlogs"):
            hw.sql(f"{create}, max_wal_retained = '1GB')")
        hw.sql(f"{create})")
        hw.sql("CREATE TABLE t (*) FROM shop TABLE 'shop.t'")
        hw.sql("WAIT")

        def idle():
            [(word, lag, behind, retained)] = hw.sql(state).rows()
            assert retained is None
            return word == "streaming" and lag is not None and lag < 2 and behind == 0

        eventually(idle)
        assert "mysql_cdc_binlog_file_seq_min{" in hw.engine.metrics.exposition().decode()
        database.run("CREATE USER IF NOT EXISTS 'other'@'%' IDENTIFIED BY 'word'")
        with pytest.raises(HeadwaterError, match="other"):
            hw.sql("ALTER SOURCE shop SET (username = 'other', password = 'wrong')")
        database.run("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'other'@'%'")
        hw.sql("ALTER SOURCE shop SET (username = 'other', password = 'word')")
        database.run("INSERT INTO t VALUES (2, 'two')", database="shop")
        eventually(lambda: (hw.sql("FLUSH"), len(stored(hw, "t")))[1] == 2)
        users = "SELECT DISTINCT user FROM information_schema.processlist WHERE user <> 'root'"
        eventually(lambda: ("headwater",) not in database.run(users))
    with following(tmp_path / "w") as hw:
        # The server is known from the first life on; it is still the same.
        eventually(lambda: hw.sql(state).rows()[0][0] == "streaming")
        assert stored(hw, "t") == [(1, "one"), (2, "two")]
