"""Plan queries over the relations of a workspace, and run them on Spark at one epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from headwater.catalog.relation import PUBLIC
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import UserError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.spelling import quoted
from headwater.model.types import DataType
from headwater.pgwire.session import ResultColumn
from headwater.runtime.engine import Engine
from headwater.runtime.names import CatalogRelations
from headwater.sql.algebra import Ordering, Plan, Query, Scan, inputs_of, tables_of
from headwater.sql.plan import plan_query
from headwater.state.table import StateTable
from headwater.views.recompute import batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class Planned:
    """A query that can run, and the columns of its result."""

    query: Query
    columns: tuple[ResultColumn, ...]
    parameters: tuple[DataType | None, ...] = ()
    """The types of `$1`, `$2`, ..., as far as the query shows them."""


def plan(
    query: Any,
    text: str,
    snapshot: CatalogSnapshot,
    path: Sequence[str] = (PUBLIC,),
    parameters: Sequence[str | None] | None = None,
) -> Planned:
    """Plan a query; `text` is the statement that errors point into."""
    _refuse_too_deep(query)
    learned: dict[int, DataType] = {}
    relations = CatalogRelations(snapshot, path)
    planned = plan_query(query, text, relations, parameters=parameters, learned=learned)
    types = tuple(learned.get(number + 1) for number in range(len(parameters or ())))
    return Planned(planned, result_columns(planned), types)


def _refuse_too_deep(query: exp.Expr) -> None:
    """Refuse what Spark's parser would take minutes for, only to give up."""
    waiting = [(query, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > _DEEPEST:
            error = UserError(
                "the statement is nested too deeply",
                detail=f"Expressions may be nested {_DEEPEST} deep; a sum of many is nested, too.",
            )
            error.sqlstate = "54001"
            raise error
        for child in node.iter_expressions():
            # Conditions side by side are no depth: they are planned as one list.
            flat = isinstance(node, exp.Connector) and isinstance(child, exp.Connector)
            waiting.append((child, depth if flat else depth + 1))


def result_columns(query: Query) -> tuple[ResultColumn, ...]:
    """The columns of a query's result."""
    types = {output.name: output.type for output in query.plan.outputs}
    return tuple(ResultColumn(name=name, type=types[column]) for name, column in query.visible)


def frame_of(engine: Engine, query: Query, epoch: Epoch) -> "DataFrame":
    """The rows of a query as a DataFrame that has yet to run, all tables at one epoch."""
    tables = {}
    for id_ in sorted(tables_of(query.plan)):
        engine.keeper.refuse_failed(id_, epoch)
        tables[id_] = stored(engine, id_).frame(epoch)
    _refuse_later_columns(query.plan, {id_: frame.columns for id_, frame in tables.items()}, epoch)
    return _shown(batch(engine.spark(), query.plan, tables), query)


def _refuse_later_columns(plan: Plan, there: Mapping[TableId, Sequence[str]], epoch: Epoch) -> None:
    """Raise when a query needs a column that its table got after the epoch."""
    if isinstance(plan, Scan):
        for _, column in plan.columns:
            if column not in there[plan.table]:
                raise relation_error(
                    f'column "{column}" did not exist at epoch {epoch}',
                    "42703",
                    hint="Leave it out, or read a later epoch.",
                )
    for each in inputs_of(plan):
        _refuse_later_columns(each, there, epoch)


def input_rows(engine: Engine, query: Query, epoch: Epoch) -> int:
    """How many rows the tables of a query have."""
    return sum(stored(engine, id_).view(epoch).rows for id_ in tables_of(query.plan))


def stored(engine: Engine, id_: TableId) -> StateTable:
    """A table's rows; an error for the user when it was dropped since the query was planned."""
    if id_ not in engine.store:
        raise relation_error("a relation of this query does not exist any more", "42P01")
    return engine.store[id_]


def _shown(rows: "DataFrame", query: Query) -> "DataFrame":
    """In the order, the number and under the names that the user asked for."""
    from pyspark.sql import functions as F  # noqa: PLC0415  the command line must start fast

    if query.order:
        rows = rows.orderBy(*[_term(each) for each in query.order])
    if query.offset:
        rows = rows.offset(query.offset)
    if query.limit is not None:
        rows = rows.limit(query.limit)
    chosen = rows.select(*[F.col(quoted(column)) for _, column in query.visible])
    return chosen.toDF(*[name for name, _ in query.visible])


def _term(ordering: Ordering) -> "Column":
    from pyspark.sql import functions as F  # noqa: PLC0415

    value = F.expr(ordering.expression.text)
    match ordering.descending, ordering.nulls_first:
        case True, True:
            return value.desc_nulls_first()
        case True, False:
            return value.desc_nulls_last()
        case False, True:
            return value.asc_nulls_first()
        case _:
            return value.asc_nulls_last()
