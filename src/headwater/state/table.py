"""A state table: one relation's rows by vnode and epoch.

    stage      writes an epoch's changes as files nobody can see, and says what they are
    confirm    the ledger has the epoch: it is now what readers see
    publish    the epoch becomes a version of the Delta table, for other tools
    discard    the epoch did not happen: back to what the ledger has
    read       at an epoch, or the changes between two

Staged epochs build on each other before the ledger has them, so that the next epoch need not
wait for a commit. All writing methods are called by one actor at a time; readers may be many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.crash_points import crash_point
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord
from headwater.model.schema import Schema
from headwater.model.table_commit import TableCommit
from headwater.model.vnode import VnodeBitmap
from headwater.state import delta_log
from headwater.state.dead_rows import DeadRows
from headwater.state.file_name import Origin, is_snapshot
from headwater.state.fold import (
    Folded,
    FoldPlan,
    fold_here,
    fold_on_spark,
    plan_fold,
    still_fits,
    with_fold,
)
from headwater.state.fresh_rows import stage_fresh
from headwater.state.lookup import Lookup
from headwater.state.manifest import LogEntry, Manifest, TableView
from headwater.state.merge import net_effect
from headwater.state.net_changes import net_changes
from headwater.state.read import Reader
from headwater.state.renaming import FEW_ROWS, renamed_rows
from headwater.state.snapshot_files import ReadyFile, SnapshotPlan, adopt
from headwater.state.stage import (
    StagedPart,
    StagePlan,
    seal,
    stage_table,
    staged_paths,
    together,
)
from headwater.state.stage_on_spark import ordered_frame, spooled_frame, stage_frame
from headwater.state.storage import Storage
from headwater.state.surroundings import Surroundings
from headwater.state.upcoming import Upcoming, upcoming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SPOOL_FROM = 8
"""Batches of so many times `driver_bytes` go to Spark by way of files, not of its heap."""


class StateTable:
    """One relation's stored rows."""

    def __init__(
        self, name: str, folder: str, manifest: Manifest, surroundings: Surroundings
    ) -> None:
        self.name = name
        self._around = surroundings
        self._storage = surroundings.storage.below(folder)
        self._dead_rows = DeadRows(self._storage)
        self.reader = Reader(self._storage, self._dead_rows, surroundings.fetched)
        # Epochs are written under `_writing`, which may take minutes; readers never wait for it.
        self._writing = RLock()
        self._lock = RLock()
        self._committed = manifest
        self._head = manifest.copy()
        self._staged: list[tuple[Epoch, TableCommit]] = []
        self._fold_plan: FoldPlan | None = None
        self._folded: Folded | None = None
        self._preparing: set[Epoch] = set()
        self.filling = False
        """Whether a snapshot is being read into it; its unnamed files are on their way then."""
        self.receipted = False
        """Whether slices are being read into it that leave receipts, which keep their files."""

    @property
    def id(self) -> TableId:
        """The table's id."""
        return self._committed.table

    @property
    def storage(self) -> Storage:
        """Where the table's files lie."""
        return self._storage

    @property
    def dead_rows(self) -> DeadRows:
        """Which rows of its files are dead, kept in memory as far as they are in use."""
        return self._dead_rows

    @property
    def schema(self) -> Schema:
        """The schema that the next epoch is staged with."""
        return self._head.schema

    @property
    def committed(self) -> Epoch:
        """The last epoch in the ledger that changed this table."""
        return self._committed.epoch

    # Writing

    def prepare(
        self, epoch: Epoch, changes: "pa.Table | DataFrame", *, fresh: bool = False
    ) -> StagedPart:
        """Write the files of changes for a later `stage`, beside the epochs.

        Nobody else may write meanwhile. `epoch` is the one that is under way, and stands in the
        files' names. `fresh` changes are inserts of keys that are all new, and need not wait
        for what was prepared before them. Replay: as of `stage`.
        """
        plan = self._preparing_plan(epoch)
        if fresh and not isinstance(changes, pa.Table):
            return stage_fresh(SnapshotPlan.of(plan), changes)
        # What is new need not be looked for in the files.
        return self._write(replace(plan, files=()) if fresh else plan, changes)

    def fresh_plan(self, epoch: Epoch) -> SnapshotPlan:
        """For tasks that write fresh rows themselves, as `prepare` does; `stage` is given parts."""
        return SnapshotPlan.of(self._preparing_plan(epoch))

    def _preparing_plan(self, epoch: Epoch) -> StagePlan:
        with self._lock:
            self._preparing.add(epoch)
            view = self._head.view()
        return self._stage_plan(epoch, view.schema, view)

    def prepared(self) -> None:
        """Nothing is prepared any more; files that no epoch took may be collected."""
        with self._lock:
            self._preparing.clear()

    def stage(
        self,
        epoch: Epoch,
        changes: "pa.Table | DataFrame | None" = None,
        *,
        files: Sequence[ReadyFile] = (),
        schema: Schema | None = None,
        parts: Sequence[StagedPart] = (),
    ) -> TableCommit | None:
        """Write the files of an epoch; None when it changes nothing.

        `changes` are in the order they happened; `schema` is a new schema, which they have.
        `files` of a snapshot follow changes that are in memory. `parts` are there instead of
        changes, where these are prepared. The first stage of a table creates it. Replay: an epoch
        that is staged again writes files under new names; the old ones are never named and are
        collected.
        """
        with self._writing:
            with self._lock:
                creates = self._head.version < 0
                if schema is not None:
                    schema = self._head.evolve(schema)
                view = self._head.view()
            plan = self._stage_plan(epoch, schema or view.schema, view)
            part = together(parts)
            if changes is not None:
                part = self._write_all(plan, changes, files)
            new_schema = schema or (view.schema if creates else None)
            # A new schema comes alone: with all files folded away it would look like a rewrite.
            folded = None if schema is not None else self._folded
            commit = self._seal(plan, view, part, new_schema, folded)
            crash_point("stage.after_files")
            with self._lock:
                if not commit.empty:
                    self._head.apply(epoch, commit)
                    self._staged.append((epoch, commit))
                if self._folded is folded or schema is not None:
                    self._folded = None
            return None if commit.empty else commit

    def rewrite(self, epoch: Epoch, schema: Schema, kept: Mapping[str, str]) -> TableCommit:
        """Write all rows anew under a schema that the present files cannot be read by.

        No row changes: `kept` columns have new names, by their old ones; others are null. Of a
        table without rows nothing has to fit. Replay: as of `stage`.
        """
        with self._writing:
            view = self._staged_view()
            plan = replace(self._stage_plan(epoch, schema, view), files=())
            part = StagedPart()
            if view.rows:
                part = self._write(plan, renamed_rows(self.staged_rows(FEW_ROWS), schema, kept))
            with self._lock:
                commit = TableCommit(
                    table=self.id,
                    version=self._head.version + 1,
                    added=part.added,
                    folded=tuple(live.file.path for live in view.files),
                    rewritten=tuple(file.path for file in part.added),
                    schema=schema,
                )
                self._head.apply(epoch, commit)
                self._staged.append((epoch, commit))
                self._folded = None
            return commit

    @property
    def staged_schema(self) -> Schema:
        """The schema that the next epoch begins with."""
        with self._lock:
            return self._head.view().schema

    @property
    def retired(self) -> frozenset[str]:
        """Names of dropped columns that files still hold, in lower case."""
        with self._lock:
            return self._head.retired

    def snapshot_plan(self) -> SnapshotPlan:
        """For tasks that write rows of a snapshot; a later `stage` is given their files."""
        with self._lock:
            origin = Origin(self._around.term, self._head.epoch)
            return SnapshotPlan(schema=self.schema, origin=origin, storage=self._storage)

    @property
    def spark(self) -> "Callable[[], SparkSession] | None":
        """Gives the session, which starts when it is first needed."""
        return self._around.spark

    @property
    def missing(self) -> bool:
        """Whether not even its creation has been staged."""
        with self._lock:
            return self._head.version < 0

    def upcoming(self, epoch: Epoch, since: Epoch | None = None) -> Upcoming:
        """The table as it will be once the ledger has `epoch`, and what changes up to then.

        Since the last epoch in the ledger, or another. Later epochs may be staged already; they
        do not count.
        """
        with self._lock:
            return upcoming(self._committed, self._staged, epoch, since)

    def staged(self, epoch: Epoch) -> TableCommit | None:
        """What is staged for an epoch that the ledger does not have yet."""
        with self._lock:
            return next((commit for at, commit in self._staged if at == epoch), None)

    def confirm(self, epoch: Epoch) -> None:
        """The ledger has every staged epoch up to `epoch`. Replay: nothing left to confirm."""
        with self._lock:
            while self._staged and self._staged[0][0] <= epoch:
                done, commit = self._staged.pop(0)
                self._committed.apply(done, commit)

    def publish(self, record: EpochRecord, commit: TableCommit) -> None:
        """Write the epoch's Delta version, which the ledger must have.

        Replay: a version that is there already is compared and left alone.
        """
        with self._lock:
            before = self._committed.view_at(record.after)
        content = delta_log.render(record.epoch, commit, before, self.name)
        delta_log.publish(self._storage, record.epoch, commit.version, content)

    def published_version(self) -> int:
        """The newest version of the Delta table, -1 when there is none."""
        return delta_log.newest_version(self._storage)

    def discard(self) -> None:
        """Forget the epochs the ledger does not have. Replay: their files are orphans."""
        with self._writing, self._lock:
            gone = [path for _, commit in self._staged for path in staged_paths(commit)]
            # Those with a receipt stay: another engine may have them already.
            gone = [path for path in gone if not (self.receipted and is_snapshot(path))]
            self._staged.clear()
            self._head = self._committed.copy()
            self._folded = None
            self._preparing.clear()
        for path in gone:
            self._storage.delete(path)

    # Folding

    def plan_fold(self) -> FoldPlan | None:
        """What would be folded next; None when it does not pay or one is waiting already."""
        with self._lock:
            if self._folded is not None:
                return None
            view = self._committed.view()
            if self.filling:
                # Files of the snapshot stay by themselves: see `snapshot_files.py`.
                own = (live for live in view.files if not is_snapshot(live.file.path))
                view = replace(view, files=tuple(own))
            self._fold_plan = plan_fold(view, self._around.settings)
            return self._fold_plan

    def fold(self, plan: FoldPlan) -> None:
        """Fold beside the epochs; the next one that is staged adopts the result.

        Replay: a fold that is not adopted leaves files that are collected.
        """
        stage = self._stage_plan(plan.view.epoch, plan.view.schema, plan.view)
        start = self._around.spark
        with self._lock:
            self._fold_plan = plan
        folded = None
        try:
            if start is None or plan.bytes <= self._around.settings.driver_bytes:
                folded = self._fold_here(stage, plan)
            else:
                folded = fold_on_spark(start(), stage, plan)
        finally:
            with self._lock:
                self._fold_plan = None
                self._folded = folded or self._folded

    # Reading

    def view(self, epoch: Epoch | None = None) -> TableView:
        """The table at an epoch, or at the last one in the ledger."""
        with self._lock:
            return self._committed.view() if epoch is None else self._committed.view_at(epoch)

    def lookup(
        self, keys: pa.Table, epoch: Epoch | None = None, *, staged: bool = False
    ) -> pa.Table:
        """The rows of these keys, in their order, those without a row left out.

        `staged` rows are those of epochs that the ledger does not have yet.
        """
        view = self._staged_view() if staged else self.view(epoch)
        lookup = Lookup(self._storage, self._around.cache, self._dead_rows)
        names = list(view.schema.key)
        wanted = pa.schema([view.schema.arrow.field(name) for name in names])
        return lookup.find(keys.select(names).cast(wanted), view.schema, view.files).rows

    def frame(self, epoch: Epoch | None = None, vnodes: VnodeBitmap | None = None) -> "DataFrame":
        """The rows at an epoch as a DataFrame, with `_vnode`."""
        return self.reader.frame(self._spark(), self.view(epoch), vnodes)

    def staged_rows(self, most: int) -> "pa.Table | DataFrame":
        """All rows, those of epochs that the ledger does not have yet included.

        In memory when they are `most` or fewer.
        """
        view = self._staged_view()
        if view.rows <= most:
            return self.reader.read_table(view, None)
        return self.reader.frame(self._spark(), view)

    def frame_of(self, view: TableView) -> "DataFrame":
        """The rows of a view that was handed out here, as a DataFrame with `_vnode`."""
        return self.reader.frame(self._spark(), view)

    def rows_of(self, view: TableView) -> "pa.Table | DataFrame":
        """The same: as rows while they are few, else as a DataFrame."""
        size = sum(live.file.bytes * live.share for live in view.files)
        if size <= self._around.settings.driver_bytes // 4:
            return self.reader.read_table(view)
        return self.frame_of(view)

    def changes_of(self, view: TableView, entries: Sequence[LogEntry]) -> "pa.Table | DataFrame":
        """The exact changes of epochs as if they were of one: few rows, or a DataFrame."""
        if sum(entry.bytes for entry in entries) <= self._around.settings.driver_bytes // 4:
            rows = self.reader.read_changes(view.schema, entries)
            return rows if len(entries) == 1 else net_effect(rows, view.schema)
        frame = self.reader.changes(self._spark(), view.schema, entries)
        return frame if len(entries) == 1 else net_changes(frame, view.schema)

    def rows(self, epoch: Epoch | None = None, vnodes: VnodeBitmap | None = None) -> pa.Table:
        """The rows at an epoch as one Arrow table in this process, for what is small."""
        return self.reader.read_table(self.view(epoch), vnodes)

    def changes(self, after: Epoch, upto: Epoch, vnodes: VnodeBitmap | None = None) -> "DataFrame":
        """The exact changes of the epochs after one and up to another, as a DataFrame."""
        entries = self.log(after, upto)
        schema = self.view(upto).schema
        return self.reader.changes(self._spark(), schema, entries, vnodes)

    def change_rows(self, after: Epoch, upto: Epoch) -> pa.Table:
        """The same as one Arrow table in epoch order, for what is small."""
        return self.reader.read_changes(self.view(upto).schema, self.log(after, upto))

    # Inside

    def _staged_view(self) -> TableView:
        with self._lock:
            return self._head.view()

    def manifest(self) -> Manifest:
        """A copy of the list of files as the ledger has it."""
        with self._lock:
            return self._committed.copy()

    def advance_horizon(self, horizon: Epoch) -> None:
        """Forget older epochs; the ledger must have this horizon already."""
        with self._lock:
            self._committed.advance_horizon(horizon)
            self._head.advance_horizon(horizon)

    def busy_paths(self) -> set[str]:
        """Files that must stay though the ledger may not name them: staged, or of a fold."""
        with self._lock:
            paths = {path for _, commit in self._staged for path in staged_paths(commit)}
            plans = [self._fold_plan]
            if self._folded is not None:
                paths |= {file.path for file in self._folded.outputs}
                plans.append(self._folded.plan)
            for plan in plans:
                for live in plan.inputs if plan else ():
                    paths.add(live.file.path)
                    if live.dead is not None:
                        paths.add(live.dead.path)
            return paths

    def busy_epochs(self) -> set[Epoch]:
        """The epochs in the names of files that are being written, and no epoch has yet."""
        with self._lock:
            folding = {self._fold_plan.view.epoch} if self._fold_plan else set()
            return folding | self._preparing

    def log(self, after: Epoch, upto: Epoch) -> Sequence[LogEntry]:
        """The committed epochs after one and up to another that changed something."""
        with self._lock:
            return self._committed.changes(after, upto)

    def _spark(self) -> "SparkSession":
        if self._around.spark is None:
            raise BrokenInvariant("this table was opened without Spark")
        return self._around.spark()

    def _stage_plan(self, epoch: Epoch, schema: Schema, view: TableView) -> StagePlan:
        return StagePlan(
            schema=schema,
            origin=Origin(self._around.term, epoch),
            files=view.files,
            storage=self._storage,
            cache=self._around.cache,
            dead_rows=self._dead_rows,
            target_file_bytes=self._around.settings.target_file_bytes,
        )

    def _write_all(
        self, plan: StagePlan, changes: "pa.Table | DataFrame", files: Sequence[ReadyFile]
    ) -> StagedPart:
        if not files:
            return self._write(plan, changes)
        if not isinstance(changes, pa.Table):
            raise BrokenInvariant("files of a snapshot come beside changes that are in memory")
        limit, spark = self._around.settings.driver_bytes, self._around.spark
        adopted = adopt(plan, changes, files, driver_bytes=limit, spark=spark)
        if not adopted.changes.num_rows:
            return adopted.part
        rest = self._write(replace(plan, explicit=True), adopted.changes)
        return together([rest, adopted.part])

    def _write(self, plan: StagePlan, changes: "pa.Table | DataFrame") -> StagedPart:
        if isinstance(changes, pa.Table):
            start = self._around.spark
            if start is None or changes.nbytes <= self._around.settings.driver_bytes:
                return stage_table(plan, changes)
            if changes.nbytes > _SPOOL_FROM * self._around.settings.driver_bytes:
                with spooled_frame(start(), plan, changes) as frame:
                    parallelism = self._around.parallelism
                    return stage_frame(plan, frame, parallelism, size=changes.nbytes)
            changes = ordered_frame(start(), changes, plan.schema)
        return stage_frame(plan, changes, self._around.parallelism)

    def _fold_here(self, stage: StagePlan, plan: FoldPlan) -> Folded:
        return fold_here(stage, plan)

    def _seal(
        self,
        plan: StagePlan,
        view: TableView,
        part: StagedPart,
        schema: Schema | None,
        folded: Folded | None,
    ) -> TableCommit:
        version = self._head.version + 1
        if folded is None or not still_fits(folded, view):
            return seal(plan, self.id, version, part, schema)
        commit = seal(plan, self.id, version, with_fold(folded, view, part, plan), schema)
        return replace(
            commit,
            folded=tuple(sorted(live.file.path for live in folded.plan.inputs)),
            rewritten=tuple(file.path for file in folded.outputs),
        )
