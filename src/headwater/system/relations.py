"""The system relations: their names, numbers and columns.

Names and columns are kept as text files beside this module, one for each schema, read once. A
relation without rows is a relation all the same: a client that looks for triggers must find that
there are none, not that the table of triggers is missing.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import pyarrow as pa

from headwater.model import types
from headwater.model.types import DataType, list_of

PG_CATALOG = "pg_catalog"
INFORMATION_SCHEMA = "information_schema"
RW_CATALOG = "rw_catalog"
HW_CATALOG = "hw_catalog"
NAMESPACES = (PG_CATALOG, INFORMATION_SCHEMA, RW_CATALOG, HW_CATALOG)

IMPLICIT = (PG_CATALOG, RW_CATALOG)
"""Schemas that every search path ends with, as in RisingWave."""


@dataclass(frozen=True, slots=True)
class Form:
    """A type of PostgreSQL, as it is computed with and as a client gets it."""

    duckdb: str
    arrow: pa.DataType
    type: DataType
    oid: int


_TEXT = ("VARCHAR", pa.string(), types.VARCHAR)
_NUMBER = ("UINTEGER", pa.uint32(), types.INTEGER)
_NAMED = ("UINTEGER", pa.uint32(), types.VARCHAR)

FORMS: dict[str, Form] = {
    "bool": Form("BOOLEAN", pa.bool_(), types.BOOLEAN, 16),
    "bytea": Form("BLOB", pa.binary(), types.BYTEA, 17),
    "char": Form(*_TEXT, 18),
    "name": Form(*_TEXT, 19),
    "int8": Form("BIGINT", pa.int64(), types.BIGINT, 20),
    "int2": Form("SMALLINT", pa.int16(), types.SMALLINT, 21),
    "int2vector": Form("SMALLINT[]", pa.list_(pa.int16()), types.VARCHAR, 22),
    "int4": Form("INTEGER", pa.int32(), types.INTEGER, 23),
    "regproc": Form(*_NAMED, 24),
    "text": Form(*_TEXT, 25),
    "oid": Form(*_NUMBER, 26),
    "xid": Form("BIGINT", pa.int64(), types.BIGINT, 28),
    "oidvector": Form("UINTEGER[]", pa.list_(pa.uint32()), types.VARCHAR, 30),
    "pg_node_tree": Form(*_TEXT, 194),
    "float4": Form("FLOAT", pa.float32(), types.REAL, 700),
    "float8": Form("DOUBLE", pa.float64(), types.DOUBLE, 701),
    "inet": Form(*_TEXT, 869),
    "varchar": Form(*_TEXT, 1043),
    "timestamp": Form("TIMESTAMP", pa.timestamp("us"), types.TIMESTAMP, 1114),
    "timestamptz": Form(
        "TIMESTAMP WITH TIME ZONE", pa.timestamp("us", tz="UTC"), types.TIMESTAMPTZ, 1184
    ),
    "interval": Form("INTERVAL", pa.month_day_nano_interval(), types.INTERVAL, 1186),
    "numeric": Form("DOUBLE", pa.float64(), types.NUMERIC, 1700),
    "regtype": Form(*_NAMED, 2206),
    "anyarray": Form(*_TEXT, 2277),
    "pg_lsn": Form(*_TEXT, 3220),
    "pg_ndistinct": Form(*_TEXT, 3361),
    "pg_dependencies": Form(*_TEXT, 3402),
    "jsonb": Form("JSON", pa.string(), types.JSONB, 3802),
}
_ARRAY_OIDS = {
    "bool": 1000, "char": 1002, "name": 1003, "int2": 1005, "int4": 1007, "text": 1009,
    "int8": 1016, "varchar": 1015, "float4": 1021, "float8": 1022, "oid": 1028, "aclitem": 1034,
    "regtype": 2211,
}  # fmt: skip


@cache
def form_of(name: str) -> Form:
    """The form of a type by PostgreSQL's short name, such as `int4` or `text[]`."""
    if not name.endswith("[]"):
        return FORMS[name]
    element = {"integer": "int4"}.get(name[:-2], name[:-2])
    inner = FORMS[{"aclitem": "text", "regtype": "oid"}.get(element, element)]
    return Form(
        f"{inner.duckdb}[]", pa.list_(inner.arrow), list_of(inner.type), _ARRAY_OIDS[element]
    )


@dataclass(frozen=True, slots=True)
class SystemColumn:
    """A column of a system relation; `form` is PostgreSQL's short name of its type."""

    name: str
    form: str
    nullable: bool = True

    @property
    def type(self) -> DataType:
        """The type that a client gets."""
        return form_of(self.form).type


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRelation:
    """A system table or view."""

    namespace: str
    name: str
    oid: int
    kind: Literal["table", "view"]
    columns: tuple[SystemColumn, ...]

    @property
    def key(self) -> str:
        """The one name that it has inside the embedded database."""
        return f"{self.namespace}.{self.name}"

    @property
    def arrow(self) -> pa.Schema:
        """Its rows as Arrow holds them."""
        return pa.schema([pa.field(c.name, form_of(c.form).arrow) for c in self.columns])

    def column(self, name: str) -> SystemColumn | None:
        """The column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)


_SECTION = re.compile(r"^\[(\w+)\] (\d+) (table|view)\n((?:[^\[#\n].*\n?)+)", re.MULTILINE)


def _read(namespace: str) -> Iterator[SystemRelation]:
    text = resources.files(__package__).joinpath(f"{namespace}.txt").read_text()
    for name, oid, kind, body in _SECTION.findall(text):
        columns = []
        for part in body.replace("\n", " ").split(","):
            column, form = part.split()
            columns.append(SystemColumn(column, form.rstrip("!"), not form.endswith("!")))
        yield SystemRelation(
            namespace=namespace, name=name, oid=int(oid), kind=kind, columns=tuple(columns)
        )


@cache
def known() -> dict[str, SystemRelation]:
    """All system relations, by `schema.name`."""
    return {each.key: each for namespace in NAMESPACES for each in _read(namespace)}


def find(namespace: str | None, name: str) -> SystemRelation | None:
    """The system relation that a name means; without a schema, one that every path ends with."""
    if namespace is not None:
        return known().get(f"{namespace}.{name}")
    for implicit in IMPLICIT:
        if (found := known().get(f"{implicit}.{name}")) is not None:
            return found
    return None


def nearest(namespace: str | None, name: str) -> str:
    """The known name that is most like this one, or nothing."""
    names = [each.name for each in known().values() if namespace in (None, each.namespace)]
    close = difflib.get_close_matches(name, names, 1)
    return close[0] if close else ""
