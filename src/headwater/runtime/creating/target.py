"""A new view's stores, filled slice by slice through the rules that keep views current.

A view in the making equals its query over what of its tables has been read. More of them is a
change like any other:

    those that Arrow can compute                a sweep: many slices in one job (`sweep.py`)
    the first slice, and those that bring       the query over the slice alone; rows are written
    rows of their own                           where they are computed
    those that bring few groups                 the same, and their states are added up here
    any other slice                             a chunk of inserts: the rules of `views/`
    a stretch of the change log                 a chunk of changes: the same rules
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headwater.backfill.snapshot.machine import CatchUp, LogEpoch, Read
from headwater.backfill.snapshot.slices import Group, read_so_far
from headwater.backfill.snapshot.state import START, TableProgress
from headwater.backfill.snapshot.target import Prepared, Ready
from headwater.crash_points import crash_point
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.model.record import StagedWork
from headwater.runtime.creating.merged_groups import MOST_GROUPS, MergedGroups, last_of_each
from headwater.runtime.creating.slice_task import MANY_GROUPS
from headwater.runtime.creating.steps import Reading
from headwater.runtime.creating.sweep import Sweeps
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_fill import as_inserts, filled_stores
from headwater.runtime.view_world import KeptView, SparkSource, ViewWorld, live_view
from headwater.state.file_parts import FilePart, only
from headwater.state.manifest import TableView
from headwater.state.receipts import Receipt
from headwater.state.stage import StagedPart
from headwater.state.store import StateStore
from headwater.views.desk import Side
from headwater.views.layout import MAIN, RefreshPolicy
from headwater.views.maintain import maintain
from headwater.views.recompute import fill
from headwater.views.relation import Relation, StateRelation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Groups = Mapping[TableId, Sequence[Group]]


_POOL, _BACKFILL = "spark.scheduler.pool", "backfill"
_LARGE, _MANY_GROUPS = 0.02, 10_000
_FEW_ROWS = 20_000


class ViewTarget:
    """Satisfies the backfill room's `Target`."""

    def __init__(  # noqa: PLR0913  one argument per thing it is given
        self,
        view: KeptView,
        store: StateStore,
        spark: SparkSource,
        *,
        snapshot: Mapping[TableId, TableView],
        groups: Groups,
        reading: Reading,
        tag: str,
        last: Callable[[], Epoch],
        tasks: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._view = view
        self._store = store
        self._spark = spark
        self._snapshot = snapshot
        self._groups = groups
        self._tag = tag
        self._last = last
        self._session: SparkSession | None = None
        self._interrupted = False
        self._brings_rows = reading.fresh
        self.in_turn = reading.merges
        """Whether slices bring states of groups; they stop to when the groups become many."""
        self._merged: MergedGroups | None = None
        self._sweeps: Sweeps | None = None
        if reading.query is not None:
            self._sweeps = Sweeps(
                reading.query,
                store,
                snapshot,
                view.stores[MAIN],
                states=reading.merges,
                tag=tag,
                tasks=tasks,
            )
        self._sliced_table = reading.steps[-1].tables[-1] if reading.steps else None

    @property
    def fresh(self) -> bool:
        """Whether no slice waits until an epoch has the one before it."""
        return self._brings_rows or self.in_turn

    @property
    def exists(self) -> bool:
        """Whether the ledger has its stores."""
        return all(store.committed > NO_EPOCH for store in self._view.stores)

    def read(self, read: Read, so_far: Mapping[TableId, TableProgress], epoch: Epoch) -> Prepared:
        """Compute what slices bring, and write it. Replay: writes files under new names."""
        with self._kept(), self._working() as spark:
            begun = _is_begun(so_far)
            whole = all(_is_finished(table, read, so_far) for table in self._snapshot)
            if self._brings_rows and read.rows <= _FEW_ROWS:
                # Without a Spark job, where the rules can do that.
                parts = self._maintained(spark, self._sliced(read, so_far), epoch, fresh=True)
            elif self._brings_rows or (whole and not begun):
                parts = self._filled(spark, read, so_far, epoch)
            elif self.in_turn:
                brought = self._added_up(spark, read, so_far)
                if brought is None:
                    self.in_turn, self._merged = False, None
                    return Prepared({}, 0, in_one=not begun, again=begun)
                parts = {MAIN: brought}
            elif begun:
                parts = self._maintained(spark, self._sliced(read, so_far), epoch)
            else:
                parts = self._filled(spark, read, so_far, epoch)
        crash_point("snapshot.after_slice")
        return Prepared(parts, read.rows)

    @property
    def sweeps(self) -> bool:
        """Whether slices are read many at once."""
        return self._sweeps is not None

    def sweep(
        self,
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
        ready: Ready,
        over: Callable[[], bool],
    ) -> None:
        """Read slices in one job. Replay: as of `Sweeps.read`."""
        assert self._sweeps is not None
        assert self._sliced_table is not None
        slices = [_parts(read).get(self._sliced_table, []) for read in reads]
        with self._kept(), self._working() as spark:
            landing: _Landing
            if self.in_turn:
                landing = _Added(self, spark, reads, so_far, ready)
            else:
                landing = _Written(self, reads, ready)
            self._sweeps.read(
                spark, slices, epoch, landing.arrived, lambda: self._interrupted or over()
            )

    def catch_up(self, step: CatchUp, epoch: Epoch) -> Prepared:
        """The same for a stretch of the change log."""
        with self._working() as spark:
            world = ViewWorld(self._store, step.upto, step.after)
            parts = self._maintained(spark, world.relations([self._view]), epoch)
        crash_point("snapshot.after_slice")
        return Prepared(parts, sum(step.rows.values()))

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> StagedWork:
        """Let an epoch have what is prepared. Replay: as of `StateTable.stage`."""
        commits = []
        for number, store in enumerate(self._view.stores):
            found = [each.parts[number] for each in prepared if number in each.parts]
            parts = [each for each in found if isinstance(each, StagedPart)]
            groups = [each for each in found if not isinstance(each, StagedPart)]
            if groups:
                rows = as_inserts(last_of_each(groups, store.schema.key))
                parts.append(store.prepare(epoch, rows))
            commit = store.stage(epoch, parts=parts)
            if commit is not None:
                commits.append(commit)
        return StagedWork(tables=tuple(commits))

    def log(self, after: Epoch) -> Sequence[LogEpoch]:
        """The committed epochs after one that changed the view's tables, and how much."""
        last = self._last()
        rows: dict[Epoch, dict[TableId, int]] = {}
        for table in sorted(self._view.reads):
            for entry in self._store[table].log(after, last):
                rows.setdefault(entry.epoch, {})[table] = entry.rows
        return [LogEpoch(epoch, rows[epoch]) for epoch in sorted(rows)]

    def interrupt(self) -> None:
        """End the Spark job that runs."""
        self._interrupted = True
        if self._session is not None:
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    # Inside

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Say when the snapshot that is read is not kept any more, not what that led to."""
        self._check_kept()
        try:
            yield
        except Exception:
            self._check_kept()
            raise

    def _check_kept(self) -> None:
        for table, whole in self._snapshot.items():
            self._store[table].view(whole.epoch)

    @contextmanager
    def _working(self) -> "Iterator[SparkSession]":
        spark = self._session = self._spark()
        context = spark.sparkContext
        self.mark(spark)
        try:
            yield spark
        except Exception as error:
            why = explained(error)
            if isinstance(why, SparkGone):
                self._spark.lost()
            elif self._interrupted:
                why = SparkGone("the work was interrupted")
            raise why from error
        finally:
            with suppress(Exception):
                # When Java is gone, so are they.
                context.removeJobTag(self._tag)
                context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]

    def _filled(
        self,
        spark: "SparkSession",
        read: Read,
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
    ) -> dict[int, StagedPart]:
        """What the slices bring, written where it is computed."""
        frames, rows = self._frames(read, so_far)
        found = filled_stores(spark, self._view.layout, frames, rows)
        return {
            number: self._view.stores[number].prepare(epoch, changes, fresh=True)
            for number, changes in enumerate(found)
        }

    def _added_up(
        self, spark: "SparkSession", read: Read, so_far: Mapping[TableId, TableProgress]
    ) -> pa.Table | None:
        """The groups that the slices have, with what was read before; None if they are many."""
        frames, _ = self._frames(read, so_far)
        (states,) = fill(spark, self._view.layout, frames)
        brought = states.limit(MOST_GROUPS + 1).toArrow()
        if brought.num_rows > max(_MANY_GROUPS, _LARGE * read.rows):
            return None
        return self.add(spark, so_far, brought)

    def add(
        self, spark: "SparkSession", so_far: Mapping[TableId, TableProgress], *brought: pa.Table
    ) -> pa.Table | None:
        """The same for states that slices have brought, after what was read before them."""
        if self._merged is None:
            stored = self._stored(so_far)
            if not isinstance(stored, pa.Table):
                return None
            self._merged = MergedGroups(self._view.layout, stored)
        return self._merged.add(spark, *brought)

    def mark(self, spark: "SparkSession") -> None:
        """Let the jobs of this thread be found, and stand back behind those of epochs."""
        spark.sparkContext.addJobTag(self._tag)
        spark.sparkContext.setLocalProperty(_POOL, _BACKFILL)

    def sweep_no_more(self, *, by_the_rules: bool) -> None:
        """Read what is left slice by slice; `by_the_rules` where groups are many."""
        self._sweeps = None
        if by_the_rules:
            self.in_turn, self._merged = False, None

    def _stored(self, so_far: Mapping[TableId, TableProgress]) -> "pa.Table | DataFrame":
        """What an earlier life has brought to the main store."""
        store = self._view.stores[MAIN]
        return (
            store.rows_of(store.view()) if _is_begun(so_far) else store.schema.arrow.empty_table()
        )

    def _frames(
        self, read: Read, so_far: Mapping[TableId, TableProgress]
    ) -> "tuple[dict[TableId, DataFrame], int]":
        """The slices alone, and all of the tables that were read before; and about their rows."""
        parts = _parts(read)
        frames: dict[TableId, DataFrame] = {}
        rows = 0
        for table, whole in self._snapshot.items():
            view = only(whole, parts[table]) if table in parts else whole
            if table != self._sliced_table and _is_finished(table, read, so_far):
                # Also what was read of it before meets the slices of the large table.
                view = whole
            frames[table] = self._store[table].frame_of(view)
            if table not in parts and not so_far[table].finished:
                frames[table] = frames[table].where("false")
            else:
                rows += view.rows
        return frames, rows

    def _maintained(
        self,
        spark: "SparkSession",
        relations: Mapping[TableId, Relation],
        epoch: Epoch,
        *,
        fresh: bool = False,
    ) -> dict[int, StagedPart]:
        """What the changes of the tables mean for the view, as it is in the ledger.

        Those that bring nothing but new rows mean the same whatever it has.
        """
        live = live_view(self._view, self._store)
        if fresh:
            view = replace(live.layout.view, policy=RefreshPolicy.INCREMENTAL)
            live = replace(live, layout=replace(live.layout, view=view))
        (found,) = maintain(spark, [live], relations).views
        return {
            number: self._view.stores[number].prepare(epoch, changes, fresh=fresh)
            for number, changes in sorted(found.stores.items())
        }

    def _sliced(
        self, read: Read, so_far: Mapping[TableId, TableProgress]
    ) -> dict[TableId, Relation]:
        """The tables as if they had what was read so far, and the slices for changes."""
        parts = _parts(read)
        found: dict[TableId, Relation] = {}
        for table, whole in self._snapshot.items():
            before = only(whole, _read_so_far(self._groups[table], so_far[table]))
            found[table] = self._relation(table, whole, before, parts.get(table, []))
        return found

    def _relation(
        self, id_: TableId, whole: TableView, before: TableView, parts: Sequence[FilePart]
    ) -> StateRelation:
        table = self._store[id_]
        cache = self._store.surroundings.cache
        if not parts:
            return StateRelation(table, cache, before, frames=lambda _: table.frame_of(before))
        slice_ = only(whole, parts)
        return StateRelation(
            table,
            cache,
            before,
            frames=lambda side: (
                table.frame_of(before)
                if side is Side.OLD
                else table.frame_of(before).unionByName(table.frame_of(slice_))
            ),
            changes=as_inserts(table.rows_of(slice_)),
            changed_rows=slice_.rows,
        )


class _Landing(Protocol):
    """Hears what the slices of a sweep have brought."""

    def arrived(self, found: Sequence[tuple[int, Receipt]]) -> bool:
        """Slices by their number; whether the others are of any use then."""
        ...


class _Written:
    """Slices that bring rows: they are in files, and wait for nothing."""

    def __init__(self, target: ViewTarget, reads: Sequence[Read], ready: Ready) -> None:
        self._target = target
        self._reads = reads
        self._ready = ready

    def arrived(self, found: Sequence[tuple[int, Receipt]]) -> bool:
        """Hand them over, up to one that has to be read in another way."""
        read: list[tuple[int, Prepared]] = []
        for number, receipt in found:
            if receipt.refused:
                self._target.sweep_no_more(by_the_rules=False)
                self._ready([*read, (number, Prepared({}, 0, again=True))])
                return False
            parts = {MAIN: StagedPart(added=receipt.files)}
            read.append((number, Prepared(parts, self._reads[number].rows)))
        self._ready(read)
        crash_point("snapshot.after_slice")
        return True


class _Added:
    """Slices that bring states: they are added up in their order, as many as there are by then."""

    def __init__(
        self,
        target: ViewTarget,
        spark: "SparkSession",
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        ready: Ready,
    ) -> None:
        self._target = target
        self._spark = spark
        self._reads = reads
        self._so_far = so_far
        self._ready = ready
        self._waiting: dict[int, Receipt] = {}
        self._next = 0

    def arrived(self, found: Sequence[tuple[int, Receipt]]) -> bool:
        """Add up those that come next; all of them go into the same epoch."""
        self._waiting.update(found)
        first, states = self._next, []
        refused = ""
        while (receipt := self._waiting.get(self._next)) is not None and not refused:
            refused = receipt.refused
            if receipt.groups is not None:
                del self._waiting[self._next]
                states.append(receipt.groups)
                self._next += 1
        if states and not self._hand_over(first, states):
            return False
        if refused:
            self._give_up(self._next, by_the_rules=refused == MANY_GROUPS)
        return not refused

    def _hand_over(self, first: int, states: Sequence[pa.Table]) -> bool:
        self._target.mark(self._spark)
        rows = self._target.add(self._spark, self._so_far, *states)
        if rows is None:
            self._give_up(first, by_the_rules=True)
            return False
        last = self._next - 1
        read = [(n, Prepared({}, self._reads[n].rows)) for n in range(first, last)]
        self._ready([*read, (last, Prepared({MAIN: rows}, self._reads[last].rows))])
        crash_point("snapshot.after_slice")
        return True

    def _give_up(self, number: int, *, by_the_rules: bool) -> None:
        self._target.sweep_no_more(by_the_rules=by_the_rules)
        begun = number > 0 or _is_begun(self._so_far)
        alone = by_the_rules and not begun
        self._ready([(number, Prepared({}, 0, in_one=alone, again=not alone))])


def _parts(read: Read) -> dict[TableId, list[FilePart]]:
    found: dict[TableId, list[FilePart]] = {}
    for table, each in read.slices:
        found.setdefault(table, []).extend(each.parts)
    return found


def _is_begun(so_far: Mapping[TableId, TableProgress]) -> bool:
    return any(s.cursor != START for each in so_far.values() for s in each.states)


def _is_finished(table: TableId, read: Read, so_far: Mapping[TableId, TableProgress]) -> bool:
    """Whether a table is read to its end once these slices are."""
    ends = {each.first for of, each in read.slices if of == table and each.after is None}
    return all(each.finished or each.first in ends for each in so_far[table].states)


def _read_so_far(groups: Sequence[Group], progress: TableProgress) -> list[FilePart]:
    pairs = zip(groups, progress.states, strict=True)
    return [part for group, state in pairs for part in read_so_far(group, state)]
