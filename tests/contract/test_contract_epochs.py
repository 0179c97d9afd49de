"""One statement sees one epoch, time never goes back, and FLUSH means visible to all."""

import itertools
import random
import threading
import time

import pytest

from serve_kit import Background, Served, refusal, rows, run, started, value

TOTAL = 2000
LEFT = "SELECT coalesce(sum(v), 0) AS s FROM left_side"
AT_ONCE = """
    SELECT (SELECT sum(v) FROM left_side) AS l, (SELECT sum(v) FROM right_side) AS r,
           (SELECT sum(s) FROM by_side) AS view, (SELECT t FROM overall) AS view_on_view,
           (SELECT n FROM overall) AS transfers, (SELECT sum(n) FROM left_side) AS counted
"""


@pytest.fixture(scope="module")
def bank(server: Served) -> Served:
    """Money on two sides, a view of both, and a view on that view."""
    with server.connect() as client:
        run(
            client,
            "CREATE TABLE left_side (id int PRIMARY KEY, v bigint, n bigint)",
            "CREATE TABLE right_side (id int PRIMARY KEY, v bigint, n bigint)",
            "INSERT INTO left_side SELECT i, 100, 0 FROM generate_series(1, 10) AS g(i)",
            "INSERT INTO right_side SELECT i, 100, 0 FROM generate_series(1, 10) AS g(i)",
            "FLUSH",
            "CREATE MATERIALIZED VIEW by_side AS SELECT 'l' AS side, sum(v) AS s, sum(n) AS n "
            "FROM left_side UNION ALL SELECT 'r', sum(v), sum(n) FROM right_side",
            "CREATE MATERIALIZED VIEW overall AS "
            "SELECT sum(s) AS t, sum(CASE WHEN side = 'l' THEN n END) AS n FROM by_side",
        )
    return server


def transfer(server: Served, stop: threading.Event, seed: int) -> int:
    """Move money from one side to the other, one transaction at a time; how many there were."""
    dice = random.Random(seed)
    made = 0
    with server.connect() as client:
        while not stop.is_set():
            amount, one, two = dice.randint(-50, 50), dice.randint(1, 10), dice.randint(1, 10)
            run(
                client,
                "BEGIN",
                f"UPDATE left_side SET v = v - {amount}, n = n + 1 WHERE id = {one}",
                f"UPDATE right_side SET v = v + {amount}, n = n + 1 WHERE id = {two}",
                "COMMIT",
            )
            made += 1
    return made


@pytest.mark.timeout(400)
def test_a_statement_sees_one_epoch_over_tables_and_views(bank):
    stop = threading.Event()
    with bank.connect() as client:
        before = rows(client, AT_ONCE)[0][4]
    writers = [Background(lambda: transfer(bank, stop, 7))]
    seen = []
    ends_at = time.monotonic() + 150
    try:
        while (len(set(seen)) < 5 or len(seen) < 20) and time.monotonic() < ends_at:
            # A session of its own each time: sessions one after the other never go back.
            with bank.connect() as client:
                for _ in range(2):
                    [(left, right, view, view_on_view, transfers, counted)] = rows(client, AT_ONCE)
                    assert left + right == TOTAL
                    assert view == TOTAL
                    assert view_on_view == TOTAL
                    assert transfers == counted
                    seen.append(transfers)
    finally:
        stop.set()
    made = sum(each.result() for each in writers)
    assert seen == sorted(seen)
    assert len(set(seen)) > 1, "nothing moved while the readers looked"
    with bank.connect() as client:
        run(client, "FLUSH")
        assert rows(client, AT_ONCE)[0][4] == before + made


def test_a_join_of_table_and_view_agrees(bank):
    stop = threading.Event()
    writer = Background(lambda: transfer(bank, stop, 8))
    try:
        with bank.connect() as client:
            for _ in range(4):
                found = rows(
                    client,
                    "SELECT b.s, l.s FROM by_side b CROSS JOIN "
                    "(SELECT sum(v) AS s FROM left_side) l WHERE b.side = 'l'",
                )
                assert len(found) == 1
                assert found[0][0] == found[0][1]
    finally:
        stop.set()
    writer.result()


