"""Whether a change to the catalog may be made, asked inside the transaction that makes it."""

from typing import assert_never

from sqlalchemy import Connection, select

from headwater.catalog.change import (
    IdFresh,
    NameFree,
    ObjectExists,
    ReadsThere,
    Requirement,
    RowsFit,
    SchemaExists,
    SchemaFree,
    SourceExists,
    SourceUnused,
    TableExists,
    Unread,
)
from headwater.catalog.relation import PUBLIC, ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import (
    UNDEFINED_OBJECT,
    UNDEFINED_TABLE,
    CatalogSnapshot,
    is_replacement,
    missing,
    relation_error,
)
from headwater.catalog.tables import COUNTER
from headwater.errors import BrokenInvariant

COUNTER_NAME = "relation"
READ_COUNTER = select(COUNTER.c.value).where(COUNTER.c.name == COUNTER_NAME)

_DEPENDENT_OBJECTS = "2BP01"
_DUPLICATE_SCHEMA = "42P06"
_UNDEFINED_COLUMN = "42703"
_UNDEFINED_SCHEMA = "3F000"


def check(  # noqa: PLR0912  one arm per requirement
    connection: Connection, now: CatalogSnapshot, requirement: Requirement
) -> None:
    """Raise unless the requirement holds."""
    match requirement:
        case IdFresh(id=id_):
            _check_id(connection, now, id_)
        case NameFree():
            _check_name(now, requirement)
        case SchemaFree(name=name, but=but):
            taken = any(o.name == name and o.id != but for o in _schemas(now)) or name == PUBLIC
            if taken:
                raise relation_error(f'schema "{name}" already exists', _DUPLICATE_SCHEMA)
        case SchemaExists(name=name):
            if name not in now.schemas:
                raise missing("schema", name, now.schemas, _UNDEFINED_SCHEMA)
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
                raise relation_error(f'table "#{id_}" does not exist', UNDEFINED_TABLE)
        case ObjectExists(id=id_):
            if not any(each.id == id_ for each in now.objects):
                raise relation_error(f'object "#{id_}" does not exist', UNDEFINED_OBJECT)
        case Unread(id=id_):
            _check_unread(now, id_)
        case RowsFit(id=id_, schema=schema):
            now.table_by_id(id_).schema.evolve(schema)
        case ReadsThere():
            _check_reads(now, requirement)
        case _ as never:
            assert_never(never)


def _check_id(connection: Connection, now: CatalogSnapshot, id_: int) -> None:
    given = connection.execute(READ_COUNTER).scalar_one()
    used: set[int] = {source.id for source in (*now.sources, *now.dropped_sources)}
    used |= {table.id for table in (*now.tables, *now.dropped_tables)}
    used |= {each.id for each in now.objects}
    if id_ > given or id_ in used:
        raise BrokenInvariant(f"id {id_} was not given for a new relation")


def _check_name(now: CatalogSnapshot, wanted: NameFree) -> None:
    taken: list[tuple[str, int]] = []
    for each in now.everything:
        if (each.namespace, each.name) == (wanted.namespace, wanted.name):
            # What replaces another has its name only once it takes its place.
            if each.kind is not ObjectKind.SCHEMA and not is_replacement(each):
                taken.append((each.kind.value, each.id))
    if wanted.namespace == PUBLIC:
        taken += [("source", each.id) for each in now.sources if each.name == wanted.name]
    for kind, id_ in taken:
        if id_ != wanted.but:
            raise relation_error(
                f'{kind} "{wanted.name}" already exists',
                wanted.sqlstate,
                hint="Choose another name, or drop the other one first.",
            )


def _check_unread(now: CatalogSnapshot, id_: int) -> None:
    target = now.by_id(id_)
    names = [f"{_kind(each)} {each.name}" for each in now.readers(id_)]
    if isinstance(target, ObjectDef) and target.kind is ObjectKind.SCHEMA:
        names = [
            f"{_kind(each)} {each.name}"
            for each in now.everything
            if each.namespace == target.name and _kind(each) != ObjectKind.SCHEMA
        ]
    if names and target is not None:
        raise relation_error(
            f'cannot drop {_kind(target)} "{target.name}" because other objects depend on it',
            _DEPENDENT_OBJECTS,
            detail=f"It is needed by {', '.join(names)}.",
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )


def _check_reads(now: CatalogSnapshot, wanted: ReadsThere) -> None:
    """Others may have dropped or altered a relation after the statement had looked at it."""
    for name, read in (wanted.query.reads if wanted.query is not None else {}).items():
        found = now.by_id(read.relation)
        if found is None:
            raise relation_error(f'relation "{name}" does not exist', UNDEFINED_TABLE)
        known = (
            found.schema.names if isinstance(found, TableDef) else [c.name for c in found.columns]
        )
        if lacking := [column for column in read.columns if column not in known]:
            raise relation_error(
                f'relation "{name}" has no column "{lacking[0]}" any more',
                _UNDEFINED_COLUMN,
                hint="It was altered while the statement ran: send it again.",
            )
    if gone := sorted(id_ for id_ in wanted.relations if now.by_id(id_) is None):
        raise relation_error(f'relation "#{gone[0]}" does not exist', UNDEFINED_TABLE)


def _kind(each: TableDef | ObjectDef) -> str:
    return each.kind.value


def _schemas(now: CatalogSnapshot) -> tuple[ObjectDef, ...]:
    return tuple(each for each in now.objects if each.kind is ObjectKind.SCHEMA)
