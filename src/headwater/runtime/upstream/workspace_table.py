"""A table of another workspace, as the backfill room's `UpstreamTable`.

Everything is read from that workspace's ledger and files, whether an engine runs on it or not. The
only thing written there is a pin, in its ledger, so that it keeps the history that is still needed;
where that ledger cannot be written, `retention_s` of that workspace is what protects a follower.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.backfill.snapshot.slices import Group, SnapshotFile, groups_of
from headwater.backfill.snapshot.upstream.table import LoggedEpoch
from headwater.backfill.snapshot.vnode_stream import VnodeSlice
from headwater.catalog.snapshot import UNDEFINED_TABLE
from headwater.errors import (
    ConfigError,
    DamagedState,
    HistoryGone,
    RelationError,
    SchemaError,
    SourceUnavailable,
    UserError,
)
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.model.vnode import VnodeBitmap
from headwater.runtime.view_world import SparkSource
from headwater.spark_source.workspace import LookedInto, TableState
from headwater.state.dead_rows import DeadRows
from headwater.state.file_parts import only
from headwater.state.manifest import LogEntry, TableView
from headwater.state.read import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOMENT_S = 0.05
_AGAIN = "Drop the table and create it again; it begins with a new snapshot."


class UpstreamWorkspace:
    """Another workspace; a connection is made when it is first needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._looked: LookedInto | None = None
        self._lock = threading.Lock()
        self._head = (-_MOMENT_S, NO_EPOCH)

    def look(self) -> LookedInto:
        """The workspace; raises `ConfigError` when there is none."""
        with self._lock:
            if self._looked is None:
                self._looked = LookedInto(self.path)
            return self._looked

    def reach(self) -> LookedInto:
        """The same, once it is known to exist: not to find it is a matter of waiting."""
        try:
            return self.look()
        except ConfigError as error:
            if Path(self.path).expanduser().is_dir() and "schema version" in error.message:
                raise
            raise SourceUnavailable(
                f"workspace {self.path} cannot be read now",
                detail=error.message,
                hint="It is looked for again by itself.",
            ) from error

    def head(self) -> Epoch:
        """The last epoch, as it was a moment ago: all tables ask for it, many times a second."""
        looked = self.reach()
        with self._lock:
            at, head = self._head
            if time.monotonic() - at > _MOMENT_S:
                head = looked.head()
                self._head = (time.monotonic(), head)
            return head

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        with self._lock:
            looked, self._looked = self._looked, None
        if looked is not None:
            looked.close()


