"""What a PostgreSQL table looks like: its columns, key, replica identity and size.

Read from pg_catalog, by oid, so that any name works. The key is the primary key, or
the unique index if the replica identity names one: the log has the old values of those columns
and of no others. A table with neither is a multiset.
Generated columns are left out: before version 18 the log does not carry them at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.cdc.postgres.types import TypeCatalog, Wire
from headwater.errors import RelationError, SchemaError
from headwater.model.schema import Column
from headwater.model.spelling import sql_quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class PgColumn:
    """A column and how it travels."""

    name: str
    wire: Wire
    oid: int
    typmod: int
    upstream_type: str
    nullable: bool = True
    default: str | None = None
    number: int | None = None
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PgTable:
    """A table as the catalog describes it at one moment."""

    oid: int
    schema_name: str
    name: str
    partitioned: bool
    replica_identity: str
    """d default, n nothing, f full, i index."""
    columns: tuple[PgColumn, ...]
    key: tuple[str, ...]
    generated: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As users write it: `schema.table`, quoted where it must be."""
        return f"{_bare(self.schema_name)}.{_bare(self.name)}"

    @property
    def sql(self) -> str:
        """As it stands in SQL, always quoted."""
        return f"{sql_quoted(self.schema_name)}.{sql_quoted(self.name)}"

    @property
    def sql_from(self) -> str:
        """In a FROM clause: rows of inheriting tables are not ours, rows of partitions are."""
        return self.sql if self.partitioned else f"ONLY {self.sql}"

    def column(self, name: str) -> PgColumn:
        """The column of a name."""
        return next(each for each in self.columns if each.name == name)

    @property
    def external(self) -> ExternalSchema:
        """The same in the words of the contract."""
        return ExternalSchema(
            columns=tuple(
                ExternalColumn(
                    column=Column(each.name, each.wire.type, each.nullable),
                    upstream_type=each.upstream_type,
                    default=each.default,
                    number=each.number,
                    filled=each.filled,
                )
                for each in self.columns
            ),
            key=self.key,
        )

    def only(self, names: Sequence[str]) -> "PgTable":
        """With some of its columns, which must hold the key."""
        known = {each.name: each for each in self.columns}
        for name in names:
            if name in self.generated:
                raise SchemaError(
                    f'column "{name}" of {self.full_name} is generated, and the log lacks it',
                    hint="Leave it out, and compute it in a view.",
                )
            if name not in known:
                raise SchemaError(
                    f'{self.full_name} has no column "{name}"',
                    detail=f"Columns: {', '.join(known)}.",
                )
        missing = [name for name in self.key if name not in names]
        if missing:
            raise SchemaError(
                f'key column "{missing[0]}" of {self.full_name} is not among the columns',
                detail=f"Its key: {', '.join(self.key)}.",
                hint="Add the key to the columns.",
            )
        return PgTable(
            oid=self.oid,
            schema_name=self.schema_name,
            name=self.name,
            partitioned=self.partitioned,
            replica_identity=self.replica_identity,
            columns=tuple(known[name] for name in names),
            key=self.key,
            generated=self.generated,
        )


def split_name(name: str, default_schema: str) -> tuple[str, str]:
    """Schema and table of a name as users write it: parts with capitals or dots are quoted."""
    parts: list[str] = []
    at = 0
    while at <= len(name):
        if name[at : at + 1] == '"':
            end = at + 1
            while end < len(name) and (name[end] != '"' or name[end : end + 2] == '""'):
                end += 2 if name[end] == '"' else 1
            if end >= len(name):
                raise RelationError(f"a quoted name does not end: {name}")
            parts.append(name[at + 1 : end].replace('""', '"'))
            at = end + 1
        else:
            end = name.find(".", at)
            end = len(name) if end < 0 else end
            parts.append(name[at:end])
            at = end
        if at < len(name) and name[at] != ".":
            raise RelationError(f"a table's name is schema.table, and not {name}")
        at += 1
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise RelationError(f"a table's name is schema.table, and not {name!r}")
    return (parts[0], parts[1]) if len(parts) == 2 else (default_schema, parts[0])


