"""kill -9 of a real server at every crash point that a followed database passes.

One workspace lives through one death after the other, while others write to the PostgreSQL or the
MariaDB that it follows: rows come, change, go and get other keys. Whatever was under way, the next
life goes on by itself; in the end no row is missing and none is too many. A point that is not
passed fails the test: the process then does not end by SIGKILL.
"""

import random
import time
from collections.abc import Iterator

import pytest
from cdc_lives import KILLED, die_at, live, served
from cdc_shops import MariaShop, PostgresShop

from cdc_kit import eventually, following, same_rows, server, upstream
from headwater.crash_points import POINTS
from mysql_servers import RunningServer, mariadb_server

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(1800)

ELSEWHERE = {
    "checkpoint.after_delta_checkpoint", "compaction.after_files", "retention.before_delete",
    "retention.between_deletes",
    *(point for point in POINTS if point.startswith(("snapshot.", "upstream.", "sink.", "swap."))),
}  # fmt: skip
"""Maintenance, views and sinks, which know nothing of sources: other tests of this folder."""
CHANGING = {
    "cdc.before_change", "cdc.after_old_rows", "cdc.after_evolve", "cdc.after_change",
    "cdc.before_fill", "cdc.after_clear",
}  # fmt: skip
"""Columns that change; `cdc.after_clear` is tried in tests/crash/test_cdc_kill_columns.py."""
RUNNING = (
    "stage.before_files", "cdc.after_chunk", "stage.after_files", "epoch.before_ledger",
    "epoch.after_ledger", "recovery.before_publish", "publish.between_tables",
    "recovery.after_publish", "publish.after", "source.after_acknowledge", "cdc.after_acknowledge",
)  # fmt: skip
CREATING = (
    "catalog.before_create", "cdc.before_slot", "cdc.after_slot", "cdc.before_table",
    "catalog.after_create", "cdc.after_publish", "cdc.after_splits",
)  # fmt: skip
DROPPING = ("cdc.after_drop",)

TABLES = (
    "CREATE TABLE orders (*) FROM shop TABLE '{0}.orders' WITH"
    " (backfill.num_rows_per_split = '500', backfill_rate_limit = '100')",
    "CREATE TABLE small (*) FROM shop TABLE '{0}.small'",
)


def test_every_point_of_the_path_is_tried():
    assert {*RUNNING, *CREATING, *DROPPING} == set(POINTS) - ELSEWHERE - CHANGING


@pytest.fixture(scope="module")
def maria() -> Iterator[RunningServer]:
    with mariadb_server() as running:
        yield running


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request):
    """A database that nobody has followed yet."""
    if request.param == "postgres":
        return PostgresShop(request.getfixturevalue("upstream"))
    return MariaShop(request.getfixturevalue("maria"))


def tables(shop):
    return [statement.format(shop.schema) for statement in TABLES]


def check(workspace, shop, names=("orders", "small")):
    """Nothing writes any more: both ways the same, soon."""
    with following(workspace) as hw:
        hw.sql("ALTER TABLE orders SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        for table in names:
            same_rows(hw, shop.rows, table, timeout=300)


def test_killed_at_every_point_while_it_fills(shop, tmp_path):
    dice = random.Random(11)
    workspace = tmp_path / "w"
    with shop.writers() as written:
        live(workspace, shop.source, *tables(shop))
        for point in RUNNING:
            nth = 1 if point.startswith("recovery.") else dice.randrange(1, 5)
            die_at(workspace, f"{point}:{nth}")
        assert written[0] > 50
    check(workspace, shop)


def test_killed_at_random_moments_while_it_fills(maria, tmp_path):
    """Some kills come while it starts, some while it reads; PostgreSQL's are in the contract."""
    dice, shop = random.Random(3), MariaShop(maria)
    workspace = tmp_path / "w"
    with shop.writers() as written:
        live(workspace, shop.source, *tables(shop))
        for _ in range(4):
            with served(workspace) as process:
                if dice.random() < 0.7:
                    process.ready()
                time.sleep(dice.random() * 3)
                assert process.running, process.errors
                assert process.kill() == KILLED
        assert written[0] > 50
    check(workspace, shop)


def test_killed_while_it_is_created(shop, tmp_path):
    """Each death leaves something half-made; what follows finds it, and makes it whole."""
    workspace = tmp_path / "w"
    source, (orders, small) = shop.source, tables(shop)
    with shop.writers():
        die_at(workspace, "catalog.before_create", source)
        assert not shop.ours
        die_at(workspace, "cdc.before_slot", source)
        assert not shop.ours
        # From here on nobody asks for the source again: it is in the catalog.
        die_at(workspace, "cdc.after_slot")
        assert len(shop.ours) == (2 if shop.keeps_ours else 0)
        die_at(workspace, "cdc.before_table", orders)
        die_at(workspace, "catalog.after_create", orders)
        die_at(workspace, "cdc.after_publish", small)
        die_at(workspace, "cdc.after_splits")
        live(workspace, source, orders, small)
    check(workspace, shop)
    with following(workspace) as hw:
        hw.sql("DROP SOURCE shop CASCADE")
    assert not shop.ours


def test_killed_while_it_is_dropped(shop, tmp_path):
    workspace = tmp_path / "w"
    live(workspace, shop.source, *tables(shop))
    die_at(workspace, "cdc.after_drop", "DROP SOURCE shop CASCADE")
    with following(workspace) as hw:
        # It is still here, and says what is the matter; dropped again it is gone.
        if shop.keeps_ours:
            told = "SELECT text FROM hw_catalog.events"
            eventually(lambda: "is gone" in str(hw.sql(told).rows()))
        assert not shop.ours
        hw.sql("DROP SOURCE shop CASCADE")
        assert hw.sql("SHOW SOURCES").rows() == []
        assert not shop.ours
