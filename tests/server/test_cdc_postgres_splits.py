"""Splits, chunks and cursors of real PostgreSQL tables, and what a chunk saw."""

import pickle
import threading
import time

import psycopg
import pyarrow as pa
import pytest
from cdc_postgres_kit import VERSIONS, options_of, run, server
from cdc_postgres_tables import LARGE, opened, read_all, read_split

from headwater.cdc.external_table import Split, SplitOptions
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.table import SnapshotHolder
from headwater.errors import ConfigError, UserError


@pytest.fixture(scope="module", params=VERSIONS)
def url(request):
    with server(request.param) as url:
        yield url


KEYED = {
    "numbers": ("k bigint", "i"),
    "sparse": ("k bigint", "(i::bigint * i * 1000003)"),
    "skewed": ("k numeric(20,6)", "exp(i / 1000.0)"),
    "words": ('k text COLLATE "C"', "md5(i::text)"),
    "local_words": ("k text", "(array['a','A','b','B','é','_'])[1 + i % 6] || i"),
    "uuids": ("k uuid", "md5(i::text)::uuid"),
    "moments": ("k timestamptz", "timestamptz '2024-01-01 00:00:00+00' - i * interval '1.5 h'"),
    "floats": ("k float8", "sqrt(i)"),
    "blobs": ("k bytea", "decode(md5(i::text), 'hex')"),
    "fixed": ("k char(12)", "'x' || i"),
    "days": ("k date", "date '0100-01-01 BC' + i * 37"),
}


@pytest.mark.parametrize("kind", KEYED)
def test_splits_and_cursors_follow_the_servers_order(url, kind):
    """Every row once, in the server's order, over small splits and smaller chunks."""
    column, key = KEYED[kind]
    name = f"keyed_{kind}"
    run(
        url,
        f"CREATE TABLE {name} ({column} PRIMARY KEY, v int)",
        f"INSERT INTO {name} SELECT {key}, i FROM generate_series(1, 3000) i",
        f"ANALYZE {name}",
    )
    expected = [row[0] for row in run(url, f"SELECT v FROM {name} ORDER BY k")]
    table = opened(url, name)
    for even in (True, False):
        rows, splits = read_all(table, SplitOptions(rows_per_split=500, even=even), max_rows=177)
        assert rows["v"].to_pylist() == expected
        assert 5 <= len(splits) <= 8
        assert [split.number for split in splits] == list(range(len(splits)))


def test_large_tables_are_split_by_a_sample(url):
    run(
        url,
        "CREATE TABLE sampled (k bigint PRIMARY KEY, pad text)",
        "INSERT INTO sampled"
        " SELECT i::bigint * i, repeat('x', 60) FROM generate_series(1, 60000) i",
        "DELETE FROM sampled WHERE k BETWEEN 1000000 AND 900000000",
        "VACUUM ANALYZE sampled",
    )
    table = opened(url, "sampled")
    splits = table.splits(SplitOptions(rows_per_split=3000))
    counts = [read_split(table, split)[0].num_rows for split in splits]
    (total,) = run(url, "SELECT count(*) FROM sampled")[0]
    assert sum(counts) == total
    assert len(splits) >= 8
    assert max(counts) < 3 * 3000


def test_composite_keys_are_compared_as_rows(url):
    run(
        url,
        'CREATE TABLE composite ("A" text, b int, c uuid, v int, PRIMARY KEY (b, "A", c))',
        "INSERT INTO composite SELECT (array['x','it''s','ö'])[1 + i % 3], i / 400,"
        " md5(i::text)::uuid, i FROM generate_series(1, 2000) i",
    )
    table = opened(url, "composite")
    assert table.schema.key == ("b", "A", "c")
    expected = [row[0] for row in run(url, 'SELECT v FROM composite ORDER BY b, "A", c')]
    rows, splits = read_all(table, SplitOptions(rows_per_split=300), max_rows=70)
    assert rows["v"].to_pylist() == expected
    assert len(splits) >= 6
    # By one column, as the user may ask for: splits never share a value of it.
    by_last, splits = read_all(table, SplitOptions(rows_per_split=300, column=1, even=False))
    assert sorted(by_last["v"].to_pylist()) == sorted(expected)
    assert {split.columns for split in splits} == {("A",)}
    with pytest.raises(ConfigError, match="column number 3"):
        table.splits(SplitOptions(column=3))


