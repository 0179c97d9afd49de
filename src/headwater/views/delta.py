"""The rules: what an epoch's changes of the tables change in a view.

A delta is a query of rows with a weight: +1 for each that comes, -1 for each that goes. The
same row may come and go in one delta; `settle.py` adds up.

    operator                         its delta
    filter, project, generate,       the operator over the input's delta
    union all
    inner join                       dL x R_new + L_old x dR
    left, semi, anti join            dL x R_new + L_old|K x R_new - L_old|K x R_old, K: keys of dR
    right join                       the left join of the swapped sides
    full join                        the left join, and the anti join of the swapped sides
    aggregate with stored states     values of merged states - values of stored states
    top-n with stored first rows     the first rows after the input's delta - the stored ones
    other aggregates, window         for the groups, partitions or rows K that the inputs' deltas
    functions, top-n, set operations touch: the operator over the new input|K - over the old input|K
    opaque                           the operator over the new input - over the old input

|K means: restricted to rows that can matter. It only saves reading. Rows outside of K are the
same before and after, so whether they are read or not, they come and go and leave nothing.

Promises
    Pure         Builds texts and awaits needs. No Spark, no I/O.
    Complete     Every node has a rule, so every plan can be kept current.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import pyarrow as pa

from headwater.model.ids import TableId
from headwater.model.spelling import quoted
from headwater.model.types import BIGINT
from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Filter,
    Generate,
    Join,
    JoinKind,
    Opaque,
    Output,
    Plan,
    Project,
    Scan,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
    inputs_of,
    tables_of,
)
from headwater.views import meaning
from headwater.views.desk import Collect, Compute, Desk, Leaf, Lookup, Side, StoreId
from headwater.views.layout import MAIN, Layout, Shape, stores_whole_plan
from headwater.views.merged_states import MergedStates
from headwater.views.merging import ONLY
from headwater.views.restriction import (
    branch_names,
    passed_names,
    project_names,
    restricting,
    searchable,
)
from headwater.views.rounds import side_by_side
from headwater.views.rows import Keys, Place, Rows, known_keys, selective, together
from headwater.views.spelling import (
    SIDES,
    WEIGHT,
    in_one_task,
    listed,
    names_of,
    plain_column,
    union_all,
)
from headwater.views.terms import (
    added_up,
    at_side,
    branch_of,
    joined,
    selected,
    sum_of,
    swapped,
    themselves,
    turned,
    widened,
    with_weight,
)
from headwater.views.topmost import MORE, FirstRows, KeptTop, merged, refilled


class Deltas:
    """The rules applied to one view in one epoch."""

    def __init__(self, layout: Layout, desk: Desk, changed: frozenset[TableId]) -> None:
        self._layout = layout
        self._view = layout.view
        self._desk = desk
        self._changed = changed
        self._slots = itertools.count()
        self._known: dict[int, Rows | None] = {}
        self.aggregates = MergedStates(self, desk, layout.view.name)
        self.first_rows: dict[int, Leaf] = {}
        """By store: what the epoch changes in the first rows of a top-n, with weights."""
        self._tops: dict[int, FirstRows] = {}

    def slot(self) -> int:
        """A number of its own for the rows of a table in memory."""
        return next(self._slots)

    async def of(self, plan: Plan) -> Rows | None:
        """A node's delta; None when nothing below it changed."""
        if not self._touched(plan):
            return None
        if id(plan) not in self._known:
            self._known[id(plan)] = await self._delta(plan)
        return self._known[id(plan)]

    async def _delta(self, plan: Plan) -> Rows | None:  # noqa: PLR0911  one per rule
        match plan:
            case Scan():
                return self._leaf(plan, self._desk.changes(plan.table), (WEIGHT,))
            case Values():
                return None
            case Filter() | Project() | Generate():
                below = await self.of(plan.input)
                return None if below is None else self._linear(plan, below, (WEIGHT,))
            case UnionAll():
                deltas = await side_by_side(*(self.of(each) for each in plan.inputs))
                return sum_of(
                    [
                        branch_of(plan, number, each, (WEIGHT,))
                        for number, each in enumerate(deltas)
                        if each is not None
                    ]
                )
            case Join():
                deltas = await side_by_side(self.of(plan.left), self.of(plan.right))
                return await self._join(plan, *deltas)
            case Aggregate() if (kept := self._layout.kept_of(plan)) is not None:
                return await self.aggregates.delta(kept)
            case TopN() if (top := self._layout.top_of(plan)) is not None:
                found = await self._first_rows(top)
                weight = Output(WEIGHT, BIGINT)
                return self.found(found.delta, (*plan.outputs, weight), (WEIGHT,))
            case Aggregate() | WindowFunctions() | TopN() | SetOperation() | Opaque():
                return await self._recomputed(plan)
            case _ as never:
                assert_never(never)

    # Rows before and after

    async def rows(  # noqa: PLR0911  one per kind of node
        self, plan: Plan, side: Side, keys: Keys | None = None
    ) -> Rows:
        """A node's rows, at least those that hold one of the keys."""
        if keys is None and side is Side.OLD and plan is self._view.plan:
            if self._layout.shape is not Shape.MERGED and stores_whole_plan(self._view):
                return self._stored_view()
        match plan:
            case Scan():
                return await self._scan(plan, side, keys)
            case Values():
                return Rows(sql=in_one_task(meaning.values_sql(plan)), local=True)
            case Filter() | Generate():
                below = keys and keys.only(plan.input.outputs)
                return self._linear(plan, await self.rows(plan.input, side, below))
            case Project():
                below = keys and keys.renamed(project_names(plan))
                return self._linear(plan, await self.rows(plan.input, side, below))
            case UnionAll():
                parts = await side_by_side(
                    *(
                        self.rows(each, side, keys and keys.renamed(branch_names(plan, number)))
                        for number, each in enumerate(plan.inputs)
                    )
                )
                return together(
                    [branch_of(plan, number, part, ()) for number, part in enumerate(parts)]
                )
            case Join():
                return await self._join_rows(plan, side, keys)
            case Aggregate() if (kept := self._layout.kept_of(plan)) is not None:
                return await self.aggregates.rows(kept, side, keys)
            case TopN() if (top := self._layout.top_of(plan)) is not None:
                first = await self._first_rows(top)
                rows = first.shown(first.old if side is Side.OLD else first.new)
                return self.found(rows, plan.outputs)
            case Aggregate() | WindowFunctions() | TopN() | SetOperation() | Opaque():
                return await self._operated(plan, side, keys)
            case _ as never:
                assert_never(never)

    async def _operated(self, plan: Plan, side: Side, keys: Keys | None) -> Rows:
        """The operator itself, over its inputs as far as the keys reach."""
        parts: list[Rows] = await side_by_side(
            *(
                self.rows(each, side, keys and keys.renamed(names))
                for each, names in zip(inputs_of(plan), restricting(plan), strict=True)
            )
        )
        sql = meaning.apply(plan, [part.sql for part in parts])
        local = all(part.local for part in parts)
        if isinstance(plan, Aggregate | WindowFunctions | TopN):
            return parts[0].passed(sql, {name: name for name in names_of(plan.outputs)})
        return Rows(sql=in_one_task(sql) if local else sql, local=local)

    async def _scan(self, scan: Scan, side: Side, keys: Keys | None) -> Rows:
        stored = dict(scan.columns)
        wanted = keys and keys.renamed(stored)
        if wanted is not None:
            read = tuple(dict.fromkeys(stored.values()))
            found = await Lookup(scan.table, wanted.table, columns=read)
            if found is not None:
                rows = self._leaf(scan, found, (SIDES,))
                return replace(rows, sql=at_side(rows.sql, names_of(scan.outputs), side))
        return self._leaf(scan, self._desk.whole(scan.table, side))

    def _leaf(self, scan: Scan, leaf: Leaf, extra: Sequence[str] = ()) -> Rows:
        sql = meaning.scan_sql(scan, leaf.name, extra)
        if leaf.table is None:
            return Rows(sql=sql, local=False)
        slot = self.slot()
        origin = {name: Place(leaf.table, stored, slot) for name, stored in scan.columns}
        return Rows(sql=in_one_task(sql), local=True, origins=(origin,))

    def _linear(
        self, plan: Filter | Project | Generate, below: Rows, extra: Sequence[str] = ()
    ) -> Rows:
        if isinstance(plan, Project):
            names = passed_names(plan)
        else:
            names = {name: name for name in names_of(plan.input.outputs)}
        return below.passed(meaning.apply(plan, [below.sql], extra), names)

    def _stored_view(self) -> Rows:
        view = self._view
        leaf = self._desk.whole(StoreId(view.name, MAIN), Side.OLD)
        columns = {column: stored for stored, column in reversed(view.columns)}
        terms = [f"{quoted(columns[n])} as {quoted(n)}" for n in names_of(view.plan.outputs)]
        return Rows(sql=f"select {', '.join(terms)} from {leaf.name}", local=False)

    # Joins

    async def _join(self, join: Join, left: Rows | None, right: Rows | None) -> Rows | None:
        match join.kind:
            case JoinKind.INNER:
                return await self._inner(join, left, right)
            case JoinKind.LEFT | JoinKind.SEMI | JoinKind.ANTI:
                return await self._keeping_left(join, left, right)
            case JoinKind.RIGHT:
                other = swapped(join, JoinKind.LEFT)
                made = await self._keeping_left(other, right, left)
                return made and selected(made, [*names_of(join.outputs), WEIGHT])
            case JoinKind.FULL:
                outer, lonely = await side_by_side(
                    self._keeping_left(replace(join, kind=JoinKind.LEFT), left, right),
                    self._keeping_left(swapped(join, JoinKind.ANTI), right, left),
                )
                parts = [outer] if outer else []
                return sum_of([*parts, *([widened(join, lonely)] if lonely else [])])
            case _ as never:
                assert_never(never)

    async def _inner(self, join: Join, left: Rows | None, right: Rows | None) -> Rows | None:
        terms = []
        if left is not None:
            keys = await self.keys_in(left, join.on, join.right.outputs, net_of=join.left)
            other = await self.rows(join.right, Side.NEW, keys)
            terms.append(joined(join, left, other, (WEIGHT,)))
        if right is not None:
            keys = await self.keys_in(right, turned(join.on), join.left.outputs, net_of=join.right)
            other = await self.rows(join.left, Side.OLD, keys)
            terms.append(joined(join, other, right, (WEIGHT,)))
        return sum_of(terms)

    async def _keeping_left(self, join: Join, left: Rows | None, right: Rows | None) -> Rows | None:
        terms = []
        if left is not None:
            keys = await self.keys_in(left, join.on, join.right.outputs, net_of=join.left)
            other = await self.rows(join.right, Side.NEW, keys)
            terms.append(joined(join, left, other, (WEIGHT,)))
        if right is not None:
            same = tuple((b, b) for _, b in join.on)
            on_left, on_right = await side_by_side(
                self.keys_in(right, turned(join.on), join.left.outputs, net_of=join.right),
                self.keys_in(right, same, join.right.outputs, net_of=join.right),
            )
            stay, new, old = await side_by_side(
                self.rows(join.left, Side.OLD, on_left),
                self.rows(join.right, Side.NEW, on_right),
                self.rows(join.right, Side.OLD, on_right),
            )
            terms.append(with_weight(joined(join, stay, new), join.outputs, 1))
            terms.append(with_weight(joined(join, stay, old), join.outputs, -1))
        return sum_of(terms)

    async def _join_rows(self, join: Join, side: Side, keys: Keys | None) -> Rows:
        inner = join.kind is JoinKind.INNER
        leads_left = inner or join.kind in (JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)
        leads_right = inner or join.kind is JoinKind.RIGHT
        on_left = keys and leads_left and keys.only(join.left.outputs)
        on_right = keys and leads_right and keys.only(join.right.outputs)
        if on_left:
            left = await self.rows(join.left, side, on_left)
            found = await self.keys_in(left, join.on, join.right.outputs)
            right = await self.rows(join.right, side, found or on_right or None)
        elif on_right:
            right = await self.rows(join.right, side, on_right)
            found = await self.keys_in(right, turned(join.on), join.left.outputs)
            left = await self.rows(join.left, side, found)
        else:
            left, right = await side_by_side(
                self.rows(join.left, side), self.rows(join.right, side)
            )
        return joined(join, left, right)

    async def keys_in(
        self,
        rows: Rows,
        on: Sequence[tuple[Expression, Expression]],
        outputs: Sequence[Output],
        net_of: Plan | None = None,
    ) -> Keys | None:
        """The values of the first terms in some rows, as keys for the second terms' side.

        When the rows are a node's delta and every use of them adds up, `net_of` is that node:
        rows that come and go at once then ask for nothing.
        """
        by_name = {output.name: output for output in outputs}
        usable = searchable(on, outputs)
        if not usable:
            return None
        terms = [f"{e.text} as {quoted(name)}" for name, e in usable.items()]
        wanted = tuple(by_name[name] for name in usable)
        if rows.local:
            net = rows.sql if net_of is None else added_up(rows.sql, names_of(net_of.outputs))
            exact = await Compute(f"select distinct {', '.join(terms)} from ({net})", wanted)
            if exact is not None:
                return Keys(exact)
        plain = {name: at for name, e in usable.items() if (at := plain_column(e)) is not None}
        found = known_keys(rows, list(plain.values()))
        if found is not None and rows.local and found.num_columns < len(usable):
            # A few values of some columns, such as a status, may be all there are; ask for all.
            found = found if selective(found, rows) else None
        if found is not None:
            names = [name for name, at in plain.items() if at in found.column_names]
            return Keys(found.select([plain[name] for name in names]).rename_columns(names))
        if not rows.local:
            return None
        sql = f"select distinct {', '.join(terms)} from ({rows.sql})"
        return Keys(await Collect(sql, wanted, local=True))

    # Top-ns with stored first rows

    async def _first_rows(self, top: KeptTop) -> FirstRows:
        if top.store not in self._tops:
            self._tops[top.store] = found = await self._find_first_rows(top)
            if found.changes.num_rows:
                outputs = [Output(c.name, c.type) for c in top.schema.columns]
                leaf = self._desk.memory(found.changes, (*outputs, Output(WEIGHT, BIGINT)))
                self.first_rows[top.store] = leaf
        return self._tops[top.store]

    async def _find_first_rows(self, top: KeptTop) -> FirstRows:
        source = StoreId(self._view.name, top.store)
        delta = await self.of(top.node.input)
        leaf = await Lookup(source, pa.table({ONLY: pa.array([0], pa.int32())}))
        assert leaf is not None, "a top-n's store is small"
        assert leaf.table is not None
        more = bool(leaf.table.num_rows) and leaf.table.column(MORE)[0].as_py()
        # An empty store may have lost its last row to a delete: nobody says what is behind.
        if delta is None or (delta.local and leaf.table.num_rows):
            sides = [top.stored_sql(leaf.name, live=1)]
            sides += [] if delta is None else [top.changes_sql(delta.sql)]
            placed = await self._placed(top, sides, local=True)
            found = merged(top, placed, more=more)
            if found is not None:
                return found
        whole = await self.rows(top.node.input, Side.NEW)
        sides = [top.stored_sql(leaf.name, live=0), top.refill_sql(whole.sql)]
        return refilled(top, await self._placed(top, sides, local=whole.local), more=more)

    async def _placed(self, top: KeptTop, sides: Sequence[str], *, local: bool) -> pa.Table:
        sql = top.placed_sql(union_all(sides, local=local))
        return await Collect(sql, top.placed, local=local)

    def found(self, rows: pa.Table, outputs: Sequence[Output], extra: Sequence[str] = ()) -> Rows:
        """Rows in memory as rows of a node."""
        leaf = self._desk.memory(rows, outputs)
        slot = self.slot()
        origin = {o.name: Place(rows, o.name, slot) for o in outputs if o.name not in extra}
        sql = f"select {listed(names_of(outputs))} from {leaf.name}"
        return Rows(sql=in_one_task(sql), local=True, origins=(origin,))

    # What is recomputed for the keys that changed

    async def _recomputed(self, plan: Plan) -> Rows | None:
        keys: Keys | None = None
        if not isinstance(plan, Opaque):
            deltas = await side_by_side(*(self.of(each) for each in inputs_of(plan)))
            keys = await self._touched_keys(plan, deltas)
        new, old = await side_by_side(
            self.rows(plan, Side.NEW, keys), self.rows(plan, Side.OLD, keys)
        )
        return sum_of([with_weight(new, plan.outputs, 1), with_weight(old, plan.outputs, -1)])

    async def _touched_keys(self, plan: Plan, deltas: Sequence[Rows | None]) -> Keys | None:
        """The groups, partitions or rows that the inputs' deltas touch."""
        found: list[Keys] = []
        for each, names, delta in zip(inputs_of(plan), restricting(plan), deltas, strict=True):
            if delta is None:
                continue
            below = list(names.values())
            terms = themselves(each.outputs, below)
            keys = await self.keys_in(delta, terms, each.outputs, net_of=each)
            above = keys and keys.renamed({old: new for new, old in names.items()})
            if above is None:
                return None
            found.append(above)
        shared = [name for name in found[0].columns if all(name in k.columns for k in found)]
        if not shared:
            return None
        parts = [keys.table.select(shared) for keys in found]
        return Keys(pa.concat_tables(parts).combine_chunks().group_by(shared).aggregate([]))

    def _touched(self, plan: Plan) -> bool:
        return bool(tables_of(plan) & self._changed)
