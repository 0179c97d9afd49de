"""Lives of a real server that follows a database: begun, told something, and killed."""

import contextlib
from functools import partial
from pathlib import Path

import psycopg

from headwater.testing.processes import ChildFailed
from serve_kit import Served

KILLED = -9

served = partial(Served, settings={"spark_early": False}, forked=True)
"""Most lives end before Spark would be there, and few of them ever need it."""


def ask(process: Served, *statements: str) -> None:
    """What a client says to a server that may die meanwhile; "exists already" is an answer."""
    with contextlib.suppress(psycopg.OperationalError), process.connect() as client:
        for statement in statements:
            try:
                client.execute(statement)
            except (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable):
                continue


def die_at(workspace: Path, point: str, *statements: str) -> None:
    """One life, which ends at a point."""
    with served(workspace, crash=point) as process:
        if statements and _is_ready(process):
            ask(process, *statements)
        try:
            code = process.wait(timeout=300)
        except ChildFailed as error:
            told = f"it did not come to {point}\n{_state(process)}\n{error}"
            raise AssertionError(told) from error
        told = f"at {point}: exit code {code}\n{process.output[-2000:]}{process.errors[-4000:]}"
        assert code == KILLED, told


def _is_ready(process: Served) -> bool:
    """Wait until it can be asked; what an earlier life began may bring it to its point before."""
    try:
        process.ready()
    except ChildFailed:
        if process.running:
            raise
        return False
    return True


def _state(process: Served) -> str:
    """What a server that lives says of what it follows, and of what went wrong last."""
    asked = (
        "SELECT * FROM hw_catalog.cdc_progress",
        "SELECT * FROM hw_catalog.events ORDER BY id DESC LIMIT 20",
    )
    try:
        if not process.port:
            process.ready(timeout=5)
        with process.connect() as client:
            found = [row for query in asked for row in client.execute(query).fetchall()]
    except (psycopg.Error, ChildFailed) as error:
        return f"it does not answer: {error}"
    return "\n".join(str(row) for row in found)


def live(workspace: Path, *statements: str) -> None:
    """One life in which statements are carried out, and which is killed afterwards."""
    with served(workspace) as process:
        process.ready()
        ask(process, *statements)
        process.kill()
