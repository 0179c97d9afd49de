"""The catalog as of one moment: look relations up by name or id.

A name that does not exist is an error that proposes the nearest one that does.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.catalog.relation import SourceDef, TableDef
from headwater.errors import RelationError
from headwater.model.ids import TableId

UNDEFINED_TABLE = "42P01"
UNDEFINED_OBJECT = "42704"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSnapshot:
    """Everything that exists, and what is dropped but not yet cleaned up."""

    sources: tuple[SourceDef, ...] = ()
    tables: tuple[TableDef, ...] = ()
    dropped_sources: tuple[SourceDef, ...] = ()
    dropped_tables: tuple[TableDef, ...] = ()

    def table(self, name: str) -> TableDef:
        """The table of that name."""
        for table in self.tables:
            if table.name == name:
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
