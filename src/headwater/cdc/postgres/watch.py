"""Whether our tables are still there, still published, and still have the same columns.

The log says nothing when a table is dropped, and nothing more when somebody takes a table out of
the publication: its changes would be lost in silence. It tells of new columns only together with
the next row, and a default reaches rows that nobody writes again. So the catalog is asked.
"""

from dataclasses import dataclass, replace
from typing import Any

from headwater.cdc.external_table import ExternalSchema
from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres.relations import KnownRelations
from headwater.cdc.postgres.schema import read_table
from headwater.cdc.postgres.types import TypeCatalog
from headwater.errors import UserError

_TABLES = """
    SELECT w.schema, w.name, c.oid::bigint,
           EXISTS (SELECT FROM pg_publication_tables p
                   WHERE p.pubname = %s AND p.schemaname = w.schema AND p.tablename = w.name)
    FROM unnest(%s::text[], %s::text[]) w(schema, name)
    LEFT JOIN pg_namespace n ON n.nspname = w.schema
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
         AND c.relkind IN ('r', 'p')"""
_NAMED = """
    SELECT format('%%I.%%I', n.nspname, c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %s::bigint::oid"""

_SHAPES = """
    SELECT a.attrelid::bigint, md5(string_agg(
        concat_ws(',', a.attnum, a.attname, a.atttypid, a.atttypmod, k.indkey), ';'
        ORDER BY a.attnum))
    FROM pg_attribute a
    LEFT JOIN pg_index k ON k.indrelid = a.attrelid AND k.indisprimary
    WHERE a.attrelid = ANY(%s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY 1"""
_PAGE = 8192


@dataclass(frozen=True, slots=True)
class Altered:
    """A table's columns as they are now; what the log has before `at` is older than that."""

    schema: ExternalSchema
    at: PostgresOffset


class Shapes:
    """Notices columns that changed without a row that would tell of it."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def altered(self, connection: Any, known: KnownRelations) -> dict[str, Altered]:
        """The tables that are not what is known of them."""
        tables = {oid: name for name in known.names.values() if (oid := known.oid_of(name))}
        rows = connection.execute(_SHAPES, [list(tables)]).fetchall()
        found = {}
        for oid, shape in rows:
            table = tables[oid]
            if self._seen.get(table) == shape:
                continue
            self._seen[table] = shape
            types = TypeCatalog(unknown_as_text=True)
            schema = read_table(connection, types, table, default_schema=known.schema).external
            before = known.latest(table)
            if _shape(schema) != _shape(before) or _made_anew(before, schema):
                found[table] = Altered(_marked(before, schema), _written(connection))
        return found


def same_shape(before: ExternalSchema, now: ExternalSchema) -> bool:
    """Whether rows of both look alike."""
    return _shape(before) == _shape(now)


def same_columns(before: ExternalSchema, now: ExternalSchema) -> bool:
    """Whether nothing was altered; a column whose number was unclear may have been."""
    numbers = [[each.number for each in schema.columns] for schema in (before, now)]
    return same_shape(before, now) and numbers[0] == numbers[1]


def _made_anew(before: ExternalSchema, now: ExternalSchema) -> set[str]:
    """Columns that were dropped and made again under their names: no row tells of that."""
    numbers = {each.column.name: each.number for each in before.columns}
    return {
        each.column.name
        for each in now.columns
        if numbers.get(each.column.name) not in (None, each.number)
    }


def _marked(before: ExternalSchema, now: ExternalSchema) -> ExternalSchema:
    """Rows written since a column was made anew have its values, here as the old column's."""
    anew = _made_anew(before, now)
    columns = (replace(c, filled=c.filled or c.column.name in anew) for c in now.columns)
    return replace(now, columns=tuple(columns))


def _shape(schema: ExternalSchema) -> tuple[object, ...]:
    columns = [(each.column.name, each.column.type) for each in schema.columns]
    return (*columns, schema.key)


def _written(connection: Any) -> PostgresOffset:
    """After everything that is visible now, also what is not flushed yet."""
    lsn = PostgresOffset.of(
        connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
    ).lsn
    # The header of a page counts as written only with the first record behind it.
    header = lsn % _PAGE
    return PostgresOffset(lsn - header if header in (24, 40) else lsn)


def missing_tables(connection: Any, publication: str, known: KnownRelations) -> list[str]:
    """Tables that were dropped; raises for those that are not published or have a new name."""
    names = list(known.names)
    rows = connection.execute(
        _TABLES, [publication, [name[0] for name in names], [name[1] for name in names]]
    ).fetchall()
    gone = []
    for schema, name, oid, published in rows:
        table = known.names[schema, name]
        if oid is None:
            _check_renamed(connection, known, table)
            gone.append(table)
            continue
        known.remember(oid, table)
        if not published:
            raise UserError(
                f'{table} is no longer in publication "{publication}"',
                detail="Changes made to it meanwhile are not in the log.",
                hint=f'ALTER PUBLICATION "{publication}" ADD TABLE {table}; then create the table '
                "here again.",
            )
    return gone


def _check_renamed(connection: Any, known: KnownRelations, table: str) -> None:
    oid = known.oid_of(table)
    found = None if oid is None else connection.execute(_NAMED, [oid]).fetchone()
    if found is not None:
        raise UserError(
            f"{table} has another name now: {found[0]}",
            hint=f"Rename it back, or drop the table here and create it from {found[0]}.",
        )
