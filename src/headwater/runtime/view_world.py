"""The views of an engine, and the tables that they read, before and after an epoch."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from headwater.catalog.relation import TableDef
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.sql.algebra import tables_of
from headwater.state.row_cache import RowCache
from headwater.state.store import StateStore
from headwater.state.table import StateTable
from headwater.state.upcoming import Upcoming
from headwater.views.desk import Side
from headwater.views.layout import Layout
from headwater.views.maintain import LiveView
from headwater.views.relation import Relation, StateRelation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkSource(Protocol):
    """Where the Spark session comes from."""

    def __call__(self) -> "SparkSession":
        """The session, started if need be."""
        ...

    def lost(self) -> None:
        """Hear that the session does not answer; the next call starts another."""
        ...


@dataclass(frozen=True, slots=True)
class KeptView:
    """A view that is kept current, with its stores, the main one first."""

    table: TableDef
    layout: Layout
    stores: tuple[StateTable, ...]

    @property
    def id(self) -> TableId:
        """The relation that readers see."""
        return self.table.id

    @property
    def reads(self) -> frozenset[TableId]:
        """The stored relations that its query reads."""
        return tables_of(self.layout.view.plan)


class ViewWorld:
    """The tables before and after one epoch, or several, each looked at once."""

    def __init__(self, store: StateStore, epoch: Epoch, since: Epoch | None = None) -> None:
        self.epoch = epoch
        self._since = since
        self._store = store
        self._cache: RowCache = store.surroundings.cache
        self._upcoming: dict[TableId, Upcoming] = {}
        self._relations: dict[TableId, StateRelation] = {}

    def upcoming(self, id_: TableId) -> Upcoming:
        """A table before and after."""
        if id_ not in self._upcoming:
            self._upcoming[id_] = self._store[id_].upcoming(self.epoch, self._since)
        return self._upcoming[id_]

    def after(self, id_: TableId) -> "DataFrame":
        """A table's rows after."""
        return self._store[id_].frame_of(self.upcoming(id_).after)

    def changed(self, ids: Iterable[TableId], healed: set[TableId]) -> bool:
        """Whether one of these tables is another than before."""
        return any(id_ in healed or self.upcoming(id_).entries for id_ in ids)

    def staged(self, view: KeptView) -> None:
        """A view has staged this epoch: look again, for the views on it."""
        self._upcoming.pop(view.id, None)
        self._relations.pop(view.id, None)

    def relations(self, views: Sequence[KeptView]) -> dict[TableId, Relation]:
        """The tables that some views read."""
        return {id_: self.relation(id_) for id_ in sorted({i for v in views for i in v.reads})}

    def relation(self, id_: TableId) -> StateRelation:
        """A table as the rules read it."""
        if id_ not in self._relations:
            table, upcoming = self._store[id_], self.upcoming(id_)
            changes = None
            if upcoming.entries:
                changes = table.changes_of(upcoming.after, upcoming.entries)
            # The epoch may bring other columns too; the changes have those.
            before = replace(upcoming.before, schema=upcoming.after.schema)
            self._relations[id_] = StateRelation(
                table,
                self._cache,
                before,
                frames=lambda side: table.frame_of(before if side is Side.OLD else upcoming.after),
                changes=changes,
                changed_rows=upcoming.changed_rows,
            )
        return self._relations[id_]


def live_view(view: KeptView, store: StateStore, *, stale: bool = False) -> LiveView:
    """A view with its stores as the ledger has them."""
    stores = tuple(_store_relation(each, store.surroundings.cache) for each in view.stores)
    # Views of two schemas may have one name, and one that was renamed has the name it had.
    own = replace(view.layout.view, name=f"{view.layout.view.name}#{view.id}")
    return LiveView(replace(view.layout, view=own), stores, stale)


def _store_relation(table: StateTable, cache: RowCache) -> StateRelation:
    before = table.view()
    return StateRelation(table, cache, before, frames=lambda side: table.frame_of(before))


def levels_of(
    views: Iterable[KeptView], reads: Mapping[TableId, Set[TableId]] | None = None
) -> list[list[KeptView]]:
    """The views in layers: each reads only tables and views of the layers before.

    `reads` says it of views of which it is not what their plan reads.
    """
    waiting = {view.id: view for view in views}
    needs = {id_: view.reads for id_, view in waiting.items()} | dict(reads or {})
    levels: list[list[KeptView]] = []
    while waiting:
        level = [view for view in waiting.values() if not needs[view.id] & waiting.keys()]
        if not level:
            raise BrokenInvariant("views read each other", story=[str(sorted(waiting))])
        levels.append(level)
        for view in level:
            del waiting[view.id]
    return levels
