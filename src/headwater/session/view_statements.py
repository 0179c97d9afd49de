"""Run CREATE [OR REPLACE] MATERIALIZED VIEW, and SWAP WITH.

A view over few rows is filled inside one epoch, any other beside the epochs by a job. The
statement waits for the job, unless `background_ddl` is on; a client that goes away ends nothing.
"""

import asyncio

from headwater.backfill.snapshot.order import Order, encoded, parse_order
from headwater.catalog.relation import Detail, ObjectDef, ObjectKind, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.pgwire.session import StatementResult
from headwater.runtime.names import still_creating
from headwater.runtime.succession_rules import refuse_being_replaced, refuse_reading_itself
from headwater.runtime.view_plan import PlannedView
from headwater.session import definitions
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.sql import statement as st
from headwater.sql.algebra import tables_of

_TAG = "CREATE MATERIALIZED VIEW"
_UNKNOWN = Schema((Column("x", BIGINT),), ("x",))
"""Stands in until the plan of a view says what its rows are."""


async def create_materialized_view(
    context: Context, statement: st.CreateMaterializedView, text: str
) -> StatementResult:
    """CREATE [OR REPLACE] MATERIALIZED VIEW, now or in the background."""
    snapshot = await context.snapshot()
    namespace = definitions.place_of(statement.name, context.path, snapshot)
    found = snapshot.relation(statement.name.name, namespace)
    replaced = None
    if statement.or_replace and found is not None:
        replaced = _replaced(snapshot, found)
    elif exists := definitions.exists_already(
        snapshot, statement.name.name, namespace, skip=statement.if_not_exists
    ):
        if found is not None and found.kind is ObjectKind.CREATING:
            await context.engine.creating.wait(found.name)
        return done(_TAG, exists)
    policy = context.variables["refresh_policy"]
    planned = definitions.materialized_view(statement, snapshot, context.path, policy, text)
    if replaced is not None:
        # Said here, it is about the text; in the engine it is checked again.
        reads = [read.relation for read in planned.query.reads.values()]
        refuse_reading_itself(snapshot, replaced, reads)
    limit = _backfill_limit(context, statement)
    intent = ObjectDef(
        id=0,
        kind=ObjectKind.CREATING,
        name=statement.name.name,
        namespace=namespace,
        definition=statement.text,
        owner=context.user if replaced is None else replaced.detail.owner,
        settings={
            "backfill_rate_limit": "" if limit is None else str(limit),
            "backfill_order": encoded(_backfill_order(statement, planned)),
        },
        replaces=None if replaced is None else replaced.id,
    )
    await _create(context, statement, intent, planned, at_once=limit is None)
    return done(_TAG)


async def _create(
    context: Context,
    statement: st.CreateMaterializedView,
    intent: ObjectDef,
    planned: PlannedView,
    *,
    at_once: bool,
) -> None:
    ddl, creating = context.engine.ddl, context.engine.creating
    in_background = context.variables.is_on("background_ddl")
    if at_once and not in_background and creating.is_small(planned.layout):
        if intent.replaces is not None:
            await finished(ddl.replace_view(intent, planned))
        else:
            view = _view(statement, intent.namespace, context.user)
            await finished(ddl.create_view(view, planned))
        return
    begun = await finished(ddl.begin_view(intent, planned))
    if not in_background:
        await asyncio.shield(begun.done)


def _replaced(snapshot: CatalogSnapshot, found: TableDef | ObjectDef) -> TableDef:
    """The materialized view that OR REPLACE is about."""
    if found.kind is ObjectKind.CREATING:
        raise still_creating(found.name)
    if not isinstance(found, TableDef) or found.kind is not TableKind.MATERIALIZED_VIEW:
        raise relation_error(
            f'"{found.name}" is not a materialized view',
            "42809",
            hint=f"It is a {found.kind.value}; drop it first.",
        )
    refuse_being_replaced(snapshot, found)
    return found


async def swap(context: Context, statement: st.SwapWith) -> StatementResult:
    """ALTER MATERIALIZED VIEW ... SWAP WITH."""
    snapshot = await context.snapshot()
    views: list[TableDef] = []
    for name in (statement.name, statement.other):
        found = definitions.find(snapshot, name, context.path, st.ObjectKind.MATERIALIZED_VIEW)
        if not isinstance(found, TableDef):
            raise still_creating(str(name))
        views.append(found)
    first, second = views
    await finished(context.engine.ddl.swap_views(first.id, second.id))
    return done("ALTER MATERIALIZED VIEW")


def _backfill_order(statement: st.CreateMaterializedView, planned: PlannedView) -> Order:
    """Which tables are read before others, by the statement."""
    given = dict(statement.options).get("backfill_order")
    stored = tables_of(planned.layout.view.plan)
    reads = {name: TableId(read.relation) for name, read in planned.query.reads.items()}
    tables = {name: table for name, table in reads.items() if table in stored}
    return () if given is None else parse_order(given, tables)


def _backfill_limit(context: Context, statement: st.CreateMaterializedView) -> int | None:
    """Rows a second, by the statement or by the session."""
    given = dict(statement.options).get("backfill_rate_limit")
    value = context.variables["backfill_rate_limit"] if given is None else given
    limit = int(value) if value.lstrip("-").isdigit() else -1
    return None if limit < 0 else limit


def _view(statement: st.CreateMaterializedView, namespace: str, owner: str) -> TableDef:
    return TableDef(
        id=TableId(0),
        name=statement.name.name,
        namespace=namespace,
        schema=_UNKNOWN,
        folder="",
        kind=TableKind.MATERIALIZED_VIEW,
        detail=Detail(definition=statement.text, owner=owner),
    )
