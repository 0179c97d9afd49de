"""The columns of an external table at the place where the log is, and which of them are stored.

    change_in    what a batch of the log asks of the table's columns; nothing, mostly
    taken        the table's part of a batch, in the columns that are stored
    seen         what is filed in the ledger with every epoch

A batch that changes columns is not taken. The change gets an epoch of its own, the table carries
on from what that epoch filed, and the same batch is read once more: by then it asks for nothing.

Pure; the source's actor and the simulator drive it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.state import BackfillState
from headwater.backfill.cdc.table_backfill import TableLog
from headwater.cdc.external_table import (
    COMMIT_END,
    COMMITTED_AT,
    TRANSACTION,
    UNCHANGED,
    ExternalColumn,
    LogBatch,
    LogEvent,
    LogEventKind,
)
from headwater.cdc.included import Included
from headwater.cdc.offset import CdcOffset
from headwater.cdc.schema_change import (
    Decision,
    Follower,
    NotPossible,
    SchemaChange,
    SchemaPolicy,
    SeenSchema,
    decide,
    encode_seen,
)
from headwater.cdc.unsent import reordered_marks
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Schema
from headwater.model.types import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChange:
    """A change of columns, and what is filed of the external table once it is made."""

    change: SchemaChange
    seen: str
    upto: CdcOffset
    """The end of the batch that tells of it."""


class FollowedColumns:
    """One external table, as its log has told of it so far."""

    def __init__(
        self,
        seen: SeenSchema,
        *,
        policy: SchemaPolicy = SchemaPolicy.EVOLVE,
        named: bool = False,
        snapshot: bool = True,
        included: Included = Included(),  # noqa: B008  frozen
    ) -> None:
        self.name = seen.table
        """The full name upstream."""
        self.schema = seen.schema
        """What the external table is at the place where the log is."""
        self._policy = policy
        self._named = named
        self._snapshot = snapshot
        self._included = included
        self._begins = seen.begins
        self._renamed = seen.renamed
        self._decided = seen.decided

    @property
    def seen(self) -> str:
        """What is filed of the external table."""
        return encode_seen(self.name, self.schema, self._begins, self._renamed, self._decided)

    def concerns(self, batch: LogBatch) -> bool:
        """Whether the table is not yet newer than what the batch says."""
        return self._begins is None or not reaches(self._begins, batch.offset)

    def change_in(
        self, batch: LogBatch, stored: Schema, retired: frozenset[str], state: BackfillState
    ) -> AskedChange | NotPossible | None:
        """What the batch asks of the stored columns; what asks for nothing is noted."""
        if not self.concerns(batch):
            return None
        # The same batch comes again after a change, and may have been looked at anew by then.
        done = self._decided is not None and reaches(self._decided, batch.offset)
        for event in batch.events:
            if event.table != self.name or event.kind is not LogEventKind.SCHEMA:
                continue
            if done and not event.newest:
                continue
            found = self._decision(event, stored, retired, state)
            if isinstance(found, NotPossible):
                return found
            if found.text:
                assert event.schema is not None
                seen = encode_seen(
                    self.name, event.schema, self._begins, found.renamed, batch.offset
                )
                return AskedChange(change=found, seen=seen, upto=batch.offset)
            if event.schema is not None:
                self.schema = event.schema
                self._renamed = ()
        return None

    def _decision(
        self, event: LogEvent, stored: Schema, retired: frozenset[str], state: BackfillState
    ) -> Decision:
        if not self.schema.key:
            return self._decision_without_key(event, stored)
        if event.schema is None:
            if self._named or self._policy is SchemaPolicy.IGNORE:
                return SchemaChange(schema=stored)
            return NotPossible("it has columns that cannot be read, or no key, or is gone")
        follower = Follower(
            schema=stored,
            policy=self._policy,
            named=self._named,
            retired=retired,
            included=self._included.names,
        )
        found = decide(follower, self.schema, event.schema, event.renamed)
        gone = set(stored.names) - {each.column.name for each in event.schema.columns}
        gone -= self._included.names
        if isinstance(found, SchemaChange) and not found.text and gone and not state.complete:
            return NotPossible(f'column "{min(gone)}" was dropped while the table was being filled')
        if isinstance(found, SchemaChange) and found.fill and not self._snapshot:
            return NotPossible(
                f"{found.text}, with values for rows that are here already, "
                "and a table without a snapshot does not read them"
            )
        return found

    def _decision_without_key(self, event: LogEvent, stored: Schema) -> Decision:
        """Rows are told apart by all their columns, so these must stay what they are."""
        found = () if event.schema is None else event.schema.columns
        if _columns(found) != _columns(self.schema.columns):
            return NotPossible("it has no key, and other columns than before")
        return SchemaChange(schema=stored)

    def taken(self, batch: LogBatch, stored: Schema) -> TableLog:
        """The table's part of a batch that changes no columns any more."""
        concerns = self.concerns(batch)
        changes = batch.changes.get(self.name) if concerns else None
        if changes is not None:
            times = changes.column(COMMITTED_AT) if self._included.times else None
            own = own_columns(changes, stored, self._renamed, self._included.names)
            changes = self._included.in_log(own, times)
            # Only the transaction that renames has rows under both names.
            self._renamed = ()
        events = [
            event
            for event in (batch.events if concerns else ())
            if event.table == self.name and event.kind is LogEventKind.TRUNCATE
        ]
        return TableLog(offset=batch.offset, changes=changes, events=tuple(events))


def _columns(columns: Sequence[ExternalColumn]) -> list[tuple[str, DataType]]:
    return [(each.column.name, each.column.type) for each in columns]


def own_columns(
    changes: pa.Table,
    schema: Schema,
    renamed: Sequence[tuple[str, str]] = (),
    included: frozenset[str] = frozenset(),
) -> pa.Table:
    """The columns that are stored, and the marks of values that were not sent in their order.

    `renamed` are columns of which a transaction may have rows under both names; `included` are
    stored columns that do not come from upstream, whatever is called so there.
    """
    marks = [CHANGE_TYPE, SEQ, TRANSACTION, UNCHANGED]
    others = {*marks, COMMIT_END, COMMITTED_AT}
    sent = ["" if n in included else n for n in changes.column_names if n not in others]
    stored = {*marks, *schema.names} - included
    old = {before: now for before, now in renamed if before in sent and before not in schema.names}
    for before, now in old.items():
        values = changes[before]
        if now in sent:
            values = pc.coalesce(changes[now], values.cast(changes[now].type))
            changes = changes.drop_columns([now])
        changes = changes.drop_columns([before]).append_column(now, values)
    own = changes.select([name for name in changes.column_names if name in stored])
    if UNCHANGED not in own.column_names:
        return own
    bits = own[UNCHANGED].to_numpy()
    if not bits.any():
        return own
    moved = reordered_marks(bits, sent, schema.names)
    for before, now in old.items():
        moved = moved | reordered_marks(bits >> sent.index(before) & 1, [now], schema.names)
    at = own.schema.get_field_index(UNCHANGED)
    return own.set_column(at, UNCHANGED, pa.array(moved))