def test_a_transaction_is_one_epoch_and_rollback_is_none(bank):
    with bank.connect() as client, bank.connect() as other:
        run(client, "CREATE TABLE pairs (id int PRIMARY KEY, v int)")
        run(client, "BEGIN")
        for number in range(10):
            run(client, f"INSERT INTO pairs VALUES ({number}, 0)")
            if number == 5:
                run(other, "FLUSH")
                assert value(other, "SELECT count(*) FROM pairs") == 0
        run(client, "COMMIT", "FLUSH")
        assert value(other, "SELECT count(*) FROM pairs") == 10
        for undone in ("INSERT INTO pairs VALUES (100, 1)", "DELETE FROM pairs WHERE id = 1"):
            run(client, "BEGIN", undone, "ROLLBACK", "FLUSH")
        assert value(other, "SELECT count(*) FROM pairs WHERE id < 100") == 10
        assert rows(client, "SELECT * FROM pairs WHERE id = 100") == []
        run(client, "BEGIN", "INSERT INTO pairs VALUES (101, 1)")
        assert refusal(client, "SELECT nothing").sqlstate == "42703"
        assert refusal(client, "SELECT 1").sqlstate == "25P02"
        assert refusal(client, "INSERT INTO pairs VALUES (102, 1)").sqlstate == "25P02"
        assert client.execute("COMMIT").statusmessage == "ROLLBACK"
        run(client, "FLUSH")
        assert rows(other, "SELECT id FROM pairs WHERE id > 99") == []


def test_a_transaction_whose_client_is_gone_leaves_nothing(bank):
    with bank.connect() as client:
        run(client, "CREATE TABLE left_open (id int PRIMARY KEY)")
        run(client, "BEGIN", "INSERT INTO left_open VALUES (1)")
    with bank.connect() as other:
        run(other, "FLUSH")
        assert rows(other, "SELECT id FROM left_open WHERE id = 1") == []


def test_flush_makes_visible_what_others_wrote_before(bank):
    with bank.connect() as client:
        run(client, "CREATE TABLE notes (id int PRIMARY KEY, v int)")
    with bank.connect() as writer, bank.connect() as flusher, bank.connect() as reader:
        for number in range(30):
            run(writer, f"INSERT INTO notes VALUES ({number}, {number})")
            run(flusher, "FLUSH")
            assert rows(reader, f"SELECT v FROM notes WHERE id = {number}") == [(number,)]


def test_flush_answers_with_a_later_epoch_each_time(bank):
    with bank.connect() as client:
        epochs = []
        for _ in range(5):
            run(client, "FLUSH")
            epochs.append(value(client, "SELECT max(epoch) FROM hw_catalog.epochs"))
        assert all(one < two for one, two in itertools.pairwise(epochs))


@pytest.mark.timeout(400)
def test_time_never_goes_back_also_over_restarts(tmp_path):
    """Rows that one session has seen, flushed or not, no later session misses."""
    workspace, seen, epoch, written = tmp_path / "w", 0, 0, 0
    dice = random.Random(3)
    for life in range(6):
        with started(workspace, settings={"barrier_interval_ms": 30}) as server:
            with server.connect() as client:
                if life == 0:
                    run(client, "CREATE TABLE ticks (id int PRIMARY KEY)")
                    run(client, "INSERT INTO ticks VALUES (0)", "FLUSH")
                newest = value(client, "SELECT max(epoch) FROM hw_catalog.epochs")
                assert newest >= epoch, "the epochs went back"
                assert rows(client, f"SELECT id FROM ticks WHERE id = {seen}") == [(seen,)]
            ends_at, least = time.monotonic() + dice.uniform(0.1, 1.5), seen + 4
            while time.monotonic() < ends_at or seen < least:
                with server.connect() as client:
                    written += 1
                    run(client, f"INSERT INTO ticks VALUES ({written})")
                    for candidate in range(seen, written + 1):
                        if rows(client, f"SELECT id FROM ticks WHERE id = {candidate}"):
                            seen = candidate
                    epoch = value(client, "SELECT max(epoch) FROM hw_catalog.epochs")
            server.kill()
        # What was never visible may be lost with the process.
        written = max(seen, written)
    assert seen > 20
    with started(workspace) as server, server.connect() as client:
        found = [i for (i,) in rows(client, "SELECT id FROM ticks ORDER BY id")]
        assert seen in found
        assert value(client, "SELECT max(id) FROM ticks") == max(found)


def test_reads_of_the_past_are_exact(bank):
    with bank.connect() as client:
        run(client, "CREATE TABLE past (id int PRIMARY KEY, v int)")
        run(client, "INSERT INTO past VALUES (1, 1)", "FLUSH")
        epoch = value(client, "SELECT max(epoch) FROM hw_catalog.epochs")
        run(client, "INSERT INTO past VALUES (1, 2)", "FLUSH")
        assert rows(client, f"SELECT v FROM past FOR SYSTEM_TIME AS OF {epoch}") == [(1,)]
        assert rows(client, "SELECT v FROM past WHERE id = 1") == [(2,)]
