"""How rows get into a MySQL or MariaDB table, inside a transaction that somebody else ends.

    rows of a delivery                      way
    append-only                             LOAD DATA into the target
    upsert, all of them most likely new     LOAD DATA into the target after a savepoint; if a key
                                            is there already, back to it and the way below
    upsert                                  LOAD DATA into a temporary table, DELETE what goes,
                                            INSERT ... ON DUPLICATE KEY UPDATE what comes; where
                                            the table has further unique keys: DELETE, INSERT

Where the server takes no LOAD DATA LOCAL (local_infile is off), rows come as INSERT statements of
many rows each, which is slower. Either way a warning is an error: nothing is cut or rounded.
"""

import logging
import re

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from headwater.errors import HeadwaterError, UserError
from headwater.model.change import RowOp
from headwater.model.types import Kind
from headwater.sinks.bad_rows import key_text, row_at, unfit_value
from headwater.sinks.mysql.connecting import Session, Warned, code_of, translate
from headwater.sinks.mysql.options import Target, quoted
from headwater.sinks.mysql.table import find_table, other_uniques
from headwater.sinks.outgoing import Outgoing
from headwater.sinks.rereading import Rereadable
from headwater.sinks.sink import OP, Delivery, SinkKind, SinkSpec
from headwater.sinks.spelling import MYSQL
from headwater.sinks.text_rows import LITERALS

_log = logging.getLogger(__name__)

STAGE = "_hw_stage"
_STAGE_OP = "_hw_op"
_MARK = "headwater_rows"
_DUPLICATE, _NULL = 1062, frozenset({1048, 1263})
_ABOUT_ROWS = frozenset({
    1048, 1062, 1263, 1264, 1265, 1292, 1366, 1406, 1452, 1557, 3140, 3819, 4025, 22003, 22007,
})  # fmt: skip
_PLACE = re.compile(r"column (.+?) at row (\d+)")
_COLUMN = re.compile(r"[Cc]olumn '([^']+)'")
_STATEMENT_BYTES, _LITERAL_ROWS = 1 << 20, 256


class _Refused(Exception):
    """The server warned of a row; `first` is the number of the statement's first row."""

    def __init__(self, warned: Warned, first: int) -> None:
        super().__init__(warned, first)
        self.warned = warned
        self.first = first


