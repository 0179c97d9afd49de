"""Sinks survive `kill -9`: at each point of a delivery, and at random, with real targets.

Relations change all the time; their sinks are an upsert and an append-only table of a PostgreSQL
and a Delta table, and in one test a MariaDB and two topics of a Kafka as well, which are restarted
meanwhile. Whatever life is killed where, in the end each target is what it should be, by rows,
both ways: the upsert targets equal the relation, and the append-only ones have every row that was
ever inserted exactly once. A reader of Kafka sees the changes of each key in their order.
"""

import os
from contextlib import suppress
from random import Random

import psycopg
import pytest

from delta_readers import read_by_delta_rs
from headwater.crash_points import POINTS
from headwater.testing.embedded_postgres import embedded_postgres
from headwater.testing.processes import ChildFailed
from kafka_kit import pairs, read
from kafka_servers import kafka_broker
from mysql_servers import mariadb_server
from serve_kit import Served, eventually, rows, run
from sql_sink_kit import MySqlYard

KILLED = -9
KILLS = int(os.environ.get("KILLS_OF_SINKS", "1"))
"""Random kills under load; the full figure is 50."""

pytestmark = pytest.mark.timeout(1500 + 30 * KILLS)

POINTS_IN_TURN = (
    "sink.before_prepare:2",
    "sink.after_prepare:2",
    "sink.after_prepared_mark:3",
    "sink.before_commit:4",
    "sink.after_commit:3",
    "sink.after_committed_mark:4",
    "sink.after_truncate:5",
)
ELSEWHERE = {"sink.after_abort", "sink.after_rewind"}
"""On the way of what is rare: `tests/unit/sinks/test_sink_executor*.py` passes them."""


@pytest.fixture(scope="module")
def postgres():
    with embedded_postgres() as url:
        yield url


def test_every_point_is_tried():
    tried = {point.split(":")[0] for point in POINTS_IN_TURN}
    assert tried | ELSEWHERE == {point for point in POINTS if point.startswith("sink.")}


class World:
    """A workspace whose sinks lead to tables of one schema, to its own tables, and to a folder."""

    def __init__(self, url, folder, schema):
        self.url, self.folder, self.schema = url, folder, schema
        self.workspace = folder / "w"
        self.delta = folder / "target"
        self.dice = Random(schema)
        self.number = 0
        self.maria = self.kafka = None

    def options(self, table):
        info = psycopg.conninfo.conninfo_to_dict(self.url)
        return (
            f"connector = 'postgres', host = '{info['host']}', port = '{info['port']}',"
            f" user = '{info['user']}', database = '{info['dbname']}', schema = '{self.schema}',"
            f" table = '{table}'"
        )

    def served(self, crash=None):
        return Served(self.workspace, crash=crash, forked=True)

    def set_up(self):
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {self.schema}")
        with self.served() as server:
            server.ready()
            with server.connect() as client:
                run(
                    client,
                    "CREATE TABLE t (id bigint PRIMARY KEY, v bigint, note varchar)",
                    "CREATE TABLE events (id bigint, what varchar) APPEND ONLY",
                    "CREATE TABLE copy_of_t (id bigint PRIMARY KEY, v bigint, note varchar)",
                    "CREATE TABLE copy_of_events (id bigint, what varchar)",
                    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')",
                    "FLUSH",
                    "CREATE SINK into_t INTO copy_of_t FROM t",
                    "CREATE SINK into_events INTO copy_of_events FROM events",
                    f"CREATE SINK same FROM t WITH ({self.options('same')})",
                    "CREATE SINK all_events FROM events WITH"
                    f" ({self.options('all_events')}, type = 'append-only')",
                    "CREATE SINK lake FROM t WITH (connector = 'deltalake',"
                    f" location = '{self.delta}')",
                )
                if self.maria is not None:
                    run(client, *self.more_sinks())
            server.terminate()
            assert server.wait(timeout=180) == 0

    def more_sinks(self):
        maria = self.maria.options("same")
        kafka = f"connector = 'kafka', properties.bootstrap.server = '{self.kafka.address}'"
        return (
            f"CREATE SINK maria FROM t WITH (connector = 'mysql', {_with(maria)})",
            f"CREATE SINK topic FROM t WITH ({kafka}, topic = 'same', partitions = '3',"
            " primary_key = 'id') FORMAT UPSERT ENCODE JSON",
            f"CREATE SINK log FROM events WITH ({kafka}, topic = 'events', primary_key = 'id')"
            " FORMAT PLAIN ENCODE JSON",
        )

    def write(self, client):
        """Some changes of any kind; the engine may be killed meanwhile."""
        self.number += 1
        low = 3 * self.number
        values = ", ".join(
            f"({n}, {self.dice.randrange(100)}, 'it''s {n}')" for n in range(low, low + 3)
        )
        run(
            client,
            f"INSERT INTO t VALUES {values}",
            f"INSERT INTO events VALUES ({self.number}, 'event {self.number}')",
            f"UPDATE t SET v = v + 1 WHERE id % 3 = {self.dice.randrange(3)}",
            f"DELETE FROM t WHERE id = {self.dice.randrange(1, low)}",
            "FLUSH",
        )

    def until_it_dies(self, server):
        try:
            with server.connect() as client:
                for _ in range(40):
                    self.write(client)
        except psycopg.Error:
            pass
        return server.wait(timeout=180)

    def same(self, client):
        with psycopg.connect(self.url, autocommit=True) as db:
            there = db.execute(f"SELECT id, v, note FROM {self.schema}.same").fetchall()
            events = db.execute(f"SELECT id, what FROM {self.schema}.all_events").fetchall()
        mine = sorted(rows(client, "SELECT id, v, note FROM t"))
        lake = sorted(tuple(row.values()) for row in read_by_delta_rs(str(self.delta)).to_pylist())
        happened = sorted(rows(client, "SELECT id, what FROM events"))
        same = sorted(there) == mine and lake == mine and sorted(events) == happened
        same = same and sorted(rows(client, "SELECT id, v, note FROM copy_of_t")) == mine
        same = same and sorted(rows(client, "SELECT id, what FROM copy_of_events")) == happened
        return same and (self.maria is None or self.more_same(mine, happened))

    def more_same(self, mine, happened):
        if sorted(self.maria.run("SELECT id, v, note FROM same")) != mine:
            return False
        latest = {}
        for key, value in pairs(read(self.kafka, "same")):
            latest[key["id"]] = value and (value["id"], value["v"], value["note"])
        found = [(value["id"], value["what"]) for _, value in pairs(read(self.kafka, "events"))]
        # Once each: a list, not a set.
        return sorted(filter(None, latest.values())) == mine and sorted(found) == happened

    def check(self):
        with self.served() as server:
            server.ready()
            with server.connect() as client:
                self.write(client)
                eventually(lambda: self.same(client), 180, "targets that equal their relations")
                assert not [r for r in rows(client, "SELECT reason FROM hw_catalog.sinks") if r[0]]


