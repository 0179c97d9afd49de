"""Insert a row, or replace the one with the same key, on SQLite and PostgreSQL alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows; a row that is there with the same primary key is replaced.

    Replay: repeatable; the same rows leave the same table.
    """
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    rest = [column.name for column in table.columns if column.name not in keys]
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=keys, set_={name: statement.excluded[name] for name in rest}
        ),
        [dict(row) for row in rows],
    )
