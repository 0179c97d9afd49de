"""The catalog as of one moment: look relations up by name or id.

A name that does not exist is an error that proposes the nearest one that does.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headwater.catalog.relation import (
    PUBLIC,
    ObjectDef,
    ObjectKind,
    SourceDef,
    TableDef,
    TableKind,
)
from headwater.errors import RelationError
from headwater.model.ids import TableId

UNDEFINED_TABLE = "42P01"
UNDEFINED_OBJECT = "42704"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSnapshot:
    """Everything that exists, and what is dropped but not yet cleaned up."""

    sources: tuple[SourceDef, ...] = ()
    tables: tuple[TableDef, ...] = ()
    """Every stored relation: tables, materialized views, and what these keep for themselves."""
    objects: tuple[ObjectDef, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """What ALTER SYSTEM SET has set."""
    dropped_sources: tuple[SourceDef, ...] = ()
    dropped_tables: tuple[TableDef, ...] = ()

    def table(self, name: str, namespace: str = PUBLIC) -> TableDef:
        """The stored relation of that name."""
        for table in self.tables:
            if table.name == name and table.namespace == namespace:
                return table
        raise missing("table", name, [table.name for table in self.tables], UNDEFINED_TABLE)

    def table_by_id(self, id_: TableId) -> TableDef:
        """The table with that id, also when it is dropped."""
        for table in (*self.tables, *self.dropped_tables):
            if table.id == id_:
                return table
        raise missing("table", f"#{id_}", (), UNDEFINED_TABLE)

    def source(self, name: str) -> SourceDef:
        """The source of that name."""
        for source in self.sources:
            if source.name == name:
                return source
        raise missing("source", name, [source.name for source in self.sources], UNDEFINED_OBJECT)

    def tables_of(self, source: str) -> tuple[TableDef, ...]:
        """The tables that read from a source."""
        return tuple(table for table in self.tables if table.source == source)

    @property
    def shown_tables(self) -> tuple[TableDef, ...]:
        """Tables and materialized views, without what is kept beside them, and for sinks."""
        stored = (table for table in self.tables if table.kind is not TableKind.STORE)
        return tuple(table for table in stored if not table.sinks_own)

    @property
    def materialized_views(self) -> tuple[TableDef, ...]:
        """The materialized views, in the order of their creation."""
        return tuple(t for t in self.tables if t.kind is TableKind.MATERIALIZED_VIEW)

    @property
    def everything(self) -> "tuple[TableDef | ObjectDef, ...]":
        """All that has an id of its own and is no source."""
        return (*self.tables, *self.objects)

    @property
    def schemas(self) -> tuple[str, ...]:
        """The names of all schemas."""
        made = (each.name for each in self.objects if each.kind is ObjectKind.SCHEMA)
        return (PUBLIC, *made)

    def relation(self, name: str, namespace: str = PUBLIC) -> TableDef | ObjectDef | None:
        """The table, materialized view, view or index of that name, or None."""
        for each in self.everything:
            if each.kind in (ObjectKind.SCHEMA, TableKind.STORE) or is_replacement(each):
                continue
            if each.name == name and each.namespace == namespace:
                return each
        return None

    def replacement_of(self, id_: int) -> ObjectDef | None:
        """What is being built to take a materialized view's place, or None."""
        return next((each for each in self.objects if each.replaces == id_), None)

    def by_id(self, id_: int) -> TableDef | ObjectDef | None:
        """The relation with that id that exists, or None."""
        return next((each for each in self.everything if each.id == id_), None)

    def readers(self, id_: int) -> Iterator[TableDef | ObjectDef]:
        """The relations that need this one, directly."""
        for each in self.everything:
            if id_ in each.reads:
                yield each

    def dependents(self, ids: Iterable[int]) -> tuple[TableDef | ObjectDef, ...]:
        """All that needs one of these, directly or not, the outermost first."""
        found: dict[int, TableDef | ObjectDef] = {}

        def visit(id_: int) -> None:
            for each in self.readers(id_):
                if each.id not in found:
                    visit(each.id)
                    found[each.id] = each

        wanted = list(ids)
        for id_ in wanted:
            visit(id_)
        return tuple(each for id_, each in found.items() if id_ not in wanted)


def is_replacement(each: TableDef | ObjectDef) -> bool:
    """Whether it is built to take the place of another, whose name it does not have yet."""
    return isinstance(each, ObjectDef) and each.replaces is not None


def relation_error(
    message: str, sqlstate: str, *, detail: str = "", hint: str = ""
) -> RelationError:
    """A RelationError with an SQLSTATE of its own."""
    error = RelationError(message, detail=detail, hint=hint)
    error.sqlstate = sqlstate
    return error


def missing(what: str, name: str, known: Iterable[str], sqlstate: str) -> RelationError:
    """The error for a relation that is not there."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f'Did you mean "{near[0]}"?' if near else ""
    return relation_error(f'{what} "{name}" does not exist', sqlstate, hint=hint)
