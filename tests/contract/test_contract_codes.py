"""Who may come in, and the codes that programs rely on."""

import os
import shutil
import subprocess
from contextlib import ExitStack
from types import SimpleNamespace

import psycopg
import pytest

from headwater.testing.processes import free_port
from pgwire_kit import BareClient, error_fields, start_up
from serve_kit import (
    READY_S,
    Served,
    answers,
    eventually,
    ledger_locked,
    refusal,
    rows,
    run,
    started,
    value,
)


def startup_code(server: Served, **wishes: str) -> str:
    """The code of the error that a connection begins with; libpq hands out only its text."""
    place = SimpleNamespace(host="127.0.0.1", port=server.port)
    with BareClient(place, start=False) as bare:
        bare.send(start_up(**wishes))
        return next(error_fields(body)["C"] for kind, body in bare.until("Z") if kind == "E")


def turned_away(server: Served, **wishes: str) -> psycopg.OperationalError:
    with pytest.raises(psycopg.OperationalError) as refused, server.connect(**wishes):
        pass
    return refused.value


def test_root_needs_no_password_and_other_names_are_refused(server):
    with server.connect() as client:
        assert rows(client, "SELECT current_user, current_database()") == [("root", "dev")]
    assert 'database "shop" does not exist' in str(turned_away(server, dbname="shop"))
    assert startup_code(server, database="shop") == "3D000"
    assert '"nobody"' in str(turned_away(server, user="nobody"))
    assert startup_code(server, user="nobody") == "28000"


def test_psql_says_the_same(server):
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")
    where = [psql, "-X", "-h", "127.0.0.1", "-p", str(server.port)]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PG")}

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        command = [*where, *more]
        return subprocess.run(
            command, env=plain, capture_output=True, text=True, timeout=60, check=False
        )

    assert ask("-U", "root", "-Atc", "SELECT 40 + 2", "dev").stdout == "42\n"
    assert "does not exist" in ask("-U", "root", "-c", "SELECT 1", "shop").stderr
    wrong = ask("-U", "root", "-v", "VERBOSITY=verbose", "-c", "SELEC 1", "dev")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("ERROR:  42601: ")
    assert "LINE 1: SELEC 1\n        ^" in wrong.stderr


def test_codes_of_definitions(client):
    run(
        client,
        "CREATE TABLE codes (id int PRIMARY KEY, v int)",
        "CREATE VIEW codes_view AS SELECT id FROM codes",
        "CREATE INDEX codes_index ON codes (v)",
        "CREATE SCHEMA codes_schema",
    )
    codes = {
        "CREATE TABLE codes (id int PRIMARY KEY)": {"42P07"},
        "CREATE MATERIALIZED VIEW codes AS SELECT 1 AS x": {"42P07"},
        "CREATE VIEW codes_view AS SELECT id FROM codes": {"42P07"},
        "CREATE INDEX codes_index ON codes (v)": {"42P07", "42710"},
        "CREATE SCHEMA codes_schema": {"42P06", "42710"},
        "SELECT * FROM nowhere": {"42P01"},
        "INSERT INTO nowhere VALUES (1)": {"42P01"},
        "DROP TABLE nowhere": {"42P01"},
        "DROP MATERIALIZED VIEW nowhere": {"42P01"},
        "DROP INDEX nowhere": {"42704", "42P01"},
        "DROP SOURCE nowhere": {"42704", "42P01"},
        "DROP SCHEMA nowhere": {"3F000"},
        "ALTER TABLE nowhere RENAME TO somewhere": {"42P01"},
        "DROP TABLE codes": {"2BP01"},
        "DROP TABLE codes_view": {"42809"},
        "SELEC 1": {"42601"},
        "SELECT (1": {"42601"},
        "CREATE TABLE x (id int PRIMARY KEY": {"42601"},
        "SELECT * FROM codes WHERE": {"42601"},
        "CREATE TRIGGER t AFTER INSERT ON codes EXECUTE FUNCTION f()": {"0A000", "42601"},
        "LOCK TABLE codes": {"0A000", "42601"},
        "SELECT * FROM codes FOR UPDATE": {"0A000"},
        "SELECT nothing FROM codes": {"42703"},
        "SELECT codes.id FROM codes, codes AS c2 WHERE id = 1": {"42702"},
        "SELECT no_such_function(1)": {"42883"},
        "SELECT 1 + 'a'::text": {"42883", "42804"},
        "SELECT 'a'::int": {"22P02"},
        "SELECT id FROM codes GROUP BY v": {"42803"},
        "SELECT 1/0": {"22012"},
        "CREATE MATERIALIZED VIEW x AS SELECT random() AS r": {"0A000", "42P17"},
    }
    found = {text: refusal(client, text).sqlstate for text in codes}
    assert {text: code for text, code in found.items() if code not in codes[text]} == {}
    assert rows(client, "SELECT 1") == [(1,)]


def test_a_client_that_comes_too_early_is_told_to_come_again(tmp_path):
    workspace = tmp_path / "w"
    with started(workspace) as first:
        with first.connect() as client:
            run(client, "CREATE TABLE t (id int PRIMARY KEY)")
        first.kill()
    with ExitStack() as lock:
        # Before the server starts, however fast that is.
        lock.enter_context(ledger_locked(workspace))
        with Served(workspace, port=free_port()) as server:
            eventually(lambda: answers(server), 120, "the port was bound")
            early = turned_away(server)
            assert "ready" not in server.output
            assert "the database system is starting up" in str(early)
            assert startup_code(server) == "57P03"
            lock.close()
            server.ready(timeout=READY_S)
            with server.connect() as client:
                assert value(client, "SELECT count(*) FROM t") == 0
