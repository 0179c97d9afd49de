"""The first rows of an order, kept with some to spare: top-n without reading its input again.

A store holds a prefix of the input in its total order: the rows that are shown, and spare ones
behind them. Rows that come among them take their place, rows that go leave it, and rows behind
the last one do not matter. Only when so many went that too few are left is the input read whole,
once, and the spare rows are there again.

    what the store says of rows behind its last one    a row that comes behind it
    there are some (`MORE`)                            is not kept
    there are none                                     is kept

Promises
    Prefix    The store always holds the first rows of the input, without a gap.
    Bounded   At most twice `capacity` rows.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema
from headwater.model.spelling import quoted
from headwater.model.types import BIGINT, BOOLEAN, INTEGER
from headwater.sql.algebra import Output, TopN
from headwater.views.meaning import total_order_sql
from headwater.views.merging import ONLY
from headwater.views.spelling import WEIGHT, listed, names_of

MORE = f"{HIDDEN_PREFIX}more"
"""Whether the input has rows behind the last one that is kept."""
_MOST_SHOWN = 2_000
_OLD, _LIVE, _PLACE = "_hw_old", "_hw_live", "_hw_place"


def can_be_kept(node: TopN) -> bool:
    """Whether a store can hold the first rows: they are few, and each has a key."""
    types = {output.name: output.type for output in node.outputs}
    return (
        not node.partition
        and not node.with_ties
        and node.limit is not None
        and node.offset + node.limit <= _MOST_SHOWN
        and bool(node.key)
        and all(types[name].can_be_key for name in node.key)
    )


@dataclass(frozen=True, slots=True)
class KeptTop:
    """A top-n whose first rows are stored; its columns lie under names of ours."""

    node: TopN
    store: int

    @property
    def shown(self) -> int:
        """How many rows decide what is shown."""
        return self.node.offset + (self.node.limit or 0)

    @property
    def capacity(self) -> int:
        """How many rows are kept when there is a choice."""
        return 2 * self.shown + 200

    @property
    def names(self) -> dict[str, str]:
        """The plan's columns and what they are stored as."""
        outputs = names_of(self.node.outputs)
        return {name: f"{HIDDEN_PREFIX}top_{place}" for place, name in enumerate(outputs)}

    @property
    def schema(self) -> Schema:
        """The store's."""
        names = self.names
        columns = [Column(names[output.name], output.type) for output in self.node.outputs]
        key = (ONLY, *(names[name] for name in self.node.key))
        return Schema((Column(ONLY, INTEGER), *columns, Column(MORE, BOOLEAN)), key)

    @property
    def placed(self) -> tuple[Output, ...]:
        """The columns of `placed_sql`."""
        own = (Output(_OLD, INTEGER), Output(_LIVE, BIGINT), Output(_PLACE, INTEGER))
        return (*self.node.outputs, *own)

    # Queries

    def filling_sql(self, sql: str) -> str:
        """The store's rows from the whole input."""
        order = total_order_sql(self.node)
        first = f"select * from ({sql}) order by {order} limit {self.capacity + 1}"
        counted = (
            f"select *, count(*) over () as _hw_n, row_number() over (order by {order}) as {_PLACE}"
            f" from ({first})"
        )
        terms = [f"{quoted(name)} as {quoted(stored)}" for name, stored in self.names.items()]
        return (
            f"select 0 as {quoted(ONLY)}, {', '.join(terms)}, _hw_n > {self.capacity} as "
            f"{quoted(MORE)} from ({counted}) where {_PLACE} <= {self.capacity}"
        )

    def stored_sql(self, leaf: str, *, live: int) -> str:
        """The stored rows, as one side of `placed_sql`; `live` is how often each counts."""
        terms = [f"{quoted(stored)} as {quoted(name)}" for name, stored in self.names.items()]
        return f"select {', '.join(terms)}, 1 as {_OLD}, {live}L as {_LIVE} from {leaf}"

    def changes_sql(self, delta: str) -> str:
        """The input's delta, as the other side."""
        columns = listed(names_of(self.node.outputs))
        return f"select {columns}, 0 as {_OLD}, {quoted(WEIGHT)} as {_LIVE} from ({delta})"

    def refill_sql(self, sql: str) -> str:
        """The first rows of the whole input, as the other side."""
        columns, order = listed(names_of(self.node.outputs)), total_order_sql(self.node)
        first = f"select {columns} from ({sql}) order by {order} limit {self.capacity + 1}"
        return f"select {columns}, 0 as {_OLD}, 1L as {_LIVE} from ({first})"

    def placed_sql(self, sides: str) -> str:
        """Each different row once: was it stored, how often is it there now, and its place."""
        columns = listed(names_of(self.node.outputs))
        met = (
            f"select {columns}, max({_OLD}) as {_OLD}, sum({_LIVE}) as {_LIVE} from ({sides}) "
            f"group by {columns}"
        )
        place = f"row_number() over (order by {total_order_sql(self.node)})"
        return f"select *, {place} as {_PLACE} from ({met})"


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The kept rows before and after an epoch, in their order."""

    kept: KeptTop
    old: pa.Table
    new: pa.Table
    changes: pa.Table
    """Of the store, with weights."""

    def shown(self, rows: pa.Table) -> pa.Table:
        """What the operator gives of them."""
        return rows.slice(self.kept.node.offset, self.kept.node.limit)

    @property
    def delta(self) -> pa.Table:
        """What changes in the operator's rows; a row may come and go."""
        parts = []
        for rows, weight in ((self.old, -1), (self.new, 1)):
            shown = self.shown(rows)
            parts.append(shown.append_column(WEIGHT, pa.array([weight] * len(shown), pa.int64())))
        return pa.concat_tables(parts).combine_chunks()


