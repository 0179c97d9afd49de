"""Names of files: unique, and telling whose they are.

A name carries the term and the epoch it was staged in, so that a file which no ledger record
names can be recognised as garbage: it belongs to an engine that is gone, or to an epoch that
is over. The lookup cache, which all tables share, goes by name alone, hence the 64 random
bits.
"""

import re
import secrets
from dataclasses import dataclass

from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.state import deletion_vector

CHANGE_FOLDER = "_change_data"
LOG_FOLDER = "_delta_log"
RECEIPT_FOLDER = "_receipts"

_SNAPSHOT = "snapshot-"
_NAME = re.compile(
    r"(?:part|change|snapshot)-(\d+)-([0-9a-f]{16})-[0-9a-f]{16}\.parquet"
    r"|receipt-(\d+)-([0-9a-f]{16})-[0-9a-f]{16}\.arrow"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which engine made a file, and for which epoch."""

    term: Term
    epoch: Epoch

    def data_file(self) -> str:
        """A new name for a file of rows."""
        return f"part-{self.term:06d}-{self.epoch:016x}-{secrets.token_hex(8)}.parquet"

    def snapshot_file(self) -> str:
        """A new name for a file of rows that a snapshot brought, before their epoch is known."""
        return f"{_SNAPSHOT}{self.term:06d}-{self.epoch:016x}-{secrets.token_hex(8)}.parquet"

    def change_file(self) -> str:
        """A new name for a file of changes."""
        name = f"change-{self.term:06d}-{self.epoch:016x}-{secrets.token_hex(8)}.parquet"
        return f"{CHANGE_FOLDER}/{name}"

    def receipt_file(self) -> str:
        """A new name for the receipt of a slice."""
        name = f"receipt-{self.term:06d}-{self.epoch:016x}-{secrets.token_hex(8)}.arrow"
        return f"{RECEIPT_FOLDER}/{name}"

    def vector_file(self) -> str:
        """A new name for a file of deletion vectors."""
        token = self.term.to_bytes(4, "big") + self.epoch.to_bytes(8, "big")
        return deletion_vector.file_name(token + secrets.token_bytes(4))


def is_snapshot(path: str) -> bool:
    """Whether the rows of a file came by a snapshot, and nothing else of the table's keys."""
    return path.startswith(_SNAPSHOT)


def is_receipt(path: str) -> bool:
    """Whether a file is the receipt of a slice."""
    return path.startswith(f"{RECEIPT_FOLDER}/")


def origin_of(path: str) -> Origin | None:
    """Who made this file; None when it is not one of ours."""
    name = path.rsplit("/", 1)[-1]
    if token := deletion_vector.token_of(name):
        return Origin(
            Term(int.from_bytes(token[:4], "big")), Epoch(int.from_bytes(token[4:12], "big"))
        )
    if match := _NAME.fullmatch(name):
        term, epoch = (each for each in match.groups() if each is not None)
        return Origin(Term(int(term)), Epoch(int(epoch, 16)))
    return None
