"""Lives of a real server that follows a database: begun, told something, and killed."""

import contextlib
from pathlib import Path

import psycopg

from headwater.testing.processes import ChildFailed
from serve_kit import Served

KILLED = -9


def ask(process: Served, *statements: str) -> None:
    """What a client says to a server that may die meanwhile; "exists already" is an answer."""
    with contextlib.suppress(psycopg.OperationalError), process.connect() as client:
        for statement in statements:
            try:
                client.execute(statement)
            except (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable):
                continue


def die_at(workspace: Path, port: int, point: str, *statements: str) -> None:
    """One life, which ends at a point."""
    with Served(workspace, port=port, crash=point) as process:
        if statements:
            process.ready()
            ask(process, *statements)
        try:
            code = process.wait(timeout=150)
        except ChildFailed as error:
            raise AssertionError(f"it did not come to {point}\n{error}") from error
        told = f"at {point}: exit code {code}\n{process.output[-2000:]}{process.errors[-4000:]}"
        assert code == KILLED, told


def live(workspace: Path, port: int, *statements: str) -> None:
    """One life in which statements are carried out, and which is killed afterwards."""
    with Served(workspace, port=port) as process:
        process.ready()
        ask(process, *statements)
        process.kill()
