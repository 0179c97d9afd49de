"""One table of MySQL or MariaDB: its schema, its splits, and its rows chunk by chunk.

A chunk is one query in one short transaction that sees one moment (`marks.py`), in key order.
The rows come as binary packets and are decoded by kernels. When they prove larger than the byte
budget, the connection is dropped in the middle of the answer and the rest is asked for by the
next chunk.

The object can be pickled into Spark tasks; connections are made where it is used, and are kept
there between chunks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headwater.cdc.external_table import ExternalSchema, SnapshotChunk, Split, SplitOptions
from headwater.cdc.mysql.binary_rows import decode_rows
from headwater.cdc.mysql.connection import MySqlConnection, server_error, translated
from headwater.cdc.mysql.keys import after, last_key
from headwater.cdc.mysql.marks import begin_snapshot
from headwater.cdc.mysql.options import MySqlOptions
from headwater.cdc.mysql.packets import ServerSaid
from headwater.cdc.mysql.schema import MySqlSchema, name_in_sql
from headwater.cdc.mysql.splits import Divider
from headwater.cdc.mysql.types import MySqlColumn

_ALL = 1 << 62


class MySqlTable:
    """A table that can be read by split. Safe to use from several threads."""

    def __init__(self, options: MySqlOptions, schema: MySqlSchema) -> None:
        self._options = options
        self._schema = schema
        self._idle: list[MySqlConnection] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_idle": []}

    def __repr__(self) -> str:
        return f"MySqlTable({self.name} at {self._options.address})"

    @property
    def name(self) -> str:
        """Its full name upstream."""
        return self._schema.name

    @property
    def schema(self) -> ExternalSchema:
        """As it was when the table was opened."""
        return self._schema.external

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        """Ranges that together are the whole table, in key order."""
        with self._connected() as connection:
            return self._divider(connection).splits(options)

    def divide(self, split: Split) -> Sequence[Split]:
        """A split that proved too large, as several, numbered from 0."""
        with self._connected() as connection:
            return self._divider(connection).divide(split)

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        """The next rows of a split, in a transaction of their own."""
        with self._connected() as connection:
            low, high, seen = begin_snapshot(connection)
            limit = max(1, min(max_rows, 2 * max_bytes // self._schema.row_bytes))
            rows, ended = self._query(
                connection, self._chunk_sql(connection, split, after, limit),
                self._schema.columns, max_bytes,
            )  # fmt: skip
            if ended:
                connection.query("COMMIT")
            else:
                connection.close()
        done = ended and rows.num_rows < limit
        cursor = None if done else last_key(rows, self._schema.key_columns)
        return SnapshotChunk(rows=rows, seen=seen, low=low, high=high, cursor=cursor)

    def close(self) -> None:
        """Let go of connections."""
        while self._idle:
            self._idle.pop().close()

    def _chunk_sql(
        self,
        connection: MySqlConnection,
        split: Split,
        cursor: tuple[str, ...] | None,
        limit: int,
    ) -> str:
        where = self._divider(connection).condition(split)
        if cursor is not None:
            where = f"{where} AND ({after(self._schema.key_columns, cursor)})"
        listed = ", ".join(name_in_sql(column.name) for column in self._schema.columns)
        order = ", ".join(name_in_sql(name) for name in self._schema.key)
        table = f"{name_in_sql(self._schema.database)}.{name_in_sql(self._schema.table)}"
        return (
            f"SELECT {listed} FROM {table} FORCE INDEX (PRIMARY) WHERE {where} "
            f"ORDER BY {order} LIMIT {limit}"
        )

    def _query(
        self,
        connection: MySqlConnection,
        sql: str,
        columns: Sequence[MySqlColumn],
        max_bytes: int = _ALL,
    ) -> tuple[pa.Table, bool]:
        """Rows of a query, and whether all of them are here."""
        wire, buffer = connection.execute_raw(sql)
        with translated(self._options):
            try:
                ended = buffer.read_all(max_bytes)
            except ServerSaid as said:
                raise server_error(self._options, said.code, said.text) from None
        if ended:
            connection.finish_raw()
        rows = decode_rows(buffer, wire, columns, self.name, self._options.zero_dates)
        return rows, ended

    def _divider(self, connection: MySqlConnection) -> Divider:
        def next_key(sql: str, columns: Sequence[MySqlColumn]) -> tuple[str, ...] | None:
            rows, _ = self._query(connection, sql, columns)
            return last_key(rows, columns) if rows.num_rows else None

        return Divider(connection, self._schema, next_key)

    @contextmanager
    def _connected(self) -> Iterator[MySqlConnection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = MySqlConnection(self._options)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.driver.open:
            self._idle.append(connection)
