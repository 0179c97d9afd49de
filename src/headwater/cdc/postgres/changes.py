"""Arrow tables of changes out of a batch of pgoutput's messages.

Messages are scanned once for transactions; then the rows of each table are split into cells and
built column by column. A table's relation may change inside the batch, even inside a transaction
(DDL between two writes): each version is read by its own columns, and the pieces are joined.

    `_seq`        twice the place of the message in the batch, plus one for the second row
    TRANSACTION   the 64-bit transaction id
    UNCHANGED     bit i: column i of the table was not sent and is null here
    COMMIT_END    where asked for: the end of the commit record, as a number
    COMMITTED_AT  where asked for: when it committed

An update that moves a row to another key is a `delete` and an `insert`, one `_seq` apart. If the
insert has UNCHANGED bits, their values are those of the row that the delete took away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.cdc.external_table import COMMIT_END, COMMITTED_AT, TRANSACTION, UNCHANGED
from headwater.cdc.postgres import pgoutput_kernels as kernels
from headwater.cdc.postgres.cells import Cells, Place
from headwater.cdc.postgres.columns import column_of
from headwater.cdc.postgres.pgoutput import POSTGRES_EPOCH_S, Message, Relation, read_message
from headwater.cdc.postgres.seen import widened
from headwater.cdc.postgres.types import Wire
from headwater.cdc.unsent import reordered_marks
from headwater.errors import BrokenInvariant, SchemaError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, SEQ

_TYPES = pa.array(
    [
        ChangeType.INSERT,
        ChangeType.DELETE,
        ChangeType.UPDATE_PREIMAGE,
        ChangeType.UPDATE_POSTIMAGE,
    ],
    pa.string(),
)
_MICROS = 1_000_000
_BINARY, _TEXT = ord("b"), ord("t")
_UPDATE = ord("U")
_RARE = np.frombuffer(b"RT", dtype=np.uint8)


class OtherFormat(Exception):
    """Cells came as text where binary was expected, or the other way round."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A whole transaction of a batch."""

    first: int
    end: int
    """The message after its last."""
    commit_lsn: int
    end_lsn: int
    committed_at: float
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationView:
    """A relation as one of our tables: how its columns travel, and which are the key."""

    relation: Relation
    table: str
    wires: tuple[Wire, ...]
    key: tuple[str, ...]

    @property
    def is_key(self) -> "np.ndarray[Any, Any]":
        """For each column, whether it is part of the key."""
        return np.array([column.name in self.key for column in self.relation.columns])


