"""Money moves between two tables of a PostgreSQL while the server that follows it is killed.

Contract points 5 to 7: a transfer is one transaction over both tables, so at every epoch that was
ever committed, in every life of the engine, the money is all there: in the tables, and in views
over them. All versions that were published are read afterwards, one by one.
"""

import random
import time

import pytest

from cdc_kit import eventually, server, upstream, writers
from engine_kit import delta_rows, published
from headwater.testing.processes import free_port
from serve_kit import Served, rows, run

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(1200)

KILLS = 2
ACCOUNTS = 300
TOTAL = 2 * 100 * ACCOUNTS
TOGETHER = "SELECT money FROM here UNION ALL SELECT money FROM there"
VIEWS = (
    f"CREATE MATERIALIZED VIEW total AS SELECT sum(money) AS s FROM ({TOGETHER}) both_of_them",
    "CREATE MATERIALIZED VIEW halves AS SELECT 'here' AS bank, sum(money) AS s FROM here"
    " UNION ALL SELECT 'there' AS bank, sum(money) AS s FROM there",
)


def _transfer(connection, dice):
    """Between any two accounts; some are closed, and opened under another number."""
    a, b = (dice.choice(("here", "there")) for _ in range(2))
    amount = dice.randrange(1, 20)
    with connection.transaction():
        for table, sign in ((a, -1), (b, 1)):
            connection.execute(
                f"UPDATE {table} SET money = money + %s WHERE id = (SELECT id FROM {table}"
                " WHERE id >= %s ORDER BY id LIMIT 1)",
                [sign * amount, dice.randrange(1, ACCOUNTS + 1)],
            )
        if dice.random() < 0.2:
            # The largest account moves to the other bank, under a number of its own.
            found = connection.execute(
                f"DELETE FROM {a} WHERE id = (SELECT max(id) FROM {a} WHERE id > {ACCOUNTS})"
                " RETURNING id, money"
            ).fetchone()
            if found is not None:
                connection.execute(f"INSERT INTO {b} VALUES (%s, %s)", [found[0] + 1, found[1]])
    time.sleep(0.02)


def _fill(db):
    for number, bank in enumerate(("here", "there")):
        db.execute(f"CREATE TABLE {bank} (id bigint PRIMARY KEY, money bigint)")
        db.execute(f"INSERT INTO {bank} SELECT g, 100 FROM generate_series(1, {ACCOUNTS}) g")
        # One more account in each, whose numbers never meet.
        db.execute(f"INSERT INTO {bank} VALUES ({ACCOUNTS + 1 + 1_000_000_000 * number}, 0)")


def test_the_money_is_all_there_at_every_epoch(upstream, tmp_path):
    dice = random.Random(3)
    _fill(upstream.db)
    workspace, port = tmp_path / "w", free_port()
    with writers(upstream, _transfer) as moved:
        with Served(workspace, port=port) as process:
            process.ready()
            with process.connect() as client:
                run(client, upstream.source())
                for bank in ("here", "there"):
                    run(client, f"CREATE TABLE {bank} (*) FROM shop TABLE 'public.{bank}'")
                run(client, "WAIT", *VIEWS)
                assert rows(client, "SELECT s FROM total") == [(TOTAL,)]
            _versions_more(workspace, dice.randrange(1, 4))
            process.kill()
        for _ in range(KILLS):
            with Served(workspace, port=port) as process:
                process.ready()
                # At any moment of an epoch, once some of this life are committed.
                _versions_more(workspace, dice.randrange(1, 6))
                time.sleep(dice.random() / 2)
                process.kill()
        assert moved[0] > 100
    with Served(workspace, port=port) as process:
        process.ready()
        with process.connect() as client:
            _catch_up(client, upstream)
            assert rows(client, "SELECT s FROM total") == [(TOTAL,)]
            assert sum(s for (s,) in rows(client, "SELECT s FROM halves")) == TOTAL
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert _check_versions(workspace) > 10


def _versions_more(workspace, count):
    """Wait until so many more versions of a view are published."""
    [folder] = (workspace / "tables").glob("halves-*")
    before = len(list(published(folder)))
    eventually(lambda: len(list(published(folder))) >= before + count, timeout=300)


def _catch_up(client, upstream):
    theirs = sorted(upstream.rows("SELECT * FROM here"))

    def there():
        run(client, "FLUSH")
        return sorted(rows(client, "SELECT * FROM here")) == theirs

    eventually(there, timeout=120)


def _check_versions(workspace):
    """How many published versions were looked at; all of them have all the money."""
    folders = {path.name.rsplit("-", 1)[0]: path for path in (workspace / "tables").iterdir()}
    looked = 0
    for name in ("total", "halves"):
        for version, epoch in published(folders[name]):
            found = delta_rows(folders[name], version).column("s").to_pylist()
            assert sum(found) == TOTAL, f"{name} at epoch {epoch}: {found}"
            looked += 1
    versions = {name: dict(published(folders[name])) for name in ("here", "there")}
    begun = max(min(by.values()) for by in versions.values())
    filled, current = False, {"here": 0, "there": 0}
    for epoch in sorted({epoch for by in versions.values() for epoch in by.values()}):
        for name, by in versions.items():
            for version, at in by.items():
                if at == epoch:
                    current[name] = sum(delta_rows(folders[name], version)["money"].to_pylist())
        filled = filled or (epoch > begun and sum(current.values()) == TOTAL)
        if filled:
            assert sum(current.values()) == TOTAL, f"epoch {epoch}: {current}"
            looked += 1
    return looked
