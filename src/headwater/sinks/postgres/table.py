"""The target table: created as it should be, or checked column by column.

A column of an existing table fits when it holds every value exactly. What PostgreSQL would round,
pad or cut without a word (numeric(p,s), timestamp(3), char(n)) does not fit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headwater.errors import RelationError, SchemaError, UserError
from headwater.model.schema import Column
from headwater.model.types import DataType, Kind
from headwater.sinks.postgres.options import Target, quoted
from headwater.sinks.sink import SinkKind, SinkSpec
from headwater.sinks.spelling import POSTGRES, as_json

_TEXTS = frozenset({"text", "character varying"})
_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}
_NAMES: dict[Kind, frozenset[str]] = {
    Kind.BOOLEAN: frozenset({"boolean"}),
    Kind.SMALLINT: frozenset({"smallint", "integer", "bigint"}),
    Kind.INTEGER: frozenset({"integer", "bigint"}),
    Kind.BIGINT: frozenset({"bigint"}),
    Kind.REAL: frozenset({"real", "double precision"}),
    Kind.DOUBLE: frozenset({"double precision"}),
    Kind.NUMERIC: frozenset({"numeric"}) | _TEXTS,
    Kind.DECIMAL: frozenset({"numeric"}) | _TEXTS,
    Kind.VARCHAR: _TEXTS,
    Kind.BYTEA: frozenset({"bytea"}),
    Kind.DATE: frozenset({"date"}),
    Kind.TIME: frozenset({"time without time zone"}) | _TEXTS,
    Kind.TIMESTAMP: frozenset({"timestamp without time zone"}),
    Kind.TIMESTAMPTZ: frozenset({"timestamp with time zone"}),
    Kind.INTERVAL: frozenset({"interval"}) | _TEXTS,
    Kind.JSONB: frozenset({"jsonb", "json"}) | _TEXTS,
    Kind.UUID: frozenset({"uuid"}) | _TEXTS,
}
_JSON = frozenset({"jsonb", "json"}) | _TEXTS
_LIMITED = re.compile(
    r"(?P<name>[a-z ]+?)(\((?P<limits>[\d,]+)\))?(?P<rest> with(out)? time zone)?"
)
_MICROSECONDS = "6"

_FOUND = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef,
           a.attidentity <> '' , a.attgenerated <> '', t.typtype = 'e'
      FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum"""
_KIND = "SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)"
_UNIQUE = """
    SELECT array_agg(a.attname::text)
      FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
     WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indisvalid
       AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
     GROUP BY i.indexrelid"""


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as the server has it."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    identity: bool
    generated: bool
    enum: bool


def type_name(type_: DataType) -> str:
    """The type of a column that we create."""
    return "jsonb" if as_json(type_, POSTGRES) else type_.postgres


def create_statement(target: Target, spec: SinkSpec) -> str:
    """The target table as it should be."""
    lines = [f"{quoted(column.name)} {type_name(column.type)}" for column in spec.columns]
    if spec.kind is SinkKind.UPSERT:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, spec.key))})")
    return f"CREATE TABLE {target.name} ({', '.join(lines)})"


def prepare_table(cursor: "psycopg.Cursor[Any]", target: Target, spec: SinkSpec) -> None:
    """Create the target table, or check the one that is there. Replay: it is there."""
    found = [FoundColumn(*row) for row in cursor.execute(_FOUND, [target.name]).fetchall()]
    if not found:
        statement = create_statement(target, spec)
        if not target.create_table:
            raise RelationError(
                f"the target table {target.name} is not in {target.place}", hint=f"{statement};"
            )
        cursor.execute(statement)
        return
    kind = cursor.execute(_KIND, [target.name]).fetchall()[0][0]
    if kind not in ("r", "p"):
        raise RelationError(
            f"{target.name} in {target.place} is no table",
            hint='Name a table in the option "table".',
        )
    there = {column.name: column for column in found}
    if spec.evolves:
        _add_columns(cursor, target, spec, there)
    _check_columns(target, spec, there)
    if spec.kind is SinkKind.UPSERT:
        uniques = [set(row[0]) for row in cursor.execute(_UNIQUE, [target.name]).fetchall()]
        _check_key(target, spec, uniques)


