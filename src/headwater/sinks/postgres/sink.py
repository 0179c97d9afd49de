"""A sink into PostgreSQL: each delivery is one transaction, together with its progress row.

Promises
    Once      The progress row is locked first. What it says is there is not written again; what
              is written is committed with the row's new epoch, or not at all.
    Fenced    `begin` writes its term under the same lock, so it waits for a delivery of an older
              engine or comes before it. One that holds the lock and does not move (its machine
              sleeps, its line is dead) is ended at the server.
    Bounded   Rows flow through; memory is that of one batch.
"""

import contextlib
from typing import Any

import psycopg

from headwater.errors import SinkUnavailable, UserError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.postgres.connecting import LOCKED, Line
from headwater.sinks.postgres.options import OPTIONS, Target, parse_target, quoted
from headwater.sinks.postgres.table import prepare_table
from headwater.sinks.postgres.writing import Writing
from headwater.sinks.progress import Progress, row_gone
from headwater.sinks.rereading import Rereadable
from headwater.sinks.sink import Batches, Delivery, SinkKind, SinkSpec

__all__ = ["OPTIONS", "PostgresSink", "postgres_sink"]

_CREATE = """
    CREATE TABLE IF NOT EXISTS {table} (
        sink text PRIMARY KEY,
        epoch bigint NOT NULL,
        term bigint NOT NULL,
        updated timestamptz NOT NULL DEFAULT now())"""
