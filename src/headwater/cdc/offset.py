"""A place in an upstream log: totally ordered within that log, stored as text with a version.

    database              a place is                                          compared by
    PostgreSQL            the end of a commit record, as LSN                  the LSN
    MySQL and MariaDB     the end of a transaction: binlog file and byte,     number of the file,
                          and the GTIDs executed up to there                  then the byte

Places lie between transactions, never inside one. Two places of different logs, or of one log
before and after a failover, cannot be compared: that raises `DamagedState` rather than guess.
"""

import json
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, ClassVar

from headwater.errors import DamagedState

_FORMAT = 1


@dataclass(frozen=True, slots=True, order=True)
class PostgresOffset:
    """Everything that committed before this LSN, and nothing else."""

    database: ClassVar[str] = "postgres"
    lsn: int

    def __str__(self) -> str:
        return f"{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"

    @staticmethod
    def of(text: str) -> "PostgresOffset":
        """From PostgreSQL's spelling of an LSN."""
        high, _, low = text.partition("/")
        try:
            return PostgresOffset(int(high, 16) << 32 | int(low, 16))
        except ValueError:
            raise DamagedState(f'"{text}" is not an LSN') from None


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class BinlogOffset:
    """The end of a transaction in a binary log."""

    database: ClassVar[str] = "mysql"
    file: str
    position: int
    gtids: str = ""
    """What was executed up to here, as the server spells it; not compared."""

    @property
    def number(self) -> int:
        """The number of the file: 1000000 comes after 999999, whatever their spelling."""
        _, _, digits = self.file.rpartition(".")
        if not digits.isdigit():
            raise DamagedState(f'"{self.file}" is not the name of a binlog file')
        return int(digits)

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinlogOffset) and self._place(other) == other._place(self)

    def __lt__(self, other: "BinlogOffset") -> bool:
        return self._place(other) < other._place(self)

    def __hash__(self) -> int:
        return hash((self.number, self.position))

    def _place(self, other: "BinlogOffset") -> tuple[int, int]:
        mine, theirs = (each.file.rpartition(".")[0] for each in (self, other))
        if mine != theirs:
            raise DamagedState(f"{self} and {other} are places in different logs")
        return self.number, self.position


CdcOffset = PostgresOffset | BinlogOffset


def serialized(offset: CdcOffset) -> str:
    """How an offset is stored; `parse_offset` reads it back."""
    match offset:
        case PostgresOffset():
            place: dict[str, Any] = {"lsn": str(offset)}
        case BinlogOffset():
            place = {"file": offset.file, "pos": offset.position, "gtids": offset.gtids}
    return json.dumps({"v": _FORMAT, "db": offset.database, **place})


def parse_offset(text: str) -> CdcOffset:
    """A stored offset."""
    try:
        stored = json.loads(text)
        if stored["v"] > _FORMAT:
            raise DamagedState(
                f"a position was stored in format {stored['v']}, and this version knows {_FORMAT}",
                hint="Use the version of Headwater that wrote it, or a newer one.",
            )
        if stored["db"] == PostgresOffset.database:
            return PostgresOffset.of(stored["lsn"])
        if stored["db"] == BinlogOffset.database:
            return BinlogOffset(stored["file"], int(stored["pos"]), stored["gtids"])
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedState(f"a stored position cannot be read: {text[:200]!r}")