_RELATION = """
    SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relreplident::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s"""
_COLUMNS = """
    SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod),
           NOT a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attgenerated::text <> '',
           a.attnum::int,
           a.attnotnull OR a.atthasmissing OR a.attidentity::text <> '' OR d.adbin IS NOT NULL
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum"""
_KEY = """
    SELECT a.attname::text
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s::bigint::oid AND k.place <= i.indnkeyatts
      AND CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END
    ORDER BY k.place"""
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "c": "a type",
    "t": "a TOAST table",
    "I": "an index",
}


def read_table(
    connection: Any,
    types: TypeCatalog,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    default_schema: str = "public",
) -> PgTable:
    """What the catalog says about a table now, or about some of its columns.

    Columns that are not wanted may have any type, also one that we do not know.
    """
    schema_name, table_name = split_name(name, default_schema)
    found = connection.execute(_RELATION, [schema_name, table_name]).fetchone()
    if found is None:
        raise RelationError(
            f"there is no table {_bare(schema_name)}.{_bare(table_name)}",
            hint="Check the name; names with capitals are written in double quotes.",
        )
    oid, kind, persistence, identity = found
    shown = f"{_bare(schema_name)}.{_bare(table_name)}"
    if kind not in "rp":
        raise SchemaError(
            f"{shown} is {_KINDS.get(kind, 'not a table')}, which has no change log",
            hint="Name a table.",
        )
    if persistence != "p":
        word = "temporary" if persistence == "t" else "unlogged"
        raise SchemaError(
            f"{shown} is {word}, so its changes are not in the log",
            hint=f"ALTER TABLE {shown} SET LOGGED;" if word == "unlogged" else "",
        )
    rows = connection.execute(_COLUMNS, [oid]).fetchall()
    types.load(connection, [row[1] for row in rows])
    table = PgTable(
        oid=oid,
        schema_name=schema_name,
        name=table_name,
        partitioned=kind == "p",
        replica_identity=identity,
        columns=tuple(
            _column(types, shown, row)
            for row in rows
            if not row[6] and (columns is None or row[0] in columns)
        ),
        key=tuple(row[0] for row in connection.execute(_KEY, [oid, identity]).fetchall()),
        generated=tuple(row[0] for row in rows if row[6]),
    )
    return table if columns is None else table.only(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnToday:
    """What the catalog knows of a column beyond its name and type."""

    number: int | None
    nullable: bool
    default: str | None
    filled: bool


def numbers_ever(connection: Any, oid: int) -> list[int]:
    """The numbers of all columns that a table has had, those that were dropped included."""
    query = "SELECT attnum::int FROM pg_attribute WHERE attrelid = %s::bigint::oid AND attnum > 0"
    return [row[0] for row in connection.execute(query, [oid]).fetchall()]


def columns_today(connection: Any, oid: int) -> dict[str, ColumnToday]:
    """The columns of a table as they are now, by name."""
    rows = connection.execute(_COLUMNS, [oid]).fetchall()
    return {
        row[0]: ColumnToday(number=row[7], nullable=row[4], default=row[5], filled=row[8])
        for row in rows
    }


def _column(types: TypeCatalog, table: str, row: Sequence[Any]) -> PgColumn:
    name, oid, typmod, spelled, nullable, default, _, number, filled = row
    return PgColumn(
        name=name,
        wire=types.wire(oid, typmod, f'column "{name}" of {table}'),
        oid=oid,
        typmod=typmod,
        upstream_type=spelled,
        nullable=nullable,
        default=default,
        number=number,
        filled=filled,
    )


def _bare(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower()
    return name if plain and not name[0].isdigit() else sql_quoted(name)
