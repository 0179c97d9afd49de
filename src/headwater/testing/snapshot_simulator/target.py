"""A view in the making as a dictionary: what the executor has read for it, and staged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.backfill.snapshot.executor import Prepared
from headwater.backfill.snapshot.machine import CatchUp, LogEpoch, Read
from headwater.backfill.snapshot.state import START, TableProgress
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import StagedWork
from headwater.model.table_commit import TableCommit
from headwater.testing.snapshot_simulator.upstream import View
from headwater.testing.snapshot_simulator.world import Making, World, applied, differences

_KEEPS_FRESH = 3


@dataclass(slots=True)
class ModelTarget:
    """Satisfies the backfill room's `Target`."""

    world: World
    making: Making
    epoch: Epoch
    """Of the snapshot."""
    staged: dict[Epoch, View] = field(default_factory=dict)
    _reads: int = 0

    @property
    def in_turn(self) -> bool:
        """Whether it is one of those whose slices wait for each other in the end."""
        return self.making.id % 5 == 0

    @property
    def fresh(self) -> bool:
        """Whether slices need nothing of each other; of some views only for a while."""
        return self.making.plan.fresh and (not self.in_turn or self._reads < _KEEPS_FRESH)

    @property
    def exists(self) -> bool:
        """Whether the ledger has its store."""
        return self.making.id in self.world.making

    def read(self, read: Read, so_far: Mapping[TableId, TableProgress], epoch: Epoch) -> Prepared:
        """The rows that slices bring."""
        was_fresh = self.fresh
        self._reads += 1
        if was_fresh and not self.fresh:
            return Prepared({}, 0, again=True)
        plan, upstream = self.making.plan, self.world.upstream
        parts: dict[TableId, list[Any]] = {table: [] for table in plan.tables}
        for table, each in read.slices:
            parts[table] += each.parts
        self._check_order(parts, so_far)
        before = {table: dict(upstream.so_far(table, so_far[table])) for table in plan.tables}
        slices = {t: upstream.rows(t, self.epoch, parts[t]) for t in plan.tables}
        after = {table: {**before[table], **slices[table]} for table in plan.tables}
        if self.fresh:
            # The large table's slice alone, with all of the others, which are there by then.
            large = plan.tables[-1]
            ends = {(t, each.first) for t, each in read.slices if each.after is None}
            whole = all(
                state.finished or (table, state.first) in ends
                for table in plan.tables[:-1]
                for state in so_far[table].states
            )
            brought = plan.over({**after, large: slices[large]})
            assert whole or not brought, "a slice is read before the table that it needs"
            return Prepared(differences({}, brought), read.rows)
        begun = any(s.cursor != START for each in so_far.values() for s in each.states)
        assert self.making.rows == (plan.over(before) if begun else {}), "rows are not as they were"
        return Prepared(differences(self.making.rows, plan.over(after)), read.rows)

    def _check_order(
        self, parts: Mapping[TableId, Sequence[Any]], so_far: Mapping[TableId, TableProgress]
    ) -> None:
        for first, then in self.making.plan.order:
            if parts[then]:
                assert so_far[first].finished, f"table {then} is read before all of table {first}"

    def catch_up(self, step: CatchUp, epoch: Epoch) -> Prepared:
        """What a stretch of the log changes."""
        states, plan = self.world.upstream.states, self.making.plan
        before = plan.over(states[step.after])
        assert self.making.rows == before, f"the view is not what it was at {step.after}"
        return Prepared(differences(before, plan.over(states[step.upto])), sum(step.rows.values()))

    def stage(self, epoch: Epoch, prepared: Sequence[Prepared]) -> StagedWork:
        """The view with what is prepared."""
        view = self.making.rows
        for each in prepared:
            view = applied(view, each.parts)
        self.staged[epoch] = view
        return StagedWork(tables=(TableCommit(table=TableId(3), version=len(self.staged)),))

    def log(self, after: Epoch) -> Sequence[LogEpoch]:
        """The committed epochs that changed something."""
        return self.world.upstream.log(self.making.plan.tables, after, self.world.last)

    def interrupt(self) -> None:
        """Nothing runs that would have to be told."""
