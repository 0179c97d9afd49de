"""What a change of a table's columns does to the relations that read it.

A view follows by itself when it comes out with the same columns as before: it is planned again
over the table as it will be, and kept by that plan from the next epoch on. A view that uses a
column which is gone, has another name or another type would come out differently, or not at all.
"""

from collections.abc import Sequence
from dataclasses import replace

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.cdc.schema_change import SchemaChange
from headwater.errors import HeadwaterError
from headwater.model.schema import Column
from headwater.runtime.names import BoundRelations
from headwater.runtime.sinks.definition import SinkSettings
from headwater.runtime.view_plan import replan_view
from headwater.runtime.view_world import KeptView
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query
from headwater.sql.statement import CreateView
from headwater.state.store import StateStore


def with_columns(table: TableDef, change: SchemaChange) -> TableDef:
    """A table after a change; what is known of its columns moves with their names."""
    names = dict(change.renamed)
    moved = {names.get(name, name): detail for name, detail in table.detail.columns.items()}
    kept = {name: detail for name, detail in moved.items() if name in change.schema.names}
    return replace(table, schema=change.schema, detail=replace(table.detail, columns=kept))


def followers(
    snapshot: CatalogSnapshot, altered: TableDef, store: StateStore
) -> tuple[KeptView, ...]:
    """The views that are kept by another plan from then on; raises with those that cannot be."""
    tables = tuple(altered if each.id == altered.id else each for each in snapshot.tables)
    after = replace(snapshot, tables=tables)
    kept: list[KeptView] = []
    broken: list[str] = []
    for each in snapshot.dependents([altered.id]):
        try:
            fits = _fits(each, snapshot, after, store, kept)
        except HeadwaterError:
            fits = False
        if not fits:
            broken.append(f'{each.kind.value} "{each.name}"')
    if broken:
        raise relation_error(
            f'other relations need columns of "{altered.name}" that are gone or changed',
            "2BP01",
            detail=f"These are {', '.join(sorted(broken))}.",
            hint=f"Drop them, ALTER TABLE {altered.name} REFRESH SCHEMA, and create them again.",
        )
    return tuple(kept)


def evolved_sinks(snapshot: CatalogSnapshot, altered: TableDef) -> list[ObjectDef]:
    """The sinks that carry new columns of a table to their targets, as they are from then on."""
    found = []
    for each in snapshot.objects:
        if each.kind is ObjectKind.SINK and each.table == altered.id:
            known = {column.name for column in each.columns}
            new = tuple(column for column in altered.columns if column.name not in known)
            if new and SinkSettings.of(each).evolves:
                found.append(replace(each, columns=(*each.columns, *new)))
    return found


def _fits(
    each: TableDef | ObjectDef,
    before: CatalogSnapshot,
    after: CatalogSnapshot,
    store: StateStore,
    kept: list[KeptView],
) -> bool:
    if isinstance(each, TableDef):
        if each.kind is not TableKind.MATERIALIZED_VIEW:
            return True
        layout = replan_view(each, after)
        if layout.schemas != replan_view(each, before).schemas:
            return False
        query = each.detail.query
        assert query is not None
        kept.append(KeptView(each, layout, tuple(store[id_] for id_ in (each.id, *query.stores))))
        return True
    if each.kind is ObjectKind.INDEX:
        table = after.by_id(each.table or 0)
        names = [column.name for column in table.columns] if table is not None else []
        return {*each.keys, *each.includes} <= set(names)
    if each.kind is ObjectKind.SINK:
        table = after.by_id(each.table or 0)
        return table is not None and {*each.columns} <= {*table.columns}
    return each.kind is not ObjectKind.VIEW or _columns(each, after) == list(each.columns)


def _columns(view: ObjectDef, snapshot: CatalogSnapshot) -> Sequence[Column]:
    assert view.query is not None
    statement = parse_one(view.query.text)
    assert isinstance(statement, CreateView)
    relations = BoundRelations(snapshot, view.query.reads)
    planned = plan_query(statement.query, view.query.text, relations, aliases=statement.columns)
    types = {output.name: output.type for output in planned.plan.outputs}
    return [Column(name, types[column]) for name, column in planned.visible]
