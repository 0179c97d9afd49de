"""The target table: created as it should be, or checked column by column.

    kind                 column that we create                 columns that fit as well
    boolean              TINYINT(1)                            wider integers
    smallint to bigint   SMALLINT, INT, BIGINT                 wider ones, DECIMAL of enough digits
    real, double         FLOAT, DOUBLE                         DOUBLE
    decimal(p,s)         DECIMAL(p,s)                          DECIMAL with more digits, texts
    numeric              DECIMAL(65,30)                        any DECIMAL, texts
    varchar              LONGTEXT, in keys VARCHAR             texts, ENUM
    bytea                LONGBLOB, in keys VARBINARY           BLOBs, VARBINARY
    date, time           DATE, TIME(6)                         texts for time
    timestamp            DATETIME(6)
    timestamptz          DATETIME(6), in UTC                   TIMESTAMP(6)
    interval, uuid       VARCHAR(128), CHAR(36)                texts, MariaDB's UUID
    jsonb, T[], struct   JSON                                  texts

Texts are compared byte by byte, with the spaces at their ends: two keys that differ stay two. A
column whose values the server would change without a word (DATETIME(3), CHAR(n)) does not fit;
where it warns (a number with more digits than a DECIMAL has) the row is refused when it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import RelationError, SchemaError, UserError
from headwater.model.schema import Column
from headwater.model.types import DataType, Kind
from headwater.sinks.mysql.connecting import Session
from headwater.sinks.mysql.options import Target, quoted
from headwater.sinks.sink import SinkKind, SinkSpec

_TEXTS = frozenset({"varchar", "text", "mediumtext", "longtext", "tinytext"})
_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}
_FITS: dict[Kind, frozenset[str]] = {
    Kind.BOOLEAN: frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"}),
    Kind.SMALLINT: frozenset({"smallint", "mediumint", "int", "bigint"}),
    Kind.INTEGER: frozenset({"int", "bigint"}),
    Kind.BIGINT: frozenset({"bigint"}),
    Kind.REAL: frozenset({"float", "double"}),
    Kind.DOUBLE: frozenset({"double"}),
    Kind.DECIMAL: frozenset({"decimal"}) | _TEXTS,
    Kind.NUMERIC: frozenset({"decimal"}) | _TEXTS,
    Kind.VARCHAR: frozenset({"enum"}) | _TEXTS,
    Kind.BYTEA: frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}),
    Kind.DATE: frozenset({"date"}),
    Kind.TIME: frozenset({"time"}) | _TEXTS,
    Kind.TIMESTAMP: frozenset({"datetime"}),
    Kind.TIMESTAMPTZ: frozenset({"datetime", "timestamp"}),
    Kind.INTERVAL: _TEXTS,
    Kind.JSONB: frozenset({"json"}) | _TEXTS,
    Kind.UUID: frozenset({"uuid", "char"}) | _TEXTS,
    Kind.LIST: frozenset({"json"}) | _TEXTS,
    Kind.STRUCT: frozenset({"json"}) | _TEXTS,
}
_PLAIN = {
    Kind.BOOLEAN: "TINYINT(1)",
    Kind.SMALLINT: "SMALLINT",
    Kind.INTEGER: "INT",
    Kind.BIGINT: "BIGINT",
    Kind.REAL: "FLOAT",
    Kind.DOUBLE: "DOUBLE",
    Kind.NUMERIC: "DECIMAL(65,30)",
    Kind.DATE: "DATE",
    Kind.TIME: "TIME(6)",
    Kind.TIMESTAMP: "DATETIME(6)",
    Kind.TIMESTAMPTZ: "DATETIME(6)",
    Kind.JSONB: "JSON",
    Kind.LIST: "JSON",
    Kind.STRUCT: "JSON",
    Kind.UUID: "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
}
_MOST_KEY_BYTES, _MOST_KEY_CHARACTERS = 3000, 512
_MOST_SCALE = 30
_MICROSECONDS = 6
_EXACT_COLLATIONS = ("_bin", "binary")
_COLUMNS = """
    SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE = 'YES', COLUMN_DEFAULT IS NOT NULL,
           EXTRA, COALESCE(CHARACTER_SET_NAME, ''), COALESCE(COLLATION_NAME, ''),
           COALESCE(NUMERIC_PRECISION, 0), COALESCE(NUMERIC_SCALE, 0),
           COALESCE(DATETIME_PRECISION, 0)
      FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
     ORDER BY ORDINAL_POSITION"""
_TABLE = """
    SELECT TABLE_TYPE, COALESCE(ENGINE, '') FROM information_schema.TABLES
     WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""
