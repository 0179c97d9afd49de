"""Deliveries: how far each sink's target is, and what is under way to it.

There is one row per sink, since deliveries are made one at a time and in order:

    state        everything up to     and of (delivered, epoch]
    IDLE         `delivered` is at    nothing has begun
    PREPARING    the target           parts may lie at the target, unseen; nobody has a receipt
    PREPARED                          boundaries and receipts are fixed; it may be seen already

    from                to PREPARING    to PREPARED              to IDLE
    IDLE                a new one       a new one                the mark moves over empty epochs
    PREPARING           the same        the same                 aborted
    PREPARED            lost parts      the same, new receipts   committed, or aborted

Every one of these may be found after a crash, and is a place to go on from. `shown` is the last
epoch that the target was really given, as epochs without rows are not brought to it: a target
that knows less has been set back behind our backs.

Promises
    Fenced      Every write is made in one transaction with a look at the fence, so an engine that
                another has replaced can no longer fix, or end, a delivery.
    Repeatable  A write that was not answered may be made again.
    Verified    What is read fits its checksum, or is `DamagedState`.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select

from headwater.errors import BrokenInvariant, DamagedState
from headwater.ledger.codec import checksum
from headwater.ledger.ledger import Ledger
from headwater.ledger.tables import DELIVERY
from headwater.ledger.upsert import upsert
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term

_OF_SINK = DELIVERY.c.sink == bindparam("of_sink")
_ALL = select(DELIVERY).order_by(DELIVERY.c.sink)
_ONE = select(DELIVERY).where(_OF_SINK)
_FORGET = delete(DELIVERY).where(_OF_SINK)


class DeliveryState(StrEnum):
    """What the ledger knows of a sink's next delivery."""

    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDelivery:
    """One sink's row."""

    sink: str
    delivered: Epoch = NO_EPOCH
    shown: Epoch = NO_EPOCH
    state: DeliveryState = DeliveryState.IDLE
    epoch: Epoch = NO_EPOCH
    """Where the delivery that is under way ends; `NO_EPOCH` for none."""
    rows: int = 0
    """How many rows the log has of it."""
    receipts: tuple[bytes, ...] = ()

    def begun(
        self,
        state: DeliveryState,
        *,
        after: Epoch,
        epoch: Epoch,
        rows: int,
        receipts: Sequence[bytes] = (),
    ) -> "StoredDelivery":
        """The row once a delivery is announced or fixed; the mark moves to where it begins."""
        if after < self.delivered or epoch <= after:
            raise BrokenInvariant(
                f'sink "{self.sink}" is at epoch {self.delivered}, '
                f"and a delivery of {after} to {epoch} begins"
            )
        under_way = self.state is not DeliveryState.IDLE
        if under_way and (self.delivered, self.epoch) != (after, epoch):
            raise BrokenInvariant(
                f'sink "{self.sink}" has epoch {self.epoch} under way, and begins {epoch}'
            )
        return replace(
            self, delivered=after, state=state, epoch=epoch, rows=rows, receipts=tuple(receipts)
        )

    def committed(self, epoch: Epoch, *, shown: bool) -> "StoredDelivery":
        """The row once everything up to an epoch is at the target."""
        if self.state is not DeliveryState.IDLE and self.epoch != epoch:
            raise BrokenInvariant(
                f'sink "{self.sink}" is at epoch {epoch}, with epoch {self.epoch} under way'
            )
        if epoch < self.delivered:
            return self
        given = epoch if shown else self.shown
        return StoredDelivery(sink=self.sink, delivered=epoch, shown=given)

    def aborted(self) -> "StoredDelivery":
        """The row once nothing is under way."""
        return replace(self, state=DeliveryState.IDLE, epoch=NO_EPOCH, rows=0, receipts=())

    def set_back(self, epoch: Epoch) -> "StoredDelivery":
        """The row once a user wants everything after an epoch again."""
        return StoredDelivery(sink=self.sink, delivered=epoch)


