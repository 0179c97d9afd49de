"""One server per workspace: refusal, take-over, and a frozen server that wakes up too late."""

import sqlite3
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from headwater.testing.processes import ChildFailed
from serve_kit import Background, Served, assert_view, refusal, relations, rows, run, started


def freeze(server: Served) -> None:
    """Stop all its processes where they stand, but not inside a transaction of the ledger.

    SQLite's lock belongs to whoever holds it, also when that one is frozen; nobody can take
    over then, and the error says so.
    """
    for _ in range(200):
        server.freeze()
        while psutil.Process(server.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        ledger = sqlite3.connect(server.workspace / "ledger.db", timeout=0.05, isolation_level=None)
        try:
            ledger.execute("BEGIN IMMEDIATE")
            ledger.execute("ROLLBACK")
            break
        except sqlite3.OperationalError:
            server.thaw()
            time.sleep(0.013)
        finally:
            ledger.close()
    else:
        raise AssertionError("the server holds the ledger's lock all the time")
    for process in server.family():
        process.suspend()


def thaw(server: Served) -> None:
    for process in server.family():
        process.resume()


def stored(workspace: Path) -> dict[Path, bytes]:
    """Every version of every table that readers from outside can see."""
    return {path: path.read_bytes() for path in (workspace / "tables").glob("*/_delta_log/0*.json")}


def written_by(workspace: Path, term: int) -> list[int]:
    """The epochs that the owner of that term has put into the ledger."""
    ledger = sqlite3.connect(f"file:{workspace / 'ledger.db'}?mode=ro", uri=True, timeout=30)
    try:
        found = ledger.execute("SELECT epoch FROM hw_epoch WHERE term = ? ORDER BY 1", [term])
        return [epoch for (epoch,) in found]
    finally:
        ledger.close()


def only_reason(server: Served) -> str:
    """The one line that says why a server ended, with its detail and hint; no traceback."""
    told = [line for line in server.errors.splitlines() if not line.startswith("WARNING: Using")]
    assert [line for line in told if line.startswith("ERROR: ")] == told[:1], server.errors
    assert all(line.startswith(("DETAIL: ", "HINT: ")) for line in told[1:]), server.errors
    return told[0]


def test_a_second_server_is_refused(tmp_path):
    with started(tmp_path / "w") as first, Served(tmp_path / "w") as second:
        assert second.wait(timeout=60) == 1
        reason = only_reason(second)
        assert "is in use" in reason or "runs" in reason or "owns" in reason, reason
        assert str(first.pid) in second.errors
        with pytest.raises(ChildFailed):
            second.wait_for_line("ready", timeout=1)
        with first.connect() as client:
            run(client, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "FLUSH")
            assert rows(client, "SELECT id FROM t WHERE id = 1") == [(1,)]


def test_a_second_server_takes_over_and_the_first_ends(tmp_path):
    with started(tmp_path / "w") as first, first.connect() as old:
        run(old, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "FLUSH")
        with started(tmp_path / "w", "--take-over") as second, second.connect() as new:
            assert first.wait(timeout=60) == 3
            assert "term" in only_reason(first)
            first.wait_until_gone(timeout=60)
            assert isinstance(refusal(old, "SELECT 1"), psycopg.OperationalError)
            run(new, "INSERT INTO t VALUES (2)", "FLUSH")
            assert rows(new, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]
            second.terminate()
            assert second.wait(timeout=60) == 0


@pytest.mark.timeout(300)
def test_a_frozen_server_wakes_up_fenced_and_writes_nothing(tmp_path):
    workspace = tmp_path / "w"
    kept = {"retention_s": 3600}
    view = "SELECT v, count(*) AS n FROM t GROUP BY v"
    with started(workspace, settings=kept) as first, first.connect() as old, first.connect() as ddl:
        run(
            old,
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "INSERT INTO t VALUES (1, 10)",
            f"CREATE MATERIALIZED VIEW m AS {view}",
            # Frozen in the middle of a definition, with a row that waits for an epoch.
            "INSERT INTO t VALUES (77, 77)",
        )
        # With no row a second it is under way until somebody ends it.
        run(ddl, "SET backfill_rate_limit = 0")
        making = Background(lambda: ddl.execute(f"CREATE MATERIALIZED VIEW late AS {view}"))
        freeze(first)
        with started(workspace, "--take-over", settings=kept) as second:
            with second.connect() as new:
                run(new, "INSERT INTO t VALUES (2, 20)", "FLUSH")
                made = rows(new, "SELECT id, v FROM t ORDER BY id")
                assert {(1, 10), (2, 20)} <= set(made) <= {(1, 10), (2, 20), (77, 77)}
                there = relations(new)
                files, epochs = stored(workspace), written_by(workspace, 1)

                thaw(first)
                assert first.wait(timeout=60) == 3
                assert "no longer owns this ledger" in only_reason(first)
                first.wait_until_gone(timeout=45)
                with pytest.raises(psycopg.Error):
                    making.result()

                now = stored(workspace)
                assert {path: now.get(path) for path in files} == files
                assert written_by(workspace, 1) == epochs
                assert relations(new) == there
                run(new, "INSERT INTO t VALUES (3, 30)", "FLUSH")
                assert rows(new, "SELECT id, v FROM t ORDER BY id") == sorted([*made, (3, 30)])
                assert_view(new, "m", view)
