"""The messages of pgoutput, protocol version 1, in plain Python.

    B begin     commit's LSN, time, transaction     I insert    relation, N new row
    C commit    commit's LSN, end, time             U update    relation, K old key or O old row,
    R relation  what a table looks like now                     N new row
    Y type      the name of a type                  D delete    relation, K old key or O old row
    O origin    where it came from first            T truncate  options, relations
                                                    M message   what somebody emitted

A row is a list of cells: n null, u unchanged and not sent, t text, b binary.

Relations, truncates and the like are rare, and are read with this in production. Rows are read by
the kernels of `pgoutput_kernels.py`, for which the functions here are the meaning.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from headwater.errors import BrokenInvariant


class Cell(Enum):
    """Cells without bytes."""

    NULL = "n"
    UNCHANGED = "u"


Row = tuple[bytes | Cell, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; it is sent once it has committed."""

    commit_lsn: int
    committed_at: float
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It ends."""

    commit_lsn: int
    end_lsn: int
    committed_at: float


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation."""

    name: str
    oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like from here on."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """A row is new."""

    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A row changed; the old one is there if the replica identity asks for it."""

    relation: int
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row is gone."""

    relation: int
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were emptied."""

    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """Types, origins and messages: nothing for us."""

    kind: str


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other

POSTGRES_EPOCH_S = 946_684_800


def read_message(data: bytes) -> Message:  # noqa: PLR0911  one line per message
    """One message."""
    match data[:1]:
        case b"B":
            lsn, micros, xid = struct.unpack_from(">QqI", data, 1)
            return Begin(lsn, _seconds(micros), xid)
        case b"C":
            _, lsn, end, micros = struct.unpack_from(">bQQq", data, 1)
            return Commit(lsn, end, _seconds(micros))
        case b"R":
            return _relation(data)
        case b"I":
            new, _ = _row(data, 6)
            return Insert(_oid(data, 1), new)
        case b"U":
            return _update(data)
        case b"D":
            old, _ = _row(data, 6)
            return Delete(_oid(data, 1), old)
        case b"T":
            count, _ = struct.unpack_from(">Ib", data, 1)
            return Truncate(struct.unpack_from(f">{count}I", data, 6))
        case b"Y" | b"O" | b"M":
            return Other(data[:1].decode())
        case _:
            raise BrokenInvariant(f"pgoutput sent a message of kind {data[:1]!r}")


@dataclass(frozen=True, slots=True)
class PlainChange:
    """One row of what a batch says, as the oracle has it."""

    kind: str
    """insert, delete, update_preimage or update_postimage."""
    row: Row
    unchanged: int
    """Bits of the columns that were not sent."""


def plain_changes(message: Message, key: tuple[int, ...]) -> Iterator[PlainChange]:
    """The changes that a message means, for a table whose key is at these places."""
    match message:
        case Insert(new=new):
            yield PlainChange("insert", *_without_marks(new))
        case Delete(old=old):
            yield PlainChange("delete", *_without_marks(old))
        case Update(old=old, new=new):
            filled = new if old is None else _filled(new, old)
            moved = old is not None and any(old[place] != filled[place] for place in key)
            if old is None:
                old = tuple(
                    cell if place in key else Cell.NULL for place, cell in enumerate(filled)
                )
            before, _ = _without_marks(old)
            yield PlainChange("delete" if moved else "update_preimage", before, 0)
            yield PlainChange("insert" if moved else "update_postimage", *_without_marks(filled))


def _filled(new: Row, old: Row) -> Row:
    """The new row, with what was not sent taken from the old one as far as that has it."""
    return tuple(
        before if cell is Cell.UNCHANGED and not isinstance(before, Cell) else cell
        for cell, before in zip(new, old, strict=True)
    )


def _without_marks(row: Row) -> tuple[Row, int]:
    bits = sum(1 << place for place, cell in enumerate(row) if cell is Cell.UNCHANGED)
    return tuple(Cell.NULL if cell is Cell.UNCHANGED else cell for cell in row), bits


def _update(data: bytes) -> Update:
    old, at = None, 5
    if data[at : at + 1] in (b"K", b"O"):
        old, at = _row(data, at + 1)
    new, _ = _row(data, at + 1)
    return Update(_oid(data, 1), old, new)


def _relation(data: bytes) -> Relation:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity, count = struct.unpack_from(">ch", data, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        oid, typmod = struct.unpack_from(">Ii", data, at)
        at += 8
        columns.append(RelationColumn(column, oid, typmod, bool(flags & 1)))
    # The schema of built-in tables is empty.
    return Relation(_oid(data, 1), schema, name, identity.decode(), tuple(columns))


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = struct.unpack_from(">h", data, at)
    at += 2
    cells: list[bytes | Cell] = []
    for _ in range(count):
        kind = data[at : at + 1]
        at += 1
        if kind in (b"n", b"u"):
            cells.append(Cell(kind.decode()))
            continue
        if kind not in (b"t", b"b"):
            raise BrokenInvariant(f"pgoutput sent a cell of kind {kind!r}")
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        cells.append(data[at : at + length])
        at += length
    return tuple(cells), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _oid(data: bytes, at: int) -> int:
    (oid,) = struct.unpack_from(">I", data, at)
    return int(oid)


def _seconds(micros: int) -> float:
    return micros / 1_000_000 + POSTGRES_EPOCH_S
