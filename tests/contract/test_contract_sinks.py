"""What sinks promise to the outside: contract point 10, through kills and a target that is away.

Money moves between accounts; every move is one transaction. One sink keeps the accounts current at
the target, another writes a row for every move. Whoever looks at the target, at any moment, finds
all the money, and in the end every move is there exactly once.
"""

import random
import threading
import time
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from headwater.testing.embedded_postgres import embedded_postgres
from headwater.testing.processes import free_port
from serve_kit import Served, eventually, rows, run, value

pytestmark = pytest.mark.timeout(900)

KILLS = 2
ACCOUNTS = 40
TOTAL = 100 * ACCOUNTS


@contextmanager
def target():
    """A second PostgreSQL; gives a way to connect to it, and its options for a sink."""
    with embedded_postgres() as url:
        info = psycopg.conninfo.conninfo_to_dict(url)
        options = (
            f"connector = 'postgres', host = '{info['host']}', port = '{info['port']}', "
            f"user = '{info['user']}', database = '{info['dbname']}'"
        )
        if "password" in info:
            options += f", password = '{info['password']}'"
        yield url, options


class Watcher(threading.Thread):
    """Looks at the target all the time, and remembers what it should never see."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.looks = 0
        self.wrong: list[object] = []
        self.stop = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as db:
            while not self.stop.wait(0.02):
                found = db.execute("SELECT to_regclass('accounts')").fetchone()
                if found != (None,):
                    total = db.execute("SELECT sum(money)::bigint FROM accounts").fetchone()
                    if total not in ((TOTAL,), (None,)):
                        self.wrong.append(total)
                    self.looks += 1


def _set_up(client, options):
    run(
        client,
        "CREATE TABLE accounts (id bigint PRIMARY KEY, money bigint, note varchar)",
        "CREATE TABLE moves (id bigint, amount bigint) APPEND ONLY",
        "CREATE MATERIALIZED VIEW rich AS SELECT id, money FROM accounts WHERE money > 100",
    )
    values = ", ".join(f"({n}, 100, 'it''s \"{n}\"')" for n in range(1, ACCOUNTS + 1))
    run(client, f"INSERT INTO accounts VALUES {values}", "FLUSH")
    run(
        client,
        f"CREATE SINK accounts_out FROM accounts WITH ({options}, table = 'accounts')",
        f"CREATE SINK moves_out FROM moves WITH ({options}, table = 'moves', type = 'append-only')",
        f"CREATE SINK rich_out FROM rich WITH ({options}, table = 'rich', primary_key = 'id')",
        "CREATE SINK poor_out AS SELECT id, money, 2 * money AS twice FROM accounts"
        f" WHERE money < 100 WITH ({options}, table = 'poor', primary_key = 'id')",
    )


class Mover:
    """Moves money; knows which moves the engine has accepted, and which it may have."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.number = 0
        self.sure: list[tuple[int, int]] = []
        self.unsure: list[tuple[int, int]] = []

    def move(self, client) -> None:
        a, b = self._dice.sample(range(1, ACCOUNTS + 1), 2)
        self.number += 1
        move = (self.number, self._dice.randrange(1, 9))
        self.unsure.append(move)
        with client.transaction():
            client.execute(
                f"UPDATE accounts SET money = money + CASE id WHEN {a} THEN -{move[1]}"
                f" ELSE {move[1]} END WHERE id IN ({a}, {b})"
            )
            client.execute(f"INSERT INTO moves VALUES ({move[0]}, {move[1]})")
        self.unsure.remove(move)
        self.sure.append(move)


def _same(client, db):
    """The target against the relations, by rows, both ways."""
    pairs = {
        "accounts": "SELECT id, money, note FROM accounts",
        "moves": "SELECT id, amount FROM moves",
        "rich": "SELECT id, money FROM rich",
        "poor": "SELECT id, money, 2 * money FROM accounts WHERE money < 100",
    }
    columns = {"accounts": "id, money, note", "moves": "id, amount", "rich": "id, money"}
    for table, query in pairs.items():
        there = db.execute(
            f"SELECT {columns.get(table, 'id, money, twice')} FROM {table}"
        ).fetchall()
        if sorted(rows(client, query)) != sorted(there):
            return False
    return True