def test_a_split_divides_into_all_of_its_rows(url):
    run(
        url,
        "CREATE TABLE divided (k int PRIMARY KEY)",
        "INSERT INTO divided SELECT i FROM generate_series(1, 1000) i",
    )
    table = opened(url, "divided")
    split = Split(number=3, columns=("k",), left=("101",), right=("901",))
    pieces = table.divide(split)
    assert len(pieces) == 4
    assert (pieces[0].left, pieces[-1].right) == (("101",), ("901",))
    rows = [row for piece in pieces for row in read_split(table, piece)[0]["k"].to_pylist()]
    assert rows == list(range(101, 901))
    lone = Split(number=0, columns=("k",), left=("5",), right=("6",))
    assert len(table.divide(lone)) == 1


def test_partitions_are_read_through_their_root_and_heirs_are_not(url):
    run(
        url,
        "CREATE TABLE parted (k int, d date, PRIMARY KEY (k, d)) PARTITION BY RANGE (d)",
        "CREATE TABLE early PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2024-07-01')",
        "CREATE TABLE later PARTITION OF parted FOR VALUES FROM ('2024-07-01') TO ('2025-01-01')",
        "INSERT INTO parted SELECT i, date '2024-01-01' + i % 360 FROM generate_series(1, 900) i",
        "CREATE TABLE parent (k int PRIMARY KEY)",
        "CREATE TABLE heir () INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO heir VALUES (2)",
    )
    rows, splits = read_all(opened(url, "parted"), SplitOptions(rows_per_split=200), max_rows=90)
    assert sorted(rows["k"].to_pylist()) == list(range(1, 901))
    assert len(splits) >= 4
    assert read_all(opened(url, "parent"))[0]["k"].to_pylist() == [1]


def test_wide_rows_are_bounded_by_bytes(url):
    run(
        url,
        "CREATE TABLE wide (k int PRIMARY KEY, pad text)",
        "ALTER TABLE wide ALTER pad SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT i, repeat('x', 1000000) FROM generate_series(1, 12) i",
    )
    table = opened(url, "wide")
    [split] = table.splits(SplitOptions(bytes_per_split=LARGE))
    sizes, after = [], None
    while True:
        chunk = table.read_chunk(split, after, max_rows=1000, max_bytes=3_000_000)
        sizes.append(chunk.rows.num_rows)
        if chunk.cursor is None:
            break
        after = chunk.cursor
    assert sum(sizes) == 12
    assert max(sizes) <= 4
    # A row larger than the bound comes alone, and whole.
    tiny = table.read_chunk(split, None, max_rows=1000, max_bytes=10)
    assert 1 <= tiny.rows.num_rows <= 2
    assert len(tiny.rows["pad"][0].as_py()) == 1_000_000


def test_a_chunk_knows_exactly_what_it_saw(url):
    """Rows of transactions that ran meanwhile are absent, and `seen` says so of each."""
    run(url, "CREATE TABLE seen (k bigint PRIMARY KEY, x bigint)")
    table = opened(url, "seen")
    mine = "INSERT INTO seen VALUES (%s, pg_current_xact_id()::text::bigint) RETURNING x"
    with psycopg.connect(url) as early, psycopg.connect(url) as late:
        (running,) = early.execute(mine, [1]).fetchone()
        (done,) = late.execute(mine, [2]).fetchone()
        late.commit()
        [split] = table.splits(SplitOptions())
        chunk = table.read_chunk(split, None, max_rows=10, max_bytes=LARGE)
        (after,) = late.execute(mine, [3]).fetchone()
        late.commit()
        early.commit()
    assert chunk.rows["x"].to_pylist() == [done]
    held = chunk.seen.holds(pa.array([running, done, after]))
    assert held.to_pylist() == [False, True, False]
    again = table.read_chunk(split, None, max_rows=10, max_bytes=LARGE)
    assert again.seen.holds(pa.array([running, done, after])).to_pylist() == [True] * 3
    assert chunk.high < again.low <= again.high


