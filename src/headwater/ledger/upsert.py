"""Insert a row, or replace the one with the same key, on SQLite and PostgreSQL alike."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows; a row that is there with the same primary key is replaced.

    Replay: repeatable; the same rows leave the same table.
    """
    if not rows:
        return
    connection.execute(_statement(table, connection.dialect.name), [dict(row) for row in rows])


@functools.cache
def _statement(table: Table, dialect: str) -> Insert:
    keys = [column.name for column in table.primary_key]
    rest = [column.name for column in table.columns if column.name not in keys]
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=keys, set_={name: statement.excluded[name] for name in rest}
    )
