"""Where a stream of changes is, and how far it may go.

A position is what Spark writes into the query's checkpoint. It names the table by its id, the
last epoch that was read, and the table's version at that epoch.

    the position        the next batch
    snapshot            all rows at the batch's end, as inserts
    latest              nothing: its end is where the changes begin
    epoch               the changes after the epoch, up to the batch's end

Promises
    Repeatable   A batch follows from its start and its end alone. Spark asks for the first
                 position again when a query died in its first batch; hence "now" is never a
                 start. It becomes an end, and ends are in the checkpoint.
    Whole        A batch ends between two epochs.
    No gap       Changes that retention has dropped are an error. The version tells them from a
                 table that was merely idle while the horizon passed the position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from headwater.errors import HistoryGone, UserError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.spark_source.options import Since
from headwater.spark_source.workspace import TableState, not_committed
from headwater.state.manifest import LogEntry, Manifest

_AGAIN = (
    "Start the query with a new checkpoint and since = snapshot, which begins with the rows. "
    "Raise retention_s above the longest time that the query may be down or behind."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One place in a table's changes."""

    table: TableId
    epoch: Epoch = NO_EPOCH
    version: int | None = None
    """The newest version that was read; None where only an epoch is known."""
    begin: Since | None = None
    """What the first batch is, at the very first position only."""

    def to_offset(self) -> dict[str, Any]:
        """As Spark keeps it."""
        said = {"table": self.table, "epoch": self.epoch, "version": self.version}
        offset = {name: value for name, value in said.items() if value is not None}
        return offset if self.begin is None else {**offset, "begin": self.begin.value}

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Self:
        """Read what `to_offset` wrote."""
        try:
            return cls(
                table=TableId(int(offset["table"])),
                epoch=Epoch(int(offset["epoch"])),
                version=int(offset["version"]) if "version" in offset else None,
                begin=Since(offset["begin"]) if "begin" in offset else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                "the checkpoint holds a position that is not Headwater's",
                detail=str(dict(offset)),
                hint="Use a checkpoint of its own for each query.",
            ) from error


def first_position(state: TableState, since: Since | Epoch) -> Position:
    """Where a new query begins."""
    table = state.definition.id
    match since:
        case Since.SNAPSHOT | Since.LATEST:
            return Position(table=table, begin=since)
        case Since.BEGINNING:
            start = Position(table=table)
        case epoch:
            if epoch > state.head:
                raise not_committed(Epoch(int(epoch)), state.head)
            start = Position(table=table, epoch=Epoch(int(epoch)))
    _require_history(state, start)
    return start


def advance(
    state: TableState, start: Position, *, upto: Epoch, max_rows: int | None = None
) -> Position:
    """The end of the next batch; `start` itself when there is nothing to read."""
    require_table(state, start)
    if start.begin is not None:
        return _at(state.manifest, start.table, upto)
    _require_history(state, start)
    taken: LogEntry | None = None
    rows = 0
    for entry in _log(state.manifest, start, upto):
        rows += sum(file.rows for file in entry.changes)
        rows += sum(file.rows for file in entry.inserts)
        if taken is not None and max_rows is not None and rows > max_rows:
            break
        taken = entry
    if taken is None:
        return start
    return Position(table=start.table, epoch=taken.epoch, version=taken.version)


def entries_between(state: TableState, start: Position, end: Position) -> Sequence[LogEntry]:
    """The changes of a batch that is not the first one of a snapshot or of `latest`."""
    _require_history(state, start)
    return _log(state.manifest, start, end.epoch)


def require_table(state: TableState, position: Position) -> None:
    """Refuse a checkpoint that was made with another table or another ledger."""
    name = state.definition.name
    if position.table != state.definition.id:
        raise UserError(
            f'the checkpoint is of another table than "{name}"',
            detail=f"It read table {position.table}; the name now means {state.definition.id}. "
            "The table was dropped and created again, or the checkpoint is another query's.",
            hint="Start the query with a new checkpoint.",
        )
    if position.epoch > state.head:
        raise UserError(
            f'the checkpoint is ahead of table "{name}"',
            detail=f"It read up to epoch {position.epoch}; the last committed epoch is "
            f"{state.head}. The workspace is another one, or was restored from a backup.",
            hint="Start the query with a new checkpoint.",
        )


def snapshot_gone(state: TableState, epoch: Epoch) -> HistoryGone:
    """The error for a first batch whose rows are no longer kept."""
    return _gone(state, f"the rows at epoch {epoch}")


def _at(manifest: Manifest, table: TableId, epoch: Epoch) -> Position:
    read = [entry.version for entry in manifest.changes(manifest.horizon, epoch)]
    return Position(table=table, epoch=epoch, version=max([manifest.horizon_version, *read]))


def _log(manifest: Manifest, start: Position, upto: Epoch) -> Sequence[LogEntry]:
    return manifest.changes(Epoch(max(start.epoch, manifest.horizon)), upto)


def _require_history(state: TableState, start: Position) -> None:
    manifest = state.manifest
    if start.version is not None:
        lost = manifest.horizon_version > start.version
    else:
        lost = start.epoch < manifest.horizon and manifest.horizon > manifest.created
    if lost:
        raise _gone(state, f"changes after epoch {start.epoch}")


def _gone(state: TableState, what: str) -> HistoryGone:
    return HistoryGone(
        f'{what} of table "{state.definition.name}" are no longer kept',
        detail=f"The oldest epoch that can be read is {state.manifest.horizon}.",
        hint=_AGAIN,
    )