def merged(kept: KeptTop, placed: pa.Table, *, more: bool) -> FirstRows | None:
    """The rows after an epoch's delta; None when too few are left, and the input must be read."""
    rows = placed.sort_by(_PLACE)
    was = pc.equal(rows.column(_OLD), 1)
    valid = pc.greater(rows.column(_LIVE), 0)
    if more:
        last = pc.max(rows.filter(was).column(_PLACE)).as_py() or 0
        valid = pc.and_(valid, pc.less_equal(rows.column(_PLACE), last))
    left = pc.sum(valid).as_py() or 0
    if more and left < kept.shown:
        return None
    return _first(kept, rows, was, valid, was_more=more, behind=more, most=2 * kept.capacity)


def refilled(kept: KeptTop, placed: pa.Table, *, more: bool) -> FirstRows:
    """The rows after the input was read."""
    rows = placed.sort_by(_PLACE)
    was = pc.equal(rows.column(_OLD), 1)
    valid = pc.greater(rows.column(_LIVE), 0)
    return _first(kept, rows, was, valid, was_more=more, behind=False, most=kept.capacity)


def _first(  # noqa: PLR0913  one argument per thing that was found out
    kept: KeptTop,
    rows: pa.Table,
    was: pa.Array,
    valid: pa.Array,
    *,
    was_more: bool,
    behind: bool,
    most: int,
) -> FirstRows:
    """Cut the valid rows to size, and say what that changes in the store.

    `behind` says whether there are rows behind the valid ones.
    """
    place = pc.cumulative_sum(pc.cast(valid, pa.int64()))
    overflows = (pc.sum(valid).as_py() or 0) > most
    if overflows:
        valid = pc.and_(valid, pc.less_equal(place, kept.capacity))
    more = overflows or behind
    outputs = list(names_of(kept.node.outputs))
    rows_only = rows.select(outputs)
    goes = pc.and_(was, pc.invert(valid))
    comes = valid if more != was_more else pc.and_(valid, pc.invert(was))
    if more != was_more:
        # What the store says of rows behind it lies in each of its rows.
        goes = was
    changes = [
        _stored(kept, rows_only.filter(chosen), more=flag, weight=weight)
        for chosen, flag, weight in ((goes, was_more, -1), (comes, more, 1))
    ]
    return FirstRows(
        kept=kept,
        old=rows_only.filter(was),
        new=rows_only.filter(valid),
        changes=pa.concat_tables(changes).combine_chunks(),
    )


def _stored(kept: KeptTop, rows: pa.Table, *, more: bool, weight: int) -> pa.Table:
    size = rows.num_rows
    named = rows.rename_columns([kept.names[name] for name in rows.column_names])
    whole = named.add_column(0, ONLY, pa.array([0] * size, pa.int32()))
    whole = whole.append_column(MORE, pa.array([more] * size, pa.bool_()))
    return whole.append_column(WEIGHT, pa.array([weight] * size, pa.int64()))
