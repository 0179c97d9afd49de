"""Replace a view, and swap two: each with one epoch, under the eyes of all who read them.

    the new rows fit the old store      the view keeps its id; the epoch stages the difference
    they do not, and nobody reads it    the new stores take the name; the old ones go
    they do not, and somebody does      refused

Swapped views that nobody reads exchange their names. Otherwise they exchange what they are, and
keep their ids, so that readers find under a name what it then means. Which of these it is, says
`succession_rules.py`; what it does to the stores, `view_succession.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headwater.catalog.change import (
    AlterObject,
    AlterTable,
    CatalogChange,
    CreateTable,
    DropObject,
    DropTable,
    ShowTable,
)
from headwater.catalog.relation import ObjectDef, ObjectKind, Query, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.runtime.committer import Definition
from headwater.runtime.creating.views import Creating
from headwater.runtime.ddl_base import store_of
from headwater.runtime.ddl_followed import FollowedDdl
from headwater.runtime.recovery import table_spec
from headwater.runtime.succession_rules import (
    dependents_of,
    refuse_being_replaced,
    refuse_reading_itself,
    refuse_swap,
    refuse_unequal,
    refuse_unlike,
    takes_place,
)
from headwater.runtime.view_plan import PlannedView, reopened_view, view_in_making
from headwater.runtime.view_succession import Successor
from headwater.runtime.view_world import KeptView

_DEPENDENT_OBJECTS = "2BP01"


class _Change(NamedTuple):
    """What a replacement does, and the tables of which nothing is left afterwards."""

    definition: Definition
    gone: tuple[TableId, ...]


class ReplacingDdl(FollowedDdl):
    """Changes views that exist."""

    async def replace_view(self, intent: ObjectDef, planned: PlannedView) -> Epoch:
        """Replace a view by one that is filled in the epoch that is returned.

        Replay: done with that epoch or not at all.
        """
        around = self._around
        async with self._one:
            snapshot = await self.snapshot()
            old = self._replaceable(snapshot, intent, planned)
            ids = tuple(TableId(id_) for id_ in await self._ids(len(planned.layout.schemas)))
            named = replace(intent, query=replace(planned.query, stores=ids))
            schemas = planned.layout.schemas
            tables = [store_of(old, id_, s) for id_, s in zip(ids, schemas, strict=True)]
            for table in tables:
                around.store.create(table_spec(table))
            made = view_in_making(named, planned, around.store)
            if takes_place(old, schemas[0], around.store[old.id].retired):
                change = self._in_place(old, made, empty=True)
                first: list[CatalogChange] = [CreateTable(table=table) for table in tables[1:]]
                changes = [*first, *change.definition.changes]
            else:
                change = _in_name(snapshot, old, made)
                main = replace(_heir(made.table, old), folder=tables[0].folder)
                made = replace(made, table=main)
                change = change._replace(definition=replace(change.definition, views=(made,)))
                new = [CreateTable(table=table) for table in (main, *tables[1:])]
                changes = [*change.definition.changes, *new]
            definition = replace(change.definition, changes=changes)
            epoch = await self._define(definition, undo=ids)
            await self._delete_files(change.gone)
            return epoch

    def _replaceable(
        self, snapshot: CatalogSnapshot, intent: ObjectDef, planned: PlannedView
    ) -> TableDef:
        """The view that is to be replaced; raises when it cannot be."""
        assert intent.replaces is not None
        old = snapshot.by_id(intent.replaces)
        if not isinstance(old, TableDef):
            raise relation_error(f'view "{intent.name}" does not exist any more', "42P01")
        refuse_being_replaced(snapshot, old)
        reads = [read.relation for read in planned.query.reads.values()]
        refuse_reading_itself(snapshot, old, reads)
        retired = self._around.store[old.id].retired
        refuse_unlike(snapshot, old, planned.layout.schemas[0], retired)
        return old

    async def _replacement(self, creating: Creating, after: Epoch) -> _Change:
        """Let a view that is filled up to an epoch take the place, or the name, of another."""
        intent, made = creating.intent, creating.view
        assert intent.replaces is not None
        snapshot = await self.snapshot()
        old = snapshot.table_by_id(intent.replaces)
        schema, retired = made.layout.schemas[0], self._around.store[old.id].retired
        refuse_unlike(snapshot, old, schema, retired)
        if takes_place(old, schema, retired):
            change = self._in_place(old, made, since=after)
            changes = [
                *(AlterTable(table=each) for each in _moved(snapshot, made, old.id)),
                *change.definition.changes,
                DropTable(table=made.id),
            ]
        else:
            change = _in_name(snapshot, old, made)
            joined = replace(change.definition, joins=((made, after),))
            change = change._replace(definition=joined)
            changes = [*change.definition.changes, ShowTable(table=_heir(made.table, old))]
        facts = {creating.job.key: ""}
        whole = replace(
            change.definition, changes=[DropObject(object=intent.id), *changes], facts=facts
        )
        return change._replace(definition=whole)

    def _in_place(
        self, old: TableDef, made: KeptView, *, since: Epoch | None = None, empty: bool = False
    ) -> _Change:
        """The view keeps its id; its main store takes the difference, the others are new."""
        store = self._around.store
        query = made.table.detail.query
        assert query is not None
        table = _redefined(old, made.layout.schemas[0], made.table.detail.definition, query)
        view = KeptView(table, made.layout, (store[old.id], *made.stores[1:]))
        beside = _beside(old)
        changes: list[CatalogChange] = [AlterTable(table=table)]
        changes += [DropTable(table=id_) for id_ in beside]
        successor = Successor(view=view, made=made, since=since, empty=empty)
        definition = Definition(changes=changes, successors=(successor,))
        return _Change(definition, (made.id, *beside))

    async def swap_views(self, first: TableId, second: TableId) -> Epoch:
        """Exchange the names of two views, or what they are where others read them.

        Replay: done with the epoch returned or not at all.
        """
        async with self._one:
            snapshot = await self.snapshot()
            one, two = snapshot.table_by_id(first), snapshot.table_by_id(second)
            refuse_swap(snapshot, one, two)
            if dependents_of(snapshot, one.id) or dependents_of(snapshot, two.id):
                definition = self._exchanged(snapshot, one, two)
            else:
                definition = self._renamed_both(snapshot, one, two)
            return await self._define(definition)

    def _renamed_both(self, snapshot: CatalogSnapshot, one: TableDef, two: TableDef) -> Definition:
        store = self._around.store
        aside = replace(one, name=f"_hw_swapped_{one.id}")
        pairs = ((two, one), (one, two))
        kept = [reopened_view(table, snapshot, store) for table, _ in pairs]
        named = [_renamed(table, other) for table, other in pairs]
        return Definition(
            changes=[AlterTable(table=aside), *(ShowTable(table=table) for table in named)],
            renamed=tuple(
                replace(view, table=table) for view, table in zip(kept, named, strict=True)
            ),
        )

    def _exchanged(self, snapshot: CatalogSnapshot, one: TableDef, two: TableDef) -> Definition:
        refuse_unequal(snapshot, one, two)
        store = self._around.store
        kept = {each.id: reopened_view(each, snapshot, store) for each in (one, two)}
        changes: list[CatalogChange] = []
        successors: list[Successor] = []
        for place, other in ((one, two), (two, one)):
            made = kept[other.id]
            query = other.detail.query
            assert query is not None
            _refuse_unlike_stores(place, other, store[place.id].retired)
            table = _redefined(place, other.schema, other.detail.definition, query)
            stores = (store[place.id], *made.stores[1:])
            view = KeptView(table, made.layout, stores)
            successors.append(Successor(view=view, made=made))
            changes.append(AlterTable(table=table))
            changes += [AlterTable(table=each) for each in _moved(snapshot, made, place.id)]
        return Definition(changes=changes, successors=tuple(successors))


def _in_name(snapshot: CatalogSnapshot, old: TableDef, made: KeptView) -> _Change:
    """The view goes, with its stores; what takes its name is the caller's to show."""
    goes = (old.id, *_beside(old))
    changes: list[CatalogChange] = [
        AlterObject(object=replace(index, table=made.id)) for index in _indexes(snapshot, old, made)
    ]
    changes += [DropTable(table=id_) for id_ in goes]
    return _Change(Definition(changes=changes, drops=(old.id,)), goes)


