"""Tables that are worth Spark tasks: read and written by them, under writers and restarts."""

import random
import time
from typing import Any

import pytest

from cdc_kit import FILL, ORDERS, eventually, following, same, server, upstream, writers
from headwater.state.file_name import is_snapshot

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(600)

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
            eventually(lambda: snapshot_files(hw) != [], 120)
        with following(tmp_path / "w") as hw:
            before = len(snapshot_files(hw))
            eventually(lambda: len(snapshot_files(hw)) > before, 120)
        with following(tmp_path / "w") as hw:
            hw.sql("WAIT")
            # The log has overtaken rows of the snapshot: some of them are hidden.
            assert any(live.dead is not None for live in snapshot_files(hw))
        assert written[0] > 200
        time.sleep(1)
    with following(tmp_path / "w") as hw:
        hw.sql("FLUSH")
        same(hw, upstream, "orders")
