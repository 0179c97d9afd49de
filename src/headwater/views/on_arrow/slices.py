"""A new view's query over one slice after the other of a table, in whatever process reads them.

Filling a view through Spark's own operators turns every row that is read into Spark's form and
every row that is written back into Arrow's. Where Arrow can compute the query exactly (`query.py`
says of which texts), neither is needed: a task reads columns, computes columns, writes columns.

    the table that is sliced     another slice for each call
    the other tables             whole, in memory; what is made of them once serves all slices

The query either gives the rows of the view's main store, for slices that bring rows of their own,
or states of groups, which whoever asked adds up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import parse_one

from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.sql.algebra import Output, Plan, Scan, inputs_of
from headwater.views.layout import MAIN, Layout
from headwater.views.on_arrow.constants import known_in, remember
from headwater.views.on_arrow.desk import ArrowDesk
from headwater.views.recompute import states_query, store_queries

_PREFIX = "_hw_sliced"
_MOST_ROWS = 1 << 27
_MOST_BYTES = 1 << 30
"""Of all steps together. Most of them share their columns, which are counted in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceQuery:
    """A query over tables of which one is sliced. Travels to tasks."""

    sql: str
    outputs: tuple[Output, ...]
    sliced: TableId
    tables: Mapping[TableId, pa.Schema]
    """The columns that it reads."""
    constants: Mapping[str, pa.Array] = field(default_factory=dict)
    """What only Spark could say."""


def slice_query(
    layout: Layout,
    sliced: TableId,
    schemas: Mapping[TableId, Schema],
    *,
    states: bool,
    ask: Callable[[str], pa.Scalar | None],
) -> SliceQuery | None:
    """What a view's slices go through; None when Arrow cannot say it exactly."""
    names = {table: f"{_PREFIX}_{table}" for table in schemas}
    columns: tuple[Column, ...]
    if states:
        sql, columns = states_query(layout, names)
    else:
        sql, columns = store_queries(layout, names)[MAIN], layout.schemas[MAIN].columns
    read: dict[TableId, set[str]] = {table: set() for table in schemas}
    _note_columns(layout.view.plan, read)
    if not all(read.values()):
        # Rows without columns cannot be counted.
        return None
    tables = {
        table: pa.schema([f for f in schema.arrow if f.name in read[table]])
        for table, schema in schemas.items()
    }
    outputs = tuple(Output(column.name, column.type) for column in columns)
    # Without rows it shows whether the text is one for Arrow, and asks for its constants.
    empty = {names[table]: schema.empty_table() for table, schema in tables.items()}
    if ArrowDesk(empty, _PREFIX, ask).collect(sql, outputs) is None:
        return None
    known = known_in(parse_one(sql, read="spark"))
    constants = {text: pa.array([value]) for text, value in known.items() if value is not None}
    return SliceQuery(sql=sql, outputs=outputs, sliced=sliced, tables=tables, constants=constants)


def _note_columns(plan: Plan, read: dict[TableId, set[str]]) -> None:
    if isinstance(plan, Scan):
        read[plan.table] |= {stored for _, stored in plan.columns}
    for each in inputs_of(plan):
        _note_columns(each, read)


class SliceDesk:
    """Computes a query slice by slice, over others that stay."""

    def __init__(self, query: SliceQuery, others: Mapping[TableId, pa.Table]) -> None:
        for text, value in query.constants.items():
            remember(text, value[0])
        self._query = query
        self._sliced = f"{_PREFIX}_{query.sliced}"
        self._leaves = {f"{_PREFIX}_{table}": rows for table, rows in others.items()}
        self._desk = ArrowDesk(self._leaves, _PREFIX, most_rows=_MOST_ROWS, most_bytes=_MOST_BYTES)

    def over(self, slice_: pa.Table) -> pa.Table | None:
        """What a slice brings; None when only Spark can say it, or has words for what is wrong."""
        self._leaves[self._sliced] = slice_
        self._desk.forget(self._sliced)
        try:
            return self._desk.collect(self._query.sql, self._query.outputs)
        finally:
            self._desk.forget(self._sliced)
            self._leaves[self._sliced] = slice_.slice(0, 0)
