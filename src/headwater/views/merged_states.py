"""The delta of aggregates whose states are stored: read the touched groups' states, and merge.

calls                what is read in an epoch
sums and counts      the stored states of the touched groups
min and max too      the same; and of groups whose state is in doubt then, all rows
any, many changes    with min and max: the rows of all touched groups, as if nothing was stored
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.spelling import quoted
from headwater.model.types import BOOLEAN
from headwater.sql.algebra import Expression, Output, Plan
from headwater.views.desk import Collect, Desk, Lookup, Side, StoreId
from headwater.views.layout import Kept
from headwater.views.merging import ONLY
from headwater.views.rows import Keys, Place, Rows, together
from headwater.views.spelling import in_one_task, names_of
from headwater.views.terms import sum_of, themselves, with_weight

_DOUBT = "_hw_doubt"


class Around(Protocol):
    """What is asked of the other rules of the same view and epoch."""

    def slot(self) -> int:
        """A number of its own for the rows of a table in memory."""
        ...

    async def of(self, plan: Plan) -> Rows | None:
        """A node's delta."""
        ...

    async def rows(self, plan: Plan, side: Side, keys: Keys | None = None) -> Rows:
        """A node's rows, at least those that hold one of the keys."""
        ...

    async def keys_in(
        self,
        rows: Rows,
        on: Sequence[tuple[Expression, Expression]],
        outputs: Sequence[Output],
        net_of: Plan | None = None,
    ) -> Keys | None:
        """Values of terms in some rows."""
        ...

    def found(self, rows: pa.Table, outputs: Sequence[Output], extra: Sequence[str] = ()) -> Rows:
        """Rows in memory as rows of a node."""
        ...


class MergedStates:
    """The rules of such aggregates, applied to one view in one epoch."""

    def __init__(self, around: Around, desk: Desk, view: str) -> None:
        self._around = around
        self._desk = desk
        self._view = view
        self.states: dict[int, Rows] = {}
        """By store: the merged states of the groups that the epoch touches."""

    async def delta(self, kept: Kept) -> Rows | None:
        """What changes in the aggregate's rows."""
        both = await self.merged(kept)
        if both is None:
            return None
        old, new = both
        self.states[kept.store] = new
        merging = kept.merging
        outputs = merging.node.outputs
        after = replace(new, sql=merging.values(merging.alive(new.sql)))
        before = replace(old, sql=merging.values(old.sql))
        return sum_of([with_weight(after, outputs, 1), with_weight(before, outputs, -1)])

    async def rows(self, kept: Kept, side: Side, keys: Keys | None) -> Rows:
        """The aggregate's rows, at least those that hold one of the keys."""
        merging = kept.merging
        wanted = keys and keys.only(merging.node.outputs[: len(merging.node.group)])
        if not merging.node.group:
            wanted = _only_group()
        delta = await self._around.of(merging.node.input) if side is Side.NEW else None
        if delta is None:
            old = await self._stored(kept, wanted)
            return replace(old, sql=merging.values(old.sql))
        _, new = await self._states(kept, delta, wanted)
        return replace(new, sql=merging.values(merging.alive(new.sql)))

    async def merged(self, kept: Kept) -> tuple[Rows, Rows] | None:
        """The states of touched groups before and after; None when none is touched."""
        node = kept.merging.node
        delta = await self._around.of(node.input)
        if delta is None:
            return None
        if node.group:
            terms = themselves(node.input.outputs, node.group)
            keys = await self._around.keys_in(delta, terms, node.outputs)
        else:
            keys = _only_group()
        return await self._states(kept, delta, keys)

    async def _states(self, kept: Kept, delta: Rows, keys: Keys | None) -> tuple[Rows, Rows]:
        merging = kept.merging
        names = {name: name for name in merging.node.group}
        old = await self._stored(kept, keys)
        added = replace(delta, sql=merging.contributions(delta.sql, weighted=True))
        if not merging.extremes:
            both = together([old, added])
            return old, both.passed(merging.summed(both.sql), names)
        if keys is None or not (old.local and added.local):
            return old, await self._from_rows(kept, keys)
        both = together([old, self._among(kept, added, keys)])
        return old, await self._told_apart(kept, both)

    async def _told_apart(self, kept: Kept, both: Rows) -> Rows:
        """States and contributions merged; those in doubt anew from the rows of their groups."""
        merging = kept.merging
        doubt = " or ".join(f"({merging.in_doubt(number)})" for number in merging.extremes)
        sql = f"select *, ({doubt}) as {_DOUBT} from ({merging.ranked(both.sql)})"
        outputs = (*merging.columns, Output(_DOUBT, BOOLEAN))
        states = await Collect(sql, outputs, local=True)
        certain = states.filter(pc.invert(states.column(_DOUBT))).drop_columns([_DOUBT])
        found = self._around.found(certain, merging.columns, merging.state_names)
        if certain.num_rows == states.num_rows:
            return found
        groups = states.filter(states.column(_DOUBT)).select(list(merging.key)).combine_chunks()
        return together([found, await self._from_rows(kept, Keys(groups), exactly=True)])

    async def _from_rows(self, kept: Kept, keys: Keys | None, *, exactly: bool = False) -> Rows:
        """The states of groups from their rows."""
        merging = kept.merging
        group = keys and keys.only(merging.node.outputs[: len(merging.node.group)])
        rows = await self._around.rows(merging.node.input, Side.NEW, group)
        each = replace(rows, sql=merging.contributions(rows.sql, weighted=False))
        if group is not None:
            each = self._among(kept, each, group)
        sql = merging.ranked(each.sql) if exactly else merging.summed(each.sql)
        return each.passed(sql, {name: name for name in merging.node.group})

    def _among(self, kept: Kept, rows: Rows, keys: Keys) -> Rows:
        """Contributions to the groups of the keys alone: of others not all may have been read."""
        group = keys.only(kept.merging.node.outputs[: len(kept.merging.node.group)])
        if group is None:
            return rows
        types = {output.name: output for output in kept.merging.columns}
        leaf = self._desk.memory(group.table, [types[name] for name in group.columns])
        terms = [f"{quoted(name)} as _hw_k{n}" for n, name in enumerate(group.columns)]
        equal = [f"{quoted(name)} <=> _hw_k{n}" for n, name in enumerate(group.columns)]
        wanted = f"select {', '.join(terms)} from {leaf.name}"
        sql = (
            f"select * from ({rows.sql}) left semi join ({in_one_task(wanted)})"
            f" on {' and '.join(equal)}"
        )
        return replace(rows, sql=sql)

    async def _stored(self, kept: Kept, keys: Keys | None) -> Rows:
        source = StoreId(self._view, kept.store)
        wanted = keys and keys.renamed(kept.names)
        leaf = None if wanted is None else await Lookup(source, wanted.table)
        local = leaf is not None
        leaf = leaf or self._desk.whole(source, Side.OLD)
        names = names_of(kept.merging.columns)
        terms = [f"{quoted(kept.names[name])} as {quoted(name)}" for name in names]
        sql = f"select {', '.join(terms)} from {leaf.name}"
        if leaf.table is None:
            return Rows(sql=sql, local=local)
        slot = self._around.slot()
        group = kept.merging.node.group
        origin = {name: Place(leaf.table, kept.names[name], slot) for name in group}
        return Rows(sql=in_one_task(sql), local=local, origins=(origin,))


def _only_group() -> Keys:
    return Keys(pa.table({ONLY: pa.array([0], pa.int32())}))
