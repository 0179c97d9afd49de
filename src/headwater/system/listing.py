"""What exists, in the shape that system tables show it.

A primary key has an index and a constraint in PostgreSQL, and clients look for both. Hidden
columns and the stores of materialized views are not shown here; `rw_internal_tables` has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from headwater.catalog.relation import (
    ColumnDetail,
    ObjectDef,
    ObjectKind,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.epoch import Epoch
from headwater.model.schema import Column
from headwater.model.spelling import sql_quoted
from headwater.system import numbers
from headwater.system.pg_types import PgType, dimensions, modifier, pg_type

TABLE, VIEW, MATERIALIZED_VIEW, INDEX = "r", "v", "m", "i"

RESERVED_WORDS = frozenset(
    "all analyse analyze and any array as asc asymmetric both case cast check collate column "
    "constraint create current_catalog current_date current_role current_time current_timestamp "
    "current_user default deferrable desc distinct do else end except false fetch for foreign from "
    "grant group having in initially intersect into lateral leading limit localtime localtimestamp "
    "not null offset on only or order placing primary references returning select session_user "
    "some symmetric system_user table then to trailing true union unique user using variadic when "
    "where window with authorization binary collation concurrently cross current_schema freeze "
    "full ilike inner is isnull join left like natural notnull outer overlaps right similar "
    "tablesample verbose between bigint bit boolean char character coalesce dec decimal exists "
    "extract float greatest grouping inout int integer interval least national nchar none "
    "normalize nullif numeric out overlay position precision real row setof smallint substring "
    "time timestamp treat trim values varchar xmlattributes".split()
)


def quoted(name: str) -> str:
    """A name as it must be written in SQL."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower()
    if plain and not name[:1].isdigit() and name not in RESERVED_WORDS:
        return name
    return sql_quoted(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedColumn:
    """A visible column; its number counts from 1."""

    name: str
    number: int
    column: Column
    nullable: bool
    detail: ColumnDetail
    type: PgType
    modifier: int

    @property
    def dimensions(self) -> int:
        """Of an array."""
        return dimensions(self.column.type)

    @property
    def expression(self) -> str | None:
        """The default, or what the column is computed from."""
        return self.detail.generated or self.detail.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A relation that users see."""

    oid: int
    id: int
    namespace: str
    name: str
    kind: str
    owner: str
    columns: tuple[ListedColumn, ...]
    key: tuple[int, ...] = ()
    """The numbers of the primary key's columns."""
    comment: str | None = None
    definition: str = ""
    query: str | None = None
    reads: frozenset[int] = frozenset()
    created: Epoch
    append_only: bool = False

    @property
    def full_name(self) -> str:
        """Schema and name as they are written in SQL."""
        return f"{quoted(self.namespace)}.{quoted(self.name)}"

    @property
    def key_name(self) -> str:
        """The name of the primary key and its index."""
        return f"{self.name}_pkey"

    def number(self, column: str) -> int:
        """The number of a column by name; 0 for one that is not there."""
        return next((each.number for each in self.columns if each.name == column), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedIndex:
    """An index: one that a user made, or the one of a primary key."""

    oid: int
    id: int
    namespace: str
    name: str
    owner: str
    table: Listed
    keys: tuple[int, ...]
    includes: tuple[int, ...] = ()
    unique: bool = False
    primary: bool = False
    comment: str | None = None
    definition: str = ""
    created: Epoch

    @property
    def columns(self) -> tuple[ListedColumn, ...]:
        """The table's columns that it has, keys first."""
        return tuple(self.table.columns[n - 1] for n in (*self.keys, *self.includes) if n)

    def ddl(self, on: str) -> str:
        """The statement that creates it on a table of that name, as PostgreSQL writes it."""
        unique = "UNIQUE " if self.unique else ""
        text = f"CREATE {unique}INDEX {quoted(self.name)} ON {on} USING btree {self.list_of_keys}"
        return text + self._include

    @property
    def list_of_keys(self) -> str:
        """The key columns between parentheses."""
        names = (quoted(self.table.columns[number - 1].name) for number in self.keys if number)
        return f"({', '.join(names)})"

    @property
    def _include(self) -> str:
        names = [quoted(self.table.columns[number - 1].name) for number in self.includes if number]
        return f" INCLUDE ({', '.join(names)})" if names else ""


@dataclass
class Listing:
    """All that a snapshot of the catalog holds, each part made when it is first asked for."""

    snapshot: CatalogSnapshot
    _schemas: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._schemas = dict(numbers.SYSTEM_SCHEMAS)
        for each in self.snapshot.objects:
            if each.kind is ObjectKind.SCHEMA:
                self._schemas[each.name] = numbers.relation_oid(each.id)

    @property
    def schemas(self) -> dict[str, int]:
        """The number of each schema by its name."""
        return self._schemas

    @cached_property
    def relations(self) -> tuple[Listed, ...]:
        """Tables, views and materialized views."""
        tables = (_table(each) for each in self.snapshot.shown_tables)
        views = (_view(each) for each in self.snapshot.objects if each.kind is ObjectKind.VIEW)
        return (*tables, *views)

    @cached_property
    def indexes(self) -> tuple[ListedIndex, ...]:
        """The indexes of primary keys, and those that users made."""
        by_id = {each.id: each for each in self.relations}
        return (*self._key_indexes(), *self._made_indexes(by_id))

    @property
    def all(self) -> list[Listed | ListedIndex]:
        """Relations and indexes."""
        return [*self.relations, *self.indexes]

    @cached_property
    def by_oid(self) -> dict[int, Listed | ListedIndex]:
        """Relations and indexes by their numbers."""
        return {each.oid: each for each in self.all}

    @cached_property
    def by_name(self) -> dict[tuple[str, str], int]:
        """The numbers of relations and indexes by schema and name."""
        return {(each.namespace, each.name): each.oid for each in self.all}

    @cached_property
    def by_key(self) -> dict[int, Listed]:
        """Relations by the number of their primary key's constraint."""
        return {numbers.key_constraint_oid(each.oid): each for each in self.relations if each.key}

    def _key_indexes(self) -> Iterator[ListedIndex]:
        for each in self.relations:
            if each.key:
                yield ListedIndex(
                    oid=numbers.key_index_oid(each.oid),
                    id=each.id,
                    namespace=each.namespace,
                    name=each.key_name,
                    owner=each.owner,
                    table=each,
                    keys=each.key,
                    unique=True,
                    primary=True,
                    created=each.created,
                )

    def _made_indexes(self, by_id: dict[int, Listed]) -> Iterator[ListedIndex]:
        for each in self.snapshot.objects:
            table = None if each.table is None else by_id.get(each.table)
            if each.kind is ObjectKind.INDEX and table is not None:
                yield ListedIndex(
                    oid=numbers.relation_oid(each.id),
                    id=each.id,
                    namespace=each.namespace,
                    name=each.name,
                    owner=each.owner,
                    table=table,
                    keys=tuple(table.number(name) for name in each.keys),
                    includes=tuple(table.number(name) for name in each.includes),
                    unique=each.unique,
                    comment=each.comment,
                    definition=each.definition,
                    created=each.created,
                )


_NO_DETAIL = ColumnDetail()


def _listed(number: int, column: Column, detail: ColumnDetail, in_key: bool) -> ListedColumn:
    return ListedColumn(
        name=column.name,
        number=number,
        column=column,
        nullable=column.nullable and not in_key,
        detail=detail,
        type=pg_type(column.type),
        modifier=modifier(column.type, detail.length),
    )


def _table(table: TableDef) -> Listed:
    visible = table.columns
    names = [column.name for column in visible]
    # A materialized view has a key too, but PostgreSQL's have no primary keys.
    shown = table.kind is TableKind.TABLE and all(name in names for name in table.schema.key)
    key = table.schema.key if shown else ()
    query = table.detail.query
    return Listed(
        oid=numbers.relation_oid(table.id),
        id=table.id,
        namespace=table.namespace,
        name=table.name,
        kind=TABLE if table.kind is TableKind.TABLE else MATERIALIZED_VIEW,
        owner=table.detail.owner,
        columns=tuple(
            _listed(n, c, table.detail.columns.get(c.name, _NO_DETAIL), c.name in key)
            for n, c in enumerate(visible, 1)
        ),
        key=tuple(names.index(name) + 1 for name in key),
        comment=table.detail.comment,
        definition=table.detail.definition,
        query=None if query is None else query.text,
        reads=table.reads,
        created=table.created,
        append_only=table.append_only,
    )


def _view(view: ObjectDef) -> Listed:
    return Listed(
        oid=numbers.relation_oid(view.id),
        id=view.id,
        namespace=view.namespace,
        name=view.name,
        kind=VIEW,
        owner=view.owner,
        columns=tuple(_listed(n, c, _NO_DETAIL, False) for n, c in enumerate(view.columns, 1)),
        comment=view.comment,
        definition=view.definition,
        query=None if view.query is None else view.query.text,
        reads=view.reads,
        created=view.created,
    )
