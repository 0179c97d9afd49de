"""kill -9 of a real server while the columns of the tables that it follows change.

Columns are added with values, dropped, renamed and made wider upstream, while others write all
the time and views are kept on the tables. The server dies at every named point of such a change,
in every epoch that matters, and at random moments. In the end rows, columns and types are those
of the database, both ways, and so are the views.
"""

import random
import time

import psycopg
import pytest
from cdc_lives import die_at, live, served

from cdc_kit import Upstream, eventually, following, server, settled, stored, upstream, writers

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(2400)

ROWS = 1_500
MOST = 2 * ROWS
CHANGES_AND_DEATHS = (
    # What the death before left undone is made first, so each dies in the second of two changes.
    ("ADD COLUMN c int NOT NULL DEFAULT 5", "cdc.before_change"),
    ("RENAME COLUMN b TO name", "cdc.after_old_rows:2"),
    ("DROP COLUMN gone", "cdc.after_evolve:2"),
    ("ALTER COLUMN wide TYPE bigint", "cdc.after_evolve:2>epoch.before_ledger"),
    ("ADD COLUMN d text DEFAULT 'five'", "cdc.after_evolve:2>epoch.after_ledger"),
    ("RENAME COLUMN c TO gone", "cdc.after_evolve>publish.after"),
    ("DROP COLUMN d, ADD COLUMN d int DEFAULT 7", "cdc.after_change"),
    ("RENAME COLUMN d TO d2", "cdc.before_fill"),
    ("ADD COLUMN e float DEFAULT random()", "cdc.before_fill>cdc.after_chunk"),
)
VIEW = "SELECT k, count(*) AS n, sum(m) AS s FROM {0} GROUP BY k"


def made(upstream: Upstream) -> None:
    upstream.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int, m int, wide int, b text, gone text, large text)"
    )
    upstream.db.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    upstream.db.execute("CREATE TABLE u (id int PRIMARY KEY, n int)")
    upstream.db.execute(
        "INSERT INTO t SELECT g, g % 7, g, g, 'b' || g, 'g', repeat(md5(g::text), 80)"
        f" FROM generate_series(1, {ROWS}) g"
    )


def write(connection, dice):
    """What changes is in columns that nobody alters; large values are often not sent."""
    key, kind = dice.randrange(1, MOST), dice.random()
    if kind < 0.3:
        connection.execute(
            "INSERT INTO t (id, k, m) VALUES (%s, 1, 1) ON CONFLICT (id) DO UPDATE SET m = t.m + 1",
            [key],
        )
    elif kind < 0.55:
        connection.execute("UPDATE t SET m = m + 1 WHERE id BETWEEN %s AND %s", [key, key + 3])
    elif kind < 0.65:
        connection.execute("UPDATE t SET large = repeat(md5(random()::text), 100) WHERE id = %s",
                           [key])  # fmt: skip
    elif kind < 0.8:
        connection.execute("DELETE FROM t WHERE id = %s", [key])
    elif kind < 0.88:
        connection.execute(
            "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
            [key + MOST, key, key + MOST],
        )
    else:
        connection.execute(
            "INSERT INTO u VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET n = u.n + 1", [key % 50]
        )
    time.sleep(0.03)


TABLES = (
    "CREATE TABLE t (*) FROM shop TABLE 'public.t' WITH"
    " (backfill.num_rows_per_split = '300', backfill_rate_limit = '{0}')",
    "CREATE TABLE u (*) FROM shop TABLE 'public.u'",
    f"CREATE MATERIALIZED VIEW v AS {VIEW.format('t')}",
    "CREATE MATERIALIZED VIEW vv AS SELECT max(n) AS most, sum(s) AS total FROM v",
)


def check(workspace, upstream):
    """Nothing writes any more: columns, types, rows and views are the same, soon."""
    with following(workspace) as hw:
        hw.sql("ALTER TABLE t SET BACKFILL_RATE_LIMIT = default")

        def compare():
            for table in ("t", "u"):
                theirs = columns_upstream(upstream, table)
                ours = {c.name: c.type.postgres for c in hw.stored(table).schema.columns}
                assert ours == theirs, str(hw.sql("SHOW JOBS").rows())
                listed = {row[0] for row in hw.sql(f"SHOW COLUMNS FROM {table}").rows()}
                assert listed == set(theirs)
                said = ", ".join(hw.stored(table).schema.names)
                rows = {tuple(row) for row in upstream.rows(f"SELECT {said} FROM {table}")}
                found = stored(hw, table)
                assert len(set(found)) == len(found)
                assert not (missing := rows - set(found)), f"missing: {sorted(missing)[:3]}"
                assert not (extra := set(found) - rows), f"extra: {sorted(extra)[:3]}"

        # A table that nobody writes is looked at every ten seconds; here is a row that tells.
        upstream.db.execute("INSERT INTO t (id, k, m) VALUES (0, 0, 0) ON CONFLICT DO NOTHING")
        eventually(lambda: "stopped" not in str(hw.sql("SHOW JOBS").rows()), 30)
        settled(hw, compare, timeout=300)
        hw.sql("WAIT")
        settled(hw, compare, timeout=300)
        wanted = sorted(upstream.rows(VIEW.format("t")))
        assert sorted(hw.sql("SELECT k, n, s FROM v").rows()) == wanted
        assert hw.sql("SELECT most, total FROM vv").rows() == [
            (max(n for _, n, _ in wanted), sum(s for *_, s in wanted))
        ]


