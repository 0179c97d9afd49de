"""Complete lists of a table's files, stored every so often beside an epoch's record.

A table's files at epoch `e` are its newest manifest not after `e`, plus the records between.
What a manifest's bytes say is the state store's business; here they are only kept whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, func, select

from headwater.errors import DamagedState
from headwater.ledger.codec import checksum
from headwater.ledger.tables import MANIFEST
from headwater.ledger.upsert import upsert
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId

_FORGET = delete(MANIFEST).where(MANIFEST.c.table_id == bindparam("table"))
_BY_TABLE = select(MANIFEST).where(MANIFEST.c.table_id == bindparam("table"))
_NEWEST = _BY_TABLE.order_by(MANIFEST.c.epoch.desc()).limit(1)
_NEWEST_AT = _NEWEST.where(MANIFEST.c.epoch <= bindparam("at"))
_NEWEST_OF_ALL = (
    select(MANIFEST.c.table_id, func.max(MANIFEST.c.epoch).label("epoch"))
    .where(MANIFEST.c.epoch <= bindparam("before"))
    .group_by(MANIFEST.c.table_id)
)
_REPLACED = _FORGET.where(MANIFEST.c.epoch < bindparam("by"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """One table's list of files as of one epoch."""

    table: TableId
    epoch: Epoch
    body: bytes


def write_manifests(
    connection: Connection, epoch: Epoch, manifests: Mapping[TableId, bytes]
) -> None:
    """Store some manifests; an empty one forgets all of that table.

    Replay: repeatable; the same manifests leave the same rows.
    """
    for table, body in manifests.items():
        if not body:
            connection.execute(_FORGET, {"table": table})
    rows = [
        {
            "table_id": table,
            "epoch": epoch,
            "checksum": checksum(table, epoch, body=body),
            "body": body,
        }
        for table, body in manifests.items()
        if body
    ]
    upsert(connection, MANIFEST, rows)


def read_manifest(
    connection: Connection, table: TableId, at: Epoch | None
) -> StoredManifest | None:
    """The newest manifest of a table, not after `at` if that is given."""
    if at is None:
        row = connection.execute(_NEWEST, {"table": table}).one_or_none()
    else:
        row = connection.execute(_NEWEST_AT, {"table": table, "at": at}).one_or_none()
    if row is None:
        return None
    if checksum(row.table_id, row.epoch, body=row.body) != row.checksum:
        raise DamagedState(
            f"the manifest of table {table} at epoch {row.epoch} is damaged",
            hint="Restore the ledger's database from a backup.",
        )
    return StoredManifest(table=table, epoch=Epoch(row.epoch), body=row.body)


def prune_manifests(connection: Connection, before: Epoch) -> None:
    """Drop manifests that a newer one, not after `before`, replaces.

    Replay: repeatable; what is kept stays kept.
    """
    newest = connection.execute(_NEWEST_OF_ALL, {"before": before}).all()
    if newest:
        connection.execute(_REPLACED, [{"table": row.table_id, "by": row.epoch} for row in newest])
