"""The catalog: relations with ids that outlive their names.

It lies in the ledger's database and changes only inside the ledger's commit: `writer` makes the
callback that `Ledger.append(also=...)` runs. So a relation appears with the very epoch that
fills it, and a failed requirement leaves no trace of that epoch.

A dropped relation is remembered until `purge`: a crash after the drop must not leave behind
files in storage or a replication slot at the source that nobody knows of any more.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, assert_never

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Row, Table, delete, insert, select, update

from headwater.catalog.change import (
    AlterTable,
    CatalogChange,
    CreateSource,
    CreateTable,
    DropSource,
    DropTable,
    IdFresh,
    NameFree,
    RenameTable,
    Requirement,
    RowsFit,
    SourceExists,
    SourceUnused,
    TableExists,
)
from headwater.catalog.relation import SourceDef, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.catalog.tables import COUNTER, SOURCE, TABLE
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema

_DEPENDENT_OBJECTS = "2BP01"
_COUNTER = "relation"

_SCHEMAS: TypeAdapter[Schema] = TypeAdapter(Schema)


class Database(Protocol):
    """Where the catalog lies: the ledger, by shape."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Write: commit when the body ends, roll back when it raises."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Read as of one moment."""
        ...


class Catalog:
    """Relations, read whole and changed inside the ledger's commit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def snapshot(self) -> CatalogSnapshot:
        """Everything as of the last commit."""
        with self._database.reading() as connection:
            return _read(connection)

    def next_id(self) -> int:
        """An id for a new source or table; never given twice, also if it is never used.

        Replay: repeatable; each call uses up one id.
        """
        with self._database.transaction() as connection:
            row = COUNTER.c.name == _COUNTER
            connection.execute(update(COUNTER).where(row).values(value=COUNTER.c.value + 1))
            return int(connection.execute(select(COUNTER.c.value).where(row)).scalar_one())

    def writer(
        self, changes: Sequence[CatalogChange], epoch: Epoch
    ) -> Callable[[Connection], None]:
        """The callback that checks and makes these changes as of `epoch`.

        Raises `RelationError` or `SchemaError` when a requirement does not hold.
        Replay: runs inside the ledger's commit, which happens once; run again after a commit
        that did not happen, it finds the catalog as before.
        """

        def write(connection: Connection) -> None:
            for change in changes:
                now = _read(connection)
                for requirement in change.requires:
                    _check(connection, now, requirement)
                _apply(connection, now, change, epoch)

        return write

    def purge(self, table: TableId) -> None:
        """Forget a dropped table, because its files are gone.

        Replay: repeatable; a table that is already forgotten is not missed.
        """
        self._purge(TABLE, table)

    def purge_source(self, source: int) -> None:
        """Forget a dropped source by its id, because nothing of ours is left upstream.

        Replay: repeatable; a source that is already forgotten is not missed.
        """
        self._purge(SOURCE, source)

    def _purge(self, relation: Table, id_: int) -> None:
        with self._database.transaction() as connection:
            row = connection.execute(
                select(relation.c.name, relation.c.dropped).where(relation.c.id == id_)
            ).one_or_none()
            if row is not None and row.dropped is None:
                raise BrokenInvariant(f'"{row.name}" cannot be purged, because it still exists')
            connection.execute(delete(relation).where(relation.c.id == id_))


def _read(connection: Connection) -> CatalogSnapshot:
    sources = [_source(row) for row in connection.execute(select(SOURCE).order_by(SOURCE.c.id))]
    names = {source.id: source.name for source in sources}
    tables = [_table(row, names) for row in connection.execute(select(TABLE).order_by(TABLE.c.id))]
    return CatalogSnapshot(
        sources=tuple(source for source in sources if source.dropped is None),
        tables=tuple(table for table in tables if table.dropped is None),
        dropped_sources=tuple(source for source in sources if source.dropped is not None),
        dropped_tables=tuple(table for table in tables if table.dropped is not None),
    )


