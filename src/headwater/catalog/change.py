"""Changes to the catalog, and what each of them requires.

    change         requires
    CreateSource   the id is fresh, the name is free
    AlterSource    the source exists
    CreateTable    the id is fresh, the name is free, its schema and its source exist, and what it
                   reads still has the columns that were planned with
    AlterTable     the table exists; its stored rows fit the new schema; a new name is free
    ShowTable      the table exists; its name is free
    DropTable      the table exists, nothing reads from it
    DropSource     the source exists, no table reads from it
    CreateObject   the same; of a replacement, that what it replaces exists
    AlterObject    the object exists; a new name is free
    DropObject     the object exists, nothing reads from it or lies in it

Requirements are checked inside the transaction that makes the change, one change after the
other: dropping a view and then its table in one list is what CASCADE does. All relations share
one space of names in each schema. `catalog.py` checks and applies; these are only values.
"""

from dataclasses import dataclass

from headwater.catalog.relation import PUBLIC, ObjectDef, ObjectKind, Query, SourceDef, TableDef
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema


@dataclass(frozen=True, slots=True)
class IdFresh:
    """The id was given by `Catalog.next_id` and no relation has had it."""

    id: int


@dataclass(frozen=True, slots=True)
class NameFree:
    """No other relation that exists has this name in this schema."""

    namespace: str
    name: str
    sqlstate: str
    but: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaFree:
    """No schema has this name."""

    name: str
    but: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaExists:
    """A schema of this name is there."""

    name: str


@dataclass(frozen=True, slots=True)
class SourceExists:
    """A source of this name is there."""

    name: SourceName


@dataclass(frozen=True, slots=True)
class SourceUnused:
    """No table that exists reads from the source."""

    name: SourceName


@dataclass(frozen=True, slots=True)
class TableExists:
    """A table with this id is there and is not dropped."""

    id: TableId


@dataclass(frozen=True, slots=True)
class ObjectExists:
    """An object with this id is there."""

    id: int


@dataclass(frozen=True, slots=True)
class Unread:
    """No query and no index needs this relation; no relation lies in this schema."""

    id: int


@dataclass(frozen=True, slots=True)
class RowsFit:
    """What is stored under the table's present schema can be read under this one."""

    id: TableId
    schema: Schema


@dataclass(frozen=True, slots=True)
class ReadsThere:
    """What this was planned over exists, and still has the columns that were known of it."""

    relations: frozenset[int]
    query: Query | None


Requirement = (
    IdFresh
    | NameFree
    | SchemaFree
    | SchemaExists
    | SourceExists
    | SourceUnused
    | TableExists
    | ObjectExists
    | Unread
    | RowsFit
    | ReadsThere
)

DUPLICATE_TABLE = "42P07"
DUPLICATE_OBJECT = "42710"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSource:
    """A source appears."""

    source: SourceDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return IdFresh(self.source.id), NameFree(PUBLIC, self.source.name, DUPLICATE_OBJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSource:
    """A source gets other options; its name, its kind and its tables stay."""

    source: SourceDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return (SourceExists(self.source.name),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """A table appears."""

    table: TableDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        table = self.table
        alone = (
            IdFresh(table.id),
            SchemaExists(table.namespace),
            NameFree(table.namespace, table.name, DUPLICATE_TABLE),
            ReadsThere(table.reads, table.detail.query),
        )
        return alone if table.source is None else (*alone, SourceExists(table.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """A table gets another definition; its id, its folder and its rows stay."""

    table: TableDef
    anew: bool = False
    """Whether its files are written anew, so that nothing has to fit."""

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        table = self.table
        always = (
            TableExists(table.id),
            SchemaExists(table.namespace),
            NameFree(table.namespace, table.name, DUPLICATE_TABLE, but=table.id),
        )
        return always if self.anew else (*always, RowsFit(table.id, table.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTable:
    """A store becomes a relation that users see, from this epoch on; its rows stay."""

    table: TableDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        table = self.table
        return (
            TableExists(table.id),
            SchemaExists(table.namespace),
            NameFree(table.namespace, table.name, DUPLICATE_TABLE, but=table.id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """A table goes; it stays listed as dropped until its files are purged."""

    table: TableId

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return TableExists(self.table), Unread(self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSource:
    """A source goes; it stays listed as dropped until what we left upstream is purged."""

    source: SourceName

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return SourceExists(self.source), SourceUnused(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateObject:
    """A schema, a view or an index appears."""

    object: ObjectDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        there = ReadsThere(self.object.reads, self.object.query)
        return IdFresh(self.object.id), there, *_named(self.object, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterObject:
    """A schema, a view or an index gets another definition."""

    object: ObjectDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return ObjectExists(self.object.id), *_named(self.object, self.object.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropObject:
    """A schema, a view or an index goes."""

    object: int

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return ObjectExists(self.object), Unread(self.object)


def _named(object_: ObjectDef, but: int | None) -> tuple[Requirement, ...]:
    if object_.kind is ObjectKind.SCHEMA:
        return (SchemaFree(object_.name, but),)
    if object_.replaces is not None:
        return (TableExists(object_.replaces),)
    return (
        SchemaExists(object_.namespace),
        NameFree(object_.namespace, object_.name, DUPLICATE_TABLE, but),
    )


CatalogChange = (
    CreateSource
    | AlterSource
    | CreateTable
    | AlterTable
    | ShowTable
    | DropTable
    | DropSource
    | CreateObject
    | AlterObject
    | DropObject
)
