"""What delivering costs from end to end: an engine, its log, and a real PostgreSQL or Delta table.

    python bench/sinks.py [--rows 1e6] [--changes 1000] [--turns 3] [--mariadb]

    first       CREATE SINK over a table of so many rows until the target has them all, beside
                COPY (for MariaDB: LOAD DATA) of the same rows into a table with a key, and Spark
                writing them as Parquet. Both take turns; a figure is the median of the turns
    latency     a small write, from the moment it can be read here until it is at the target
    idle        the epochs of an engine with 20 idle sinks, beside one without

Targets are compared with the relation, both ways, before a figure is printed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psycopg
from deltalake import DeltaTable

import headwater
from headwater.testing.embedded_postgres import embedded_postgres
from mysql_servers import mariadb_server
from sql_sink_kit import MySqlYard

SETTINGS = {"barrier_interval_ms": 500, "spark_master": "local[2]", "spark_driver_memory": "2g"}
COLUMNS = "id bigint PRIMARY KEY, customer bigint, note varchar, amount numeric(12,2)"
QUERY = (
    "SELECT g AS id, g % 10007 AS customer, 'order ' || g AS note,"
    " (g % 1000) + 0.25 AS amount FROM generate_series(1, {rows}) g"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mariadb", action="store_true")
    given = parser.parse_args()
    rows = int(given.rows)
    with embedded_postgres("max_wal_size=4GB") as url, tempfile.TemporaryDirectory() as folder:
        parts = _ready_made(url, rows)
        with headwater.connect(Path(folder) / "w", settings=SETTINGS) as hw:
            hw.sql(f"CREATE TABLE orders ({COLUMNS})")
            hw.sql(f"INSERT INTO orders {QUERY.format(rows=rows)}")
            hw.sql("FLUSH")
            parquet = _parquet(hw, Path(folder))
            print(f"Spark writes them as Parquet: {parquet:.2f} s")
            _first(hw, Postgres(url, parts), rows, given.turns)
            if given.mariadb:
                with mariadb_server("--local-infile=ON") as server:
                    _first(hw, MariaDb(server, parts, Path(folder)), rows, given.turns)
            _delta(hw, Path(folder), rows, parquet)
            _latency(hw, url, given.changes)
            _idle(hw)


def _met(share: float, aim: float) -> str:
    return "met" if share >= aim else "NOT met"


def _options(url: str, table: str) -> str:
    info: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url)
    return (
        f"connector = 'postgres', host = '{info['host']}', port = '{info['port']}',"
        f" user = '{info['user']}', database = '{info['dbname']}', table = '{table}'"
    )


def _ready_made(url: str, rows: int) -> list[bytes]:
    """The rows as text, as COPY and LOAD DATA read them."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE made AS {QUERY.format(rows=rows)}")
        parts: list[bytes] = []
        with db.cursor() as cursor, cursor.copy("COPY made TO STDOUT") as out:
            parts.extend(bytes(part) for part in out)
        db.execute("DROP TABLE made")
        return [b"".join(parts[start : start + 5000]) for start in range(0, len(parts), 5000)]


class Postgres:
    """A target, and the same rows by hand."""

    name, kinds, way = "", ("append-only", "upsert"), "COPY"

    def __init__(self, url: str, parts: list[bytes]) -> None:
        self._url, self._parts = url, parts
        self._db = psycopg.connect(url, autocommit=True)

    def make(self, table: str) -> None:
        """An empty table, and nothing left to write of those before."""
        self._db.execute(f"DROP TABLE IF EXISTS {table}")
        self._db.execute(f"CREATE TABLE {table} ({COLUMNS})")
        self._db.execute("CHECKPOINT")

    def by_hand(self, table: str) -> None:
        """The limit: a ready-made file, one transaction."""
        with self._db.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as into:
            for part in self._parts:
                into.write(part)

    def options(self, table: str) -> str:
        """What stands in WITH."""
        return _options(self._url, table)

    def one(self, query: str) -> Any:
        """The one row of a query."""
        return self._db.execute(query).fetchone()


class MariaDb:
    """The same for MariaDB."""

    name, kinds, way = " MariaDB", ("upsert",), "LOAD DATA"

    def __init__(self, server: Any, parts: list[bytes], folder: Path) -> None:
        self._yard = MySqlYard(server)
        self._file = folder / "mariadb.txt"
        self._file.write_bytes(b"".join(parts))
        self._line = server.connect("shop", local_infile=True, autocommit=True)

    def make(self, table: str) -> None:
        """An empty table."""
        columns = COLUMNS.replace("varchar", "varchar(64)")
        self._run(f"DROP TABLE IF EXISTS {table}")
        self._run(f"CREATE TABLE {table} ({columns}) ENGINE = InnoDB")

    def by_hand(self, table: str) -> None:
        """The limit: a ready-made file, one transaction."""
        self._run(f"LOAD DATA LOCAL INFILE '{self._file}' INTO TABLE {table} CHARACTER SET utf8mb4")

    def options(self, table: str) -> str:
        """What stands in WITH."""
        said = self._yard.options(table)
        return "connector = 'mysql', " + ", ".join(f"{n} = '{v}'" for n, v in said.items())

    def one(self, query: str) -> Any:
        """The one row of a query."""
        return self._run(query)

    def _run(self, statement: str) -> Any:
        with self._line.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None