_LOCKED = "SELECT epoch, term FROM {table} WHERE sink = %s FOR UPDATE"
_SEEN = "SELECT epoch, term FROM {table} WHERE sink = %s"
_END_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE application_name = %s AND pid <> pg_backend_pid() AND usename = current_user"""
_RIGHTS = """
    SELECT r, has_table_privilege(to_regclass(%s)::oid, r) FROM unnest(%s::text[]) AS r"""
_CHANGES = ["SELECT", "INSERT", "UPDATE", "DELETE"]
_TAKEOVER_S = 5
"""How long `begin` waits for a delivery of an older engine before it ends it."""


def postgres_sink(spec: SinkSpec) -> "PostgresSink":
    """A sink of what a user has asked for; raises `ConfigError` for options that are wrong."""
    return PostgresSink(spec, parse_target(spec))


class PostgresSink:
    """Delivers to one table; for one thread at a time."""

    def __init__(self, spec: SinkSpec, target: Target) -> None:
        self._spec = spec
        self._target = target
        self._application = f"headwater sink {spec.ident}"
        self._line = Line(target, self._application)

    def check(self) -> None:
        """As `Sink.check`. Replay: what is there is left as it is."""
        while not self._checked():
            pass

    def _checked(self) -> bool:
        """Check it all; False when the last sink beside this one took the progress table along."""
        self._create_progress()
        with self._line.transaction() as cursor:
            prepare_table(cursor, self._target, self._spec)
            return self._check_rights(cursor)

    def begin(self, term: Term) -> Epoch:
        """As `Sink.begin`. Replay: the row has our term already."""
        self._create_progress()
        try:
            return self._take(term, wait_s=_TAKEOVER_S)
        except SinkUnavailable as error:
            if error.sqlstate != LOCKED:
                raise
            self._end_older(term)
            return self._take(term, wait_s=self._target.lock_timeout_s)

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """As `TransactionalSink.deliver`. Replay: the progress row says that it is there."""
        with Rereadable(rows) as batches, self._line.transaction() as cursor:
            found = cursor.execute(self._sql(_LOCKED), [self._spec.ident]).fetchone()
            if found is None:
                raise row_gone(self._spec.ident, self._target.progress, delivery)
            if not Progress(*found).owes(delivery):
                return
            if delivery.rows:
                Writing(cursor, self._target, self._spec, batches).write(delivery)
            cursor.execute(
                self._sql(
                    "UPDATE {table} SET epoch = %s, term = %s, updated = clock_timestamp() "
                    "WHERE sink = %s"
                ),
                [delivery.epoch, delivery.term, self._spec.ident],
            )

    def drop(self) -> None:
        """As `Sink.drop`: the row goes, and the table with the last of them."""
        with self._line.transaction() as cursor:
            there = cursor.execute("SELECT to_regclass(%s)", [self._target.progress]).fetchone()
            if there is not None and there[0] is not None:
                cursor.execute(self._sql("DELETE FROM {table} WHERE sink = %s"), [self._spec.ident])
        with contextlib.suppress(Exception), self._line.transaction() as cursor:
            # Another sink may be creating its row right now, or the table may not be ours.
            cursor.execute(self._sql("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT"))
            left = cursor.execute(self._sql("SELECT 1 FROM {table} LIMIT 1")).fetchone()
            if left is None:
                cursor.execute(self._sql("DROP TABLE {table}"))
        self.close()

    def close(self) -> None:
        """Let go of the connection. The sink can be used again afterwards."""
        self._line.close()

    def _sql(self, text: str) -> str:
        return text.format(table=self._target.progress)

    def _create_progress(self) -> None:
        for last in (False, True):
            try:
                with self._line.transaction() as cursor:
                    name = [self._target.progress]
                    there = cursor.execute("SELECT to_regclass(%s)", name).fetchone()
                    if there is None or there[0] is None:
                        cursor.execute(self._sql(_CREATE))
                    return
            except Exception as error:
                # Two that create it at once: IF NOT EXISTS does not cover that.
                if last or getattr(error, "sqlstate", "") not in ("23505", "42P07"):
                    raise

    def _take(self, term: Term, wait_s: int) -> Epoch:
        with self._line.transaction() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{wait_s}s'")
            cursor.execute(
                self._sql(
                    "INSERT INTO {table} (sink, epoch, term) VALUES (%s, %s, %s) "
                    "ON CONFLICT (sink) DO NOTHING"
                ),
                [self._spec.ident, NO_EPOCH, term],
            )
            found = cursor.execute(self._sql(_LOCKED), [self._spec.ident]).fetchone()
            assert found is not None
            progress = Progress(*found)
            progress.check_term(self._spec.ident, term)
            cursor.execute(
                self._sql("UPDATE {table} SET term = %s WHERE sink = %s"),
                [term, self._spec.ident],
            )
            return progress.epoch

    def _end_older(self, term: Term) -> None:
        """End sessions of this sink that hold its row, unless we are the older one."""
        with self._line.transaction() as cursor:
            found = cursor.execute(self._sql(_SEEN), [self._spec.ident]).fetchone()
            if found is not None:
                Progress(*found).check_term(self._spec.ident, term)
            cursor.execute(_END_OTHERS, [self._application])

    def _check_rights(self, cursor: "psycopg.Cursor[Any]") -> bool:
        """Raise where a right is missing; False where a table is."""
        upsert = self._spec.kind is SinkKind.UPSERT
        tables = {self._target.name: _CHANGES if upsert else ["INSERT"],
                  self._target.progress: _CHANGES}  # fmt: skip
        user = self._target.options["user"]
        for table, needed in tables.items():
            rights = cursor.execute(_RIGHTS, [table, needed]).fetchall()
            if any(granted is None for _, granted in rights):
                return False
            missing = ", ".join(right for right, granted in rights if not granted)
            if missing:
                raise UserError(
                    f'user "{user}" may not {missing} in {table}',
                    hint=f'GRANT {missing} ON {table} TO "{user}";',
                )
        may = cursor.execute("SELECT has_database_privilege(current_database(), 'TEMP')").fetchone()
        if upsert and may != (True,):
            database = quoted(self._target.database)
            raise UserError(
                f'user "{user}" may not make temporary tables in {database}',
                hint=f'GRANT TEMPORARY ON DATABASE {database} TO "{user}";',
            )
        return True
