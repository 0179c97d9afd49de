"""From a delta to changes of the stores: add up the weights, and say it by key.

A store takes upserts and deletes by key and itself finds what was there, so deletes go first
and upserts after them: a row that only changed is deleted and put again under its key.

    shape       a row that goes         a row that comes
    keyed       delete of its key       upsert
    merged      a state without rows    upsert of row and state
                is deleted
    multiset    the highest numbers     the next free numbers of its hash
                of its hash are freed   (on the driver: `multiset.py`)
"""

from dataclasses import dataclass

from headwater.model.spelling import quoted
from headwater.model.types import BIGINT
from headwater.sql.algebra import Output
from headwater.views import meaning
from headwater.views.delta import Deltas
from headwater.views.layout import MAIN, ROW_HASH, ROW_NUMBER, Kept, Layout, Shape, is_linear
from headwater.views.merging import ROWS
from headwater.views.rows import Rows
from headwater.views.spelling import WEIGHT, listed, names_of
from headwater.views.terms import added_up


@dataclass(frozen=True, slots=True)
class StoreDelta:
    """What changes in one store: a query of stored columns and weights."""

    store: int
    sql: str
    outputs: tuple[Output, ...]
    local: bool


async def settled(layout: Layout, deltas: Deltas) -> list[StoreDelta]:
    """What an epoch changes in each store of a view."""
    found: list[StoreDelta] = []
    top = layout.top
    if top is not None:
        both = await deltas.aggregates.merged(top)
        if both is not None:
            found.append(_merged(layout, top, both[1]))
    else:
        rows = await deltas.of(layout.view.plan)
        if rows is not None:
            found.append(_main(layout, rows))
    for kept in layout.kept.values():
        if kept.store != MAIN and kept.store in deltas.aggregates.states:
            states = deltas.aggregates.states[kept.store]
            terms = [
                f"{quoted(name)} as {quoted(kept.names[name])}"
                for name in names_of(kept.merging.columns)
            ]
            sql = f"select {', '.join(terms)}, {_presence(kept)} from ({states.sql})"
            found.append(_store_delta(layout, kept.store, sql, states.local))
    for number, leaf in deltas.first_rows.items():
        found.append(_store_delta(layout, number, f"select * from {leaf.name}", True))
    return found


def store_sql(layout: Layout, store: int, inputs: dict[int, str]) -> str:
    """A store's rows from nothing; `inputs` has the query of each kept aggregate's input."""
    if store == MAIN and layout.top is None:
        sql = f"select {_stored(layout)} from ({inputs[id(layout.view.plan)]})"
        return _numbered(layout, sql) if layout.shape is Shape.MULTISET else sql
    top = next((each for each in layout.tops.values() if each.store == store), None)
    if top is not None:
        return top.filling_sql(inputs[id(top.node.input)])
    kept = next(each for each in layout.kept.values() if each.store == store)
    if store == MAIN:
        return _projected(layout, kept, _summed(kept, inputs))
    return states_sql(kept, inputs)


def states_sql(kept: Kept, inputs: dict[int, str]) -> str:
    """The states of an aggregate under their stored names, from nothing."""
    names = names_of(kept.merging.columns)
    terms = [f"{quoted(name)} as {quoted(kept.names[name])}" for name in names]
    return f"select {', '.join(terms)} from ({_summed(kept, inputs)})"


def _summed(kept: Kept, inputs: dict[int, str]) -> str:
    merging = kept.merging
    sql = inputs[id(merging.node.input)]
    return merging.alive(merging.summed(merging.contributions(sql, weighted=False)))


def merged_sql(layout: Layout, rows: str) -> str:
    """The main store's rows from those of several parts of the input, which may share groups."""
    kept = layout.top
    assert kept is not None, "only states can be merged"
    merging = kept.merging
    terms = [f"{quoted(kept.names[n])} as {quoted(n)}" for n in names_of(merging.columns)]
    states = f"select {', '.join(terms)} from {rows}"
    both = merging.ranked(states) if merging.extremes else merging.summed(states)
    return _projected(layout, kept, merging.alive(both))


def _merged(layout: Layout, kept: Kept, states: Rows) -> StoreDelta:
    extra = (*kept.merging.state_names,)
    projected = _projected(layout, kept, states.sql)
    names = listed([name for name, _ in layout.view.columns] + list(extra))
    sql = f"select {names}, {_presence(kept)} from ({projected})"
    return _store_delta(layout, MAIN, sql, states.local)


def _projected(layout: Layout, kept: Kept, states: str) -> str:
    """The view's columns and the states beside them."""
    extra = (*kept.merging.state_names,)
    sql = kept.merging.values(states, extra)
    for project in reversed(layout.projections):
        sql = meaning.apply(project, [sql], extra)
    return f"select {_stored(layout)}, {listed(extra)} from ({sql})"


def _main(layout: Layout, rows: Rows) -> StoreDelta:
    names = tuple(name for name, _ in layout.view.columns)
    sql = f"select {_stored(layout)}, {quoted(WEIGHT)} from ({rows.sql})"
    if layout.shape is Shape.MULTISET:
        sql = added_up(sql, names)
        sql = f"select *, xxhash64({listed(names)}) as {quoted(ROW_HASH)} from ({sql})"
    elif not is_linear(layout.view.plan):
        sql = added_up(sql, names)
    return _store_delta(layout, MAIN, sql, rows.local)


def _store_delta(layout: Layout, store: int, sql: str, local: bool) -> StoreDelta:
    outputs = [
        Output(column.name, column.type)
        for column in layout.schemas[store].columns
        if column.name != ROW_NUMBER
    ]
    return StoreDelta(store, sql, (*outputs, Output(WEIGHT, BIGINT)), local)


def _presence(kept: Kept) -> str:
    if not kept.merging.node.group:
        return f"1L as {quoted(WEIGHT)}"
    return f"case when {quoted(ROWS)} > 0 then 1L else -1L end as {quoted(WEIGHT)}"


def _stored(layout: Layout) -> str:
    return ", ".join(f"{quoted(column)} as {quoted(name)}" for name, column in layout.view.columns)


def _numbered(layout: Layout, sql: str) -> str:
    names = listed(name for name, _ in layout.view.columns)
    hashed = f"select *, xxhash64({names}) as {quoted(ROW_HASH)} from ({sql})"
    return (
        f"select *, cast(row_number() over (partition by {quoted(ROW_HASH)} order by {names}) "
        f"as bigint) as {quoted(ROW_NUMBER)} from ({hashed})"
    )
