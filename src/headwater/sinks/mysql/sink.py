"""A sink into MySQL or MariaDB: each delivery is one transaction, together with its progress row.

Promises
    Once      The progress row is locked first. What it says is there is not written again; what
              is written is committed with the row's new epoch, or not at all.
    Fenced    `begin` writes its term under the same lock, so it waits for a delivery of an older
              engine or comes before it. One that holds the lock and does not move (its machine
              sleeps, its line is dead) is ended at the server.
    Bounded   Rows flow through; memory is that of one batch.
"""

import contextlib

from headwater.errors import BrokenInvariant, SinkUnavailable
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.mysql.connecting import LOCKED, Line, Session
from headwater.sinks.mysql.options import OPTIONS, Target, parse_target, quoted
from headwater.sinks.mysql.table import prepare_table
from headwater.sinks.mysql.writing import STAGE, Writing
from headwater.sinks.progress import PROGRESS_TABLE, Progress, row_gone
from headwater.sinks.rereading import Rereadable
from headwater.sinks.sink import Batches, Delivery, SinkKind, SinkSpec

__all__ = ["OPTIONS", "MySqlSink", "mysql_sink"]

_CREATE = """
    CREATE TABLE IF NOT EXISTS {table} (
        sink VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
        epoch BIGINT NOT NULL,
        term BIGINT NOT NULL,
        updated DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE = InnoDB"""
_THERE = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_LOCKED = "SELECT epoch, term FROM {table} WHERE sink = %s FOR UPDATE"
_SEEN = "SELECT epoch, term FROM {table} WHERE sink = %s"
_TAKEOVER_S = 5
"""How long `begin` waits for a delivery of an older engine before it ends it."""


def mysql_sink(spec: SinkSpec) -> "MySqlSink":
    """A sink of what a user has asked for; raises `ConfigError` for options that are wrong."""
    return MySqlSink(spec, parse_target(spec))


class MySqlSink:
    """Delivers to one table; for one thread at a time."""

    def __init__(self, spec: SinkSpec, target: Target) -> None:
        self._spec = spec
        self._target = target
        self._lock = f"headwater sink {spec.ident}"
        self._line = Line(target)

    def check(self) -> None:
        """As `Sink.check`. Replay: what is there is left as it is."""
        with self._line.session() as session:
            self._create_progress(session)
            prepare_table(session, self._target, self._spec)
            self._try_rights(session)

    def begin(self, term: Term) -> Epoch:
        """As `Sink.begin`. Replay: the row has our term already."""
        with self._line.session() as session:
            self._create_progress(session)
        try:
            return self._take(term, wait_s=_TAKEOVER_S)
        except SinkUnavailable as error:
            if error.sqlstate != LOCKED:
                raise
            self._end_older(term)
            return self._take(term, wait_s=self._target.lock_timeout_s)

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """As `TransactionalSink.deliver`. Replay: the progress row says that it is there."""
        with Rereadable(rows) as batches, self._line.transaction(self._lock) as session:
            found = self._locked(session)
            if found is None:
                raise row_gone(self._spec.ident, self._target.progress, delivery)
            if not found.owes(delivery):
                return
            if delivery.rows:
                Writing(session, self._target, self._spec, batches).write(delivery)
            session.execute(
                self._sql(
                    "UPDATE {table} SET epoch = %s, term = %s, updated = CURRENT_TIMESTAMP(6) "
                    "WHERE sink = %s"
                ),
                [delivery.epoch, delivery.term, self._spec.ident],
            )

    def drop(self) -> None:
        """As `Sink.drop`: the row goes, and the table with the last of them."""
        with self._line.session() as session:
            if self._has_progress(session):
                session.execute(
                    self._sql("DELETE FROM {table} WHERE sink = %s"), [self._spec.ident]
                )
        with contextlib.suppress(Exception), self._line.session() as session:
            # Nobody can add a row in between; who may not lock or drop leaves it empty.
            session.execute(self._sql("LOCK TABLES {table} WRITE"))
            if not session.execute(self._sql("SELECT 1 FROM {table} LIMIT 1")):
                session.execute(self._sql("DROP TABLE {table}"))
        self.close()

    def close(self) -> None:
        """Let go of the connection. The sink can be used again afterwards."""
        self._line.close()

    def _sql(self, text: str) -> str:
        return text.format(table=self._target.progress)

    def _has_progress(self, session: Session) -> bool:
        return bool(session.execute(_THERE, [self._target.progress_database, PROGRESS_TABLE]))

    def _create_progress(self, session: Session) -> None:
        if not self._has_progress(session):
            session.execute(self._sql(_CREATE))

    def _locked(self, session: Session) -> Progress | None:
        found = session.execute(self._sql(_LOCKED), [self._spec.ident])
        return Progress(*found[0]) if found else None

    def _take(self, term: Term, wait_s: int) -> Epoch:
        with self._line.session() as session:
            session.execute("SET SESSION innodb_lock_wait_timeout = %s", [wait_s])
            session.execute("START TRANSACTION")
            found = self._locked(session)
            if found is None:
                session.execute(
                    self._sql("INSERT IGNORE INTO {table} (sink, epoch, term) VALUES (%s, %s, %s)"),
                    [self._spec.ident, NO_EPOCH, term],
                )
                found = self._locked(session)
            if found is None:
                raise BrokenInvariant("a progress row that was just written is not there")
            found.check_term(self._spec.ident, term)
            session.execute(
                self._sql("UPDATE {table} SET term = %s WHERE sink = %s"),
                [term, self._spec.ident],
            )
            session.execute("COMMIT")
            session.execute(
                "SET SESSION innodb_lock_wait_timeout = %s", [self._target.lock_timeout_s]
            )
            return found.epoch

    def _end_older(self, term: Term) -> None:
        """End the session of this sink that holds its row, unless we are the older one."""
        with self._line.session() as session:
            found = session.execute(self._sql(_SEEN), [self._spec.ident])
            if found:
                Progress(*found[0]).check_term(self._spec.ident, term)
            [(holder,)] = session.execute("SELECT IS_USED_LOCK(%s)", [self._lock])
            if holder is not None:
                with contextlib.suppress(Exception):
                    # It may have ended in between.
                    session.execute(f"KILL {int(holder)}")

    def _try_rights(self, session: Session) -> None:
        """Do once, with no row, what every delivery does."""
        session.execute(self._sql("UPDATE {table} SET term = term WHERE 1 = 0"))
        session.execute(self._sql("DELETE FROM {table} WHERE 1 = 0"))
        session.execute(
            self._sql(
                "INSERT INTO {table} (sink, epoch, term) SELECT '', 0, 0 FROM DUAL WHERE 1 = 0"
            )
        )
        names = ", ".join(quoted(column.name) for column in self._spec.columns)
        session.execute(
            f"INSERT INTO {self._target.name} ({names}) SELECT {names} FROM {self._target.name} "
            "WHERE 1 = 0"
        )
        if self._spec.kind is SinkKind.UPSERT:
            first = quoted(self._spec.columns[0].name)
            stage = f"{quoted(self._target.database)}.{STAGE}"
            session.execute(f"UPDATE {self._target.name} SET {first} = {first} WHERE 1 = 0")
            session.execute(f"DELETE FROM {self._target.name} WHERE 1 = 0")
            session.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ({first} INT)")
            session.execute(f"DROP TEMPORARY TABLE {stage}")
