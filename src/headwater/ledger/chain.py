"""The chain of records: every epoch names the one it came after, and the fence names the last.

Reading checks each link, so a record that is missing in the middle, at the end, or was altered,
is `DamagedState` with the epoch it happened at. Records that `prune` dropped are `HistoryGone`,
which is no damage: the floor says how far pruning went.
"""

from typing import Any

from sqlalchemy import Connection, Integer, Row, bindparam, delete, func, insert, select

from headwater.errors import HistoryGone
from headwater.ledger.codec import EncodedRecord, damaged, decode
from headwater.ledger.facts import read_floor, write_floor
from headwater.ledger.manifests import prune_manifests
from headwater.ledger.tables import EPOCH
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.record import EpochRecord

_ADD = insert(EPOCH)
_ONE = select(EPOCH).where(EPOCH.c.epoch == bindparam("at"))
_MARKS = select(EPOCH.c.term, EPOCH.c.checksum).where(EPOCH.c.epoch == bindparam("at"))
_LINKS = (
    select(EPOCH)
    .where(EPOCH.c.epoch > bindparam("since"), EPOCH.c.epoch <= bindparam("upto"))
    .order_by(EPOCH.c.epoch)
    .limit(bindparam("most", type_=Integer))
)
_OLD = EPOCH.c.epoch < bindparam("bound")
_NEWEST_OLD = select(func.max(EPOCH.c.epoch)).where(_OLD)
_DROP_OLD = delete(EPOCH).where(_OLD)


def add_link(connection: Connection, row: EncodedRecord) -> None:
    """Insert a record.

    Replay: at most once; both its epoch and its predecessor are unique.
    """
    connection.execute(
        _ADD,
        {
            "epoch": row.epoch,
            "after": row.after,
            "term": row.term,
            "format": row.format,
            "checksum": row.checksum,
            "body": row.body,
        },
    )


def read_one(connection: Connection, epoch: Epoch, head: Epoch) -> EpochRecord:
    """The record of exactly that epoch."""
    row = connection.execute(_ONE, {"at": epoch}).one_or_none()
    if row is not None:
        return decode(_encoded(row))
    floor = read_floor(connection)
    if epoch <= floor:
        raise _pruned(epoch, floor)
    if epoch == head:
        raise damaged(epoch, "it is missing, and it is the last one")
    raise HistoryGone(f"epoch {epoch} has no record", detail=f"The last committed epoch is {head}.")


def read_links(
    connection: Connection, after: Epoch, upto: Epoch, *, limit: int
) -> list[EpochRecord]:
    """Up to `limit` records that follow `after`, each link checked; `upto` is a known epoch."""
    if after < (floor := read_floor(connection)):
        raise _pruned(after, floor)
    rows = connection.execute(_LINKS, {"since": after, "upto": upto, "most": limit}).all()
    records, last = [], after
    for row in rows:
        if row.after != last:
            raise damaged(
                Epoch(row.epoch), f"it follows epoch {row.after}, but the one before is {last}"
            )
        records.append(decode(_encoded(row)))
        last = Epoch(row.epoch)
    return records


def has_record(connection: Connection, row: EncodedRecord) -> bool:
    """Whether this very record is in the chain."""
    found = connection.execute(_MARKS, {"at": row.epoch}).one_or_none()
    return found is not None and tuple(found) == (row.term, row.checksum)


def prune(connection: Connection, before: Epoch, head: Epoch) -> int:
    """Drop records older than `before`, but never the last one.

    Replay: repeatable; the second time there is nothing to drop.
    """
    bound = {"bound": min(before, head)}
    newest = connection.execute(_NEWEST_OLD, bound).scalar_one()
    if newest is None:
        return 0
    dropped = connection.execute(_DROP_OLD, bound).rowcount
    write_floor(connection, Epoch(newest))
    prune_manifests(connection, before)
    return dropped


def _encoded(row: Row[Any]) -> EncodedRecord:
    return EncodedRecord(
        epoch=Epoch(row.epoch),
        after=Epoch(row.after),
        term=Term(row.term),
        format=row.format,
        checksum=row.checksum,
        body=row.body,
    )


def _pruned(epoch: Epoch, floor: Epoch) -> HistoryGone:
    return HistoryGone(
        f"the ledger no longer has what followed epoch {epoch}",
        detail=f"Records up to epoch {floor} were pruned.",
        hint="Read a later epoch, or raise retention_s for the next time.",
    )