def _parquet(hw: Any, folder: Path) -> float:
    hw.table("orders").limit(1000).write.parquet(str(folder / "warm"))
    began = time.perf_counter()
    hw.table("orders").write.parquet(str(folder / "plain"))
    return time.perf_counter() - began


def _first(hw: Any, target: Postgres | MariaDb, rows: int, turns: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in target.kinds}
    for turn in range(turns):
        for kind in target.kinds:
            target.make("by_hand")
            began = time.perf_counter()
            target.by_hand("by_hand")
            by_hand = time.perf_counter() - began
            table = f"out_{kind.replace('-', '_')}_{turn}"
            target.make(table)
            found[kind].append((by_hand, _created(hw, target, table, kind, rows)))
            hw.sql(f"DROP SINK {table}")
    for kind, times in found.items():
        share = statistics.median(hand / ours for hand, ours in times)
        hand, ours = (statistics.median(each) for each in zip(*times, strict=True))
        print(
            f"first{target.name} {kind}: {ours:.2f} s, {target.way} {hand:.2f} s, {share:.2f} of "
            f"{target.way} (aim 0.7: {_met(share, 0.7)}; each turn: "
            + ", ".join(f"{hand / ours:.2f}" for hand, ours in times)
            + ")"
        )


def _created(hw: Any, target: Postgres | MariaDb, table: str, kind: str, rows: int) -> float:
    more = ", ignore_delete = 'true'" if kind == "append-only" else ""
    began = time.perf_counter()
    hw.sql(f"CREATE SINK {table} FROM orders WITH ({target.options(table)}, type = '{kind}'{more})")
    while (seen := _all_there(target, table, rows)) is None:
        time.sleep(0.02)
    _compare(hw, target.one(f"SELECT sum(id), sum(amount), count(*) FROM {table}"))
    return seen - began


def _all_there(target: Postgres | MariaDb, table: str, rows: int) -> float | None:
    """When a count that found all rows was begun, which sees what was there then."""
    # A count reads the whole table, also what is not visible yet, and takes the processor from
    # those who write it: rows from all over it are looked for first.
    some = ", ".join(str(1 + rows * place // 40) for place in range(40))
    if target.one(f"SELECT count(*) FROM {table} WHERE id IN ({some})") != (40,):
        return None
    began = time.perf_counter()
    return began if target.one(f"SELECT count(*) FROM {table}") == (rows,) else None


def _delta(hw: Any, folder: Path, rows: int, parquet: float) -> None:
    target = folder / "delta"
    began = time.perf_counter()
    hw.sql(
        f"CREATE SINK lake FROM orders WITH (connector = 'deltalake', location = '{target}',"
        " type = 'append-only', ignore_delete = 'true')"
    )
    while (
        sum(DeltaTable(str(target)).get_add_actions(flatten=True).column("num_records").to_pylist())
        < rows
    ):
        time.sleep(0.05)
    took = time.perf_counter() - began
    share = parquet / took
    print(
        f"first delta: {took:.2f} s, {share:.2f} of Spark's Parquet (aim 0.8: {_met(share, 0.8)})"
    )
    hw.sql("DROP SINK lake")


def _compare(hw: Any, theirs: Any) -> None:
    mine = hw.sql("SELECT sum(id), sum(amount), count(*) FROM orders").collect()[0]
    if tuple(mine) != tuple(theirs):
        raise SystemExit(f"the target has {theirs}, the table {tuple(mine)}")


def _latency(hw: Any, url: str, changes: int) -> None:
    hw.sql("CREATE TABLE small (id bigint PRIMARY KEY, v bigint)")
    hw.sql(f"CREATE SINK small_out FROM small WITH ({_options(url, 'small')})")
    found = []
    with psycopg.connect(url, autocommit=True) as db:
        for number in range(changes):
            hw.sql(f"INSERT INTO small VALUES ({number}, {number})")
            hw.sql("FLUSH")
            began = time.perf_counter()
            while db.execute("SELECT max(id) FROM small").fetchone() != (number,):
                time.sleep(0.002)
            found.append(time.perf_counter() - began)
    worst = sorted(found)[int(len(found) * 0.99)]
    print(f"latency: p50 {statistics.median(found) * 1000:.0f} ms, p99 {worst * 1000:.0f} ms")


def _idle(hw: Any) -> None:
    def epochs() -> float:
        took = []
        for number in range(20):
            began = time.perf_counter()
            hw.sql(f"UPDATE small SET v = {number} WHERE id = 0")
            hw.sql("FLUSH")
            took.append(time.perf_counter() - began)
        return statistics.median(took)

    before = epochs()
    hw.sql("CREATE TABLE quiet (id bigint PRIMARY KEY)")
    for number in range(20):
        hw.sql(f"CREATE SINK quiet_{number} FROM quiet WITH (connector = 'blackhole')")
    after = epochs()
    print(f"idle: an epoch beside 20 idle sinks takes {after / before:.2f} of what it took without")


if __name__ == "__main__":
    main()
