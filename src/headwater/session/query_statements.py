"""Run SELECT, COPY TO and EXPLAIN.

the query                                   is answered by
reads system tables only                    the system room, without Spark
fixes a key or an index by constants        the lookup cache, without Spark
anything else                               Spark, all tables at one epoch
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import NotSupported
from headwater.model.epoch import Epoch
from headwater.model.spelling import sql_quoted
from headwater.pgwire.session import ResultColumn, Rows, StatementResult
from headwater.runtime.spark_errors import SparkGone
from headwater.session import answers, definitions
from headwater.session.constants import as_constants
from headwater.session.context import Context
from headwater.session.fast_lookup import as_lookup
from headwater.session.moments import epoch_of
from headwater.session.queries import Planned, frame_of, input_rows, plan
from headwater.session.streams import Running, stream
from headwater.sql import statement as st
from headwater.sql.algebra import tables_of
from headwater.sql.explain import explain_plan
from headwater.views.layout import Layout, RefreshPolicy
from headwater.views.rules import estimate, explain_incremental

Parameters = Sequence[str | None]


@dataclass(slots=True)
class Active:
    """The queries of a session that run now, so that they can be cancelled."""

    running: set[Running] = field(default_factory=set)

    def cancel(self) -> None:
        """Interrupt all of them."""
        for each in list(self.running):
            each.cancel()


async def select(
    context: Context, query: Any, text: str, parameters: Parameters, active: Active
) -> Rows:
    """The rows of a query, at the last committed epoch or at the one that it names."""
    constants = as_constants(query)
    if constants is not None:
        return answers.of_table(*constants)
    snapshot, epoch = await context.moment()
    lookup = as_lookup(query, snapshot, context.path, parameters)
    if lookup is not None:
        context.engine.keeper.refuse_failed(lookup.table.id, epoch)
        with context.engine.reading(epoch):
            found = await context.blocking(lookup.run, context.engine, epoch)
        if found is not None:
            return answers.of_table(lookup.columns, found)
    planned = await context.blocking(plan, query, text, snapshot, context.path, parameters)
    if planned.query.as_of is not None:
        epoch = await context.blocking(epoch_of, context.engine, planned.query.as_of)
    return Rows(columns=planned.columns, batches=_on_spark(context, planned, epoch, active))


async def _on_spark(
    context: Context, planned: Planned, epoch: Epoch, active: Active
) -> AsyncIterator[pa.RecordBatch]:
    engine = context.engine
    running = Running()
    active.running.add(running)
    try:
        with engine.reading(epoch):
            rows = await context.blocking(_expected_rows, context, planned, epoch)
            batches = stream(
                lambda: frame_of(engine, planned.query, epoch),
                rows=rows,
                blocking=context.blocking,
                folder=engine.workspace.scratch,
                running=running,
            )
            async for batch in batches:
                yield batch
    except SparkGone:
        engine.spark_lost()
        raise
    finally:
        active.running.discard(running)


def _expected_rows(context: Context, planned: Planned, epoch: Epoch) -> int:
    rows = input_rows(context.engine, planned.query, epoch)
    limit = planned.query.limit
    return rows if limit is None else min(rows, limit)


async def describe(context: Context, query: Any, text: str, parameters: Parameters) -> Planned:
    """The columns of a query's result, without running it."""
    snapshot = await context.snapshot()
    return await context.blocking(plan, query, text, snapshot, context.path, parameters)


async def explain(context: Context, statement: st.Explain, text: str) -> StatementResult:
    """EXPLAIN of a query or of a new materialized view."""
    snapshot = await context.snapshot()
    lines = await context.blocking(_explained, context, statement.statement, text, snapshot)
    return answers.texts(["QUERY PLAN"], [[line] for line in lines], tag="EXPLAIN")


def _explained(
    context: Context, statement: st.Statement, text: str, snapshot: CatalogSnapshot
) -> list[str]:
    match statement:
        case st.Select(query=query):
            planned = plan(query, text, snapshot, context.path)
            return explain_plan(planned.query).splitlines()
        case st.CreateMaterializedView():
            policy = context.variables["refresh_policy"]
            view = definitions.materialized_view(statement, snapshot, context.path, policy, text)
            return explained_view(context, view.layout, snapshot)
        case st.CreateView(query=query):
            return explain_plan(plan(query, text, snapshot, context.path).query).splitlines()
        case _:
            raise NotSupported(
                "only queries and views can be explained",
                hint="EXPLAIN SELECT ..., or EXPLAIN CREATE MATERIALIZED VIEW ... AS SELECT ...",
            )


def explained_view(context: Context, layout: Layout, snapshot: CatalogSnapshot) -> list[str]:
    """Which rule keeps each operator current, and what `auto` would choose now."""
    names = {table.id: table.name for table in snapshot.tables}
    steps = explain_incremental(layout, names)
    width = max(2 * step.depth + len(step.operator) for step in steps)
    lines = []
    for step in steps:
        reads = f"{step.reads_per_change:g} rows read per changed row"
        if step.reads_whole:
            whole = ", ".join(sorted(names.get(id_, str(id_)) for id_ in step.reads_whole))
            reads = f"reads {whole} whole"
        elif step.reads_groups:
            reads = "reads all stored groups below"
        why = f"  ({step.reason})" if step.reason else ""
        operator = f"{'  ' * step.depth}{step.operator}"
        lines.append(f"{operator:<{width}}  {step.rule.value:<8}  {reads}{why}")
    return [*lines, _policy_line(context, layout)]


def _policy_line(context: Context, layout: Layout) -> str:
    policy = layout.view.policy
    if policy is not RefreshPolicy.AUTO:
        return f"refresh policy: {policy.value}"
    store = context.engine.store
    tables = tables_of(layout.view.plan)
    rows = {id_: store[id_].view().rows for id_ in tables}
    changed = {id_: max(1, count // 1000) for id_, count in rows.items()}
    cost = estimate(layout, rows, changed, sum(rows.values()))
    chosen = "incremental" if cost.pays else "full"
    return (
        f"refresh policy: auto; with 0.1 % of the rows changed: {chosen} "
        f"(cost {cost.incremental:,.0f} by the rules, {cost.full:,.0f} in full)"
    )


async def copied_out(
    context: Context, statement: st.Copy, text: str, active: Active
) -> tuple[tuple[ResultColumn, ...], AsyncIterator[pa.RecordBatch]]:
    """The rows of COPY ... TO STDOUT."""
    query = statement.query
    if query is None:
        assert statement.table is not None
        names = ", ".join(sql_quoted(name) for name in statement.columns) or "*"
        parsed = await asyncio.to_thread(_whole, f"SELECT {names} FROM {_name(statement.table)}")
        query, text = parsed
    rows = await select(context, query, text, (), active)
    return rows.columns, rows.batches


def _whole(text: str) -> tuple[Any, str]:
    from headwater.sql.parse import parse_one  # noqa: PLC0415

    statement = parse_one(text)
    assert isinstance(statement, st.Select)
    return statement.query, text


def _name(name: st.ObjectName) -> str:
    return ".".join(sql_quoted(part) for part in (name.schema, name.name) if part is not None)