def test_a_place_before_which_nothing_is_missing_is_proven_or_not_claimed(url):
    """A transaction that might be committing right now forbids the claim; an idle one does not."""
    run(
        url,
        "CREATE TABLE proven (k bigint PRIMARY KEY)",
        "GRANT SELECT ON proven TO PUBLIC",
        "DROP ROLE IF EXISTS plain",
        "CREATE ROLE plain LOGIN",
    )
    whole = Split(number=0, columns=("k",))

    def low(table):
        return table.read_chunk(whole, None, max_rows=1, max_bytes=LARGE).low.lsn

    def end():
        [[text]] = run(url, "SELECT pg_current_wal_insert_lsn()::text")
        return PostgresOffset.of(text).lsn

    def proves(table, place):
        """At the latest once nothing runs any more that the server does by itself."""
        deadline = time.monotonic() + 60
        while low(table) < place:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return True

    before = end()
    privileged, plain = opened(url, "proven"), opened(url, "proven", username="plain")
    assert proves(privileged, before)
    earlier = opened(url, "proven", username="plain")
    assert proves(earlier, before)
    with psycopg.connect(url) as idle, psycopg.connect(url, autocommit=True) as other:
        idle.execute("INSERT INTO proven VALUES (1)")
        other.execute("INSERT INTO proven VALUES (2)")
        during = end()
        assert proves(privileged, during), "it idles, as those who may look can see"
        assert low(plain) == 0, "others must take it for one that commits"
        assert before <= low(earlier) < during, "but what was proven before stays proven"
        idle.commit()
    assert proves(plain, during)


@pytest.mark.parametrize("kind", KEYED)
def test_rows_are_found_by_their_keys(url, kind):
    """Keys as they are stored here, spelled so that the server finds the same rows."""
    column, key = KEYED[kind]
    name = f"found_{kind}"
    run(
        url,
        f"CREATE TABLE {name} ({column} PRIMARY KEY, v int)",
        f"INSERT INTO {name} SELECT {key}, i FROM generate_series(1, 300) i",
    )
    table = opened(url, name)
    rows, _ = read_all(table)
    some = rows.take(list(range(0, 300, 7)))
    run(url, f"DELETE FROM {name} WHERE v = {some['v'][3].as_py()}")
    chunk = table.read_keys(some.select(["k"]))
    expected = set(some["v"].to_pylist()) - {some["v"][3].as_py()}
    assert set(chunk.rows["v"].to_pylist()) == expected
    assert chunk.cursor is None
    assert table.read_keys(some.select(["k"]).slice(0, 0)).rows.num_rows == 0


def assert_all_left(url):
    """No connection of ours is open at the server, at the latest after a minute."""
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headwater'"
    deadline = time.monotonic() + 60
    while run(url, ours) != [(0,)]:
        assert time.monotonic() < deadline, run(url, ours)
        time.sleep(0.02)


def test_chunks_of_one_exported_snapshot_are_one_moment(url):
    """Tables without a key: rows that move between chunks come exactly once."""
    run(
        url,
        "CREATE TABLE keyless (v int, pad text)",
        "INSERT INTO keyless SELECT i % 700, repeat('y', 200) FROM generate_series(1, 3000) i",
    )
    table = opened(url, "keyless")
    assert table.schema.key == ()
    splits = table.splits(SplitOptions(rows_per_split=400))
    assert len(splits) > 4
    holder = SnapshotHolder(options_of(url))
    try:
        frozen = pickle.loads(pickle.dumps(table.at(holder.snapshot)))
        rows = []
        for split in splits:
            run(url, "UPDATE keyless SET v = v + 10000", "DELETE FROM keyless WHERE v % 7 = 3")
            rows += read_split(frozen, split, max_rows=150)[0]["v"].to_pylist()
        frozen.close()
        assert sorted(rows) == sorted(i % 700 for i in range(1, 3001))
    finally:
        holder.close()
    # The server ends the holder's transaction a moment after the connection.
    assert_all_left(url)
    with pytest.raises(UserError, match="snapshot"):
        frozen.read_chunk(splits[0], None, max_rows=1, max_bytes=LARGE)
    pieces = table.divide(splits[0])
    assert len(pieces) > 1
    assert pieces[-1].right == splits[0].right


def test_readers_travel_and_work_side_by_side(url):
    run(
        url,
        "CREATE TABLE travelling (k int PRIMARY KEY)",
        "INSERT INTO travelling SELECT i FROM generate_series(1, 5000) i",
    )
    table = pickle.loads(pickle.dumps(opened(url, "travelling")))
    splits = table.splits(SplitOptions(rows_per_split=500))
    results = {}

    def work(split):
        results[split.number] = read_split(table, split, max_rows=100)[0]["k"].to_pylist()

    threads = [threading.Thread(target=work, args=(split,)) for split in splits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(k for keys in results.values() for k in keys) == list(range(1, 5001))
    table.close()
    assert_all_left(url)
