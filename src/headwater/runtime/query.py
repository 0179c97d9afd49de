"""SELECT over the tables of a workspace, all of them at one epoch."""

from typing import TYPE_CHECKING

from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import UserError
from headwater.model.epoch import Epoch
from headwater.model.spelling import quoted
from headwater.sql.algebra import Ordering, Query, tables_of
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import FixedRelations, Relation
from headwater.sql.statement import Select
from headwater.state.store import StateStore
from headwater.views.recompute import batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def select(
    text: str, catalog: CatalogSnapshot, store: StateStore, spark: "SparkSession", epoch: Epoch
) -> "DataFrame":
    """The rows of a query in the PostgreSQL dialect, as a DataFrame that has yet to run."""
    statement = parse_one(text)
    if not isinstance(statement, Select):
        raise UserError("only SELECT can be asked for here", hint="Begin with SELECT or WITH.")
    relations = FixedRelations(
        Relation(name=table.name, columns=table.schema.columns, key=table.schema.key, id=table.id)
        for table in catalog.tables
    )
    query = plan_query(statement.query, text, relations)
    tables = {table: store[table].frame(epoch) for table in tables_of(query.plan)}
    return _shown(batch(spark, query.plan, tables), query)


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
