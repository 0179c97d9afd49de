"""Tables of a source get other columns because they have them upstream.

The log tells of a change of columns. Nothing after it is delivered to anybody until the catalog
has followed, in an epoch of its own; then the tables concerned join again, the log is opened with
the columns that they have now, and the same batch is read once more. A change that cannot be
followed stops its table alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, MutableSet, Sequence
from dataclasses import dataclass, field

from headwater.backfill.cdc.state import BackfillState
from headwater.cdc.external_table import LogBatch
from headwater.cdc.offset import CdcOffset
from headwater.cdc.schema_change import NotPossible
from headwater.crash_points import crash_point
from headwater.errors import (
    HeadwaterError,
    NotSupported,
    RelationError,
    SchemaError,
    SourceUnavailable,
)
from headwater.model.ids import TableId
from headwater.runtime.cdc_running import RunningTable
from headwater.runtime.cdc_tables import (
    CdcTable,
    SchemaStep,
    StepKind,
)

_REFUSALS = (RelationError, SchemaError, NotSupported)

Alter = Callable[[SchemaStep], Awaitable[object]]
"""Has the catalog follow a change of columns; done or refused when it returns."""


@dataclass(slots=True, kw_only=True)
class SchemaChanges:
    """The changes of columns of one source's tables."""

    running: MutableMapping[TableId, RunningTable]
    stopped: MutableSet[TableId]
    stop: Callable[[CdcTable, str], None]
    alter: Alter | None
    resting: dict[TableId, BackfillState | None] = field(default_factory=dict)
    """Tables that must join again, before anything more is delivered to anybody."""
    _asked: "tuple[TableId, asyncio.Task[object]] | None" = None

    @property
    def task(self) -> "asyncio.Task[object] | None":
        """A change that the catalog is asked for; nothing is read meanwhile."""
        return None if self._asked is None else self._asked[1]

    def hold_back(self, batch: LogBatch) -> bool:
        """Whether the batch has to wait, because a table must have other columns first."""
        if self.resting:
            return True
        for running in self.running.values():
            found = running.change_in(batch)
            if isinstance(found, NotPossible):
                self._stop(running, found.why)
            elif found is not None:
                crash_point("cdc.before_change")
                step = SchemaStep(
                    kind=StepKind.EVOLVE,
                    table=running.table.id,
                    change=found.change,
                    seen=found.seen,
                    upto=found.upto,
                )
                self._ask(step)
                return True
        return False

    def _ask(self, step: SchemaStep) -> None:
        assert self.alter is not None
        asked = asyncio.ensure_future(self.alter(step))
        # Nobody may be left to ask how it ended.
        asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._asked = step.table, asked

    def take(self) -> tuple[bool, HeadwaterError | None]:
        """Whether a change has ended, and what kept it from being made for now."""
        if self._asked is None or not self._asked[1].done():
            return False, None
        (id_, asked), self._asked = self._asked, None
        error = asked.exception()
        if error is None:
            return True, None
        if not isinstance(error, HeadwaterError):
            raise error
        if not isinstance(error, _REFUSALS):
            # Not the change is at fault: the log tells of it again.
            return True, error
        if id_ not in self.running:
            # It was staged and is refused: only the ledger knows what is true.
            raise error
        self._stop(self.running[id_], f"{error.message}. {error.detail}")
        return True, None

    def _stop(self, running: RunningTable, why: str) -> None:
        running.stopped = f"{running.name} has changed upstream: {why}"
        self.stop(running.table, running.stopped)

    async def prepare(self, step: SchemaStep) -> None:
        """A definition changes a table with this epoch: it must be the epoch's only change."""
        running = self.running.get(step.table)
        if step.kind is not StepKind.EVOLVE:
            self.stopped.add(step.table)
            if running is not None:
                await self.running.pop(step.table).close()
        elif running is None:
            # Asked for by an actor that is gone: made without its table, it would be half a change.
            raise SourceUnavailable("the table of a change of columns is not being followed now")
        else:
            assert step.upto is not None
            running.executor.backfill.evolve(step.change, step.upto)

    async def rest(
        self, running: Sequence[RunningTable], step: SchemaStep | None, offset: CdcOffset
    ) -> None:
        """Let go of tables that carry on in another way, from what was just staged."""
        for each in running:
            altered = step is not None and each.table.id == step.table
            # A change that is asked for needs its table here when it comes.
            due = self._asked is None and each.state.fill_is_due(offset) and each.may_fill
            if altered or due:
                self.resting[each.table.id] = None if altered else each.state
                if altered:
                    self.stopped.add(each.table.id)
                await self.running.pop(each.table.id).close()
