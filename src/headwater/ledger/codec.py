"""Epoch records as bytes: JSON, compressed, checksummed, under a format number.

The checksum covers the body and the columns beside it, so that a record that was moved to
another epoch is found out as well as one with a flipped bit. Nothing is guessed: a record that
does not fit its checksum is `DamagedState`, a format from the future is `WorkspaceTooNew`.
"""

import zlib
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from headwater.errors import DamagedState, WorkspaceTooNew
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.record import EpochRecord

FORMAT = 1

_RECORDS: TypeAdapter[EpochRecord] = TypeAdapter(EpochRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRecord:
    """One row of the chain."""

    epoch: Epoch
    after: Epoch
    term: Term
    format: int
    checksum: int
    body: bytes


def encode(record: EpochRecord) -> EncodedRecord:
    """Write a record down; the same record always gives the same bytes."""
    body = zlib.compress(_RECORDS.dump_json(record), level=1)
    return EncodedRecord(
        epoch=record.epoch,
        after=record.after,
        term=record.term,
        format=FORMAT,
        checksum=checksum(record.epoch, record.after, record.term, FORMAT, body=body),
        body=body,
    )


def decode(row: EncodedRecord) -> EpochRecord:
    """Read a record back, or raise `DamagedState` naming its epoch."""
    if row.format > FORMAT:
        raise WorkspaceTooNew(
            f"epoch {row.epoch} was written in format {row.format}; "
            f"this Headwater reads up to format {FORMAT}",
            hint="Upgrade headwater.",
        )
    if checksum(row.epoch, row.after, row.term, row.format, body=row.body) != row.checksum:
        raise damaged(row.epoch, "its checksum does not fit")
    try:
        record = _RECORDS.validate_json(zlib.decompress(row.body))
    except (zlib.error, ValidationError) as error:
        raise damaged(row.epoch, "its body cannot be read") from error
    if (record.epoch, record.after, record.term) != (row.epoch, row.after, row.term):
        raise damaged(row.epoch, f"its body is that of epoch {record.epoch}")
    return record


def checksum(*numbers: int, body: bytes) -> int:
    """CRC-32 over some numbers and a body."""
    return zlib.crc32(body, zlib.crc32("/".join(map(str, numbers)).encode()))


def damaged(epoch: Epoch, why: str) -> DamagedState:
    """The error for one epoch."""
    return DamagedState(
        f"the ledger's record of epoch {epoch} is damaged",
        detail=f"In the ledger, {why}.",
        hint="Restore the ledger's database from a backup; its tables follow from it.",
    )