def test_killed_at_each_point_in_turn(postgres, tmp_path):
    world = World(postgres, tmp_path, "points")
    world.set_up()
    for point in POINTS_IN_TURN:
        with world.served(crash=point) as server:
            # What the last life has left is delivered first, and may lead there before that.
            with suppress(ChildFailed):
                server.ready()
            code = world.until_it_dies(server)
        assert code == KILLED, f"{point}: {code} {server.errors[-3000:]}"
    world.check()


FILLING = {"fill_at_once_rows": 100, "sink_driver_bytes": 4096, "backfill_slice_bytes": 20_000}
FILLING_POINTS = (
    "snapshot.after_slice:2",
    "snapshot.after_stage:2",
    "snapshot.before_merge",
    "snapshot.after_merge",
    "sink.after_prepare",
    "sink.after_prepared_mark",
    "sink.before_commit:2",
    "sink.after_commit",
    "sink.after_truncate",
)
"""Each is met by a life that creates two more sinks over rows which are there."""


def _file_all(world, client, number):
    """Two more sinks, if the life before has not created them."""
    lake = f"connector = 'deltalake', location = '{world.folder / f'lake{number}'}'"
    append = "type = 'append-only'"
    for name, where in (("pg", world.options(f"pg{number}")), ("lake", lake)):
        run(client, f"CREATE SINK IF NOT EXISTS {name}{number} FROM e WITH ({where}, {append})")


def _filed(world, client, number):
    happened = sorted(rows(client, "SELECT id, what FROM e"))
    with psycopg.connect(world.url, autocommit=True) as db:
        there = db.execute(f"SELECT id, what FROM {world.schema}.pg{number}").fetchall()
    lake = read_by_delta_rs(str(world.folder / f"lake{number}")).to_pylist()
    return sorted(there) == sorted(tuple(row.values()) for row in lake) == happened


def test_killed_while_new_sinks_get_the_rows_that_are_there(postgres, tmp_path):
    world = World(postgres, tmp_path, "filling")
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE SCHEMA filling")

    def served(crash=None):
        return Served(world.workspace, crash=crash, settings=FILLING)

    with served() as server:
        server.ready()
        with server.connect() as client:
            run(client, "CREATE TABLE e (id bigint, what varchar) APPEND ONLY")
            for low in range(0, 4000, 1000):
                some = f"generate_series({low + 1}, {low + 1000}) g"
                run(client, f"INSERT INTO e SELECT g, 'row ' || g FROM {some}", "FLUSH")
        server.kill()
    for number, point in enumerate(FILLING_POINTS):
        with served(crash=point) as server, suppress(ChildFailed, psycopg.Error):
            server.ready()
            with server.connect() as client:
                _file_all(world, client, number)
                for more in range(40):
                    run(client, f"INSERT INTO e VALUES ({more}, 'later {point}')", "FLUSH")
        assert server.wait(timeout=180) == KILLED, f"{point}: {server.errors[-3000:]}"
    with served() as server:
        server.ready()
        with server.connect() as client:
            for number in range(len(FILLING_POINTS)):
                _file_all(world, client, number)
            run(client, "WAIT", "FLUSH")
            for number in range(len(FILLING_POINTS)):
                eventually(lambda n=number: _filed(world, client, n), 180, f"sinks {number}")


def test_killed_at_random_under_load(postgres, tmp_path):
    world = World(postgres, tmp_path, "moments")
    with mariadb_server() as maria, kafka_broker() as kafka:
        world.maria, world.kafka = MySqlYard(maria), kafka
        world.set_up()
        for number in range(KILLS):
            with world.served() as server:
                server.ready()
                with server.connect() as client:
                    for _ in range(world.dice.randrange(2, 7)):
                        world.write(client)
                    if number % 2 == 0:
                        kafka.stop()
                        maria.stop()
                        world.write(client)
                        kafka.start()
                        maria.start()
                        world.write(client)
                server.kill()
        world.check()


def _with(options):
    return ", ".join(f"{name} = '{value}'" for name, value in options.items())