def _indexes(snapshot: CatalogSnapshot, old: TableDef, made: KeptView) -> Iterator[ObjectDef]:
    names = {column.name for column in made.table.columns}
    for each in snapshot.objects:
        if each.kind is ObjectKind.INDEX and each.table == old.id:
            if lacking := sorted({*each.keys, *each.includes} - names):
                raise relation_error(
                    f'index "{each.name}" needs column "{lacking[0]}", which the new view lacks',
                    _DEPENDENT_OBJECTS,
                    hint=f"DROP INDEX {each.name} first.",
                )
            yield each


def _redefined(place: TableDef, schema: Schema, definition: str, query: Query) -> TableDef:
    """A view with its own id, name, owner and comments, and another query."""
    columns = {n: detail for n, detail in place.detail.columns.items() if n in schema.names}
    detail = replace(place.detail, definition=definition, query=query, columns=columns)
    return replace(place, schema=schema, detail=detail)


def _heir(table: TableDef, old: TableDef) -> TableDef:
    """A new view under the name of another, of the same owner and with its comment."""
    detail = replace(table.detail, owner=old.detail.owner, comment=old.detail.comment)
    return replace(_renamed(table, old), detail=detail)


def _renamed(table: TableDef, like: TableDef) -> TableDef:
    return replace(table, name=like.name, namespace=like.namespace)


def _moved(snapshot: CatalogSnapshot, made: KeptView, to: TableId) -> Iterator[TableDef]:
    """The stores beside the main one, as parts of another view."""
    for store in made.stores[1:]:
        table = snapshot.table_by_id(store.id)
        yield replace(table, detail=replace(table.detail, part_of=to))


def _beside(view: TableDef) -> Sequence[TableId]:
    return () if view.detail.query is None else view.detail.query.stores


def _refuse_unlike_stores(place: TableDef, other: TableDef, retired: frozenset[str]) -> None:
    if not takes_place(place, other.schema, retired):
        raise relation_error(
            f'"{place.name}" and "{other.name}" store their rows in different ways',
            "42P16",
            detail="Their keys, or the states of their aggregates, are not alike, and others "
            "read one of them.",
            hint="Drop what reads them, swap them, and create it again.",
        )