class DeliveryBook:
    """All sinks' rows, written under one term."""

    def __init__(self, ledger: Ledger, term: Term) -> None:
        self._ledger = ledger
        self._term = term

    def of(self, sink: str) -> StoredDelivery:
        """What is stored of a sink; the beginning where nothing is."""
        with self._ledger.reading() as connection:
            return _read(connection, sink)

    def preparing(self, sink: str, *, after: Epoch, epoch: Epoch, rows: int) -> None:
        """Say that parts of a delivery are about to be written at the target.

        Replay: repeatable; the same delivery is begun once.
        """
        with self._row(sink) as (before, write):
            write(before.begun(DeliveryState.PREPARING, after=after, epoch=epoch, rows=rows))

    def prepared(
        self, sink: str, *, after: Epoch, epoch: Epoch, rows: int, receipts: Sequence[bytes] = ()
    ) -> None:
        """Fix a delivery, before anything of it can be seen.

        Replay: repeatable; the latest receipts count.
        """
        state = DeliveryState.PREPARED
        with self._row(sink) as (before, write):
            write(before.begun(state, after=after, epoch=epoch, rows=rows, receipts=receipts))

    def committed(self, sink: str, epoch: Epoch, *, shown: bool = True) -> None:
        """Everything up to an epoch is at the target; `shown` if rows of it were.

        Replay: repeatable; a mark never goes back.
        """
        with self._row(sink) as (before, write):
            write(before.committed(epoch, shown=shown))

    def aborted(self, sink: str) -> None:
        """Nothing of what was under way is at the target, nor will it be seen.

        Replay: repeatable; the second time there is nothing under way.
        """
        with self._row(sink) as (before, write):
            write(before.aborted())

    def rewound(self, sink: str, epoch: Epoch) -> None:
        """A user wants everything after an epoch delivered once more.

        Replay: repeatable.
        """
        with self._row(sink) as (before, write):
            write(before.set_back(epoch))

    def owed_again(self, sink: str) -> None:
        """A target may know less than it was given: the user has had that owed to it once more.

        Replay: repeatable.
        """
        with self._row(sink) as (before, write):
            write(replace(before, shown=NO_EPOCH))

    def forget(self, sink: str) -> None:
        """The sink is dropped.

        Replay: repeatable; a row that is not there is not missed.
        """
        with self._ledger.owned(self._term) as connection:
            connection.execute(_FORGET, {"of_sink": sink})

    @contextmanager
    def _row(self, sink: str) -> Iterator[tuple[StoredDelivery, Callable[[StoredDelivery], None]]]:
        with self._ledger.owned(self._term) as connection:
            yield _read(connection, sink), partial(_write, connection)


def read_deliveries(connection: Connection) -> dict[str, StoredDelivery]:
    """All sinks' rows by name."""
    return {row.sink: _decoded(row) for row in connection.execute(_ALL)}


def _read(connection: Connection, sink: str) -> StoredDelivery:
    row = connection.execute(_ONE, {"of_sink": sink}).one_or_none()
    return StoredDelivery(sink=sink) if row is None else _decoded(row)


def _write(connection: Connection, stored: StoredDelivery) -> None:
    """Replay: repeatable; the row is replaced whole."""
    body = _packed(stored.receipts)
    row = {
        "sink": stored.sink,
        "delivered": stored.delivered,
        "shown": stored.shown,
        "state": stored.state.value,
        "epoch": stored.epoch,
        "rows": stored.rows,
        "receipts": body,
        "checksum": _checksum(stored, body),
    }
    upsert(connection, DELIVERY, [row])


def _decoded(row: Any) -> StoredDelivery:
    try:
        stored = StoredDelivery(
            sink=row.sink,
            delivered=Epoch(row.delivered),
            shown=Epoch(row.shown),
            state=DeliveryState(row.state),
            epoch=Epoch(row.epoch),
            rows=row.rows,
            receipts=_unpacked(row.receipts),
        )
    except (ValueError, zlib.error, struct.error) as error:
        raise _damaged(row.sink, "cannot be read") from error
    if _checksum(stored, row.receipts) != row.checksum:
        raise _damaged(row.sink, "does not fit its checksum")
    return stored


def _checksum(stored: StoredDelivery, body: bytes) -> int:
    text = f"{stored.sink}/{stored.state}/".encode()
    numbers = (stored.delivered, stored.shown, stored.epoch, stored.rows)
    return checksum(*numbers, body=text + body)


def _packed(receipts: Sequence[bytes]) -> bytes:
    parts = [struct.pack(">I", len(receipt)) + receipt for receipt in receipts]
    return zlib.compress(b"".join(parts), level=1)


def _unpacked(body: bytes) -> tuple[bytes, ...]:
    rest, found = zlib.decompress(body), []
    while rest:
        (size,) = struct.unpack(">I", rest[:4])
        if len(rest) < 4 + size:
            raise ValueError("a receipt is cut off")
        found.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return tuple(found)


def _damaged(sink: str, why: str) -> DamagedState:
    return DamagedState(
        f"what the ledger has of the deliveries to {sink} is damaged",
        detail=f"The row {why}.",
        hint="Restore the ledger's database from a backup; nothing was delivered meanwhile.",
    )