class MessageBatch:
    """Messages as they came: cells in one buffer."""

    def __init__(self, messages: Cells, *, binary: bool) -> None:
        self._messages = messages
        self._binary = binary
        count = len(messages)
        self.kinds = np.empty(count, dtype=np.uint8)
        self.relations = np.zeros(count, dtype=np.int64)
        self._owners = np.empty(count, dtype=np.int32)
        found = np.zeros((count // 2 + 1, 6), dtype=np.int64)
        whole = kernels.scan_messages(
            messages.data, messages.starts, self.kinds, self.relations, self._owners, found
        )
        self._found = found[:whole]
        self.whole_transactions = int(whole)
        self._xids = found[:, 5]

    def __len__(self) -> int:
        return len(self._messages)

    def first_after(self, lsn: int) -> int:
        """The number of the first transaction whose commit record ends after a place."""
        return int(np.searchsorted(self._found[:, 3], lsn, side="right"))

    def last_within(self, first: int, max_bytes: int) -> int:
        """The number after the last transaction so that they have about so many bytes."""
        begin = self._found[first, 0]
        sizes = np.cumsum(self._messages.lengths[begin:], dtype=np.int64)
        totals = sizes[self._found[first:, 1] - begin - 1]
        return max(first + int(np.searchsorted(totals, max_bytes, side="right")), first + 1)

    def last_before(self, message: int) -> int:
        """The number after the last transaction that ends before a message."""
        return int(np.searchsorted(self._found[:, 1], message, side="right"))

    def transaction(self, number: int) -> Transaction:
        """One transaction."""
        first, end, commit, after, micros, xid = self._found[number].tolist()
        return Transaction(first, end, commit, after, micros / 1_000_000 + POSTGRES_EPOCH_S, xid)

    def parts(self, messages: range, max_bytes: int) -> Iterator[range]:
        """Some messages in parts of about so many bytes, each at least one message."""
        sizes = np.cumsum(self._messages.lengths[messages.start : messages.stop], dtype=np.int64)
        begin = 0
        while begin < sizes.size:
            before = int(sizes[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(sizes, before + max_bytes, side="right")), begin + 1)
            yield range(messages.start + begin, messages.start + end)
            begin = end

    def rare(self) -> list[tuple[int, Message]]:
        """Relations and truncates, with their places."""
        places = np.nonzero(np.isin(self.kinds, _RARE))[0]
        return [(int(place), read_message(self.message(int(place)))) for place in places]

    def message(self, place: int) -> bytes:
        """The bytes of a message."""
        begin = int(self._messages.starts[place])
        end = begin + int(self._messages.lengths[place])
        return bytes(self._messages.data[begin:end])

    def places_of(self, oid: int, messages: range) -> "np.ndarray[Any, Any]":
        """Where the changes of a relation are; other messages have no relation."""
        relations = self.relations[messages.start : messages.stop]
        return messages.start + np.nonzero(relations == oid)[0]

    def changes(
        self,
        view: RelationView,
        messages: range,
        *,
        near: int,
        bad_as_null: bool,
        commits: bool = False,
    ) -> pa.Table:
        """The changes of one relation among some messages."""
        binary = self._binary
        chosen = self.places_of(view.relation.oid, messages)
        size = chosen.size + int((self.kinds[chosen] == _UPDATE).sum())
        width = len(view.relation.columns)
        starts, lengths = np.empty((width, size), np.int64), np.empty((width, size), np.int32)
        types, unchanged = np.empty(size, np.uint8), np.empty(size, np.int64)
        origins = np.empty(size, np.int64)
        rows, fault = kernels.split_changes(
            self._messages.data, self._messages.starts, self._messages.lengths, chosen,
            _BINARY if binary else _TEXT, view.is_key, starts, lengths, types, origins, unchanged,
        )  # fmt: skip
        if rows < 0:
            raise _fault(-rows, view, self.message(int(fault)))
        seq = 2 * origins
        seq[1:] += origins[1:] == origins[:-1]
        columns: dict[str, pa.Array] = {
            column.name: column_of(
                Cells(self._messages.data, starts[place], lengths[place]),
                wire,
                Place(view.table, column.name, bad_as_null),
                binary=binary,
            )
            for place, (column, wire) in enumerate(
                zip(view.relation.columns, view.wires, strict=True)
            )
        }
        columns[CHANGE_TYPE] = _TYPES.take(pa.array(types))
        columns[SEQ] = pa.array(seq)
        columns[TRANSACTION] = pa.array(widened(self._xids[self._owners[origins]], near))
        columns[UNCHANGED] = pa.array(unchanged)
        if commits:
            columns |= self._commits(self._owners[origins])
        return pa.table(columns)

    def _commits(self, transactions: "np.ndarray[Any, Any]") -> dict[str, pa.Array]:
        micros = self._found[transactions, 4] + POSTGRES_EPOCH_S * _MICROS
        return {
            COMMIT_END: pa.array(self._found[transactions, 3]),
            COMMITTED_AT: pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        }


def joined(table: str, pieces: Sequence[pa.Table]) -> pa.Table:
    """Changes under several versions of a relation as one table, in order."""
    if len(pieces) == 1:
        return pieces[0]
    marks = (CHANGE_TYPE, SEQ, TRANSACTION, UNCHANGED, COMMIT_END, COMMITTED_AT)
    names = list(dict.fromkeys(n for each in pieces for n in each.column_names if n not in marks))
    pieces = [_ordered(each, [*names, *marks]) for each in pieces]
    try:
        return pa.concat_tables(pieces, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{table} changed a column's type in the middle of a transaction",
            detail=str(error)[:300],
            hint="Rows before and after cannot be read as one table: create the table again.",
        ) from None


def _ordered(piece: pa.Table, names: Sequence[str]) -> pa.Table:
    """A piece with its marks as if it had all of these columns."""
    bits = reordered_marks(piece[UNCHANGED].to_numpy(), piece.column_names, names)
    place = piece.schema.get_field_index(UNCHANGED)
    marked = piece.set_column(place, UNCHANGED, pa.array(bits))
    # The first piece says in which order the columns come.
    return marked.select([name for name in names if name in piece.column_names])


def _fault(fault: int, view: RelationView, message: bytes) -> Exception:
    if fault == kernels.FAULT_FORMAT:
        return OtherFormat(view.table)
    if fault == kernels.FAULT_UNCHANGED:
        return SchemaError(
            f"{view.table} has an update without the value of a column after the 63rd",
            detail="Values that PostgreSQL stores apart and that did not change are not sent.",
            hint=f"ALTER TABLE {view.table} REPLICA IDENTITY FULL;",
        )
    return BrokenInvariant(
        f"a message of {view.table} cannot be read", story=[f"fault {fault}", message[:200].hex()]
    )
