"""Tables without a key: their rows are counted, and the counts are the source's."""

import random
import time
from collections import Counter
from typing import Any

import pytest

from cdc_kit import eventually, following, server, settled, upstream, writers
from headwater.errors import HeadwaterError

__all__ = ["server", "upstream"]

pytestmark = pytest.mark.timeout(300)

TABLE = """CREATE TABLE notes (n int, word text, at timestamptz, amount numeric, large text);
    ALTER TABLE notes ALTER COLUMN large SET STORAGE EXTERNAL;
    ALTER TABLE notes REPLICA IDENTITY FULL"""
FILL = """INSERT INTO notes SELECT g % 500, nullif('w' || g % 7, 'w3'),
    timestamptz '2024-01-01' + (g % 11) * interval '1 day', (g % 13) / 4.0,
    CASE WHEN g % 50 = 0 THEN repeat(md5((g % 100)::text), 200) END
    FROM generate_series(1, {0}) g"""
FOLLOW = "CREATE TABLE notes (*) FROM shop TABLE 'public.notes' WITH ({0})"
SPLITS = "backfill.num_rows_per_split = '1000'"


def write(connection: Any, dice: random.Random) -> None:
    """Copies come and go, one or many at a time; large values stay as they are."""
    n = dice.randrange(520)
    match dice.randrange(6):
        case 0:
            connection.execute("INSERT INTO notes VALUES (%s, 'new', now(), 0.5, null)", [n])
        case 1:
            connection.execute("INSERT INTO notes SELECT * FROM notes WHERE n = %s LIMIT 3", [n])
        case 2:
            connection.execute(
                "DELETE FROM notes WHERE ctid IN (SELECT ctid FROM notes WHERE n = %s LIMIT 2)",
                [n],
            )
        case 3:
            connection.execute("DELETE FROM notes WHERE n = %s AND word = 'w1'", [n])
        case _:
            connection.execute(
                "UPDATE notes SET n = %s WHERE n = %s AND amount < 1",
                [dice.randrange(520), n],
            )


def filled(upstream: Any, rows: int) -> None:
    for each in TABLE.split(";"):
        upstream.db.execute(each)
    upstream.db.execute(FILL.format(rows))


def same_copies(hw: Any, upstream: Any) -> None:
    """Both ways, copies counted."""
    settled(hw, lambda: compare_copies(hw, upstream))


def compare_copies(hw: Any, upstream: Any) -> None:
    names = [column.name for column in hw._definition("notes").columns]
    assert names == ["n", "word", "at", "amount", "large"]
    rows = hw.stored("notes").rows(hw.visible).select(names)
    ours = Counter(tuple(map(str, row.values())) for row in rows.to_pylist())
    query = "SELECT n, word, at, amount::text, large FROM notes"
    theirs = Counter(tuple(map(str, row)) for row in upstream.rows(query))
    assert not (missing := theirs - ours), f"missing: {list(missing.items())[:3]}"
    assert not (extra := ours - theirs), f"extra: {list(extra.items())[:3]}"


def test_copies_are_the_same_under_writers_and_restarts(upstream, tmp_path):
    filled(upstream, 12_000)
    with writers(upstream, write) as written:
        with following(tmp_path / "w") as hw:
            hw.sql(upstream.source())
            hw.sql(FOLLOW.format(f"{SPLITS}, backfill_rate_limit = '3000'"))
            hw.sql(
                "CREATE MATERIALIZED VIEW words AS SELECT word, count(*) c FROM notes GROUP BY 1"
            )
            eventually(lambda: hw.stored("notes").view().rows > 1_000)
        with following(tmp_path / "w") as hw:
            hw.sql("ALTER TABLE notes SET BACKFILL_RATE_LIMIT = default")
            hw.sql("WAIT")
            assert hw.stored("notes").view().rows > 5_000
            # The snapshot is let go: an open one keeps the server from tidying up.
            eventually(
                lambda: (
                    upstream.rows(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE"
                        " 'headwater%' AND state = 'idle in transaction'"
                    )
                    == [(0,)]
                )
            )
        assert written[0] > 50
        time.sleep(1)
    with following(tmp_path / "w") as hw:
        hw.sql("FLUSH")
        same_copies(hw, upstream)
        assert hw.sql("SELECT word, c FROM words ORDER BY word").rows() == upstream.rows(
            "SELECT word, count(*) FROM notes GROUP BY 1 ORDER BY 1"
        )
        assert "row" not in str(hw.sql("SELECT * FROM notes LIMIT 1").columns)


def test_a_lost_snapshot_begins_again(upstream, tmp_path):
    filled(upstream, 8_000)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(FOLLOW.format(f"{SPLITS}, backfill_rate_limit = '2000'"))
        eventually(lambda: hw.stored("notes").view().rows > 1_000)
        upstream.db.execute("INSERT INTO notes SELECT * FROM notes LIMIT 500")
        upstream.db.execute("DELETE FROM notes WHERE n = 7")
        upstream.db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'headwater%'"
        )
        hw.sql("ALTER TABLE notes SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        hw.sql("FLUSH")
        same_copies(hw, upstream)


def test_a_truncate_while_it_fills(upstream, tmp_path):
    filled(upstream, 8_000)
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        hw.sql(FOLLOW.format(f"{SPLITS}, backfill_rate_limit = '2000'"))
        eventually(lambda: hw.stored("notes").view().rows > 1_000)
        upstream.db.execute("TRUNCATE notes")
        upstream.db.execute(FILL.format(700))
        hw.sql("ALTER TABLE notes SET BACKFILL_RATE_LIMIT = default")
        hw.sql("WAIT")
        hw.sql("FLUSH")
        same_copies(hw, upstream)
        assert hw.stored("notes").view().rows == 700


def test_what_cannot_be_counted_is_refused(upstream, tmp_path):
    upstream.db.execute("CREATE TABLE notes (n int, word text)")
    with following(tmp_path / "w") as hw:
        hw.sql(upstream.source())
        with pytest.raises(HeadwaterError, match="which rows") as told:
            hw.sql(FOLLOW.format(SPLITS))
        assert "REPLICA IDENTITY FULL" in told.value.hint
        upstream.db.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
        with pytest.raises(HeadwaterError, match="all its columns"):
            hw.sql("CREATE TABLE notes (n int) FROM shop TABLE 'public.notes'")
        with pytest.raises(HeadwaterError, match="begins with a snapshot"):
            hw.sql(FOLLOW.format("snapshot = 'false'"))
        # Nothing of it stays in the publication: its owner may still write to it.
        upstream.db.execute("INSERT INTO notes VALUES (1, 'x')")
        upstream.db.execute("ALTER TABLE notes REPLICA IDENTITY DEFAULT")
        upstream.db.execute("DELETE FROM notes")
