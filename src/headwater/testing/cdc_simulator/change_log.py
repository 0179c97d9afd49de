"""The log of the model database, as a reader of a real one would give it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.cdc.external_table import (
    TRANSACTION,
    UNCHANGED,
    ExternalSchema,
    LogBatch,
    LogEvent,
    LogEventKind,
)
from headwater.cdc.offset import PostgresOffset
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.types import BIGINT
from headwater.testing.cdc_simulator.columns import BIG, KEY
from headwater.testing.cdc_simulator.database import (
    ALTERED,
    TRUNCATED,
    Change,
    Database,
    Transaction,
)

_LAST = int(np.iinfo(np.int64).max)


class ModelLog:
    """Reads batches out of a database's log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def batch(
        self, after: int, count: int, known: Mapping[str, ExternalSchema], *, looks: bool
    ) -> LogBatch:
        """The next transactions of the log; one that changes columns comes alone.

        `known` are the tables that are followed, as the reader of the log has been told of them.
        At the end of the log it may look what they are today.
        """
        found = [each for each in self._database.log if each.lsn > after][:count]
        alone = [place for place, each in enumerate(found) if self._alters_one(each, known)]
        if alone:
            found = found[: alone[0] or 1]
        if not found:
            offset = self._database.offset
            return LogBatch(offset=offset, events=tuple(self._unlogged(known)) if looks else ())
        changes = {name: self._changes(found, name) for name in known}
        return LogBatch(
            offset=PostgresOffset(self._silent_until(found[-1].lsn, known)),
            changes={name: table for name, table in changes.items() if table is not None},
            events=tuple(event for name in known for event in self._events(found, name, known)),
        )

    def _silent_until(self, lsn: int, known: Mapping[str, ExternalSchema]) -> int:
        """The last place up to which nothing more is told: a batch may well end there."""
        for each in self._database.log:
            if each.lsn > lsn and self._database.style == "postgres":
                told = (change for name in known for change, *_ in self._told([each], name))
                if any(change.kind != ALTERED for change in told):
                    break
                lsn = each.lsn
        return lsn

    def _alters_one(self, transaction: Transaction, known: Mapping[str, ExternalSchema]) -> bool:
        return any(
            each.kind is LogEventKind.SCHEMA
            for name in known
            for each in self._events([transaction], name, known)
        )

    def _unlogged(self, known: Mapping[str, ExternalSchema]) -> Iterator[LogEvent]:
        """What no row has told of yet."""
        if self._database.style != "postgres":
            return
        for name, schema in known.items():
            today = self._database.external(self._database.tables[name].columns)
            if self._database.tables[name].published and today != schema:
                yield LogEvent(
                    kind=LogEventKind.SCHEMA, table=name, seq=_LAST, schema=today, newest=True
                )

    def _changes(self, transactions: list[Transaction], name: str) -> pa.Table | None:
        """One table's part of some transactions, as a log batch has it."""
        rows = [
            each
            for each in self._told(transactions, name)
            if each[0].kind not in (TRUNCATED, ALTERED)
        ]
        if not rows:
            return None
        # Columns under several names in one transaction: each row has those of its time.
        names: dict[str, Any] = {}
        for change, *_ in rows:
            for each in change.columns:
                if each.name not in names or each.type == BIGINT:
                    names[each.name] = each
        marks = [1 << list(names).index(_big_of(change)) if change.unsent else 0
                 for change, *_ in rows]  # fmt: skip
        columns = {
            name: pa.array([_sent(change, name) for change, *_ in rows], column.type.arrow)
            for name, column in names.items()
        }
        columns |= {
            CHANGE_TYPE: pa.array([kind for _, kind, _ in rows], pa.string()),
            SEQ: pa.array(np.arange(len(rows))),
            TRANSACTION: pa.array([number for *_, number in rows], pa.int64()),
            UNCHANGED: pa.array(marks, pa.int64()),
        }
        return pa.table(columns)

    def _events(
        self, transactions: list[Transaction], name: str, known: Mapping[str, ExternalSchema]
    ) -> Iterator[LogEvent]:
        """What happened to one table besides changes of its rows."""
        before, last = 0, None
        for change, *_ in self._told(transactions, name):
            if change.kind == TRUNCATED:
                # Events are no rows, so they do not count in the order of the others.
                yield LogEvent(kind=LogEventKind.TRUNCATE, table=name, seq=before)
            elif change.kind == ALTERED:
                if self._database.style != "postgres":
                    yield LogEvent(
                        kind=LogEventKind.SCHEMA,
                        table=name,
                        seq=before,
                        schema=self._database.external(change.columns),
                        renamed=change.said,
                    )
            else:
                before, last = before + 1, change
        if self._database.style == "postgres" and last is not None:
            schema = self._database.external(last.columns)
            if _shape(schema) != _shape(known[name]):
                yield LogEvent(kind=LogEventKind.SCHEMA, table=name, seq=0, schema=schema)

    def _told(
        self, transactions: Iterable[Transaction], name: str
    ) -> Iterator[tuple[Change, str, int]]:
        for transaction in transactions:
            number = transaction.xid if self._database.style == "postgres" else transaction.lsn
            for each in transaction.changes:
                if each.table == name and each.published:
                    if each.kind == ChangeType.UPDATE_POSTIMAGE:
                        before = ChangeType.UPDATE_PREIMAGE.value
                        keys_only = replace(each, kind=before, row=None, unsent=False)
                        yield keys_only, before, number
                    yield each, each.kind, number


def _shape(schema: ExternalSchema) -> list[tuple[str, object]]:
    """What a log can tell a schema by."""
    return [(each.column.name, each.column.type) for each in schema.columns]


def _big_of(change: Change) -> str:
    return next(each.name for each in change.columns if each.id == BIG)


def _sent(change: Change, name: str) -> Any:
    """A value as the log sends it; none under a name that the table did not have then."""
    column = next((each for each in change.columns if each.name == name), None)
    if column is None:
        return None
    if column.id == KEY:
        return change.key
    if change.row is None or (column.id == BIG and change.unsent):
        return None
    return column.value(change.row)
