"""Tables that are worth Spark tasks: read and written by them, under writers and restarts."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cdc_kit import FILL, ORDERS, eventually, following, same, server, upstream, writers
from headwater.state.file_name import is_snapshot

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(900)

ROWS = 400_000
FOLLOW = "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH ({0})"
SPLITS = "backfill.num_rows_per_split = '80000'"


def write(connection: Any, dice: random.Random) -> None:
    """Small transactions all over the table, keys that change among them."""
    key = dice.randrange(1, ROWS + 2000)
    match dice.randrange(5):
        case 0:
            connection.execute(
                "INSERT INTO orders VALUES (%s, 1, 'in', 1.5, 1, now(), 'x')"
                " ON CONFLICT (id) DO NOTHING",
                [key],
            )
        case 1:
            connection.execute("DELETE FROM orders WHERE id = %s", [key])
        case 2:
            connection.execute(
                "UPDATE orders SET id = %s WHERE id = %s"
                " AND NOT EXISTS (SELECT FROM orders WHERE id = %s)",
                [key + 5 * ROWS, key, key + 5 * ROWS],
            )
        case _:
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [key])


def snapshot_files(hw: Any) -> list[Any]:
    return [live for live in hw.stored("orders").view().files if is_snapshot(live.file.path)]


def is_filled(hw: Any) -> bool:
    return "orders" not in str(hw.sql("SHOW JOBS").rows())


def test_a_quiet_table_is_written_by_tasks_alone(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    upstream.db.execute("ANALYZE")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(FOLLOW.format(SPLITS))
        hw.sql("CREATE MATERIALIZED VIEW by_n AS SELECT n, count(*) c FROM orders GROUP BY n")
        hw.sql("WAIT")
        files = hw.stored("orders").view().files
        assert len(files) >= 4
        assert all(is_snapshot(live.file.path) for live in files)
        hw.sql("FLUSH")
        counts = hw.sql("SELECT n, c FROM by_n ORDER BY n").rows()
        assert [tuple(row) for row in counts] == upstream.rows(
            "SELECT n, count(*) FROM orders GROUP BY n ORDER BY n"
        )
        same(hw, upstream, "orders")


def test_filled_by_tasks_under_writers_with_restarts_in_between(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    upstream.db.execute("ANALYZE")
    with writers(upstream, write) as written:
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source())
            hw.sql(FOLLOW.format(f"{SPLITS}, backfill.parallelism = '1'"))
            eventually(lambda: snapshot_files(hw) != [], 240)
        with following(tmp_path / "w") as hw:
            before = len(snapshot_files(hw))
            eventually(lambda: len(snapshot_files(hw)) > before or is_filled(hw), 240)
        with following(tmp_path / "w") as hw:
            hw.sql("WAIT")
            # The log has overtaken rows of the snapshot: some of them are hidden.
            assert any(live.dead is not None for live in snapshot_files(hw))
        assert written[0] > 200
        time.sleep(1)
    with following(tmp_path / "w") as hw:
        hw.sql("FLUSH")
        same(hw, upstream, "orders")


def anonymous_mib() -> float:
    """Memory that the system cannot drop: mapped files do not count."""
    text = Path("/proc/self/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


def test_a_transaction_that_is_larger_than_its_share_of_memory(upstream, tmp_path):
    """It lands in one epoch, and passes by way of files instead of memory."""
    upstream.db.execute("CREATE TABLE wide (id bigint PRIMARY KEY, n int, note text)")
    upstream.db.execute("INSERT INTO wide SELECT g, 1, 'x' FROM generate_series(1, 1000) g")
    rows, peak, ended = 350_000, [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], anonymous_mib())

    with following(tmp_path / "w", driver_bytes=8 << 20) as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE wide (*) FROM shop TABLE 'public.wide'")
        hw.sql("WAIT")
        hw.spark().range(1).count()
        watcher = threading.Thread(target=watch)
        before = anonymous_mib()
        watcher.start()
        with upstream.db.transaction():
            upstream.db.execute(
                "INSERT INTO wide SELECT g, 2, repeat(md5(g::text), 40)"
                f" FROM generate_series(1001, {rows}) g"
            )
            upstream.db.execute("UPDATE wide SET n = 3 WHERE id % 3 = 0")
            upstream.db.execute("DELETE FROM wide WHERE id % 7 = 0")
        hw.sql("FLUSH")
        eventually(lambda: hw.stored("wide").view(hw.visible).rows > 1000, 300)
        ended.set()
        watcher.join()
        same(hw, upstream, "wide")
        epochs = {row[0] for row in hw.sql("SELECT DISTINCT n FROM wide").rows()}
        assert epochs == {1, 2, 3}
    # The log has over 600 MB of it, and Arrow as much again; in memory it would be both and more.
    assert peak[0] - before < 300, f"{peak[0] - before:.0f} MiB"


def test_a_backlog_does_not_wait_for_the_interval(upstream, tmp_path):
    """An epoch that is full asks for its end: otherwise nothing would be read until then."""
    upstream.db.execute("CREATE TABLE wide (id bigint PRIMARY KEY, note text)")
    with following(tmp_path / "w", driver_bytes=1 << 20, barrier_interval_ms=600_000) as hw:
        hw.sql(upstream.source())
        hw.sql("CREATE TABLE wide (*) FROM shop TABLE 'public.wide'")
        hw.sql("WAIT")
        for first in range(0, 4000, 200):
            upstream.db.execute(
                "INSERT INTO wide SELECT g, repeat(md5(g::text), 32)"
                f" FROM generate_series({first}, {first + 199}) g"
            )
        # Some four epochs, of which the last one may wait; otherwise one in ten minutes.
        eventually(lambda: hw.stored("wide").view(hw.visible).rows > 2500, 240)
        hw.sql("FLUSH")
        same(hw, upstream, "wide")