class Writing:
    """One delivery on its way into the target."""

    def __init__(self, session: Session, target: Target, spec: SinkSpec, rows: Rereadable) -> None:
        self._session = session
        self._target = target
        self._spec = spec
        self._out = Outgoing(spec, rows, MYSQL)
        self._names = ", ".join(quoted(column.name) for column in spec.columns)

    def write(self, delivery: Delivery) -> None:
        """Write all rows. Replay: the transaction that held them is gone with them."""
        try:
            if self._spec.kind is SinkKind.APPEND_ONLY:
                self._bring(self._target.name, staged=False)
            elif not (delivery.inserts_only and self._all_were_new()):
                self._merge()
        except _Refused as refused:
            raise self._explained(refused.warned, refused.first) from None
        except pymysql.err.Error as error:
            if code_of(error) not in _ABOUT_ROWS:
                raise translate(self._target, error) from None
            raise self._explained(Warned(code_of(error), str(error.args[-1])), 0) from None

    def _all_were_new(self) -> bool:
        self._session.execute(f"SAVEPOINT {_MARK}")
        try:
            self._bring(self._target.name, staged=False)
        except _Refused as refused:
            if refused.warned.code != _DUPLICATE:
                raise
            self._session.execute(f"ROLLBACK TO SAVEPOINT {_MARK}")
            return False
        return True

    def _merge(self) -> None:
        found = find_table(self._session, self._target)
        columns = [found.column(column.name) for column in self._spec.columns]
        if not all(columns):
            raise UserError(
                f"the target table {self._target.name} is not there, or lacks a column",
                hint="Create it again as it was.",
            )
        definitions = ", ".join(column.definition for column in columns if column)
        stage = f"{quoted(self._target.database)}.{STAGE}"
        # Neither of these ends the transaction: the table is a temporary one.
        self._session.execute(f"DROP TEMPORARY TABLE IF EXISTS {stage}")
        self._session.execute(
            f"CREATE TEMPORARY TABLE {stage} ({_STAGE_OP} SMALLINT, {definitions}) ENGINE = InnoDB"
        )
        self._bring(stage, staged=True)
        apart = other_uniques(found, self._spec.key)
        if self._out.deletes or apart:
            self._session.execute(self._delete(stage, everything=apart))
        if self._out.inserts:
            self._session.execute(self._insert(stage, update=not apart))
        self._session.execute(f"DROP TEMPORARY TABLE {stage}")

    def _delete(self, stage: str, *, everything: bool) -> str:
        same = " AND ".join(f"t.{name} = s.{name}" for name in map(quoted, self._spec.key))
        which = "" if everything else f" WHERE s.{_STAGE_OP} = {RowOp.DELETE.value}"
        return f"DELETE t FROM {stage} AS s STRAIGHT_JOIN {self._target.name} AS t ON {same}{which}"

    def _insert(self, stage: str, *, update: bool) -> str:
        names = [quoted(column.name) for column in self._spec.columns]
        values = ", ".join(f"s.{name}" for name in names)
        statement = (
            f"INSERT INTO {self._target.name} ({self._names}) SELECT {values} FROM {stage} AS s "
            f"WHERE s.{_STAGE_OP} = {RowOp.INSERT.value}"
        )
        if not update:
            return statement
        key = set(map(quoted, self._spec.key))
        changed = [name for name in names if name not in key] or names[:1]
        changes = ", ".join(f"{self._target.name}.{name} = s.{name}" for name in changed)
        return f"{statement} ON DUPLICATE KEY UPDATE {changes}"

    def _bring(self, into: str, *, staged: bool) -> None:
        if not self._session.takes_files:
            self._insert_literals(into, staged=staged)
            return
        names = [*([_STAGE_OP] if staged else [])]
        hexes = []
        for number, column in enumerate(self._spec.columns):
            if column.type.kind is Kind.BYTEA:
                names.append(f"@v{number}")
                hexes.append(f"{quoted(column.name)} = UNHEX(@v{number})")
            else:
                names.append(quoted(column.name))
        setting = f" SET {', '.join(hexes)}" if hexes else ""
        statement = (
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {into} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY '\\t' ENCLOSED BY '' ESCAPED BY '\\\\' "
            f"LINES TERMINATED BY '\\n' ({', '.join(names)}){setting}"
        )
        warned = self._session.load(
            statement, (block.text for block in self._out.blocks(staged=staged))
        )
        if warned:
            raise _Refused(warned[0], 0)

    def _insert_literals(self, into: str, *, staged: bool) -> None:
        if not self._session.said_slow:
            self._session.said_slow = True
            _log.warning(
                "local_infile is off at %s: sink %s writes by INSERT, which is slower",
                self._target.place,
                self._spec.name,
            )
        names = f"{_STAGE_OP}, {self._names}" if staged else self._names
        head = f"INSERT INTO {into} ({names}) VALUES ".encode()
        first, texts, size, rows = 0, [head], len(head), 0
        most = min(_STATEMENT_BYTES, self._session.largest_packet // 2)
        for block in self._out.blocks(staged=staged, layout=LITERALS, block_rows=_LITERAL_ROWS):
            if rows and size + len(block.text) > most:
                self._insert_statement(texts, first)
                first, texts, size, rows = first + rows, [head], len(head), 0
            texts.append(block.text)
            size += len(block.text)
            rows += block.rows
        if rows:
            self._insert_statement(texts, first)

    def _insert_statement(self, texts: list[bytes], first: int) -> None:
        try:
            warned = self._session.execute_bytes(b"".join(texts)[:-1])
        except pymysql.err.Error as error:
            if code_of(error) not in _ABOUT_ROWS:
                raise
            raise _Refused(Warned(code_of(error), str(error.args[-1])), first) from None
        if warned:
            raise _Refused(warned[0], first)

    def _explained(self, warned: Warned, first: int) -> HeadwaterError:
        """The row and the column that a refusal is about, where the server says so."""
        text = self._target.options.without_secrets(warned.text)
        place = _PLACE.search(text)
        column = place[1].split(".")[-1].strip("`'\"") if place else ""
        found = row_at(self._out.batches(), first + int(place[2]) - 1) if place else None
        if found is None and warned.code in _NULL and (named := _COLUMN.search(text)):
            column = named[1]
            found = self._first_null(column)
        names = {name.lower(): name for name in self._spec.arrow.names}
        if found and column.lower() in names:
            return unfit_value(names[column.lower()], *found, self._spec.key, text)
        where = f"Row {key_text(*found, self._spec.key)}. " if found else ""
        return UserError(
            f"{self._target.name} at {self._target.place} refuses a row",
            detail=f"{where}{text}",
            hint="An append-only sink cannot write a key twice; use type = 'upsert'."
            if warned.code == _DUPLICATE and self._spec.kind is SinkKind.APPEND_ONLY
            else "",
        )

    def _first_null(self, column: str) -> tuple[pa.RecordBatch, int] | None:
        for batch in self._out.batches():
            if column in batch.schema.names and batch.column(column).null_count:
                nulls = batch.column(column).is_null()
                there = pc.and_(nulls, pc.not_equal(batch.column(OP), RowOp.DELETE.value))
                row = pc.index(there, True).as_py()
                if row >= 0:
                    return batch, row
        return None
