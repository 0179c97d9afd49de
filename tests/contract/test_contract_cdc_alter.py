"""A backfill is throttled and scaled at any time, and says how far it is (contract point 11).

`ALTER TABLE t SET BACKFILL_RATE_LIMIT = n | default` and `SET PARALLELISM = n` are accepted before
a backfill has begun to move, while it runs, once it is done and after a kill -9. `SHOW JOBS` has
the id first; percentages look like 12.3%, are between 0 and 100, and never fall in one life.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from cdc_kit import FILL, ORDERS, server, upstream
from headwater.testing.processes import free_port
from mysql_servers import RunningServer, mariadb_server
from serve_kit import Served, eventually, refusal, rows, run, value

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(900)

ROWS = 20_000
SLOW = (
    "BACKFILL_RATE_LIMIT = 5", "BACKFILL_RATE_LIMIT TO 0", "PARALLELISM = 1", "PARALLELISM TO 16",
    "PARALLELISM = adaptive", "PARALLELISM = 256", "PARALLELISM = default",
)  # fmt: skip
"""With these a backfill does not come to its end."""
SETTINGS = (
    *SLOW, "BACKFILL_RATE_LIMIT = default", "BACKFILL_RATE_LIMIT = 1000000000",
    "BACKFILL_RATE_LIMIT TO DEFAULT",
)  # fmt: skip
_PERCENT = re.compile(r"(?<![\d.])(\d+\.\d)%")


class Progress:
    """What SHOW JOBS has said of one table in one life of the engine."""

    def __init__(self, client: "psycopg.Connection[Any]", table: str) -> None:
        self._client = client
        self._table = table
        self.percents: list[float] = []
        self.ids: set[int] = set()

    def look(self) -> float | None:
        """How far it is now; None once it is not a job any more."""
        cursor = self._client.execute("SHOW JOBS")
        assert cursor.description is not None
        assert cursor.description[0].name.lower() == "id"
        mine = [row for row in cursor.fetchall() if f"TABLE {self._table} " in str(row[1])]
        if not mine:
            return None
        [row] = mine
        self.ids.add(int(row[0]))
        found = _PERCENT.findall(str(row[-1]))
        assert len(found) == 1, row
        percent = float(found[0])
        assert 0 <= percent <= 100
        assert percent >= max(self.percents, default=0.0), (self.percents[-5:], row)
        self.percents.append(percent)
        return percent

    def until(self, done: Callable[[float], bool], limit_s: float = 120.0) -> None:
        """Look until it is so far."""
        deadline = time.monotonic() + limit_s
        while (percent := self.look()) is not None and not done(percent):
            assert time.monotonic() < deadline, self.percents[-5:]
            time.sleep(0.02)


def _set(client: "psycopg.Connection[Any]", table: str, setting: str) -> None:
    run(client, f"ALTER TABLE {table} SET {setting}")


def _still(seen: Callable[[], int]) -> bool:
    before = seen()
    time.sleep(3.0)
    return seen() == before


def _altered_while_it_fills(
    client: "psycopg.Connection[Any]", table: str, seen: Callable[[], int]
) -> Progress:
    """From paused to half done, with every setting on the way."""
    progress = Progress(client, table)
    progress.look()
    for setting in SLOW:
        _set(client, table, setting)
        progress.look()
    _set(client, table, "BACKFILL_RATE_LIMIT = 300")
    progress.until(lambda _: seen() > 0)
    _set(client, table, "BACKFILL_RATE_LIMIT = 0")
    # What was read before is on its way; then nothing more comes.
    eventually(lambda: _still(seen), 120, "a pause")
    assert seen() < ROWS
    for number, readers in ((400, 1), (1_000, 8), (600, 2)):
        began = time.monotonic()
        _set(client, table, f"BACKFILL_RATE_LIMIT = {number}")
        _set(client, table, f"PARALLELISM = {readers}")
        # What was read under the limit before is shown first.
        run(client, "FLUSH")
        before = seen()
        progress.until(lambda _, before=before, number=number: seen() >= before + number // 2)
        brought = seen() - before
        took = time.monotonic() - began
        # A second's worth may come at once, and what was begun before counts as well.
        assert brought <= number * (took + 3), (number, brought, took)
    # So slow that it is still under way after a restart that takes long.
    _set(client, table, "BACKFILL_RATE_LIMIT = 20")
    assert seen() < ROWS
    assert len(progress.ids) == 1
    return progress


def _story(
    process: Served, create: str, table: str, stored: Callable[[], list[Any]], again: Any
) -> Any:
    """The whole of it; `again` gives the next life of the engine."""
    with process.connect() as client:
        run(client, create)
        count = f"SELECT count(*) FROM {table}"
        progress = _altered_while_it_fills(client, table, lambda: value(client, count))
        assert progress.percents[-1] > 0
        [id_] = progress.ids
    process.kill()
    process = again()
    with process.connect() as client:
        progress = Progress(client, table)
        progress.look()
        # What was set last is still so: it goes on slowly.
        assert value(client, f"SELECT count(*) FROM {table}") < ROWS
        for setting in SLOW:
            _set(client, table, setting)
            progress.look()
        _set(client, table, "BACKFILL_RATE_LIMIT = 6000")
        progress.until(lambda percent: percent > 90)
        _set(client, table, "BACKFILL_RATE_LIMIT = default")
        progress.until(lambda percent: percent == 100)
        assert progress.ids <= {id_}
        run(client, "WAIT")
        for setting in SETTINGS:
            _set(client, table, setting)
        _same(client, table, stored)
        for wrong in ("BACKFILL_RATE_LIMIT = 'x'", "PARALLELISM = 0", "PARALLELISM = 1000"):
            assert refusal(client, f"ALTER TABLE {table} SET {wrong}").sqlstate in (
                "22023", "42601",
            )  # fmt: skip
        assert refusal(client, "ALTER TABLE nowhere SET PARALLELISM = 1").sqlstate == "42P01"
    process.kill()
    process = again()
    with process.connect() as client:
        for setting in SETTINGS:
            _set(client, table, setting)
        assert Progress(client, table).look() in (None, 100.0)
        _same(client, table, stored)
    return process


def _same(client: "psycopg.Connection[Any]", table: str, stored: Callable[[], list[Any]]) -> None:
    """Both ways."""
    theirs = {tuple(map(str, row)) for row in stored()}

    def ours() -> set[tuple[str, ...]]:
        run(client, "FLUSH")
        return {tuple(map(str, row)) for row in rows(client, f"SELECT id, note FROM {table}")}

    eventually(lambda: ours() == theirs, 120, "equality")


def test_a_backfill_of_postgres_is_altered_at_any_time(upstream, tmp_path):
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    upstream.db.execute("ANALYZE")
    port = free_port()
    with _Lives(tmp_path / "w", port) as lives:
        process = lives.next()
        with process.connect() as client:
            run(client, upstream.source())
        create = (
            "CREATE TABLE orders (*) FROM shop TABLE 'public.orders' WITH"
            " (backfill.num_rows_per_split = '500', backfill_rate_limit = '0')"
        )

        def stored() -> list[Any]:
            return upstream.rows("SELECT id, note FROM orders")

        process = _story(process, create, "orders", stored, lives.next)
        upstream.db.execute("UPDATE orders SET note = 'later' WHERE id % 100 = 0")
        with process.connect() as client:
            _same(client, "orders", stored)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[RunningServer]:
    with mariadb_server() as running:
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        yield running


def test_a_backfill_of_mariadb_is_altered_at_any_time(mariadb, tmp_path):
    mariadb.run(
        "CREATE TABLE orders (id int PRIMARY KEY, note varchar(40))",
        f"INSERT INTO orders SELECT seq, md5(seq) FROM seq_1_to_{ROWS}",
        "ANALYZE TABLE orders",
        database="shop",
    )
    said = ", ".join(f"{k} = '{v}'" for k, v in mariadb.options("shop").items())
    with _Lives(tmp_path / "w", free_port()) as lives:
        process = lives.next()
        with process.connect() as client:
            run(client, f"CREATE SOURCE shop WITH (connector = 'mysql-cdc', {said})")
        create = (
            "CREATE TABLE orders (*) FROM shop TABLE 'shop.orders' WITH"
            " (backfill.num_rows_per_split = '500', backfill_rate_limit = '0')"
        )
        query = "SELECT id, note FROM orders"
        _story(process, create, "orders", lambda: mariadb.run(query, database="shop"), lives.next)


class _Lives:
    """One server after the other on the same workspace and port; the last one ends with it."""

    def __init__(self, workspace: Any, port: int) -> None:
        self._given = workspace, port
        self._process: Served | None = None

    def next(self) -> Served:
        self._end()
        workspace, port = self._given
        self._process = Served(workspace, port=port).__enter__()
        self._process.ready()
        return self._process

    def __enter__(self) -> "_Lives":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None
