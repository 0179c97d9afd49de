"""Changes to the catalog, and what each of them requires.

    change         requires
    CreateSource   the id is fresh, the name is free
    CreateTable    the id is fresh, the name is free, the source exists
    AlterTable     the table exists; its stored rows fit the new schema
    RenameTable    the table exists, the new name is free
    DropTable      the table exists
    DropSource     the source exists, no table reads from it

Requirements are checked inside the transaction that makes the change, one change after the
other: dropping a table and then its source in one list is what CASCADE does. Sources and tables
share one space of names. `catalog.py` checks and applies; these are only values.
"""

from dataclasses import dataclass

from headwater.catalog.relation import SourceDef, TableDef
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema


@dataclass(frozen=True, slots=True)
class IdFresh:
    """The id was given by `Catalog.next_id` and no relation has had it."""

    id: int


@dataclass(frozen=True, slots=True)
class NameFree:
    """No relation that exists has this name."""

    name: str
    sqlstate: str


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
class RowsFit:
    """What is stored under the table's present schema can be read under this one."""

    id: TableId
    schema: Schema


Requirement = IdFresh | NameFree | SourceExists | SourceUnused | TableExists | RowsFit

DUPLICATE_TABLE = "42P07"
DUPLICATE_OBJECT = "42710"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSource:
    """A source appears."""

    source: SourceDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return IdFresh(self.source.id), NameFree(self.source.name, DUPLICATE_OBJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """A table appears."""

    table: TableDef

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        alone = (IdFresh(self.table.id), NameFree(self.table.name, DUPLICATE_TABLE))
        return alone if self.table.source is None else (*alone, SourceExists(self.table.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """A table gets another schema."""

    table: TableId
    schema: Schema

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return TableExists(self.table), RowsFit(self.table, self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """A table gets another name; its id and its folder stay."""

    table: TableId
    name: str

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return TableExists(self.table), NameFree(self.name, DUPLICATE_TABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """A table goes; it stays listed as dropped until its files are purged."""

    table: TableId

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return (TableExists(self.table),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSource:
    """A source goes; it stays listed as dropped until what we left upstream is purged."""

    source: SourceName

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What must hold before."""
        return SourceExists(self.source), SourceUnused(self.source)


CatalogChange = CreateSource | CreateTable | AlterTable | RenameTable | DropTable | DropSource