_UNIQUE = """
    SELECT INDEX_NAME, COLUMN_NAME, SUB_PART IS NOT NULL FROM information_schema.STATISTICS
     WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0"""


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as the server has it."""

    name: str
    type: str
    full_type: str
    nullable: bool
    has_default: bool
    extra: str
    charset: str
    collation: str
    precision: int
    scale: int
    fraction: int

    @property
    def definition(self) -> str:
        """A column of the same type that takes nulls."""
        texts = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset else ""
        return f"{quoted(self.name)} {self.full_type}{texts} NULL"


@dataclass(frozen=True, slots=True)
class FoundTable:
    """The target table as the server has it; no columns where there is none."""

    columns: tuple[FoundColumn, ...]
    uniques: tuple[frozenset[str], ...]
    """Columns of unique keys, in lower case; those of parts of columns are empty."""

    def column(self, name: str) -> FoundColumn | None:
        """A column by name; the server does not tell cases apart."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)


def find_table(session: Session, target: Target) -> FoundTable:
    """Look the target table up."""
    name = [target.database, target.table]
    columns = tuple(FoundColumn(*row) for row in session.execute(_COLUMNS, name))
    uniques: dict[str, set[str]] = {}
    for index, column, partial in session.execute(_UNIQUE, name):
        uniques.setdefault(index, set()).add("" if partial else str(column).lower())
    return FoundTable(columns, tuple(map(frozenset, uniques.values())))


def type_name(column: Column, spec: SinkSpec, *, mariadb: bool) -> str:
    """The type of a column that we create."""
    type_ = column.type
    collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
    in_key = spec.kind is SinkKind.UPSERT and column.name in spec.key
    room = _MOST_KEY_BYTES // max(len(spec.key), 1)
    if type_.kind is Kind.BYTEA:
        return f"VARBINARY({room})" if in_key else "LONGBLOB"
    if type_.kind is Kind.DECIMAL and (type_.scale or 0) <= _MOST_SCALE:
        return f"DECIMAL({type_.precision},{type_.scale})"
    if type_.kind in _PLAIN:
        return _PLAIN[type_.kind]
    length = min(room // 4, _MOST_KEY_CHARACTERS)
    name = f"VARCHAR({length})" if in_key else "LONGTEXT"
    if type_.kind in (Kind.INTERVAL, Kind.DECIMAL):
        name = "VARCHAR(128)"
    return f"{name} CHARACTER SET utf8mb4 COLLATE {collation}"


def create_statement(target: Target, spec: SinkSpec, *, mariadb: bool) -> str:
    """The target table as it should be."""
    lines = [
        f"{quoted(column.name)} {type_name(column, spec, mariadb=mariadb)}"
        for column in spec.columns
    ]
    if spec.kind is SinkKind.UPSERT:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, spec.key))})")
    return f"CREATE TABLE {target.name} ({', '.join(lines)}) ENGINE = InnoDB"


def prepare_table(session: Session, target: Target, spec: SinkSpec) -> None:
    """Create the target table, or check the one that is there. Replay: it is there."""
    found = find_table(session, target)
    if not found.columns:
        statement = create_statement(target, spec, mariadb=session.mariadb)
        if not target.create_table:
            raise RelationError(
                f"the target table {target.name} is not in {target.place}", hint=f"{statement};"
            )
        session.execute(statement)
        return
    [(kind, engine)] = session.execute(_TABLE, [target.database, target.table])
    if kind != "BASE TABLE":
        raise RelationError(
            f"{target.name} in {target.place} is no table",
            hint='Name a table in the option "table".',
        )
    if engine.lower() not in ("innodb", "ndbcluster", "rocksdb"):
        raise UserError(
            f"the target table {target.name} has no transactions",
            detail=f"Its engine is {engine}.",
            hint=f"ALTER TABLE {target.name} ENGINE = InnoDB;",
        )
    if spec.evolves:
        found = _with_all_columns(session, target, spec, found)
    for column in spec.columns:
        _check_column(target, spec, column, found, mariadb=session.mariadb)
    _check_others(target, spec, found)
    if spec.kind is SinkKind.UPSERT:
        _check_key(target, spec, found, mariadb=session.mariadb)