def _source(row: Row[Any]) -> SourceDef:
    try:
        options = json.loads(row.options)
    except ValueError as error:
        raise DamagedState(f'the options of source "{row.name}" are damaged') from error
    return SourceDef(
        id=row.id,
        name=SourceName(row.name),
        kind=row.kind,
        options=options,
        defined_at=row.defined_at,
        created=Epoch(row.created),
        dropped=None if row.dropped is None else Epoch(row.dropped),
    )


def _table(row: Row[Any], sources: dict[int, SourceName]) -> TableDef:
    try:
        schema = _SCHEMAS.validate_json(row.columns)
    except ValidationError as error:
        raise DamagedState(f'the schema of table "{row.name}" is damaged') from error
    return TableDef(
        id=TableId(row.id),
        name=row.name,
        schema=schema,
        folder=row.folder,
        source=sources.get(row.source_id),
        upstream=row.upstream,
        append_only=row.append_only,
        defined_at=row.defined_at,
        created=Epoch(row.created),
        dropped=None if row.dropped is None else Epoch(row.dropped),
    )


def _check(connection: Connection, now: CatalogSnapshot, requirement: Requirement) -> None:
    match requirement:
        case IdFresh(id=id_):
            given = connection.execute(
                select(COUNTER.c.value).where(COUNTER.c.name == _COUNTER)
            ).scalar_one()
            used: set[int] = {source.id for source in (*now.sources, *now.dropped_sources)}
            used |= {table.id for table in (*now.tables, *now.dropped_tables)}
            if id_ > given or id_ in used:
                raise BrokenInvariant(f"id {id_} was not given for a new relation")
        case NameFree(name=name, sqlstate=sqlstate):
            for what, relations in (("table", now.tables), ("source", now.sources)):
                if any(relation.name == name for relation in relations):
                    raise relation_error(
                        f'{what} "{name}" already exists',
                        sqlstate,
                        hint="Choose another name, or drop the other one first.",
                    )
        case SourceExists(name=name):
            now.source(name)
        case SourceUnused(name=name):
            if readers := now.tables_of(name):
                raise relation_error(
                    f'source "{name}" is in use',
                    _DEPENDENT_OBJECTS,
                    detail=f"Tables read from it: {', '.join(table.name for table in readers)}.",
                    hint="Drop them first, or use DROP SOURCE ... CASCADE.",
                )
        case TableExists(id=id_):
            if now.table_by_id(id_).dropped is not None:
                raise relation_error(f'table "#{id_}" does not exist', "42P01")
        case RowsFit(id=id_, schema=schema):
            now.table_by_id(id_).schema.evolve(schema)
        case _ as never:
            assert_never(never)


def _apply(
    connection: Connection, now: CatalogSnapshot, change: CatalogChange, epoch: Epoch
) -> None:
    match change:
        case CreateSource(source=source):
            connection.execute(
                insert(SOURCE).values(
                    id=source.id,
                    name=source.name,
                    kind=source.kind,
                    options=json.dumps(dict(source.options)),
                    defined_at=source.defined_at,
                    created=epoch,
                )
            )
        case CreateTable(table=table):
            connection.execute(
                insert(TABLE).values(
                    id=table.id,
                    name=table.name,
                    columns=_SCHEMAS.dump_json(table.schema).decode(),
                    source_id=None if table.source is None else now.source(table.source).id,
                    upstream=table.upstream,
                    folder=table.folder,
                    append_only=table.append_only,
                    defined_at=table.defined_at,
                    created=epoch,
                )
            )
        case AlterTable(table=id_, schema=schema):
            _set(connection, TABLE, id_, columns=_SCHEMAS.dump_json(schema).decode())
        case RenameTable(table=id_, name=name):
            _set(connection, TABLE, id_, name=name)
        case DropTable(table=id_):
            _set(connection, TABLE, id_, dropped=epoch)
        case DropSource(source=name):
            _set(connection, SOURCE, now.source(name).id, dropped=epoch)
        case _ as never:
            assert_never(never)


def _set(connection: Connection, relation: Table, id_: int, **values: object) -> None:
    connection.execute(update(relation).where(relation.c.id == id_).values(**values))
