"""The catalog: relations with ids that outlive their names.

It lies in the ledger's database and changes only inside the ledger's commit: `writer` makes the
callback that `Ledger.append(also=...)` runs. So a relation appears with the very epoch that
fills it, and a failed requirement leaves no trace of that epoch.

A dropped relation is remembered until `purge`: a crash after the drop must not leave behind
files in storage or a replication slot at the source that nobody knows of any more.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, assert_never

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Row, Table, bindparam, delete, insert, select, update

from headwater.catalog.change import (
    AlterObject,
    AlterSource,
    AlterTable,
    CatalogChange,
    CreateObject,
    CreateSource,
    CreateTable,
    DropObject,
    DropSource,
    DropTable,
    ShowTable,
)
from headwater.catalog.check import COUNTER_NAME, READ_COUNTER, check
from headwater.catalog.relation import Detail, ObjectDef, SourceDef, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.catalog.tables import COUNTER, OBJECT, SETTING, SOURCE, TABLE
from headwater.errors import BrokenInvariant, DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema

_SCHEMAS: TypeAdapter[Schema] = TypeAdapter(Schema)
_DETAILS: TypeAdapter[Detail] = TypeAdapter(Detail)
_OBJECTS: TypeAdapter[ObjectDef] = TypeAdapter(ObjectDef)

_KNOWN_SCHEMAS = 1024
"""Tables are read far more often than they are altered."""

_ALL_SOURCES = select(SOURCE).order_by(SOURCE.c.id)
_ALL_TABLES = select(TABLE).order_by(TABLE.c.id)
_ALL_OBJECTS = select(OBJECT).order_by(OBJECT.c.id)
_ALL_SETTINGS = select(SETTING)
_RAISE_COUNTER = (
    update(COUNTER).where(COUNTER.c.name == COUNTER_NAME).values(value=COUNTER.c.value + 1)
)
_FORGET_SETTING = delete(SETTING).where(SETTING.c.name == bindparam("gone"))
_KEEP_SETTING = insert(SETTING)


class Database(Protocol):
    """Where the catalog lies: the ledger, by shape."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Write: commit when the body ends, roll back when it raises."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Read as of one moment."""
        ...


class _TriedOut(Exception):
    """Rolls back what was only tried."""


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
            connection.execute(_RAISE_COUNTER)
            return int(connection.execute(READ_COUNTER).scalar_one())

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
                    check(connection, now, requirement)
                _apply(connection, now, change, epoch)

        return write

    def check(self, changes: Sequence[CatalogChange]) -> None:
        """Raise what `writer` would, without changing anything.

        Changes that build on each other are tried out in a transaction that is rolled back.
        """
        with contextlib.suppress(_TriedOut), self._database.transaction() as connection:
            self.writer(changes, NO_EPOCH)(connection)
            raise _TriedOut

    def set_settings(self, values: Mapping[str, str | None]) -> None:
        """Keep system settings for every later start; None forgets one.

        Replay: repeatable; the last value stays.
        """
        with self._database.transaction() as connection:
            for name, value in values.items():
                connection.execute(_FORGET_SETTING, {"gone": name})
                if value is not None:
                    connection.execute(_KEEP_SETTING, {"name": name, "value": value})

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
    sources = [_source(row) for row in connection.execute(_ALL_SOURCES)]
    names = {source.id: source.name for source in sources}
    tables = [_table(row, names) for row in connection.execute(_ALL_TABLES)]
    objects = [_object(row) for row in connection.execute(_ALL_OBJECTS)]
    return CatalogSnapshot(
        sources=tuple(source for source in sources if source.dropped is None),
        tables=tuple(table for table in tables if table.dropped is None),
        objects=tuple(objects),
        settings={row.name: row.value for row in connection.execute(_ALL_SETTINGS)},
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


@functools.lru_cache(maxsize=_KNOWN_SCHEMAS)
def _schema(columns: str) -> Schema:
    return _SCHEMAS.validate_json(columns)


def _table(row: Row[Any], sources: dict[int, SourceName]) -> TableDef:
    try:
        schema = _schema(row.columns)
        detail = _DETAILS.validate_json(row.detail)
        kind = TableKind(row.kind)
    except (ValidationError, ValueError) as error:
        raise DamagedState(f'the schema of table "{row.name}" is damaged') from error
    return TableDef(
        id=TableId(row.id),
        name=row.name,
        schema=schema,
        folder=row.folder,
        namespace=row.namespace,
        kind=kind,
        source=sources.get(row.source_id),
        upstream=row.upstream,
        append_only=row.append_only,
        detail=detail,
        defined_at=row.defined_at,
        created=Epoch(row.created),
        dropped=None if row.dropped is None else Epoch(row.dropped),
    )


def _object(row: Row[Any]) -> ObjectDef:
    try:
        stored = _OBJECTS.validate_json(row.body)
    except ValidationError as error:
        raise DamagedState(f'the definition of {row.kind} "{row.name}" is damaged') from error
    return dataclasses.replace(stored, created=Epoch(row.created))


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
        case AlterSource(source=source):
            _set(connection, SOURCE, source.id, options=json.dumps(dict(source.options)))
        case CreateTable(table=table):
            connection.execute(
                insert(TABLE).values(
                    id=table.id,
                    source_id=None if table.source is None else now.source(table.source).id,
                    upstream=table.upstream,
                    folder=table.folder,
                    kind=table.kind,
                    append_only=table.append_only,
                    defined_at=table.defined_at,
                    created=epoch,
                    **_alterable(table),
                )
            )
        case AlterTable(table=table):
            _set(connection, TABLE, table.id, **_alterable(table))
        case ShowTable(table=table):
            shown = _alterable(table)
            _set(connection, TABLE, table.id, kind=table.kind, created=epoch, **shown)
        case DropTable(table=id_):
            _set(connection, TABLE, id_, dropped=epoch)
        case DropSource(source=name):
            _set(connection, SOURCE, now.source(name).id, dropped=epoch)
        case CreateObject(object=object_):
            connection.execute(
                insert(OBJECT).values(
                    id=object_.id, kind=object_.kind, created=epoch, **_object_values(object_)
                )
            )
        case AlterObject(object=object_):
            _set(connection, OBJECT, object_.id, **_object_values(object_))
        case DropObject(object=id_):
            connection.execute(delete(OBJECT).where(OBJECT.c.id == id_))
        case _ as never:
            assert_never(never)


def _alterable(table: TableDef) -> dict[str, str]:
    return {
        "name": table.name,
        "namespace": table.namespace,
        "columns": _SCHEMAS.dump_json(table.schema).decode(),
        "detail": _DETAILS.dump_json(table.detail).decode(),
    }


def _object_values(object_: ObjectDef) -> dict[str, str]:
    return {
        "name": object_.name,
        "namespace": object_.namespace,
        "body": _OBJECTS.dump_json(object_).decode(),
    }


def _set(connection: Connection, relation: Table, id_: int, **values: object) -> None:
    connection.execute(update(relation).where(relation.c.id == id_).values(**values))
