"""From the text of a view to its plan and its stores, when it is created and at every start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.catalog.relation import PUBLIC, Detail, ObjectDef, Query, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import DamagedState, UserError
from headwater.runtime.names import BoundRelations, CatalogRelations
from headwater.runtime.view_world import KeptView
from headwater.sql.algebra import Query as PlannedQuery
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import Relations
from headwater.sql.statement import CreateMaterializedView, CreateTable, CreateView
from headwater.state.store import StateStore
from headwater.views.layout import Layout, RefreshPolicy, lay_out, view_of
from headwater.views.rules import check_policy

Creating = CreateMaterializedView | CreateView | CreateTable


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view that can be created: what the catalog stores of its query, and its stores."""

    query: Query
    layout: Layout


def plan_view(
    statement: CreateMaterializedView,
    snapshot: CatalogSnapshot,
    path: Sequence[str] = (PUBLIC,),
    policy: RefreshPolicy = RefreshPolicy.AUTO,
    text: str | None = None,
) -> PlannedView:
    """Plan a materialized view for the first time; errors point into `text`."""
    relations = CatalogRelations(snapshot, path)
    layout = _layout(statement.name.name, _planned(statement, relations, text), policy)
    check_policy(layout)
    query = Query(
        text=statement.text,
        reads=relations.reads,
        aliases=statement.columns,
        policy=policy.value,
    )
    return PlannedView(query, layout)


def replan_view(table: TableDef, snapshot: CatalogSnapshot) -> Layout:
    """Plan a stored view again; its stores must come out as they are."""
    query = table.detail.query
    assert query is not None
    return _replanned(table.name, query, snapshot)


def reopened_view(table: TableDef, snapshot: CatalogSnapshot, store: StateStore) -> KeptView:
    """A stored view with its stores, ready to be kept current."""
    layout = replan_view(table, snapshot)
    query = table.detail.query
    assert query is not None
    ids = (table.id, *query.stores)
    stored = tuple(snapshot.table_by_id(id_).schema for id_ in ids)
    if stored != layout.schemas:
        raise DamagedState(
            f'view "{table.name}" was stored in another way than this version would',
            hint=f"Drop it and create it again: {query.text.splitlines()[0]}",
        )
    return KeptView(table, layout, tuple(store[id_] for id_ in ids))


def view_in_making(intent: ObjectDef, planned: PlannedView, store: StateStore) -> KeptView:
    """A view that is being created, with its stores; its table is what it will be."""
    query = intent.query
    assert query is not None
    stores = tuple(store[id_] for id_ in query.stores)
    main = TableDef(
        id=query.stores[0],
        name=intent.name,
        namespace=intent.namespace,
        schema=planned.layout.schemas[0],
        folder="",
        kind=TableKind.MATERIALIZED_VIEW,
        detail=Detail(
            definition=intent.definition,
            owner=intent.owner,
            query=replace(query, stores=query.stores[1:]),
        ),
    )
    return KeptView(main, planned.layout, stores)


def reopened_making(intent: ObjectDef, snapshot: CatalogSnapshot, store: StateStore) -> KeptView:
    """The same, found in the catalog."""
    query = intent.query
    assert query is not None
    layout = _replanned(intent.name, query, snapshot)
    if tuple(snapshot.table_by_id(id_).schema for id_ in query.stores) != layout.schemas:
        raise DamagedState(
            f'view "{intent.name}" was begun in another way than this version would',
            hint="Drop it and create it again.",
        )
    return view_in_making(intent, PlannedView(query, layout), store)


def _replanned(name: str, query: Query, snapshot: CatalogSnapshot) -> Layout:
    statement = parse_one(query.text)
    assert isinstance(statement, Creating)
    planned = _planned(statement, BoundRelations(snapshot, query.reads))
    return _layout(name, planned, RefreshPolicy(query.policy))


def _planned(statement: Creating, relations: Relations, text: str | None = None) -> PlannedQuery:
    assert statement.query is not None
    aliases = () if isinstance(statement, CreateTable) else statement.columns
    shown = statement.text if text is None else text
    return plan_query(statement.query, shown, relations, for_view=True, aliases=aliases)


def _layout(name: str, query: PlannedQuery, policy: RefreshPolicy) -> Layout:
    seen: set[str] = set()
    for column, _ in query.visible:
        if column.lower() in seen:
            error = UserError(
                f'column "{column}" specified more than once',
                hint="Give each column of the view a name of its own with AS.",
            )
            error.sqlstate = "42701"
            raise error
        seen.add(column.lower())
    return lay_out(view_of(name, query, policy))