def test_targets_equal_their_relations_through_kills_and_while_they_are_away(tmp_path):
    dice, mover = random.Random(11), Mover(5)
    workspace, port = tmp_path / "w", free_port()
    with target() as (url, options), ExitStack() as stack:
        watcher = Watcher(url)
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(watcher.stop.set)
        for life in range(KILLS + 1):
            with Served(workspace, port=port) as server:
                server.ready()
                with server.connect() as client:
                    if life == 0:
                        _set_up(client, options)
                    for _ in range(dice.randrange(3, 12)):
                        mover.move(client)
                    if life == KILLS:
                        run(client, "FLUSH")
                        with psycopg.connect(url, autocommit=True) as db:
                            eventually(lambda: _same(client, db), 150, "the target to be the same")
                            _check_moves(db, mover)
                    else:
                        time.sleep(dice.random() * 1.5)
                if life < KILLS:
                    server.kill()
    assert watcher.looks > 20
    assert not watcher.wrong, watcher.wrong[:5]


def _check_moves(db, mover):
    there = db.execute("SELECT id, amount FROM moves ORDER BY id").fetchall()
    assert len(set(there)) == len(there), "a move is there twice"
    assert set(mover.sure) <= set(there) <= {*mover.sure, *mover.unsure}


def test_a_target_that_is_away_stops_no_epoch_and_is_served_later(server, tmp_path):
    """FLUSH comes back, others read on, the sink says that it waits, and nothing is lost."""
    with target() as (url, options), server.connect() as client:
        run(client, "CREATE TABLE far (id bigint PRIMARY KEY, v bigint)")
        run(client, f"CREATE SINK far_out FROM far WITH ({options}, table = 'far')")
        run(client, "INSERT INTO far VALUES (1, 1)", "FLUSH")
        with psycopg.connect(url, autocommit=True) as db:
            eventually(lambda: db.execute("SELECT * FROM far").fetchall() == [(1, 1)], 90)
            with frozen_table(url):
                for number in range(2, 12):
                    run(client, f"INSERT INTO far VALUES ({number}, {number})")
                    started = time.monotonic()
                    run(client, "FLUSH")
                    assert time.monotonic() - started < 30
                assert db.execute("SELECT count(*) FROM pg_locks WHERE granted").fetchone()
                assert value(client, "SELECT count(*) FROM far") == 11
            run(
                client,
                "UPDATE far SET v = -v WHERE id < 4",
                "DELETE FROM far WHERE id = 5",
                "FLUSH",
            )
            mine = sorted(rows(client, "SELECT id, v FROM far"))
            eventually(lambda: sorted(db.execute("SELECT * FROM far").fetchall()) == mine, 120)
        run(client, "DROP SINK far_out", "DROP TABLE far")
        with psycopg.connect(url, autocommit=True) as db:
            # What it kept at the target goes by itself; DROP does not wait for a target.
            eventually(lambda: not _book_keeping(db), 90)


def _book_keeping(db):
    found = db.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE '%headwater%' AND relkind = 'r'"
    ).fetchall()
    return [row for (name,) in found for row in db.execute(f"SELECT * FROM {name}").fetchall()]


@contextmanager
def frozen_table(url):
    """The target's table is locked by somebody else: deliveries can only wait."""
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE far IN ACCESS EXCLUSIVE MODE")
        yield
        holder.rollback()


def test_no_password_is_shown(server, tmp_path):
    with server.connect() as client:
        run(client, "CREATE TABLE quiet (id bigint PRIMARY KEY)")
        with pytest.raises(psycopg.Error) as refused:
            run(
                client,
                "CREATE SINK q FROM quiet WITH (connector = 'postgres', host = '127.0.0.1',"
                f" port = '{free_port()}', user = 'u', password = 'hush-hush', database = 'd',"
                " table = 'quiet')",
            )
        assert "hush-hush" not in str(refused.value)
        assert not rows(client, "SHOW SINKS LIKE 'q'")
        run(client, "DROP TABLE quiet")
    assert "hush-hush" not in server.errors


def test_psql_shows_sinks(server):
    with server.connect() as client:
        run(
            client,
            "CREATE TABLE shown (id bigint PRIMARY KEY, v bigint)",
            "CREATE SINK into_nothing FROM shown WITH (connector = 'blackhole')",
        )
        assert ("into_nothing",) in rows(client, "SHOW SINKS")
        ((_, text),) = rows(client, "SHOW CREATE SINK into_nothing")
        assert 'FROM "shown"' in text
        assert rows(client, "SELECT name, connector FROM rw_catalog.rw_sinks") == [
            ("into_nothing", "BLACKHOLE")
        ]
        refused = None
        try:
            run(client, "DROP TABLE shown")
        except psycopg.Error as error:
            refused = error
        assert refused is not None
        assert refused.sqlstate == "2BP01"
        run(client, "DROP TABLE shown CASCADE")
        assert not rows(client, "SHOW SINKS")
