"""Whether our tables are still there, and still published.

The log says nothing when a table is dropped, and nothing more when somebody takes a table out of
the publication: its changes would be lost in silence.
"""

from typing import Any

from headwater.cdc.postgres.relations import KnownRelations
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
