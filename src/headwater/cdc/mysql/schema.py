"""The schema of a table, read from information_schema.

A column that is computed when it is read (VIRTUAL) is in a snapshot, but not in the row images
of every server's log, so it is left out unless it is asked for, and then refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.options import MySqlOptions, TimeMode, ZeroDates
from headwater.cdc.mysql.types import Family, MySqlColumn, family_and_type, listed_values
from headwater.errors import RelationError, SchemaError
from headwater.model.schema import Column
from headwater.model.types import JSONB

_DATES = frozenset({Family.DATE, Family.DATETIME, Family.TIMESTAMP})


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlSchema:
    """A table as it is upstream at one moment."""

    database: str
    table: str
    columns: tuple[MySqlColumn, ...]
    key: tuple[str, ...]
    rows: int
    """About how many, as the server's statistics have it."""
    row_bytes: int
    """About how long one is on disk."""

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.database}.{self.table}"

    def __getitem__(self, name: str) -> MySqlColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def key_columns(self) -> tuple[MySqlColumn, ...]:
        """The key's columns, in key order."""
        return tuple(self[name] for name in self.key)

    @property
    def external(self) -> ExternalSchema:
        """The same in the words of every database."""
        return ExternalSchema(
            columns=tuple(
                ExternalColumn(
                    column=Column(each.name, each.type, each.nullable),
                    upstream_type=each.spelled,
                    default=each.default,
                    # MariaDB says NULL where MySQL says nothing.
                    filled=not each.nullable
                    or each.generated
                    or each.default not in (None, "NULL"),
                )
                for each in self.columns
            ),
            key=self.key,
        )


def literal(text: str) -> str:
    """A text as an SQL literal that no character set or mode can misread."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def name_in_sql(name: str) -> str:
    """A name as MySQL writes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def read_schema(
    connection: MySqlConnection,
    options: MySqlOptions,
    name: str,
    columns: Sequence[str] | None = None,
) -> MySqlSchema:
    """The schema of a table, or of some of its columns; says what cannot be read and why."""
    database, table = options.split_name(name)
    where = f"TABLE_SCHEMA = {literal(database)} AND TABLE_NAME = {literal(table)}"
    facts = connection.row(
        "SELECT TABLE_TYPE AS type, ENGINE AS engine, TABLE_ROWS AS row_count, "
        f"AVG_ROW_LENGTH AS row_bytes FROM information_schema.TABLES WHERE {where}"
    )
    _check_table(f"{database}.{table}", facts)
    found = [
        _column(options, f"{database}.{table}", row)
        for row in _column_rows(connection, where)
        if (row["name"] in columns if columns is not None else not _computed(row))
    ]
    if connection.mariadb:
        found = _with_json(connection, database, table, found)
    _check_columns(f"{database}.{table}", found, columns)
    return MySqlSchema(
        database=database,
        table=table,
        columns=tuple(found),
        key=_key(connection, where, f"{database}.{table}", found),
        rows=int(facts["row_count"] or 0),
        row_bytes=max(1, int(facts["row_bytes"] or 1)),
    )


def _check_table(name: str, facts: dict[str, Any]) -> None:
    if not facts:
        raise RelationError(
            f'table "{name}" does not exist upstream, or the user may not see it',
            hint="Check the name, whose case may matter, and GRANT SELECT on it.",
        )
    if facts["type"] != "BASE TABLE":
        raise SchemaError(
            f'"{name}" is a {str(facts["type"]).lower()}, and only tables have a log of changes',
            hint="Read the tables that it is made of, and make a view of them here.",
        )
    if str(facts["engine"]).lower() != "innodb":
        raise SchemaError(
            f'table "{name}" is stored by {facts["engine"]}, which has no consistent snapshots',
            hint=f"ALTER TABLE {name} ENGINE = InnoDB;",
        )


def _column_rows(connection: MySqlConnection, where: str) -> list[dict[str, Any]]:
    names = ("name", "spelled", "nullable", "default", "extra", "collation", "charset")
    rows = connection.query(
        "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, COLLATION_NAME, "
        f"CHARACTER_SET_NAME FROM information_schema.COLUMNS WHERE {where} "
        "ORDER BY ORDINAL_POSITION"
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _computed(row: dict[str, Any]) -> bool:
    return "VIRTUAL" in str(row["extra"]).upper()


def _column(options: MySqlOptions, table: str, row: dict[str, Any]) -> MySqlColumn:
    if _computed(row):
        raise SchemaError(
            f'column "{row["name"]}" of table "{table}" is computed when it is read, '
            "and is not in the log",
            hint="Compute it here, or make it STORED upstream.",
        )
    name, spelled = row["name"], row["spelled"]
    family, type_, unsigned = family_and_type(table, name, spelled, options.time_mode)
    listed = family in (Family.ENUM, Family.SET)
    may_be_null = family in _DATES and options.zero_dates is ZeroDates.NULL
    return MySqlColumn(
        name=name,
        spelled=spelled,
        family=family,
        type=type_,
        nullable=row["nullable"] == "YES" or may_be_null,
        unsigned=unsigned,
        collation=row["collation"],
        charset=row["charset"],
        values=listed_values(spelled) if listed else (),
        default=row["default"],
        generated="GENERATED" in str(row["extra"]).upper().replace("DEFAULT_GENERATED", ""),
    )


def _with_json(
    connection: MySqlConnection, database: str, table: str, columns: list[MySqlColumn]
) -> list[MySqlColumn]:
    """MariaDB's JSON is a text with a check that says so."""
    checks = connection.query(
        "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
        f"WHERE CONSTRAINT_SCHEMA = {literal(database)} AND TABLE_NAME = {literal(table)}"
    )
    said = {row[0] for row in checks}
    return [
        MySqlColumn(
            name=each.name, spelled="json", family=Family.TEXT, type=JSONB, nullable=each.nullable,
            collation=each.collation, charset=each.charset, default=each.default,
        )
        if each.family is Family.TEXT and f"json_valid({name_in_sql(each.name)})" in said
        else each
        for each in columns
    ]  # fmt: skip


def _check_columns(table: str, found: Sequence[MySqlColumn], wanted: Sequence[str] | None) -> None:
    missing = set(wanted or ()) - {each.name for each in found}
    if missing:
        raise SchemaError(
            f'table "{table}" has no column "{sorted(missing)[0]}"',
            hint="Names of columns are written as upstream has them, with their case.",
        )


def _key(
    connection: MySqlConnection, where: str, table: str, columns: Sequence[MySqlColumn]
) -> tuple[str, ...]:
    rows = connection.query(
        "SELECT COLUMN_NAME FROM information_schema.STATISTICS "
        f"WHERE {where} AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
    )
    key = tuple(row[0] for row in rows)
    if not key:
        raise SchemaError(
            f'table "{table}" has no primary key, so its rows cannot be told apart in the log',
            hint=f"ALTER TABLE {table} ADD COLUMN id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY;",
        )
    here = {each.name: each for each in columns}
    for name in key:
        if name not in here:
            raise SchemaError(
                f'column "{name}" is part of the key of "{table}" and has to be read as well'
            )
        if not here[name].type.can_be_key or here[name].family is Family.FLOAT:
            raise SchemaError(
                f'column "{name}" of type {here[name].spelled} cannot be a key here',
                hint=f"With time.mode = '{TimeMode.TIME}' a TIME can be one."
                if here[name].family is Family.TIME
                else "Give the table a key of integers or text.",
            )
    return key