class WorkspaceTable:
    """Satisfies `UpstreamTable`."""

    def __init__(  # noqa: PLR0913  one argument per thing that it needs
        self,
        workspace: UpstreamWorkspace,
        name: str,
        schema: Schema,
        *,
        known: Callable[[], TableId | None],
        pin_name: str,
        spark: SparkSource,
        driver_bytes: int,
    ) -> None:
        self._workspace = workspace
        self.name = name
        self.schema = schema
        self._known = known
        self._pin_name = pin_name
        self._spark = spark
        self._driver_bytes = driver_bytes
        self._seen: TableState | None = None
        self._idle = (NO_EPOCH, NO_EPOCH)
        """Nothing has changed after the one and up to the other."""
        self._reader: Reader | None = None

    @property
    def id(self) -> TableId:
        """The table's id in its own workspace; another table of the same name is another one."""
        return self._state.definition.id

    @property
    def committed(self) -> Epoch:
        """The last epoch of its workspace that was seen."""
        return NO_EPOCH if self._seen is None else self._seen.head

    @property
    def oldest(self) -> Epoch:
        """The oldest epoch that could be read then."""
        return NO_EPOCH if self._seen is None else self._seen.manifest.horizon

    def refresh(self) -> None:
        """Look at the ledger of its workspace."""
        looked = self._workspace.reach()
        before = self._seen
        head = self._workspace.head()
        if before is not None and before.head == head:
            return
        if before is not None and head < before.head:
            raise UserError(
                f'workspace {self._workspace.path} has gone back behind what "{self.name}" has',
                detail=f"Its last epoch is {head}, and was {before.head}. It was restored from a "
                "backup, or is another workspace.",
                hint=_AGAIN,
            )
        try:
            known = self._known() if before is None else before.definition.id
            state = looked.table(self.name, before, id_=known)
        except RelationError as error:
            if error.sqlstate != UNDEFINED_TABLE:
                raise
            raise RelationError(
                f'"{self.name}" does not exist in workspace {self._workspace.path} any more',
                detail="It was dropped; another one of that name is not it.",
                hint=_AGAIN,
            ) from error
        check_columns(self.schema, state.manifest.schema, self.name)
        if self._reader is None:
            storage = looked.storage(state.definition.folder)
            self._reader = Reader(storage, DeadRows(storage))
        self._seen = state

    def groups(self, epoch: Epoch) -> Sequence[Group]:
        """The files of its rows at an epoch."""
        view = self._view(epoch)
        return groups_of(SnapshotFile(live.file, live.live_rows) for live in view.files)

    def snapshot(self, epoch: Epoch, slices: Sequence[VnodeSlice]) -> "pa.Table | DataFrame":
        """The rows of slices: in memory while they are few, else in Spark."""
        view, reader = self._view(epoch), self._files()
        whole = [part for each in slices if each.whole for part in each.parts]
        reads: list[tuple[TableView, VnodeBitmap | None]] = []
        if whole:
            reads.append((only(view, whole), None))
        reads += [(only(view, each.parts), each.vnodes) for each in slices if not each.whole]
        if not reads:
            reads = [(only(view, ()), None)]
        if sum(each.bytes for each in slices) <= self._driver_bytes // 4:
            with self._present(epoch):
                return pa.concat_tables([reader.read_table(part, v) for part, v in reads])
        spark = self._spark()
        frames = [reader.frame(spark, part, vnodes) for part, vnodes in reads]
        found = frames[0]
        for each in frames[1:]:
            found = found.unionByName(each)
        return found

    def log(self, after: Epoch) -> Sequence[LoggedEpoch]:
        """The epochs after one that changed it."""
        committed = self.committed
        entries = self._entries(after, committed)
        if not entries:
            first, upto = self._idle
            self._idle = (first if first <= after <= upto else after, committed)
        return [LoggedEpoch(entry.epoch, entry.rows, entry.bytes) for entry in entries]

    def changes(self, after: Epoch, upto: Epoch) -> "pa.Table | DataFrame":
        """Its exact changes: in memory while they are few, else in Spark."""
        entries, reader = self._entries(after, upto), self._files()
        if sum(entry.bytes for entry in entries) <= self._driver_bytes // 4:
            with self._present(after):
                return reader.read_changes(self.schema, entries)
        return reader.changes(self._spark(), self.schema, entries)

    def pin(self, epoch: Epoch) -> None:
        """Have its workspace keep an epoch, and all that come after it."""
        Ledger(self._workspace.reach().database).pin(self._pin_name, epoch)

    def unpin(self) -> None:
        """Let go of it."""
        Ledger(self._workspace.reach().database).unpin(self._pin_name)

    # Inside

    @property
    def _state(self) -> TableState:
        if self._seen is None:
            self.refresh()
        assert self._seen is not None
        return self._seen

    def _files(self) -> Reader:
        self._state  # noqa: B018  has looked
        assert self._reader is not None
        return self._reader

    def _view(self, epoch: Epoch) -> TableView:
        state = self._state
        try:
            view = state.view(epoch)
        except HistoryGone as error:
            raise self._gone(f"the rows of epoch {epoch}") from error
        return replace(view, schema=self.schema)

    def _entries(self, after: Epoch, upto: Epoch) -> Sequence[LogEntry]:
        manifest = self._state.manifest
        first, last = self._idle
        try:
            # Epochs that were seen to change nothing need not be kept.
            return manifest.changes(last if first <= after < last <= upto else after, upto)
        except HistoryGone as error:
            raise self._gone(f"the changes after epoch {after}") from error

    @contextmanager
    def _present(self, epoch: Epoch) -> Iterator[None]:
        """Explain a file that is missing: the epoch has left the retention, or it is to come."""
        try:
            yield
        except DamagedState as error:
            self.refresh()
            self._entries(epoch, epoch)
            raise SourceUnavailable(
                f'a file of "{self.name}" cannot be read now: {error.message}',
                detail=error.detail,
                hint="It is tried again by itself.",
            ) from error

    def _gone(self, what: str) -> HistoryGone:
        return HistoryGone(
            f'{what} of "{self.name}" are no longer kept in workspace {self._workspace.path}',
            detail=f"The oldest epoch that can be read there is {self.oldest}.",
            hint=f"{_AGAIN} Raise retention_s there, or let this source pin its history.",
        )


def check_columns(followed: Schema, found: Schema, name: str) -> None:
    """Raise unless a table has the columns that are followed, with their types, and their key."""
    if found.key != followed.key:
        raise SchemaError(
            f'the key of "{name}" is ({", ".join(found.key)}) now',
            detail=f"It was ({', '.join(followed.key)}).",
            hint=_AGAIN,
        )
    for column in followed.columns:
        if column.name not in found.names:
            raise SchemaError(
                f'"{name}" has no column "{column.name}" any more',
                detail=f"Columns: {', '.join(found.names)}.",
                hint=_AGAIN,
            )
        if found[column.name].type != column.type:
            raise SchemaError(
                f'column "{column.name}" of "{name}" is {found[column.name].type.postgres} now',
                detail=f"It was {column.type.postgres}.",
                hint=_AGAIN,
            )