def _with_all_columns(
    session: Session, target: Target, spec: SinkSpec, found: FoundTable
) -> FoundTable:
    missing = [column for column in spec.columns if found.column(column.name) is None]
    if not missing:
        return found
    added = ", ".join(
        f"ADD COLUMN {quoted(column.name)} {type_name(column, spec, mariadb=session.mariadb)} NULL"
        for column in missing
    )
    session.execute(f"ALTER TABLE {target.name} {added}")
    return find_table(session, target)


def _check_column(
    target: Target, spec: SinkSpec, column: Column, found: FoundTable, *, mariadb: bool
) -> None:
    there = found.column(column.name)
    definition = f"{quoted(column.name)} {type_name(column, spec, mariadb=mariadb)}"
    if there is None:
        raise SchemaError(
            f'the target table {target.name} has no column "{column.name}"',
            hint=f"ALTER TABLE {target.name} ADD COLUMN {definition};",
        )
    if "GENERATED" in there.extra.upper() and "DEFAULT_GENERATED" not in there.extra.upper():
        raise SchemaError(
            f'column "{column.name}" of {target.name} is generated by the server',
            hint="Make it a plain column, or leave it out of the sink's query.",
        )
    if not fits(column.type, there):
        raise SchemaError(
            f'column "{column.name}" of {target.name} does not hold every {column.type.postgres}',
            detail=f"It is {there.full_type}.",
            hint=f"ALTER TABLE {target.name} MODIFY COLUMN {definition};",
        )


def _check_others(target: Target, spec: SinkSpec, found: FoundTable) -> None:
    ours = {column.name.lower() for column in spec.columns}
    for there in found.columns:
        given = there.nullable or there.has_default or there.extra
        if there.name.lower() not in ours and not given:
            raise SchemaError(
                f'column "{there.name}" of {target.name} needs a value, and the sink has none',
                hint=f"ALTER TABLE {target.name} MODIFY COLUMN {there.definition};",
            )


def _check_key(target: Target, spec: SinkSpec, found: FoundTable, *, mariadb: bool) -> None:
    if frozenset(name.lower() for name in spec.key) not in found.uniques:
        raise UserError(
            f"the target table {target.name} has no unique key ({', '.join(spec.key)})",
            detail="An upsert finds the row to change by it.",
            hint=f"ALTER TABLE {target.name} ADD UNIQUE ({', '.join(map(quoted, spec.key))});",
        )
    for column in spec.columns:
        there = found.column(column.name)
        if column.name not in spec.key or column.type.kind is not Kind.VARCHAR or there is None:
            continue
        if not there.collation.endswith(_EXACT_COLLATIONS) or _pads(there.collation):
            raise SchemaError(
                f'key column "{column.name}" of {target.name} takes different texts as equal',
                detail=f"Its collation is {there.collation}: rows of different keys would "
                "overwrite each other.",
                hint=f"ALTER TABLE {target.name} MODIFY COLUMN {quoted(column.name)} "
                f"{type_name(column, spec, mariadb=mariadb)};",
            )


def _pads(collation: str) -> bool:
    """Whether spaces at the end of a text do not count."""
    return not ("nopad" in collation or "0900" in collation or collation == "binary")


def fits(ours: DataType, theirs: FoundColumn) -> bool:
    """Whether a column of the server holds every value of ours, or warns of those it does not."""
    if theirs.type not in _FITS[ours.kind]:
        return theirs.type == "decimal" and _holds(theirs, _DIGITS.get(ours.kind, 99), 0)
    if "unsigned" in theirs.full_type and ours.kind is not Kind.BOOLEAN:
        return False
    if theirs.type in ("datetime", "timestamp", "time"):
        return theirs.fraction == _MICROSECONDS
    if ours.kind is Kind.DECIMAL and theirs.type == "decimal":
        return _holds(theirs, ours.precision or 0, ours.scale or 0)
    return True


def _holds(theirs: FoundColumn, precision: int, scale: int) -> bool:
    return (
        "unsigned" not in theirs.full_type
        and theirs.scale >= scale
        and theirs.precision - theirs.scale >= precision - scale
    )


def other_uniques(found: FoundTable, key: Sequence[str]) -> bool:
    """Whether a row can be in the way of another one by something else than the key."""
    ours = frozenset(name.lower() for name in key)
    return any(unique != ours for unique in found.uniques)
