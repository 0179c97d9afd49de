"""Types as PostgreSQL's catalog has them: their numbers, names and spellings."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from headwater.model.types import DataType, Kind

_NAMES: dict[Kind, str] = {
    Kind.BOOLEAN: "bool",
    Kind.SMALLINT: "int2",
    Kind.INTEGER: "int4",
    Kind.BIGINT: "int8",
    Kind.REAL: "float4",
    Kind.DOUBLE: "float8",
    Kind.DECIMAL: "numeric",
    Kind.NUMERIC: "numeric",
    Kind.VARCHAR: "varchar",
    Kind.BYTEA: "bytea",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.INTERVAL: "interval",
    Kind.JSONB: "jsonb",
    Kind.UUID: "uuid",
    Kind.STRUCT: "record",
}
_SPELLED = {
    "int": "int4", "integer": "int4", "smallint": "int2", "bigint": "int8", "boolean": "bool",
    "real": "float4", "double precision": "float8", "float": "float8", "decimal": "numeric",
    "character varying": "varchar", "character": "bpchar", "string": "varchar",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "time without time zone": "time", '"char"': "char",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PgFunction:
    """A function by number and name; no function is number 0."""

    oid: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """A row of pg_type that does not depend on what users created."""

    oid: int
    name: str
    length: int
    by_value: bool
    kind: str
    category: str
    preferred: bool
    delimiter: str
    element: int
    array: int
    functions: tuple[PgFunction, ...]
    """Input, output, receive, send."""
    alignment: str
    storage: str
    collation: int
    shown: str
    """The name as format_type writes it."""


@cache
def all_types() -> tuple[PgType, ...]:
    """Every built-in type that is known here."""
    text = resources.files(__package__).joinpath("types.txt").read_text()
    lines = [line.split("|") for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(_read(line) for line in lines)


def _read(cells: list[str]) -> PgType:
    functions = []
    for cell in cells[10:14]:
        number, name = cell.split(":")
        functions.append(PgFunction(int(number), name))
    return PgType(
        oid=int(cells[0]),
        name=cells[1],
        length=int(cells[2]),
        by_value=cells[3] == "t",
        kind=cells[4],
        category=cells[5],
        preferred=cells[6] == "t",
        delimiter=cells[7],
        element=int(cells[8]),
        array=int(cells[9]),
        functions=tuple(functions),
        alignment=cells[14],
        storage=cells[15],
        collation=int(cells[16]),
        shown=cells[17],
    )


@cache
def by_oid() -> dict[int, PgType]:
    """The types by their numbers."""
    return {each.oid: each for each in all_types()}


@cache
def by_name() -> dict[str, PgType]:
    """The types by PostgreSQL's inner names."""
    return {each.name: each for each in all_types()}


@cache
def functions() -> dict[int, PgFunction]:
    """The functions that read and write values of types, by number."""
    return {f.oid: f for each in all_types() for f in each.functions if f.oid}


def named(text: str) -> PgType | None:
    """The type that a spelling means: `int4`, `integer`, `pg_catalog.int4`, `_int4`, `int4[]`."""
    name = text.strip().removeprefix("pg_catalog.")
    if name.endswith("[]"):
        element = named(name[:-2])
        return None if element is None else by_oid().get(element.array)
    name = _SPELLED.get(name.lower(), name.strip('"'))
    return by_name().get(name) or by_name().get(name.lower())


def pg_type(type_: DataType) -> PgType:
    """The catalog's type of one of ours."""
    if type_.kind is not Kind.LIST:
        return by_name()[_NAMES[type_.kind]]
    while type_.element is not None:
        type_ = type_.element
    return by_oid()[pg_type(type_).array]


def modifier(type_: DataType, length: int | None = None) -> int:
    """The type modifier: the length of a varchar, the digits of a decimal, or -1."""
    while type_.element is not None:
        type_ = type_.element
    if type_.kind is Kind.DECIMAL:
        return ((type_.precision or 0) << 16 | (type_.scale or 0)) + 4
    if type_.kind is Kind.VARCHAR and length is not None:
        return length + 4
    return -1


def dimensions(type_: DataType) -> int:
    """How many dimensions a list has."""
    depth = 0
    while type_.element is not None:
        type_, depth = type_.element, depth + 1
    return depth


def format_type(oid: int, mod: int | None) -> str | None:
    """A type as PostgreSQL shows it, with its modifier; None for a number that is no type."""
    found = by_oid().get(oid)
    if found is None:
        return None
    element = by_oid().get(found.element) if found.category == "A" else None
    if element is not None:
        return f"{format_type(element.oid, mod)}[]"
    if mod is None or mod < 4:
        return found.shown
    if found.name == "numeric":
        return f"numeric({(mod - 4) >> 16},{(mod - 4) & 0xFFFF})"
    if found.name in ("varchar", "bpchar"):
        return f"{found.shown}({mod - 4})"
    return found.shown
