"""A view in the making as a dictionary: what the executor has read for it, and staged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headwater.backfill.snapshot.machine import CatchUp, LogEpoch, Read
from headwater.backfill.snapshot.state import START, TableProgress
from headwater.backfill.snapshot.target import Prepared, Ready
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import StagedWork
from headwater.model.table_commit import TableCommit
from headwater.testing.snapshot_simulator.upstream import Rows, View
from headwater.testing.snapshot_simulator.world import Making, World, applied, differences

_KEEPS_FRESH = 3
_SWEPT = 5
UNDER_WAY = object()
"""What a sweep gives that is not at its end."""


@dataclass(slots=True)
class ModelTarget:
    """Satisfies the backfill room's `Target`."""

    world: World
    making: Making
    epoch: Epoch
    """Of the snapshot."""
    staged: dict[Epoch, View] = field(default_factory=dict)
    _reads: int = 0
    _refused: bool = False

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

    @property
    def sweeps(self) -> bool:
        """Whether it is one of those whose slices are read many at once, as long as they are."""
        return self.making.id % 2 == 0 and self.fresh and not self.in_turn and not self._refused

    def sweep(
        self,
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
        ready: Ready,
        over: Callable[[], bool],
    ) -> None:
        """Read all of them; the scenario does it step by step."""
        for _ in self.swept(reads, so_far, epoch, ready, over):
            pass

    def swept(
        self,
        reads: Sequence[Read],
        so_far: Mapping[TableId, TableProgress],
        epoch: Epoch,
        ready: Ready,
        over: Callable[[], bool],
    ) -> Iterator[object]:
        """The same, one slice at a time, in any order; some views add up what comes in turn.

        What a slice has brought has a receipt, which the next life finds, before it is told of.
        """
        dice = Random(f"{self.making.id}/{epoch}")
        numbers = dice.sample(range(len(reads)), len(reads))
        found: dict[int, View] = {}
        handed = 0
        for number in numbers:
            if over():
                return
            key = f"{self.epoch}: {reads[number].slices}"
            if key not in self.making.receipts:
                self.making.receipts[key] = self._alone(reads, number, so_far)
                yield UNDER_WAY
            found[number] = self.making.receipts[key]
            self._reads += 1
            if self.making.id % 6 == 0 and self._reads == _SWEPT:
                self._refused = True
                ready([(number, Prepared({}, 0, again=True))])
                return
            if self.making.id % 4:
                ready([(number, Prepared(differences({}, found[number]), reads[number].rows))])
                continue
            first = handed
            together: View = {}
            while handed in found:
                together |= found[handed]
                handed += 1
            if handed > first:
                told = [(n, Prepared({}, reads[n].rows)) for n in range(first, handed - 1)]
                last = Prepared(differences({}, together), reads[handed - 1].rows)
                ready([*told, (handed - 1, last)])

    def _alone(
        self, reads: Sequence[Read], number: int, so_far: Mapping[TableId, TableProgress]
    ) -> View:
        """What a slice of the large table brings, with all of the others."""
        plan, upstream = self.making.plan, self.world.upstream
        large = plan.tables[-1]
        parts = [part for t, each in reads[number].slices if t == large for part in each.parts]
        state: dict[TableId, Rows] = {large: upstream.rows(large, self.epoch, parts)}
        for table in plan.tables[:-1]:
            first = [part for t, each in reads[0].slices if t == table for part in each.parts]
            before = upstream.so_far(table, so_far[table])
            state[table] = {**before, **upstream.rows(table, self.epoch, first)}
            whole = upstream.states[self.epoch][table]
            assert state[table] == whole, "a sweep begins before the tables that it needs"
        return plan.over(state)

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
