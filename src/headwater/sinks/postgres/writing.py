"""How rows get into a PostgreSQL table, inside a transaction that somebody else ends.

    rows of a delivery                      way
    append-only                             COPY into the target
    upsert, all of them most likely new     COPY into the target under a savepoint; if a key is
                                            there already, back to it and the way below
    upsert                                  COPY into a temporary table, DELETE what goes,
                                            INSERT ... ON CONFLICT DO UPDATE what comes

The temporary table has the target's own types, so a value that does not fit is refused with its
line, which leads back to the row and its key.
"""

import re
import selectors
from typing import Any

import psycopg
import pyarrow as pa

from headwater.errors import HeadwaterError, UserError
from headwater.model.change import RowOp
from headwater.sinks.ahead import ahead
from headwater.sinks.bad_rows import key_text, row_at, unfit_value
from headwater.sinks.outgoing import Outgoing
from headwater.sinks.postgres.connecting import translate
from headwater.sinks.postgres.options import Target, quoted
from headwater.sinks.postgres.table import names_of
from headwater.sinks.rereading import Rereadable
from headwater.sinks.sink import Delivery, SinkKind, SinkSpec
from headwater.sinks.spelling import POSTGRES
from headwater.sinks.text_rows import Block

STAGE = "_hw_stage"
_STAGE_OP = "_hw_op"
_LINE = re.compile(r"line (\d+)(?:, column ([^:]+))?")
_MARK = "headwater_rows"
_BYTES_AHEAD = 16 << 20


class Writing:
    """One delivery on its way into the target."""

    def __init__(
        self, cursor: "psycopg.Cursor[Any]", target: Target, spec: SinkSpec, rows: Rereadable
    ) -> None:
        self._cursor = cursor
        self._target = target
        self._spec = spec
        self._out = Outgoing(spec, rows, POSTGRES)
        self._names = names_of(spec.columns)

    def write(self, delivery: Delivery) -> None:
        """Write all rows. Replay: the transaction that held them is gone with them."""
        if self._spec.kind is SinkKind.APPEND_ONLY:
            self._copy(self._target.name, staged=False)
        elif not (delivery.inserts_only and self._all_were_new()):
            self._merge()

    def _all_were_new(self) -> bool:
        self._cursor.execute(f"SAVEPOINT {_MARK}")
        try:
            self._copy(self._target.name, staged=False, found_keys=True)
        except psycopg.errors.UniqueViolation:
            self._cursor.execute(f"ROLLBACK TO SAVEPOINT {_MARK}")
            return False
        return True

    def _merge(self) -> None:
        target = self._target.name
        self._cursor.execute(
            f"CREATE TEMPORARY TABLE {STAGE} ON COMMIT DROP AS "
            f"SELECT 0::smallint AS {_STAGE_OP}, {self._names} FROM {target} WITH NO DATA"
        )
        self._copy(f"pg_temp.{STAGE}", staged=True)
        if self._out.deletes:
            same = " AND ".join(f"t.{name} = s.{name}" for name in map(quoted, self._spec.key))
            self._run(
                f"DELETE FROM {target} t USING pg_temp.{STAGE} s "
                f"WHERE s.{_STAGE_OP} = {RowOp.DELETE.value} AND {same}"
            )
        if self._out.inserts:
            self._run(
                f"INSERT INTO {target} ({self._names}) SELECT {self._names} FROM pg_temp.{STAGE} "
                f"WHERE {_STAGE_OP} = {RowOp.INSERT.value} {self._on_conflict()}"
            )

    def _on_conflict(self) -> str:
        key = ", ".join(map(quoted, self._spec.key))
        others = [quoted(c.name) for c in self._spec.columns if c.name not in self._spec.key]
        if not others:
            return f"ON CONFLICT ({key}) DO NOTHING"
        changes = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def _run(self, statement: str) -> None:
        try:
            self._cursor.execute(statement)
        except psycopg.Error as error:
            raise self._explained(error) from None

    def _copy(self, into: str, *, staged: bool, found_keys: bool = False) -> None:
        names = f"{_STAGE_OP}, {self._names}" if staged else self._names
        try:
            with self._cursor.copy(f"COPY {into} ({names}) FROM STDIN") as copy:
                for block in ahead(self._out.blocks(staged=staged), _size, _BYTES_AHEAD):
                    copy.write(block.text)
                    _drain(self._cursor.connection.pgconn)
        except psycopg.errors.UniqueViolation as error:
            if found_keys:
                raise
            raise self._explained(error) from None
        except psycopg.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: psycopg.Error) -> HeadwaterError:
        """The row and the column that a server's refusal is about, where it says so."""
        state = error.sqlstate or ""
        if state[:2] not in ("22", "23"):
            return translate(self._target, error)
        place = _LINE.search(error.diag.context or "")
        named = (place[2] or "").strip('"') if place else ""
        found = row_at(self._out.batches(), int(place[1]) - 1) if place else None
        column = named or error.diag.column_name or (_with_zero_byte(found) if found else "")
        why = self._target.options.without_secrets(error.diag.message_primary or str(error))
        if found and column in found[0].schema.names:
            failure: UserError = unfit_value(column, *found, self._spec.key, why)
        else:
            where = f"Row {key_text(*found, self._spec.key)}. " if found else ""
            failure = UserError(
                f"{self._target.name} in {self._target.place} refuses a row",
                detail=f"{where}{why}. {error.diag.message_detail or ''}".strip(),
                hint="An append-only sink cannot write a key twice; use type = 'upsert'."
                if state == "23505" and self._spec.kind is SinkKind.APPEND_ONLY
                else "",
            )
        failure.sqlstate = state
        return failure


def _with_zero_byte(found: tuple[pa.RecordBatch, int]) -> str:
    """The column of a row whose text PostgreSQL cannot hold; its message does not say which."""
    batch, row = found
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(column.type) and "\0" in (column[row].as_py() or ""):
            return str(name)
    return ""


def _size(block: Block) -> int:
    return len(block.text)


def _drain(connection: "psycopg.pq.abc.PGconn") -> None:
    """Wait until the server has taken what was written; else all of it would be held here."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while connection.flush():
            if any(events & selectors.EVENT_READ for _, events in waiting.select()):
                connection.consume_input()