def _add_columns(
    cursor: "psycopg.Cursor[Any]", target: Target, spec: SinkSpec, found: dict[str, FoundColumn]
) -> None:
    missing = [column for column in spec.columns if column.name not in found]
    for column in missing:
        cursor.execute(
            f"ALTER TABLE {target.name} ADD COLUMN {quoted(column.name)} {type_name(column.type)}"
        )
    if missing:
        rows = cursor.execute(_FOUND, [target.name]).fetchall()
        found.update({column.name: column for column in (FoundColumn(*row) for row in rows)})


def _check_columns(target: Target, spec: SinkSpec, found: dict[str, FoundColumn]) -> None:
    for column in spec.columns:
        there = found.pop(column.name, None)
        if there is None:
            raise SchemaError(
                f'the target table {target.name} has no column "{column.name}"',
                hint=f"ALTER TABLE {target.name} ADD COLUMN {quoted(column.name)} "
                f"{type_name(column.type)};",
            )
        if there.generated or (there.identity and not there.has_default and there.not_null):
            raise SchemaError(
                f'column "{column.name}" of {target.name} is generated by the server',
                hint="Make it a plain column, or leave it out of the sink's query.",
            )
        if not (fits(column.type, there.type) or (there.enum and column.type.kind is Kind.VARCHAR)):
            raise SchemaError(
                f'column "{column.name}" of {target.name} does not hold every '
                f"{column.type.postgres}",
                detail=f"It is {there.type}.",
                hint=f"ALTER TABLE {target.name} ALTER COLUMN {quoted(column.name)} "
                f"TYPE {type_name(column.type)};",
            )
    for extra in found.values():
        if extra.not_null and not (extra.has_default or extra.identity or extra.generated):
            raise SchemaError(
                f'column "{extra.name}" of {target.name} needs a value, and the sink has none',
                hint=f"ALTER TABLE {target.name} ALTER COLUMN {quoted(extra.name)} DROP NOT NULL;",
            )


def _check_key(target: Target, spec: SinkSpec, uniques: Sequence[set[str]]) -> None:
    if set(spec.key) in uniques:
        return
    raise UserError(
        f"the target table {target.name} has no unique key ({', '.join(spec.key)})",
        detail="An upsert finds the row to change by it.",
        hint=f"ALTER TABLE {target.name} ADD UNIQUE ({', '.join(map(quoted, spec.key))});",
    )


def fits(ours: DataType, theirs: str) -> bool:
    """Whether a column of the server holds every value of ours, exactly."""
    if as_json(ours, POSTGRES):
        return theirs in _JSON
    if ours.kind is Kind.LIST:
        assert ours.element is not None
        return theirs.endswith("[]") and fits(ours.element, theirs.removesuffix("[]"))
    parts = _LIMITED.fullmatch(theirs)
    if parts is None:
        return False
    name, limits = parts["name"] + (parts["rest"] or ""), parts["limits"]
    if name == "numeric" and ours.kind in _DIGITS:
        return _holds(limits, _DIGITS[ours.kind], 0)
    # A text that is too long is an error of the server, never cut; the others it rounds.
    return name in _NAMES[ours.kind] and (name in _TEXTS or _within(ours, limits))


def _within(ours: DataType, limits: str | None) -> bool:
    if limits is None or ours.kind is Kind.DECIMAL:
        return _holds(limits, ours.precision or 0, ours.scale or 0)
    return ours.kind is not Kind.NUMERIC and limits == _MICROSECONDS


def _holds(limits: str | None, precision: int, scale: int) -> bool:
    if limits is None:
        return True
    digits, _, behind = limits.partition(",")
    theirs = int(behind or 0)
    return theirs >= scale and int(digits) - theirs >= precision - scale


def names_of(columns: Sequence[Column]) -> str:
    """Column names, as SQL lists them."""
    return ", ".join(quoted(column.name) for column in columns)