_SPELLED = {"text": "varchar", "double precision": "double precision"}


def columns_upstream(upstream, table):
    found = upstream.rows(
        "SELECT column_name::text, data_type::text FROM information_schema.columns"
        f" WHERE table_name = '{table}'"
    )
    return {name: _SPELLED.get(kind, kind) for name, kind in found}


def test_killed_at_every_point_of_a_change_of_columns(upstream, tmp_path):
    made(upstream)
    workspace = tmp_path / "w"
    with writers(upstream, write) as written:
        live(workspace, upstream.source(), *(t.format(-1) for t in TABLES), "WAIT")
        for change, point in CHANGES_AND_DEATHS:
            alter(upstream, change)
            die_at(workspace, point)
        assert written[0] > 50
    check(workspace, upstream)


@pytest.mark.parametrize(
    "change", ["RENAME COLUMN b TO name", "DROP COLUMN b, ADD COLUMN b int DEFAULT 7"]
)
def test_rows_before_a_change_that_no_row_tells_of(change, upstream, tmp_path):
    """They were written with the old columns, also to a life that begins with the new ones."""
    made(upstream)
    workspace = tmp_path / "w"
    live(workspace, upstream.source(), *(t.format(-1) for t in TABLES), "WAIT")
    for key in range(1, 6):
        upstream.db.execute("UPDATE t SET b = 'new' || id WHERE id = %s", [key])
    upstream.db.execute(f"ALTER TABLE t {change}")
    die_at(workspace, "cdc.after_change")
    check(workspace, upstream)


class Alterations:
    """Changes of columns at random, of a table whose other columns stay as they are."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._columns = {"wide": "int", "b": "text", "gone": "text"}
        self._dropped: list[str] = []
        self._made = 0

    def next(self) -> str:
        """What is altered next."""
        dice, kind = self._dice, self._dice.random()
        narrow = [name for name, type_ in self._columns.items() if type_ == "int"]
        if kind < 0.4 or not self._columns:
            type_, default = dice.choice(
                (("int", ""), ("int", " DEFAULT 7"), ("text", " NOT NULL DEFAULT 'five'"))
            )
            name = self._fresh()
            self._columns[name] = type_
            return f"ADD COLUMN {name} {type_}{default}"
        if kind < 0.55:
            name = dice.choice(sorted(self._columns))
            del self._columns[name]
            self._dropped.append(name)
            return f"DROP COLUMN {name}"
        if kind < 0.7 and narrow:
            self._columns[name := dice.choice(narrow)] = "bigint"
            return f"ALTER COLUMN {name} TYPE bigint"
        name, other = dice.choice(sorted(self._columns)), self._fresh()
        self._columns[other] = self._columns.pop(name)
        self._dropped.append(name)
        return f"RENAME COLUMN {name} TO {other}"

    def _fresh(self) -> str:
        """A name that is free, often one that was taken before."""
        if self._dropped and self._dice.random() < 0.4:
            return self._dropped.pop(self._dice.randrange(len(self._dropped)))
        self._made += 1
        return f"x{self._made}"


def test_killed_at_random_moments_while_columns_change(upstream, tmp_path):
    """The first lives fill the table while its columns change, the later ones only follow it."""
    made(upstream)
    workspace = tmp_path / "w"
    dice, alterations = random.Random(5), Alterations(5)
    with writers(upstream, write) as written:
        live(workspace, upstream.source(), *(t.format(150) for t in TABLES))
        for life in range(4):
            with served(workspace) as process:
                process.ready()
                if life == 2:
                    with process.connect() as client:
                        client.execute("ALTER TABLE t SET BACKFILL_RATE_LIMIT = default")
                for _ in range(dice.randrange(1, 4)):
                    alter(upstream, alterations.next())
                    time.sleep(dice.random() * 1.2)
                process.kill()
            # And one while nobody follows.
            alter(upstream, alterations.next())
        assert written[0] > 50
    check(workspace, upstream)


def alter(upstream, change):
    """An ALTER TABLE waits for others, and is repeated when they waited for each other."""
    while True:
        try:
            upstream.db.execute(f"ALTER TABLE t {change}")
        except psycopg.errors.DeadlockDetected:
            continue
        return


def test_killed_in_the_middle_of_being_filled_anew(upstream, tmp_path):
    """The table is empty then, and says so; asked again, it is filled."""
    made(upstream)
    workspace = tmp_path / "w"
    live(workspace, upstream.source(), *(t.format(-1) for t in TABLES), "WAIT")
    die_at(workspace, "cdc.after_clear", "ALTER TABLE t REFRESH SCHEMA")
    with following(workspace) as hw:
        upstream.db.execute("UPDATE t SET m = m + 1 WHERE id < 5")
        upstream.db.execute("INSERT INTO u VALUES (1, 1)")
        eventually(lambda: len(stored(hw, "u")) == 1)
        state = "SELECT state, trouble FROM hw_catalog.cdc_progress WHERE \"table\" = 't'"
        [(state, trouble)] = hw.sql(state).rows()
        assert state == "stopped"
        assert 'ALTER TABLE "t" REFRESH SCHEMA' in trouble
        hw.sql("ALTER TABLE t REFRESH SCHEMA")
        hw.sql("WAIT")
    check(workspace, upstream)
