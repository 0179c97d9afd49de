"""Files and parts of reads: what one Spark task is told to read.

    piece            rows                                 dead rows    change columns
    of a batch       a data file at an epoch              left out     none
    of a snapshot    a data file at an epoch              left out     an insert of that epoch
    of changes       a change file                        none         as the file says
    of inserts       a data file as its epoch wrote it    none         inserts of its epoch

Small files share a task, so that a table of many epochs is not many tasks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from headwater.model.epoch import Epoch
from headwater.model.table_commit import DeletionVector
from headwater.state.manifest import LiveFile, LogEntry

_TASK_BYTES = 32 << 20
_OPEN_BYTES = 256 << 10
"""What opening a file costs, in bytes that could be read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file to read."""

    path: str
    bytes: int
    dead: DeletionVector | None = None
    inserted_at: Epoch | None = None
    """Set where every row counts as inserted by this epoch."""


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]


def pieces_of_rows(files: Iterable[LiveFile], inserted_at: Epoch | None = None) -> list[Piece]:
    """The rows at an epoch; files whose rows are all dead are left out."""
    return [
        Piece(path=live.file.path, bytes=live.file.bytes, dead=live.dead, inserted_at=inserted_at)
        for live in files
        if live.live_rows
    ]


def pieces_of_changes(entries: Iterable[LogEntry]) -> list[Piece]:
    """The exact changes of some epochs, in their order."""
    pieces: list[Piece] = []
    for entry in entries:
        pieces += [Piece(path=file.path, bytes=file.bytes) for file in entry.changes]
        pieces += [
            Piece(path=file.path, bytes=file.bytes, inserted_at=entry.epoch)
            for file in entry.inserts
        ]
    return pieces


def parts(pieces: Sequence[Piece], task_bytes: int = _TASK_BYTES) -> list[Part]:
    """Share the files out among tasks, neighbours together; none for no files."""
    return [Part(group) for group in _groups(pieces, task_bytes)]


def _groups(pieces: Sequence[Piece], task_bytes: int) -> Iterator[tuple[Piece, ...]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        cost = piece.bytes + _OPEN_BYTES
        if group and size + cost > task_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += cost
    if group:
        yield tuple(group)
